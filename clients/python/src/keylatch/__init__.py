"""The Python client of keylatch: locks with fencing tokens, and things done once.

    import keylatch

    with keylatch.lock("deploy", wait=30) as lease:
        deploy(lease.fencing_token)

The functions of this module use the service at `KEYLATCH_URL`; a :class:`Client` or an :class:`AsyncClient` says
which service, and as whom.
"""

from __future__ import annotations

__version__ = "0.1.0"

from typing import Any

from .client import AsyncClient, Client, Watch
from .errors import BadSettings, Held, InUse, KeylatchError, LeaseLost, NothingDone, Problem, Unreachable
from .lease import AsyncLease, Lease, OnLost
from .lock import AsyncLock, Lock
from .once import AsyncOnce, AsyncRun, KeptAnswer, Once, SyncRun
from .protocol import Event

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "AsyncOnce",
    "AsyncRun",
    "BadSettings",
    "Client",
    "Event",
    "Held",
    "InUse",
    "KeptAnswer",
    "KeylatchError",
    "Lease",
    "LeaseLost",
    "Lock",
    "NothingDone",
    "OnLost",
    "Once",
    "Problem",
    "SyncRun",
    "Unreachable",
    "Watch",
    "break_lock",
    "close",
    "elect",
    "hold",
    "lock",
    "locked",
    "once",
    "show",
    "watch",
]


class _Default(Client):
    """The client of the environment, which is read when it is first used."""

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name != "_transport":
            raise AttributeError(name)
        super().__init__()
        return self._transport


_default = _Default()
lock, hold, once, watch = _default.lock, _default.hold, _default.once, _default.watch
show, break_lock, locked = _default.show, _default.break_lock, _default.locked
elect, close = _default.elect, _default.close
