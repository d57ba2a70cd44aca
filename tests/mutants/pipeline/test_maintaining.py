"""Mutants that `tests/pipeline/test_maintaining.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline import test_maintaining
from tests.pipeline.test_maintaining import later
from tracelake.pipeline.context import MaintenanceScheduler

IN_TURN = Mutation(
    "no transaction waits for maintenance", MaintenanceScheduler.after_commit, rewrite("_ or _", "True")
)


NO_BOUND = Mutation(
    "readers have a bound of parts", MaintenanceScheduler.after_commit, rewrite("_1 >= _", "_1 < 0")
)


COUNTED = Mutation(
    "no run without a commit waits", MaintenanceScheduler.after_commit, rewrite("_1 and _", "_1 and False")
)


RESTS = (
    Mutation("what comes is waited for", MaintenanceScheduler.on_idle, rewrite("_ < _", "False")),
    Mutation("once", MaintenanceScheduler.on_idle, rewrite("_1 or _2 or _ or _3", "_1 or _2 or _3")),
    Mutation("what failed is tried again", MaintenanceScheduler.on_idle, rewrite("_1 and _", "_1")),
    Mutation("one pass", MaintenanceScheduler.on_idle, rewrite("_1 or _ or _2 or _3", "_1 or _2 or _3")),
)


def test_rules_of_maintenance_are_held(
    later: test_maintaining.Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test above fails for each broken rule."""
    assert_caught(IN_TURN, lambda: test_maintaining.check_beside(later))
    assert_caught(NO_BOUND, lambda: test_maintaining.check_bound(later))
    assert_caught(COUNTED, lambda: test_maintaining.check_looks(later))
    for broken in RESTS:
        assert_caught(broken, lambda: test_maintaining.check_rest(monkeypatch))
