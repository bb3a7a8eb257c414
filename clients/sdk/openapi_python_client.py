"""The calls of the check with what openapi-python-client makes."""

import sys

from keylatch_openapi_python_client import AuthenticatedClient
from keylatch_openapi_python_client.api.idempotency import begin_idempotency, complete_idempotency
from keylatch_openapi_python_client.api.locks import create_lock, list_locks, release_lock, renew_lock
from keylatch_openapi_python_client.models import (
    BeginRecord,
    CompleteRecord,
    CompleteRecordHeaders,
    CreateLock,
    Holder,
    IdempotencyAnswer,
    IdempotencyRecord,
    IdempotencyRecordState,
    Lease,
    LockPage,
    Problem,
    ProblemCode,
    RenewLock,
)

url, name = sys.argv[1:]
client = AuthenticatedClient(url, token="a service without identities reads none")

lease = create_lock.sync(name, client=client, body=CreateLock(ttl_ms=20_000, owner="ann"))
assert isinstance(lease, Lease) and lease.owner == "ann", lease

held = create_lock.sync_detailed(name, client=client)
problem = held.parsed
assert held.status_code == 409 and isinstance(problem, Problem) and problem.code == ProblemCode.LOCK_HELD, held
assert isinstance(problem.holder, Holder) and problem.holder.owner == "ann", problem

renewed = renew_lock.sync(name, client=client, lock_token=lease.token, body=RenewLock(ttl_ms=30_000))
assert isinstance(renewed, Lease) and renewed.ttl_ms == 30_000, renewed

page = list_locks.sync(client=client, prefix=name)
assert isinstance(page, LockPage) and [one.fencing_token for one in page.locks] == [lease.fencing_token], page

released = release_lock.sync_detailed(name, client=client, lock_token=lease.token)
assert released.status_code == 204, released

begun = begin_idempotency.sync(name, client=client, body=BeginRecord(fingerprint="a mail"))
assert isinstance(begun, IdempotencyRecord) and begun.state == IdempotencyRecordState.IN_FLIGHT, begun
headers = CompleteRecordHeaders.from_dict({"content-type": ["text/plain"]})
answer = CompleteRecord(status=201, headers=headers, body="sent")
assert isinstance(begun.token, str)
complete_idempotency.sync(name, client=client, lock_token=begun.token, body=answer)
again = begin_idempotency.sync(name, client=client, body=BeginRecord(fingerprint="a mail"))
assert isinstance(again, IdempotencyRecord) and again.state == IdempotencyRecordState.DONE, again
assert isinstance(again.answer, IdempotencyAnswer) and (again.answer.status, again.answer.body) == (201, "sent"), again
