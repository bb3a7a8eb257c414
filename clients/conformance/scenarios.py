"""What every client does, one function each. The first line of each is its row in the table."""

import asyncio
import base64
import signal
import subprocess

from marks import PAGE, not_with, scenario
from stage import dead_port, eventually, has_waiters, holding, sent

REPEATS = "a browser itself repeats a request whose kept connection is cut"
CERTIFICATES = "a browser takes certificates from its own settings"


@scenario
async def grant(stage):
    """A lock has a fencing token, and is free after its release"""
    one = await stage.program()
    got = await one.do("lock", lease="l", name="a b/ü.x", ttl_ms=5000, owner="ann")
    assert got["fencing_token"] > 0 and got["token"], got
    assert (await one.do("show", name="a b/ü.x"))["owner"] == "ann"
    assert await one.do("release", lease="l") == {"released": True}
    assert not await holding(one, "a b/ü.x")


@scenario
async def held_names_the_holder(stage):
    """A lock that is held says who holds it"""
    one = await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=5000, owner="ann")
    got = await one.do("lock", lease="m", name="a", ttl_ms=5000)
    assert got["held"]["owner"] == "ann", got


@scenario
async def fencing_tokens_rise(stage):
    """Fencing tokens rise from grant to grant"""
    one = await stage.program()
    tokens = []
    for _ in range(3):
        tokens.append((await one.do("lock", lease="l", name="a", ttl_ms=5000))["fencing_token"])
        await one.do("release", lease="l")
    assert tokens == sorted(set(tokens)), tokens


@scenario
async def waiter_is_served(stage):
    """A waiter gets the lock when it is released"""
    one, two = await stage.program(), await stage.program()
    first = await one.do("lock", lease="l", name="a", ttl_ms=20000)
    waiting = two.start("lock", lease="m", name="a", ttl_ms=5000, wait_ms=20000)
    await eventually(lambda: has_waiters(one, 1))
    await one.do("release", lease="l")
    assert (await waiting)["fencing_token"] > first["fencing_token"]


@scenario
async def wait_ends(stage):
    """A wait that is over says that the lock is held"""
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=20000)
    got = await two.do("lock", lease="m", name="a", ttl_ms=5000, wait_ms=300)
    assert "held" in got, got


@scenario
async def one_waits(stage):
    """A wait behind too many ends at once, and is not begun again"""
    one, two = await stage.program(), await stage.program()
    wait = {"name": "a", "ttl_ms": 5000, "wait_ms": 20000, "max_ahead": 0}
    await one.do("lock", lease="l", name="a", ttl_ms=20000)
    waiting = one.start("lock", lease="m", **wait)
    await eventually(lambda: has_waiters(one, 1))
    begun = len(stage.proxy.requests)
    got = await two.do("lock", lease="n", **wait)
    assert "held" in got, got
    creates = [line for line in stage.proxy.requests[begun:] if line.startswith("POST")]
    assert len(creates) == 1, creates
    await one.do("release", lease="l")
    assert (await waiting)["fencing_token"] > 0


@scenario
async def lease_is_renewed(stage):
    """A lease is renewed past its TTL"""
    one = await stage.program()
    got = await one.do("lock", lease="l", name="a", ttl_ms=9000)
    await asyncio.sleep(10)
    assert (await one.do("show", name="a"))["fencing_token"] == got["fencing_token"]
    assert await one.do("lease", lease="l") == {"lost": False}
    assert await one.do("release", lease="l") == {"released": True}


@scenario
async def lost_create(stage):
    """A create whose answer is lost is repeated, and granted once"""
    one = await stage.program()
    stage.proxy.lost = 1
    got = await one.do("lock", lease="l", name="a", ttl_ms=5000, wait_ms=10000)
    shown = await one.do("show", name="a")
    assert shown["fencing_token"] == got["fencing_token"], shown
    creates = [line for line in stage.proxy.requests if line.startswith("POST")]
    assert len(creates) >= 2, creates


@scenario
async def service_comes_back(stage):
    """A service that is away at first is waited for"""
    one = await stage.program()
    stage.proxy.refuses = True
    waiting = one.start("lock", lease="l", name="a", ttl_ms=5000, wait_ms=20000)
    await asyncio.sleep(0.6)
    assert not waiting.done()
    stage.proxy.refuses = False
    assert (await waiting)["fencing_token"] > 0


