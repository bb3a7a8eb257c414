"""What `test_workers.py` starts: a program that has used its client and holds two locks, and then forks workers."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable
from typing import Any

import keylatch

ROUNDS = 20
LEASES = [keylatch.lock("lock").acquire(), keylatch.hold("hold").acquire()]
PARENT = os.getpid()


def work(number: int = 0) -> dict[str, Any]:
    """What a worker finds: whether it has its parent's leases, and the locks that it asked for."""
    right = 0
    for round in range(ROUNDS):
        name = f"worker-{os.getpid()}-{round}"
        with keylatch.lock(name) as lease:
            right += lease.name == name
    return {
        "is_child": os.getpid() != PARENT,
        "wrong": ROUNDS - right,
        "lost": [lease.loss and lease.loss.reason for lease in LEASES],
        "released": [lease.release() for lease in LEASES],
        "held": [(keylatch.show(lease.name) or {}).get("fencing_token") == lease.fencing_token for lease in LEASES],
    }


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """The application of gunicorn."""
    start_response("200 OK", [("content-type", "application/json")])
    return [json.dumps(work()).encode()]


if "CELERY" in os.environ:
    from celery import Celery  # type: ignore[import-untyped]

    celery = Celery("workers", **json.loads(os.environ["CELERY"]))
    celery.task(name="work")(work)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(work, range(2))
        pool.close()
        pool.join()
    print(json.dumps([*found, work()]))
