"""Mutants that `tests/lake/test_lake_merges.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.lake import test_lake_merges
from tests.lake.test_lake_merges import empty
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake import Lake
from tracelake.indexing import build as index_build


def test_a_damaged_part_is_replaced_by_one_of_its_rows(
    empty: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A merge never copies an unreadable part: it rebuilds the transactions from their rows."""
    test_lake_merges.damaged(empty, tmp_path)
    assert "could not be merged" in caplog.text
    with tracelake.init(tmp_path / "broken" / "lake", buckets=2) as other:
        assert_caught(
            Mutation(
                "what cannot be merged is built", index_build.run_merge_task, rewrite("_1\n_", "_1\nraise")
            ),
            lambda: test_lake_merges.damaged(other, tmp_path / "broken"),
        )
