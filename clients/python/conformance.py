"""Carries out the commands of `clients/conformance` with this client: with threads, or with `--asyncio`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import keylatch
from keylatch import (
    AsyncClient,
    AsyncLease,
    Client,
    Held,
    KeptAnswer,
    Lease,
    LeaseLost,
    Lock,
    Once,
    Problem,
    Unreachable,
)

ASYNCIO = "--asyncio" in sys.argv
Command = dict[str, Any]


def say(line: Command) -> None:
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


class Program:
    def __init__(self) -> None:
        settings = settings_of(os.environ)
        self.client: Client = Client(**settings)
        self.async_client: AsyncClient = AsyncClient(**settings)
        self.leases: dict[str, Lease | AsyncLease] = {}
        self.runs: dict[str, tuple[Once, Any]] = {}
        self.watches: dict[str, asyncio.Task[None]] = {}

    @property
    def either(self) -> Client | AsyncClient:
        return self.async_client if ASYNCIO else self.client

    async def get(self, lock: Lock, lease: str) -> Lease | AsyncLease:
        got = await lock.acquire_async() if ASYNCIO else await asyncio.to_thread(lock.acquire)
        self.leases[lease] = got
        return got

    def options(self, command: Command) -> dict[str, Any]:
        def on_lost(loss: LeaseLost) -> None:
            say({"event": "lost", "lease": command["lease"], "reason": loss.reason})

        names = {"ttl_ms": "ttl", "wait_ms": "wait"}
        options = {to: command[key] / 1000 for key, to in names.items() if key in command}
        others = ("owner", "limit", "entry", "token")
        return options | {key: command[key] for key in others if key in command} | {"on_lost": on_lost}

    async def lock(self, command: Command) -> Command:
        try:
            lease = await self.get(self.either.lock(command["name"], **self.options(command)), command["lease"])
        except Held as held:
            return {"held": {**(held.holder or {}), "name": held.name}}
        slot = {} if lease.slot is None else {"slot": lease.slot}
        return {"fencing_token": lease.fencing_token, "token": lease.token, **slot}

    async def lock_set(self, command: Command) -> Command:
        try:
            lease = await self.get(self.either.lock(command["names"], **self.options(command)), command["lease"])
        except Held as held:
            return {"held": {"name": held.name}}
        return {"fencing_tokens": lease.fencing_tokens}

    async def hold(self, command: Command) -> Command:
        try:
            lease = await self.get(self.either.hold(command["name"], **self.options(command)), command["lease"])
        except Held as held:
            return {"held": {**(held.holder or {}), "name": held.name}}
        return {"fencing_token": lease.fencing_token, "token": lease.token}

    async def release(self, command: Command) -> Command:
        lease = self.leases[command["lease"]]
        held = await lease.release() if isinstance(lease, AsyncLease) else await asyncio.to_thread(lease.release)
        return {"released": held}

    async def lease(self, command: Command) -> Command:
        return {"lost": self.leases[command["lease"]].lost.is_set()}

    async def watch(self, command: Command) -> Command:
        name = command["watch"]
        loop = asyncio.get_running_loop()

        def tell(event: keylatch.Event) -> None:
            say({"event": "change", "watch": name, "type": event.type})

        async def follow() -> None:
            async for event in self.async_client.watch(command["name"]):
                tell(event)

        def follow_in_thread() -> None:
            for event in self.client.watch(command["name"]):
                loop.call_soon_threadsafe(tell, event)

        following = follow() if ASYNCIO else asyncio.to_thread(follow_in_thread)
        self.watches[name] = asyncio.create_task(following)
        return {}

    async def unwatch(self, command: Command) -> Command:
        self.watches[command["watch"]].cancel()
        return {}

    async def show(self, command: Command) -> Command:
        name = command["name"]
        shown = await self.async_client.show(name) if ASYNCIO else await asyncio.to_thread(self.client.show, name)
        return {"held": None} if shown is None else dict(shown)

    async def break_lock(self, command: Command) -> Command:
        name, reason = command["name"], command["reason"]
        if ASYNCIO:
            await self.async_client.break_lock(name, reason)
        else:
            await asyncio.to_thread(self.client.break_lock, name, reason)
        return {}

    async def begin(self, command: Command) -> Command:
        lease = command.get("lease_ms", 30_000) / 1000
        once = self.either.once(command["key"], fingerprint=command.get("fingerprint"), lease=lease)
        run = await once.__aenter__() if ASYNCIO else await asyncio.to_thread(once.__enter__)
        self.runs[command["run"]] = (once, run)
        if run.answer is not None:
            return {"state": "done", "status": run.answer.status, "headers": run.answer.headers, **body_of(run.answer)}
        return {"state": "begun", "fencing_token": run.fencing_token}

    async def end(self, command: Command, call: Callable[[Any], Any]) -> Command:
        once, run = self.runs[command["run"]]
        if ASYNCIO:
            await call(run)
            await once.__aexit__(None, None, None)
        else:
            await asyncio.to_thread(call, run)
            await asyncio.to_thread(once.__exit__, None, None, None)
        return {}

    async def complete(self, command: Command) -> Command:
        status, body = command["status"], command["body"]
        return await self.end(command, lambda run: run.complete(status=status, body=body))

    async def abandon(self, command: Command) -> Command:
        return await self.end(command, lambda run: run.abandon())

    async def once(self, command: Command) -> Command:
        once = self.either.once(command["key"], fingerprint=command.get("fingerprint"), wait=10)
        take = command.get("take_ms", 0) / 1000
        run = await once.__aenter__() if ASYNCIO else await asyncio.to_thread(once.__enter__)
        if run.answer is not None:
            return {"body": run.answer.body, "replayed": True}
        await asyncio.sleep(take)
        self.runs[command["key"]] = (once, run)
        await self.end({"run": command["key"]}, lambda run: run.complete(body=command["body"]))
        return {"body": command["body"], "replayed": False}

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


def body_of(answer: KeptAnswer) -> Command:
    if isinstance(answer.body, bytes):
        return {"body_base64": base64.b64encode(answer.body).decode()}
    return {"body": answer.body}


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
