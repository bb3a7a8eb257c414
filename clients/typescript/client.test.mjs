/**
 * What only this language has, and what is finer than a scenario of `clients/conformance`, against a real keylatch.
 *
 *     KEYLATCH=$PWD/target/debug/keylatch npm test --prefix clients/typescript
 */

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once as happens } from 'node:events';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { Agent, createServer as createHttpServer } from 'node:http';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { createServer as createTlsServer } from 'node:tls';
import { inspect } from 'node:util';

const { Client, Held, LeaseLost, NothingDone, Problem, SettingsError, Unreachable } = await import(process.env.CLIENT ?? './dist/index.js');

const folder = mkdtempSync(join(tmpdir(), 'keylatch-client-'));
let [service, url, names] = [undefined, '', 0];

before(async () => {
  writeFileSync(join(folder, 'keylatch.toml'), '[server]\nbody_limit_bytes = 1000000\n[idempotency]\nresponse_limit_bytes = 300000\n');
  const options = ['--config', 'keylatch.toml', '--store', 'memory:', '--listen', '127.0.0.1:0'];
  service = spawn(process.env.KEYLATCH, options, { cwd: folder });
  for await (const line of createInterface({ input: service.stderr })) {
    const address = /"address":"(127\.0\.0\.1:\d+)"/.exec(line);
    if (address) return void (url = `http://${address[1]}`);
  }
});

after(() => service.kill());

const unused = () => `n${++names}`;
const client = (options) => new Client({ url, ...options });
/** A `fetch` of which `change` may take or replace the response, and which counts its requests. */
function changing(change) {
  const requests = [];
  const changed = async (input, init) => {
    requests.push(init);
    const response = await fetch(input, init);
    return change(response, requests.length, init);
  };
  return Object.assign(changed, { requests });
}
const rejection = (promise) => promise.then(() => assert.fail('it does not throw'), (error) => error);
function block(span) {
  for (const end = performance.now() + span; performance.now() < end; );
}
async function eventually(ask) {
  while (!(await ask())) await new Promise((resolve) => setTimeout(resolve, 20));
}

test('a lease is lost by the clock, also where no timer could tell', async () => {
  const leases = await Promise.all([1, 2, 3].map(() => client().lock(unused(), { ttl: 1000 })));
  block(1500);
  assert.throws(() => leases[0].check(), { name: 'LeaseLost', reason: 'paused' });
  assert.equal(leases[1].signal.aborted, true);
  assert.equal(leases[2].validFor, 0);
  assert.throws(() => leases[2].check(), LeaseLost);
});

test('a lease that is released is not one to go on with', async () => {
  const lease = await client().lock(unused());
  await lease.release();
  assert.throws(() => lease.check(), { reason: 'released' });
  assert.equal(lease.signal.aborted, false);
});

test('what an action of once throws ends its run', async () => {
  const thrown = new Error('card declined\n\u0000' + 'ü'.repeat(200));
  const one = unused();
  assert.equal(await rejection(client().once(one, async () => { throw thrown; })), thrown);
  assert.equal((await rejection(client().begin(one))).code, 'outcome-unknown');
  for (const [error, options] of [[new NothingDone('no card'), {}], [thrown, { onCrash: 'rerun' }]]) {
    const key = unused();
    assert.equal(await rejection(client().once(key, async () => { throw error; }, options)), error);
    assert.equal(await client().once(key, async () => 7), 7);
  }
});

test('a value that JSON has no text for ends the run of its action', async () => {
  const key = unused();
  await assert.rejects(client().once(key, async () => 1n), TypeError);
  assert.equal((await rejection(client().begin(key))).code, 'outcome-unknown');
});

test('a value that the service refuses ends the run of its action', async () => {
  const key = unused();
  assert.equal((await rejection(client().once(key, async () => 'x'.repeat(3_000_000)))).code, 'payload-too-large');
  assert.equal((await rejection(client().begin(key))).code, 'outcome-unknown');
});

