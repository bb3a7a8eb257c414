"""What can go wrong, as exceptions: a problem that the service names, or no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Retry = Literal["same-key", "new-key", "never"]


class KeylatchError(Exception):
    """Everything that this package raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As it is, whatever arguments it is made with: workers and queues pickle what comes out of a task.
        return BaseException.__new__, (type(self), *self.args), self.__dict__


class Problem(KeylatchError):
    """The service refused the request, and says why (RFC 9457).

    `code` is a stable word such as `outcome-unknown`; `/problems/CODE` of the service explains it.
    """

    def __init__(self, status: int, document: Mapping[str, Any], retry_after: float | None) -> None:
        self.status = status
        self.document = document
        self.retry_after = retry_after
        super().__init__(self.detail or f"status {status}")

    @property
    def code(self) -> str:
        """The stable word, or the empty text where something else than keylatch answered."""
        return str(self.document.get("code", ""))

    @property
    def detail(self) -> str:
        return str(self.document.get("detail", ""))

    @property
    def retry(self) -> Retry:
        """What the client does next: repeat under the same key or token, correct it, or ask a person."""
        words: dict[Any, Retry] = {"same-key": "same-key", "new-key": "new-key"}
        return words.get(self.document.get("retry"), "same-key" if self.is_passing else "never")

    @property
    def outcome(self) -> str | None:
        """Of a 5xx: `not-executed`, or `unknown` where the request may have been carried out."""
        outcome = self.document.get("outcome")
        return None if outcome is None else str(outcome)

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be answered otherwise after a while."""
        known = self.document.get("retry")
        return known == "same-key" if known else self.status >= 500 or self.status in (408, 429)

    @property
    def is_busy(self) -> bool:
        """Whether somebody else has what was asked for, and may end it."""
        return self.code in ("lock-held", "request-in-progress")

    def may_be_done(self, before: bool) -> bool:
        """Whether a request that is repeated may have been carried out, with what came of the tries before."""
        if self.is_busy or not self.is_passing:
            return False
        return before or (self.outcome or "unknown" if self.status >= 500 else self.outcome) == "unknown"


class Held(KeylatchError):
    """Others held the lock until the wait was over.

    Of several locks `name` is the first that was not to be had. `holder` has `owner`, `fencing_token` and
    `expires_in_ms` of the holder whose lease ends first, where there is one.
    """

    def __init__(self, name: str, holder: Mapping[str, Any] | None) -> None:
        self.name = name
        self.holder = holder
        owner = holder and holder.get("owner")
        super().__init__(f"{name} is held by {owner}" if owner else f"{name} is held")


class Unreachable(KeylatchError):
    """The service gave no answer. Where `sent` is true it may have carried the request out, and where `is_passing` is
    false a later try comes to the same."""

    def __init__(self, why: str, *, sent: bool, is_passing: bool = True) -> None:
        self.sent = sent
        self.is_passing = is_passing
        super().__init__(why)


def check_passing(error: Problem | Unreachable) -> None:
    """Raises what a later try would get too."""
    if not error.is_passing:
        raise error


class LeaseLost(KeylatchError):
    """The lease or the run is over, or will be before it can be renewed: stop.

    `reason` is `expired`, `taken`, `broken`, `unrenewed`, `paused`, `forked`, `released`, or a reason of the
    service for a hold. `names` are its locks, or the key of a run; `by` says who broke it.
    """

    def __init__(self, reason: str, detail: str, names: Sequence[str] = (), by: str | None = None) -> None:
        self.reason = reason
        self.detail = detail
        self.names = tuple(names)
        self.by = by
        how = f"broken by {by}" if by else reason
        super().__init__(f"the lease of {', '.join(self.names)} is lost ({how}): {detail}")


class InUse(KeylatchError):
    """An object with a token of your own was entered while it is in use."""


class BadSettings(KeylatchError, ValueError):
    """A client or a lock cannot be made with these arguments."""


class NothingDone(Exception):
    """Raise this in the block of :func:`keylatch.once` where nothing was done: the key is free again."""