@scenario
@not_with(*PAGE, why="a browser does not say whether it has sent a request")
async def no_service(stage):
    """A service that is not there is reported as unreachable"""
    with dead_port() as port:
        stage.environment["KEYLATCH_URL"] = f"http://127.0.0.1:{port}"
        one = await stage.program()
        error = await one.fails("lock", lease="l", name="a", ttl_ms=5000)
    assert error["kind"] == "unreachable", error


@scenario
async def unanswered(stage):
    """A request whose answers are all lost is said to have an unknown effect"""
    one = await stage.program()
    stage.proxy.lost = 1000
    error = await one.fails("lock", lease="l", name="a", ttl_ms=5000)
    assert error["kind"] == "unknown-effect", error


@scenario
async def unavailable_is_repeated(stage):
    """A 503 is repeated after its Retry-After"""
    one = await stage.program()
    stage.proxy.unavailable = 1
    clock = asyncio.get_running_loop().time
    began = clock()
    got = await one.do("lock", lease="l", name="a", ttl_ms=5000, wait_ms=10000)
    assert got["fencing_token"] > 0 and clock() - began >= 3


@scenario
async def lost_renewal(stage):
    """A lease survives a renewal whose answer is lost"""
    one = await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=12_000)
    stage.proxy.lost = 1
    await asyncio.sleep(13)
    assert stage.proxy.lost == 0
    assert await one.do("lease", lease="l") == {"lost": False}
    assert await one.do("release", lease="l") == {"released": True}


@scenario
async def unreachable_service_ends_lease(stage):
    """A lease that cannot be renewed is lost before another client can have the lock"""
    one = await stage.program()
    # An answer that is late takes nothing from the quarter of 4 s: the validity began when the request was sent.
    stage.proxy.delay = 3
    await one.do("lock", lease="l", name="a", ttl_ms=16000)
    stage.proxy.refuses = True
    stage.proxy.cut()
    await one.event("lost", lease="l")
    stage.proxy.refuses, stage.proxy.delay = False, 0
    shown = await one.do("show", name="a")
    assert shown.get("expires_in_ms", 0) > 2000, shown


@scenario
async def paused_service_ends_lease(stage):
    """A lease is lost while the service is paused, without an answer"""
    one = await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=2000)
    stage.pause_service()
    await one.event("lost", lease="l")
    stage.resume_service()


@scenario
async def paused_process_has_lost(stage):
    """A process that was paused for longer than its lease knows that it is lost"""
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=1000)
    one.signal(signal.SIGSTOP)
    got = await two.do("lock", lease="m", name="a", ttl_ms=20000, wait_ms=20000)
    assert got["fencing_token"] > 0
    one.signal(signal.SIGCONT)
    await one.event("lost", lease="l")
    assert await one.do("release", lease="l") == {"released": False}


@scenario
async def slow_answers(stage):
    """Answers that come late shorten the validity, and the lease is held all the same"""
    one = await stage.program()
    stage.proxy.delay = 0.3
    await one.do("lock", lease="l", name="a", ttl_ms=9000)
    await asyncio.sleep(10)
    assert await one.do("lease", lease="l") == {"lost": False}
    assert await one.do("release", lease="l") == {"released": True}


@scenario
async def cut_waiter_is_served(stage):
    """A waiter whose connection is cut waits again"""
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=20000)
    waiting = two.start("lock", lease="m", name="a", ttl_ms=5000, wait_ms=20000)
    await eventually(lambda: has_waiters(one, 1))
    stage.proxy.cut()
    await one.do("release", lease="l")
    assert (await waiting)["fencing_token"] > 0


@scenario
@not_with(*PAGE, why=REPEATS)
async def lost_release(stage):
    """A release whose answer is lost is repeated, and counts as one"""
    one = await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=20000)
    stage.proxy.lost = 1
    assert await one.do("release", lease="l") == {"released": True}
    assert not await holding(one, "a")


@scenario
async def broken_lease(stage):
    """A lease that is broken is lost, and says so and by whom"""
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=15_000)
    await two.do("break", name="a", reason="it hangs", by="ann")
    lost = await one.event("lost", lease="l")
    assert (lost["reason"], lost["by"]) == ("broken", "ann"), lost


@scenario
async def readers_share(stage):
    """Readers hold a lock together, and a writer does not"""
    one = await stage.program()
    first = await one.do("lock", lease="l", name="a", ttl_ms=5000, limit="shared")
    second = await one.do("lock", lease="m", name="a", ttl_ms=5000, limit="shared")
    assert first["fencing_token"] == second["fencing_token"]
    assert "held" in await one.do("lock", lease="n", name="a", ttl_ms=5000)