test('an action that completes its run itself is not completed again', async () => {
  const key = unused();
  await client().once(key, async (_, run) => run.complete({ status: 201, json: { id: 17 } }));
  assert.equal((await client().begin(key)).answer.status, 201);
});

test('the action of once is told that nobody waits for it, and its value is kept', async () => {
  const [key, leaving] = [unused(), new AbortController()];
  const told = await client().once(key, async (signal) => {
    leaving.abort();
    return signal.aborted;
  }, { signal: leaving.signal });
  assert.equal(told, true);
  assert.equal(await client().once(key, async () => 'again'), true);
});

test('a lease that is lost hides no error of a block', async () => {
  class CardDeclined extends Error {}
  const thrown = new CardDeclined('declined');
  const blocks = [
    async (lease) => lease.check(),
    async () => { throw thrown; },
  ];
  const caught = [];
  for (const act of blocks) {
    const lease = await client().lock(unused(), { ttl: 1000 });
    block(1100);
    // What `await using` does, which not every Node has.
    let error;
    await act(lease).catch((reason) => (error = reason));
    await lease[Symbol.asyncDispose]().catch((reason) => (error = new SuppressedErrorOf(reason, error)));
    caught.push(error);
  }
  assert.ok(caught[0] instanceof LeaseLost);
  assert.equal(caught[1], thrown);
});

class SuppressedErrorOf extends Error {}

test('using gives the value, the error of its action, or the loss', async () => {
  const name = unused();
  assert.equal(await client().using(name, {}, async (signal, lease) => lease.fencingToken > 0 && !signal.aborted), true);
  assert.equal(await client().show(name), undefined);
  const thrown = new Error('of the action');
  const late = async (lease, error) => {
    block(1100);
    assert.equal(lease.signal.aborted, true);
    if (error) throw error;
  };
  assert.equal(await rejection(client().using(name, { ttl: 1000 }, (_, lease) => late(lease, thrown))), thrown);
  const lost = await rejection(client().using(name, { ttl: 1000 }, (_, lease) => late(lease)));
  assert.deepEqual([lost.name, lost.locks], ['LeaseLost', [name]]);
  const left = await client().using(name, {}, async (_, lease) => lease.release());
  assert.equal(left, true);
});

test('a broken lease says whose it was, by whom it was broken and why', async () => {
  const lease = await client().lock('deploy', { ttl: 6000 });
  await client().break('deploy', 'it hangs', { by: 'ann' });
  await happens(lease.signal, 'abort');
  const { message, by, reason } = lease.signal.reason;
  assert.deepEqual([by, reason], ['ann', 'broken']);
  assert.equal(message, 'the lease of deploy is lost: it was broken by ann: it hangs');
});

test('a limit and a TTL that are none are refused', async () => {
  for (const options of [{ limit: 0 }, { limit: -1 }, { limit: '3' }, { limit: 'shard' }, { limit: NaN }, { limit: null }, { limit: 2.5 },
    { ttl: 0 }, { ttl: -5 }, { ttl: NaN }, { ttl: '3000' }]) {
    const error = await rejection(client().lock(unused(), options));
    assert.ok(error instanceof Problem && error.status === 400, `${JSON.stringify(options)}: ${error}`);
  }
});

test('a response about another lock is none', async () => {
  const of = async (response) => {
    const document = await response.json();
    return Response.json({ ...document, name: 'another', token: 'another' }, { status: response.status });
  };
  const mixed = client({ fetch: changing(of) });
  for (const error of await Promise.all([mixed.lock(unused()), mixed.begin(unused())].map(rejection))) {
    assert.ok(error instanceof Unreachable && error.sent, String(error));
    assert.match(error.message, /not one of keylatch for this request/);
  }
  const name = unused();
  const ofAnother = async (response) => Response.json({ ...(await response.json()), token: 'another' });
  assert.ok((await rejection(client({ fetch: changing(ofAnother), timeout: 500 }).lock(unused()))) instanceof Unreachable);
  const lease = await client().lock(name);
  assert.ok((await rejection(mixed.show(name))) instanceof Unreachable);
  await lease.release();
});

