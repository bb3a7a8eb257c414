"""Doing a thing once, under an idempotency key."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .driver import Stopped, Transport, run, run_async
from .errors import KeylatchError, Unreachable
from .protocol import PAUSE, Answer, Conversation, Pause, Request, ask, now, plain


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


def completion(
    status: int, json: Any, body: str | bytes | None, headers: Mapping[str, str | list[str]] | None
) -> dict[str, Any]:
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
    fingerprint: str | None
    lease: float
    wait: float
    token: str

    @property
    def path(self) -> str:
        return f"/v1/idempotency/{plain(self.key)}"

    def begin(self) -> Conversation[Answer]:
        body: dict[str, Any] = {"lease_ms": round(self.lease * 1000)}
        if self.fingerprint is not None:
            body["fingerprint"] = self.fingerprint
        return ask(Request("POST", self.path, body, self.token), self.wait)

    def complete(self, answer: dict[str, Any]) -> Conversation[Answer]:
        return ask(Request("PUT", self.path, answer, self.token))

    def abandon(self) -> Conversation[Answer]:
        return ask(Request("DELETE", self.path, None, self.token))

    def renew(self) -> Conversation[None]:
        """Keeps the run from being over while the program carries it out."""
        due = now() + self.lease / 3
        while True:
            yield Pause(due)
            due = now() + self.lease / 3
            try:
                answer = yield Request("POST", f"{self.path}/renew", None, self.token)
                if not answer.is_success and not answer.problem().is_passing:
                    return
            except Unreachable:
                due = now() + PAUSE


class Run:
    """What came of beginning: `answer` is what it came to earlier, and `None` where it is to be done now."""

    def __init__(self, intent: Intent, document: dict[str, Any]) -> None:
        self._intent = intent
        self._ended = False
        self.fencing_token = int(document["fencing_token"])
        done = document.get("answer") if document.get("state") == "done" else None
        self.answer = KeptAnswer.of(done) if done else None
        #: Whether it is to be done now.
        self.begun = document.get("state") != "done"

    def _completion(self, answer: dict[str, Any]) -> Conversation[Answer]:
        self._ended = True
        return self._intent.complete(answer)

    def _abandonment(self) -> Conversation[Answer]:
        self._ended = True
        return self._intent.abandon()


class SyncRun(Run):
    """A :class:`Run` in a thread."""

    _transport: Transport

    def complete(
        self,
        json: Any = None,
        *,
        status: int = 200,
        body: str | bytes | None = None,
        headers: Mapping[str, str | list[str]] | None = None,
    ) -> None:
        """Keeps this as the answer of every repeat."""
        run(self._transport, self._completion(completion(status, json, body, headers)))

    def abandon(self) -> None:
        """Says that nothing was done, so that a repeat runs."""
        run(self._transport, self._abandonment())


class AsyncRun(Run):
    """A :class:`Run` of asyncio."""

    _transport: Transport

    async def complete(
        self,
        json: Any = None,
        *,
        status: int = 200,
        body: str | bytes | None = None,
        headers: Mapping[str, str | list[str]] | None = None,
    ) -> None:
        """Keeps this as the answer of every repeat."""
        await run_async(self._transport, self._completion(completion(status, json, body, headers)))

    async def abandon(self) -> None:
        """Says that nothing was done, so that a repeat runs."""
        await run_async(self._transport, self._abandonment())


class Once:
    """A thing to be done once, by `with` or `async with`, which give a run.

    A block that ends without an exception and has not completed the run completes it with 204. After an
    exception the outcome is unknown unless the block has abandoned the run: a person settles it.
    """

    def __init__(self, transport: Transport, intent: Intent) -> None:
        self._transport = transport
        self._intent = intent
        self._stop = threading.Event()
        self._run: SyncRun | None = None
        self._async_run: AsyncRun | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> SyncRun:
        answer = run(self._transport, self._intent.begin())
        self._run = SyncRun(self._intent, dict(answer.document))
        self._run._transport = self._transport
        if self._run.begun:
            threading.Thread(target=self._renew, name="keylatch once", daemon=True).start()
        return self._run

    def _renew(self) -> None:
        try:
            run(self._transport, self._intent.renew(), self._stop)
        except (Stopped, KeylatchError):
            pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        assert self._run is not None
        if error is None and self._run.begun and not self._run._ended:
            self._run.complete(status=204)

    async def __aenter__(self) -> AsyncRun:
        answer = await run_async(self._transport, self._intent.begin())
        self._async_run = AsyncRun(self._intent, dict(answer.document))
        self._async_run._transport = self._transport
        if self._async_run.begun:
            self._task = asyncio.create_task(run_async(self._transport, self._intent.renew()))
        return self._async_run

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
        assert self._async_run is not None
        if error is None and self._async_run.begun and not self._async_run._ended:
            await self._async_run.complete(status=204)
