"""What the client says to the service, without any input and output of its own.

A :class:`Carrier` sends the requests: in the caller's thread, or on the background of `driver.py`. So the rules of
`docs/leases.md` are written once, for threads and for asyncio.
"""

from __future__ import annotations

import math
import random
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import quote

from .errors import Held, LeaseLost, Problem, Unreachable

# All spans are seconds.
REQUEST_WAIT = 50.0
MIN_REQUEST_WAIT = 1.0
LEAD_MAX = 10.0
NOT_OURS = "the response is not one of keylatch for this request"

T = TypeVar("T")
Limit = int | Literal["shared"] | None


#: The clock that also runs while the machine sleeps: on macOS it is CLOCK_MONOTONIC, which stands still in a sleep on
#: Linux. Python's own `time.monotonic` stands still in a sleep on both, and runs on in one on Windows.
CLOCK: int | None = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
#: What :mod:`keylatch.testing` has moved the clock on by.
ahead = [0.0]


def now() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is one."""
    return ahead[0] + (time.monotonic() if CLOCK is None else time.clock_gettime(CLOCK))


def new_token() -> str:
    """A secret that proves who holds a lock."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    token: str | None = field(default=None, repr=False)
    #: How many seconds are left for it, if that is less than the client waits for any response.
    left: float | None = None
    #: A member that the response to it has where it is a success; one to `DELETE` may have none.
    gives: str = ""
    #: For how many seconds the service may wait for the end of the same request elsewhere.
    prefer: int = 0
    #: For how many seconds the service may wait before it answers.
    wait: float = 0.0
    #: Of a renewal: when it is of no use any more. Renewals take turns.
    until: float | None = None


@dataclass(frozen=True)
class Answer:
    status: int
    document: Mapping[str, Any]
    retry_after: float | None = None
    #: When the request was sent whose answer it is, on the clock of :func:`now`.
    sent: float = 0.0

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def problem(self) -> Problem:
        return Problem(self.status, self.document, self.retry_after)


def jitter() -> float:
    """The pause before a retry, so that many that fail together do not come back together."""
    return random.uniform(0.1, 0.4)


@dataclass(frozen=True)
class Retrying:
    """How a failure is outlasted: for so long at least, by so many retries at most, after such pauses."""

    timeout: float
    most: float
    jitter: Callable[[], float]

    def pause(self, error: Exception | None = None) -> float:
        asked = error.retry_after if isinstance(error, Problem) and error.code != "lock-held" else None
        return (asked or 0.0) + self.jitter()


class Carrier(Protocol):
    retrying: Retrying

    async def send(self, request: Request) -> Answer: ...
    async def sleep_until(self, until: float) -> None: ...


@dataclass(frozen=True)
class Claim:
    """What is asked for, and the token that proves it."""

    names: tuple[str, ...]
    is_set: bool
    ttl: float
    wait: float | None
    #: What the API takes beside the TTL and the wait.
    body: Mapping[str, Any]
    #: Whether a connection is to hold the lock.
    is_stream: bool = False
    token: str = field(default="", repr=False)
    #: Whether the token is the caller's.
    is_own: bool = False

    @property
    def path(self) -> str:
        return "/v1/locks" if self.is_set else f"/v1/locks/{plain(self.names[0])}"

    @property
    def release_path(self) -> str:
        if self.is_set:
            return f"{self.path}?" + "&".join(f"name={plain(name)}" for name in self.names)
        return f"{self.path}?entry={plain(self.body['entry'])}" if "entry" in self.body else self.path

    def creation(self, wait: float) -> dict[str, Any]:
        names = {"names": list(self.names)} if self.is_set else {}
        return {"ttl_ms": millis(self.ttl), "wait_ms": millis(wait), **names, **self.body}

    def renewal(self, until: float | None = None) -> Request:
        names = {"names": list(self.names)} if self.is_set else {}
        return Request("PUT", self.path, {"ttl_ms": millis(self.ttl), **names}, self.token, until=until)

    def until(self, answer: Answer) -> float:
        return Grant.of(self, answer).until


