"""What a client does inside its language: with objects that are shared, with forks, cancellation, exceptions and loops
that are blocked. The first line of each is its row in the table."""

import asyncio
import hashlib
import signal

from marks import JAVASCRIPT, PAGE, not_with, scenario
from stage import Stage, dead_port, eventually, has_waiters, holding, sent

FORKS = {
    "clients": (*JAVASCRIPT, "go", "rust", "java"),
    "why": "only Python programs fork and go on in both processes",
}
OBJECTS = {
    "clients": (*JAVASCRIPT, "go", "rust"),
    "why": "the client has no object with a token of its own that could be entered twice",
}
THREADS = {"clients": ("python",), "why": "a thread of Python cannot be cancelled"}
PANICS = {"clients": ("python", "asyncio", *JAVASCRIPT), "why": "the language has exceptions and no panic"}
# A lease that outlasts every scenario: what it guards is free or settled only because the client has said so.
LONG = 60_000


def without(mark):
    return not_with(*mark["clients"], why=mark["why"])


@scenario
async def shared_lock_object(stage):
    """One lock object lets its users in one after another"""
    one = await stage.program()
    got = await one.do("shared", name="a", users=4, ttl_ms=9000, wait_ms=25_000, take_ms=300)
    assert got["at_once"] == 1, got
    assert len(set(got["fencing_tokens"])) == 4, got


@scenario
async def shared_once_object(stage):
    """One object of a thing to be done once has one of its users do it"""
    one = await stage.program()
    assert await one.do("shared_once", key="k", users=4, take_ms=300) == {"ran": 1}


@scenario
@without(OBJECTS)
async def own_token_twice(stage):
    """An object with a token of its own is not entered while it is in use"""
    one = await stage.program()
    assert await one.do("own_token_twice", name="a") == {"refused": True}


@scenario
@without(FORKS)
async def forked_child(stage):
    """A child that is forked does not have the leases and runs of its parent, and ends none"""
    one = await stage.program()
    first = await one.do("lock", lease="l", name="a", ttl_ms=LONG)
    await one.do("begin", run="r", key="k", lease_ms=LONG)
    await one.do("hold", lease="h", name="b", ttl_ms=LONG, wait_ms=0)
    assert await one.do("fork", leases=["l", "h"], run="r") == {"passed": 0, "released": 0, "ended": 0}
    assert (await one.do("show", name="a"))["fencing_token"] == first["fencing_token"]
    assert await holding(one, "b")
    assert [await one.do("release", lease=lease) for lease in "lh"] == [{"released": True}] * 2
    await one.do("complete", run="r", status=200, body="done")


@scenario
@without(FORKS)
async def forked_pool(stage):
    """Children that are forked from a client in use get no answers of each other"""
    one = await stage.program()
    got = await one.do("fork_pool", children=4, rounds=25)
    assert got == {"right": 100, "wrong": 0}, got


@scenario
@without(THREADS)
async def cancelled_while_waiting(stage):
    """A waiter that is cancelled leaves the queue"""
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=LONG)
    working = two.start("work", lease="w", name="a", ttl_ms=LONG, wait_ms=25_000, end="return")
    await eventually(lambda: has_waiters(one, 1))
    await two.do("cancel", lease="w")
    assert await working == {"ended": "cancelled"}
    await eventually(lambda: has_waiters(one, 0))
    await one.do("release", lease="l")
    assert (await one.do("lock", lease="m", name="a", ttl_ms=5000))["fencing_token"] > 0


@scenario
@without(THREADS)
async def cancelled_while_holding(stage):
    """A holder that is cancelled releases"""
    one = await stage.program()
    working = one.start("work", lease="w", name="a", ttl_ms=LONG, wait_ms=0, end="return")
    await one.event("working", lease="w")
    await one.do("cancel", lease="w")
    assert await working == {"ended": "cancelled"}
    await eventually(lambda: is_free(one, "a"))


async def is_free(program, name):
    return not await holding(program, name)


