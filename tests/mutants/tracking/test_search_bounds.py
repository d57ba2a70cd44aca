"""Mutants that `tests/tracking/test_search_bounds.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking import test_search_bounds
from tracelake import limits
from tracelake.tracking import database as deadline
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.store import TrackingStore


def test_a_few_searches_at_once_leave_connections_to_writers(
    database: TrackingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search too many is asked to retry, and traces are stored at the same time."""
    monkeypatch.setattr(limits, "TRACKING_SEARCH_WAIT_S", 0.0)
    test_search_bounds.check_few_at_once(database)
    assert limits.TRACKING_SEARCHES_MAX < deadline.TRACKING_POOL_MAX
    if not database.is_sqlite:
        return
    searching = TrackingDatabase.searching
    broken = Mutation(
        "one that failed gives its turn back",
        searching,
        rewrite("try: ...\nfinally: ...", "try: ...\nexcept NotImplementedError: ..."),
    )
    assert_caught(
        broken, lambda: test_search_bounds.check_few_at_once(TrackingDatabase(f"sqlite://{database.name}"))
    )
    broken = Mutation("few at once", TrackingDatabase.__init__, rewrite("_1.a(_._)", "_1.a(99)"))
    assert_caught(
        broken, lambda: test_search_bounds.check_few_at_once(TrackingDatabase(f"sqlite://{database.name}"))
    )


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "its connection has no end of time",
            deadline.in_time,
            rewrite("if _1:\n    _", "if _1:\n    pass"),
        ),
        Mutation("an interrupted search is told so", deadline._is_too_late, rewrite("_._", "0")),
    ],
    ids=rule_of,
)
def test_a_search_of_sqlite_ends_in_time(
    broken: Mutation, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_search_bounds.test_a_search_of_sqlite_ends_in_time(store, monkeypatch))
