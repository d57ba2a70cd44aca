"""Periodic threads, their throttle, and backoff for failed work: each failure has a separate pause, and other work
continues.

`RetrySchedule` is for background work such as compaction: failed items are skipped and retried later. An item that is
damaged is skipped at once. Any other failure, such as a full disk, is not the item's fault: it ends the call, and the
same item is retried after a pause. After repeated failures the item is skipped too, because an item that this machine
cannot process must not block others.

Libraries such as stamina repeat one call until it succeeds. Here, other items go on during a pause.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final, Generic, Self, TypeVar

from tracelake import _errors
from tracelake._errors import DamageError, TaskError, TracelakeError
from tracelake.limits import MAINTENANCE_TRIES, PIPELINE_PAUSE_MAX_S, PIPELINE_POLL_S

MAINTENANCE_PAUSE_MAX_S: Final = 600.0
"""Longest backoff before failed compactions or merges are retried; the backoff doubles up to it."""

_PIECE_MIN_S: Final = 0.05
"""Shortest work after which a throttle looks for commits."""
_BUSY_S: Final = 30.0
"""Time after a commit of others for which a throttle expects the next one."""
_THROTTLE_MAX_S: Final = 60.0
"""Longest pause of a throttle, if a piece of the work took long or the process was suspended."""

KeyT = TypeVar("KeyT", bound=Hashable)


def backoff_s(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause before a retry: doubled by each failure, up to the longest."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))  # A larger power may be no float.


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    pause_s: float
    next_s: float

    @property
    def over_s(self) -> float:
        """Return the time after which the failure is dropped: no caller asks for it any more, because the item is
        gone."""
        return self.next_s + PIPELINE_PAUSE_MAX_S


def _steady_s() -> float:
    return time.monotonic()  # Looked up in the module at each call, so that a simulation can replace it.


class Backoff(Generic[KeyT]):
    """Failures of retried items: each failure doubles the pause of its item."""

    def __init__(
        self, clock: Callable[[], float] = _steady_s, longest_s: float = PIPELINE_PAUSE_MAX_S
    ) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._failures: dict[KeyT, _Failure] = {}
        # No failure expires before this time, so many simultaneous failures do not scan all entries each
        # time.
        self._first_over_s = math.inf

    def failing(self, key: KeyT) -> str | None:
        """Return why an item failed if its pause is not over; otherwise None."""
        failure = self._failures.get(key)
        return failure.reason if failure is not None and self._clock() < failure.next_s else None

    def failed(self, key: KeyT, reason: str) -> None:
        """Record another failure of an item."""
        now_s = self._clock()
        if now_s >= self._first_over_s:
            self._failures = {of: each for of, each in self._failures.items() if now_s < each.over_s}
            self._first_over_s = min((each.over_s for each in self._failures.values()), default=math.inf)
        before = self._failures.get(key)
        pause_s = PIPELINE_POLL_S if before is None else backoff_s(before.pause_s, 1, self._longest_s)
        self._failures[key] = failure = _Failure(reason, pause_s, now_s + pause_s)
        self._first_over_s = min(self._first_over_s, failure.over_s)

    def succeeded(self, key: KeyT) -> None:
        """Forget an item's failures."""
        self._failures.pop(key, None)


_LEFT: Final = "what was left"
"""Key of the only pause, which covers all items that a call skipped."""


class RetrySchedule:
    """Retry schedule for skipped items: after a pause, or some transactions later."""

    def __init__(self, transactions: int, tries: int = MAINTENANCE_TRIES) -> None:
        self._transactions = transactions
        self._tries = tries
        self._pauses = Backoff[str](longest_s=MAINTENANCE_PAUSE_MAX_S)
        self._has_skipped = False
        """Whether the last call that did work skipped failed items."""
        self._ended = 0
        """Number of calls that a failure ended since the last call that skipped nothing."""
        self.not_before = 0
        """Transaction before which no work is due and nothing is retried, unless a pause is over."""

    def is_time(self) -> bool:
        """Return whether an item has failed and the pause is over."""
        return self._has_skipped and self._pauses.failing(_LEFT) is None

    def passes_by(self, error: Exception) -> bool:
        """Return whether to skip an item that failed with this error. If False, the error must end the call."""
        return self._ended >= self._tries or is_damage(error)

    def ended(self, transaction: int) -> None:
        """Record that a failure ended a call at a transaction."""
        self._ended += 1
        self.skipped(transaction)

    def skipped(self, transaction: int) -> None:
        """Record that a call skipped failed items."""
        self.not_before = transaction + self._transactions
        self._has_skipped = True
        self._pauses.failed(_LEFT, "")

    def succeeded(self) -> None:
        """Record that a call skipped nothing."""
        self._ended, self._has_skipped = 0, False
        self._pauses.succeeded(_LEFT)


