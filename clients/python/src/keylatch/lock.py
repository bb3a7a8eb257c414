"""Getting a lock, and holding it for as long as a `with` or an `async with` lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar, cast, overload

from .driver import Transport, call, call_sync, check_header, log, run, submit
from .errors import Held, InUse, KeylatchError, Problem, Unreachable
from .lease import AsyncLease, Lease, OnLost
from .protocol import Answer, Carrier, Claim, Event, Grant, Request, acquire, new_token, now, release, show

Sync = TypeVar("Sync")
Async = TypeVar("Async")


class Entry:
    """What a thread or a task enters, from when it begins to get it."""

    def __init__(self, token: str) -> None:
        self.user, self.token = me(), token
        self.got: Any = None


class AsyncBlock(Generic[Async]):
    """What `async with` enters. Tasks may share it: each entry is one of its own, with a token of its own.

    It has no lock, which a fork could leave locked for ever: each list changes in one step.
    """

    def __init__(self, token: str | None, is_reentrant: bool = False) -> None:
        check_header("the token", token)
        self._token = token
        self._is_reentrant = is_reentrant
        self._entries: list[Entry] = []
        #: What blocks have to leave yet, also where it was ended by hand.
        self._blocks: list[Entry] = []

    async def _get_async(self, entry: Entry) -> Async:
        raise NotImplementedError

    @contextmanager
    def _entering(self) -> Generator[Entry]:
        """An entry with a token of its own, unless the caller gave one to the object."""
        entry = Entry(self._token or new_token())
        self._entries.append(entry)
        try:
            if self._token and not self._is_reentrant and self._entries[0] is not entry:
                raise InUse("an object with a token of your own is entered while it is in use")
            yield entry
        except BaseException:
            self._forget(entry)
            raise

    def _forget(self, entry: Entry) -> None:
        with suppress(ValueError):
            self._entries.remove(entry)

    async def _enter_async(self) -> Entry:
        with self._entering() as entry:
            entry.got = await self._get_async(entry)
        return entry

    async def __aenter__(self) -> Async:
        self._blocks.append(entry := await self._enter_async())
        return cast(Async, entry.got)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._left(error) as entry:
            if entry in self._entries:
                await entry.got._leave(error)

    @contextmanager
    def _left(self, error: BaseException | None) -> Generator[Entry]:
        """The entry whose block is left; nothing is left to do where it was released by hand. What comes out is the
        error of the block, or else the loss of its lease, and never that the service was not told of its end."""
        entry = last(self._blocks, self._blocks)
        self._blocks.remove(entry)
        loss = entry.got.loss
        try:
            yield entry
        except KeylatchError as failure:
            if error is None:
                raise loss or failure from failure.__cause__
            log.warning("the service was not told of the end of a block: %s", failure)
        finally:
            self._forget(entry)


class Block(AsyncBlock[Async], Generic[Sync, Async]):
    """The same also for threads, by `with`."""

    def _get(self, entry: Entry, **changes: Any) -> Sync:
        raise NotImplementedError

    def _enter(self, **changes: Any) -> Entry:
        with self._entering() as entry:
            entry.got = self._get(entry, **changes)
        return entry

    def __enter__(self) -> Sync:
        self._blocks.append(entry := self._enter())
        return cast(Sync, entry.got)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._left(error) as entry:
            if entry in self._entries:
                entry.got._leave(error)


def last(entries: list[Entry], of_others: list[Entry]) -> Entry:
    """What this user has entered last; or the only one that another may have entered."""
    user = me()
    found = [entry for entry in entries if entry.user == user] or of_others
    if found is of_others and len(found) != 1:
        raise RuntimeError("this thread or task has not entered what it leaves")
    return found[-1]


def me() -> object:
    """The task that runs, or else the thread."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


class Claimed(AsyncBlock[AsyncLease]):
    """What locks of threads and of asyncio share."""

    def __init__(self, transport: Transport, claim: Claim, on_lost: OnLost | None, token: str | None) -> None:
        super().__init__(token, "entry" in claim.body)
        self._transport = transport
        self._claim = claim
        self._on_lost = on_lost

    def _claimed(self, entry: Entry, **changes: Any) -> Claim:
        body = {"owner": self._transport.owner, **self._claim.body}
        return replace(self._claim, body=body, token=entry.token, is_own=self._token is not None, **changes)

    def _acquired(self) -> Any:
        """The lease that this user has acquired last; or the only one that was acquired, and is not of a block."""
        got = [entry for entry in list(self._entries) if entry.got is not None]
        return last(got, [entry for entry in got if entry not in self._blocks]).got

    async def _get_async(self, entry: Entry) -> AsyncLease:
        claim = self._claimed(entry)
        undo = partial(give_back, self._transport, claim)
        carry = opening if claim.is_stream else acquire
        grant = await call(carry(self._transport, claim, undo), undo)
        return AsyncLease(self._transport, grant, self._on_lost, partial(self._forget, entry))

    async def _locked(self, carrier: Carrier) -> bool:
        for name in self._claim.names:
            if await show(carrier, name) is not None:
                return True
        return False


