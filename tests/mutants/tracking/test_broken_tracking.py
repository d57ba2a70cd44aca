"""Mutants that `tests/tracking/test_broken_tracking.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.storage.servers.postgres import PostgresServer
from tests.tracking import test_broken_tracking
from tests.tracking.test_broken_tracking import server
from tracelake.otlp.partition import TracePartitioner
from tracelake.tracking import database as databases
from tracelake.tracking import location
from tracelake.tracking import store as requests
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.migrate import migrate
from tracelake.tracking.outbox import Outbox, Uncommitted
from tracelake.tracking.schema import outbox, trace_info
from tracelake.tracking.store import TrackingStore

MUTANTS: list[tuple[Mutation, test_broken_tracking.Check]] = [
    (
        Mutation(
            "what is refused is counted",
            requests.refusals,
            rewrite("_1 if _2 else None", "_1 if not _2 else None"),
        ),
        test_broken_tracking.check_archived,
    ),
    (
        Mutation(
            "late spans go when the tables have them",
            Outbox._trim,
            rewrite("_._ == a", "spans_location != a", spans_location=trace_info.c.spans_location),
        ),
        test_broken_tracking.check_late,
    ),
    (
        Mutation(
            "a lake trims its own rows",
            Outbox._trim,
            rewrite("_1(_2).a(*_(_3))", "_1(_2).a(in_object(_3))", in_object=outbox.c.sequence.in_),
        ),
        test_broken_tracking.check_lakes,
    ),
    (
        Mutation(
            "only other archives refuse late spans",
            TrackingStore._refused,
            rewrite("_(_1, _).a(_2)", "like(_2)", like=trace_info.c.archive_location.like),
        ),
        test_broken_tracking.check_late,
    ),
    (
        Mutation("traces of what is given up say so", Outbox.give_up, rewrite("_._(_._, _)", "None")),
        test_broken_tracking.check_given_up,
    ),
    (
        Mutation("what is refused is refused alone", TrackingDoor._store, rewrite("_(_1) == 1", "_1")),
        test_broken_tracking.check_alone,
    ),
    (
        Mutation("what waits is found by its numbers", Uncommitted.listed, rewrite("_1 + 0", "_1")),
        test_broken_tracking.check_plans,
    ),
    (
        Mutation(
            "the write lock is taken first", databases._begin, rewrite("_ if _1 else _2", "_2 if _1 else _2")
        ),
        test_broken_tracking.check_lock,
    ),
    (
        Mutation(
            "each span is in the bytes of its own trace",
            TracePartitioner._pieces_of,
            rewrite("[_1, _]", "[_1]"),
        ),
        test_broken_tracking.check_group,
    ),
    (
        Mutation(
            "only a scope that is of one trace is taken whole",
            TracePartitioner._pieces_of,
            rewrite("_(_1) == _(_)", "_1"),
        ),
        test_broken_tracking.check_group,
    ),
]


ON_POSTGRES: list[tuple[Mutation, test_broken_tracking.Check]] = [
    (
        Mutation("a trim waits for a restore", Outbox._locked, rewrite("_1 = _2._()", "_1 = _2")),
        test_broken_tracking.check_restored,
    )
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=rule_of)
def test_each_rule_is_held(broken: Mutation, check: test_broken_tracking.Check, tmp_path: Path) -> None:
    """A test fails if the rule is broken, and passes if it holds."""
    _held(broken, check, lambda name: f"sqlite://{tmp_path}/{name}.db", tmp_path)


@pytest.mark.parametrize(("broken", "check"), ON_POSTGRES, ids=rule_of)
def test_each_rule_is_held_on_postgres(
    broken: Mutation, check: test_broken_tracking.Check, tmp_path: Path, server: PostgresServer
) -> None:
    """The same holds for rules that SQLite cannot show."""
    _held(broken, check, lambda _name: server.url(server.new_schema()), tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "the database knows the lake", location.open_store, rewrite("not _ and (not _1)", "False and _1")
        )
    ],
    ids=rule_of,
)
def test_a_database_that_does_not_know_the_lake_is_refused(
    broken: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_broken_tracking.test_a_database_that_does_not_know_the_lake_is_refused(
            tmp_path, monkeypatch
        ),
    )


def _held(
    broken: Mutation, check: test_broken_tracking.Check, url: Callable[[str], str], folder: Path
) -> None:

    def run(name: str) -> None:
        with closing(TrackingDatabase(url(name))) as database:
            migrate(database)
            check(TrackingStore(database, "lake-a"), folder)

    run("whole")
    assert_caught(broken, lambda: run("broken"))


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "check"),
    [
        (
            Outbox,
            "_of",
            lambda self, some: (outbox.c.lake == self._lake, outbox.c.sequence <= max(some)),
            test_broken_tracking.check_numbers,
        ),
        (
            Outbox,
            "_locked_rows",
            lambda _self, _connection, some: list(some),
            test_broken_tracking.check_given_up,
        ),
    ],
    ids=["rows are trimmed one by one", "traces say so once"],
)
def test_each_condition_of_rows_counts(
    kind: type, name: str, wrong: object, check: test_broken_tracking.Check, tmp_path: Path
) -> None:
    """The check fails if a statement chooses other rows."""
    with (
        closing(TrackingDatabase(f"sqlite://{tmp_path}/broken.db")) as database,
        mock.patch.object(kind, name, wrong),
    ):
        migrate(database)
        store = TrackingStore(database, "lake-a")
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(store, tmp_path)
