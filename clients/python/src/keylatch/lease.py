"""What the program holds, and what watches over it: a thread, or a task of asyncio.

A lease counts its validity from the sending of each request, and counts as lost a quarter of its TTL (at most
10 s) before its end, so that the program stops before another client can have the lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from .driver import Stopped, Transport, run, run_async
from .errors import LeaseLost, Unreachable
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

    def _expire(self) -> Conversation[LeaseLost]:
        """Waits until nothing has renewed the lease in time."""
        while (give_up := self._until - lead(self._claim.ttl)) > now():
            yield Pause(give_up)
        return LeaseLost("unrenewed", "no renewal came in time")

    def _follow(self, event: Event, sent: float) -> LeaseLost | None:
        """Takes over what the stream of a hold says; why the lease is lost, if it says so."""
        if event.type == "renewed":
            self._renewed(sent + (event.data["waited_ms"] + event.data["valid_for_ms"]) / 1000)
        elif event.type in ("lost", "refused"):
            return LeaseLost(str(event.data.get("reason")), str(event.data.get("detail")))
        return None


class Lease(LeaseState):
    """A lease that a thread watches over. `lost` is set when it is lost."""

    def __init__(self, transport: Transport, claim: Claim, grant: Grant, on_lost: OnLost | None) -> None:
        super().__init__(claim, grant, on_lost)
        self._transport = transport
        self._stop = threading.Event()
        self.lost = threading.Event()

    def release(self) -> bool:
        """Releases; whether the lease was still held."""
        self._stop.set()
        return run(self._transport, release(self._claim))

    def _renew(self) -> None:
        """Has a thread renew the lease until it is released or lost."""
        self._start(lambda: run(self._transport, self._renewals(), self._stop))

    def _renewals(self) -> Conversation[LeaseLost]:
        return renew(self._claim, self._until, self._renewed)

    def _hold(self, events: Iterator[Event], sent: float) -> None:
        """Has one thread read the stream that holds the lock, and another see that it is read."""
        self._start(lambda: self._read(events, sent))
        self._start(lambda: run(self._transport, self._expire(), self._stop))

    def _read(self, events: Iterator[Event], sent: float) -> LeaseLost:
        try:
            for event in events:
                if (loss := self._follow(event, sent)) is not None:
                    return loss
        except Unreachable as error:
            return LeaseLost("unreachable", str(error))
        return LeaseLost("unreachable", "the stream has ended")

    def _start(self, watch: Callable[[], LeaseLost]) -> None:
        def until_lost() -> None:
            try:
                loss = watch()
            except Stopped:
                return
            if not self._stop.is_set() and not self.lost.is_set():
                self._lose(loss)
                self.lost.set()

        threading.Thread(target=until_lost, name=f"keylatch {self.name}", daemon=True).start()


class AsyncLease(LeaseState):
    """A lease that a task watches over. `lost` is set when it is lost."""

    def __init__(self, transport: Transport, claim: Claim, grant: Grant, on_lost: OnLost | None) -> None:
        super().__init__(claim, grant, on_lost)
        self._transport = transport
        self._task: asyncio.Task[None] | None = None
        self._is_released = False
        self.lost = asyncio.Event()

    async def release(self) -> bool:
        """Releases; whether the lease was still held."""
        self._is_released = True
        try:
            return await run_async(self._transport, release(self._claim))
        finally:
            # Not before: without its stream the service would release a hold by itself.
            if self._task is not None:
                self._task.cancel()

    def _renew(self) -> None:
        self._start(run_async(self._transport, renew(self._claim, self._until, self._renewed)))

    def _hold(self, events: AsyncIterator[Event], sent: float) -> None:
        self._start(self._read(events, sent))

    async def _read(self, events: AsyncIterator[Event], sent: float) -> LeaseLost:
        try:
            while True:
                left = self._until - lead(self._claim.ttl) - now()
                event = await asyncio.wait_for(anext(events), max(left, 0.0))
                if (loss := self._follow(event, sent)) is not None:
                    return loss
        except (TimeoutError, asyncio.TimeoutError):
            return LeaseLost("unrenewed", "no renewal came in time")
        except (Unreachable, StopAsyncIteration) as error:
            return LeaseLost("unreachable", str(error) or "the stream has ended")

    def _start(self, watch: Any) -> None:
        async def until_lost() -> None:
            loss = await watch
            if not self._is_released:
                self._lose(loss)
                self.lost.set()

        self._task = asyncio.create_task(until_lost(), name=f"keylatch {self.name}")
