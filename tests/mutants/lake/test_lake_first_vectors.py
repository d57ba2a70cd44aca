"""Mutants that `tests/lake/test_lake_first_vectors.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_lake_first_vectors
from tests.lake.test_lake_first_vectors import _no_settings
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.indexing.merge import IndexMerger
from tracelake.search.protocol import assemble

BROKEN = [
    Mutation(
        "the first index says which vectors it has",
        assemble,
        rewrite("_1(..., a=_2 if _3 else b)", "_1(..., a=_2 if _3 else None)"),
    )
]


@pytest.mark.parametrize("broken", BROKEN, ids=rule_of)
def test_a_broken_rule_is_caught(broken: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule needs both halves: the output of tasks, and the manifest's setting."""
    monkeypatch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
    assert_caught(broken, lambda: test_lake_first_vectors.check_first_spans(tmp_path))
