"""Carries requests out: in the caller's thread, and on the event loop of a thread that all clients share.

That loop renews every lease, reads every stream and does all I/O of asyncio. So a renewal does not wait for a loop that
is blocked, a release does not end with the task that began it, and no loop of the caller's owns a connection.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import math
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import httpcore
import httpx

from . import __version__
from .errors import BadSettings, Unreachable, check_passing
from .protocol import NOT_OURS, Answer, Event, Request, Retrying, now

T = TypeVar("T")
SendTo = Callable[[str, Request], Awaitable[Answer]]
log = logging.getLogger("keylatch")
# A program that asks for no log gets none on its standard error.
log.addHandler(logging.NullHandler())
#: What a clock that stands still during a sleep may miss of it at most.
STEP = 1.0
#: The service sends a comment more often than that while nothing happens (every 15 s by default).
SILENCE = 90.0
#: How many renewals are sent at once.
RENEWALS = 16
#: What has less left is not sent: its response would come too late, and it would hold up the next one.
TOO_LATE = 0.3
#: For how long a task that was cancelled waits for what it has to end; the rest goes on without it.
CANCELLED = 0.5
#: For how long the end of the program, or of a client, waits for the background.
LAST_MOMENT = 5.0
#: What httpx raises before it has sent anything.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
#: What it raises of a request that can never be sent.
UNWRITABLE = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError)
#: What each HTTP client is for, and how many connections it keeps; waiters have one each. Renewals have a client of
#: their own: httpx keeps none while waiters have more than may be kept, and looks through all for each request.
CLIENTS: dict[str, tuple[Any, Any, int]] = {
    "threads": (httpx.Client, httpx.HTTPTransport, 20),
    "tasks": (httpx.AsyncClient, httpx.AsyncHTTPTransport, 20),
    "renewals": (httpx.AsyncClient, httpx.AsyncHTTPTransport, RENEWALS),
}


class Background:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.gate = asyncio.Semaphore(RENEWALS)
        #: What is to begin at a time. It is looked through each second while there is any.
        self.due: dict[Future[Any], tuple[float, Callable[[], Awaitable[Any]]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = self._was_used = False
        threading.Thread(target=self.loop.run_forever, name="keylatch", daemon=True).start()

    def later(self, at: float, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Begins the work shortly before a time. What is over long before that, as most leases are, wakes no thread."""
        future: Future[T] = Future()
        if at - now() < 2 * STEP:
            return submit(work(), into=future)
        self.due[future], self._was_used = (at, work), True
        future.add_done_callback(lambda done: self.due.pop(done, None))
        if not self._is_looking:
            self._is_looking = True
            self.loop.call_soon_threadsafe(self._look)
        return future

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # From here on a thread has it look once more, or is seen below.
        self._is_looking, was_used, self._was_used = False, self._was_used, False
        for future, (at, work) in self.due.copy().items():
            if at - now() < 2 * STEP and self.due.pop(future, None) is not None:
                submit(work(), into=future)
        if self.due or was_used:
            self._is_looking = True
            self._timer = self.loop.call_later(STEP, self._look)


_guard = threading.Lock()
_background: Background | None = None
_transports: weakref.WeakSet[Transport] = weakref.WeakSet()
#: What belongs to the parent of this process: it is neither used nor closed here, which the parent would notice.
_parents: list[object] = []


def background() -> Background:
    global _background
    with _guard:
        if _background is None:
            _background = Background()
        return _background


def forget() -> None:
    """In a child that is forked: drops what the parent goes on to use."""
    global _guard, _background
    _parents.append(_background)
    _guard, _background = threading.Lock(), None
    for transport in list(_transports):
        transport.forget()


def close_all() -> None:
    """At the end of the program: says what is still to be said."""
    for transport in list(_transports):
        with suppress(Exception):
            transport.close()
    if _background is not None:
        with suppress(Exception):
            submit(cancel_all()).result(LAST_MOMENT)
        _background.loop.call_soon_threadsafe(_background.loop.stop)


async def cancel_all() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)
atexit.register(close_all)


def submit(work: Awaitable[T], undo: Callable[[T], object] | None = None, into: Future[T] | None = None) -> Future[T]:
    """Has the background carry the work out. Where nobody takes what it comes to, that is undone."""
    future: Future[T] = into or Future()
    loop = background().loop

    async def carry() -> None:
        try:
            result = await work
        except asyncio.CancelledError:
            future.cancel()
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(result)
            elif undo is not None:
                undo(result)

    def start() -> None:
        task = loop.create_task(carry())

        def cancel(done: Future[T]) -> None:
            if done.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(cancel)

    loop.call_soon_threadsafe(start)
    return future


