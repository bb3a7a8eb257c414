"""Carries conversations out: by threads, and by asyncio."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from .errors import Unreachable
from .protocol import ANSWER_TIMEOUT, Answer, Conversation, Pause, Request, now

T = TypeVar("T")
#: What a clock that stands still during a sleep may miss of it at most.
STEP = 1.0
#: The service sends a comment more often than that while nothing happens (every 15 s by default).
SILENCE = 90.0
#: What httpx raises before it has sent anything.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class Stopped(Exception):
    """The program has released the lease, so that it is not renewed any more."""


@dataclass
class Transport:
    """How the service is reached, and as whom. The connections of threads and of event loops are apart."""

    url: str
    api_key: str | None = None
    ca: str | None = None
    cert: tuple[str, str] | None = None
    traceparent: Callable[[], str | None] | None = None
    #: For how long a stream may be silent before it counts as lost.
    silence: float = SILENCE
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _client: httpx.Client | None = None
    _clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    @classmethod
    def from_environment(cls, url: str | None, api_key: str | None, **others: Any) -> Transport:
        """The transport that these arguments say, and else the variables of the environment."""
        get = os.environ.get
        cert, key = get("KEYLATCH_CLIENT_CERT"), get("KEYLATCH_CLIENT_KEY")
        others["ca"] = others.get("ca") or get("KEYLATCH_CA")
        others["cert"] = others.get("cert") or ((cert, key) if cert and key else None)
        url = url or get("KEYLATCH_URL") or "http://127.0.0.1:7070"
        return cls(url.rstrip("/"), api_key or get("KEYLATCH_API_KEY"), **others)

    @property
    def socket(self) -> str | None:
        """The path of a Unix socket, for `unix:PATH`."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None

    def settings(self) -> dict[str, Any]:
        context: ssl.SSLContext | bool = True
        if self.ca or self.cert:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(*self.cert)
        base = "http://localhost" if self.socket else self.url
        return {"base_url": base, "verify": context, "headers": {"user-agent": "keylatch-python"}}

    def client(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                transport = httpx.HTTPTransport(uds=self.socket) if self.socket else None
                self._client = httpx.Client(transport=transport, limits=LIMITS, **self.settings())
            return self._client

    def async_client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            transport = httpx.AsyncHTTPTransport(uds=self.socket) if self.socket else None
            client = httpx.AsyncClient(transport=transport, limits=LIMITS, **self.settings())
            self._clients[loop] = client
        return client

    def arguments(self, request: Request) -> dict[str, Any]:
        headers = {}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        if request.token:
            headers["lock-token"] = request.token
        trace = self.traceparent and self.traceparent()
        if trace:
            headers["traceparent"] = trace
        return {
            "method": request.method,
            "url": request.path,
            "json": request.body,
            "headers": headers,
            "timeout": httpx.Timeout(request.timeout, connect=min(request.timeout, ANSWER_TIMEOUT)),
        }

    def send(self, request: Request) -> Answer:
        with no_answer():
            return answer_of(self.client().request(**self.arguments(request)))

    async def send_async(self, request: Request) -> Answer:
        with no_answer():
            sending = self.async_client().request(**self.arguments(request))
            # A trickle of bytes is no answer, so the time is that of the whole.
            return answer_of(await asyncio.wait_for(sending, request.timeout))

    @contextmanager
    def stream(self, request: Request) -> Iterator[httpx.Response]:
        with no_answer(), self.client().stream(**self.arguments(request)) as response:
            yield response

    @asynccontextmanager
    async def stream_async(self, request: Request) -> AsyncIterator[httpx.Response]:
        with no_answer():
            async with self.async_client().stream(**self.arguments(request)) as response:
                yield response

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    async def aclose(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


#: Waiters have a connection each.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30)


@contextmanager
def no_answer() -> Iterator[None]:
    """Says of an error of the connection whether anything was sent."""
    try:
        yield
    except UNSENT as error:
        raise Unreachable(f"the service cannot be reached: {error}", sent=False) from error
    except (httpx.HTTPError, TimeoutError, asyncio.TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise Unreachable(f"no answer came: {why}", sent=True) from error


def answer_of(response: httpx.Response) -> Answer:
    try:
        document = response.json() if response.content else {}
    except ValueError:
        document = {}
    seconds = response.headers.get("retry-after", "")
    retry_after = float(seconds) if seconds.isdecimal() else None
    return Answer(response.status_code, document if isinstance(document, dict) else {}, retry_after)


def run(transport: Transport, talk: Conversation[T], stop: threading.Event | None = None) -> T:
    """Carries a conversation out in this thread; :class:`Stopped` once `stop` is set."""
    stop = stop or threading.Event()
    try:
        step = next(talk)
        while True:
            try:
                step = talk.send(carry_out(transport, step, stop))
            except Unreachable as error:
                step = talk.throw(error)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def carry_out(transport: Transport, step: Request | Pause, stop: threading.Event) -> Any:
    if isinstance(step, Request):
        if stop.is_set():
            raise Stopped
        return transport.send(step)
    while (left := step.until - now()) > 0:
        if stop.wait(min(left, STEP)):
            raise Stopped
    return None


async def run_async(transport: Transport, talk: Conversation[T]) -> T:
    """Carries a conversation out in this task."""
    try:
        step = next(talk)
        while True:
            try:
                step = talk.send(await carry_out_async(transport, step))
            except Unreachable as error:
                step = talk.throw(error)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def carry_out_async(transport: Transport, step: Request | Pause) -> Any:
    if isinstance(step, Request):
        return await transport.send_async(step)
    while (left := step.until - now()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left, STEP))
    return None
