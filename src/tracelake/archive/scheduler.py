"""The archive scheduler of a server: passes at an interval, extra passes for experiments marked archiveNow, and
sweeps.

Any number of servers may run it on one lake, because finalize resolves conflicts trace by trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from threading import Event
from typing import Final, TypeAlias

from tracelake.tasks.backoff import PeriodicThread

ARCHIVE_SWEEP_EACH_S: Final = 21_600.0
"""Time between two automatic sweeps of a server; the first runs one pass interval after its start."""
ARCHIVE_POLL_S: Final = 5.0
"""Time between a server's checks for experiments marked archiveNow."""
ARCHIVE_STOP_MAX_S: Final = 30.0
"""Time that a stopping server waits for the current batch of a pass."""

Marks: TypeAlias = frozenset[tuple[str, str]]
"""Experiments marked archiveNow, each with the text of its mark."""


class ScheduledTurn(Enum):
    """The next action of a scheduler."""

    ALL = "all"
    """A pass over all due traces."""
    MARKED = "marked"
    """A pass over experiments marked archiveNow."""
    SWEEP = "sweep"
    """A sweep of leftovers of passes."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class ArchiveSchedule:
    """The state of a scheduler. It is immutable; its methods return the next state.

    A mark that remains after a pass is tried again at the next interval, like all failures. Otherwise a mark that
    cannot be satisfied would cause passes without a pause.
    """

    next_pass_s: float
    tried: Marks = frozenset()
    next_sweep_s: float = math.inf

    def turn(self, now_s: float, marks: Marks) -> ScheduledTurn:
        """Return the next action. A sweep precedes passes, which may follow each other for long."""
        if now_s >= self.next_sweep_s:
            return ScheduledTurn.SWEEP
        if now_s >= self.next_pass_s:
            return ScheduledTurn.ALL
        return ScheduledTurn.MARKED if marks - self.tried else ScheduledTurn.WAIT

    def waited(self, marks: Marks) -> ArchiveSchedule:
        """Forget marks that were removed, so that setting a mark again triggers a pass."""
        return replace(self, tried=self.tried & marks)

    def passed(
        self,
        turn: ScheduledTurn,
        now_s: float,
        interval_s: float,
        before: Marks,
        after: Marks,
        *,
        goes_on: bool = False,
    ) -> ArchiveSchedule:
        """Return the state after a pass that ended now, given the marks before and after the pass.

        With `goes_on`, the pass stopped at its limit, and the next one follows immediately.
        """
        again_s = now_s + (0.0 if goes_on else interval_s)
        next_pass_s = again_s if turn is ScheduledTurn.ALL else self.next_pass_s
        return replace(self, next_pass_s=next_pass_s, tried=(self.tried if goes_on else before) & after)

    def swept(self, now_s: float) -> ArchiveSchedule:
        """Return the state after a sweep that ended now."""
        return replace(self, next_sweep_s=now_s + ARCHIVE_SWEEP_EACH_S)


class ArchiveLoop(PeriodicThread):
    """A background thread that runs passes until it is stopped, the first at once, and sweeps an interval later."""

    def __init__(
        self,
        run_pass: Callable[[bool], bool],
        marks: Callable[[], Marks],
        interval_s: float,
        stopping: Event,
        poll_s: float = ARCHIVE_POLL_S,
        sweep: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the loop.

        Args:
            run_pass: called `interval_s` after the previous pass ended. Its argument tells whether to archive only
                marked experiments. It returns whether more can be archived immediately.
            marks: called every `poll_s` seconds.
            interval_s: seconds between passes.
            stopping: set by `stop`.
            poll_s: seconds between polls of the marks.
            sweep: called occasionally.

        The callbacks must not raise.
        """
        self._run_pass = run_pass
        self._marks = marks
        self._sweep = sweep
        self._interval_s = interval_s
        self._poll_s = poll_s
        began_s = time.monotonic()
        self._schedule = ArchiveSchedule(began_s, next_sweep_s=began_s + interval_s)
        # A pass that hangs in its store is abandoned at the end of the process, which harms no trace.
        super().__init__("tracelake-archive", self._step, stopping=stopping)

    def _step(self) -> float:
        marks = self._marks()
        turn = self._schedule.turn(time.monotonic(), marks)
        if turn is ScheduledTurn.WAIT:
            self._schedule = self._schedule.waited(marks)
            return max(0.0, min(self._poll_s, self._schedule.next_pass_s - time.monotonic()))
        if turn is ScheduledTurn.SWEEP:
            self._sweep()
            self._schedule = self._schedule.swept(time.monotonic())
        else:
            goes_on = self._run_pass(turn is ScheduledTurn.MARKED)
            now_s, after = time.monotonic(), self._marks()
            self._schedule = self._schedule.passed(
                turn, now_s, self._interval_s, marks, after, goes_on=goes_on
            )
        return 0.0