async def call(work: Awaitable[T], undo: Callable[[T], object] | None = None) -> T:
    """What the background comes to, for a task that may be cancelled before."""
    future = submit(work, undo)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        untaken(future, undo)
        raise


def call_sync(work: Awaitable[T], undo: Callable[[T], object] | None = None) -> T:
    """The same for a thread that may be interrupted."""
    # Made before, because the interrupt may come before `submit` has returned.
    future: Future[T] = Future()
    try:
        return submit(work, undo, future).result()
    except BaseException:
        untaken(future, undo)
        raise


def untaken(future: Future[T], undo: Callable[[T], object] | None) -> None:
    """Cancels what nobody waits for any more. It may have come before."""
    if not future.cancel() and undo is not None:
        future.add_done_callback(lambda done: done.cancelled() or done.exception() or undo(done.result()))


def unheard(done: Any) -> None:
    """Says what has failed while nobody waits for it any more."""
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("the background was to tell the service something: %s", error)


@dataclass(eq=False)
class Transport:
    """How the service is reached, and as whom: the arguments of a client."""

    url: str | Sequence[str] | None
    api_key: str | None = field(repr=False)
    ca: str | None
    cert: tuple[str, str] | None
    traceparent: Callable[[], str | None] | None
    name: str | None
    retrying: Retrying
    silence: float
    http: Callable[[Callable[..., Any]], Any] | None

    def __post_init__(self) -> None:
        get = os.environ.get
        url = self.url or get("KEYLATCH_URL") or "http://127.0.0.1:7070"
        self.urls = [checked(each.strip().rstrip("/")) for each in (url.split(",") if isinstance(url, str) else url)]
        self.api_key = self.api_key or get("KEYLATCH_API_KEY")
        check_header("the API key", self.api_key)
        pair = get("KEYLATCH_CLIENT_CERT"), get("KEYLATCH_CLIENT_KEY")
        self._tls = authorities(self.ca or get("KEYLATCH_CA"), self.cert or (pair if all(pair) else None))
        self._current = self.urls[0]
        self._stores: dict[str, str | None] = {}
        self._clients: dict[str, Any] = {}
        self._is_closed = False
        self.in_thread = InThread(self)
        self.forget()
        _transports.add(self)

    def forget(self) -> None:
        """Begins without any connection, and leaves those that there were as they are."""
        _parents.extend(self._clients.values())
        self._guard = threading.Lock()
        self._clients = {}
        self.owner = f"{socket.gethostname()}/{os.getpid()}" if self.name is None else self.name
        #: What has to be said to the service, also where nobody waits for it any more.
        self._endings: set[Future[Any]] = set()

    def client(self, use: str) -> Any:
        """The HTTP client for this use, one of `CLIENTS`."""
        with self._guard:
            if self._is_closed:
                raise Unreachable("the client is closed", sent=False, is_passing=False)
            if use not in self._clients:
                kind, transport, kept = CLIENTS[use]
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=30)
                unix = [url for url in self.urls if url.startswith("unix:")]
                sockets = {f"all://{host_of(url)}": transport(uds=url[5:]) for url in unix}
                make = partial(kind, mounts=sockets, limits=limits, verify=self._tls)
                self._clients[use] = make() if self.http is None else self.http(make)
            return self._clients[use]

    def arguments(self, url: str, request: Request, limit: float) -> dict[str, Any]:
        headers = {"user-agent": f"keylatch-python/{__version__}"}
        if url.startswith("unix:"):
            headers["host"], url = "localhost", f"http://{host_of(url)}"
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        if request.token:
            headers["lock-token"] = request.token
        if request.prefer:
            headers["prefer"] = f"wait={request.prefer}"
        trace = self.traceparent and self.traceparent()
        if trace:
            headers["traceparent"] = trace
        return {
            "method": request.method,
            "url": url + request.path,
            "json": request.body,
            "headers": headers,
            "timeout": httpx.Timeout(limit, connect=min(limit, self.retrying.timeout) * 0.9),
        }

    def limit(self, request: Request) -> float:
        left = self.retrying.timeout if request.left is None else min(request.left, self.retrying.timeout)
        return request.wait + request.prefer + left

    async def deliver(self, request: Request, send_to: SendTo) -> Answer:
        """Sends a request to the URL that answered last, and where it gets no connection to the next."""
        for others in reversed(range(len(self.urls))):
            url = self._current
            try:
                await self._identify(url, send_to)
                return await send_to(url, request)
            except Unreachable as error:
                # Where it may have been carried out, the caller says whether it is sent again.
                check_passing(error)
                self._leave(url, error)
                if error.sent or not others:
                    raise
        raise AssertionError

    def _leave(self, url: str, error: Unreachable) -> None:
        with self._guard:
            if self._current == url and len(self.urls) > 1:
                self._current = self.urls[(self.urls.index(url) + 1) % len(self.urls)]
                log.warning("%s; the next URL is %s", error, shown(self._current))

    async def _identify(self, url: str, send_to: SendTo) -> None:
        """Refuses a URL of another store than that of the others: both would grant the same lock."""
        if len(self.urls) == 1 or url in self._stores:
            return
        try:
            answer = await send_to(url, Request("GET", "/v1/info"))
        except Unreachable as error:
            raise Unreachable(str(error), sent=False, is_passing=error.is_passing) from error
        if not answer.is_success and answer.status != 404:
            raise Unreachable(f"{shown(url)} does not say which store it has: status {answer.status}", sent=False)
        store = answer.document.get("store")
        told = cast("dict[str, Any]", store) if isinstance(store, dict) else {}
        identity = told.get("id")
        others = {other: known for other, known in self._stores.items() if known is not None and known != identity}
        if identity is not None and others:
            raise Unreachable(f"{shown(url)} has another store than {shown(next(iter(others)))}", sent=False)
        self._stores[url] = identity

    async def send(self, request: Request) -> Answer:
        if request.until is None:
            return await self.deliver(request, self._send_to)
        gate, left = background().gate, request.until - now()
        late = Unreachable("too many renewals are due at once", sent=False)
        try:
            await asyncio.wait_for(gate.acquire(), max(left, 0.05))
        except (TimeoutError, asyncio.TimeoutError):
            raise late from None
        try:
            least, left = min(TOO_LATE, left / 2), request.until - now()
            if left < least:
                raise late
            return await self.deliver(replace(request, left=max(left / 2, 0.05)), self._send_to)
        finally:
            gate.release()

    async def _send_to(self, url: str, request: Request) -> Answer:
        with no_answer():
            sent, limit = now(), self.limit(request)
            client = self.client("tasks" if request.until is None else "renewals")
            # A trickle of bytes is no answer, so the time is that of the whole.
            response = await asyncio.wait_for(client.request(**self.arguments(url, request, limit)), limit)
            return answer_of(response, response.content, request, sent)

    async def sleep_until(self, until: float) -> None:
        while (left := until - now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, STEP))

    async def events(self, request: Request, silence: float) -> AsyncGenerator[Event, None]:
        """The events of a stream (WHATWG HTML, section 9.2), which is never silent for so long; raises
        :class:`Problem` where there is none."""
        url, kind, data = self._current, "", ""
        try:
            await self._identify(url, self._send_to)
            with no_answer():
                async with self.client("tasks").stream(**self.arguments(url, request, silence)) as response:
                    if response.status_code != 200:
                        raise answer_of(response, await response.aread(), request).problem()
                    async for line in response.aiter_lines():
                        if line.startswith("event:"):
                            kind = line[6:].strip()
                        elif line.startswith("data:"):
                            data += line[5:].strip()
                        elif not line and kind:
                            yield Event(kind, json.loads(data or "{}"))
                            kind, data = "", ""
        except Unreachable as error:
            self._leave(url, error)
            raise

    def end(self, talk: Awaitable[T]) -> Future[T]:
        """Has the background say something to the service, whatever becomes of the caller."""
        future = submit(talk)
        self._endings.add(future)
        future.add_done_callback(self._endings.discard)
        return future

    def say(self, talk: Awaitable[Any]) -> None:
        self.end(talk).add_done_callback(unheard)

    async def ended(self, talk: Awaitable[T], error: BaseException | None = None) -> T | None:
        """Says something, and waits for it; not for long where the block ends because its task was cancelled."""
        future = asyncio.wrap_future(ending := self.end(talk))
        try:
            if not isinstance(error, asyncio.CancelledError):
                return await asyncio.shield(future)
            await asyncio.wait([future], timeout=CANCELLED)
            raise error
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            ending.add_done_callback(unheard)
            raise

    def close(self) -> None:
        wait(list(self._endings), self.retrying.timeout)
        with self._guard:
            clients, self._clients, self._is_closed = self._clients, {}, True
        for use, client in clients.items():
            if use == "threads":
                client.close()
            else:
                submit(client.aclose()).result(LAST_MOMENT)


