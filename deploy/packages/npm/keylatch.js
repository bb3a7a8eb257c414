#!/usr/bin/env node
// Runs the program that the package of this platform carries, with its arguments, signals and exit code.
'use strict';

const { spawn } = require('node:child_process');
const { constants } = require('node:os');

const carrier = `@keylatch/${process.platform}-${process.arch}`;

let program;
try {
  program = require.resolve(`${carrier}/keylatch`);
} catch {
  console.error(
    `keylatch: ${carrier} is not installed. Either npm left out optional dependencies (--omit=optional), or ` +
      'there is no binary for this platform: build one from source, https://github.com/keylatch/keylatch.',
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: 'inherit' });
// The program decides what a signal means, and this process ends when the program does.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2']) {
  // A terminal sends SIGINT to both by itself.
  process.on(signal, () => (signal === 'SIGINT' && process.stdin.isTTY) || child.kill(signal));
}
child.on('error', (error) => {
  console.error(`keylatch: cannot run ${program}: ${error.message}`);
  process.exit(1);
});
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
