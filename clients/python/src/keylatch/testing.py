"""A keylatch for your own tests: in this process, without a network, with time that the test moves.

    fake = keylatch.testing.Fake()
    with fake.client().lock("deploy") as lease:
        fake.lose("deploy")
        lease.check()  # raises LeaseLost

It speaks HTTP to the clients of this package, which are the real ones. It knows locks and sets of them, and things done
once; holds and watches it does not know. Time is that of all clients in this process, so none of them is a real one.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

import httpx

from . import driver, protocol
from .client import AsyncClient, Client

#: How often the fake and its clients look at the clock, in real seconds.
STEP = 0.002
#: For how many real seconds a renewal may keep the time from going on.
PATIENCE = 1.0
Waiting = Generator[None, None, httpx.Response]


@dataclass
class _Held:
    """What a token holds: locks, or the run of a key."""

    token: str
    fence: int
    ttl: float
    names: tuple[str, ...] = ()
    owner: str | None = None
    limit: Any = None
    slot: int = 0
    entries: set[str | None] = field(default_factory=set)
    begun: dict[str, Any] = field(default_factory=dict)
    state: str = "in-flight"
    answer: dict[str, Any] = field(default_factory=dict)
    is_renewed: bool = True

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.until, self.is_renewed = protocol.now() + self.ttl, True

    def holder(self) -> dict[str, Any]:
        left = round((self.until - protocol.now()) * 1000)
        slot = {"slot": self.slot} if isinstance(self.limit, int) else {}
        return {"owner": self.owner, "fencing_token": self.fence, "expires_in_ms": left, **slot}

    def document(self) -> dict[str, Any]:
        locks = [{**self.holder(), "name": name} for name in self.names]
        return {**locks[0], "locks": locks, "waited_ms": 0, "valid_for_ms": locks[0]["expires_in_ms"]}


def _is_due(each: _Held) -> bool:
    """Whether its client renews it about now."""
    return each.is_renewed and each.until - protocol.now() < each.ttl * 0.66


class Fake(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A keylatch in this process."""

    def __init__(self) -> None:
        #: Whether it cannot be reached.
        self.is_down = False
        self._guard = threading.RLock()
        self._fence = 0
        self._grants: list[_Held] = []
        self._broken: dict[str, dict[str, str]] = {}
        self._queue: list[tuple[str, tuple[str, ...]]] = []
        self._records: dict[str, _Held] = {}
        driver.STEP = STEP

    def client(self, **settings: Any) -> Client:
        """A client of this fake, for threads."""
        return Client("http://fake", http=lambda kind: kind(transport=self), **settings)

    def async_client(self, **settings: Any) -> AsyncClient:
        """A client of this fake, for asyncio."""
        return AsyncClient("http://fake", http=lambda kind: kind(transport=self), **settings)

    def advance(self, seconds: float) -> None:
        """Moves the time; what is renewed meanwhile is renewed, unless the fake is down."""
        while seconds > 0:
            step = min([seconds, *(each.ttl / 12 for each in self._renewed())])
            protocol.ahead[0] += step
            seconds -= step
            self._settle(self._renewed())

    def lose(self, name: str, reason: str = "the test takes it", by: str = "the test") -> None:
        """Breaks the leases of a lock, and moves the time until their holders have heard of it."""
        broken = self._break(name, reason, by)
        self.advance(max((grant.ttl / 3 for grant in broken), default=0))
        self._settle(broken, lambda grant: grant.is_renewed and grant.token in self._broken)

    def _break(self, name: str, reason: str, by: str) -> list[_Held]:
        with self._guard:
            broken = [grant for grant in self._live() if name in grant.names]
            self._grants = [grant for grant in self._grants if grant not in broken]
            self._broken |= {grant.token: {"reason": reason, "by": by} for grant in broken}
        return broken

    def _live(self) -> list[_Held]:
        with self._guard:
            self._grants = [grant for grant in self._grants if grant.until > protocol.now()]
            return list(self._grants)

    def _renewed(self) -> list[_Held]:
        with self._guard:
            return [*self._live(), *(record for record in self._records.values() if record.state == "in-flight")]

    def _settle(self, renewed: Iterable[_Held], is_due: Callable[[Any], bool] = _is_due) -> None:
        """Waits until the clients have done what the time asks of them."""
        for each in renewed:
            end = time.monotonic() + PATIENCE
            while is_due(each) and not self.is_down and each.until > protocol.now():
                # After a while nobody renews it.
                each.is_renewed = time.monotonic() < end
                time.sleep(STEP)
        driver.submit(_turns()).result()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        talk = self._answer(request)
        while (response := self._step(talk)) is None:
            time.sleep(STEP)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        talk = self._answer(request)
        try:
            while (response := self._step(talk)) is None:  # noqa: ASYNC110
                await asyncio.sleep(STEP)
            return response
        finally:
            talk.close()

    def _step(self, talk: Waiting) -> httpx.Response | None:
        with self._guard:
            try:
                return next(talk)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response

    def _answer(self, request: httpx.Request) -> Waiting:
        if self.is_down:
            raise httpx.ConnectError("the fake is down")
        path, _, query = request.url.raw_path.decode().partition("?")
        kind, *words = [unquote(word) for word in path.split("/")[2:]]
        body = json.loads(request.content or b"{}")
        token = request.headers.get("lock-token", "")
        what = f"{request.method} {kind} {' '.join(words[1:])}".strip()
        if kind == "locks" and (not words or len(words) == 1):
            names = tuple(words or body.get("names") or parse_qs(query)["name"])
            if request.method == "POST":
                return (yield from self._create(names, token, body))
            if request.method == "GET":
                return self._show(names[0])
            return self._keep(request.method, token, body, parse_qs(query).get("entry", [None])[0])
        if what == "POST locks break":
            self._break(words[0], body["reason"], body.get("by", ""))
            return httpx.Response(200, json={})
        if kind == "idempotency":
            wait = float(request.headers.get("prefer", "wait=0").partition("=")[2])
            return (yield from self._run(what, f"{words[0]}?{query}", token, body, wait))
        return _problem(501, "not-supported", detail=f"a fake does not know {request.method} {path}")

    def _create(self, names: tuple[str, ...], token: str, body: dict[str, Any]) -> Waiting:
        end, place = protocol.now() + body["wait_ms"] / 1000, (token, names)
        limit = body.get("limit", "shared") if "mode" in body else None
        entry = body.get("entry")
        self._queue.append(place)
        try:
            while True:
                mine = next((grant for grant in self._live() if grant.token == token and grant.names == names), None)
                if mine is not None:
                    mine.entries.add(entry)
                    return httpx.Response(200, json=mine.document())
                ahead = self._queue[: self._queue.index(place)]
                is_first = not any(set(names) & set(others) for _, others in ahead)
                in_the_way = next((each for name in names for each in self._others(name, limit)), None)
                if is_first and in_the_way is None:
                    return httpx.Response(201, json=self._grant(names, token, body, limit).document())
                if protocol.now() >= end:
                    name = next(iter(set(names) & set(in_the_way.names)), names[0]) if in_the_way else names[0]
                    holder = in_the_way and in_the_way.holder()
                    return _problem(409, "lock-held", name=name, holder=holder, waited_ms=body["wait_ms"])
                yield
        finally:
            self._queue.remove(place)

    def _others(self, name: str, limit: Any) -> list[_Held]:
        """The grants that are in the way."""
        holders = [grant for grant in self._live() if name in grant.names]
        if limit is None or any(grant.limit is None for grant in holders):
            return holders
        return holders if isinstance(limit, int) and len(holders) >= limit else []

    def _grant(self, names: tuple[str, ...], token: str, body: dict[str, Any], limit: Any) -> _Held:
        together = [grant for grant in self._live() if set(names) & set(grant.names)]
        self._fence += not together
        slot = next(slot for slot in range(1000) if slot not in [grant.slot for grant in together])
        fence = max((grant.fence for grant in together), default=self._fence)
        ttl, entries = body["ttl_ms"] / 1000, {body.get("entry")}
        grant = _Held(token, fence, ttl, names, body.get("owner"), limit, slot, entries)
        self._grants.append(grant)
        return grant

    def _show(self, name: str) -> httpx.Response:
        holders = [grant.holder() for grant in self._live() if name in grant.names]
        if not holders:
            return _problem(404, "lock-not-held")
        return httpx.Response(200, json={"name": name, **holders[0], "holders": holders})

    def _keep(self, method: str, token: str, body: dict[str, Any], entry: str | None) -> httpx.Response:
        """Renews or releases."""
        if token in self._broken:
            return _problem(409, "lock-broken", broken=self._broken.pop(token))
        grant = next((grant for grant in self._live() if grant.token == token), None)
        if grant is None:
            return _problem(404, "lock-not-held")
        if method == "PUT":
            grant.ttl = body["ttl_ms"] / 1000
            grant.renew()
            return httpx.Response(200, json=grant.document())
        grant.entries -= {entry} if entry else grant.entries
        if not grant.entries:
            self._grants.remove(grant)
        return httpx.Response(204)

    def _run(self, what: str, key: str, token: str, body: dict[str, Any], wait: float) -> Waiting:
        if what == "POST idempotency":
            return (yield from self._begin(key, token, body, protocol.now() + wait))
        record = self._records.get(key)
        if record is None or record.token != token or record.state != "in-flight":
            return _problem(412, "token-mismatch")
        if what == "POST idempotency renew":
            record.renew()
            return httpx.Response(204)
        if what == "POST idempotency fail":
            record.state = "unknown"
        elif what == "DELETE idempotency":
            del self._records[key]
        else:
            body["body"] = json.dumps(body.pop("json")) if "json" in body else body.get("body")
            record.state, record.answer = "done", {"headers": {}, **body}
        return httpx.Response(200, json={"state": record.state, "fencing_token": record.fence})

    def _begin(self, key: str, token: str, body: dict[str, Any], end: float) -> Waiting:
        while True:
            record = self._records.get(key)
            if record and record.state == "in-flight" and record.until <= protocol.now():
                record.state = "unknown" if record.begun.get("on_crash") != "rerun" else "over"
            if record is None or record.state == "over":
                self._fence += 1
                record = _Held(token, self._fence, body["lease_ms"] / 1000, begun=body)
                self._records[key] = record
            if record.begun.get("fingerprint") != body.get("fingerprint"):
                return _problem(422, "idempotency-key-reused", retry="new-key")
            document = {"state": record.state, "fencing_token": record.fence, "answer": record.answer}
            document |= {"token": token, "lease_expires_in_ms": round((record.until - protocol.now()) * 1000)}
            if record.state == "done" or record.token == token:
                return httpx.Response(200, json=document)
            if record.state == "unknown":
                return _problem(409, "outcome-unknown", retry="never")
            if protocol.now() >= end:
                return _problem(409, "request-in-progress", retry="same-key")
            yield


def _problem(status: int, code: str, **members: Any) -> httpx.Response:
    return httpx.Response(status, json={"status": status, "code": code, "detail": code, **members})


async def _turns() -> None:
    """Lets the background do what it is about to do."""
    await asyncio.sleep(3 * STEP)
    for _ in range(20):
        await asyncio.sleep(0)
