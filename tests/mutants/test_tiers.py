"""Mutants that `tests/test_tiers.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests import test_tiers
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake import batching
from tracelake.batching import Windows, due, runs


@pytest.mark.parametrize(
    ("broken", "sizes"),
    [
        (Mutation("newer ones count", runs, rewrite("_(_1, max)", "_1")), test_tiers.nested),
        (Mutation("sizes count", runs, rewrite("a(b, c)", "0")), test_tiers.large_first),
        (Mutation("runs are long", due, rewrite("_1 >= _", "_1 >= 2")), test_tiers.alike),
        (Mutation("runs end", due, rewrite("_1 ** 2", "_1 - 1")), test_tiers.alike),
    ],
    ids=rule_of,
)
def test_each_rule_is_needed(broken: Mutation, sizes: Callable[[int], int]) -> None:
    """Without any one rule, too many pieces remain, or rows move too often."""
    assert_caught(broken, partial(test_tiers.test_few_are_left_and_a_row_is_moved_few_times, sizes))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("what is completed is included", due, rewrite("_(_, _, _1, _)", "_1")),
        Mutation("in bounds", batching.with_older_runs, rewrite("_1 ** 2", "_1 ** 3")),
        Mutation("of one class", batching.with_older_runs, rewrite("_ >= a(_1, b)", "True")),
        Mutation("of a whole run", batching.with_older_runs, rewrite("len(_) + 1 >= _", "True")),
    ],
    ids=rule_of,
)
def test_each_rule_of_further_runs_is_needed(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_tiers.test_a_merge_that_makes_another_due_includes_it)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "windows are not merged",
                Windows.numbers,
                rewrite("list(_(_1, max))", "[0 for c in _1]"),
            ),
            lambda: test_tiers.check_windows(4),
        ),
        (
            Mutation("a settled window is one item", Windows.due, rewrite("self._(a)", "False", 2)),
            lambda: test_tiers.check_windows(4),
        ),
        (
            Mutation("numbers never fall", Windows.numbers, rewrite("list(_(_1, max))", "list(_1)")),
            test_tiers.test_items_without_a_time_and_wrong_clocks,
        ),
        (
            Mutation("a clock far ahead is wrong", Windows.numbers, rewrite("a if a <= b else 0", "a")),
            test_tiers.test_items_without_a_time_and_wrong_clocks,
        ),
        (
            Mutation("late writers have time", Windows.is_settled, rewrite("_1 >= _2 + a", "_1 >= _2")),
            test_tiers.test_a_window_settles_once_clocks_agree_that_it_has_ended,
        ),
    ],
    ids=rule_of,
)
def test_each_rule_of_windows_is_needed(broken: Mutation, check: Callable[[], object]) -> None:
    """Without any one rule, windows are merged, rewritten or never settle."""
    assert_caught(broken, check)
