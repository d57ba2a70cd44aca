"""Mutants that `tests/lake/test_lake_mixed_parts.py` notices."""

from __future__ import annotations

from pathlib import Path

from tests.lake import test_lake_mixed_parts
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.indexing.build import IndexBuilder


def test_a_row_that_is_indexed_by_each_task_is_noticed(tmp_path: Path) -> None:
    """Simulate a task that reads all rows of a part of all buckets."""
    broken = Mutation("a task indexes its buckets", IndexBuilder._tasks, rewrite("_1._(_(_))", "_1"))
    assert_caught(broken, lambda: test_lake_mixed_parts.mixed(tmp_path, 3, transactions=2))
