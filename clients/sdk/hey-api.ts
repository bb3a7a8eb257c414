// The calls of the check with what @hey-api/openapi-ts makes.
import { deepStrictEqual as equal } from 'node:assert';
import { client } from './hey-api/client.gen';
import * as api from './hey-api/sdk.gen';

const [url = '', name = ''] = process.argv.slice(2);
client.setConfig({ baseUrl: url });

const path = { name };
const created = await api.createLock({ path, body: { ttl_ms: 20_000, owner: 'ann' } });
const lease = created.data!;
equal(lease.owner, 'ann');

const held = await api.createLock({ path });
equal([held.response!.status, held.error!.code, held.error!.holder!.owner], [409, 'lock-held', 'ann']);

const headers = { 'Lock-Token': lease.token };
const renewed = await api.renewLock({ path, headers, body: { ttl_ms: 30_000 } });
equal(renewed.data!.ttl_ms, 30_000);

const page = await api.listLocks({ query: { prefix: name } });
equal(page.data!.locks.map((one) => one.fencing_token), [lease.fencing_token]);

const released = await api.releaseLock({ path, headers });
equal(released.response!.status, 204);

const key = { key: name };
const begun = await api.beginIdempotency({ path: key, body: { fingerprint: 'a mail' } });
equal(begun.data!.state, 'in-flight');
const answer = { status: 201, headers: { 'content-type': ['text/plain'] }, body: 'sent' };
await api.completeIdempotency({ path: key, headers: { 'Lock-Token': begun.data!.token! }, body: answer });
const again = await api.beginIdempotency({ path: key, body: { fingerprint: 'a mail' } });
equal([again.data!.state, again.data!.answer], ['done', answer]);
