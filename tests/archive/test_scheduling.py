"""A server's archive schedule: by interval, and at once for experiments that a user marks."""

from __future__ import annotations

from threading import Event

from tests.patience import HANG_S, wait_until
from tracelake.archive.scheduler import (
    ARCHIVE_SWEEP_EACH_S,
    ArchiveLoop,
    ArchiveSchedule,
    Marks,
    ScheduledTurn,
)

NONE: Marks = frozenset()
A: Marks = frozenset({("1", "{}")})
B: Marks = frozenset({("2", "{}")})


def turns() -> None:
    """Check the next action in each case."""
    first = ArchiveSchedule(0.0)
    assert first.turn(0.0, NONE) is ScheduledTurn.ALL
    then = first.passed(ScheduledTurn.ALL, 7.0, 300.0, A, A)
    assert then == ArchiveSchedule(307.0, A)
    assert then.turn(306.0, A) is ScheduledTurn.WAIT, "a mark that stands after a pass waits for the interval"
    assert then.turn(306.0, A | B) is ScheduledTurn.MARKED
    assert then.turn(307.0, A) is ScheduledTurn.ALL
    assert then.waited(A) == then
    assert then.waited(NONE).turn(8.0, A) is ScheduledTurn.MARKED, (
        "a mark that was done and is set again is news"
    )
    marked = then.passed(ScheduledTurn.MARKED, 100.0, 300.0, A | B, A)
    assert marked == ArchiveSchedule(307.0, A), "a pass between does not put off the one by interval"
    assert first.passed(ScheduledTurn.ALL, 7.0, 300.0, NONE, A).turn(8.0, A) is ScheduledTurn.MARKED, (
        "what is marked during a pass was not part of it"
    )
    more = then.passed(ScheduledTurn.ALL, 400.0, 300.0, A, A, goes_on=True)
    assert more.turn(400.0, A) is ScheduledTurn.ALL, "what a pass left because it had enough is taken at once"
    more = first.passed(ScheduledTurn.ALL, 7.0, 300.0, NONE, NONE).passed(
        ScheduledTurn.MARKED, 8.0, 300.0, A, A, goes_on=True
    )
    assert more == ArchiveSchedule(307.0)
    assert more.turn(9.0, A) is ScheduledTurn.MARKED, "and so is a mark that is not through"
    sweeping = ArchiveSchedule(0.0, next_sweep_s=5.0)
    assert sweeping.turn(4.0, NONE) is ScheduledTurn.ALL
    later = sweeping.passed(ScheduledTurn.ALL, 7.0, 300.0, NONE, A, goes_on=True)
    assert later.waited(A).turn(7.0, A) is ScheduledTurn.SWEEP, (
        "passes that follow each other put off no sweep"
    )
    swept = later.swept(8.0)
    assert swept.turn(8.0, A) is ScheduledTurn.ALL, "and a sweep puts off no pass"
    rest = swept.passed(ScheduledTurn.ALL, 9.0, 10 * ARCHIVE_SWEEP_EACH_S, NONE, NONE)
    assert rest.turn(8.0 + ARCHIVE_SWEEP_EACH_S - 1, NONE) is ScheduledTurn.WAIT
    assert rest.turn(8.0 + ARCHIVE_SWEEP_EACH_S, NONE) is ScheduledTurn.SWEEP


def test_what_is_next() -> None:
    """All experiments are due by interval; between intervals, newly marked ones are due once."""
    turns()


class Passes:
    """A counter of passes and of checks for marks."""

    def __init__(self) -> None:
        self.marks: Marks = NONE
        self.looks = 0
        self.made: list[bool] = []
        self.going_on = 0

    def look(self) -> Marks:
        """Return the marks."""
        self.looks += 1
        return self.marks

    def loop(self, interval_s: float) -> ArchiveLoop:
        """Return a loop that runs such passes."""
        return ArchiveLoop(self.make, self.look, interval_s, Event(), poll_s=0.001)

    def make(self, only_marked: bool) -> bool:
        """Run a pass; the first few report more work."""
        self.made.append(only_marked)
        return len(self.made) <= self.going_on

    def wait_for(self, *made: bool) -> None:
        """Wait for these passes, and for some checks after them."""
        wait_until(lambda: len(self.made) >= len(made))
        looks = self.looks
        wait_until(lambda: self.looks > looks + 3)
        assert self.made == list(made)


def test_marks_are_taken_between() -> None:
    """The first pass runs at once; then each mark causes one, however long it exists."""
    passes = Passes()
    loop = passes.loop(3600.0)
    loop.start()
    passes.wait_for(False)
    passes.marks = A
    passes.wait_for(False, True)
    passes.marks = NONE
    passes.wait_for(False, True)
    passes.marks = A
    passes.wait_for(False, True, True)
    assert loop.stop(HANG_S)


def test_what_a_pass_leaves_is_taken_at_once() -> None:
    """Passes follow at once while work remains; then they run by interval again, and by mark."""
    passes = Passes()
    passes.going_on = 2
    loop = passes.loop(3600.0)
    loop.start()
    passes.wait_for(False, False, False)
    passes.going_on, passes.marks = 4, A
    passes.wait_for(False, False, False, True, True)
    assert loop.stop(HANG_S)


def test_passes_come_by_interval() -> None:
    """Passes repeat until the scheduler is stopped."""
    passes = Passes()
    loop = passes.loop(0.001)
    loop.start()
    wait_until(lambda: len(passes.made) > 3)
    assert loop.stop(HANG_S)
    assert not any(passes.made)


def test_a_pass_that_hangs_does_not_hold_up_the_end() -> None:
    """The stop waits for a hanging pass up to its timeout; after that pass, no other begins."""
    begun, over = Event(), Event()
    made: list[bool] = []

    def hang(only_marked: bool) -> bool:
        made.append(only_marked)
        begun.set()
        return not over.wait(HANG_S)

    loop = ArchiveLoop(hang, lambda: NONE, 0.0, Event(), poll_s=0.001)
    loop.start()
    assert begun.wait(HANG_S)
    assert not loop.stop(0.01)
    over.set()
    assert loop.stop(HANG_S)
    assert made == [False]
