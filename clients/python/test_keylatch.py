"""What no scenario of `clients/conformance` can show, mostly with the fake of this package."""

import asyncio
import json
import logging
import mmap
import pickle
import re
import signal
import socket
import ssl
import threading
import time
import traceback
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

import keylatch
from keylatch import Client, Held, LeaseLost, driver, protocol
from keylatch.testing import Fake


def documents(documents: dict[str, Any], requests: list[httpx.Request] | None = None) -> Callable[[Any], Any]:
    """HTTP clients that read these documents, by host and path."""

    def answer(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(request)
        document = documents.get(request.url.host + request.url.path, documents.get(request.url.host))
        if document is None:
            raise httpx.ConnectError("nobody listens")
        return httpx.Response(document.get("status", 200), json=document)

    return lambda kind: kind(transport=httpx.MockTransport(answer))


def begun(request: httpx.Request) -> dict[str, Any]:
    token = request.headers.get("lock-token")
    return {"state": "in-flight", "fencing_token": 1, "token": token, "lease_expires_in_ms": 600000}


def mocked(answer: Callable[[httpx.Request], httpx.Response], **settings: Any) -> Client:
    return Client("http://k", http=lambda kind: kind(transport=httpx.MockTransport(answer)), **settings)


class Locks(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.client = self.fake.client()

    def test_renewed_while_time_passes(self) -> None:
        with self.client.lock("a", ttl=30) as lease:
            self.fake.advance(300)
            lease.check()
            self.assertTrue(self.client.lock("a").locked())
        self.assertFalse(self.client.lock("a").locked())

    def test_lost_lease_names_its_lock_and_who_broke_it(self) -> None:
        lease = self.client.lock("a").acquire()
        self.fake.lose("a", "it hangs", by="ann")
        self.assertTrue(lease.lost.is_set())
        with self.assertRaises(LeaseLost) as raised:
            lease.check()
        self.assertEqual(str(raised.exception), "the lease of a is lost (broken by ann): it hangs")
        self.assertFalse(lease.release())

    def test_lost_while_the_service_is_down(self) -> None:
        lease = self.client.lock("a", ttl=30).acquire()
        self.fake.is_down = True
        self.fake.advance(15)
        lease.check()
        self.fake.advance(8)
        self.assertEqual(lease.loss and lease.loss.reason, "unrenewed")

    def test_block_whose_lease_is_lost_while_the_service_is_down(self) -> None:
        client = self.fake.client(timeout=0.5)
        with self.assertRaises(LeaseLost) as raised, client.lock("a", ttl=30):
            self.fake.is_down = True
            self.fake.advance(28)
        self.assertEqual(raised.exception.reason, "unrenewed")
        self.fake.is_down = False
        with self.assertRaises(LeaseLost), client.once("k", lease=30):
            self.fake.is_down = True
            self.fake.advance(28)

    def test_renewed_after_it_was_made_shorter(self) -> None:
        lease = self.client.lock("a", ttl=300).acquire()
        self.fake.advance(1)
        lease.extend(30)
        self.fake.advance(60)
        self.assertIsNone(lease.loss)
        self.assertLessEqual(lease.valid_for, 30)

    def test_renewal_that_raises_is_logged_and_makes_the_loss_known(self) -> None:
        def traceparent() -> str | None:
            if fails:
                raise ZeroDivisionError("a bug")
            return None

        fails: list[bool] = []
        lease = self.fake.client(traceparent=traceparent).lock("a", ttl=30).acquire()
        event = lease.lost
        fails.append(True)
        with self.assertLogs("keylatch", logging.ERROR):
            self.fake.advance(14)
        fails.clear()
        self.fake.advance(30)
        self.assertIsNone(lease.loss)
        fails.append(True)
        self.fake.advance(25)
        self.assertTrue(event.wait(5))

    def test_callback_that_raises_keeps_nobody_from_knowing(self) -> None:
        def on_lost(loss: LeaseLost) -> None:
            raise RuntimeError("a bug")

        lease = self.client.lock("a", on_lost=on_lost).acquire()
        with self.assertLogs("keylatch", logging.ERROR):
            self.fake.lose("a")
            self.assertTrue(lease.lost.wait(5))
            until(lambda: not [thread for thread in threading.enumerate() if thread.name == "keylatch lost"])

    def test_callback_may_run_a_loop_of_its_own(self) -> None:
        ran = threading.Event()

        def on_lost(loss: LeaseLost) -> None:
            asyncio.run(asyncio.sleep(0))
            ran.set()

        self.client.lock("a", on_lost=on_lost).acquire()
        self.fake.lose("a")
        self.assertTrue(ran.wait(5))

    def test_check_after_the_end(self) -> None:
        lease = self.client.lock("a").acquire()
        self.fake.lose("a")
        for _ in range(3):
            self.assertRaises(LeaseLost, lease.check)
        with self.assertRaises(LeaseLost) as raised:
            lease.check()
        trace = raised.exception.__traceback__
        self.assertLessEqual(len(list(traceback.walk_tb(trace))), 3)
        with self.client.lock("a") as lease:
            lease.check()
        self.assertRaisesRegex(LeaseLost, "released", lease.check)

    def test_what_is_lost_or_released_is_valid_no_more(self) -> None:
        lease = self.client.lock("a").acquire()
        self.fake.lose("a")
        self.assertEqual(lease.valid_for, 0)
        with self.client.lock("a") as lease, self.client.once("k") as run:
            self.assertGreater(min(lease.valid_for, run.valid_for), 0)
        self.assertEqual((lease.valid_for, run.valid_for), (0, 0))

    def test_closed_client_is_used_no_more(self) -> None:
        with self.client as client:
            lease = client.lock("a", ttl=30).acquire()
        began = time.monotonic()
        with self.assertRaisesRegex(keylatch.Unreachable, "the client is closed") as raised:
            client.show("a")
        self.assertFalse(raised.exception.sent)
        self.assertLess(time.monotonic() - began, 4)
        self.fake.advance(25)
        self.assertTrue(lease.lost.is_set())
        self.fake.advance(6)
        self.assertIsNone(self.fake.client().show("a"))

    def test_names_of_threading(self) -> None:
        lock = self.client.lock("a", wait=None)
        self.assertIsNotNone(lock.acquire(blocking=False))
        self.assertIsNone(lock.acquire(blocking=False))
        self.assertIsNone(lock.acquire(timeout=0.01))
        self.assertTrue(lock.release())
        lease = lock.acquire(timeout=-1)
        assert lease is not None
        lease.extend(600)
        self.assertGreater(lease.valid_for, 500)
        lease.release()

    def test_blocking_waits_without_end(self) -> None:
        first, got = self.client.lock("a").acquire(), threading.Event()

        def wait() -> None:
            if self.client.lock("a").acquire(blocking=True):
                got.set()

        threading.Thread(target=wait, daemon=True).start()
        self.assertFalse(got.wait(0.2))
        first.release()
        self.assertTrue(got.wait(5))
        self.assertRaises(ValueError, self.client.lock("a").acquire, False, 5)

    def test_left_by_another_thread(self) -> None:
        lock = self.client.lock("a")
        entering = threading.Thread(target=lock.__enter__)
        entering.start()
        entering.join()
        lock.__exit__(None, None, None)
        self.assertFalse(lock.locked())

    def test_block_that_was_released_by_hand_leaves_others_alone(self) -> None:
        lock = self.client.lock("a", wait=5)
        got, done = threading.Event(), threading.Event()
        losses: list[LeaseLost | None] = []

        def other() -> None:
            with lock as lease:
                got.set()
                done.wait(5)
                losses.append(lease.loss)
                self.assertTrue(lock.locked())

        thread = threading.Thread(target=other)
        with self.assertRaises(ZeroDivisionError), lock as lease:
            lease.release()
            thread.start()
            got.wait(5)
            raise ZeroDivisionError
        self.assertTrue(lock.locked())
        self.assertRaises(RuntimeError, lock.release)
        done.set()
        thread.join()
        self.assertEqual(losses, [None])
        with lock:
            lock.release()
        self.assertFalse(lock.locked())

    def test_token_of_ones_own_is_let_in_once(self) -> None:
        lock = self.client.lock("a", token="a-token-of-the-caller")
        with lock:
            self.assertRaises(keylatch.InUse, lock.acquire)
            self.assertRaises(keylatch.InUse, lock.acquire)
        lease = lock.acquire()
        lock.release()
        lock.acquire()
        # This is the end of the first lease once more.
        lease.release()
        self.assertRaises(keylatch.InUse, lock.acquire)

    def test_waits_without_end(self) -> None:
        first = self.client.lock("a").acquire()
        got = threading.Event()

        def wait() -> None:
            with self.client.lock("a", wait=None):
                got.set()

        threading.Thread(target=wait, daemon=True).start()
        self.assertFalse(got.wait(0.2))
        self.fake.advance(1000)
        self.assertFalse(got.wait(0.2))
        first.release()
        self.assertTrue(got.wait(5))

    def test_decorated_function_is_skipped_while_others_hold(self) -> None:
        @self.client.locked("job", skip=True)
        def job(number: int) -> int:
            return number

        @self.client.locked("job")
        def other() -> None:
            pass

        self.assertEqual(job(3), 3)
        with self.client.lock("job"):
            self.assertIsNone(job(3))
            self.assertRaises(Held, other)

    def test_owner_is_host_and_process(self) -> None:
        with self.client.lock("a"), self.assertRaises(Held) as raised:
            self.client.lock("a").acquire()
        self.assertRegex(str(raised.exception), r"^a is held by .+/\d+$")

    def test_leads_again_after_a_loss(self) -> None:
        terms: list[int] = []
        stop = threading.Event()

        def lead(lease: keylatch.Lease) -> None:
            terms.append(lease.fencing_token)
            if len(terms) == 1:
                self.fake.lose("scheduler")
            else:
                stop.set()
            lease.check()

        self.client.elect("scheduler", lead, stop=stop)
        self.assertEqual(len(terms), 2)
        self.assertLess(*terms)

    def test_what_a_leader_raises_comes_out(self) -> None:
        raised = [keylatch.Unreachable("of another service", sent=True), ZeroDivisionError()]

        def lead(lease: keylatch.Lease) -> None:
            self.fake.is_down = isinstance(raised[0], ZeroDivisionError)
            raise raised[0]

        # One that is swallowed leads until it is stopped.
        stop = threading.Event()
        threading.Timer(15, stop.set).start()
        while raised:
            with self.assertRaises(type(raised[0])) as out:
                self.client.elect("scheduler", lead, stop=stop)
            self.assertIs(out.exception, raised.pop(0))
        self.fake.is_down = False

    def test_thousand_leases_have_four_threads_and_forty_megabytes(self) -> None:
        def pages() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1])

        threads, memory = threading.active_count(), pages()
        leases = [self.client.lock(f"n{number}").acquire() for number in range(1000)]
        self.fake.advance(15)
        self.assertGreater(min(lease.valid_for for lease in leases), 15)
        self.assertLessEqual(threading.active_count() - threads, 4)
        self.assertLessEqual((pages() - memory) * mmap.PAGESIZE, 40e6)
        for lease in leases:
            lease.release()


