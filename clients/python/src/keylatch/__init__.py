"""The Python client of keylatch: locks with fencing tokens, and things done once.

    import keylatch

    with keylatch.lock("deploy", wait=30) as lease:
        deploy(lease.fencing_token)

The functions of this module use the service at `KEYLATCH_URL`; a :class:`Client` or an :class:`AsyncClient` says
which service, and as whom.
"""

from __future__ import annotations

from collections.abc import Sequence

from .client import AsyncClient, Client, Watch
from .errors import Held, KeylatchError, LeaseLost, Problem, Unreachable
from .events import Event
from .lease import AsyncLease, Lease, OnLost
from .lock import Hold, Lock
from .once import AsyncRun, KeptAnswer, Once, SyncRun
from .protocol import Limit

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


def lock(
    names: str | Sequence[str],
    *,
    wait: float = 0.0,
    ttl: float = 30.0,
    owner: str | None = None,
    limit: Limit = None,
    entry: str | None = None,
    token: str | None = None,
    on_lost: OnLost | None = None,
) -> Lock:
    """:meth:`Client.lock` of the service at `KEYLATCH_URL`."""
    return _default().lock(
        names, wait=wait, ttl=ttl, owner=owner, limit=limit, entry=entry, token=token, on_lost=on_lost
    )


def hold(
    name: str,
    *,
    wait: float = 0.0,
    ttl: float = 30.0,
    owner: str | None = None,
    limit: Limit = None,
    on_lost: OnLost | None = None,
) -> Hold:
    """:meth:`Client.hold` of the service at `KEYLATCH_URL`."""
    return _default().hold(name, wait=wait, ttl=ttl, owner=owner, limit=limit, on_lost=on_lost)


def watch(name: str) -> Watch:
    """:meth:`Client.watch` of the service at `KEYLATCH_URL`."""
    return _default().watch(name)


def once(key: str, *, fingerprint: str | None = None, lease: float = 30.0, wait: float = 0.0) -> Once:
    """:meth:`Client.once` of the service at `KEYLATCH_URL`."""
    return _default().once(key, fingerprint=fingerprint, lease=lease, wait=wait)
