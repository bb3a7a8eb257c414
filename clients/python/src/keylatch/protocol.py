"""What the client says to the service, without any input and output of its own.

Each conversation is a generator: it yields a :class:`Request` or a :class:`Pause`, and reads an
:class:`Answer`. So the rules of `docs/leases.md` are written once, for threads and for asyncio; `driver.py`
carries a conversation out.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from .errors import Held, LeaseLost, Problem, Unreachable

# All spans are seconds.
ANSWER_TIMEOUT = 5.0
PAUSE = 0.25
REQUEST_WAIT = 50.0
MIN_REQUEST_WAIT = 1.0
LEAD_MAX = 10.0

T = TypeVar("T")
Limit = int | Literal["shared"] | None


def awake_clock() -> int | None:
    """The clock that also runs while the machine sleeps: on macOS it is CLOCK_MONOTONIC, which stands still in a
    sleep on Linux. Python's own `time.monotonic` stands still in a sleep on both, and runs on in one on Windows."""
    if sys.platform == "darwin":
        return time.CLOCK_MONOTONIC
    return getattr(time, "CLOCK_BOOTTIME", None)


CLOCK = awake_clock()


def now() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is one."""
    return time.monotonic() if CLOCK is None else time.clock_gettime(CLOCK)


def new_token() -> str:
    """A secret that proves who holds a lock."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    token: str | None = None
    timeout: float = ANSWER_TIMEOUT


@dataclass(frozen=True)
class Pause:
    """Do nothing until then, on the clock of :func:`now`."""

    until: float


@dataclass(frozen=True)
class Answer:
    status: int
    document: Mapping[str, Any]
    retry_after: float | None = None

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
    wait: float = 0.0
    owner: str | None = None
    limit: Limit = None
    entry: str | None = None
    token: str = field(default_factory=new_token)

    @property
    def path(self) -> str:
        return "/v1/locks" if self.is_set else f"/v1/locks/{plain(self.names[0])}"

    @property
    def release_path(self) -> str:
        if self.is_set:
            return f"{self.path}?" + "&".join(f"name={plain(name)}" for name in self.names)
        return self.path if self.entry is None else f"{self.path}?entry={plain(self.entry)}"

    def creation(self, wait: float) -> dict[str, Any]:
        body: dict[str, Any] = {"ttl_ms": millis(self.ttl), "wait_ms": millis(wait)}
        if self.is_set:
            body["names"] = list(self.names)
        if self.owner is not None:
            body["owner"] = self.owner
        if self.limit is not None:
            body["mode"] = "shared"
        if isinstance(self.limit, int):
            body["limit"] = self.limit
        if self.entry is not None:
            body["entry"] = self.entry
        return body

    def renewal(self) -> dict[str, Any]:
        names = {"names": list(self.names)} if self.is_set else {}
        return {"ttl_ms": millis(self.ttl), **names}


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
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable("the answer is not one of keylatch", sent=True) from error
        return cls(locks, sent + valid)


def plain(text: str) -> str:
    # A dot may not stand as it is: `..` would be a step in the path.
    return quote(text, safe="").replace(".", "%2E")


def millis(seconds: float) -> int:
    return round(seconds * 1000)


def acquire(claim: Claim) -> Conversation[Grant]:
    """Asks for the locks until the wait is over, with the same token over lost answers and 503.

    A conversation that ends otherwise than by a grant leaves nothing behind: the caller runs
    :func:`release` where `may_hold` says so.
    """
    end, longest = now() + claim.wait, REQUEST_WAIT
    while True:
        wait = max(0.0, min(end - now(), longest))
        sent = now()
        failure: Exception
        pause = PAUSE
        try:
            answer = yield Request("POST", claim.path, claim.creation(wait), claim.token, wait + ANSWER_TIMEOUT)
            if answer.is_success:
                return (yield from fresh(claim, Grant.of(claim, answer.document, sent)))
            failure = problem = answer.problem()
            if problem.document.get("field") == "wait_ms" and wait > 0:
                longest = longest / 4 if longest / 4 >= MIN_REQUEST_WAIT else 0.0
                continue
            if problem.code == "lock-held":
                failure = held(claim, problem)
                is_over = sent + wait <= now() and wait > 0
                pause = 0.0 if is_over else PAUSE
                if is_final(problem, wait):
                    raise failure
            elif not problem.is_passing:
                raise failure
            else:
                pause = max(problem.retry_after or 0.0, PAUSE)
        except Unreachable as error:
            failure = error
        if now() >= end:
            raise failure
        yield Pause(min(end, now() + pause))


