"""The clients: one for threads, one for asyncio. What both share makes locks, holds, watches and runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from .driver import SILENCE, Transport, run, run_async
from .errors import KeylatchError, Problem, Unreachable
from .events import Event
from .lease import OnLost
from .lock import Hold, Lock, stream, stream_async
from .once import Intent, Once
from .protocol import (
    PAUSE,
    Answer,
    Claim,
    Conversation,
    Limit,
    Pause,
    Request,
    ask,
    names_of,
    new_token,
    now,
    plain,
)


class Watch:
    """What happens to a lock, by `for` or `async for`. After a lost connection it begins with a `snapshot`."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._request = Request("GET", f"/v1/locks/{plain(name)}/events", timeout=transport.silence)

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                yield from stream(self._transport, None, self._request)
            except (Unreachable, Problem) as error:
                check_passing(error)
            run(self._transport, pause())

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            try:
                async for event in stream_async(self._transport, None, self._request):
                    yield event
            except (Unreachable, Problem) as error:
                check_passing(error)
            await run_async(self._transport, pause())


def check_passing(error: KeylatchError) -> None:
    if isinstance(error, Problem) and not error.is_passing:
        raise error


def pause() -> Conversation[None]:
    yield Pause(now() + PAUSE)


class _Client:
    """What both clients share."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        ca: str | None = None,
        cert: tuple[str, str] | None = None,
        traceparent: Callable[[], str | None] | None = None,
        silence: float = SILENCE,
    ) -> None:
        """A client of the service at `url`, or at `KEYLATCH_URL`, or at http://127.0.0.1:7070.

        `unix:PATH` is a Unix socket. `api_key`, `ca` (a file of authorities) and `cert` (the files of a
        certificate and its key) are `KEYLATCH_API_KEY`, `KEYLATCH_CA`, `KEYLATCH_CLIENT_CERT` and
        `KEYLATCH_CLIENT_KEY` of the environment unless they are given. `traceparent` is asked for each request.
        The client opens a watch again on which nothing comes for `silence` seconds, not even a comment.
        """
        self._transport = Transport.from_environment(
            url, api_key, ca=ca, cert=cert, traceparent=traceparent, silence=silence
        )

    def lock(
        self,
        names: str | Sequence[str],
        *,
        wait: float = 0.0,
        ttl: float = 30.0,
        owner: str | None = None,
        limit: Limit = None,
        entry: str | None = None,
        token: str | None = None,
        on_lost: OnLost | None = None,
    ) -> Lock:
        """A lock, or several at once, which `with` and `async with` get.

        `wait` is how many seconds to wait in the queue, `ttl` for how long the lease outlives this process,
        `limit` how many may hold the lock together (`"shared"`: any number of readers), `entry` a name under
        which `token` enters a lock that it holds already, `on_lost` what is called when the lease is lost.
        """
        names, is_set = names_of(names)
        token = token or new_token()
        claim = Claim(names, is_set, ttl, wait, owner, limit, entry, token)
        return Lock(self._transport, claim, on_lost)

    def hold(
        self,
        name: str,
        *,
        wait: float = 0.0,
        ttl: float = 30.0,
        owner: str | None = None,
        limit: Limit = None,
        on_lost: OnLost | None = None,
    ) -> Hold:
        """A lock that a connection holds: the service renews it, and frees it when this process is gone."""
        return Hold(self._transport, Claim((name,), False, ttl, wait, owner, limit), on_lost)

    def watch(self, name: str) -> Watch:
        """What happens to a lock, as it happens."""
        return Watch(self._transport, name)

    def once(self, key: str, *, fingerprint: str | None = None, lease: float = 30.0, wait: float = 0.0) -> Once:
        """A thing to be done once under `key`, which `with` and `async with` begin.

        `fingerprint` tells two things apart that have the same key by mistake (:class:`Problem`
        `idempotency-key-reused`); `wait` is how long to wait for the same thing under way elsewhere.
        """
        return Once(self._transport, Intent(key, fingerprint, lease, wait, new_token()))


def show(name: str) -> Conversation[Mapping[str, Any] | None]:
    try:
        answer: Answer = yield from ask(Request("GET", f"/v1/locks/{plain(name)}"))
    except Problem as problem:
        if problem.code == "lock-not-held":
            return None
        raise
    return answer.document


def break_lock(name: str, reason: str, by: str | None) -> Conversation[bool]:
    holding = yield from show(name)
    if holding is None:
        return False
    holders = holding.get("holders") or [holding]
    for holder in holders:
        body = {"reason": reason, "fencing_token": holder["fencing_token"]}
        if by is not None:
            body["by"] = by
        if "slot" in holder:
            body["slot"] = holder["slot"]
        yield from ask(Request("POST", f"/v1/locks/{plain(name)}/break", body))
    return True


class Client(_Client):
    """A client of a keylatch for programs with threads. It may be shared by all of them."""

    def show(self, name: str) -> Mapping[str, Any] | None:
        """Who holds a lock, as the API says it; `None` where it is free."""
        return run(self._transport, show(name))

    def break_lock(self, name: str, reason: str, *, by: str | None = None) -> bool:
        """Ends the leases of all present holders, who read the reason; whether there was any."""
        return run(self._transport, break_lock(name, reason, by))

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Client):
    """A client of a keylatch for asyncio."""

    async def show(self, name: str) -> Mapping[str, Any] | None:
        """Who holds a lock, as the API says it; `None` where it is free."""
        return await run_async(self._transport, show(name))

    async def break_lock(self, name: str, reason: str, *, by: str | None = None) -> bool:
        """Ends the leases of all present holders, who read the reason; whether there was any."""
        return await run_async(self._transport, break_lock(name, reason, by))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
