"""Mutants that `tests/pipeline/test_index_beside.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline import test_index_beside
from tracelake.pipeline import merge_task


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "rows go to the index first", merge_task._MergeRun._write_spans, rewrite("_1\n_2", "_2\n_1")
            ),
            test_index_beside.all_together,
        ),
        (
            Mutation(
                "rows of a bucket go to the index first",
                merge_task._MergeRun._write_spans,
                rewrite("for _1 in _2: ...\n_3", "_3\nfor _1 in _2: ..."),
            ),
            test_index_beside.by_bucket,
        ),
    ],
)
def test_the_order_is_held(tmp_path: Path, broken: Mutation, check: Callable[[Path], None]) -> None:
    """The test fails if parts are written first."""
    assert_caught(broken, lambda: check(tmp_path))
