"""Mutants that `tests/tables/test_changes.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tables import test_changes
from tracelake.tables.protocol import are_forgotten, first_end


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("changes of expired transactions one by one", are_forgotten, rewrite("_1 or _2", "_1")),
        Mutation("nothing from the beginning", are_forgotten, rewrite("_1 or _2", "True")),
    ],
    ids=rule_of,
)
def test_what_is_forgotten(broken: Mutation) -> None:
    """The check fails for each broken rule."""

    def check() -> None:
        for case in ((2, -1, 1, True), (2, -1, 2, False), (2, 0, 5, True)):
            test_changes.test_changes_that_are_forgotten(*case)

    assert_caught(broken, check)


def test_a_first_end_before_the_oldest_transaction_is_caught() -> None:
    """The check fails if a new listener starts before the oldest recorded transaction."""
    broken = Mutation("before the oldest", first_end, rewrite("max(_1, _2)", "_1"))
    assert_caught(broken, lambda: test_changes.test_the_first_end_of_changes(4, -1, 4))
