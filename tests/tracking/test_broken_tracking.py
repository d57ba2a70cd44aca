"""Rules of the tracking store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.lake import test_hot_tier as reading_tests
from tests.storage.servers.postgres import PostgresServer
from tests.tracking import test_door as door_tests
from tests.tracking import test_place as place_tests
from tests.tracking import test_store as store_tests
from tracelake.tracking import location
from tracelake.tracking.store import TrackingStore

Check = Callable[[TrackingStore, Path], object]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Return a PostgreSQL server."""
    with closing(PostgresServer()) as postgres:
        yield postgres


def check_late(store: TrackingStore, folder: Path) -> None:
    store_tests.test_late_spans_of_the_lakes_own_archive_are_taken(store, folder)


def check_group(store: TrackingStore, folder: Path) -> None:
    store_tests.test_a_group_is_stored_whole(store, folder)


def check_archived(store: TrackingStore, folder: Path) -> None:
    store_tests.test_a2_a15_spans_of_an_archived_trace_are_refused_alone(store, folder)


def check_generation(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_a3_every_write_advances_the_generation(store)


def check_lock(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_a13_nobody_writes_between_check_and_clearing(store)


def check_lakes(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_lakes_share_a_database(store)


def check_numbers(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_o3_a_number_that_commits_late_is_not_missed(store)


def check_standing(_store: TrackingStore, _folder: Path) -> None:
    reading_tests.test_standing_is_what_the_rule_says()


def check_alone(store: TrackingStore, _folder: Path) -> None:
    door_tests.test_what_the_database_refuses_is_refused_alone(store, "start_ns", 2**63)


def check_given_up(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_what_is_given_up_is_told_by_its_traces(store)


def check_restored(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_late_spans_stay_with_who_is_restored_meanwhile(store)


def check_plans(store: TrackingStore, _folder: Path) -> None:
    store_tests.test_what_waits_is_found_by_its_numbers(store)


def test_a_database_that_does_not_know_the_lake_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for opening stores by their locations."""

    def run(name: str) -> None:
        monkeypatch.setattr(location, "_open_stores", {})
        (tmp_path / name).mkdir()
        place_tests.test_a_database_that_is_gone_is_told(tmp_path / name)

    run("whole")
