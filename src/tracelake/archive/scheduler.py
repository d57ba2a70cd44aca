"""When a server archives: by interval, and between for experiments that somebody marks archiveNow; and when it sweeps.

Any number of servers may do so on one lake: what several take at once is decided by finalize, trace by trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from threading import Event, Thread
from typing import TypeAlias

from tracelake import limits

Marks: TypeAlias = frozenset[tuple[str, str]]
"""Experiments that are marked archiveNow, each with the text of its mark."""


class ScheduledTurn(Enum):
    """What a scheduler does next."""

    ALL = "all"
    """A pass over all that is due."""
    MARKED = "marked"
    """A pass over experiments that are marked archiveNow."""
    SWEEP = "sweep"
    """A sweep of what passes have left."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class ArchiveSchedule:
    """What a scheduler knows; pure.

    A mark that a pass has tried and that stands still waits for the interval, as all that failed does: else a mark
    that cannot be carried out would make passes without a pause.
    """

    next_pass_s: float
    tried: Marks = frozenset()
    next_sweep_s: float = math.inf

    def turn(self, now_s: float, marks: Marks) -> ScheduledTurn:
        """Decide what is next; a sweep before passes, which may follow each other for long."""
        if now_s >= self.next_sweep_s:
            return ScheduledTurn.SWEEP
        if now_s >= self.next_pass_s:
            return ScheduledTurn.ALL
        return ScheduledTurn.MARKED if marks - self.tried else ScheduledTurn.WAIT

    def waited(self, marks: Marks) -> ArchiveSchedule:
        """Forget marks that are gone: what is marked anew is news."""
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
        """Return what is known after a pass that ended now; marks as they were before it, and as they are.

        One that `goes_on` took as much as a pass may, and is followed by its like at once.
        """
        again_s = now_s + (0.0 if goes_on else interval_s)
        next_pass_s = again_s if turn is ScheduledTurn.ALL else self.next_pass_s
        return replace(self, next_pass_s=next_pass_s, tried=(self.tried if goes_on else before) & after)

    def swept(self, now_s: float) -> ArchiveSchedule:
        """Return what is known after a sweep that ended now."""
        return replace(self, next_sweep_s=now_s + limits.ARCHIVE_SWEEP_EACH_S)


class ArchiveLoop:
    """Makes passes in a thread of its own until it is stopped, the first at once, and sweeps, an interval later."""

    def __init__(
        self,
        run_pass: Callable[[bool], bool],
        marks: Callable[[], Marks],
        interval_s: float,
        stopping: Event,
        poll_s: float = limits.ARCHIVE_POLL_S,
        sweep: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `run_pass` so long after the pass before it ended, with whether only marked experiments are meant.

        It returns whether there is more that can be done at once. `marks` is asked every `poll_s` seconds, and
        `sweep` called now and then. None of them raises. `stopping` is set by `stop`.
        """
        self._run_pass = run_pass
        self._marks = marks
        self._sweep = sweep
        self._interval_s = interval_s
        self._poll_s = poll_s
        self._stopping = stopping
        # A daemon: a pass that hangs in its store does not hold up the end of the process, which harms no trace.
        self._thread = Thread(target=self._run, name="tracelake-archive", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, wait_s: float = limits.ARCHIVE_STOP_MAX_S) -> bool:
        """Begin no other pass, and wait for the one under way; return whether it ended in time."""
        self._stopping.set()
        if self._thread.ident is not None:  # a server that failed to start began none
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        began_s = time.monotonic()
        schedule = ArchiveSchedule(began_s, next_sweep_s=began_s + self._interval_s)
        while not self._stopping.is_set():
            marks = self._marks()
            turn = schedule.turn(time.monotonic(), marks)
            if turn is ScheduledTurn.WAIT:
                schedule = schedule.waited(marks)
                self._stopping.wait(max(0.0, min(self._poll_s, schedule.next_pass_s - time.monotonic())))
            elif turn is ScheduledTurn.SWEEP:
                self._sweep()
                schedule = schedule.swept(time.monotonic())
            else:
                goes_on = self._run_pass(turn is ScheduledTurn.MARKED)
                now_s, after = time.monotonic(), self._marks()
                schedule = schedule.passed(turn, now_s, self._interval_s, marks, after, goes_on=goes_on)
