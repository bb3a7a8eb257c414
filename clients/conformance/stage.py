"""What a scenario plays on: a real keylatch, a proxy that loses, delays and cuts, and programs of one client."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import tempfile
import urllib.request
from pathlib import Path

# How long anything that has to happen may take, on the slowest machine.
LIMIT = 30


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Proxy:
    """A proxy before the service, whose faults begin and end with its members."""

    def __init__(self, port):
        self.upstream = port
        self.lost = 0  # so many answers are dropped, and their connections with them
        self.delay = 0  # so many seconds pass before each part of an answer
        self.refuses = False
        self.unavailable = 0  # so many requests are answered 503 here
        self.retry_after = 3  # what these say
        self.rewrite = lambda data: data  # what becomes of each part of an answer
        self.requests = []  # the head of each
        self.writers = set()
        self.silent = set()  # those of them to which nothing passes

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.cut()

    def cut(self):
        """Ends all connections."""
        for writer in list(self.writers):
            writer.transport.abort()

    def silence(self):
        """Lets nothing pass on the connections that are open, and ends none of them."""
        self.silent |= self.writers

    async def serve(self, reader, writer):
        if self.refuses:
            writer.transport.abort()
            return
        self.writers.add(writer)
        with contextlib.suppress(OSError):
            ahead, back = await asyncio.open_connection("127.0.0.1", self.upstream)
            self.writers.add(back)
            up = asyncio.create_task(self.pass_requests(reader, writer, back))
            await self.pass_answers(ahead, writer)
            up.cancel()
            back.transport.abort()
            self.writers.discard(back)
        writer.transport.abort()
        self.writers.discard(writer)

    async def pass_requests(self, reader, writer, back):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if data.split(b" ", 1)[0] in (b"GET", b"PUT", b"POST", b"DELETE"):
                    self.requests.append(data.split(b"\r\n\r\n", 1)[0].decode())
                    if self.unavailable:
                        self.unavailable -= 1
                        head = f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {self.retry_after}\r\n"
                        writer.write(f"{head}connection: close\r\ncontent-length: 0\r\n\r\n".encode())
                        await writer.drain()
                        break
                back.write(data)
                await back.drain()
            back.transport.abort()

    async def pass_answers(self, ahead, writer):
        with contextlib.suppress(OSError):
            while data := await ahead.read(65536):
                if self.lost:
                    self.lost -= 1
                    return
                await asyncio.sleep(self.delay)
                if writer in self.silent:
                    continue
                writer.write(self.rewrite(data))
                await writer.drain()


class Refused(Exception):
    """The program answered a command with an error."""

    def __init__(self, error):
        super().__init__(str(error))
        self.error = error


class Program:
    """A program of the client, which carries commands out."""

    def __init__(self, process):
        self.process = process
        self.answers = {}
        self.events = []
        self.heard = asyncio.Condition()
        self.reading = asyncio.create_task(self.read())

    async def read(self):
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            async with self.heard:
                if "event" in said:
                    self.events.append(said)
                    self.heard.notify_all()
                else:
                    self.answers.pop(said["id"]).set_result(said)

    def start(self, do, **members):
        """Sends a command; the answer to come."""
        number = len(self.answers) + 1 + getattr(self, "sent", 0)
        self.sent = number
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "do": do, **members})
        self.process.stdin.write(line.encode() + b"\n")
        return asyncio.create_task(self.finish(do, answer))

    async def finish(self, do, answer):
        try:
            said = await asyncio.wait_for(answer, LIMIT)
        except asyncio.TimeoutError:
            raise AssertionError(f"{do}: no answer") from None
        if "error" in said:
            raise Refused(said["error"])
        return said["ok"]

    async def do(self, do, **members):
        return await self.start(do, **members)

    async def fails(self, do, **members):
        """The error with which a command is answered."""
        try:
            raise AssertionError(f"{do} is answered {await self.start(do, **members)}")
        except Refused as refused:
            return refused.error

    async def event(self, kind, **members):
        """Waits for an event with these members, and takes it."""

        def wanted(event):
            return event["event"] == kind and all(event.get(key) == value for key, value in members.items())

        async with self.heard:
            def found():
                return next((event for event in self.events if wanted(event)), None)

            try:
                await asyncio.wait_for(self.heard.wait_for(found), LIMIT)
            except asyncio.TimeoutError:
                raise AssertionError(f"no event {kind} {members} among {self.events}") from None
            event = found()
            self.events.remove(event)
            return event

    def signal(self, number):
        """Sends a signal to the program, and to a browser that it has started."""
        os.killpg(self.process.pid, number)

    async def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.reading.cancel()
        await self.process.wait()


class Stage:
    """A service of its own for each scenario, with what it needs around."""

    def __init__(self, keylatch, client, options=()):
        self.keylatch, self.client, self.options = keylatch, client, list(options)
        self.environment, self.programs = {}, []
        self.store = "memory:"
        self.directory = Path(tempfile.mkdtemp(prefix="keylatch-conformance-"))
        self.scheme = "http"

    async def __aenter__(self):
        self.port = 0
        await self.serve()
        self.proxy = await Proxy(self.port).__aenter__()
        return self

    async def serve(self):
        """Starts the service, on its port; at first on any that is free."""
        arguments = ["--store", self.store, "--listen", f"127.0.0.1:{self.port}", *self.options]
        with open(self.directory / "log", "a") as log:
            before = log.tell()
            self.service = await asyncio.create_subprocess_exec(
                self.keylatch, *arguments, cwd=self.directory, stdout=log, stderr=log
            )

        async def listens():
            said = (self.directory / "log").read_text()[before:]
            if self.service.returncode is not None:
                raise AssertionError(said)
            address = re.search(r'"address":"127.0.0.1:(\d+)"', said)
            if address:
                self.port = int(address[1])
            return bool(address)

        await eventually(listens)

    async def restart(self, configuration=None):
        """The service again after its death, with this configuration where one is given."""
        if configuration is not None:
            (self.directory / "keylatch.toml").write_text(configuration)
            self.options = ["--config", "keylatch.toml"]
        self.service.kill()
        await self.service.wait()
        await self.serve()

    async def program(self):
        """A program of the client, which reaches the service by the proxy."""
        url = f"{self.scheme}://127.0.0.1:{self.proxy.port}"
        environment = {**os.environ, "TMPDIR": str(self.directory), "KEYLATCH_URL": url, **self.environment}
        process = await asyncio.create_subprocess_exec(
            *self.client, stdin=-1, stdout=-1, env=environment, limit=2**20, start_new_session=True
        )
        program = Program(process)
        self.programs.append(program)
        return program

    async def ask(self, method, path, body=None, token=None):
        """A request past the proxy and the client; the document of its answer."""
        headers = {"content-type": "application/json"} | ({"lock-token": token} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)

        def read():
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return json.loads(answer.read() or b"null")

        return await asyncio.to_thread(read)

    def pause_service(self):
        self.service.send_signal(signal.SIGSTOP)
        # One of its threads takes the signal when it gets to run, and the others go on until then.
        os.waitid(os.P_PID, self.service.pid, os.WSTOPPED)

    def resume_service(self):
        self.service.send_signal(signal.SIGCONT)

    async def __aexit__(self, *_):
        for program in self.programs:
            await program.end()
        await self.proxy.__aexit__()
        with contextlib.suppress(ProcessLookupError):
            self.service.send_signal(signal.SIGCONT)
            self.service.kill()
        await self.service.wait()


async def eventually(ask):
    """Asks every 20 ms until that is true."""
    end = asyncio.get_running_loop().time() + LIMIT
    while not await ask():
        assert asyncio.get_running_loop().time() < end, f"{ask.__name__} did not come true"
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def dead_port():
    """A port that is taken and does not listen: the system gives a free one to the next scenario."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def holding(program, name):
    return "fencing_token" in await program.do("show", name=name)


async def has_waiters(program, count):
    return (await program.do("show", name="a")).get("waiting", 0) == count


def sent(stage, line):
    """Whether a request that begins so has come to the proxy."""

    async def is_sent():
        return any(head.startswith(line) for head in stage.proxy.requests)

    return is_sent