@scenario
@without(THREADS)
async def cancelled_while_leaving(stage):
    """A holder that is cancelled while it releases has released"""
    one = await stage.program()
    working = one.start("work", lease="w", name="a", ttl_ms=LONG, wait_ms=0, end="return")
    await one.event("working", lease="w")
    # The first try to release is refused, so that the cancellation comes before the next.
    stage.proxy.unavailable, stage.proxy.retry_after = 1, 1
    await one.do("finish", lease="w")
    await eventually(sent(stage, "DELETE"))
    await one.do("cancel", lease="w")
    assert (await working)["ended"] in ("returned", "cancelled")
    await eventually(lambda: is_free(one, "a"))


@scenario
async def asked_without_a_pause(stage):
    """A program that asks without a pause hears from the clock that its lease is lost"""
    one = await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=2000)
    stage.pause_service()
    assert await one.do("ask", lease="l") == {"passed_when_over": 0}
    await one.event("lost", lease="l")
    stage.resume_service()


@scenario
async def asked_after_a_pause(stage):
    """A process that asks at once after a pause hears from the clock that its lease is lost"""
    one, two = await stage.program(), await stage.program()
    for name in "abcdef":
        await one.do("lock", lease=name, name=name, ttl_ms=1000)
        asking = one.start("ask", lease=name)
        await asyncio.sleep(0.3)
        one.signal(signal.SIGSTOP)
        await two.do("lock", lease=name, name=name, ttl_ms=LONG, wait_ms=20_000)
        one.signal(signal.SIGCONT)
        assert await asking == {"passed_when_over": 0}, name


@scenario
async def response_of_another(stage):
    """A response about another lock grants nothing"""
    one = await stage.program()
    stage.proxy.rewrite = lambda data: data.replace(b'"name":"a1"', b'"name":"a2"').replace(b'"c1"', b'"c2"')
    for do, what in (("lock", {"name": "a1"}), ("lock_set", {"names": ["b", "c1"]})):
        error = await one.fails(do, lease="l", ttl_ms=LONG, **what)
        assert error["kind"] == "unknown-effect", error
    stage.proxy.rewrite = lambda data: data
    await eventually(lambda: is_free(one, "a1"))


@scenario
async def large_bytes(stage):
    """Bytes of 300 kB are kept and read"""
    await stage.restart("[server]\nbody_limit_bytes = 1000000\n")
    one = await stage.program()
    await one.do("begin", run="r", key="k")
    await one.do("complete", run="r", status=200, bytes=300_000)
    got = await one.do("begin", run="s", key="k")
    content = bytes(i % 251 for i in range(300_000))
    assert (got["size"], got["sha256"]) == (300_000, hashlib.sha256(content).hexdigest()), got


async def record(stage):
    return await stage.ask("GET", "/v1/idempotency/k")


async def left_by(stage, end, **members):
    """What is known of the key after a run that ends so, and what came out of its block."""
    one = await stage.program()
    working = one.start("run", run="r", key="k", lease_ms=LONG, end=end, body="done", **members)
    await one.event("working", run="r")
    await one.do("finish", run="r")
    ended = (await working)["ended"]
    assert ended == "threw", ended
    return one


@scenario
async def throwing_run(stage):
    """A run that throws is unknown at once, or free where a rerun was said to be safe"""
    one = await left_by(stage, "throw")
    assert (await record(stage))["reason"] == "reported"
    error = await one.fails("begin", run="s", key="k")
    assert error["code"] == "outcome-unknown", error
    await stage.ask("POST", "/v1/idempotency/k/resolve", {"outcome": "not-executed"})
    one = await left_by(stage, "throw", on_crash="rerun")
    assert (await one.do("begin", run="s", key="k"))["state"] == "begun"


@scenario
@without(PANICS)
async def panicking_run(stage):
    """A run that panics is unknown at once"""
    one = await left_by(stage, "panic")
    error = await one.fails("begin", run="s", key="k")
    assert error["code"] == "outcome-unknown", error


@scenario
async def nothing_was_done(stage):
    """A run that says that nothing was done frees its key"""
    one = await left_by(stage, "nothing-done")
    assert (await one.do("begin", run="s", key="k"))["state"] == "begun"