class AsyncLock(Claimed):
    """A lock, or several at once, to be got by `async with`: a :class:`Lock` for asyncio alone."""

    async def acquire(self) -> AsyncLease:
        """Gets the lock, which the caller releases. Raises what :meth:`Lock.acquire` does."""
        return cast(AsyncLease, (await self._enter_async()).got)

    async def release(self) -> bool:
        return bool(await self._acquired().release())

    async def locked(self) -> bool:
        return await call(self._locked(self._transport))


class Lock(Claimed, Block[Lease, AsyncLease]):
    """A lock, or several at once, to be got by `with` or `async with`. Threads and tasks may share it; each has a
    lease of its own.

    Leaving the block releases. A block that ends without an exception although the lease was lost meanwhile
    raises :class:`LeaseLost`.
    """

    @overload
    def acquire(self) -> Lease: ...
    @overload
    def acquire(self, blocking: bool | None = ..., timeout: float | None = ...) -> Lease | None: ...

    def acquire(self, blocking: bool | None = None, timeout: float | None = None) -> Lease | None:
        """Gets the lock, which the caller releases. Raises :class:`Held`, :class:`Problem` or
        :class:`Unreachable`.

        With arguments it is that of `threading.Lock`: `blocking` waits without end, or until the `timeout` (-1: without
        end) is over, and `None` says that others hold it.
        """
        if blocking is None and timeout is None:
            return cast(Lease, self._enter().got)
        if blocking is False:
            if timeout not in (None, -1):
                raise ValueError("a timeout is for a call that blocks")
            timeout = 0.0
        try:
            return cast(Lease, self._enter(wait=None if timeout is None or timeout < 0 else timeout).got)
        except Held:
            return None

    def _get(self, entry: Entry, **changes: Any) -> Lease:
        claim = self._claimed(entry, **changes)
        undo = partial(give_back, self._transport, claim)
        if claim.is_stream:
            grant = call_sync(opening(self._transport, claim, undo), undo)
        else:
            grant = run(acquire(self._transport.in_thread, claim, undo))
        return Lease(self._transport, grant, self._on_lost, partial(self._forget, entry))

    def release(self) -> bool:
        """Releases what this thread has acquired last; whether it was still held."""
        return bool(self._acquired().release())

    def locked(self) -> bool:
        """Whether anybody holds the lock now, or any of the locks."""
        return run(self._locked(self._transport.in_thread))


def give_back(transport: Transport, claim: Claim, grant: Grant | None = None) -> None:
    """Releases what the caller does not get, and does not wait for. The service frees a hold with its stream. Under a
    token of the caller's own that may be what another acquisition holds, unless it has an entry of its own."""
    if grant is not None and grant.events is not None:
        submit(grant.events.aclose())
    elif not claim.is_stream and (not claim.is_own or "entry" in claim.body):
        transport.say(release(transport, claim))


class Opening:
    """Opens the stream of a hold where a lock would be created: its first event is the response."""

    def __init__(self, transport: Transport, claim: Claim) -> None:
        self._transport = transport
        self.sleep_until, self.retrying = transport.sleep_until, transport.retrying
        # What comes late is judged by the validity, so silence is an error only when that is over.
        self._silence = max(transport.silence, claim.ttl)

    async def send(self, request: Request) -> Answer:
        self.events = self._transport.events(request, self._silence)
        try:
            return await asyncio.wait_for(first(self.events, now()), self._transport.limit(request))
        except (TimeoutError, asyncio.TimeoutError):
            raise Unreachable("no response came in time", sent=True) from None
        except Problem as problem:
            return Answer(problem.status, problem.document, problem.retry_after)


async def opening(transport: Transport, claim: Claim, undo: Callable[[], object]) -> Grant:
    carrier = Opening(transport, claim)
    return replace(await acquire(carrier, claim, undo), events=carrier.events)


async def first(events: AsyncGenerator[Event, None], sent: float) -> Answer:
    async for event in events:
        if event.type in ("acquired", "refused"):
            return Answer(int(event.data.get("status", 200)), event.data, None, sent)
    raise Unreachable("the stream has ended", sent=True)
