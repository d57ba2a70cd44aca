"""Mutants that `tests/lake/test_lake_kept_vectors.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_lake_kept_vectors
from tests.lake.test_lake_kept_vectors import lake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake import Lake
from tracelake.indexing.build import IndexRebuild


def test_undone_vectors_are_caught(lake: Lake) -> None:
    """A rebuild reads the current vector setting again before it publishes."""
    broken = Mutation("vectors that changed", IndexRebuild.run, rewrite("if _1 or _: ...", "if _1: ..."))
    assert_caught(
        broken,
        lambda: test_lake_kept_vectors.check_beside(
            lake, None, test_lake_kept_vectors.VECTORS, test_lake_kept_vectors.VECTORS
        ),
    )


@pytest.mark.parametrize(
    "broken",
    [Mutation("of the next transaction", IndexRebuild._standing_vectors, rewrite("_ is not None", "False"))],
    ids=rule_of,
)
def test_a_rebuild_behind_a_transaction_that_did_not_see_vectors_keeps_them(
    broken: Mutation, lake: Lake, tmp_path: Path
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: (
            test_lake_kept_vectors.test_a_rebuild_behind_a_transaction_that_did_not_see_vectors_keeps_them(
                lake, tmp_path
            )
        ),
    )