@scenario
@without(THREADS)
async def caller_is_gone_from_a_run(stage):
    """A run whose caller is gone is done, or unknown at once"""
    one = await stage.program()
    working = one.start("run", run="r", key="k", lease_ms=LONG, end="return", body="done")
    await one.event("working", run="r")
    await one.do("cancel", run="r")
    ended = (await working)["ended"]

    async def is_settled():
        return (await record(stage))["state"] == ("done" if ended == "returned" else "unknown")

    await eventually(is_settled)


async def lost_in_its_block(stage, one, end):
    """What comes out of a block whose lease is lost."""
    working = one.start("work", lease="w", name="a", ttl_ms=2000, wait_ms=0, end=end)
    await one.event("working", lease="w")
    stage.pause_service()
    await one.event("lost", lease="w")
    return working


@scenario
async def error_stays_the_error(stage):
    """The error of a block whose lease was lost stays the error, also where nothing can be released"""
    one = await stage.program()
    working = await lost_in_its_block(stage, one, "throw")
    await one.do("finish", lease="w")
    assert await working == {"ended": "threw"}
    stage.resume_service()


@scenario
async def lost_lease_is_told_at_the_end(stage):
    """A block without an error whose lease was lost ends with the loss"""
    one = await stage.program()
    working = await lost_in_its_block(stage, one, "return")
    stage.resume_service()
    await one.do("finish", lease="w")
    assert await working == {"ended": "lost"}


@scenario
async def limit_zero(stage):
    """A limit and a TTL of 0 are sent as they are, and refused"""
    one = await stage.program()
    for members in ({"limit": 0, "ttl_ms": 5000}, {"ttl_ms": 0}):
        for do in ("lock", "hold"):
            error = await one.fails(do, lease="l", name="a", wait_ms=0, **members)
            assert error == {"kind": "problem", "code": "invalid-body", "retry": "never"}, (members, error)


@scenario
async def key_with_newline(stage):
    """An API key that no header may have is refused at once, by an error that does not have it"""
    one = await stage.program()
    assert await one.do("make_client", api_key="kl_fine") == {"made": True}
    error = await one.fails("make_client", api_key="kl_secret\n")
    assert error["kind"] == "settings" and "secret" not in error["text"], error
    error = await one.fails("make_client", url="http://")
    assert error["kind"] == "settings", error


@scenario
@not_with(*PAGE, why="a browser takes certificates from its own settings")
async def missing_authorities(stage):
    """A file of authorities that is not there is named at once"""
    one = await stage.program()
    error = await one.fails("make_client", ca=str(stage.directory / "authorities.pem"))
    assert error["kind"] == "settings" and "authorities.pem" in error["text"], error


@scenario
@not_with(*PAGE, why="a page reaches the service that it comes from")
async def first_url_is_dead(stage):
    """A service that has two URLs is reached by the one that lives, and a lease goes on over it"""
    by_proxy, past_it = (f"http://127.0.0.1:{port}" for port in (stage.proxy.port, stage.port))
    with dead_port() as port:
        stage.environment["KEYLATCH_URL"] = f"http://127.0.0.1:{port},{by_proxy}"
        one = await stage.program()
        first = await one.do("lock", lease="l", name="a", ttl_ms=LONG)
    assert await one.do("release", lease="l") == {"released": True}
    stage.environment["KEYLATCH_URL"] = f"{by_proxy},{past_it}"
    two = await stage.program()
    second = await two.do("lock", lease="l", name="a", ttl_ms=9000)
    assert second["fencing_token"] > first["fencing_token"]
    stage.proxy.server.close()
    stage.proxy.cut()
    await asyncio.sleep(10)
    assert await two.do("lease", lease="l") == {"lost": False}
    assert await two.do("release", lease="l") == {"released": True}


