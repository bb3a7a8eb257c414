/**
 * Carries out the commands of `clients/conformance` in a page of a headless Chromium, over the DevTools protocol.
 *
 * The page has the origin of the service. It loads the modules of this package as they are, with an import map.
 */

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const { KEYLATCH_URL: url, KEYLATCH_API_KEY: apiKey, TRACEPARENT: trace, CONFORMANCE_SILENCE_MS, CHROMIUM } = process.env;
const settings = { url, apiKey, silence: CONFORMANCE_SILENCE_MS && Number(CONFORMANCE_SILENCE_MS) };
const here = `${url}/conformance/`;
const page = `<!doctype html><link rel="icon" href="data:,"><script type="importmap">{"imports":{"#platform":"./dist/web.js"}}</script>
<script type="module">
  import { program } from './commands.mjs';
  const settings = ${JSON.stringify(settings)};
  const traceparent = () => ${JSON.stringify(trace) ?? 'undefined'};
  globalThis.carryOut = program({ ...settings, traceparent }, (line) => said(JSON.stringify(line)));
  said('ready');
</script>`;

const chromium = spawn(
  CHROMIUM || 'chromium',
  [
    ...['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--remote-debugging-pipe'],
    `--user-data-dir=${mkdtempSync(join(tmpdir(), 'keylatch-browser-'))}`,
  ],
  { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] },
);
chromium.on('exit', () => process.exit(1));
const [waiting, session] = [new Map(), {}];
let [sent, rest] = [0, ''];

/** Calls a method of the protocol. */
function call(method, params = {}) {
  const id = ++sent;
  chromium.stdio[3].write(`${JSON.stringify({ id, method, params, ...session })}\0`);
  return new Promise((resolve) => waiting.set(id, resolve));
}

/** Serves a file of this package to the page, and lets other requests pass. */
function fulfil({ requestId, request }) {
  if (!request.url.startsWith(here)) return call('Fetch.continueRequest', { requestId });
  const name = request.url.slice(here.length);
  const text = name ? readFileSync(fileURLToPath(new URL(name, import.meta.url))) : Buffer.from(page);
  const type = { name: 'content-type', value: name ? 'text/javascript' : 'text/html' };
  return call('Fetch.fulfillRequest', { requestId, responseCode: 200, responseHeaders: [type], body: text.toString('base64') });
}

/** Without an API key the browser asks its user for a password, and this one knows none. */
function cancel({ requestId }) {
  return call('Fetch.continueWithAuth', { requestId, authChallengeResponse: { response: 'CancelAuth' } });
}

const ready = new Promise((resolve) => {
  chromium.stdio[4].setEncoding('utf8').on('data', (data) => {
    const messages = (rest + data).split('\0');
    rest = messages.pop();
    for (const { id, method, params, result } of messages.map((message) => JSON.parse(message))) {
      waiting.get(id)?.(result);
      if (method === 'Fetch.requestPaused') void fulfil(params);
      if (method === 'Fetch.authRequired') void cancel(params);
      if (method === 'Runtime.bindingCalled') params.payload === 'ready' ? resolve() : process.stdout.write(`${params.payload}\n`);
    }
  });
});

const { targetId } = await call('Target.createTarget', { url: 'about:blank' });
session.sessionId = (await call('Target.attachToTarget', { targetId, flatten: true })).sessionId;
await call('Runtime.enable');
await call('Runtime.addBinding', { name: 'said' });
await call('Fetch.enable', { handleAuthRequests: !apiKey });
await call('Page.navigate', { url: here });
await ready;
for await (const line of createInterface({ input: process.stdin })) {
  if (JSON.parse(line).do === 'stop') break;
  void call('Runtime.evaluate', { expression: `void carryOut(${line})` });
}
chromium.kill();
