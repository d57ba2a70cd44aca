"""Mutants that `tests/tasks/test_periodic.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.tasks import test_periodic
from tracelake.tasks.backoff import Throttle


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "the first look is no activity",
            Throttle.pause,
            rewrite("_1 is not None and _2 != _1", "_2 != _1"),
        ),
        Mutation(
            "only commits count", Throttle.pause, rewrite("_1 is not None and _2 != _1", "_1 is not None")
        ),
        Mutation("a pause is bounded", Throttle.pause, rewrite("min(_, _1)", "_1")),
        Mutation("a quarter of the time", Throttle.pause, rewrite("3 * _1", "_1")),
        Mutation("pieces are not too short", Throttle.pause, rewrite("_1 < _", "_1 < 0", nth=1)),
        Mutation("activity ends", Throttle.pause, rewrite("_1 < _", "_1 > 0", nth=2)),
        Mutation("a pause is no work", Throttle.pause, drop("self.a = self.b()")),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, test_periodic.check_throttle)