test('a lock without a wait outlasts a hiccup under one token', async () => {
  const lose = () => { throw new Error('the answer is lost'); };
  for (const fault of [lose, () => new Response('', { status: 502 }), () => new Response('', { status: 503 })]) {
    const faulty = changing((response, count) => (count === 1 ? fault() : response));
    const lease = await client({ fetch: faulty }).lock(unused());
    const tokens = faulty.requests.map(({ headers }) => headers['lock-token']);
    assert.deepEqual(tokens, [lease.token, lease.token]);
    await lease.release();
  }
  const name = unused();
  const lease = await client().lock(name);
  const counting = changing((response) => response);
  await assert.rejects(client({ fetch: counting }).lock(name), Held);
  assert.equal(counting.requests.length, 1);
  await lease.release();
});

test('a failure is retried as often, and after the pauses, that the program says', async () => {
  const [tries, pauses] = [[], [0, 400, 100]];
  const refuses = async () => {
    tries.push(performance.now());
    throw new TypeError('refused');
  };
  const own = client({ fetch: refuses, retries: 2, pause: () => pauses.pop() });
  assert.ok((await rejection(own.show('a'))) instanceof Unreachable);
  const [first, second, third] = tries.map((at) => at - tries[0]);
  assert.equal(tries.length, 3);
  assert.ok(first === 0 && second >= 99 && third - second >= 399, String(tries));
});

test('a pause is random by default', async (t) => {
  for (const [part, pause] of [[0, 100], [0.5, 250]]) {
    t.mock.method(Math, 'random', () => part);
    const requests = [];
    const refuses = async () => {
      requests.push(performance.now());
      throw new TypeError('refused');
    };
    await rejection(client({ fetch: refuses, retries: 1 }).show('a'));
    const paused = requests[1] - requests[0];
    assert.ok(paused >= pause - 1, String(paused));
  }
});

test('settings that cannot be right are refused when the client is made', () => {
  const none = join(folder, 'none.pem');
  const empty = join(folder, 'empty.pem');
  writeFileSync(empty, 'no key');
  const secret = 'kl_secret';
  const wrong = [
    [{ apiKey: `${secret}\n` }, /API key/],
    [{ apiKey: `${secret}ü` }, /API key/],
    [{ url: 'localhost:7070' }, /localhost:7070/],
    [{ url: '127.0.0.1' }, /127.0.0.1/],
    [{ url: 'ftp://127.0.0.1' }, /ftp/],
    [{ ca: none }, /none.pem/],
    [{ cert: empty }, /empty.pem/],
    [{ key: folder }, new RegExp(folder)],
    [{ ca: none, fetch }, /takes no ca/],
    [{ key: `-----BEGIN PRIVATE KEY-----\n${secret}\n-----END PRIVATE KEY-----\n` }, /key has to be the name of a file/],
    [{ ca: `${secret}\n` }, /ca has to be the name of a file/],
    [{ url: `ftp://ann:${secret}@localhost` }, /ftp.*localhost/],
    [{ url: `ann:${secret}@localhost:7070` }, /localhost:7070/],
    [{ url: `http://ann:${secret}%@localhost:7070` }, /localhost:7070/],
  ];
  for (const [options, message] of wrong) {
    assert.throws(() => client(options), (error) => {
      assert.ok(error instanceof SettingsError, String(error));
      assert.match(error.message, message);
      assert.ok(!inspect(error).includes(secret), inspect(error));
      return true;
    });
  }
});

