"""Mutants that `tests/lake/test_lake_vectors.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_lake_vectors
from tests.lake.test_lake_vectors import lake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake import Lake
from tracelake.search.semantic_search import Vectors


@pytest.mark.parametrize("other", ["team-b", "TEAM-A"])
@pytest.mark.parametrize("last", ["team-a", "other"])
@pytest.mark.parametrize(
    "broken",
    [Mutation("of the workspace", Vectors.vector_of_span, rewrite("_1(..., a=b)", "_1(..., a=None)"))],
    ids=rule_of,
)
def test_a_span_of_another_workspace_with_the_same_ids_is_not_compared_with(
    broken: Mutation, lake: Lake, tmp_path: Path, other: str, last: str
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_lake_vectors.test_a_span_of_another_workspace_with_the_same_ids_is_not_compared_with(
            lake, tmp_path, other, last
        ),
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "hits meet the conditions", Vectors.nearest_rows, rewrite("(_1[_][_2], _3)", "(_1[_2], _3)")
        ),
        Mutation("enough are looked at", Vectors.nearest_rows, rewrite("_ >= _", "True")),
    ],
    ids=rule_of,
)
def test_conditions_that_leave_many_are_met_by_all_hits(
    broken: Mutation, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken,
        lambda: test_lake_vectors.test_conditions_that_leave_many_are_met_by_all_hits(
            lake, tmp_path, monkeypatch
        ),
    )
