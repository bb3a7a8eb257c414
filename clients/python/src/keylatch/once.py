"""Doing a thing once, under an idempotency key."""

from __future__ import annotations

import asyncio
import base64
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlencode

from .driver import Transport, call, run
from .errors import KeylatchError, LeaseLost, NothingDone, Unreachable
from .lease import OnLost, Signal, Watched
from .lock import AsyncBlock, Block, Entry
from .protocol import NOT_OURS, Answer, Carrier, Request, ask, fresh, persist, plain, send

Ended = TypeVar("Ended")
Body = str | bytes | None
Headers = Mapping[str, str | list[str]] | None
#: What the service says of a run, and until when that is valid.
Begun = tuple[Mapping[str, Any], float]
OnCrash = Literal["unknown", "rerun"]


@dataclass(frozen=True)
class KeptAnswer:
    """What the thing came to when it was done. The body is `str`, or `bytes` where it is not text."""

    status: int
    headers: dict[str, list[str]]
    body: str | bytes | None

    @classmethod
    def of(cls, document: dict[str, Any]) -> KeptAnswer:
        binary = document.get("body_base64")
        body = document.get("body") if binary is None else base64.b64decode(binary)
        return cls(int(document["status"]), dict(document.get("headers", {})), body)


def completion(status: int, json: Any, body: Body, headers: Headers) -> dict[str, Any]:
    """What a run is completed with, as the API takes it."""
    answer: dict[str, Any] = {"status": status}
    if headers:
        answer["headers"] = dict(headers)
    if isinstance(body, bytes):
        return answer | {"body_base64": base64.b64encode(body).decode()}
    return answer | ({"json": json} if body is None and json is not None else {"body": body or ""})


@dataclass(frozen=True)
class Intent:
    """A key, what it stands for, and the token that completes it."""

    key: str
    body: Mapping[str, Any]
    scope: Mapping[str, str]
    lease: float
    wait: float | None
    token: str = field(default="", repr=False)

    def request(self, method: str, body: Any = None, step: str = "") -> Request:
        query = f"?{urlencode(self.scope)}" if self.scope else ""
        path = f"/v1/idempotency/{plain(self.key)}{step}{query}"
        return Request(method, path, body, self.token, gives="" if step == "/renew" else "fencing_token")


def reason_of(error: BaseException) -> str:
    """An exception in a line, as the service takes it."""
    line = "".join(char if char.isprintable() else " " for char in f"{type(error).__name__}: {error}")
    return line.encode()[:256].decode(errors="ignore")


class RunState(Watched[Signal], Generic[Signal, Ended]):
    """What came of beginning: `answer` is what it came to earlier, and `None` where it is to be done now."""

    def __init__(self, transport: Transport, intent: Intent, begun: Begun, on_lost: OnLost | None) -> None:
        document, until = begun
        super().__init__(transport, (intent.key,), intent.lease, until, on_lost)
        self._intent = intent
        self._is_left = False
        self.fencing_token = int(document["fencing_token"])
        #: Whether it is to be done now.
        self.begun = document.get("state") != "done"
        done = None if self.begun else document.get("answer")
        self.answer = KeptAnswer.of(done) if done else None
        if self.begun:
            self._watch(self._renew)
        else:
            self._ended = True

    def _carry(self, talk: Coroutine[Any, Any, None], error: BaseException | None = None) -> Ended:
        """Carries the conversation out, in the way of a thread or of a task."""
        raise NotImplementedError

    def complete(self, json: Any = None, *, status: int = 200, body: Body = None, headers: Headers = None) -> Ended:
        """Keeps this as the answer of every repeat."""
        return self._carry(self._say("PUT", completion(status, json, body, headers)))

    def abandon(self) -> Ended:
        """Says that nothing was done, so that a repeat runs."""
        return self._carry(self._say("DELETE"))

    def fail(self, reason: str) -> Ended:
        """Says that it failed half way: its outcome is unknown now, and a person settles it."""
        return self._carry(self._say("POST", {"reason": reason}, "/fail"))

    def leave(self) -> None:
        """Says nothing, and renews no more: the outcome is unknown once the lease is over."""
        if self._end():
            self._unwatch()

    def _leave(self, error: BaseException | None) -> Ended:
        return self._carry(self._ending(error), error)

    def _renewal(self, until: float) -> Request:
        return replace(self._intent.request("POST", step="/renew"), until=until)

    def _renewed(self, answer: Answer) -> float:
        return answer.sent + self._ttl

    async def _say(self, method: str, body: Any = None, step: str = "") -> None:
        """Ends the run with what the service is told."""
        if not self._is_mine():
            self.check()
        self.leave()
        try:
            await self._asked(self._intent.request(method, body, step))
        except KeylatchError as error:
            # It goes on: the block may say something else, and its end does.
            self._ended = self._is_left
            if isinstance(error, LeaseLost):
                self._tell(error)
            elif not self._is_left:
                self._watch(self._renew)
            raise

    async def _ending(self, error: BaseException | None) -> None:
        """What the end of a block says of its run."""
        if not self._is_mine():
            return
        try:
            if self._ended:
                pass
            elif error is None:
                await self._say("PUT", {"status": 204})
            elif isinstance(error, NothingDone) or self._intent.body.get("on_crash") == "rerun":
                await self._say("DELETE")
            else:
                await self._say("POST", {"reason": reason_of(error)}, "/fail")
        finally:
            self._is_left = True
            self.leave()