test('a password in a URL is sent, and told to nobody', async () => {
  const [requests, entries] = [[], []];
  const log = (entry) => entries.push(entry);
  const answering = async (input, init) => {
    requests.push([input, init.headers.authorization]);
    return Response.json(input.endsWith('/v1/info') ? { store: { id: input } } : { name: 'a' });
  };
  const urls = ['http://ann:s%C3%BC@one', 'http://ann:s%C3%BC@two'];
  const asking = client({ url: urls, fetch: answering, log });
  await asking.show('a');
  assert.deepEqual(requests[1], ['http://one/v1/locks/a', `Basic ${btoa('ann:s\u00c3\u00bc')}`]);
  const error = await rejection(client({ url: urls.map((each) => each.replace(/@.*/, '@127.0.0.1:1')), log }).show('a'));
  assert.ok(!inspect([entries, error], { depth: 9 }).includes('s%C3'), inspect(entries, { depth: 9 }));
  assert.equal(entries.length > 2, true);
});

test('an answer that is none for a Response rejects', async () => {
  for (const status of [205, 600]) {
    const server = createHttpServer((_, response) => response.writeHead(status).end('body')).listen(0, '127.0.0.1');
    await happens(server, 'listening');
    const error = await rejection(client({ url: `http://127.0.0.1:${server.address().port}`, timeout: 1000 }).ask('POST', '/'));
    assert.ok(error instanceof Unreachable && error.sent, String(error));
    server.close().closeAllConnections();
  }
});

test('a redirection is not followed', async () => {
  const asked = [];
  const server = createHttpServer((request, response) => {
    asked.push(request.url);
    response.writeHead(307, { location: '/elsewhere' }).end();
  }).listen(0, '127.0.0.1');
  await happens(server, 'listening');
  const to = `http://127.0.0.1:${server.address().port}`;
  for (const options of [{ url: to }, { url: to, fetch }]) {
    assert.equal((await rejection(client(options).ask('POST', '/here'))).status, 307);
  }
  assert.deepEqual(asked, ['/here', '/here']);
  server.close().closeAllConnections();
});

test('what left nothing of a request on its way says so', async () => {
  const plain = url.replace('http:', 'https:');
  const silent = createServer(() => undefined).listen(0, '127.0.0.1');
  await happens(silent, 'listening');
  const never = `https://127.0.0.1:${silent.address().port}`;
  const cancelled = client({ url: never });
  const leaving = new AbortController();
  const tries = [
    client({ url: plain }).show('a'),
    client({ traceparent: () => 'a\nb' }).show('a'),
    client({ url: 'http://127.0.0.1:1' }).show('a'),
    cancelled.show('a'),
  ];
  for (const error of await Promise.all(tries.map(rejection))) {
    assert.ok(error instanceof Unreachable && error.sent === false, String(error));
  }
  silent.close();
});

test('what an earlier try may have done is not said to be unsent', async () => {
  let tries = 0;
  const fetch = async () => {
    throw Object.assign(new Error('no answer'), { code: tries++ ? 'ECONNREFUSED' : 'ECONNRESET' });
  };
  await assert.rejects(new Client({ url: 'http://k', timeout: 2000, fetch }).show('a'), { sent: true });
  assert.ok(tries > 1);
});

test('a hold after a lost response has another token', async () => {
  const tokens = [];
  const fetch = async (_, { headers }) => {
    const token = headers['lock-token'];
    if (tokens.push(token) === 1) throw new Error('lost');
    const data = { name: 'a', token, fencing_token: 1, waited_ms: 0, valid_for_ms: 100 };
    return new Response(`event: acquired\ndata: ${JSON.stringify(data)}\n\n`);
  };
  const lease = await new Client({ url: 'http://k', fetch }).hold('a');
  assert.notEqual(tokens[0], tokens[1]);
  assert.equal(lease.token, tokens[1]);
});

