"""A keylatch for your own tests: in this process, without a network, with time that the test moves.

    fake = keylatch.testing.Fake()
    with fake.client().lock("deploy") as lease:
        fake.lose("deploy")
        lease.check()  # raises LeaseLost

It speaks HTTP to the clients of this package, which are the real ones. It knows locks and sets of them, and things
done once; holds and watches it does not know, and who waits longest need not be the next. Time is that of all clients
in this process, so none of them is a real one.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote

import httpx

from . import driver, protocol
from .client import AsyncClient, Client

#: How often the fake and its clients look at the clock, in real seconds.
STEP = 0.002
#: For how many real seconds a renewal may keep the time from going on.
PATIENCE = 1.0


@dataclass
class _Kept:
    """What a token has: locks, or the run of a key."""

    token: str
    fence: int
    asked: dict[str, Any]
    names: tuple[str, ...] = ()
    slot: int = 0
    entries: set[str | None] = field(default_factory=lambda: set[str | None]())
    state: str = "in-flight"
    answer: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.renew(self.asked.get("ttl_ms") or self.asked["lease_ms"])

    def renew(self, millis: int) -> None:
        self.ttl = millis / 1000
        self.until, self.is_renewed = protocol.now() + self.ttl, True

    def is_due(self) -> bool:
        """Whether its client renews it about now."""
        return self.is_renewed and self.until - protocol.now() < self.ttl * 0.66

    @property
    def left(self) -> int:
        return round((self.until - protocol.now()) * 1000)

    def holder(self) -> dict[str, Any]:
        slot = {"slot": self.slot} if "limit" in self.asked else {}
        owner = self.asked.get("owner")
        return {"owner": owner, "fencing_token": self.fence, "expires_in_ms": self.left, **slot}

    def document(self) -> dict[str, Any]:
        locks = [{**self.holder(), "name": name} for name in self.names]
        return {**locks[0], "locks": locks, "token": self.token, "waited_ms": 0, "valid_for_ms": self.left}


class Fake(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A keylatch in this process."""

    def __init__(self) -> None:
        #: Whether it cannot be reached.
        self.is_down = False
        self._guard = threading.RLock()
        self._fence = 0
        self._grants: list[_Kept] = []
        self._broken: dict[str, dict[str, str]] = {}
        self._runs: dict[str, _Kept] = {}
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

    def _break(self, name: str, reason: str, by: str) -> list[_Kept]:
        with self._guard:
            broken = [grant for grant in self._live() if name in grant.names]
            self._grants = [grant for grant in self._grants if grant not in broken]
            self._broken |= {grant.token: {"reason": reason, "by": by} for grant in broken}
        return broken

    def _live(self) -> list[_Kept]:
        with self._guard:
            self._grants = [grant for grant in self._grants if grant.until > protocol.now()]
            return list(self._grants)

    def _renewed(self) -> list[_Kept]:
        with self._guard:
            return [*self._live(), *(run for run in self._runs.values() if run.state == "in-flight")]

    def _settle(self, renewed: Iterable[_Kept], is_due: Callable[[_Kept], bool] = _Kept.is_due) -> None:
        """Waits until the clients have done what the time asks of them."""
        for each in renewed:
            end = time.monotonic() + PATIENCE
            while is_due(each) and not self.is_down and each.until > protocol.now():
                # After a while nobody renews it.
                each.is_renewed = time.monotonic() < end
                time.sleep(STEP)
        driver.submit(_turns()).result()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        look = self._look(request)
        while (response := look()) is None:
            time.sleep(STEP)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        look = self._look(request)
        while (response := look()) is None:  # noqa: ASYNC110
            await asyncio.sleep(STEP)
        return response

    def _look(self, request: httpx.Request) -> Callable[[], httpx.Response | None]:
        """Gives the response to a request, or `None` while it waits."""
        if self.is_down:
            raise httpx.ConnectError("the fake is down")
        answer = self._answer(request)

        def look() -> httpx.Response | None:
            with self._guard:
                return answer()

        return look

    def _answer(self, request: httpx.Request) -> Callable[[], httpx.Response | None]:
        path, _, query = request.url.raw_path.decode().partition("?")
        kind, *words = [unquote(word) for word in path.split("/")[2:]]
        body = json.loads(request.content or b"{}")
        token = request.headers.get("lock-token", "")
        what = f"{request.method} {kind} {' '.join(words[1:])}".strip()
        if kind == "locks" and len(words) < 2:
            names = tuple(words or body.get("names") or parse_qs(query)["name"])
            if request.method == "POST":
                return partial(self._create, names, token, body, protocol.now() + body["wait_ms"] / 1000)
            if request.method == "GET":
                return partial(self._show, names[0])
            return partial(self._keep, request.method, token, body, parse_qs(query).get("entry", [None])[0])
        if what == "POST locks break":
            self._break(words[0], body["reason"], body.get("by", ""))
            return lambda: httpx.Response(200, json={})
        if kind == "idempotency":
            key, wait = f"{words[0]}?{query}", float(request.headers.get("prefer", "wait=0").partition("=")[2])
            if what == "POST idempotency":
                return partial(self._begin, key, token, body, protocol.now() + wait)
            return partial(self._end, what, key, token, body)
        return lambda: _problem(501, "not-supported", detail=f"a fake does not know {request.method} {path}")

    def _create(self, names: tuple[str, ...], token: str, body: dict[str, Any], end: float) -> httpx.Response | None:
        mine = next((grant for grant in self._live() if grant.token == token and grant.names == names), None)
        if mine is not None:
            mine.entries.add(body.get("entry"))
            return httpx.Response(200, json=mine.document())
        for name in names:
            others = self._others(name, body)
            if others and protocol.now() < end:
                return None
            if others:
                return _problem(409, "lock-held", name=name, holder=others[0].holder(), waited_ms=body["wait_ms"])
        together = [grant for grant in self._live() if set(names) & set(grant.names)]
        self._fence += not together
        slot = next(slot for slot in range(1000) if slot not in [grant.slot for grant in together])
        fence = max((grant.fence for grant in together), default=self._fence)
        self._grants.append(_Kept(token, fence, body, names, slot, {body.get("entry")}))
        return httpx.Response(201, json=self._grants[-1].document())

    def _others(self, name: str, body: dict[str, Any]) -> list[_Kept]:
        """The grants that are in the way."""
        holders = [grant for grant in self._live() if name in grant.names]
        if "mode" not in body or any("mode" not in grant.asked for grant in holders):
            return holders
        return holders if len(holders) >= body.get("limit", 1000) else []

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
            grant.renew(body["ttl_ms"])
            return httpx.Response(200, json=grant.document())
        grant.entries -= {entry} if entry else grant.entries
        if not grant.entries:
            self._grants.remove(grant)
        return httpx.Response(204)

    def _begin(self, key: str, token: str, body: dict[str, Any], end: float) -> httpx.Response | None:
        run = self._runs.get(key)
        if run and run.state == "in-flight" and run.until <= protocol.now():
            run.state = "unknown" if run.asked.get("on_crash") != "rerun" else "over"
        if run is None or run.state == "over":
            self._fence += 1
            run = self._runs[key] = _Kept(token, self._fence, body)
        if run.asked.get("fingerprint") != body.get("fingerprint"):
            return _problem(422, "idempotency-key-reused", retry="new-key")
        if run.state == "done" or run.token == token:
            document = {"state": run.state, "fencing_token": run.fence, "answer": run.answer, "token": token}
            return httpx.Response(200, json={**document, "lease_expires_in_ms": run.left})
        if run.state == "unknown":
            return _problem(409, "outcome-unknown", retry="never")
        return _problem(409, "request-in-progress", retry="same-key") if protocol.now() >= end else None

    def _end(self, what: str, key: str, token: str, body: dict[str, Any]) -> httpx.Response:
        """Renews a run, or ends it."""
        run = self._runs.get(key)
        if run is None or run.token != token or run.state != "in-flight":
            return _problem(412, "token-mismatch")
        if what == "POST idempotency renew":
            run.renew(run.asked["lease_ms"])
            return httpx.Response(204)
        if what == "POST idempotency fail":
            run.state = "unknown"
        elif what == "DELETE idempotency":
            del self._runs[key]
        else:
            body["body"] = json.dumps(body.pop("json")) if "json" in body else body.get("body")
            run.state, run.answer = "done", {"headers": {}, **body}
        return httpx.Response(200, json={"state": run.state, "fencing_token": run.fence})


def _problem(status: int, code: str, **members: Any) -> httpx.Response:
    return httpx.Response(status, json={"status": status, "code": code, "detail": code, **members})


async def _turns() -> None:
    """Lets the background do what it is about to do."""
    await asyncio.sleep(3 * STEP)
    for _ in range(20):
        await asyncio.sleep(0)
