"""The limits on number and duration of MLflow's searches, on both databases."""

from __future__ import annotations

import contextlib

import pytest
from sqlalchemy import text

from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError, QueryError
from tracelake.tracking import database as deadline
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.mlflow_search import TraceSearch
from tracelake.tracking.store import TrackingStore


def check_few_at_once(database: TrackingDatabase) -> None:
    """Check that one search too many is asked to retry, and that a finished search releases its turn."""
    store = TrackingStore(database, "lake-a")
    search = TraceSearch(store).search
    with contextlib.ExitStack() as running:
        for _ in range(limits.TRACKING_SEARCHES_MAX):
            running.enter_context(database.searching())
        with pytest.raises(BackPressureError, match="search again later"):
            search(["0"])
        store.write([request((1, 1))])
    for _ in range(limits.TRACKING_SEARCHES_MAX + 1):
        with pytest.raises(QueryError):
            search(["0"], page_token="none")
        with pytest.raises(ZeroDivisionError), database.searching():
            raise ZeroDivisionError
        assert len(search(["0"]).rows) == 1


def check_ends(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a slow search suggests another query, and leaves its connection unchanged."""
    search = TraceSearch(store).search
    with monkeypatch.context() as changed:
        changed.setattr(limits, "TRACKING_SEARCH_TIMEOUT_S", -1.0)
        changed.setattr(deadline, "TRACKING_SEARCH_POLL_STEPS", 1)
        for _ in range(limits.TRACKING_SEARCHES_MAX + 1):
            with pytest.raises(QueryError, match="took too long"):
                search(["0"])
        assert list(store.infos([trace_id(1)])) == [trace_id(1)]
        store.write([request((2, 1))])
    assert len(search(["0"]).rows) == 2


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_a_search_of_sqlite_ends_in_time(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error suggests another query; the connection, which is reused, has no deadline."""
    store.write([request((1, 1))])
    check_ends(store, monkeypatch)
    _in_time, _is_too_late = deadline.in_time, deadline._is_too_late


@pytest.mark.parametrize("new_url", ["postgres"], indirect=True)
def test_a_search_of_postgresql_that_it_gave_up_says_so(store: TrackingStore) -> None:
    """A search cancelled by `statement_timeout` is an error of the caller, not of the database."""

    def search() -> None:
        with store.database.searching() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 1"))
            connection.execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(QueryError, match="took too long"):
        search()
    assert TraceSearch(store).search(["0"]).rows == []