class OneRun(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.client = self.fake.client()

    def test_begun_once(self) -> None:
        for begun in (True, False):
            with self.client.once("k") as run:
                self.assertEqual(run.begun, begun)
                if run.begun:
                    self.fake.advance(300)
                    run.check()
                    run.complete({"sent": True})
        assert run.answer is not None
        self.assertEqual(run.answer.body, '{"sent": true}')

    def test_exception_leaves_an_unknown_outcome(self) -> None:
        with self.assertRaises(ZeroDivisionError), self.client.once("k"):
            raise ZeroDivisionError
        with self.assertRaises(keylatch.Problem) as raised:
            self.client.once("k").__enter__()
        self.assertEqual(raised.exception.code, "outcome-unknown")

    def test_key_is_free_where_nothing_was_done(self) -> None:
        with self.assertRaises(keylatch.NothingDone), self.client.once("k"):
            raise keylatch.NothingDone
        with self.assertRaises(ZeroDivisionError), self.client.once("k", on_crash="rerun"):
            raise ZeroDivisionError
        with self.client.once("k") as run:
            self.assertTrue(run.begun)

    def test_refused_answer_leaves_an_unknown_outcome(self) -> None:
        requests: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(f"{request.method} {request.url.path}")
            status = 413 if request.method == "PUT" else 201
            return httpx.Response(status, json={"code": "body-too-large", **begun(request)})

        client = mocked(answer)
        with self.assertRaises(keylatch.Problem), client.once("k", lease=600) as run:
            run.complete("large")
        self.assertEqual(
            requests, [f"{way} /v1/idempotency/k{step}" for way, step in (("POST", ""), ("PUT", ""), ("POST", "/fail"))]
        )


class Tries(unittest.TestCase):
    """What comes of several tries of one request."""

    def test_grant_of_a_lost_answer_is_given_back_after_tries_that_are_refused(self) -> None:
        methods: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            methods.append(request.method)
            raise httpx.ReadError("lost") if len(methods) == 1 else httpx.ConnectError("refused")

        for use in (Client.lock, Client.once):
            methods.clear()
            with mocked(answer, timeout=0.5) as client, self.assertRaises(keylatch.Unreachable) as raised:
                use(client, "a").__enter__()
            self.assertTrue(raised.exception.sent)
            self.assertIn("DELETE", methods)

    def test_lost_answer_under_a_token_of_ones_own_gives_nothing_back(self) -> None:
        requests: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(f"{request.method} {request.url.query.decode()}".strip())
            raise httpx.ReadError("lost")

        # By a token another acquisition may hold the lock. An entry is that of one acquisition.
        own: dict[str, Any] = {"token": "a-token-of-the-caller"}
        for make, options, given_back in (
            (Client.lock, own, set[str]()),
            (Client.once, own, set[str]()),
            (Client.lock, own | {"entry": "e"}, {"DELETE entry=e"}),
        ):
            requests.clear()
            with mocked(answer, retries=0) as client:
                self.assertRaises(keylatch.Unreachable, make(client, "a", **options).__enter__)
            self.assertEqual(set(requests) - {"POST"}, given_back)

    def test_failure_is_retried_as_often_and_after_the_pauses_that_the_program_says(self) -> None:
        tries: list[float] = []

        def answer(request: httpx.Request) -> httpx.Response:
            tries.append(time.monotonic())
            raise httpx.ConnectError("refused")

        pauses = [0.0, 0.4, 0.1]
        client = mocked(answer, retries=2, pause=pauses.pop)
        self.assertRaises(keylatch.Unreachable, client.show, "a")
        first, second, third = tries
        self.assertEqual([round(second - first, 1), round(third - second, 1)], [0.1, 0.4])

    def test_pause_is_random_by_default(self) -> None:
        for part, pause in ((0.0, 0.1), (0.5, 0.25), (1.0, 0.4)):
            with mock.patch("random.uniform", lambda low, high, part=part: low + (high - low) * part):
                self.assertAlmostEqual(protocol.jitter(), pause)

    def test_run_counts_from_the_begin_whose_answer_was_lost(self) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(201, json=begun(request) | {"lease_expires_in_ms": 20_000})

        run = mocked(answer).once("k", lease=30).__enter__()
        self.assertLess(run.valid_for, 21)
        run.leave()

    def test_lock_that_was_over_before_its_answer_came_is_asked_for_again(self) -> None:
        requests: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(request.method)
            if request.method == "PUT":
                return httpx.Response(404, json={"code": "lock-not-held", "retry": "never"})
            protocol.ahead[0] += 40 if len(requests) == 1 else 0
            lock = {"name": "a", "waited_ms": 0, "valid_for_ms": 30_000}
            return httpx.Response(201, json=begun(request) | lock)

        lease = mocked(answer).lock("a", wait=60).acquire()
        self.assertEqual(requests, ["POST", "PUT", "POST"])
        lease.check()

    def test_run_of_another_is_none(self) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(201, json=begun(request) | {"token": "of another"})

        once = mocked(answer, timeout=0.5).once("k")
        self.assertRaisesRegex(keylatch.Unreachable, "not one of keylatch", once.__enter__)

    def test_answer_to_another_process_is_none(self) -> None:
        """Two that share a connection, or are mixed up by a proxy, may ask for one lock."""

        def answer(request: httpx.Request) -> httpx.Response:
            lock = {"name": "a", "waited_ms": 0, "valid_for_ms": 30_000, "token": "of another"}
            return httpx.Response(200, json=begun(request) | lock)

        client = mocked(answer, retries=0)
        self.assertRaisesRegex(keylatch.Unreachable, "not one of keylatch", client.lock("a").acquire)
        self.assertRaisesRegex(keylatch.Unreachable, "not one of keylatch", client.show, "b")

    def test_hold_after_a_lost_answer_has_another_token(self) -> None:
        tokens: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            tokens.append(request.headers["lock-token"])
            if len(tokens) == 1:
                raise httpx.ReadError("lost")
            data = json.dumps(begun(request) | {"name": "a", "waited_ms": 0, "valid_for_ms": 30_000})
            return httpx.Response(200, text=f"event: acquired\ndata: {data}\n\n")

        lease = mocked(answer).hold("a").acquire()
        self.assertNotEqual(tokens[0], tokens[1])
        self.assertEqual(lease.token, tokens[1])
        tokens.clear()
        own = mocked(answer).hold("a", token="a-token-of-the-caller")
        self.assertRaises(keylatch.Unreachable, own.acquire)
        self.assertEqual(len(tokens), 1)

    def test_trickle_of_bytes_is_no_answer(self) -> None:
        for head in (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"):
            server = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(server.close)
            client = Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=1)

            def trickle(server: socket.socket = server, head: bytes = head) -> None:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(head)
                    for _ in range(100):
                        time.sleep(0.1)
                        connection.sendall(b"a")

            threading.Thread(target=trickle, daemon=True).start()
            began = time.monotonic()
            with self.assertRaises(keylatch.Unreachable) as raised:
                client.show("a")
            self.assertTrue(raised.exception.sent)
            self.assertLess(time.monotonic() - began, 8)

    def test_watch_that_is_interrupted_closes_its_connection(self) -> None:
        class Interrupt(BaseException):
            pass

        def interrupt(*_: object) -> None:
            raise Interrupt

        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        client = Client(f"http://127.0.0.1:{server.getsockname()[1]}")
        before = signal.signal(signal.SIGUSR1, interrupt)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def interrupted() -> bytes:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(10)
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n:\n\n")
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                try:
                    return connection.recv(1)
                except ConnectionResetError:
                    return b""

        with ThreadPoolExecutor(1) as serving:
            read = serving.submit(interrupted)
            with self.assertRaises(Interrupt):
                list(client.watch("a"))
            self.assertEqual(read.result(), b"")


class Settings(unittest.TestCase):
    def test_limit_is_sent_as_it_is(self) -> None:
        for limit in ("3", "shard", 0, -1):
            requests: list[httpx.Request] = []
            http = documents({"k": {"status": 400, "code": "invalid-body"}}, requests)
            self.assertRaises(keylatch.Problem, Client("http://k", http=http).lock("a", limit=limit).acquire)  # type: ignore[arg-type]
            self.assertIn(f'"limit":{limit!r}'.replace("'", '"').encode(), requests[0].content)

    def test_headers_that_cannot_be_sent_are_not_tried_again(self) -> None:
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        for header in ("a\nsecret", "secr\u00e9t"):
            client = Client(f"http://127.0.0.1:{server.getsockname()[1]}", traceparent=header.__str__)
            began = time.monotonic()
            with self.assertRaises(keylatch.Unreachable) as raised:
                client.lock("a", wait=None).acquire(timeout=4)
            self.assertLess(time.monotonic() - began, 4)
            self.assertFalse(raised.exception.sent)
            self.assertNotIn("secr", "".join(traceback.format_exception(raised.exception)))

    def test_token_that_no_header_may_have_is_refused(self) -> None:
        for make in (Client("http://127.0.0.1:9").lock, Client("http://127.0.0.1:9").once):
            with self.assertRaises(keylatch.BadSettings) as raised:
                make("a", token="secret\n")
            self.assertNotIn("secret", str(raised.exception))

    def test_store_of_a_url_that_does_not_say_it_is_asked_again(self) -> None:
        hosts = {
            "one/v1/info": {"status": 503},
            "one": {"status": 404, "code": "lock-not-held"},
            "two": {"status": 404, "code": "lock-not-held", "store": {"id": "2"}},
        }
        client = Client(["http://one", "http://two"], http=documents(hosts))
        self.assertIsNone(client.show("a"))
        hosts["one/v1/info"] = {"store": {"id": "1"}}
        del hosts["two"]
        with self.assertRaisesRegex(keylatch.Unreachable, "http://one has another store than http://two"):
            client.show("a")

    def test_page_of_a_proxy_is_no_success(self) -> None:
        requests: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            if len(requests) == 1:
                lock = {"name": "a", "waited_ms": 0, "valid_for_ms": 600000}
                return httpx.Response(201, json=begun(request) | lock)
            return httpx.Response(200, html="<h1>Please log in</h1>")

        client = mocked(answer, timeout=0.5)
        with self.assertRaisesRegex(keylatch.Unreachable, "not one of keylatch") as raised:
            client.lock("a", ttl=600).acquire().release()
        self.assertTrue(raised.exception.sent)
        requests.clear()
        with self.assertRaises(keylatch.Unreachable), client.once("k", lease=600) as run:
            run.complete("done")
        with self.assertRaises(keylatch.Unreachable):
            client.once("k").__enter__()
        self.assertRaises(keylatch.Unreachable, client.show, "a")

    def test_timeout_is_that_of_every_request(self) -> None:
        limits: dict[str, float] = {}

        def answer(request: httpx.Request) -> httpx.Response:
            limits[f"{request.method} {request.url.path}"] = round(request.extensions["timeout"]["read"], 1)
            lock = {"name": "a", "waited_ms": 0, "valid_for_ms": 600000, "entries": []}
            return httpx.Response(200, json=begun(request) | lock)

        def http(kind: Any) -> Any:
            return kind(transport=httpx.MockTransport(answer))

        for timeout in (1, 30):
            limits.clear()
            client = Client("http://k", timeout=timeout, http=http)
            with client.lock("a", wait=7, ttl=600) as lease:
                lease.extend()
                client.show("a")
            with client.once("k", lease=600) as run:
                run.complete("done")
            self.assertEqual(limits.pop("POST /v1/locks/a"), 7 + timeout)
            self.assertEqual(set(limits.values()), {timeout}, limits)

    def test_secrets_are_shown_nowhere(self) -> None:
        claims = protocol.Claim(("a",), False, 3, 0, {}, token="secret"), protocol.Request("GET", "/", token="secret")
        self.assertNotIn("secret", repr(claims))
        for url in ("http://ann:secret@host:x", "ftp://ann:secret@host"):
            with self.assertRaises(keylatch.BadSettings) as raised:
                Client(url)
            self.assertNotIn("secret", "".join(traceback.format_exception(raised.exception)))
        client = Client(["http://ann:secret@one", "http://ann:secret@two"], http=documents({}), retries=0)
        with self.assertLogs("keylatch") as logs, self.assertRaises(keylatch.Unreachable):
            client.show("a")
        self.assertNotIn("secret", "".join(logs.output))

    def test_http_has_the_other_settings(self) -> None:
        made: list[dict[str, Any]] = []

        class Made(httpx.Client):
            def __init__(self, **settings: Any) -> None:
                made.append(settings)
                super().__init__(transport=httpx.MockTransport(lambda request: httpx.Response(404)))

        def http(kind: Any) -> Any:
            self.assertIs(kind.func, httpx.Client)
            return Made(**kind.keywords)

        client = Client("unix:/run/keylatch.sock", http=http)
        self.assertRaises(keylatch.Problem, client.show, "a")
        self.assertEqual(len(made[0]["mounts"]), 1)
        self.assertIn("limits", made[0])
        self.assertIsInstance(made[0]["verify"], ssl.SSLContext)

    def test_url_of_another_store_is_refused_by_name(self) -> None:
        def info(identity: str) -> dict[str, Any]:
            return {"status": 404, "code": "lock-not-held", "store": {"id": identity}}

        requests: list[httpx.Request] = []
        hosts = {"one": info("1"), "two": info("2")}
        client = Client(["http://one", "http://two"], http=documents(hosts, requests))
        self.assertIsNone(client.show("a"))
        del hosts["one"]
        with self.assertRaisesRegex(keylatch.Unreachable, "http://two has another store than http://one"):
            client.show("a")
        hosts["two"] = info("1")
        self.assertIsNone(client.show("a"))


class Errors(unittest.TestCase):
    def test_can_be_pickled(self) -> None:
        errors: list[keylatch.KeylatchError] = [
            Held("a", {"owner": "ann"}),
            keylatch.Problem(409, {"code": "lock-held"}, 1.0),
            keylatch.Unreachable("no response came", sent=True),
            LeaseLost("broken", "it hangs", ["a"], "ann"),
            keylatch.InUse("in use"),
            keylatch.BadSettings("bad"),
        ]
        for error in errors:
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), vars(copy)), (type(error), str(error), vars(error)))


