"""Mutants that `tests/pipeline/test_large_resources.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.pipeline import test_large_resources
from tracelake.otlp.columns import SpanColumns
from tracelake.pipeline import decode_task


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("resources count", SpanColumns._starts, rewrite("_1 + _[_]", "_1")),
        Mutation("what spans have counts anew", SpanColumns._starts, drop("_ = _[_]")),
        Mutation("no batch is empty", SpanColumns._starts, rewrite("_1 and _", "_1")),
        Mutation(
            "scopes are those of the rows",
            SpanColumns.take_in_batches,
            rewrite("_1 = _2(a, _3)", "_1 = _2(0, _3)"),
        ),
        Mutation(
            "columns are those of the rows",
            SpanColumns.take_in_batches,
            rewrite("{_1: _2(a, _3) for _4 in _5}", "{_1: _2(0, _3) for _4 in _5}"),
        ),
    ],
    ids=rule_of,
)
def test_broken_batches_are_caught(broken: Mutation) -> None:
    """The test detects each missing rule."""
    assert_caught(broken, test_large_resources.check_batches)


def test_broken_staging_is_caught(tmp_path: Path) -> None:
    """The test detects a task that takes everything at once."""
    broken = Mutation("a piece at a time", decode_task._Reader._stage, rewrite("_1(a)", "_1(None)"))
    assert_caught(broken, lambda: test_large_resources.check_staged(tmp_path))
