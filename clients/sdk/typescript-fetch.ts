// The calls of the check with what openapi-generator makes for typescript-fetch.
import { deepStrictEqual as equal } from 'node:assert';
import { Configuration, IdempotencyApi, LocksApi, ProblemCodeEnum, ResponseError } from './typescript-fetch/index';

const [basePath = '', name = ''] = process.argv.slice(2);
const configuration = new Configuration({ basePath });
const [locks, keys] = [new LocksApi(configuration), new IdempotencyApi(configuration)];

const lease = await locks.createLock({ name, createLock: { ttlMs: 20_000, owner: 'ann' } });
equal(lease.owner, 'ann');

const held = await locks.createLock({ name }).catch((error: unknown) => error);
const { response } = held as ResponseError;
const problem = await response.json();
equal([response.status, problem.code, problem.holder.owner], [409, ProblemCodeEnum.LockHeld, 'ann']);

const lockToken = lease.token;
const renewed = await locks.renewLock({ name, lockToken, renewLock: { ttlMs: 30_000 } });
equal(renewed.ttlMs, 30_000);

const page = await locks.listLocks({ prefix: name });
equal(page.locks.map((one) => one.fencingToken), [lease.fencingToken]);

const released = await locks.releaseLockRaw({ name, lockToken });
equal(released.raw.status, 204);

const begun = await keys.beginIdempotency({ key: name, beginRecord: { fingerprint: 'a mail' } });
equal(begun.state, 'in-flight');
const answer = { status: 201, headers: { 'content-type': ['text/plain'] }, body: 'sent' };
await keys.completeIdempotency({ key: name, lockToken: begun.token!, completeRecord: answer });
const again = await keys.beginIdempotency({ key: name, beginRecord: { fingerprint: 'a mail' } });
equal([again.state, again.answer!.status, again.answer!.headers, again.answer!.body], ['done', 201, answer.headers, 'sent']);
