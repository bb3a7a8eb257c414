/** What the package exports, and what a scenario of `clients/conformance` cannot ask of every client. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

// Nothing is read of the environment before the first use.
process.env.KEYLATCH_CA = '/nowhere/ca.pem';
const { Client, keylatch } = await import('@keylatch/client');
await assert.rejects(keylatch.show('exports'), /\/nowhere\/ca.pem/);
assert.throws(() => new Client({}), /\/nowhere\/ca.pem/);
delete process.env.KEYLATCH_CA;

// A CommonJS program has all of it too.
const require = createRequire(import.meta.url);
assert.equal(typeof require('@keylatch/client').keylatch.lock, 'function');
const { FakeKeylatch } = require('@keylatch/client/testing');
assert.equal(await new FakeKeylatch().client.once('exports', async () => 17), 17);

// Each request says of which version it is.
const { version } = JSON.parse(readFileSync(new URL('package.json', import.meta.resolve('@keylatch/client').replace(/dist\/.*/, ''))));
const server = createServer((request, response) => response.end(JSON.stringify({ name: request.headers['user-agent'] })));
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const agent = `keylatch-typescript/${version}`;
assert.equal((await new Client({ url: `http://127.0.0.1:${server.address().port}` }).ask('GET', '/')).name, agent);
server.close().closeAllConnections();

// It is for pages, which have events.
globalThis.addEventListener = () => {};
const { submitOnce, fetchOnce } = await import('@keylatch/client/keylatch.js');
assert.equal(typeof submitOnce, 'function');
assert.equal(typeof fetchOnce, 'function');

// A hold that waits ends with the caller's signal, and leaves no place in line.
const client = new Client({});
const lease = await client.lock('exports');
const leaving = new AbortController();
const waiting = client.hold('exports', { wait: 60_000, signal: leaving.signal });
for (; (await client.show('exports')).waiting !== 1; );
leaving.abort(new Error('the caller leaves'));
await assert.rejects(waiting, { message: 'the caller leaves' });
for (; (await client.show('exports')).waiting !== 0; );
await lease.release();
