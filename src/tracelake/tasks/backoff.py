"""What failed, each with a pause of its own: who goes on tries it again after that, and does all else meanwhile.

Work that nobody waits for, as compaction is: what fails of it is left, and tried again later.

Only what is damaged is passed by. Whatever else fails, as a disk that is full, is no fault of what was worked on: it
ends the call, and the same is tried again after a pause. Where that is so again and again, it is passed by all the
same: what this machine cannot do is to hold up no other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tracelake import _errors
from tracelake._errors import DamageError, TaskError
from tracelake.limits import MAINTENANCE_PAUSE_MAX_S, MAINTENANCE_TRIES, PIPELINE_PAUSE_MAX_S, PIPELINE_POLL_S

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    pause_s: float
    next_s: float

    @property
    def over_s(self) -> float:
        """When nobody asks for it any more, as it is gone."""
        return self.next_s + PIPELINE_PAUSE_MAX_S


def _steady_s() -> float:
    return time.monotonic()  # asked through its module each time, so that a simulation can answer


class Backoff(Generic[KeyT]):
    """The failures of things that are tried again: each doubles the pause of its own thing."""

    def __init__(
        self, clock: Callable[[], float] = _steady_s, longest_s: float = PIPELINE_PAUSE_MAX_S
    ) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._failures: dict[KeyT, _Failure] = {}
        # None is over before: so where very many fail at once, not all are looked through for each.
        self._first_over_s = math.inf

    def failing(self, key: KeyT) -> str | None:
        """Return why something failed that is not to be tried yet; None where it is."""
        failure = self._failures.get(key)
        return failure.reason if failure is not None and self._clock() < failure.next_s else None

    def failed(self, key: KeyT, reason: str) -> None:
        """Note that something failed once more."""
        now_s = self._clock()
        if now_s >= self._first_over_s:
            self._failures = {of: each for of, each in self._failures.items() if now_s < each.over_s}
            self._first_over_s = min((each.over_s for each in self._failures.values()), default=math.inf)
        before = self._failures.get(key)
        pause_s = PIPELINE_POLL_S if before is None else min(2 * before.pause_s, self._longest_s)
        self._failures[key] = failure = _Failure(reason, pause_s, now_s + pause_s)
        self._first_over_s = min(self._first_over_s, failure.over_s)

    def went_well(self, key: KeyT) -> None:
        """Forget that something failed."""
        self._failures.pop(key, None)


_LEFT: Final = "what was left"
"""What has a pause: all that a call has left, since it failed."""


class RetrySchedule:
    """When something is tried again that was left since it failed: after a pause, or some transactions later."""

    def __init__(self, transactions: int, tries: int = MAINTENANCE_TRIES) -> None:
        self._transactions = transactions
        self._tries = tries
        self._pauses = Backoff[str](longest_s=MAINTENANCE_PAUSE_MAX_S)
        self._has_left = False
        """Whether the last call that did something left what had failed."""
        self._ended = 0
        """How many calls were ended by what failed, since the last one that left nothing."""
        self.not_before = 0
        """The transaction before which nothing is due, or is not tried again, but for a pause that is over."""

    def is_time(self) -> bool:
        """Whether something has failed, and its pause is over."""
        return self._has_left and self._pauses.failing(_LEFT) is None

    def passes_by(self, error: Exception) -> bool:
        """Whether what this failed at is passed by; else it ends the call."""
        return self._ended >= self._tries or is_damage(error)

    def ended(self, transaction: int) -> None:
        """Note that a call was ended by what failed, at a transaction."""
        self._ended += 1
        self.left(transaction)

    def left(self, transaction: int) -> None:
        """Note that a call has left what failed."""
        self.not_before = transaction + self._transactions
        self._has_left = True
        self._pauses.failed(_LEFT, "")

    def went_well(self) -> None:
        """Note that a call has left nothing."""
        self._ended, self._has_left = 0, False
        self._pauses.went_well(_LEFT)


def is_damage(error: Exception) -> bool:
    """Whether something failed because what was read of a store is not what was written, here or in a task."""
    if isinstance(error, TaskError):
        kind = getattr(_errors, (error.kind or "").rsplit(".", 1)[-1], None)
        return isinstance(kind, type) and issubclass(kind, DamageError)
    return isinstance(error, DamageError)
