"""What the client says to the service, without any input and output of its own.

Each conversation is a generator: it yields a :class:`Request` or a :class:`Pause`, and reads an
:class:`Answer`. So the rules of `docs/leases.md` are written once, for threads and for asyncio; `driver.py`
carries a conversation out.
"""

from __future__ import annotations

import math
import random
import secrets
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from .errors import Held, LeaseLost, Problem, Unreachable, check_passing

# All spans are seconds.
ANSWER_TIMEOUT = 5.0
PAUSE_MIN, PAUSE_MAX = 0.1, 0.4
REQUEST_WAIT = 50.0
MIN_REQUEST_WAIT = 1.0
LEAD_MAX = 10.0
NOT_OURS = "the response is not one of keylatch for this request"

T = TypeVar("T")
Limit = int | Literal["shared"] | None


def awake_clock() -> int | None:
    """The clock that also runs while the machine sleeps: on macOS it is CLOCK_MONOTONIC, which stands still in a
    sleep on Linux. Python's own `time.monotonic` stands still in a sleep on both, and runs on in one on Windows."""
    if sys.platform == "darwin":
        return time.CLOCK_MONOTONIC
    return getattr(time, "CLOCK_BOOTTIME", None)


CLOCK = awake_clock()
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
class Pause:
    """Do nothing until then, on the clock of :func:`now`."""

    until: float


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


Conversation = Generator[Request | Pause, Answer, T]


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

    def until(self, answer: Answer, sent: float) -> float:
        return Grant.of(self, answer.document, sent).until


@dataclass(frozen=True)
class LeasedLock:
    name: str
    fencing_token: int
    slot: int | None


@dataclass(frozen=True)
class Grant:
    locks: tuple[LeasedLock, ...]
    #: When the grant stops being exclusive, on the clock of :func:`now`.
    until: float

    @classmethod
    def of(cls, claim: Claim, document: Mapping[str, Any], sent: float) -> Grant:
        try:
            leases = document["locks"] if claim.is_set else [document]
            locks = tuple(
                LeasedLock(str(lease["name"]), int(lease["fencing_token"]), lease.get("slot")) for lease in leases
            )
            valid = (document["waited_ms"] + document["valid_for_ms"]) / 1000
        except (KeyError, TypeError, ValueError):
            locks, valid = (), 0.0
        if sorted(lock.name for lock in locks) != sorted(claim.names):
            raise Unreachable(NOT_OURS, sent=True)
        return cls(locks, sent + valid)


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


def pause(problem: Problem | None = None, least: float = 0.0) -> float:
    """How long to wait before the next try, so that many that fail together do not come back together."""
    asked = problem and problem.retry_after
    return max(asked or 0.0, least) + random.uniform(PAUSE_MIN, PAUSE_MAX)


def acquire(claim: Claim) -> Conversation[Grant]:
    """Asks for the locks until the wait is over; over lost answers and 503 with the same token, and for
    `ANSWER_TIMEOUT` also where there is no wait.

    A conversation that ends otherwise than by a grant leaves nothing behind: the caller runs
    :func:`release` where the service may have granted them.
    """
    end, longest = ends(claim.wait), REQUEST_WAIT
    patience = max(end, now() + ANSWER_TIMEOUT)
    while True:
        wait = max(0.0, min(end - now(), longest))
        sent = now()
        failure: Exception
        last, rest = patience, pause()
        try:
            path = f"{claim.path}/hold" if claim.is_stream else claim.path
            answer = yield Request("POST", path, claim.creation(wait), claim.token, wait=wait)
            if answer.is_success:
                return (yield from fresh(claim, Grant.of(claim, answer.document, sent)))
            failure = problem = answer.problem()
            if problem.document.get("field") == "wait_ms" and wait > 0:
                longest = longest / 4 if longest / 4 >= MIN_REQUEST_WAIT else 0.0
                continue
            if problem.code == "lock-held":
                failure, last = held(claim, problem), end
                if is_final(problem, wait):
                    raise failure
                if wait > 0 and sent + wait <= now():
                    rest = 0.0
            else:
                check_passing(problem)
                rest = pause(problem)
        except Unreachable as error:
            check_passing(error)
            failure = error
        if now() >= last:
            raise failure
        yield Pause(min(last, now() + rest))


