"""Mutants that `tests/pipeline/test_resharded.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_resharded
from tracelake.pipeline import decode_task


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "records are those of all stripes",
            decode_task._to_range,
            rewrite("sum((_.a for _ in _1))", "_1[0].a", nth=1),
        )
    ],
    ids=rule_of,
)
def test_j10_broken(broken: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that depended on the tasks would differ."""
    assert_caught(broken, lambda: test_resharded.finish_in_other_tasks(tmp_path, monkeypatch))
