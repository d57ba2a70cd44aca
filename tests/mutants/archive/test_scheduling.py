"""Mutants that `tests/archive/test_scheduling.py` notices."""

from __future__ import annotations

from tests.archive import test_scheduling
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.archive.scheduler import ArchiveSchedule


def test_each_of_it_is_noticed_when_it_breaks() -> None:
    """The checks fail for each mutant of the schedule."""
    for broken in (
        Mutation(
            "a mark that stands is tried again and again", ArchiveSchedule.turn, rewrite("_1 - _", "_1")
        ),
        Mutation("a pass between puts off the next", ArchiveSchedule.passed, rewrite("_1 is _", "_1")),
        Mutation(
            "what is marked meanwhile counts as tried", ArchiveSchedule.passed, rewrite("_1 & _2", "_1 | _2")
        ),
        Mutation("what was done counts as tried", ArchiveSchedule.passed, rewrite("_1 & _", "_1")),
        Mutation("a mark is known for ever", ArchiveSchedule.waited, rewrite("_1 & _", "_1")),
        Mutation("what goes on waits", ArchiveSchedule.passed, rewrite("0.0 if _ else _1", "_1")),
        Mutation("a mark that goes on was tried", ArchiveSchedule.passed, rewrite("_._ if _ else _1", "_1")),
        Mutation("a sweep is due", ArchiveSchedule.turn, rewrite("if _: ...", "if False: ...", nth=1)),
        Mutation("a sweep comes again", ArchiveSchedule.swept, rewrite("_1 + _", "_1 + float('inf')")),
        Mutation("a sweep waits for the next", ArchiveSchedule.swept, rewrite("_1 + _", "_1")),
    ):
        assert_caught(broken, test_scheduling.turns)
