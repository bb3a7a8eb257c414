// The calls of the check with what openapi-typescript makes, and its client openapi-fetch.
import { deepStrictEqual as equal } from 'node:assert';
import createClient from 'openapi-fetch';
import type { paths } from './openapi-typescript/schema.js';

const [url = '', name = ''] = process.argv.slice(2);
const { POST, PUT, GET, DELETE } = createClient<paths>({ baseUrl: url });

const lock = { name };
const created = await POST('/v1/locks/{name}', { params: { path: lock }, body: { ttl_ms: 20_000, owner: 'ann' } });
const lease = created.data!;
equal(lease.owner, 'ann');

const held = await POST('/v1/locks/{name}', { params: { path: lock } });
equal([held.response.status, held.error!.code, held.error!.holder!.owner], [409, 'lock-held', 'ann']);

const proof = { path: lock, header: { 'Lock-Token': lease.token } };
const renewed = await PUT('/v1/locks/{name}', { params: proof, body: { ttl_ms: 30_000 } });
equal(renewed.data!.ttl_ms, 30_000);

const page = await GET('/v1/locks', { params: { query: { prefix: name } } });
equal(page.data!.locks.map((one) => one.fencing_token), [lease.fencing_token]);

const released = await DELETE('/v1/locks/{name}', { params: proof });
equal(released.response.status, 204);

const key = { key: name };
const begun = await POST('/v1/idempotency/{key}', { params: { path: key }, body: { fingerprint: 'a mail' } });
equal(begun.data!.state, 'in-flight');
const answer = { status: 201, headers: { 'content-type': ['text/plain'] }, body: 'sent' };
const run = { path: key, header: { 'Lock-Token': begun.data!.token! } };
await PUT('/v1/idempotency/{key}', { params: run, body: answer });
const again = await POST('/v1/idempotency/{key}', { params: { path: key }, body: { fingerprint: 'a mail' } });
equal([again.data!.state, again.data!.answer], ['done', answer]);
