"""What the program holds, and what watches over it.

A lease counts its validity from the sending of each request, and counts as lost a quarter of its TTL (at most
10 s) before its end, so that the program stops before another client can have the lock. Whoever asks hears that from
the clock; a timer only tells it sooner to who does not ask.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from .driver import Transport, background, call, log, run, submit, unheard
from .errors import LeaseLost, Problem, Unreachable
from .protocol import (
    Answer,
    Carrier,
    Event,
    Grant,
    Request,
    ask,
    lead,
    loss,
    lost,
    now,
    release,
    send,
)

Signal = TypeVar("Signal")
OnLost = Callable[["LeaseLost"], Any]


class Watched(Generic[Signal]):
    """What ends unless it is renewed, and is known to be lost from the clock."""

    _event: Callable[[], Signal]

    def __init__(
        self, transport: Transport, names: tuple[str, ...], ttl: float, until: float, on_lost: OnLost | None
    ) -> None:
        self._transport, self._names, self._ttl = transport, names, ttl
        self._since, self._until = now(), until
        self._on_lost = on_lost
        self._loss: LeaseLost | None = None
        self._ended = False
        self._process = os.getpid()
        self._telling = threading.Lock()
        self._watching: Future[object] | None = None
        self._why = ""
        self._lost: Any = self._event()
        self._loop = asyncio.get_running_loop() if isinstance(self._lost, asyncio.Event) else None
        self._carrier: Carrier = transport.in_thread if self._loop is None else transport

    @property
    def lost(self) -> Signal:
        """Is set when it is lost."""
        if self.loss is not None:
            self._lost.set()
        signal: Signal = self._lost
        return signal

    @property
    def valid_for(self) -> float:
        """For how many seconds it is exclusive from now on unless it is renewed; 0 once it is lost or ended."""
        return 0.0 if self.loss is not None or self._ended else max(0.0, self._until - now())

    @property
    def loss(self) -> LeaseLost | None:
        """Why it is lost; `None` while it is held."""
        if not self._is_mine():
            return LeaseLost("forked", "it belongs to the process that forked this one", self._names)
        self._is_over()
        return self._loss

    def check(self) -> None:
        """Raises :class:`LeaseLost` once it is lost. Call it before each step of the work."""
        if (why := self.loss) is not None:
            # It is raised often, and would keep each frame that it came through.
            raise why.with_traceback(None)

    def _is_mine(self) -> bool:
        return self._process == os.getpid()

    def _is_over(self) -> bool:
        """Whether it has ended or is lost; makes known a loss that the clock alone shows."""
        moment = now()
        if not self._ended and self._loss is None and moment >= self._until - lead(self._ttl):
            reason = "paused" if moment >= self._until else "unrenewed"
            self._tell(LeaseLost(reason, f"it was not renewed in time{self._why}", self._names))
        return self._ended or self._loss is not None

    def _tell(self, why: LeaseLost) -> None:
        """Makes the loss known, unless it is or the program has ended it."""
        with self._telling:
            if self._ended or self._loss is not None:
                return
            self._loss = why
        log.warning("%s", why)
        if self._loop is None:
            self._lost.set()
            if self._on_lost is not None:
                # It may take its time, and nothing waits for it.
                threading.Thread(target=self._call, args=[why], name="keylatch lost", daemon=True).start()
            return
        try:
            self._loop.call_soon_threadsafe(self._lost.set)
            self._loop.call_soon_threadsafe(self._call, why)
        except RuntimeError:
            log.debug("the event loop of %s is closed", self._names)

    def _call(self, why: LeaseLost) -> None:
        called = None
        with self._logged():
            called = self._on_lost(why) if self._on_lost is not None else None
        if inspect.isawaitable(called):
            if self._loop is None:
                asyncio.run(self._awaited(called))
            else:
                self._calling = self._loop.create_task(self._awaited(called))

    async def _awaited(self, called: Awaitable[Any]) -> None:
        with self._logged():
            await called

    @contextmanager
    def _logged(self) -> Generator[None]:
        try:
            yield
        except Exception:
            log.exception("on_lost of %s raised", self._names)

    def _end(self) -> bool:
        """Ends it in this process; whether there is anything to say to the service."""
        if not self._is_mine():
            return False
        with self._telling:
            self._ended = True
        return True

    def _watch(self, work: Callable[[], Awaitable[object]]) -> None:
        """Has the background carry this out until it is over, in place of what it did, once a renewal is due."""
        self._unwatch()
        due = min(self._since + self._ttl / 3, self._until - lead(self._ttl))
        self._watching = background().later(due, work)
        self._watching.add_done_callback(unheard)

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _failed(self, error: Exception) -> None:
        """Notes why it is not renewed, and says so where that is no failure of the network."""
        self._why = f": {error}"
        if not isinstance(error, Unreachable):
            log.exception("a renewal of %s failed", self._names)

    def _renewal(self, until: float) -> Request:
        raise NotImplementedError

    def _renewed(self, answer: Answer) -> float:
        raise NotImplementedError

    async def _renew(self) -> None:
        """Renews at each third of the TTL until it is over."""
        due = self._since + self._ttl / 3
        while True:
            give_up = self._until - lead(self._ttl)
            await self._transport.sleep_until(min(due, give_up))
            if self._is_over():
                return
            since = self._since
            try:
                answer = await send(self._transport, self._renewal(give_up))
                until = self._renewed(answer)
                # What came after the end makes nothing valid again, and what came after `extend` is too old.
                if not self._is_over() and self._since == since:
                    self._since, self._until, self._why = answer.sent, until, ""
                due = self._since + self._ttl / 3
            except Problem as problem:
                if (why := loss(problem, self._names)) is not None:
                    return self._tell(why)
                self._why, due = f": {problem}", now() + self._carrier.retrying.pause(problem)
            except Exception as error:
                self._failed(error)
                due = now() + self._carrier.retrying.pause()

    async def _asked(self, request: Request) -> Answer:
        """The answer to a request; a problem that says that it is lost makes the loss known."""
        try:
            return await ask(self._carrier, request)
        except Problem as problem:
            if (why := loss(problem, self._names)) is None:
                raise
            self._tell(why)
            raise why from problem


class LeaseState(Watched[Signal]):
    """What is known of a lease, in a thread or in a task."""

    def __init__(self, transport: Transport, grant: Grant, on_lost: OnLost | None, on_end: Callable[[], None]) -> None:
        self._claim, self._grant, self._on_end = grant.claim, grant, on_end
        super().__init__(transport, self._claim.names, self._claim.ttl, grant.until, on_lost)
        self._reading: Future[None] | None = None
        if grant.events is None:
            self._watch(self._renew)
        else:
            self._reading = submit(self._read(grant.events))
            self._watch(self._outlast)

    @property
    def name(self) -> str:
        """The lock; of several, the first."""
        return self._grant.locks[0].name

    @property
    def fencing_token(self) -> int:
        """Larger than that of every earlier grant that this one cannot be held together with.

        The resource remembers the largest that it has seen, and refuses a smaller one.
        """
        return self._grant.locks[0].fencing_token

    @property
    def fencing_tokens(self) -> dict[str, int]:
        return {lock.name: lock.fencing_token for lock in self._grant.locks}

    @property
    def slot(self) -> int | None:
        """Which of the places is this lease's, from 0, where the lock was asked for with a number of them."""
        return self._grant.locks[0].slot

    @property
    def slots(self) -> dict[str, int | None]:
        return {lock.name: lock.slot for lock in self._grant.locks}

    @property
    def token(self) -> str:
        """The secret that proves the lease, for a program that enters the lock again."""
        return self._claim.token

    def check(self) -> None:
        """Raises :class:`LeaseLost` once it is lost or released. Call it before each step of the work."""
        super().check()
        if self._ended:
            raise LeaseLost("released", "the program has released it", self._names)

    def _renewal(self, until: float) -> Request:
        return self._claim.renewal(until)

    def _renewed(self, answer: Answer) -> float:
        return self._claim.until(answer)

    async def _extend(self, ttl: float | None) -> None:
        self.check()
        claim = self._claim if ttl is None else replace(self._claim, ttl=ttl)
        answer = await self._asked(claim.renewal())
        until = claim.until(answer)
        if not self._is_over():
            self._claim, self._ttl, self._since, self._until = claim, claim.ttl, answer.sent, until
            self._watch(self._outlast if claim.is_stream else self._renew)

    async def _released(self) -> bool:
        try:
            return await release(self._carrier, self._claim)
        finally:
            # Not before: without its stream the service would release a hold by itself.
            self._unwatch()
            if self._reading is not None:
                self._reading.cancel()

    def _left(self, was_held: bool, error: BaseException | None) -> None:
        if error is None and self._is_mine():
            if self.loss is not None:
                raise self.loss
            if not was_held:
                raise LeaseLost("expired", "it was over before it was released", self._names)

    async def _read(self, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                if event.type == "renewed" and not self._is_over():
                    valid = event.data["waited_ms"] + event.data["valid_for_ms"]
                    self._until = self._grant.sent + valid / 1000
                elif event.type == "lost":
                    reason, detail = str(event.data.get("reason")), str(event.data.get("detail"))
                    self._tell(lost(reason, detail, self._names, event.data))
        except Exception as error:
            self._failed(error)
        self._tell(LeaseLost("unreachable", f"the stream has ended{self._why}", self._names))

    async def _outlast(self) -> None:
        """Sees that events renew a hold in time. Where none does, it is lost, but exclusive until its validity ends:
        its stream stays open until then, because the service frees the lock with the stream."""
        while not self._is_over():
            await self._transport.sleep_until(self._until - lead(self._ttl))
        await self._transport.sleep_until(self._until)
        await release(self._transport, self._claim)


class Lease(LeaseState[threading.Event]):
    """A lease of threads. `lost` is set when it is lost."""

    _event = threading.Event

    def release(self) -> bool:
        """Releases; whether the lease was still held."""
        try:
            return self._end() and run(self._released())
        finally:
            self._on_end()

    def extend(self, ttl: float | None = None) -> None:
        """Renews at once; with a `ttl` (in seconds), that is the TTL from now on."""
        run(self._extend(ttl))

    def _leave(self, error: BaseException | None) -> None:
        self._left(self.release(), error)


class AsyncLease(LeaseState[asyncio.Event]):
    """A lease of asyncio. `lost` is set when it is lost."""

    _event = asyncio.Event

    async def release(self) -> bool:
        """Releases, also where the task that waits for it is cancelled; whether the lease was still held."""
        return await self._release(None)

    async def _release(self, error: BaseException | None) -> bool:
        try:
            return self._end() and bool(await self._transport.ended(self._released(), error))
        finally:
            self._on_end()

    async def extend(self, ttl: float | None = None) -> None:
        await call(self._extend(ttl))

    async def _leave(self, error: BaseException | None) -> None:
        self._left(await self._release(error), error)