@scenario
async def counted_slots(stage):
    """A counted lock gives each holder a slot, and no more than its number"""
    one = await stage.program()
    got = [await one.do("lock", lease=f"l{n}", name="a", ttl_ms=5000, limit=2) for n in range(3)]
    assert [lock.get("slot") for lock in got] == [0, 1, None] and "held" in got[2], got


@scenario
async def set_is_all_or_none(stage):
    """Several locks are got at once or not at all, and the one in the way has a name"""
    one = await stage.program()
    await one.do("lock", lease="l", name="b", ttl_ms=20000)
    got = await one.do("lock_set", lease="m", names=["a", "b"], ttl_ms=5000)
    assert got["held"]["name"] == "b", got
    assert not await holding(one, "a")


@scenario
async def set_is_renewed_and_released(stage):
    """Several locks have a fencing token each, and are renewed and released together"""
    one = await stage.program()
    got = await one.do("lock_set", lease="l", names=["a", "b"], ttl_ms=9000)
    assert sorted(got["fencing_tokens"]) == ["a", "b"], got
    await asyncio.sleep(10)
    assert await holding(one, "a") and await holding(one, "b")
    assert await one.do("release", lease="l") == {"released": True}
    assert not await holding(one, "a") and not await holding(one, "b")


@scenario
async def entries(stage):
    """A token enters its lock again, and the lock is free when the last entry is left"""
    one = await stage.program()
    first = await one.do("lock", lease="l", name="a", ttl_ms=5000, entry="outer")
    inner = {"lease": "m", "name": "a", "ttl_ms": 5000, "entry": "inner", "token": first["token"]}
    second = await one.do("lock", **inner)
    assert first["fencing_token"] == second["fencing_token"]
    assert await one.do("release", lease="m") == {"released": True}
    assert await holding(one, "a")
    assert await one.do("release", lease="l") == {"released": True}
    assert not await holding(one, "a")


@scenario
async def hold_is_renewed(stage):
    """A hold lasts past its TTL, and is free after its release"""
    one = await stage.program()
    await one.do("hold", lease="l", name="a", wait_ms=0, ttl_ms=9000)
    await asyncio.sleep(10)
    assert await holding(one, "a")
    assert await one.do("lease", lease="l") == {"lost": False}
    assert await one.do("release", lease="l") == {"released": True}
    assert not await holding(one, "a")


@scenario
async def hold_waits(stage):
    """A hold waits in the queue"""
    one, two = await stage.program(), await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=20000)
    assert "held" in await two.do("hold", lease="m", name="a", wait_ms=0, ttl_ms=5000)
    waiting = two.start("hold", lease="m", name="a", wait_ms=20000, ttl_ms=5000)
    await eventually(lambda: has_waiters(one, 1))
    await one.do("release", lease="l")
    assert (await waiting)["fencing_token"] > 0


@scenario
async def refused_hold_names_the_holder(stage):
    """A hold that is refused says who holds the lock"""
    one = await stage.program()
    await one.do("lock", lease="l", name="ci.deploy", ttl_ms=20000, owner="ann", limit="shared")
    for wait in (0, 300):
        got = await one.do("hold", lease="m", name="ci.deploy", ttl_ms=5000, wait_ms=wait)
        assert got["held"]["owner"] == "ann" and got["held"]["name"] == "ci.deploy", got


@scenario
async def paused_service_opens_no_hold(stage):
    """A hold gives up where the service does not answer"""
    one = await stage.program()
    stage.pause_service()
    error = await one.fails("hold", lease="l", name="a", ttl_ms=5000, wait_ms=0)
    assert error["kind"] == "unknown-effect", error


@scenario
async def lost_hold_is_exclusive_until_its_end(stage):
    """A hold that is lost is exclusive until its validity ends"""
    one, two = await stage.program(), await stage.program()
    clock = asyncio.get_running_loop().time
    assert not await holding(one, "a") and not await holding(two, "a")
    began = clock()
    await one.do("hold", lease="l", name="a", wait_ms=0, ttl_ms=12_000)
    stage.pause_service()
    await one.event("lost", lease="l")
    stage.resume_service()
    await two.do("lock", lease="m", name="a", ttl_ms=5000, wait_ms=20000)
    assert clock() - began > 11.5, clock() - began


