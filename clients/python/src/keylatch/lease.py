"""What the program holds, and what watches over it: a thread, or a task of asyncio.

A lease counts its validity from the sending of each request, and counts as lost a quarter of its TTL (at most
10 s) before its end, so that the program stops before another client can have the lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from .driver import Stopped, Transport, run, run_async
from .errors import KeylatchError, LeaseLost, Unreachable
from .events import Event
from .protocol import Claim, Conversation, Grant, Pause, lead, now, release, renew

OnLost = Callable[["LeaseLost"], None]


class LeaseState:
    """What is known of a lease, in a thread or in a task."""

    def __init__(self, claim: Claim, grant: Grant, on_lost: OnLost | None) -> None:
        self._claim = claim
        self._grant = grant
        self._until = grant.until
        self._on_lost = on_lost
        self._loss: LeaseLost | None = None

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
        """The fencing token of each lock, by name."""
        return {lock.name: lock.fencing_token for lock in self._grant.locks}

    @property
    def slot(self) -> int | None:
        """Which of the places is this lease's, from 0, where the lock was asked for with a number of them."""
        return self._grant.locks[0].slot

    @property
    def slots(self) -> dict[str, int | None]:
        """The slot of each lock, by name."""
        return {lock.name: lock.slot for lock in self._grant.locks}

    @property
    def token(self) -> str:
        """The secret that proves the lease, for a program that enters the lock again."""
        return self._claim.token

    @property
    def valid_for(self) -> float:
        """For how many seconds the lease is exclusive from now on unless it is renewed."""
        return max(0.0, self._until - now())

    @property
    def loss(self) -> LeaseLost | None:
        """Why the lease is lost; `None` while it is held."""
        return self._loss

    def check(self) -> None:
        """Raises :class:`LeaseLost` once the lease is lost. Call it before each step of the work."""
        if self._loss is not None:
            raise self._loss

    def _renewed(self, until: float) -> None:
        self._until = until

    def _lose(self, loss: LeaseLost) -> None:
        self._loss = loss
        if self._on_lost is not None:
            self._on_lost(loss)

    def _tell(self, loss: LeaseLost) -> None:
        """Notes that the lease is lost, unless that is known or the program has released it."""
        raise NotImplementedError

    def _outlast(self) -> Conversation[None]:
        """Sees that events renew a hold in time. Where none does, it is lost, but exclusive until its validity ends:
        its stream stays open until then, because the service frees the lock with the stream."""
        while (give_up := self._until - lead(self._claim.ttl)) > now() and self._loss is None:
            yield Pause(give_up)
        self._tell(LeaseLost("unrenewed", "no renewal came in time"))
        yield Pause(self._until)
        yield from release(self._claim)

    def _follow(self, event: Event, sent: float) -> None:
        """Takes over what the stream of a hold says."""
        if event.type == "renewed" and self._loss is None:
            self._renewed(sent + (event.data["waited_ms"] + event.data["valid_for_ms"]) / 1000)
        elif event.type == "lost":
            self._tell(LeaseLost(str(event.data.get("reason")), str(event.data.get("detail"))))


class Lease(LeaseState):
    """A lease that a thread watches over. `lost` is set when it is lost."""

    def __init__(self, transport: Transport, claim: Claim, grant: Grant, on_lost: OnLost | None) -> None:
        super().__init__(claim, grant, on_lost)
        self._transport = transport
        self._stop = threading.Event()
        self._telling = threading.Lock()
        self.lost = threading.Event()

    def release(self) -> bool:
        """Releases; whether the lease was still held."""
        self._stop.set()
        return run(self._transport, release(self._claim))

    def _renew(self) -> None:
        """Has a thread renew the lease until it is released or lost."""
        self._start(self._renewals())

    def _renewals(self) -> Conversation[None]:
        self._tell((yield from renew(self._claim, self._until, self._renewed)))

    def _hold(self, events: Iterator[Event], sent: float) -> None:
        """Reads the stream that holds the lock to its end, and has a thread see that events come in time."""
        self._start(self._outlast())
        why = "the stream has ended"
        try:
            for event in events:
                self._follow(event, sent)
        except Unreachable as error:
            why = str(error)
        self._tell(LeaseLost("unreachable", why))

    def _tell(self, loss: LeaseLost) -> None:
        with self._telling:
            if self._stop.is_set() or self.lost.is_set():
                return
            self._lose(loss)
            self.lost.set()

    def _start(self, talk: Conversation[None]) -> None:
        def watch() -> None:
            try:
                run(self._transport, talk, self._stop)
            except (Stopped, KeylatchError):
                pass

        threading.Thread(target=watch, name=f"keylatch {self.name}", daemon=True).start()


class AsyncLease(LeaseState):
    """A lease that a task watches over. `lost` is set when it is lost."""

    def __init__(self, transport: Transport, claim: Claim, grant: Grant, on_lost: OnLost | None) -> None:
        super().__init__(claim, grant, on_lost)
        self._transport = transport
        self._tasks: list[asyncio.Task[None]] = []
        self._is_released = False
        self.lost = asyncio.Event()

    async def release(self) -> bool:
        """Releases; whether the lease was still held."""
        self._is_released = True
        try:
            return await run_async(self._transport, release(self._claim))
        finally:
            # Not before: without its stream the service would release a hold by itself.
            for task in self._tasks:
                task.cancel()

    def _renew(self) -> None:
        self._start(self._renewals())

    async def _renewals(self) -> None:
        self._tell(await run_async(self._transport, renew(self._claim, self._until, self._renewed)))

    def _hold(self, events: AsyncIterator[Event], sent: float) -> None:
        self._start(self._read(events, sent))
        self._start(self._see_to_its_end())

    async def _read(self, events: AsyncIterator[Event], sent: float) -> None:
        """Reads the stream that holds the lock to its end."""
        why = "the stream has ended"
        try:
            async for event in events:
                self._follow(event, sent)
        except Unreachable as error:
            why = str(error)
        self._tell(LeaseLost("unreachable", why))

    async def _see_to_its_end(self) -> None:
        try:
            await run_async(self._transport, self._outlast())
        except KeylatchError:
            pass

    def _tell(self, loss: LeaseLost) -> None:
        if not self._is_released and not self.lost.is_set():
            self._lose(loss)
            self.lost.set()

    def _start(self, watch: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(watch, name=f"keylatch {self.name}"))
