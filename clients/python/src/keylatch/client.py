"""The clients: one for threads, one for asyncio. What both share makes locks, holds, watches and runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from .driver import SILENCE, Transport, call, call_sync, log, run, submit
from .errors import Held, LeaseLost, Problem, Unreachable, check_passing
from .lease import AsyncLease, Lease, OnLost
from .lock import AsyncLock, Lock
from .once import AsyncOnce, Intent, Once, OnCrash
from .protocol import Carrier, Claim, Event, Limit, Request, Retrying, ask, jitter, limited, members, plain, show

AnyLock = TypeVar("AnyLock", bound=AsyncLock | Lock)
AnyOnce = TypeVar("AnyOnce", bound=AsyncOnce)
Function = TypeVar("Function", bound=Callable[..., Any])


class Watch:
    """What happens to a lock, by `for` or `async for`. After a lost connection it begins with a `snapshot`."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._request = Request("GET", f"/v1/locks/{plain(name)}/events")

    async def _events(self) -> AsyncGenerator[Event, None]:
        while True:
            try:
                stream = self._transport.events(self._request, self._transport.silence)
                async with contextlib.aclosing(stream) as events:
                    async for event in events:
                        yield event
            except (Unreachable, Problem) as error:
                check_passing(error)
            await asyncio.sleep(self._transport.retrying.pause())

    def __iter__(self) -> Iterator[Event]:
        events = self._events()
        try:
            while True:
                yield call_sync(events.__anext__())
        finally:
            submit(events.aclose())

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = self._events()
        try:
            while True:
                yield await call(events.__anext__())
        finally:
            submit(events.aclose())