def fresh(claim: Claim, grant: Grant) -> Conversation[Grant]:
    """The grant, renewed before it is used where an answer was so late that little of it is left."""
    if grant.until - now() >= claim.ttl / 2:
        return grant
    sent = now()
    answer = yield Request("PUT", claim.path, claim.renewal(), claim.token)
    if not answer.is_success:
        raise answer.problem()
    renewed = Grant.of(claim, answer.document, sent)
    return replace(grant, until=renewed.until)


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


def renew(claim: Claim, until: float, on_renewed: Callable[[float], None]) -> Conversation[LeaseLost]:
    """Renews at each third of the TTL until the lease is lost, and says why."""
    due, why = now() + claim.ttl / 3, ""
    while True:
        give_up = until - lead(claim.ttl)
        yield Pause(min(due, give_up))
        sent = now()
        if sent >= until:
            return LeaseLost("paused", why or "the lease ended while this process was paused")
        if sent >= give_up:
            return LeaseLost("unrenewed", f"the lease could not be renewed in time: {why}")
        limit = min(ANSWER_TIMEOUT, max((give_up - sent) / 2, 0.05))
        due = now() + PAUSE
        try:
            answer = yield Request("PUT", claim.path, claim.renewal(), claim.token, limit)
            if answer.is_success:
                until = Grant.of(claim, answer.document, sent).until
                due, why = sent + claim.ttl / 3, ""
                on_renewed(until)
                continue
            problem = answer.problem()
            lost = loss(problem)
            if lost is not None:
                return lost
            why, due = str(problem), now() + max(problem.retry_after or 0.0, PAUSE)
        except Unreachable as error:
            why, due = str(error), now() + PAUSE


def loss(problem: Problem) -> LeaseLost | None:
    """Why the lease is over, if the problem says that it is."""
    reasons = {"lock-not-held": "expired", "token-mismatch": "taken", "lock-broken": "broken"}
    reason = reasons.get(problem.code)
    if reason is None:
        return None
    broken = problem.document.get("broken") or {}
    return LeaseLost(reason, broken.get("reason") or problem.detail)


def release(claim: Claim) -> Conversation[bool]:
    """Releases; whether the token still held the locks. Repeats for 5 s until there is an answer."""
    end, may_be_done = now() + ANSWER_TIMEOUT, False
    while True:
        failure: Exception
        try:
            answer = yield Request("DELETE", claim.release_path, None, claim.token)
            if answer.is_success:
                return True
            failure = problem = answer.problem()
            if loss(problem) is not None:
                # The try whose answer was lost has released what is gone now.
                return may_be_done
            if not problem.is_passing:
                raise failure
            may_be_done = may_be_done or problem.outcome == "unknown"
        except Unreachable as error:
            failure, may_be_done = error, may_be_done or error.sent
        if now() + PAUSE >= end:
            raise failure
        yield Pause(now() + PAUSE)


def ask(request: Request, wait: float = 0.0) -> Conversation[Answer]:
    """The answer to a request that is safe to repeat, also where earlier ones were lost.

    With a `wait` it is also repeated while the same request is being carried out elsewhere.
    """
    end = now() + max(wait, ANSWER_TIMEOUT)
    while True:
        failure: Exception
        pause = PAUSE
        try:
            answer = yield request
            if answer.is_success:
                return answer
            failure = problem = answer.problem()
            is_under_way = problem.code == "request-in-progress"
            if not problem.is_passing or (is_under_way and wait <= 0):
                raise failure
            pause = max(problem.retry_after or 0.0, PAUSE)
        except Unreachable as error:
            failure = error
        if now() + pause >= end:
            raise failure
        yield Pause(now() + pause)


def names_of(names: str | Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The names as a tuple, and whether they are a set of locks."""
    return ((names,), False) if isinstance(names, str) else (tuple(names), True)
