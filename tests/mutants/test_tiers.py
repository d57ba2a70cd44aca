"""Mutants that `tests/test_tiers.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests import test_tiers
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.batching import due, runs


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