@dataclass(frozen=True)
class Event:
    """What the service says on a stream: `type` is a word such as `acquired`."""

    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class LeasedLock:
    name: str
    fencing_token: int
    slot: int | None


@dataclass(frozen=True)
class Grant:
    claim: Claim
    locks: tuple[LeasedLock, ...]
    #: When its request was sent and when it stops being exclusive, on the clock of :func:`now`.
    sent: float
    until: float
    #: The stream of a hold.
    events: AsyncGenerator[Event, None] | None = None

    @classmethod
    def of(cls, claim: Claim, answer: Answer) -> Grant:
        document = answer.document
        try:
            leases = document["locks"] if claim.is_set else [document]
            locks = tuple(
                LeasedLock(str(lease["name"]), int(lease["fencing_token"]), lease.get("slot")) for lease in leases
            )
            valid = (document["waited_ms"] + document["valid_for_ms"]) / 1000
        except (KeyError, TypeError, ValueError):
            locks, valid = (), 0.0
        if document.get("token") != claim.token or sorted(lock.name for lock in locks) != sorted(claim.names):
            raise Unreachable(NOT_OURS, sent=True)
        return cls(claim, locks, answer.sent, answer.sent + valid)


def plain(text: str) -> str:
    # A dot may not stand as it is: `..` would be a step in the path.
    return quote(text, safe="").replace(".", "%2E")


def millis(seconds: float) -> int:
    return round(seconds * 1000)


def members(**given: Any) -> dict[str, Any]:
    """A body of the members that are given. Those of time are seconds here, and milliseconds there."""
    return {
        name: millis(value) if name.endswith("_ms") else value for name, value in given.items() if value is not None
    }


def limited(limit: Limit) -> dict[str, Any]:
    """What was given as the limit, for the service to refuse if it is none."""
    return members(mode=None if limit is None else "shared", limit=None if limit == "shared" else limit)


async def send(carrier: Carrier, request: Request) -> Answer:
    """The answer, if it is a success."""
    answer = await carrier.send(request)
    if not answer.is_success:
        raise answer.problem()
    return answer


async def persist(
    carrier: Carrier,
    attempt: Callable[[float, float | None, bool], Awaitable[T]],
    wait: float | None = 0.0,
    undo: Callable[[], object] = lambda: None,
) -> T:
    """Tries until there is an answer for good: for the wait (`None`: without end), and for the timeout at least.

    Each attempt is told for how long the service may let it wait, how many seconds are left, and whether an earlier one
    may have been carried out. `undo` takes back what the caller does not learn of.
    """
    retrying, end = carrier.retrying, math.inf if wait is None else now() + wait
    patience, longest, left, may_be_done = max(end, now() + retrying.timeout), REQUEST_WAIT, None, False
    retries = retrying.most
    failure: Problem | Unreachable
    try:
        while True:
            began = now()
            asked = max(0.0, min(end - began, longest))
            before, may_be_done = may_be_done, True
            try:
                return await attempt(asked, left, before)
            except Unreachable as error:
                failure, may_be_done = error, before or error.sent
                error.sent = may_be_done
            except Problem as error:
                failure, may_be_done = error, error.may_be_done(before)
                if error.document.get("field") == "wait_ms" and asked > 0:
                    longest = longest / 4 if longest / 4 >= MIN_REQUEST_WAIT else 0.0
                    continue
            moment, rest = now(), retrying.pause(failure)
            if isinstance(failure, Problem) and failure.is_busy:
                # A lock whose answer has no word of the wait did not let the token wait.
                is_final = failure.code == "lock-held" and asked > 0 and "waited_ms" not in failure.document
                if is_final or moment >= end:
                    raise failure
                rest = 0.0 if 0 < asked <= moment - began else min(rest, end - moment)
            elif not failure.is_passing or moment + rest >= patience or retries <= 0:
                raise failure
            else:
                retries -= 1
            # What has to be over in time does not begin a long request at its end.
            left = max(patience - moment - rest, 0.5)
            await carrier.sleep_until(moment + rest)
    except BaseException as error:
        # Who is interrupted may stand in a queue.
        if may_be_done or not isinstance(error, Exception):
            undo()
        raise


