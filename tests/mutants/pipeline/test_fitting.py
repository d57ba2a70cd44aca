"""Mutants that `tests/pipeline/test_fitting.py` notices."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline import test_fitting
from tracelake.limits import MIB
from tracelake.pipeline.batch_sizing import BatchSize, while_cold


def test_what_is_judged_is_held() -> None:
    """The test fails for the broken rule."""
    broken = Mutation(
        "rows in memory are judged by the one before", while_cold, rewrite("_1 and _", "_1 and False")
    )
    took = test_fitting.done(1.0, arrow_bytes=16 * test_fitting.MIDDLE.input_bytes)
    check = test_fitting.test_until_something_has_started_transactions_are_small
    assert_caught(broken, lambda: check(took, BatchSize(4 * MIB, 200)))