test('a hold with a token of the caller\'s own is not retried after a lost response', async () => {
  let tries = 0;
  const fetch = async () => {
    tries++;
    throw new Error('lost');
  };
  const hold = new Client({ url: 'http://k', fetch }).hold('a', { token: 'a-token-of-the-callers-own' });
  await assert.rejects(hold, { name: 'Unreachable', sent: true });
  assert.equal(tries, 1);
});

test('bytes of any size are kept, and headers come as a server takes them', async () => {
  const key = unused();
  const bytes = Uint8Array.from({ length: 200_000 }, (_, at) => at % 251);
  const headers = { 'content-type': 'image/png', 'x-two': ['1', '2'] };
  const run = await client().begin(key);
  await run.complete({ bytes, headers });
  const { answer } = await client().begin(key);
  assert.deepEqual(answer.headers, headers);
  assert.deepEqual(answer.bytes, bytes);
});

test('an answer that is not kept has its status', async () => {
  const key = unused();
  await (await client().begin(key)).complete({ status: 201, bytes: new Uint8Array(400_000) });
  const { status, isWhole, body, bytes } = (await client().begin(key)).answer;
  assert.deepEqual([status, isWhole, body, bytes], [201, false, undefined, undefined]);
  await assert.rejects(client().once(key, async () => assert.fail('again')), /was not kept/);
});

test('what a program prints of a lease or a run has no token', async () => {
  const [lease, run, held] = [await client().lock(unused()), await client().begin(unused()), await client().hold(unused())];
  for (const each of [lease, run, held]) {
    assert.equal(each.token.length, 32);
    assert.ok(!`${inspect(each, { depth: 9 })} ${JSON.stringify(each)}`.includes(each.token));
  }
  await Promise.all([lease.release(), run.abandon(), held.release()]);
});

test('a watch that can never come to anything throws', { timeout: 5000 }, async () => {
  const thrown = new Error('of the traceparent');
  const watch = (options) => rejection(client(options).watch('a').next());
  assert.equal(await watch({ traceparent: () => { throw thrown; } }), thrown);
  const stores = async (input) => {
    if (input.endsWith('/v1/info')) return Response.json({ store: { id: input } });
    throw Object.assign(new Error('no connection'), { code: 'ECONNREFUSED' });
  };
  assert.ok((await watch({ url: ['http://one', 'http://two'], fetch: stores })) instanceof SettingsError);
});

test('what cannot be made of a request is the error of the caller', async () => {
  const [thrown, counting] = [new Error('of the traceparent'), changing((response) => response)];
  const failing = client({ fetch: counting, traceparent: () => { throw thrown; } });
  const name = unused();
  for (const asked of [failing.lock(name), failing.hold(name), failing.begin(name), failing.show(name)]) {
    assert.equal(await rejection(asked), thrown);
  }
  assert.ok((await rejection(client({ fetch: counting }).ask('POST', '/v1/locks/a', { value: 1n }))) instanceof TypeError);
  assert.equal(counting.requests.length, 0);
});

test('a request that waits for a socket is not sent', async () => {
  const server = createHttpServer(() => undefined).listen(0, '127.0.0.1');
  await happens(server, 'listening');
  const agent = new Agent({ maxSockets: 1 });
  const asking = client({ url: `http://127.0.0.1:${server.address().port}`, agent, timeout: 500 });
  const [first, second] = await Promise.all(['a', 'b'].map((name) => rejection(asking.ask('POST', `/v1/locks/${name}`))));
  server.close().closeAllConnections();
  assert.deepEqual([first.sent, second.sent], [true, false]);
});