def ends(wait: float | None) -> float:
    """When a wait that begins now is over; `None` is without end."""
    return math.inf if wait is None else now() + wait


def fresh(claim: Claim, grant: Grant) -> Conversation[Grant]:
    """The grant, renewed before it is used where an answer was so late that little of it is left."""
    if grant.until - now() >= claim.ttl / 2 or claim.is_stream:
        return grant
    sent = now()
    answer = yield claim.renewal()
    if not answer.is_success:
        raise answer.problem()
    return replace(grant, until=claim.until(answer, sent))


def is_final(problem: Problem, wait: float) -> bool:
    """Whether the service did not let the token wait although it was asked to."""
    return wait > 0 and "waited_ms" not in problem.document


def held(claim: Claim, problem: Problem) -> Held:
    document = problem.document
    holders = document.get("holders") or []
    first = min(holders, key=lambda holder: holder["expires_in_ms"], default=None)
    return Held(str(document.get("name", claim.names[0])), document.get("holder") or first)


def lead(ttl: float) -> float:
    """How long before its end a lease that is not renewed counts as lost."""
    return min(ttl / 4, LEAD_MAX)


def loss(problem: Problem, names: Sequence[str]) -> LeaseLost | None:
    """Why the lease is over, if the problem says that it is."""
    reasons = {"lock-not-held": "expired", "token-mismatch": "taken", "lock-broken": "broken"}
    reason = reasons.get(problem.code)
    return lost(reason, problem.detail, names, problem.document) if reason else None


def lost(reason: str, detail: str, names: Sequence[str], document: Mapping[str, Any]) -> LeaseLost:
    broken = document.get("broken") or {}
    return LeaseLost(reason, broken.get("reason") or detail, names, broken.get("by"))


def release(claim: Claim) -> Conversation[bool]:
    """Releases; whether the token still held the locks. Repeats for 5 s until there is an answer."""
    end, left, may_be_done = now() + ANSWER_TIMEOUT, None, False
    while True:
        failure: Exception
        try:
            answer = yield Request("DELETE", claim.release_path, None, claim.token, left, "entries")
            if answer.is_success:
                return True
            failure = problem = answer.problem()
            if loss(problem, claim.names) is not None:
                # The try whose answer was lost has released what is gone now.
                return may_be_done
            check_passing(problem)
            may_be_done = may_be_done or problem.outcome == "unknown"
        except Unreachable as error:
            check_passing(error)
            failure, may_be_done = error, may_be_done or error.sent
        rest = pause()
        if now() + rest >= end:
            raise failure
        left = max(end - now() - rest, 0.5)
        yield Pause(now() + rest)


def ask(request: Request, wait: float | None = 0.0) -> Conversation[Answer]:
    """The answer to a request that is safe to repeat, also where earlier ones were lost.

    With a `wait` the service waits while the same request is being carried out elsewhere.
    """
    end = ends(wait)
    patience, left = max(end, now() + ANSWER_TIMEOUT), None
    while True:
        failure: Exception
        sent, last, rest = now(), patience, pause()
        prefer = math.ceil(max(0.0, min(end - sent, REQUEST_WAIT)))
        try:
            answer = yield replace(request, prefer=prefer, left=left)
            if answer.is_success:
                return replace(answer, sent=sent)
            failure = problem = answer.problem()
            check_passing(problem)
            has_waited = prefer > 0 and now() - sent >= prefer - 1
            rest = pause(None if has_waited else problem)
            if problem.code == "request-in-progress":
                last = end
        except Unreachable as error:
            check_passing(error)
            failure = error
        if now() + rest >= last:
            raise failure
        # What has to be over in time does not begin a long request at its end.
        left = max(patience - now() - rest, 0.5)
        yield Pause(now() + rest)


def show(name: str) -> Conversation[Mapping[str, Any] | None]:
    try:
        answer: Answer = yield from ask(Request("GET", f"/v1/locks/{plain(name)}", gives="name"))
    except Problem as problem:
        if problem.code == "lock-not-held":
            return None
        raise
    return answer.document


def names_of(names: str | Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The names as a tuple, and whether they are a set of locks."""
    return ((names,), False) if isinstance(names, str) else (tuple(names), True)
