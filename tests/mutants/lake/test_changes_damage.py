"""Mutants that `tests/lake/test_changes_damage.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_changes_damage
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.tables.changes import ChangeLog


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "retractions are compared with what was written",
            ChangeLog._retracted,
            rewrite("_1 = _2()\n_(_1, _3)", "_1 = _2()\n(lambda *_: 0)(_1, _3)"),
        )
    ],
    ids=rule_of,
)
def test_changes_are_not_told_of_damaged_parts(broken: Mutation, tmp_path: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_changes_damage.test_changes_are_not_told_of_damaged_parts(tmp_path))
