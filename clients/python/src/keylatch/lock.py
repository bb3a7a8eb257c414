"""Getting a lock, and holding it for as long as a `with` or an `async with` lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from concurrent.futures import Future, wait
from types import TracebackType

from .driver import Transport, answer_of, run, run_async
from .errors import Held, KeylatchError, LeaseLost, Problem, Unreachable
from .events import Event, async_events_of, events_of
from .lease import AsyncLease, Lease, OnLost
from .protocol import ANSWER_TIMEOUT, Claim, Grant, Request, acquire, held, now, release


class Lock:
    """A lock, or several at once, to be got by `with` or `async with`.

    Leaving the block releases. A block that ends without an exception although the lease was lost meanwhile
    raises :class:`LeaseLost`.
    """

    def __init__(self, transport: Transport, claim: Claim, on_lost: OnLost | None) -> None:
        self._transport = transport
        self._claim = claim
        self._on_lost = on_lost
        self._lease: Lease | None = None
        self._async_lease: AsyncLease | None = None

    def acquire(self) -> Lease:
        """Gets the lock, which the caller releases. Raises :class:`Held`, :class:`Problem` or
        :class:`Unreachable`."""
        try:
            grant = run(self._transport, acquire(self._claim))
        except BaseException as error:
            if may_hold(error):
                # The caller does not wait for it.
                give_back = lambda: run(self._transport, release(self._claim))  # noqa: E731
                threading.Thread(target=quietly, args=[give_back], daemon=True).start()
            raise
        lease = Lease(self._transport, self._claim, grant, self._on_lost)
        lease._renew()
        return lease

    async def acquire_async(self) -> AsyncLease:
        """The same for asyncio."""
        try:
            grant = await run_async(self._transport, acquire(self._claim))
        except BaseException as error:
            if may_hold(error):
                await release_quietly(self._transport, self._claim)
            raise
        lease = AsyncLease(self._transport, self._claim, grant, self._on_lost)
        lease._renew()
        return lease

    def __enter__(self) -> Lease:
        self._lease = self.acquire()
        return self._lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        if error is not None:
            quietly(lease.release)
            return
        leave(lease.release(), lease.loss)

    async def __aenter__(self) -> AsyncLease:
        self._async_lease = await self.acquire_async()
        return self._async_lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, self._async_lease = self._async_lease, None
        assert lease is not None
        try:
            was_held = await lease.release()
        except KeylatchError:
            if error is None:
                raise
            return
        if error is None:
            leave(was_held, lease.loss)


class Hold(Lock):
    """A lock that a connection holds: it is free as soon as this process is gone."""

    def acquire(self) -> Lease:
        opened: Future[Lease] = Future()
        threading.Thread(target=self._open, args=[opened], name="keylatch hold", daemon=True).start()
        try:
            wait([opened], self._claim.wait + ANSWER_TIMEOUT)
        finally:
            # Where it is not open yet, nobody waits for it any more.
            is_late = opened.cancel()
        if is_late:
            raise Unreachable("no answer came in time", sent=True)
        return opened.result()

    def _open(self, opened: Future[Lease]) -> None:
        """Opens the stream, and reads it to its end; a thread does that."""
        sent = now()
        events = stream(self._transport, self._claim, hold_request(self._transport, self._claim))
        try:
            grant = next((grant for event in events if (grant := granted(self._claim, event, sent))), None)
            if grant is None:
                raise Unreachable("the stream has ended", sent=True)
        except Exception as error:
            if opened.set_running_or_notify_cancel():
                opened.set_exception(error)
            return
        if opened.set_running_or_notify_cancel():
            lease = Lease(self._transport, self._claim, grant, self._on_lost)
            opened.set_result(lease)
            lease._hold(events, sent)
        events.close()

    async def acquire_async(self) -> AsyncLease:
        sent = now()
        events = stream_async(self._transport, self._claim, hold_request(self._transport, self._claim))

        async def first() -> Grant:
            async for event in events:
                if (grant := granted(self._claim, event, sent)) is not None:
                    return grant
            raise Unreachable("the stream has ended", sent=True)

        try:
            grant = await asyncio.wait_for(first(), self._claim.wait + ANSWER_TIMEOUT)
        except (TimeoutError, asyncio.TimeoutError):
            raise Unreachable("no answer came in time", sent=True) from None
        lease = AsyncLease(self._transport, self._claim, grant, self._on_lost)
        lease._hold(events, sent)
        return lease


def may_hold(error: BaseException) -> bool:
    """Whether the service may have granted what the caller does not get."""
    if isinstance(error, Problem):
        return error.is_passing
    return not isinstance(error, Held) and not (isinstance(error, Unreachable) and not error.sent)


def quietly(call: object) -> None:
    """Calls what the caller has no use for an error of: the lease ends by itself then."""
    assert callable(call)
    try:
        call()
    except KeylatchError:
        pass


async def release_quietly(transport: Transport, claim: Claim) -> None:
    try:
        await run_async(transport, release(claim))
    except KeylatchError:
        pass


def leave(was_held: bool, loss: LeaseLost | None) -> None:
    if loss is not None:
        raise loss
    if not was_held:
        raise LeaseLost("expired", "the lease was over before it was released")


def hold_request(transport: Transport, claim: Claim) -> Request:
    # What comes late is judged by the validity, so silence is an error only when that is over.
    silence = max(transport.silence, claim.ttl)
    return Request("POST", f"{claim.path}/hold", claim.creation(claim.wait), claim.token, silence)


def granted(claim: Claim, event: Event, sent: float) -> Grant | None:
    if event.type == "acquired":
        return Grant.of(claim, event.data, sent)
    if event.type == "refused":
        raise refusal(claim, Problem(int(event.data.get("status", 0)), event.data, None))
    return None


def refusal(claim: Claim | None, problem: Problem) -> KeylatchError:
    return held(claim, problem) if claim and problem.code == "lock-held" else problem


def stream(transport: Transport, claim: Claim | None, request: Request) -> Generator[Event, None, None]:
    """The events of a request; raises :class:`Held` or :class:`Problem` where there are none."""
    with transport.stream(request) as response:
        if response.status_code != 200:
            response.read()
            raise refusal(claim, answer_of(response).problem())
        yield from events_of(response.iter_lines())


async def stream_async(transport: Transport, claim: Claim | None, request: Request) -> AsyncIterator[Event]:
    """The same for asyncio."""
    async with transport.stream_async(request) as response:
        if response.status_code != 200:
            await response.aread()
            raise refusal(claim, answer_of(response).problem())
        async for event in async_events_of(response.aiter_lines()):
            yield event
