"""Mutants that `tests/search/test_ceiling.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_ceiling
from tests.search.test_ceiling import allowed
from tracelake.search import part_cache


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("all maps of a part", part_cache.check_blocks, rewrite("_1 + _", "_1")),
        Mutation("blocks are counted", part_cache.check_blocks, rewrite("_ * (_1 + _2)", "0 * (_1 + _2)")),
    ],
    ids=rule_of,
)
def test_uncounted_vectors_are_noticed(broken: Mutation, allowed: Path, tmp_path: Path) -> None:
    """The check detects uncounted vectors."""
    assert_caught(broken, lambda: test_ceiling.check_blocks_count(allowed, tmp_path))