@scenario
async def hold_ends_with_the_process(stage):
    """A hold is free as soon as its process is killed"""
    one, two = await stage.program(), await stage.program()
    await one.do("hold", lease="l", name="a", wait_ms=0, ttl_ms=600_000)
    one.signal(signal.SIGKILL)
    got = await two.do("lock", lease="m", name="a", ttl_ms=5000, wait_ms=20000)
    assert got["fencing_token"] > 0


@scenario
async def cut_hold_is_lost(stage):
    """A hold whose connection is cut is lost"""
    one = await stage.program()
    await one.do("hold", lease="l", name="a", wait_ms=0, ttl_ms=20000)
    stage.proxy.cut()
    await one.event("lost", lease="l")


@scenario
async def watch(stage):
    """A watch reports what happens to a lock"""
    one = await stage.program()
    await one.do("watch", watch="w", name="a")
    await one.event("change", watch="w", type="snapshot")
    await one.do("lock", lease="l", name="a", ttl_ms=20000)
    await one.event("change", watch="w", type="acquired")
    await one.do("release", lease="l")
    await one.event("change", watch="w", type="released")


@scenario
async def cut_watch_continues(stage):
    """A watch whose connection is cut begins again"""
    one = await stage.program()
    await one.do("watch", watch="w", name="a")
    await one.event("change", watch="w", type="snapshot")
    stage.proxy.cut()
    await one.event("change", watch="w", type="snapshot")


@scenario
async def silent_watch_continues(stage):
    """A watch whose connection is silent begins again"""
    await stage.restart("[stream]\nheartbeat_ms = 200\n")
    stage.environment["CONFORMANCE_SILENCE_MS"] = "3000"
    one = await stage.program()
    await one.do("watch", watch="w", name="a")
    await one.event("change", watch="w", type="snapshot")
    stage.proxy.silence()
    await one.event("change", watch="w", type="snapshot")


@scenario
async def repeat_reads_the_answer(stage):
    """What was done is read by a repeat"""
    one = await stage.program()
    assert (await one.do("begin", run="r", key="k", fingerprint="f"))["state"] == "begun"
    await one.do("complete", run="r", status=201, body="made")
    got = await one.do("begin", run="s", key="k", fingerprint="f")
    assert (got["state"], got["status"], got["body"]) == ("done", 201, "made"), got


@scenario
async def binary_answer(stage):
    """An answer that is not text is read with its headers"""
    one = await stage.program()
    headers = {"content-type": ["image/png"], "x-two": ["1", "2"]}
    content = base64.b64encode(b"\x89PNG\xff").decode()
    await stage.ask("POST", "/v1/idempotency/k", {}, token="t" * 20)
    await stage.ask("PUT", "/v1/idempotency/k", {"headers": headers, "body_base64": content}, token="t" * 20)
    got = await one.do("begin", run="r", key="k")
    assert got["body_base64"] == content and "body" not in got, got
    assert got["headers"] == headers, got


@scenario
@not_with(*PAGE, why="a browser has no path to the name `..`")
async def dots_are_no_steps(stage):
    """A key or a name of dots is one like any other"""
    one = await stage.program()
    for key in (".", "..", "a/../b"):
        await one.do("begin", run=key, key=key)
        await one.do("complete", run=key, status=200, body=f"of {key}")
        assert (await one.do("begin", run="again", key=key))["body"] == f"of {key}"
        await one.do("lock", lease=key, name=key, ttl_ms=5000)
        assert await one.do("release", lease=key) == {"released": True}


@scenario
async def other_fingerprint(stage):
    """A key that was used for another thing is a problem that says so"""
    one = await stage.program()
    await one.do("begin", run="r", key="k", fingerprint="f")
    await one.do("complete", run="r", status=200, body="")
    error = await one.fails("begin", run="s", key="k", fingerprint="g")
    assert error == {"kind": "problem", "code": "idempotency-key-reused", "retry": "new-key"}, error


@scenario
async def under_way(stage):
    """A key that is under way is a problem that says when to repeat"""
    one = await stage.program()
    await one.do("begin", run="r", key="k")
    error = await one.fails("begin", run="s", key="k")
    assert error == {"kind": "problem", "code": "request-in-progress", "retry": "same-key"}, error


@scenario
async def abandoned_key_is_free(stage):
    """A key whose run is abandoned is free"""
    one = await stage.program()
    await one.do("begin", run="r", key="k")
    await one.do("abandon", run="r")
    assert (await one.do("begin", run="s", key="k"))["state"] == "begun"


