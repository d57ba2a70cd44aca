"""Mutants that `tests/pipeline/test_bounded.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_bounded
from tracelake.pipeline import merge_task
from tracelake.pipeline.staging import InputReader

TOGETHER = merge_task._MergeRun._is_together.fget  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("pieces name their part", InputReader.restage, rewrite("c if _ else _1", "c")),
        Mutation("no run has two parts", merge_task._runs_of_parts, rewrite("(a.b, a.c) == _", "True")),
        Mutation("they stay apart", TOGETHER, rewrite("_.a is None and _.b is None", "True")),
    ],
    ids=rule_of,
)
def test_a_recovery_gives_rows_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Mutation
) -> None:
    """The check fails for each broken rule."""
    check = test_bounded.test_a_recovery_gives_rows_of_several_parts_of_a_bucket_the_same_ids
    assert_caught(broken, lambda: check(tmp_path, monkeypatch))