test('a connection whose TLS breaks after the request has sent it', async () => {
  const [key, cert] = ['key.pem', 'cert.pem'].map((name) => join(folder, name));
  const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-subj', '/CN=localhost'];
  execFileSync('openssl', [...made, '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert], { stdio: 'ignore' });
  const pipes = [];
  const secure = createTlsServer({ key: readFileSync(key), cert: readFileSync(cert) }, (socket) => {
    socket.on('error', () => undefined).on('data', () => pipes.map((pipe) => pipe.end('no record of TLS')));
  });
  const open = createServer((socket) => {
    pipes.push(socket);
    const inner = connect(secure.address().port, '127.0.0.1').on('error', () => undefined);
    socket.on('error', () => undefined).pipe(inner);
    inner.pipe(socket);
  });
  for (const server of [secure, open]) await happens(server.listen(0, '127.0.0.1'), 'listening');
  const asking = client({ url: `https://127.0.0.1:${open.address().port}`, ca: cert, timeout: 2000 });
  const error = await rejection(asking.ask('POST', '/v1/locks/a'));
  assert.ok(error instanceof Unreachable && error.sent, inspect(error));
  for (const server of [secure, open]) server.close();
});

test('a signal ends each wait with its reason, and at once', async () => {
  const [leaving, name, key] = [new AbortController(), unused(), unused()];
  const { signal } = leaving;
  const slow = client({ fetch: (input, init) => new Promise((_, reject) => init.signal.addEventListener('abort', () => reject(init.signal.reason))) });
  const lease = await client().lock(name);
  const waits = [
    slow.lock(name, { signal }),
    client().lock(name, { signal, wait: 60_000 }),
    client().hold(name, { signal, wait: 60_000 }),
    slow.show(name, { signal }),
    slow.break(name, 'why', { signal }),
    slow.begin(key, { signal }),
    slow.once(key, async () => 1, { signal }),
    (await client().lock(unused())).release({ signal: AbortSignal.abort(new Error('the caller leaves')) }),
  ].map(rejection);
  await eventually(async () => (await client().show(name)).waiting === 2);
  leaving.abort(new Error('the caller leaves'));
  for (const error of await Promise.all(waits)) assert.equal(error.message, 'the caller leaves');
  await eventually(async () => (await client().show(name)).waiting === 0);
  await lease.release();
});

test('a wait that is cancelled in a pause between two tries leaves the queue', async () => {
  const [leaving, methods] = [new AbortController(), []];
  const fetch = async (_, { method }) => {
    methods.push(method);
    if (method === 'DELETE') return new Response(null, { status: 204 });
    setTimeout(() => leaving.abort(new Error('the caller leaves')), 50);
    return new Response('{"outcome":"not-executed"}', { status: 503, headers: { 'retry-after': '30' } });
  };
  const waiting = new Client({ url: 'http://k', fetch }).lock('a', { signal: leaving.signal, wait: 60_000 });
  assert.equal((await rejection(waiting)).message, 'the caller leaves');
  await eventually(() => methods.includes('DELETE'));
});

test('a begin with a token of the caller\'s own ends no run of that token', async () => {
  const [key, token] = [unused(), 'a-token-of-the-callers-own'];
  const run = await client().begin(key, { token });
  const lose = changing(() => { throw new Error('the answer is lost'); });
  await rejection(client({ fetch: lose, timeout: 300 }).begin(key, { token }));
  const leaving = new AbortController();
  const cancelled = changing((response) => { leaving.abort(); throw new Error('the caller leaves'); });
  await rejection(client({ fetch: cancelled }).begin(key, { token, signal: leaving.signal }));
  const lease = await client().lock(key, { token });
  await rejection(client({ fetch: lose, timeout: 300 }).lock(key, { token }));
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.deepEqual([...lose.requests, ...cancelled.requests].filter(({ method }) => method !== 'POST'), []);
  await run.complete();
  assert.equal(await lease.release(), true);
});

test('a begin that is cancelled leaves no run behind', async () => {
  const [leaving, key] = [new AbortController(), unused()];
  const begun = changing(async () => { leaving.abort(); await new Promise(() => undefined); });
  const hanging = async (input, init) => {
    if (init.method !== 'POST') return fetch(input, init);
    return await Promise.race([begun(input, init), new Promise((_, reject) => init.signal.addEventListener('abort', () => reject(init.signal.reason)))]);
  };
  await rejection(client({ fetch: hanging }).begin(key, { signal: leaving.signal }));
  await eventually(async () => !(await client().begin(key).then((run) => run.abandon(), (error) => error)));
});

test('a signal on which many wait is no leak', async () => {
  const [leaving, warnings, name] = [new AbortController(), [], unused()];
  const warn = (warning) => warnings.push(warning);
  process.on('warning', warn);
  const lease = await client().lock(name);
  const waits = Array.from({ length: 30 }, () => rejection(client().lock(name, { wait: 60_000, signal: leaving.signal })));
  await eventually(async () => (await client().show(name)).waiting === 30);
  leaving.abort();
  await Promise.all(waits);
  await lease.release();
  await new Promise(setImmediate);
  process.off('warning', warn);
  assert.deepEqual(warnings, []);
});

test('a duplicate waits at the service', async () => {
  const [key, counting] = [unused(), changing((response) => response)];
  const run = await client().begin(key);
  const waiting = client({ fetch: counting }).once(key, async () => assert.fail('it ran twice'), { wait: 20_000 });
  await new Promise((resolve) => setTimeout(resolve, 1500));
  await run.complete({ json: 'done' });
  assert.equal(await waiting, 'done');
  assert.equal(counting.requests.length, 1);
  assert.equal(counting.requests[0].headers.prefer, 'wait=20');
});

test('a run that is lost says so', async () => {
  const run = await client().begin(unused(), { lease: 1000 });
  block(1500);
  assert.equal(run.signal.aborted, true);
  assert.throws(() => run.check(), LeaseLost);
  run.leave();
});

test('an instance with another store is refused by its name', async () => {
  const stores = (input, init) => {
    const { host, pathname } = new URL(input);
    if (host === 'dead') throw Object.assign(new Error('no connection'), { code: 'ECONNREFUSED' });
    return pathname === '/v1/info' ? Response.json({ store: { id: host } }) : fetch(url + pathname, init);
  };
  let isDead = false;
  const failing = client({
    url: ['http://one', 'http://two'],
    fetch: async (input, init) => stores(isDead ? input.replace('one', 'dead') : input, init),
  });
  assert.equal(await failing.show(unused()), undefined);
  isDead = true;
  await assert.rejects(failing.show(unused()), /http:\/\/two has another store than http:\/\/one/);
});

test('members that a program rarely gives are sent', async () => {
  const name = unused();
  const lease = await client().lock(name);
  await client().break(name, 'now', { by: 'ann', grace: 0 });
  await eventually(async () => (await client().show(name)) === undefined);
  await lease.release();
  const hold = await client().hold(name, { maxHold: 300, ttl: 1000 });
  await happens(hold.signal, 'abort');
  assert.equal(hold.signal.reason.reason, 'max-hold');
  const [request, scope] = [{ content_type: 'application/json', body: '{"a":1}' }, { method: 'POST', path: '/x' }];
  await (await client().begin(name, { request, scope })).complete({ body: 'done' });
  const again = await client().begin(name, { request: { ...request, body: '{ "a": 1 }' }, scope });
  assert.equal(again.answer.body, 'done');
  assert.ok((await client().ask('GET', '/v1/locks?limit=5')).locks);
  const owned = await client().lock(unused());
  assert.match((await client().show(owned.name)).owner, /\/\d+$/);
  await owned.release();
});

test('an agent of the program takes its requests', async () => {
  class Counting extends Agent {
    made = 0;
    createConnection(...of) {
      this.made++;
      return super.createConnection(...of);
    }
  }
  const agent = new Counting();
  assert.equal(await client({ agent }).show(unused()), undefined);
  assert.equal(agent.made, 1);
});

test('each member that the API takes from a client can be sent', async () => {
  const { components, paths } = JSON.parse(readFileSync(new URL('../../openapi/openapi.json', import.meta.url)));
  const [members, queries] = [new Map(), new Map()];
  const collect = (map, of, names) => map.set(of, new Set([...(map.get(of) ?? []), ...names]));
  const recording = client({
    fetch: async (input, init) => {
      const [, act = '', query] = /^[^?]*\/v1\/(?:locks|idempotency)(?:\/[^/?]*)?(?:\/([^?]*))?(?:\?(.*))?$/.exec(input);
      const isOne = /\/v1\/\w+\/[^?]/.test(input);
      const does = `${init.method} ${input.includes('/v1/locks') ? 'locks' : 'idempotency'}${isOne ? '/' : ''}${act}`;
      const body = JSON.parse(init.body ?? '{}');
      collect(members, does, Object.keys(body));
      collect(members, 'request', Object.keys(body.request ?? {}));
      collect(queries, does, [...new URLSearchParams(query).keys()]);
      collect(queries, does, Object.keys(init.headers));
      return await fetch(input, init);
    },
  });
  const all = { wait: 10, maxAhead: 0, ttl: 3000, owner: 'ann', limit: 3 };
  const [one, two, three] = [unused(), unused(), unused()];
  for (const lease of [await recording.lock(one, { ...all, entry: 'outer' }), await recording.lock([two, three], all)]) {
    await eventually(() => members.has(lease.name === one ? 'PUT locks/' : 'PUT locks'));
    await lease.release();
  }
  const hold = await recording.hold(one, { ...all, entry: 'outer', maxHold: 60_000 });
  await recording.break(one, 'why', { by: 'ann', grace: 0 });
  await hold.release();
  const scope = { method: 'POST', path: '/x', principal: 'ann', source: 'derived' };
  const request = { query: '', content_type: 'text/plain', headers: {}, body: 'x' };
  const options = { scope, request, retention: 5000, onCrash: 'rerun', wait: 1000 };
  await (await recording.begin(one, options)).complete({ status: 201, headers: {}, json: 1 });
  await (await recording.begin(two, { fingerprint: 'f' })).complete({ body: 'x' });
  await (await recording.begin(three, { request: { body_base64: '' } })).complete({ bytes: new Uint8Array(1) });
  await (await recording.begin(unused())).fail('why');
  await (await recording.begin(unused())).abandon();

  const schemas = {
    'POST locks/': 'CreateLock', 'PUT locks/': 'RenewLock', 'POST locks': 'CreateLocks', 'PUT locks': 'RenewLocks',
    'POST locks/hold': 'HoldLock', 'POST locks/break': 'BreakLock', request: 'DescribedRequest',
    'POST idempotency/': 'BeginRecord', 'PUT idempotency/': 'CompleteRecord', 'POST idempotency/fail': 'FailRecord',
  };
  const bodies = Object.values(paths).flatMap(Object.values).map((each) => each.requestBody?.content['application/json']?.schema.$ref);
  const known = new Set([...Object.values(schemas), 'EndWait', 'IssueKey', 'ResolveRecord']);
  assert.deepEqual(bodies.filter((ref) => ref && !known.has(ref.split('/').pop())), []);
  for (const [does, schema] of Object.entries(schemas)) {
    const missing = Object.keys(components.schemas[schema].properties).filter((name) => !members.get(does)?.has(name));
    assert.deepEqual(missing, [], schema);
  }
  const operations = { 'DELETE locks/': '/v1/locks/{name}', 'DELETE locks': '/v1/locks', 'POST idempotency/': '/v1/idempotency/{key}' };
  for (const [does, path] of Object.entries(operations)) {
    const given = paths[path][does.split(' ')[0].toLowerCase()].parameters.map((each) => (each.$ref ? components.parameters[each.$ref.split('/').pop()] : each));
    const names = given.filter((each) => each.in !== 'path').map((each) => (each.in === 'header' ? each.name.toLowerCase() : each.name));
    assert.deepEqual(names.filter((name) => !queries.get(does)?.has(name)), [], does);
  }
});