def is_damage(error: Exception) -> bool:
    """Return whether an error, of this process or a task, means that stored data is damaged."""
    if isinstance(error, TaskError):
        kind = getattr(_errors, (error.kind or "").rsplit(".", 1)[-1], None)
        return isinstance(kind, type) and issubclass(kind, DamageError)
    return isinstance(error, DamageError)


@dataclass(frozen=True, slots=True)
class FailureLog:
    """Log of the failures of a periodic step, and the pause before its retry. A repeated message is logged once."""

    logger: logging.Logger
    message: str
    """Consequence of a failure, such as `garbage was not collected`."""
    retry_s: float


class Throttle:
    """Pauses of background work: while others commit, it runs for a quarter of the time."""

    def __init__(
        self,
        commits: Callable[[], int],
        clock: Callable[[], float] = _steady_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare the throttle. `commits` returns a number that grows with each commit of others."""
        self.commits = commits
        self._clock = clock
        self._sleep = sleep
        self.start()

    def start(self) -> None:
        """Begin the work: earlier time and earlier commits do not count."""
        self._seen: int | None = None
        self._busy_until_s = -math.inf
        self._resumed_s = self._clock()

    def pause(self) -> None:
        """Pause after a piece of the work, three times as long as it took, if others have committed lately."""
        now_s = self._clock()
        work_s = now_s - self._resumed_s
        if work_s < _PIECE_MIN_S:
            return
        commits, before = self.commits(), self._seen
        self._seen = commits
        if before is not None and commits != before:
            self._busy_until_s = now_s + _BUSY_S
        if now_s < self._busy_until_s:
            self._sleep(min(_THROTTLE_MAX_S, 3 * work_s))
        self._resumed_s = self._clock()


class PeriodicThread:
    """Thread that runs a step, pauses, and repeats; also a context manager.

    A step returns the seconds until the next one, or None to end the thread. The thread is a daemon, so a step that
    hangs does not block the end of the process.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        first_pause_s: float = 0.0,
        stopping: Event | None = None,
        *,
        failures: FailureLog | None = None,
        stop_max_s: float | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            name: name of the thread.
            step: function that runs repeatedly.
            first_pause_s: seconds before the first step.
            stopping: event that `stop` sets; a long step may check it.
            failures: log of the exceptions of steps, which are then retried. Without it, an exception ends the thread.
            stop_max_s: seconds that the end of a `with` block waits for the current step; without it, until its end.
        """
        self._stopping = stopping or Event()
        self._step = step
        self._failure_log = failures
        self._logged = ""
        self._stop_max_s = stop_max_s
        self._pause_s: float | None = first_pause_s
        self._is_waiting = False
        self._wake = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread after the current step, or abandon a step that takes too long."""
        self.stop(self._stop_max_s)

    def turn(self) -> float | None:
        """Run one step. Return the seconds until the next one, or None to end the thread."""
        if self._failure_log is None:
            return self._step()
        try:
            pause_s = self._step()
        except Exception as error:
            is_expected = isinstance(error, TracelakeError | OSError)
            reason = str(error) if is_expected else f"internal error {type(error).__name__}: {error}"
            if reason != self._logged:
                self._logged = reason
                log, message = self._failure_log.logger, self._failure_log.message
                log.warning("%s: %s", message, reason, exc_info=None if is_expected else error)
            return self._failure_log.retry_s
        self._logged = ""
        return pause_s

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the current pause, or skip the next one."""
        self._wake.set()

    def stop(self, wait_s: float | None = None) -> bool:
        """Begin no more steps, and wait for the current one; return whether it ended in time."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:  # A failed start of its owner may never have started it.
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def stopping(self) -> bool:
        """Return whether a stop was requested."""
        return self._stopping.is_set()

    def is_waiting(self) -> bool:
        """Return whether the thread pauses."""
        return self._is_waiting

    def has_died(self) -> bool:
        """Return whether the thread ended although nothing stopped it."""
        # The flag is checked last, because a stop sets it before the thread ends.
        return self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def _run(self) -> None:
        while self._pause_s is not None:
            self._is_waiting = True
            self._wake.wait(self._pause_s)
            self._is_waiting = False
            # Clear before the check: `stop` sets `stopping` first, so no stop is lost in between.
            self._wake.clear()
            if self._stopping.is_set():
                return
            self._pause_s = self.turn()
