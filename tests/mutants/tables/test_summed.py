"""Mutants that `tests/tables/test_summed.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tables import test_summed
from tracelake.tables.builtin import summed


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("the root has no parent", summed, rewrite("(_1 for _1 in _2 if _)", "(_1 for _1 in _2)")),
        Mutation(
            "an end before the start", summed, rewrite("(_(...) for _1 in _2)", "(_1['end_ns'] for _1 in _2)")
        ),
        Mutation("sums stop", summed, rewrite("_ if _1 else None", "sum(_1) if _1 else None")),
        Mutation("durations stop", summed, rewrite("a(b - c)", "b - c")),
    ],
    ids=rule_of,
)
def test_it_is_the_same_row(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_summed.test_it_is_the_same_row)
