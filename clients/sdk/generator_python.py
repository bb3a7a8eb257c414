"""The calls of the check with what openapi-generator makes for Python."""

import sys

from keylatch_generator_python import (
    ApiClient,
    BeginRecord,
    CompleteRecord,
    Configuration,
    CreateLock,
    IdempotencyApi,
    LocksApi,
    Problem,
    RenewLock,
)
from keylatch_generator_python.exceptions import ConflictException

url, name = sys.argv[1:]
client = ApiClient(Configuration(host=url))
locks, keys = LocksApi(client), IdempotencyApi(client)

lease = locks.create_lock(name, create_lock=CreateLock(ttl_ms=20_000, owner="ann"))
assert lease.owner == "ann", lease

try:
    sys.exit(f"two hold it: {locks.create_lock(name)}")
except ConflictException as held:
    problem = held.data
assert isinstance(problem, Problem) and problem.code == "lock-held", problem
assert problem.holder and problem.holder.owner == "ann", problem

renewed = locks.renew_lock(name, lease.token, renew_lock=RenewLock(ttl_ms=30_000))
assert renewed.ttl_ms == 30_000, renewed

page = locks.list_locks(prefix=name)
assert [one.fencing_token for one in page.locks] == [lease.fencing_token], page

released = locks.release_lock_with_http_info(name, lease.token)
assert released.status_code == 204, released

begun = keys.begin_idempotency(name, begin_record=BeginRecord(fingerprint="a mail"))
assert begun.state == "in-flight" and begun.token, begun
answer = CompleteRecord(status=201, headers={"content-type": ["text/plain"]}, body="sent")
keys.complete_idempotency(name, begun.token, complete_record=answer)
again = keys.begin_idempotency(name, begin_record=BeginRecord(fingerprint="a mail"))
assert again.state == "done" and again.answer, again
assert (again.answer.status, again.answer.headers, again.answer.body) == (201, answer.headers, "sent"), again
