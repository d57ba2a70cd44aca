"""Rules of the tracking store, each broken once: one of their tests fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.broken import Broken, assert_caught
from tests.lake import test_hot_tier as reading_tests
from tests.storage.servers.postgres import PostgresServer
from tests.tracking import test_door as door_tests
from tests.tracking import test_place as place_tests
from tests.tracking import test_store as store_tests
from tracelake.hot import rows
from tracelake.otlp.partition import TracePartitioner
from tracelake.tracking import database as databases
from tracelake.tracking import location
from tracelake.tracking import store as requests
from tracelake.tracking import store as stores
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.migrate import migrate
from tracelake.tracking.outbox import Outbox, Uncommitted
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


MUTANTS: list[tuple[Broken, Check]] = [
    (
        Broken("a write advances the generation", stores._upsert, "known.db_payload_generation + ", ""),
        check_generation,
    ),
    (
        Broken(
            "a write looks whether the payload is here",
            stores._upsert,
            "WHERE known.spans_location = ",
            "WHERE known.spans_location <> '' OR '' = ",
        ),
        check_archived,
    ),
    (
        Broken("only other archives refuse late spans", TrackingStore._refused, ".not_like(", ".like("),
        check_late,
    ),
    (
        Broken(
            "what is refused is counted", requests.refusals, "if count else None", "if not count else None"
        ),
        check_archived,
    ),
    (
        Broken("late spans go when the tables have them", Outbox._trim, "== ARCHIVE_REPO", "!= ARCHIVE_REPO"),
        check_late,
    ),
    (
        Broken(
            "a lake trims its own rows",
            Outbox._trim,
            "*self._of(sequences)",
            "outbox.c.sequence.in_(sequences)",
        ),
        check_lakes,
    ),
    (
        Broken(
            "traces of what is given up say so",
            Outbox.give_up,
            "func.coalesce(of.archival_failure, INCOMPLETE)",
            "None",
        ),
        check_given_up,
    ),
    (
        Broken(
            "they say so once",
            Outbox.give_up,
            "self._traces(waiting)",
            "self._traces(some)",
        ),
        check_given_up,
    ),
    (
        Broken(
            "what is refused is refused alone", TrackingDoor._store, "if len(requests) == 1:", "if requests:"
        ),
        check_alone,
    ),
    (
        Broken(
            "what waits is found by its numbers",
            Uncommitted.listed,
            "of.lake + 0",
            "of.lake",
        ),
        check_plans,
    ),
    (
        Broken("the write lock is taken first", databases._begin, '"BEGIN IMMEDIATE" if', '"BEGIN" if'),
        check_lock,
    ),
    (
        Broken(
            "of claims the greatest stands",
            rows.latest_version_rows,
            "order by {upsert_rule.ORDER}, ord",
            "order by ord",
        ),
        check_standing,
    ),
    (
        Broken(
            "each span is in the bytes of its own trace",
            TracePartitioner._pieces_of,
            "[self._scope_heads[scope], *chain.from_iterable(of_spans)]",
            "[self._scope_heads[scope]]",
        ),
        check_group,
    ),
    (
        Broken(
            "only a scope that is of one trace is taken whole",
            TracePartitioner._pieces_of,
            "len(spans) == len(message.spans)",
            "spans",
        ),
        check_group,
    ),
]
ON_POSTGRES: list[tuple[Broken, Check]] = [
    (
        Broken(
            "rows are trimmed one by one",
            Outbox._trim,
            "*self._of(sequences)",
            "outbox.c.lake == self._lake, outbox.c.sequence <= max(sequences)",
        ),
        check_numbers,
    ),
    (
        Broken("a trim waits for a restore", Outbox._locked, ".with_for_update()", ""),
        check_restored,
    ),
]


@pytest.mark.parametrize(
    ("broken", "check"), MUTANTS, ids=lambda each: each.rule if isinstance(each, Broken) else ""
)
def test_each_rule_is_held(broken: Broken, check: Check, tmp_path: Path) -> None:
    """A test fails if the rule is broken, and passes if it holds."""
    _held(broken, check, lambda name: f"sqlite://{tmp_path}/{name}.db", tmp_path)


@pytest.mark.parametrize(
    ("broken", "check"), ON_POSTGRES, ids=lambda each: each.rule if isinstance(each, Broken) else ""
)
def test_each_rule_is_held_on_postgres(
    broken: Broken, check: Check, tmp_path: Path, server: PostgresServer
) -> None:
    """The same holds for rules that SQLite cannot show."""
    _held(broken, check, lambda _name: server.url(server.new_schema()), tmp_path)


def test_a_database_that_does_not_know_the_lake_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for opening stores by their locations."""
    broken = Broken(
        "the database knows the lake", location.open_store, "not begins and not knows", "False and knows"
    )

    def run(name: str) -> None:
        monkeypatch.setattr(location, "_open_stores", {})
        (tmp_path / name).mkdir()
        place_tests.test_a_database_that_is_gone_is_told(tmp_path / name)

    run("whole")
    assert_caught(broken, lambda: run("broken"))


def _held(broken: Broken, check: Check, url: Callable[[str], str], folder: Path) -> None:
    def run(name: str) -> None:
        with closing(TrackingDatabase(url(name))) as database:
            migrate(database)
            check(TrackingStore(database, "lake-a"), folder)

    run("whole")
    assert_caught(broken, lambda: run("broken"))