class Recording(Fake):
    """A fake that knows which members of each call were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, set[str]] = {}

    def _answer(self, request: httpx.Request) -> Any:
        path, _, query = request.url.raw_path.decode().partition("?")
        path = re.sub("^(/v1/locks/)[^/]+", r"\1{name}", re.sub("^(/v1/idempotency/)[^/]+", r"\1{key}", path))
        members = set(json.loads(request.content or b"{}")) | {pair.partition("=")[0] for pair in query.split("&")}
        self.sent.setdefault(f"{request.method} {path}", set()).update(members)
        return super()._answer(request)


class Members(unittest.TestCase):
    def test_each_member_of_the_api_can_be_sent(self) -> None:
        fake = Recording()
        client = fake.client()
        options: dict[str, Any] = {"wait": 1, "max_ahead": 0, "ttl": 30, "owner": "ann", "limit": 3}
        lease = client.lock("a", entry="inner", token="t" * 20, **options).acquire()
        lease.extend(20)
        client.break_lock("a", "it hangs", by="ann", grace=1)
        with client.lock(["a", "b"], **options) as both:
            both.extend()
        self.assertRaises(keylatch.Problem, client.hold("a", entry="inner", max_hold=60, **options).acquire)
        scope = {"method": "POST", "path": "/orders", "principal": "ann", "source": "derived"}
        begin: dict[str, Any] = {"lease": 30, "retention": 60, "on_crash": "rerun", "scope": scope, "request": {}}
        answers: list[dict[str, Any]] = [{"json": 1}, {"body": "text"}, {"body": b"bytes", "headers": {"a": "b"}}]
        for number, answer in enumerate(answers):
            with client.once("k", fingerprint=str(number), **begin | {"scope": scope | {"path": str(number)}}) as run:
                run.complete(status=201, **answer)
        with client.once("k", **begin) as run:
            run.fail("a bug")
        document = json.loads((Path(__file__).parents[2] / "openapi/openapi.json").read_text())
        # Those that `call` is for.
        others, checked = {"EndWait", "IssueKey", "ResolveRecord"}, 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                schema = (
                    operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
                )
                name = schema.get("$ref", "").rpartition("/")[2]
                if name and name not in others:
                    members = set(document["components"]["schemas"][name]["properties"])
                    sent = fake.sent.get(f"{method.upper()} {path}", set())
                    self.assertEqual(members - sent, set(), f"{method} {path}")
                    checked += 1
        self.assertGreaterEqual(checked, 8)
        self.assertLessEqual(set(scope), fake.sent["POST /v1/idempotency/{key}/fail"])


class Tasks(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.fake = Fake()

    async def test_coroutine_is_awaited_when_a_lease_is_lost(self) -> None:
        told = asyncio.Event()

        async def on_lost(loss: LeaseLost) -> None:
            await asyncio.sleep(0)
            told.set()

        async with self.fake.async_client() as client:
            lease = await client.lock("a", on_lost=on_lost).acquire()
            await asyncio.to_thread(self.fake.lose, "a")
            await asyncio.wait_for(told.wait(), 5)
            self.assertTrue(lease.lost.is_set())

    async def test_cancellation_comes_while_the_service_is_down(self) -> None:
        client = self.fake.async_client()
        holding = asyncio.Event()

        async def work() -> None:
            async with client.lock("a", ttl=600):
                holding.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(work())
        await holding.wait()
        self.fake.is_down = True
        task.cancel()
        # A release that is waited for takes 5 s; this is not the half second that it takes, on any machine.
        with self.assertRaises(asyncio.CancelledError):
            await asyncio.wait_for(task, 4)
        self.fake.is_down = False
        await client.aclose()
        self.assertFalse(await self.fake.async_client().lock("a").locked())

    async def test_release_that_nobody_hears_of_is_logged(self) -> None:
        client = self.fake.async_client()

        async def work() -> None:
            async with client.lock("a", ttl=600):
                self.fake.is_down = True
                raise asyncio.CancelledError

        with self.assertLogs("keylatch", logging.WARNING) as logs:
            with self.assertRaises(asyncio.CancelledError):
                await work()
            await asyncio.to_thread(until, lambda: not client._transport._endings)
            await asyncio.sleep(0.1)
        self.assertIn("the fake is down", logs.output[0])

    async def test_run_that_cannot_be_completed_is_left(self) -> None:
        client = self.fake.async_client()

        async def work() -> None:
            async with client.once("k", lease=30) as run:
                self.fake.is_down = True
                await run.complete("done")

        task = asyncio.create_task(work())
        await asyncio.to_thread(until, lambda: bool(client._transport._endings))
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        # What is still said to the service has given up.
        await asyncio.to_thread(until, lambda: not client._transport._endings)
        self.fake.is_down = False
        await asyncio.to_thread(self.fake.advance, 60)
        with self.assertRaises(keylatch.Problem) as raised:
            await client.once("k").__aenter__()
        self.assertEqual(raised.exception.code, "outcome-unknown")

    async def test_leader_is_cancelled_when_it_has_lost(self) -> None:
        terms: list[int] = []
        ends: list[str] = []
        began = [asyncio.Event(), asyncio.Event()]

        async def lead(lease: keylatch.AsyncLease) -> None:
            terms.append(lease.fencing_token)
            began[len(terms) - 1].set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        client = self.fake.async_client()
        electing = asyncio.create_task(client.elect("scheduler", lead))
        await began[0].wait()
        await asyncio.to_thread(self.fake.lose, "scheduler")
        await began[1].wait()
        electing.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await electing
        self.assertEqual(ends, ["cancelled"] * 2)
        self.assertFalse(await client.lock("scheduler").locked())

    async def test_what_a_leading_task_raises_comes_out(self) -> None:
        async def lead(lease: keylatch.AsyncLease) -> None:
            raise keylatch.Unreachable("of another service", sent=True)

        client = self.fake.async_client()
        with self.assertRaisesRegex(keylatch.Unreachable, "another service"):
            await asyncio.wait_for(client.elect("scheduler", lead), 5)

    async def test_waiters_do_not_take_the_connections_of_renewals(self) -> None:
        kinds: list[Any] = []

        def http(kind: Any) -> Any:
            kinds.append(kind)
            return kind(transport=self.fake)

        client = keylatch.AsyncClient("http://fake", http=http)
        lease = await client.lock("a", ttl=30).acquire()
        await asyncio.to_thread(self.fake.advance, 60)
        lease.check()
        self.assertEqual(len(kinds), 2)
        self.assertGreaterEqual(kinds[1].keywords["limits"].max_keepalive_connections, driver.RENEWALS)

    async def test_renewal_that_would_come_too_late_is_not_sent(self) -> None:
        requests: list[httpx.Request] = []
        transport = keylatch.AsyncClient("http://k", http=documents({"k": {}}, requests))._transport

        async def renew_late() -> None:
            gate = driver.background().gate
            for _ in range(driver.RENEWALS):
                await gate.acquire()
            request = protocol.Request("PUT", "/", until=protocol.now() + 5)
            renewing = asyncio.ensure_future(transport.send(request))
            await asyncio.sleep(0)
            protocol.ahead[0] += 4.8
            for _ in range(driver.RENEWALS):
                gate.release()
            await renewing

        with self.assertRaisesRegex(keylatch.Unreachable, "too many renewals"):
            await driver.call(renew_late())
        self.assertEqual(requests, [])

    async def test_finished_tasks_are_forgotten(self) -> None:
        lock = self.fake.async_client().lock("a")
        lease = await asyncio.create_task(lock.acquire())
        await lease.release()
        kept = [value for value in vars(lock).values() if isinstance(value, (dict, list)) and value]
        self.assertEqual(kept, [])

    async def test_decorated_coroutine(self) -> None:
        client = self.fake.async_client()

        @client.locked("job", skip=True)
        async def job() -> int:
            return 3

        self.assertEqual(await job(), 3)
        async with client.lock("job"):
            self.assertIsNone(await job())


def until(ask: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not ask():
        assert time.monotonic() < end
        time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
