"""The Python client of keylatch: locks with fencing tokens, and things done once.

    import keylatch

    with keylatch.lock("deploy", wait=30) as lease:
        deploy(lease.fencing_token)

The functions of this module use the service at `KEYLATCH_URL`; a :class:`Client` or an :class:`AsyncClient` says
which service, and as whom.
"""

from __future__ import annotations

from typing import Any

from .client import AsyncClient, Client, Watch
from .errors import Held, KeylatchError, LeaseLost, Problem, Unreachable
from .events import Event
from .lease import AsyncLease, Lease
from .lock import Hold, Lock
from .once import AsyncRun, KeptAnswer, Once, SyncRun

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncRun",
    "Client",
    "Event",
    "Held",
    "Hold",
    "KeptAnswer",
    "KeylatchError",
    "Lease",
    "LeaseLost",
    "Lock",
    "Once",
    "Problem",
    "SyncRun",
    "Unreachable",
    "Watch",
    "hold",
    "lock",
    "once",
    "watch",
]

__version__ = "0.1.0"

_client: Client | None = None


def _default() -> Client:
    global _client
    if _client is None:
        _client = Client()
    return _client


def lock(names: str | list[str], **options: Any) -> Lock:
    """:meth:`Client.lock` of the service at `KEYLATCH_URL`."""
    return _default().lock(names, **options)


def hold(name: str, **options: Any) -> Hold:
    """:meth:`Client.hold` of the service at `KEYLATCH_URL`."""
    return _default().hold(name, **options)


def watch(name: str) -> Watch:
    """:meth:`Client.watch` of the service at `KEYLATCH_URL`."""
    return _default().watch(name)


def once(key: str, **options: Any) -> Once:
    """:meth:`Client.once` of the service at `KEYLATCH_URL`."""
    return _default().once(key, **options)
