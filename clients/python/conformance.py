"""Carries out the commands of `clients/conformance` with this client: with threads, or with `--asyncio`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import keylatch
from keylatch import AsyncClient, AsyncLease, Client, Held, KeptAnswer, Lease, LeaseLost, Problem, Unreachable

ASYNCIO = "--asyncio" in sys.argv
Command = dict[str, Any]


SAYING = threading.Lock()


def say(line: Command) -> None:
    with SAYING:
        print(json.dumps(line), flush=True)


def traceparent() -> str | None:
    return os.environ.get("TRACEPARENT")


def settings_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a client that a scenario asks for."""
    settings: dict[str, Any] = {"traceparent": traceparent, "ca": environment.get("CONFORMANCE_CA")}
    if "CONFORMANCE_CERT" in environment:
        settings["cert"] = (environment["CONFORMANCE_CERT"], environment["CONFORMANCE_KEY"])
    if "CONFORMANCE_SILENCE_MS" in environment:
        settings["silence"] = int(environment["CONFORMANCE_SILENCE_MS"]) / 1000
    return settings


class OfTheCaller(Exception):
    """An error that is none of keylatch."""


class Block:
    """A block that a `work` or a `run` is in, until `finish` or `cancel`."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.may_go_on = asyncio.Event() if ASYNCIO else threading.Event()
        self.task: asyncio.Task[Any] | None = None

    def end(self) -> None:
        if self.command["end"] == "throw":
            raise OfTheCaller("a bug")
        if self.command["end"] == "nothing-done":
            raise keylatch.NothingDone

    def working(self) -> None:
        say({"event": "working", **{kind: self.command[kind] for kind in ("lease", "run") if kind in self.command}})


class Program:
    def __init__(self) -> None:
        settings = settings_of(os.environ)
        self.either: Any = AsyncClient(**settings) if ASYNCIO else Client(**settings)
        self.leases: dict[str, Any] = {}
        self.runs: dict[str, tuple[Any, Any]] = {}
        self.blocks: dict[str, Block] = {}
        self.watches: dict[str, asyncio.Task[None]] = {}

    async def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls what is a coroutine with asyncio, and else blocks a thread."""
        if ASYNCIO:
            return await function(*arguments, **options)
        return await asyncio.to_thread(function, *arguments, **options)

    async def enter(self, block: Any) -> Any:
        return await self.call(block.__aenter__ if ASYNCIO else block.__enter__)

    async def leave(self, block: Any) -> None:
        await self.call(block.__aexit__ if ASYNCIO else block.__exit__, None, None, None)

    def options(self, command: Command) -> dict[str, Any]:
        def on_lost(loss: LeaseLost) -> None:
            by = {"by": loss.by} if loss.by else {}
            say({"event": "lost", "lease": command["lease"], "reason": loss.reason, **by})

        names = {"ttl_ms": "ttl", "wait_ms": "wait"}
        options = {to: command[key] / 1000 for key, to in names.items() if key in command}
        others = ("max_ahead", "owner", "limit", "entry", "token")
        options |= {key: command[key] for key in others if key in command}
        return options | ({"on_lost": on_lost} if "lease" in command else {})

    async def get(self, command: Command, lock: Any) -> Any:
        self.leases[command["lease"]] = lease = await self.call(lock.acquire)
        return lease

    async def lock(self, command: Command) -> Command:
        try:
            lease = await self.get(command, self.either.lock(command["name"], **self.options(command)))
        except Held as held:
            return {"held": {**(held.holder or {}), "name": held.name}}
        slot = {} if lease.slot is None else {"slot": lease.slot}
        return {"fencing_token": lease.fencing_token, "token": lease.token, **slot}

    async def lock_set(self, command: Command) -> Command:
        try:
            lease = await self.get(command, self.either.lock(command["names"], **self.options(command)))
        except Held as held:
            return {"held": {"name": held.name}}
        return {"fencing_tokens": lease.fencing_tokens}

    async def hold(self, command: Command) -> Command:
        try:
            lease = await self.get(command, self.either.hold(command["name"], **self.options(command)))
        except Held as held:
            return {"held": {**(held.holder or {}), "name": held.name}}
        return {"fencing_token": lease.fencing_token, "token": lease.token}

    async def release(self, command: Command) -> Command:
        return {"released": await self.call(self.leases[command["lease"]].release)}

    async def lease(self, command: Command) -> Command:
        return {"lost": self.leases[command["lease"]].lost.is_set()}

    async def ask(self, command: Command) -> Command:
        lease = self.leases[command["lease"]]

        def loop() -> int:
            end, passed = time.monotonic() + 10, 0
            try:
                while time.monotonic() < end:
                    is_over = lease.valid_for == 0
                    lease.check()
                    passed += is_over
            except LeaseLost:
                pass
            return passed

        # With asyncio it blocks the event loop.
        return {"passed_when_over": loop() if ASYNCIO else await asyncio.to_thread(loop)}

    async def watch(self, command: Command) -> Command:
        name = command["watch"]
        loop = asyncio.get_running_loop()

        def tell(event: keylatch.Event) -> None:
            say({"event": "change", "watch": name, "type": event.type})

        async def follow() -> None:
            async for event in self.either.watch(command["name"]):
                tell(event)

        def follow_in_thread() -> None:
            for event in self.either.watch(command["name"]):
                loop.call_soon_threadsafe(tell, event)

        following = follow() if ASYNCIO else asyncio.to_thread(follow_in_thread)
        self.watches[name] = asyncio.create_task(following)
        return {}

    async def unwatch(self, command: Command) -> Command:
        self.watches[command["watch"]].cancel()
        return {}

    async def show(self, command: Command) -> Command:
        shown = await self.call(self.either.show, command["name"])
        return {"held": None} if shown is None else dict(shown)

    async def break_lock(self, command: Command) -> Command:
        await self.call(self.either.break_lock, command["name"], command["reason"], by=command.get("by"))
        return {}

    def intent(self, command: Command) -> Any:
        seconds = {"lease_ms": "lease", "wait_ms": "wait", "retention_ms": "retention"}
        options = {to: command[key] / 1000 for key, to in seconds.items() if key in command}
        options |= {key: command[key] for key in ("fingerprint", "on_crash", "scope") if key in command}
        return self.either.once(command["key"], **options)

    async def begin(self, command: Command) -> Command:
        once = self.intent(command)
        run = await self.enter(once)
        self.runs[command["run"]] = (once, run)
        if run.answer is not None:
            return {"state": "done", "status": run.answer.status, "headers": run.answer.headers, **body_of(run.answer)}
        return {"state": "begun", "fencing_token": run.fencing_token}

    async def end(self, command: Command, call: Callable[..., Any], *arguments: Any, **options: Any) -> Command:
        once, _ = self.runs[command["run"]]
        await self.call(call, *arguments, **options)
        await self.leave(once)
        return {}

    async def complete(self, command: Command) -> Command:
        body = bytes(i % 251 for i in range(command["bytes"])) if "bytes" in command else command["body"]
        complete = self.runs[command["run"]][1].complete
        return await self.end(command, complete, status=command.get("status", 200), body=body)

    async def abandon(self, command: Command) -> Command:
        return await self.end(command, self.runs[command["run"]][1].abandon)

    async def fail(self, command: Command) -> Command:
        return await self.end(command, self.runs[command["run"]][1].fail, command["detail"])

    async def once(self, command: Command) -> Command:
        once = self.either.once(command["key"], fingerprint=command.get("fingerprint"), wait=10)
        run = await self.enter(once)
        if run.answer is not None:
            return {"body": run.answer.body, "replayed": True}
        await asyncio.sleep(command.get("take_ms", 0) / 1000)
        await self.call(run.complete, body=command["body"])
        await self.leave(once)
        return {"body": command["body"], "replayed": False}

    async def work(self, command: Command) -> Command:
        block = Block(command)
        lock = self.either.lock(command["name"], **self.options(command))
        return await self.play(command["lease"], block, lock, lambda lease: None)

    async def run(self, command: Command) -> Command:
        block = Block(command)

        def complete(run: Any) -> Any:
            return run.complete(body=command["body"])

        return await self.play(command["run"], block, self.intent(command), complete)

    async def play(self, name: str, block: Block, lock: Any, returning: Callable[[Any], Any]) -> Command:
        """Enters the block, and says what comes out of it."""
        self.blocks[name] = block
        replayed: list[Any] = []

        async def inside() -> None:
            async with lock as got:
                if getattr(got, "answer", None) is not None:
                    return replayed.append(got.answer.body)
                block.working()
                await block.may_go_on.wait()  # type: ignore[misc]
                block.end()
                if (ending := returning(got)) is not None:
                    await ending

        def inside_in_thread() -> None:
            with lock as got:
                if getattr(got, "answer", None) is not None:
                    return replayed.append(got.answer.body)
                block.working()
                block.may_go_on.wait()
                block.end()
                returning(got)

        try:
            block.task = asyncio.create_task(inside() if ASYNCIO else asyncio.to_thread(inside_in_thread))
            await block.task
        except (OfTheCaller, keylatch.NothingDone):
            return {"ended": "threw"}
        except asyncio.CancelledError:
            return {"ended": "cancelled"}
        except LeaseLost:
            return {"ended": "lost"}
        except Held:
            return {"ended": "held"}
        return {"ended": "replayed", "body": replayed[0]} if replayed else {"ended": "returned"}

    async def cancel(self, command: Command) -> Command:
        task = self.blocks[command.get("lease") or command["run"]].task
        assert task is not None
        task.cancel()
        return {}

    async def finish(self, command: Command) -> Command:
        self.blocks[command.get("lease") or command["run"]].may_go_on.set()
        return {}

    async def users(self, command: Command, use: Callable[[], Any], use_async: Callable[[], Awaitable[Any]]) -> None:
        """Has so many threads or tasks use a thing at once."""
        uses = [use_async() if ASYNCIO else asyncio.to_thread(use) for _ in range(command["users"])]
        await asyncio.gather(*uses)

    async def shared(self, command: Command) -> Command:
        lock, take = self.either.lock(command["name"], **self.options(command)), command["take_ms"] / 1000
        inside, most, tokens = [0], [0], []

        def count(lease: Any) -> None:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            tokens.append(lease.fencing_token)

        def use() -> None:
            with lock as lease:
                count(lease)
                time.sleep(take)
                inside[0] -= 1

        async def use_async() -> None:
            async with lock as lease:
                count(lease)
                await asyncio.sleep(take)
                inside[0] -= 1

        await self.users(command, use, use_async)
        return {"at_once": most[0], "fencing_tokens": tokens}

    async def shared_once(self, command: Command) -> Command:
        once, take, ran = self.either.once(command["key"], wait=25), command["take_ms"] / 1000, []

        def use() -> None:
            with once as run:
                if run.begun:
                    ran.append(1)
                    time.sleep(take)
                    run.complete(body="done")

        async def use_async() -> None:
            async with once as run:
                if run.begun:
                    ran.append(1)
                    await asyncio.sleep(take)
                    await run.complete(body="done")

        await self.users(command, use, use_async)
        return {"ran": len(ran)}

    async def own_token_twice(self, command: Command) -> Command:
        lock = self.either.lock(command["name"], token="a-token-of-the-caller")
        await self.enter(lock)
        try:
            await self.enter(lock)
        except keylatch.InUse:
            await self.leave(lock)
            return {"refused": True}
        return {"refused": False}

    async def make_client(self, command: Command) -> Command:
        settings = {key: command[key] for key in ("api_key", "ca") if key in command}
        (AsyncClient if ASYNCIO else Client)(command.get("url"), **settings)
        return {"made": True}

    async def fork(self, command: Command) -> Command:
        leases, (once, run) = [self.leases[name] for name in command["leases"]], self.runs[command["run"]]

        async def try_all() -> Command:
            counts = {"passed": 0, "released": 0, "ended": 0}
            for lease in leases:
                counts["passed"] += passes(lease.check)
                counts["released"] += await self.call(lease.release)
            try:
                await self.call(run.complete, body="of the child")
                counts["ended"] += 1
            except LeaseLost:
                pass
            await self.leave(once)
            return counts

        return await asyncio.to_thread(in_child, lambda: asyncio.run(try_all()))

    async def fork_pool(self, command: Command) -> Command:
        def use(name: str) -> Command:
            right = 0
            for _ in range(command["rounds"]):
                try:
                    right += asyncio.run(self.take(name)) == name
                except keylatch.KeylatchError:
                    pass
            return {"right": right}

        # Connections that are kept, of both ways to use a client.
        await asyncio.gather(*(self.take(f"parent-{n}") for n in range(4)))
        children = [asyncio.to_thread(in_child, partial(use, f"child-{n}")) for n in range(command["children"])]
        right = sum(child["right"] for child in await asyncio.gather(*children))
        return {"right": right, "wrong": command["children"] * command["rounds"] - right}

    async def take(self, name: str) -> str:
        lock = self.either.lock(name, wait=5)
        lease: Lease | AsyncLease = await self.enter(lock)
        await self.leave(lock)
        return lease.name

    async def answer(self, command: Command) -> None:
        name = {"break": "break_lock"}.get(command["do"], command["do"])
        handler: Callable[[Command], Awaitable[Command]] = getattr(self, str(name))
        try:
            say({"id": command["id"], "ok": await handler(command)})
        except Problem as problem:
            error = {"kind": "problem", "code": problem.code, "retry": problem.retry}
            say({"id": command["id"], "error": error})
        except Unreachable as error:
            say({"id": command["id"], "error": {"kind": "unknown-effect" if error.sent else "unreachable"}})
        except keylatch.BadSettings as error:
            say({"id": command["id"], "error": {"kind": "settings", "text": str(error)}})


def passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except LeaseLost:
        return False
    return True


def in_child(work: Callable[[], Command]) -> Command:
    """What the work comes to in a child that is forked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return dict(json.loads(said))


def body_of(answer: KeptAnswer) -> Command:
    if not isinstance(answer.body, bytes):
        return {"body": answer.body}
    if len(answer.body) > 1000:
        return {"size": len(answer.body), "sha256": hashlib.sha256(answer.body).hexdigest()}
    return {"body_base64": base64.b64encode(answer.body).decode()}


async def main() -> None:
    program = Program()
    tasks = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if command["do"] == "stop":
            break
        task = asyncio.create_task(program.answer(command))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    sys.stdout.flush()
    # Threads that wait for the service do not hold up the end.
    os._exit(0)


asyncio.run(main())
