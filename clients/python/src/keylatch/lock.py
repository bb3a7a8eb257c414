"""Getting a lock, and holding it for as long as a `with` or an `async with` lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from .driver import Transport, call, carry_out_async, drive_async, log, run, run_async, submit
from .errors import Held, InUse, KeylatchError, LeaseLost, Problem, Unreachable
from .events import Event, events_of
from .lease import AsyncLease, Lease, OnLost
from .protocol import Answer, Claim, Conversation, Grant, Pause, Request, acquire, new_token, now, release, show

L = TypeVar("L")
T = TypeVar("T")


class Unset:
    """Stands for an argument that is not given."""


UNSET = Unset()


class Users(Generic[L]):
    """Who uses an object that many threads and tasks may share: what each has entered, the latest last.

    It has no lock, which a fork could leave locked for ever: a thread or a task changes its own list alone.
    """

    def __init__(self, token: str | None, is_reentrant: bool = False) -> None:
        self._token = token
        self._is_reentrant = is_reentrant
        self._entered: dict[object, list[L]] = {}
        self._taken: dict[str, object] = {}

    def token(self) -> str:
        """The token of an acquisition: one of its own, unless the caller gave one to the object."""
        if self._token is None:
            return new_token()
        mine = object()
        if not self._is_reentrant and self._taken.setdefault(self._token, mine) is not mine:
            raise InUse("an object with a token of your own is in use")
        return self._token

    def enter(self, user: object, what: L) -> None:
        self._entered.setdefault(user, []).append(what)

    def leave(self, user: object) -> L:
        """Takes back what this user has entered, or the only one that there is: another may leave for it."""
        everyone = list(self._entered)
        users = [user] if user in everyone else everyone
        if len(users) != 1:
            raise RuntimeError("this thread or task has not entered what it leaves")
        return self._entered[users[0]][-1]

    def ended(self, what: L) -> None:
        for user, entered in list(self._entered.items()):
            if what in entered:
                entered.remove(what)
                if not entered:
                    del self._entered[user]
        self.free()

    def free(self) -> None:
        self._taken.clear()


class Claimed:
    """What all locks share, and what those of threads have of asyncio too."""

    def __init__(self, transport: Transport, claim: Claim, on_lost: OnLost | None, token: str | None) -> None:
        self._transport = transport
        self._claim = claim
        self._on_lost = on_lost
        self._users: Users[Any] = Users(token, claim.entry is not None)

    def _claimed(self, blocking: bool, timeout: float | Unset | None) -> Claim:
        """The claim of one acquisition."""
        wait = self._claim.wait if isinstance(timeout, Unset) else timeout
        wait = None if wait is not None and wait < 0 else wait
        owner = self._transport.owner if self._claim.owner is None else self._claim.owner
        return replace(self._claim, wait=wait if blocking else 0.0, owner=owner, token=self._users.token())

    async def acquire_async(self) -> AsyncLease:
        """Gets the lock, which the caller releases. Raises :class:`Held`, :class:`Problem` or
        :class:`Unreachable`."""
        claim = self._claimed(True, UNSET)
        try:
            lease = await self._get_async(claim)
        except BaseException:
            self._users.free()
            raise
        self._users.enter(asyncio.current_task(), lease)
        return lease

    async def _get_async(self, claim: Claim) -> AsyncLease:
        talk = undone(acquire(claim), lambda: give_back(self._transport, claim))
        grant = await call(run_async(self._transport, talk), lambda _: give_back(self._transport, claim))
        lease = AsyncLease(self._transport, claim, grant, self._on_lost, self._users.ended)
        lease._watch(lease._renew())
        return lease

    async def __aenter__(self) -> AsyncLease:
        return await self.acquire_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease: AsyncLease = self._users.leave(asyncio.current_task())
        with only(error, lease.name):
            leave(error, await lease._leave(error), lease)


class AsyncLock(Claimed):
    """A lock, or several at once, to be got by `async with`. Tasks may share it; each has a lease of its own.

    Leaving the block releases. A block that ends without an exception although the lease was lost meanwhile
    raises :class:`LeaseLost`.
    """

    async def acquire(self) -> AsyncLease:
        """Gets the lock, which the caller releases. Raises :class:`Held`, :class:`Problem` or
        :class:`Unreachable`."""
        return await self.acquire_async()

    async def release(self) -> bool:
        """Releases what this task has acquired last; whether it was still held."""
        lease: AsyncLease = self._users.leave(asyncio.current_task())
        return await lease.release()

    async def locked(self) -> bool:
        """Whether anybody holds the lock now, or any of the locks."""
        return any([await call(run_async(self._transport, show(name))) for name in self._claim.names])


class Lock(Claimed):
    """A lock, or several at once, to be got by `with` or `async with`. Threads and tasks may share it; each has a
    lease of its own.

    Leaving the block releases. A block that ends without an exception although the lease was lost meanwhile
    raises :class:`LeaseLost`.
    """

    @overload
    def acquire(self) -> Lease: ...
    @overload
    def acquire(self, blocking: bool = ..., timeout: float | None = ...) -> Lease | None: ...

    def acquire(self, blocking: bool = True, timeout: float | Unset | None = UNSET) -> Lease | None:
        """Gets the lock, which the caller releases. Raises :class:`Held`, :class:`Problem` or
        :class:`Unreachable`.

        With `blocking=False`, or with a `timeout` in place of `wait` (`None` or -1: without end), `None` says that
        others hold it.
        """
        claim = self._claimed(blocking, timeout)
        try:
            lease = self._get(claim)
        except BaseException as error:
            self._users.free()
            if isinstance(error, Held) and not (blocking and isinstance(timeout, Unset)):
                return None
            raise
        self._users.enter(threading.get_ident(), lease)
        return lease

    def _get(self, claim: Claim) -> Lease:
        grant = run(self._transport, undone(acquire(claim), lambda: give_back(self._transport, claim)))
        lease = Lease(self._transport, claim, grant, self._on_lost, self._users.ended)
        lease._watch(lease._renew())
        return lease

    def release(self) -> bool:
        """Releases what this thread has acquired last; whether it was still held."""
        lease: Lease = self._users.leave(threading.get_ident())
        return lease.release()

    def locked(self) -> bool:
        """Whether anybody holds the lock now, or any of the locks."""
        return any(run(self._transport, show(name)) for name in self._claim.names)

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease: Lease = self._users.leave(threading.get_ident())
        with only(error, lease.name):
            leave(error, lease.release(), lease)


class Streamed(Claimed):
    """What holds share."""

    async def _get_async(self, claim: Claim) -> AsyncLease:
        grant, events, sent = await call(opened(self._transport, claim), closed)
        lease = AsyncLease(self._transport, claim, grant, self._on_lost, self._users.ended)
        lease._hold(events, sent)
        return lease


class AsyncHold(Streamed, AsyncLock):
    """A lock that a connection holds: it is free as soon as this process is gone."""


class Hold(Streamed, Lock):
    """A lock that a connection holds: it is free as soon as this process is gone."""

    def _get(self, claim: Claim) -> Lease:
        opening = submit(opened(self._transport, claim), closed)
        try:
            grant, events, sent = opening.result()
        except BaseException:
            opening.cancel()
            raise
        lease = Lease(self._transport, claim, grant, self._on_lost, self._users.ended)
        lease._hold(events, sent)
        return lease


def undone(talk: Conversation[T], undo: Callable[[], None]) -> Conversation[T]:
    """The conversation; where it ends without the grant that the service may have made, that is undone."""
    try:
        return (yield from talk)
    except BaseException as error:
        if may_hold(error):
            undo()
        raise


def give_back(transport: Transport, claim: Claim) -> None:
    """Releases what the caller does not get, and does not wait for."""
    transport.end(run_async(transport, release(claim)))


def may_hold(error: BaseException) -> bool:
    """Whether the service may have granted what the caller does not get."""
    if isinstance(error, Problem):
        return error.status >= 500
    return not isinstance(error, Held) and not (isinstance(error, Unreachable) and not error.sent)


@contextmanager
def only(error: BaseException | None, name: str) -> Iterator[None]:
    """Keeps the error of a block the one that comes out of it."""
    try:
        yield
    except KeylatchError as failure:
        if error is None:
            raise
        log.warning("the end of %s was not told to the service: %s", name, failure)


def leave(error: BaseException | None, was_held: bool | None, lease: Lease | AsyncLease) -> None:
    if error is None and lease.loss is not None and lease._is_mine():
        raise lease.loss
    if error is None and not was_held and lease._is_mine():
        raise LeaseLost("expired", "it was over before it was released", lease._names)


Opened = tuple[Grant, AsyncGenerator[Event, None], float]


async def opened(transport: Transport, claim: Claim) -> Opened:
    """Opens the stream of a hold, as a lock is acquired: its first event is the response."""
    opened: list[tuple[AsyncGenerator[Event, None], float]] = []

    async def open_stream(step: Request | Pause) -> Answer | None:
        if isinstance(step, Pause):
            return await carry_out_async(transport, step)
        # What comes late is judged by the validity, so silence is an error only when that is over.
        request, limit = replace(step, timeout=max(transport.silence, claim.ttl)), step.timeout
        opened[:] = [(stream(transport, request), now())]
        try:
            return await asyncio.wait_for(first(opened[0][0]), limit)
        except (TimeoutError, asyncio.TimeoutError):
            raise Unreachable("no response came in time", sent=True) from None
        except Problem as problem:
            return Answer(problem.status, problem.document, problem.retry_after)

    grant = await drive_async(acquire(claim, "/hold"), open_stream)
    return grant, *opened[0]


async def first(events: AsyncGenerator[Event, None]) -> Answer:
    async for event in events:
        if event.type in ("acquired", "refused"):
            return Answer(int(event.data.get("status", 200)), event.data)
    raise Unreachable("the stream has ended", sent=True)


def closed(opened: Opened) -> None:
    """Leaves a hold that nobody takes: the service frees it with the stream."""
    submit(opened[1].aclose())


async def stream(transport: Transport, request: Request) -> AsyncGenerator[Event, None]:
    """The events of a request; raises :class:`Problem` where there are none."""
    async with aclosing(transport.stream(request)) as lines:
        async for event in events_of(lines):
            yield event
