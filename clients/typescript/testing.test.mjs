/** The fake for the tests of others, which needs no service. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client, Held, LeaseLost, NothingDone } from '@keylatch/client';
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
  assert.equal(entries[2].error, lease.signal.reason);
});
