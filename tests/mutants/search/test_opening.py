"""Mutants that `tests/search/test_opening.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.search import test_opening
from tests.search.test_opening import manifests
from tracelake.search.model import Manifest
from tracelake.search.open_index import OpenIndex


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("they go", OpenIndex._let_go, drop("_(...)")),
        Mutation("not at once", OpenIndex._let_go, rewrite("_1 > _", "_1 > 0")),
        Mutation("used now", OpenIndex._let_go, rewrite("_1 = _ = _2", "_1 = _2")),
    ],
    ids=rule_of,
)
def test_what_nobody_asks_of_another_analyzer_is_let_go(
    broken: Mutation, manifests: list[Manifest], tmp_path: Path
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_opening.test_what_nobody_asks_of_another_analyzer_is_let_go(manifests, tmp_path)
    )
