"""Mutants that `tests/lake/test_index_machine.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.lake import test_index_machine
from tests.machine import FAILURES
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake import Lake, StorageError
from tracelake.indexing.merge import IndexMerger
from tracelake.tasks import backoff
from tracelake.tasks.backoff import RetrySchedule


def test_rules_of_failing_merges_are_held(tmp_path: Path) -> None:
    """A test above fails for each broken rule."""
    full, far = (FAILURES[0], FAILURES[-2])
    rules: tuple[tuple[Mutation, Callable[[Lake, Path], None]], ...] = (
        (
            Mutation("only damage is passed by", backoff.is_damage, rewrite("return _(...)", "return True")),
            lambda lake, _: test_index_machine.check_left(lake, StorageError("no")),
        ),
        (
            Mutation(
                "only damage is passed by, in a task", backoff.is_damage, rewrite("_1 and _", "_1 and 1")
            ),
            lambda lake, _: test_index_machine.check_left(lake, far),
        ),
        (
            Mutation("it is tried again without a commit", IndexMerger.maintain, rewrite("_1 or _", "_1")),
            lambda lake, _: test_index_machine.check_left(lake, full),
        ),
        (
            Mutation("after a pause", RetrySchedule.is_time, rewrite("_1 and _", "_1")),
            lambda lake, _: test_index_machine.check_left(lake, full),
        ),
        (
            Mutation("not for ever before all else", RetrySchedule.passes_by, rewrite("_1 >= _", "_1 < 0")),
            lambda lake, _: test_index_machine.check_bound(lake, full),
        ),
        (
            Mutation(
                "who is passed by is tried again", IndexMerger.maintain, rewrite("_1 and _", "_1 and False")
            ),
            lambda lake, _: test_index_machine.check_bound(lake, full),
        ),
        (
            Mutation(
                "commits do not wait for the pause", RetrySchedule.skipped, rewrite("_1 + _", "_1 + 1000")
            ),
            test_index_machine.check_transactions,
        ),
    )
    for number, (broken, check) in enumerate(rules):
        (folder := (tmp_path / str(number))).mkdir()
        with test_index_machine.opened(folder) as lake:
            assert_caught(broken, lambda: check(lake, folder))  # noqa: B023  called at once