async def acquire(carrier: Carrier, claim: Claim, undo: Callable[[], object]) -> Grant:
    """Asks for the locks until the wait is over, with the same token."""

    async def create(wait: float, left: float | None, may_be_done: bool) -> Grant:
        nonlocal claim
        if claim.is_stream and may_be_done:
            # When the service ends a stream that is lost, it releases what the token holds, also by another stream.
            if claim.is_own:
                raise Unreachable(
                    "the response to a hold with a token of your own was lost", sent=True, is_passing=False
                )
            claim = replace(claim, token=new_token())
        path = f"{claim.path}/hold" if claim.is_stream else claim.path
        answer = await send(carrier, Request("POST", path, claim.creation(wait), claim.token, wait=wait))
        grant = Grant.of(claim, answer)
        if claim.is_stream:
            return grant
        until = await fresh(carrier, grant.until, claim.ttl, claim.renewal(), claim.until)
        return replace(grant, until=until)

    try:
        return await persist(carrier, create, claim.wait, undo)
    except Problem as problem:
        if problem.code != "lock-held":
            raise
        holders: list[dict[str, Any]] = problem.document.get("holders") or []
        first = min(holders, key=lambda holder: holder["expires_in_ms"], default=None)
        name = str(problem.document.get("name", claim.names[0]))
        raise Held(name, problem.document.get("holder") or first) from None


async def fresh(
    carrier: Carrier, until: float, ttl: float, renewal: Request, renewed: Callable[[Answer], float]
) -> float:
    """Until when it is valid, renewed before it is used where its answer was so late that little of it is left."""
    if until - now() >= ttl / 2:
        return until
    try:
        return renewed(await send(carrier, renewal))
    except Problem as problem:
        if problem.code != "no-record" and loss(problem, ()) is None:
            raise
        # So that it is asked for anew.
        raise Unreachable("it was over before its answer was read", sent=True) from problem


def lead(ttl: float) -> float:
    """How long before its end a lease that is not renewed counts as lost."""
    return min(ttl / 4, LEAD_MAX)


def loss(problem: Problem, names: Sequence[str]) -> LeaseLost | None:
    """Why the lease is over, if the problem says that it is."""
    reasons = {"lock-not-held": "expired", "token-mismatch": "taken", "lock-broken": "broken"}
    reason = reasons.get(problem.code)
    return lost(reason, problem.detail, names, problem.document) if reason else None


def lost(reason: str, detail: str, names: Sequence[str], document: Mapping[str, Any]) -> LeaseLost:
    broken: dict[str, Any] = document.get("broken") or {}
    return LeaseLost(reason, broken.get("reason") or detail, names, broken.get("by"))


async def release(carrier: Carrier, claim: Claim) -> bool:
    """Releases; whether the token still held the locks."""

    async def attempt(wait: float, left: float | None, may_be_done: bool) -> bool:
        try:
            await send(carrier, Request("DELETE", claim.release_path, None, claim.token, left, "entries"))
            return True
        except Problem as problem:
            if loss(problem, claim.names) is None:
                raise
            # The try whose answer was lost has released what is gone now.
            return may_be_done

    return await persist(carrier, attempt)


async def ask(carrier: Carrier, request: Request) -> Answer:
    """The answer to a request that is safe to repeat, also where earlier ones were lost."""
    return await persist(carrier, lambda wait, left, may_be_done: send(carrier, replace(request, left=left)))


async def show(carrier: Carrier, name: str) -> Mapping[str, Any] | None:
    try:
        answer = await ask(carrier, Request("GET", f"/v1/locks/{plain(name)}", gives="name"))
    except Problem as problem:
        if problem.code == "lock-not-held":
            return None
        raise
    if answer.document["name"] != name:
        raise Unreachable(NOT_OURS, sent=True)
    return answer.document