class Due(threading.local):
    """Until when the response to a thread's request has to be there."""

    at = math.inf


_due = Due()


def share_time(event: str, info: Mapping[str, Any]) -> None:
    """Gives all reads of a response one deadline; httpx gives each of them a timeout of its own."""
    if event.endswith(("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")):
        stream = info["return_value"]
        stream.read = partial(read_in_time, stream.read)


def read_in_time(read: Callable[[int, float], bytes], most: int, timeout: float | None = None) -> bytes:
    left = _due.at - now()
    if left <= 0:
        raise httpcore.ReadTimeout("it does not come to its end")
    return read(most, left if timeout is None else min(left, timeout))


class InThread:
    """Carries requests out in the caller's thread. It never suspends, which :func:`run` relies on."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.retrying = transport, transport.retrying

    async def send(self, request: Request) -> Answer:
        return await self._transport.deliver(request, self._send_to)

    async def _send_to(self, url: str, request: Request) -> Answer:
        with no_answer():
            sent, limit = now(), self._transport.limit(request)
            arguments = self._transport.arguments(url, request, limit)
            _due.at = sent + limit
            response = self._transport.client("threads").request(**arguments, extensions={"trace": share_time})
            return answer_of(response, response.content, request, sent)

    async def sleep_until(self, until: float) -> None:
        while (left := until - now()) > 0:
            time.sleep(min(left, STEP))  # noqa: ASYNC251


def run(talk: Coroutine[Any, Any, T]) -> T:
    try:
        talk.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError


def checked(url: str) -> str:
    """The URL, if a client can do anything with it."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise BadSettings(f"{shown(url)!r} is no URL: {error}") from None
    if not url.startswith("unix:") and (parsed.scheme not in ("http", "https") or not parsed.host):
        raise BadSettings(f"{shown(url)!r} is no URL of a service: it begins with http://, https:// or unix:")
    return url