class _Client(Generic[AnyLock, AnyOnce]):
    _lock: type[AnyLock]
    _once: type[AnyOnce]

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        ca: str | None = None,
        cert: tuple[str, str] | None = None,
        traceparent: Callable[[], str | None] | None = None,
        owner: str | None = None,
        timeout: float = 5.0,
        retries: float = math.inf,
        pause: Callable[[], float] = jitter,
        silence: float = SILENCE,
        http: Callable[[Callable[..., Any]], Any] | None = None,
    ) -> None:
        """The README describes the arguments, and which variables of the environment stand in for them.

        Raises :class:`BadSettings`.
        """
        self._transport = Transport(
            url, api_key, ca, cert, traceparent, owner, Retrying(timeout, retries, pause), silence, http
        )

    def lock(
        self,
        names: str | Sequence[str],
        *,
        wait: float | None = 0.0,
        max_ahead: int | None = None,
        ttl: float = 30.0,
        owner: str | None = None,
        limit: Limit = None,
        entry: str | None = None,
        token: str | None = None,
        on_lost: OnLost | None = None,
    ) -> AnyLock:
        """A lock, or several at once, which `with` and `async with` get.

        All spans are seconds: to wait in the queue (`None`: without end), and for which the lease outlives this
        process. With `max_ahead` it waits only where at most so many wait already. `limit` is how many may hold the
        lock together (`"shared"`: any number of readers).
        """
        is_set = not isinstance(names, str)
        body = members(max_ahead=max_ahead, owner=owner, entry=entry) | limited(limit)
        claim = Claim(tuple(names) if is_set else (str(names),), is_set, ttl, wait, body)
        return self._lock(self._transport, claim, on_lost, token)

    def hold(
        self,
        name: str,
        *,
        wait: float | None = 0.0,
        max_ahead: int | None = None,
        ttl: float = 30.0,
        owner: str | None = None,
        limit: Limit = None,
        entry: str | None = None,
        token: str | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> AnyLock:
        """A lock that a connection holds: the service renews it, and frees it when this process is gone, or after
        `max_hold` seconds."""
        body = members(max_ahead=max_ahead, owner=owner, entry=entry, max_hold_ms=max_hold) | limited(limit)
        return self._lock(self._transport, Claim((name,), False, ttl, wait, body, is_stream=True), on_lost, token)

    def watch(self, name: str) -> Watch:
        return Watch(self._transport, name)

    def once(
        self,
        key: str,
        *,
        fingerprint: str | None = None,
        request: Mapping[str, Any] | None = None,
        lease: float = 30.0,
        wait: float | None = 0.0,
        retention: float | None = None,
        on_crash: OnCrash | None = None,
        scope: Mapping[str, str] | None = None,
        token: str | None = None,
        on_lost: OnLost | None = None,
    ) -> AnyOnce:
        """A thing to be done once under `key`, which `with` and `async with` begin.

        `fingerprint` tells two things apart that have the same key by mistake; `request` describes an HTTP request
        in its place, of the `scope` (`method`, `path`, `principal`, `source`) that has the key. `lease` is for how
        many seconds this process may be silent. After `on_crash="rerun"` a run that did not come to its end is done
        again.
        """
        body = members(lease_ms=lease, retention_ms=retention, on_crash=on_crash)
        body |= members(fingerprint=fingerprint, request=request)
        return self._once(self._transport, Intent(key, body, scope or {}, lease, wait), on_lost, token)

    def locked(
        self, names: str | Sequence[str], *, skip: bool = False, **options: Any
    ) -> Callable[[Function], Function]:
        """Decorates a function, which then runs under this lock; the arguments are those of :meth:`lock`.

        With `skip` a call does nothing, and returns `None`, while others hold the lock.
        """

        skipped = [Held] if skip else []

        def decorate(function: Function) -> Function:
            lock: Any = self.lock(names, **options)

            @functools.wraps(function)
            def guarded(*arguments: Any, **named: Any) -> Any:
                with contextlib.ExitStack() as stack:
                    lease = None
                    with contextlib.suppress(*skipped):
                        lease = stack.enter_context(lock)
                    return function(*arguments, **named) if lease else None

            @functools.wraps(function)
            async def guarded_async(*arguments: Any, **named: Any) -> Any:
                async with contextlib.AsyncExitStack() as stack:
                    lease = None
                    with contextlib.suppress(*skipped):
                        lease = await stack.enter_async_context(lock)
                    return await function(*arguments, **named) if lease else None

            return cast(Function, guarded_async if inspect.iscoroutinefunction(function) else guarded)

        return decorate


async def break_lock(carrier: Carrier, name: str, reason: str, by: str | None, grace: float | None) -> bool:
    holding = await show(carrier, name)
    if holding is None:
        return False
    for holder in holding.get("holders") or [holding]:
        body = members(reason=reason, by=by, grace_ms=grace, slot=holder.get("slot"))
        body["fencing_token"] = holder["fencing_token"]
        await ask(carrier, Request("POST", f"/v1/locks/{plain(name)}/break", body))
    return True


class Client(_Client[Lock, Once]):
    """A client of a keylatch for programs with threads. It may be shared by all of them."""

    _lock, _once = Lock, Once

    def show(self, name: str) -> Mapping[str, Any] | None:
        """Who holds a lock, as the API says it; `None` where it is free."""
        return run(show(self._transport.in_thread, name))

    def break_lock(self, name: str, reason: str, *, by: str | None = None, grace: float | None = None) -> bool:
        """Ends the leases of all present holders, who read the reason and by whom; whether there was any.

        With `grace` they end in so many seconds at the latest.
        """
        return run(break_lock(self._transport.in_thread, name, reason, by, grace))

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Any other call of the API, such as `("GET", "/v1/locks/deploy/history")`, if it is safe to repeat."""
        return run(ask(self._transport.in_thread, Request(method, path, body))).document

    def elect(
        self,
        name: str,
        lead: Callable[[Lease], object],
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Calls `lead` each time that this program becomes the leader, until `stop` is set or `lead` raises.

        `lead` returns when `lease.lost` is set, which is before another can lead, or when it wants to lead no more.
        """
        stop = stop or threading.Event()
        lock = self.lock(name, wait=ELECTION, ttl=ttl, owner=owner)
        while not stop.is_set():
            with term() as raised, lock as lease, leading(lease, raised):
                lead(lease)
            stop.wait(self._transport.retrying.pause())

    def close(self) -> None:
        """Closes the connections, when what is still to be said has been said."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def term() -> Generator[list[Exception]]:
    """Of a term of an election comes out what its leader raised, and what a later try would get too."""
    raised: list[Exception] = []
    try:
        yield raised
    except (LeaseLost, Unreachable, Problem) as error:
        if not raised and not isinstance(error, LeaseLost):
            check_passing(error)
        log.info("%s", error)
    except Held:
        pass
    if raised:
        raise raised[0]


@contextlib.contextmanager
def leading(lease: Lease | AsyncLease, raised: list[Exception]) -> Generator[None]:
    """Keeps what a leader raises, unless it is the loss of its own lease."""
    try:
        yield
    except Exception as error:
        if error is not lease.loss:
            raised.append(error)


#: How long a thread that wants to lead waits at a time, before it looks whether it shall stop.
ELECTION = 5.0


class AsyncClient(_Client[AsyncLock, AsyncOnce]):
    """A :class:`Client` for asyncio. It may be shared by all tasks, also of several event loops."""

    _lock, _once = AsyncLock, AsyncOnce

    async def show(self, name: str) -> Mapping[str, Any] | None:
        return await call(show(self._transport, name))

    async def break_lock(self, name: str, reason: str, *, by: str | None = None, grace: float | None = None) -> bool:
        return await call(break_lock(self._transport, name, reason, by, grace))

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        return (await call(ask(self._transport, Request(method, path, body)))).document

    async def elect(
        self, name: str, lead: Callable[[AsyncLease], Awaitable[object]], *, ttl: float = 30.0, owner: str | None = None
    ) -> None:
        """Awaits `lead` each time that this program becomes the leader, until it is cancelled or `lead` raises.

        When the lease is lost, `lead` is cancelled, before another can lead.
        """
        lock = self.lock(name, wait=None, ttl=ttl, owner=owner)
        while True:
            with term() as raised:
                async with lock as lease:
                    with leading(lease, raised):
                        await led(lead, lease)
            await asyncio.sleep(self._transport.retrying.pause())

    async def aclose(self) -> None:
        """Closes the connections, when what is still to be said has been said."""
        await asyncio.to_thread(self._transport.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def led(lead: Callable[[AsyncLease], Awaitable[object]], lease: AsyncLease) -> None:
    leading = asyncio.ensure_future(lead(lease))
    losing = asyncio.ensure_future(lease.lost.wait())
    try:
        await asyncio.wait({leading, losing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        losing.cancel()
        leading.cancel()
        await asyncio.wait({leading})
    if not leading.cancelled():
        leading.result()
