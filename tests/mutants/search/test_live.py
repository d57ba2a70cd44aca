"""Mutants that `tests/search/test_live.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_live
from tests.search.test_live import index
from tracelake.search.model import Manifest
from tracelake.search.open_index import SegmentDirectory


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("marks go", SegmentDirectory._drop, rewrite("_ > _", "False")),
        Mutation("the newest stay", SegmentDirectory._drop, rewrite("reversed(_1(_2))", "_1(_2)")),
    ],
    ids=rule_of,
)
def test_marks_of_a_part_that_stays_do_not_add_up(
    broken: Mutation, index: tuple[Manifest, list[int]], tmp_path: Path
) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_live.test_marks_of_a_part_that_stays_do_not_add_up(index, tmp_path))
