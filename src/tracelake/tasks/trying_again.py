"""Work that nobody waits for, as compaction is: what fails of it is left, and tried again later.

Only what is damaged is passed by. Whatever else fails, as a disk that is full, is no fault of what was worked on: it
ends the call, and the same is tried again after a pause. Where that is so again and again, it is passed by all the
same: what this machine cannot do is to hold up no other.
"""

from __future__ import annotations

from typing import Final

from tracelake import _errors
from tracelake._errors import DamageError, TaskError
from tracelake.limits import MAINTENANCE_PAUSE_MAX_S, MAINTENANCE_TRIES
from tracelake.tasks.pauses import Pauses

_LEFT: Final = "what was left"
"""What has a pause: all that a call has left, since it failed."""


class TryingAgain:
    """When something is tried again that was left since it failed: after a pause, or some transactions later."""

    def __init__(self, transactions: int, tries: int = MAINTENANCE_TRIES) -> None:
        self._transactions = transactions
        self._tries = tries
        self._pauses = Pauses[str](longest_s=MAINTENANCE_PAUSE_MAX_S)
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
