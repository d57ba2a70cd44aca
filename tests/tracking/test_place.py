"""The location of a lake's tracking store: a setting with another database is an error, and writes nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake._errors import StorageError
from tracelake.tracking import location
from tracelake.tracking.location import PLACE, find_tracking, set_up


@pytest.fixture(autouse=True)
def _other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the process's open stores, as if other processes opened them."""
    monkeypatch.setattr(location, "_open_stores", {})


def restart() -> None:
    """Close everything that this process has open."""
    for store in location._open_stores.values():
        store.close()
    location._open_stores.clear()


def test_another_database_is_no_tracking_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting with a database that never had the lake is refused and creates nothing; the right one still works."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up().write([request((1, 1))])
        restart()
        monkeypatch.setenv("TRACELAKE_TRACKING", f"sqlite://{tmp_path}/other.db")
        with pytest.raises(StorageError, match=r"not the tracking store of this lake.*TRACELAKE_TRACKING"):
            set_up(lake.objects, lake.config.id, "")
        with pytest.raises(StorageError, match="not the tracking store"):
            find_tracking(lake.objects)
        monkeypatch.delenv("TRACELAKE_TRACKING")
        store = find_tracking(lake.objects)
        assert store is not None
        assert list(store.traces([trace_id(1)])) == [trace_id(1)]
        restart()


def test_a_database_that_was_moved_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a move of the database, the new location counts, and contains all data."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up().write([request((1, 1))])
        restart()
        (tmp_path / "lake" / "tracking.db").rename(tmp_path / "moved.db")
        monkeypatch.setenv("TRACELAKE_TRACKING", f"sqlite://{tmp_path}/moved.db")
        assert list(set_up(lake.objects, lake.config.id, "").traces([trace_id(1)])) == [trace_id(1)]
        restart()


def test_a_database_that_is_gone_is_told(tmp_path: Path) -> None:
    """If the database was deleted, no new one is created silently; without `tracking.json` one is."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up().write([request((1, 1))])
        restart()
        for file in (tmp_path / "lake").glob("tracking.db*"):
            file.unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match=f"restore the database.*delete {PLACE}"):
                lake.hot.set_up()
        (tmp_path / "lake" / PLACE).unlink()
        assert lake.hot.set_up().traces([trace_id(1)]) == {}
        restart()
