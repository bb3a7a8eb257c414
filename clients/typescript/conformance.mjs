/** Carries out the commands of `clients/conformance` with this client in Node, Deno and Bun. */

import { createInterface } from 'node:readline';

import { program } from './commands.mjs';

const { TRACEPARENT, CONFORMANCE_CA: ca, CONFORMANCE_CERT: cert, CONFORMANCE_KEY: key, CONFORMANCE_SILENCE_MS } = process.env;
const silence = CONFORMANCE_SILENCE_MS && Number(CONFORMANCE_SILENCE_MS);
const carryOut = program({ traceparent: () => TRACEPARENT, ca, cert, key, silence }, (line) => process.stdout.write(`${JSON.stringify(line)}\n`));

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.do === 'stop') break;
  void carryOut(command);
}
process.exit(0);