def shown(url: str) -> str:
    return re.sub("//.*@", "//", url)


def check_header(what: str, secret: str | None) -> None:
    if secret and not re.fullmatch(r"[\x21-\x7e]+", secret):
        raise BadSettings(f"{what} has a character that no header may have, such as a new line at its end")


def host_of(url: str) -> str:
    """A name for a Unix socket, by which its connections are told from others."""
    return f"socket-{url.encode().hex()[-50:]}"


def authorities(ca: str | None, cert: Any) -> ssl.SSLContext:
    # Made once, and not on the loop that renews.
    file = ca
    try:
        context = ssl.create_default_context(cafile=ca) if ca else httpx.create_ssl_context()
        if cert:
            file = " or ".join(cert)
            context.load_cert_chain(*cert)
    except (OSError, ssl.SSLError) as error:
        raise BadSettings(f"{file} cannot be read: {error}") from error
    return context


@contextmanager
def no_answer() -> Generator[None]:
    """Says of an error of the connection whether anything was sent."""
    try:
        yield
    except UNSENT as error:
        raise Unreachable(f"the service cannot be reached: {error}", sent=False) from error
    except UNWRITABLE as error:
        # Its own text quotes the header.
        what = f"the request cannot be written: {type(error).__name__}"
        raise Unreachable(what, sent=False, is_passing=False) from None
    except (httpx.HTTPError, TimeoutError, asyncio.TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise Unreachable(f"no response came: {why}", sent=True) from error


def answer_of(response: httpx.Response, body: bytes, request: Request, sent: float = 0.0) -> Answer:
    document: dict[str, Any] | None = None
    with suppress(ValueError):
        read = json.loads(body or b"{}")
        document = cast("dict[str, Any]", read) if isinstance(read, dict) else None
    seconds = response.headers.get("retry-after", "")
    retry_after = float(seconds) if seconds.isdecimal() else None
    answer = Answer(response.status_code, document or {}, retry_after, sent)
    is_empty = answer.status == 204 and request.method == "DELETE"
    is_ours = document is not None and request.gives in {"", *document}
    if answer.is_success and not is_empty and not is_ours:
        raise Unreachable(NOT_OURS, sent=True)
    return answer