@scenario
@not_with(*PAGE, why="a page reaches the service that it comes from")
async def url_of_another_store(stage):
    """A URL of a service with another store is not used in the place of the first"""
    other = Stage(stage.keylatch, stage.client)
    async with other:
        urls = (f"http://127.0.0.1:{port}" for port in (stage.proxy.port, other.port))
        stage.environment["KEYLATCH_URL"] = ",".join(urls)
        one = await stage.program()
        await one.do("lock", lease="l", name="a", ttl_ms=LONG)
        stage.proxy.server.close()
        stage.proxy.cut()
        error = await one.fails("lock", lease="m", name="b", ttl_ms=LONG)
        # A try on the connection that was cut may have been sent.
        assert error["kind"] in ("settings", "unreachable", "unknown-effect"), error
        assert not (await other.ask("GET", "/v1/locks"))["locks"]


@scenario
async def service_restarts_in_each_step(stage):
    """Leases, waiters and runs go on over restarts of a service with a store on disk"""
    stage.store = "embedded:data"
    await stage.restart()
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=LONG, wait_ms=20_000)
    await one.do("begin", run="r", key="k", lease_ms=LONG)
    waiting = two.start("lock", lease="m", name="a", ttl_ms=LONG, wait_ms=25_000)
    await eventually(lambda: has_waiters(one, 1))
    await stage.restart()
    assert await one.do("lease", lease="l") == {"lost": False}
    assert await one.do("release", lease="l") == {"released": True}
    await waiting
    await stage.restart()
    await one.do("complete", run="r", status=200, body="done")
    await stage.restart()
    assert (await one.do("begin", run="s", key="k"))["body"] == "done"
    assert await two.do("release", lease="m") == {"released": True}


@scenario
async def lost_create_without_a_wait(stage):
    """A create without a wait outlasts a lost answer and a 503"""
    one = await stage.program()
    stage.proxy.lost = 1
    got = await one.do("lock", lease="l", name="a", ttl_ms=LONG)
    assert (await one.do("show", name="a"))["fencing_token"] == got["fencing_token"]
    stage.proxy.unavailable, stage.proxy.retry_after = 1, 0
    assert (await one.do("lock", lease="m", name="b", ttl_ms=LONG))["fencing_token"] > 0
    assert "held" in await one.do("lock", lease="n", name="a", ttl_ms=LONG)


@scenario
async def duplicate_waits_at_the_service(stage):
    """A duplicate waits at the service and does not ask each second"""
    one, two = await stage.program(), await stage.program()
    await one.do("begin", run="r", key="k", lease_ms=LONG)
    waiting = two.start("begin", run="s", key="k", wait_ms=20_000)
    await asyncio.sleep(4)
    begins = [head for head in stage.proxy.requests if head.startswith("POST /v1/idempotency/k ")]
    assert len(begins) == 2 and "prefer: wait=" in begins[1].lower(), begins
    await one.do("complete", run="r", status=200, body="done")
    assert (await waiting)["body"] == "done"


@scenario
async def interrupted_run_is_done_again(stage):
    """A run whose process is gone is done again where that was said to be safe"""
    one, two = await stage.program(), await stage.program()
    members = {"key": "k", "on_crash": "rerun", "retention_ms": 3_600_000}
    first = await one.do("begin", run="r", lease_ms=1000, **members)
    one.signal(signal.SIGKILL)
    again = await two.do("begin", run="s", wait_ms=20_000, **members)
    assert again["state"] == "begun" and again["fencing_token"] > first["fencing_token"], again
    assert (await record(stage))["expires_in_ms"] <= 3_600_000


@scenario
async def scope_of_a_key(stage):
    """A key in a scope is another than the key alone, from its begin to its end"""
    one = await stage.program()
    scope = {"method": "POST", "path": "/v1/orders", "principal": "ann"}
    for run, members in (("r", {"scope": scope}), ("s", {})):
        assert (await one.do("begin", run=run, key="k", **members))["state"] == "begun"
    await one.do("complete", run="r", status=200, body="of ann")
    assert (await one.do("begin", run="t", key="k", scope=scope))["body"] == "of ann"
    await one.do("fail", run="s", detail="a bug")
    assert (await record(stage))["state"] == "unknown"
