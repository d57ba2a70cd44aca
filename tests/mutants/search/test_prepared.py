"""Mutants that `tests/search/test_prepared.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_prepared
from tracelake.search.query_compiler import prepared


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("times count", prepared, rewrite("_(_)._", "False")),
        Mutation("services count", prepared, rewrite("_1(_2, a, ...)", "_1(_2, None, ...)")),
        Mutation("analyzers count", prepared, rewrite("a._", "'english'")),
    ],
    ids=rule_of,
)
def test_a_broken_rule_changes_an_answer(broken: Mutation, tmp_path: Path) -> None:
    """The check detects each missing key."""
    assert_caught(broken, lambda: test_prepared.check_what_is_kept(tmp_path))