class SyncRun(RunState[threading.Event, None]):
    """A run of a thread: `answer` is what it came to earlier, and `None` where it is to be done now."""

    _event = threading.Event

    def _carry(self, talk: Coroutine[Any, Any, None], error: BaseException | None = None) -> None:
        run(talk)


class AsyncRun(RunState[asyncio.Event, Awaitable[None]]):
    """A run of asyncio: as one of a thread, but `complete`, `abandon` and `fail` are awaited."""

    _event = asyncio.Event

    async def _carry(self, talk: Coroutine[Any, Any, None], error: BaseException | None = None) -> None:
        await self._transport.ended(talk, error)


class AsyncOnce(AsyncBlock[AsyncRun]):
    """A thing to be done once, by `async with`, which gives a run. Tasks may share it; each has a run of its own.

    A block that ends without an exception and has not ended the run completes it with 204. After an exception the
    outcome is unknown, and a person settles it; after :class:`NothingDone`, or where a rerun was said to be safe, the
    key is free.
    """

    def __init__(self, transport: Transport, intent: Intent, on_lost: OnLost | None, token: str | None) -> None:
        super().__init__(token)
        self._transport = transport
        self._intent = intent
        self._on_lost = on_lost

    def _undo(self, intent: Intent, begun: Begun | None = None) -> None:
        """Frees the key of a run that the caller does not get: nothing was done. Under a token of the caller's own that
        may be another run."""
        if self._token is None:
            self._transport.say(ask(self._transport, intent.request("DELETE")))

    async def _get_async(self, entry: Entry) -> AsyncRun:
        intent = replace(self._intent, token=entry.token)
        undo = partial(self._undo, intent)
        begun = await call(begin(self._transport, intent, undo), undo)
        return AsyncRun(self._transport, intent, begun, self._on_lost)


class Once(AsyncOnce, Block[SyncRun, AsyncRun]):
    """The same also for threads, by `with`."""

    def _get(self, entry: Entry, **changes: Any) -> SyncRun:
        intent = replace(self._intent, token=entry.token)
        begun = run(begin(self._transport.in_thread, intent, partial(self._undo, intent)))
        return SyncRun(self._transport, intent, begun, self._on_lost)


async def begin(carrier: Carrier, intent: Intent, undo: Callable[[], object]) -> Begun:
    async def attempt(wait: float, left: float | None, may_be_done: bool) -> Begun:
        request = intent.request("POST", intent.body)
        answer = await send(carrier, replace(request, prefer=math.ceil(wait), left=left))
        document = answer.document
        if document.get("state") == "done":
            return document, answer.sent
        if document.get("token") != intent.token:
            raise Unreachable(NOT_OURS, sent=True)
        # Less than the whole, where an earlier try has begun it.
        until = answer.sent + document.get("lease_expires_in_ms", intent.lease * 1000) / 1000
        renewal = intent.request("POST", None, "/renew")
        return document, await fresh(carrier, until, intent.lease, renewal, lambda renewed: renewed.sent + intent.lease)

    return await persist(carrier, attempt, intent.wait, undo)
