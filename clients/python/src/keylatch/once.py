"""Doing a thing once, under an idempotency key."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlencode

from .driver import Transport, call, run, run_async, unheard
from .errors import KeylatchError, NothingDone, Problem
from .lease import AsyncWatched, OnLost, Signal, SyncWatched, Watched
from .lock import AsyncBlock, Block, Entry, undone
from .protocol import Answer, Conversation, Request, ask, loss, now, plain

Ended = TypeVar("Ended")
Body = str | bytes | None
Headers = Mapping[str, str | list[str]] | None
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

    @property
    def may_rerun(self) -> bool:
        return self.body.get("on_crash") == "rerun"


def reason_of(error: BaseException) -> str:
    """An exception in a line, as the service takes it."""
    line = "".join(char if char.isprintable() else " " for char in f"{type(error).__name__}: {error}")
    return line.encode()[:256].decode(errors="ignore")


class RunState(Watched[Signal], Generic[Signal, Ended]):
    """What came of beginning: `answer` is what it came to earlier, and `None` where it is to be done now."""

    def __init__(self, transport: Transport, intent: Intent, answer: Answer, on_lost: OnLost | None) -> None:
        super().__init__(transport, answer.sent + intent.lease, on_lost)
        document = answer.document
        self._intent = intent
        self._ttl, self._names = intent.lease, (intent.key,)
        self._is_left = False
        self.fencing_token = int(document["fencing_token"])
        #: Whether it is to be done now.
        self.begun = document.get("state") != "done"
        done = None if self.begun else document.get("answer")
        self.answer = KeptAnswer.of(done) if done else None
        if self.begun:
            self._watch(self._renew())
        else:
            self._ended = True

    def _carry(self, talk: Conversation[None], error: BaseException | None = None) -> Ended:
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
        self._end()
        self._unwatch()

    def _renewal(self, until: float) -> Request:
        return replace(self._intent.request("POST", step="/renew"), until=until)

    def _renewed(self, answer: Answer) -> float:
        return answer.sent + self._ttl

    def _say(self, method: str, body: Any = None, step: str = "") -> Conversation[None]:
        """Ends the run with what the service is told."""
        if not self._is_mine():
            self.check()
        self.leave()
        try:
            yield from ask(self._intent.request(method, body, step))
        except KeylatchError as error:
            # It goes on: the block may say something else, and its end does.
            self._ended = self._is_left
            if isinstance(error, Problem) and (why := loss(error, self._names)) is not None:
                self._tell(why)
                raise why from error
            if not self._is_left:
                self._watch(self._renew())
            raise

    def _ending(self, error: BaseException | None) -> Conversation[None]:
        """What the end of a block says of its run."""
        if not self._is_mine():
            return
        try:
            if self._ended:
                pass
            elif error is None:
                yield from self._say("PUT", {"status": 204})
            elif isinstance(error, NothingDone) or self._intent.may_rerun:
                yield from self._say("DELETE")
            else:
                yield from self._say("POST", {"reason": reason_of(error)}, "/fail")
        finally:
            self._is_left = True
            self.leave()


class SyncRun(RunState[threading.Event, None], SyncWatched):
    """A run of a thread: `answer` is what it came to earlier, and `None` where it is to be done now."""

    def _carry(self, talk: Conversation[None], error: BaseException | None = None) -> None:
        run(self._transport, talk)


class AsyncRun(RunState[asyncio.Event, Awaitable[None]], AsyncWatched):
    """A run of asyncio: as one of a thread, but `complete`, `abandon` and `fail` are awaited."""

    async def _carry(self, talk: Conversation[None], error: BaseException | None = None) -> None:
        await self._transport.ended(run_async(self._transport, talk), error)


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

    def _undo(self, intent: Intent) -> None:
        """Frees the key of a run that the caller does not get: nothing was done."""
        self._transport.end(run_async(self._transport, ask(intent.request("DELETE")))).add_done_callback(unheard)

    async def _get_async(self, entry: Entry) -> AsyncRun:
        intent = replace(self._intent, token=entry.token)
        talk = undone(begin(intent), lambda: self._undo(intent))
        answer = await call(run_async(self._transport, talk), lambda _: self._undo(intent))
        return AsyncRun(self._transport, intent, answer, self._on_lost)

    async def _leave_async(self, got: AsyncRun, error: BaseException | None) -> None:
        await got._carry(got._ending(error), error)


class Once(AsyncOnce, Block[SyncRun, AsyncRun]):
    """The same also for threads, by `with`."""

    def _get(self, entry: Entry, **changes: Any) -> SyncRun:
        intent = replace(self._intent, token=entry.token)
        answer = run(self._transport, undone(begin(intent), lambda: self._undo(intent)))
        return SyncRun(self._transport, intent, answer, self._on_lost)

    def _leave(self, got: SyncRun, error: BaseException | None) -> None:
        got._carry(got._ending(error))


def begin(intent: Intent) -> Conversation[Answer]:
    """Begins, and renews before a run is used that was waited for so long that little of its lease is left."""
    answer = yield from ask(intent.request("POST", intent.body), intent.wait)
    if answer.document.get("state") == "in-flight" and now() - answer.sent > intent.lease / 2:
        renewed = yield from ask(intent.request("POST", None, "/renew"))
        return replace(answer, sent=renewed.sent)
    return answer
