"""Mutants that `tests/tracking/test_trace_rows.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking import test_trace_rows
from tracelake.tracking import store as rows
from tracelake.tracking import store as stores
from tracelake.tracking.store import TrackingStore, _by_start


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "within a group",
            rows.info_of,
            rewrite("_1(_2, a=b, c=_3)", "_1(_2, a=by_start, c=_3)", by_start=_by_start),
        ),
        Mutation(
            "of several",
            stores._upsert,
            rewrite(
                "_1 = _",
                "_1 = \"excluded.name IS NOT NULL AND (true OR known.state = 'IN_PROGRESS')\"",
                nth=2,
            ),
        ),
        Mutation(
            "one that runs is told",
            stores._upsert,
            rewrite(
                "_1 = _",
                "_1 = \"excluded.name IS NOT NULL AND (excluded.state <> 'IN_PROGRESS' OR false)\"",
                nth=2,
            ),
        ),
    ],
    ids=rule_of,
)
def test_a_root_that_has_ended_stays_so(broken: Mutation, store: TrackingStore) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_trace_rows.test_a_root_that_has_ended_stays_so(store))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("late spans are told", TrackingStore.write, rewrite("if _1:\n    _", "if _1:\n    pass")),
        Mutation("no payload changes", TrackingStore._tell, rewrite("1 if _1 else 0", "1 if _1 else 1")),
    ],
    ids=rule_of,
)
def test_a18_late_spans_are_told_by_the_row(broken: Mutation, store: TrackingStore) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_trace_rows.test_a18_late_spans_are_told_by_the_row(store))
