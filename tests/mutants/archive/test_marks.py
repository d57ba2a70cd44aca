"""Mutants that `tests/archive/test_marks.py` notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive import test_marks
from tests.archive.place import HotLake
from tests.archive.test_marks import hot
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.archive.archive_pass import ArchivePass, share_of
from tracelake.archive.candidates import Candidates
from tracelake.archive.retention import cutoff_ns


def test_each_of_it_is_noticed_when_it_breaks(hot: HotLake) -> None:
    """The checks fail for each mutant of these rules."""
    for broken in (
        Mutation(
            "any pass does what a mark asks for",
            Candidates.older,
            rewrite("_1(_2, a=_, b=_3, c=_4, d=_5)", "_1(_2, b=_3, c=_4, d=_5)"),
        ),
        Mutation(
            "what says nothing is taken away",
            Candidates.done_where_nothing_is_hot,
            rewrite("if _1 and _: ...", "if _1: ..."),
        ),
        Mutation(
            "a mark outlives what is hot",
            Candidates.done_where_nothing_is_hot,
            rewrite("_1 not in _2", "_1 in _2"),
        ),
    ):
        assert_caught(broken, lambda: test_marks.marks(hot))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("each begins at the beginning", ArchivePass._experiment, drop("_[_] = _")),
        Mutation("one has all", share_of, rewrite("-(-_1 // _)", "_1")),
    ],
    ids=rule_of,
)
def test_passes_that_may_take_so_many_go_on(broken: Mutation, hot: HotLake) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_marks.test_passes_that_may_take_so_many_go_on(hot))


@pytest.mark.parametrize(
    "broken", [Mutation("what waits counts too", ArchivePass.take, rewrite("_1 and _", "_1"))], ids=rule_of
)
def test_a_mark_is_of_all_workspaces_that_share_an_experiment(broken: Mutation, hot: HotLake) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_marks.test_a_mark_is_of_all_workspaces_that_share_an_experiment(hot))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("it is kept when it was seen", Candidates.marks, rewrite("_1(a, _2)", "_1('', _2)")),
        Mutation("that counts", cutoff_ns, rewrite("_ is None", "True")),
        Mutation(
            "what is asked for anew is", Candidates.done_at_once, rewrite("_(_1, None)", "{}.pop(_1, None)")
        ),
        Mutation("not for long", Candidates._due, rewrite("max(_1, _ - _)", "_1")),
    ],
    ids=rule_of,
)
def test_a7_archive_now_ends_while_traces_come(broken: Mutation, folders: Iterator[Path]) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_marks.test_a7_archive_now_ends_while_traces_come(folders))
