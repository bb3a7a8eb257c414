/** The fake for the tests of others, which needs no service. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client, Held, LeaseLost, NothingDone, Unreachable } from '@keylatch/client';
import { FakeKeylatch } from '@keylatch/client/testing';

const rejection = (promise) => promise.then(() => assert.fail('it does not throw'), (error) => error);

test('a lease is renewed while time passes, and free when it is released', async () => {
  const fake = new FakeKeylatch();
  const lease = await fake.client.lock('a', { ttl: 9000, owner: 'ann' });
  await fake.advance(600_000);
  lease.check();
  const held = await rejection(fake.client.lock('a'));
  assert.ok(held instanceof Held && held.holder.owner === 'ann');
  assert.equal(await lease.release(), true);
  assert.equal(await fake.client.show('a'), undefined);
  assert.equal(await lease.release(), false);
});

test('a lock that is lost or broken is known to be', async () => {
  const fake = new FakeKeylatch();
  const [one, two] = [await fake.client.lock('a'), await fake.client.lock('b')];
  await fake.lose('a');
  assert.throws(() => one.check(), { reason: 'expired', locks: ['a'] });
  await fake.client.break('b', 'it hangs', { by: 'ann' });
  await fake.advance(10_000);
  assert.throws(() => two.check(), { reason: 'broken', by: 'ann' });
  assert.ok((await fake.client.lock('a')).fencingToken > one.fencingToken);
});

test('a waiter is served in its turn, or told that the wait is over', async () => {
  const fake = new FakeKeylatch();
  const lease = await fake.client.lock('a');
  const late = rejection(fake.client.lock('a', { wait: 5000 }));
  const waiting = new Client(fake.options).lock('a', { wait: 60_000 });
  await fake.advance(6000);
  assert.ok((await late) instanceof Held);
  await lease.release();
  assert.equal((await waiting).name, 'a');
});

test('readers share, and a set is got as one', async () => {
  const fake = new FakeKeylatch();
  const readers = await Promise.all([1, 2].map(() => fake.client.lock('a', { limit: 'shared' })));
  const held = await rejection(fake.client.lock(['b', 'a']));
  assert.equal(held.lock, 'a');
  await Promise.all(readers.map((reader) => reader.release()));
  const both = await fake.client.lock(['b', 'a']);
  assert.deepEqual(both.locks.map(({ name }) => name), ['b', 'a']);
  await fake.advance(100_000);
  assert.equal(await both.release(), true);
});

test('a thing is done once, and its end is what its action says', async () => {
  const fake = new FakeKeylatch();
  assert.equal(await fake.client.once('k', async () => 17), 17);
  assert.equal(await fake.client.once('k', async () => assert.fail('again')), 17);
  await rejection(fake.client.once('free', async () => { throw new NothingDone('no'); }));
  assert.equal(await fake.client.once('free', async () => 1), 1);
  await rejection(fake.client.once('bad', async () => { throw new Error('half way'); }));
  assert.equal((await rejection(fake.client.begin('bad'))).code, 'outcome-unknown');
  assert.equal((await rejection(fake.client.begin('k', { fingerprint: 'other' }))).code, 'idempotency-key-reused');
  const run = await fake.client.begin('slow');
  const duplicate = fake.client.once('slow', async () => 2, { wait: 60_000 });
  await fake.advance(50_000);
  await run.complete({ json: 3 });
  assert.equal(await duplicate, 3);
  const left = await fake.client.begin('left');
  left.leave();
  await fake.advance(31_000);
  assert.equal((await rejection(fake.client.begin('left'))).code, 'outcome-unknown');
});

test('a run that was waited for for long is renewed before it is used', async () => {
  const fake = new FakeKeylatch();
  const first = await fake.client.begin('k');
  const waiting = fake.client.begin('k', { lease: 10_000, wait: 60_000 });
  await fake.advance(20_000);
  await first.abandon();
  const run = await waiting;
  run.check();
  await fake.advance(100_000);
  await run.complete();
});

test('a run and a lease are lost while the program does not come to renew them', async () => {
  const fake = new FakeKeylatch();
  const lost = await rejection(fake.client.using('a', {}, async () => fake.lose('a')));
  assert.ok(lost instanceof LeaseLost);
});

test('an elected leader is told of the loss, leads again, and stops with its signal', async () => {
  const [fake, leaving, fences] = [new FakeKeylatch(), new AbortController(), []];
  const lead = (signal, lease) =>
    new Promise((_, reject) => {
      fences.push(lease.fencingToken);
      signal.addEventListener('abort', () => reject(signal.reason));
    });
  const elected = fake.client.elect('leader', { signal: leaving.signal }, lead);
  await fake.advance(100_000);
  assert.equal(fences.length, 1);
  await fake.lose('leader');
  await fake.advance(1000);
  assert.equal(fences.length, 2);
  assert.ok(fences[1] > fences[0]);
  leaving.abort();
  await fake.advance(1000);
  await elected;
  assert.equal(await fake.client.show('leader'), undefined);
  const thrown = new Error('of the leader');
  assert.equal(await rejection(fake.client.elect('leader', {}, async () => { throw thrown; })), thrown);
});

test('a request of one\'s own is repeated where it only reads', async () => {
  const [fake, requests] = [new FakeKeylatch(), []];
  const fetch = async (input, { method }) => {
    requests.push(method);
    throw new Error('the answer is lost');
  };
  const client = new Client({ ...fake.options, fetch });
  for (const method of ['POST', 'PUT', 'DELETE', 'GET']) {
    const asked = rejection(client.ask(method, '/v1/locks/a'));
    await fake.advance(6000);
    assert.ok((await asked) instanceof Unreachable);
  }
  assert.deepEqual(requests.slice(0, 4), ['POST', 'PUT', 'DELETE', 'GET']);
  assert.ok(requests.length > 5 && requests.slice(4).every((method) => method === 'GET'));
});

test('a member of a scope without a value is not sent', async () => {
  const [fake, urls] = [new FakeKeylatch(), []];
  const fetch = (input, init) => {
    urls.push(input);
    return fake.options.fetch(input, init);
  };
  await new Client({ ...fake.options, fetch }).once('k', async () => 1, { scope: { method: 'POST', path: undefined, principal: undefined } });
  assert.equal(urls[0], 'http://fake/v1/idempotency/k?method=POST');
});

test('a grant whose answer came after its end is asked for anew', async () => {
  for (const options of [{}, { wait: 60_000 }]) {
    const fake = new FakeKeylatch();
    let isFirst = true;
    const fetch = async (...of) => {
      const response = await fake.options.fetch(...of);
      if (isFirst) {
        isFirst = false;
        await fake.advance(4000);
      }
      return response;
    };
    const client = new Client({ ...fake.options, fetch });
    const waiting = client.lock('a', { ttl: 3000, ...options });
    await fake.advance(10_000);
    const lease = await waiting;
    lease.check();
    isFirst = true;
    const begun = client.begin('k', { lease: 3000, onCrash: 'rerun', ...options });
    await fake.advance(10_000);
    (await begun).check();
  }
});

test('a lease that is over is valid for no time', async () => {
  const fake = new FakeKeylatch();
  const [lost, released] = [await fake.client.lock('a'), await fake.client.lock('b')];
  await fake.lose('a');
  await released.release();
  assert.deepEqual([lost.validFor, released.validFor], [0, 0]);
});

test('the names of a set are those of its beginning', async () => {
  const [fake, names] = [new FakeKeylatch(), ['a', 'b']];
  const waiting = fake.client.lock(names);
  names.pop();
  const lease = await waiting;
  assert.equal(lease.locks.length, 2);
  names.pop();
  await fake.advance(100_000);
  lease.check();
  assert.equal(await lease.release(), true);
  assert.equal(await fake.client.show('b'), undefined);
});

test('an election goes on after a loss only', async () => {
  const fake = new FakeKeylatch();
  const inner = await fake.client.lock('inner');
  await fake.lose('inner');
  const thrown = await rejection(fake.client.elect('leader', {}, async () => inner.check()));
  assert.deepEqual(thrown.locks, ['inner']);
  const [leaving, outcomes] = [new AbortController(), [() => undefined, () => { throw new Error('of a step'); }, () => inner.check()]];
  let led = 0;
  const lead = async (signal) => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    return outcomes[led++]?.();
  };
  const elected = fake.client.elect('leader', { signal: leaving.signal }, lead);
  await fake.advance(1000);
  for (const count of [1, 2, 3]) {
    await fake.lose('leader');
    await fake.advance(1000);
    assert.equal(led, count);
    assert.ok(await fake.client.show('leader'));
  }
  leaving.abort();
  await fake.advance(1000);
  await elected;
});

test('a page of a proxy is no answer', async () => {
  const pages = [() => new Response('<html>'), () => Response.json(null), () => Response.json(17), () => Response.json(null, { status: 400 })];
  for (const page of pages) {
    const fake = new FakeKeylatch();
    let isBehind = false;
    const client = new Client({ ...fake.options, fetch: async (...of) => (isBehind ? page() : await fake.options.fetch(...of)) });
    const [lease, run] = [await client.lock('a'), await client.begin('k')];
    isBehind = true;
    const errors = Promise.all([lease.release(), run.complete(), client.show('a'), client.ask('POST', '/v1/locks/a/break')].map(rejection));
    await fake.advance(6000);
    for (const error of await errors) assert.ok((error instanceof Unreachable && error.sent) || error.status === 400, String(error));
  }
});

test('several URLs share the time that one request has', async () => {
  const fake = new FakeKeylatch();
  let isDead = false;
  const fetch = (input, init) => {
    if (isDead) return new Promise((_, reject) => init.signal.addEventListener('abort', () => reject(init.signal.reason)));
    return input.endsWith('/v1/info') ? Response.json({ store: { id: 'one' } }) : fake.options.fetch(input, init);
  };
  const client = new Client({ ...fake.options, url: ['http://fake', 'http://fak2', 'http://fak3'], fetch });
  const [lease, other] = await Promise.all(['a', 'b'].map((name) => client.lock(name, { ttl: 12_000 })));
  const { signal } = lease;
  isDead = true;
  await fake.advance(9000);
  assert.equal(signal.aborted && signal.reason.reason, 'unrenewed');
  let released;
  void rejection(other.release()).then((error) => (released = error));
  await fake.advance(5500);
  assert.ok(released instanceof Unreachable);
  const leaving = new AbortController();
  const shown = rejection(client.show('a', { signal: leaving.signal }));
  leaving.abort(new Error('the caller leaves'));
  assert.equal((await shown).message, 'the caller leaves');
  isDead = false;
  assert.equal((await client.lock('c')).name, 'c');
});

test('a loss is told in time, also by a fetch that never ends', async () => {
  const fake = new FakeKeylatch();
  let isDead = false;
  const fetch = (...of) => (isDead ? new Promise(() => undefined) : fake.options.fetch(...of));
  const { signal } = await new Client({ ...fake.options, fetch }).lock('a', { ttl: 12_000 });
  isDead = true;
  await fake.advance(8900);
  assert.equal(signal.aborted, false);
  await fake.advance(100);
  assert.equal(signal.aborted && signal.reason.reason, 'unrenewed');
});

test('a store that cannot be asked for leaves nothing sent', async () => {
  const fake = new FakeKeylatch();
  let answer = () => Response.json({ code: 'unauthenticated' }, { status: 401 });
  const fetch = async (input, init) => {
    if (input.endsWith('/v1/info')) return answer();
    return await fake.options.fetch(input, init);
  };
  const client = () => new Client({ ...fake.options, url: ['http://fake', 'http://fak2'], fetch });
  assert.equal(await client().show('a'), undefined);
  const answers = [
    () => Promise.reject(new Error('the answer is lost')),
    () => new Response('<html>'),
    () => new Response('<html>', { status: 404 }),
    () => Response.json({ code: 'quota-exceeded', retry: 'never' }, { status: 429 }),
    () => Response.json({ code: 'internal', retry: 'never' }, { status: 500 }),
  ];
  for (answer of answers) {
    const shown = rejection(client().show('a'));
    await fake.advance(6000);
    const error = await shown;
    assert.ok(error instanceof Unreachable && !error.sent, String(error));
  }
});

test('the log is told of requests and losses, and may throw', async () => {
  const fake = new FakeKeylatch();
  const entries = [];
  const log = (entry) => {
    entries.push(entry);
    throw new Error('of the log');
  };
  const lease = await new Client({ ...fake.options, log }).lock('a', { owner: 'ann' });
  await fake.lose('a');
  assert.deepEqual(entries.map(({ message }) => message), ['response', 'failure', 'lost']);
  assert.equal(entries[0].request, 'POST http://fake/v1/locks/a');
  assert.deepEqual(entries.map(({ took }) => took), [0, 0, undefined]);
  assert.equal(entries[2].error, lease.signal.reason);
});