@scenario
async def lost_begin_and_complete(stage):
    """A begin and a complete whose answers are lost are repeated"""
    one = await stage.program()
    stage.proxy.lost = 1
    assert (await one.do("begin", run="r", key="k"))["state"] == "begun"
    stage.proxy.lost = 1
    await one.do("complete", run="r", status=200, body="done")
    assert (await one.do("begin", run="s", key="k"))["body"] == "done"


@scenario
async def once(stage):
    """Of two that do one thing at once, one does it and the other reads the answer"""
    one, two = await stage.program(), await stage.program()
    both = [one.start("once", key="k", body="1", take_ms=500), two.start("once", key="k", body="2", take_ms=500)]
    got = [await each for each in both]
    assert sorted(each["replayed"] for each in got) == [False, True], got
    assert got[0]["body"] == got[1]["body"], got


@scenario
async def api_key(stage):
    """A service that asks for an API key is sent it, and a client without a good one reads a problem"""
    made = subprocess.run([stage.keylatch, "apikey", "create", "ops"], capture_output=True, text=True, check=True)
    key, entry = made.stdout.split("\n", 1)
    (stage.directory / "identities.toml").write_text(entry.replace("ops/", ""))
    await stage.restart('identities = "identities.toml"\n')
    for bad in ({}, {"KEYLATCH_API_KEY": key[:-8] + "stranger"}):
        stage.environment = bad
        stranger = await stage.program()
        error = await stranger.fails("lock", lease="l", name="a", ttl_ms=5000)
        assert error == {"kind": "problem", "code": "unauthenticated", "retry": "never"}, (bad, error)
    stage.environment["KEYLATCH_API_KEY"] = key
    one = await stage.program()
    assert (await one.do("lock", lease="l", name="a", ttl_ms=5000))["fencing_token"] > 0


@scenario
async def traceparent(stage):
    """Each request belongs to the trace that the program says"""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    stage.environment["TRACEPARENT"] = trace
    one = await stage.program()
    await one.do("lock", lease="l", name="a", ttl_ms=9000)
    await one.do("hold", lease="h", name="b", ttl_ms=5000)
    await one.do("begin", run="r", key="k", lease_ms=9000)
    for renewal in ("PUT /v1/locks/a ", "POST /v1/idempotency/k/renew "):
        await eventually(sent(stage, renewal))
    await one.do("release", lease="l")
    assert len(stage.proxy.requests) >= 6, stage.proxy.requests
    for head in stage.proxy.requests:
        assert f"traceparent: {trace}" in head.lower(), head


@scenario
@not_with(*PAGE, why=CERTIFICATES)
async def tls(stage):
    """A service with TLS of an authority of one's own is known by its file"""
    authority(stage)
    await stage.restart('[tls]\ncert = "cert.pem"\nkey = "key.pem"\n')
    stage.scheme = "https"
    stage.environment["KEYLATCH_CA"] = str(stage.directory / "ca.pem")
    one = await stage.program()
    assert (await one.do("lock", lease="l", name="a", ttl_ms=5000))["fencing_token"] > 0


@scenario
@not_with(*PAGE, why=CERTIFICATES)
async def certificate(stage):
    """A service that asks for a certificate is shown the one that the program says"""
    authority(stage)
    (stage.directory / "identities.toml").write_text(
        '[[identity]]\nname = "ops"\ncertificates = ["127.0.0.1"]\nallow = [{ locks = "", may = ["acquire"] }]\n'
    )
    await stage.restart(
        'identities = "identities.toml"\n[tls]\ncert = "cert.pem"\nkey = "key.pem"\nclient_ca = "ca.pem"\n',
    )
    stage.scheme = "https"
    for member, file in (("CA", "ca.pem"), ("CERT", "cert.pem"), ("KEY", "key.pem")):
        stage.environment[f"CONFORMANCE_{member}"] = str(stage.directory / file)
    one = await stage.program()
    assert (await one.do("lock", lease="l", name="a", ttl_ms=5000))["fencing_token"] > 0


def authority(stage):
    """Makes an authority, `ca.pem`, and a certificate of it for 127.0.0.1, `cert.pem`, with its `key.pem`."""
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-subj", "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    for arguments in (authority, [*names, *signed]):
        subprocess.run([*make, *arguments], cwd=stage.directory, check=True, capture_output=True)
