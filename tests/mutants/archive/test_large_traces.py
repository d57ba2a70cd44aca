"""Mutants that `tests/archive/test_large_traces.py` notices."""

from __future__ import annotations

import pytest

from tests.archive import test_large_traces
from tests.archive.test_archive import Make
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive import store as stores


@pytest.mark.parametrize("layout", ["lake", "trace", "pack"])
@pytest.mark.parametrize(
    "broken", [Mutation("the archive has no end", stores._joined, rewrite("_1 > _", "_1 < 0"))], ids=rule_of
)
def test_a_trace_that_would_not_come_back_stays_hot(
    broken: Mutation, make: Make, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_large_traces.test_a_trace_that_would_not_come_back_stays_hot(make, layout, monkeypatch),
    )
