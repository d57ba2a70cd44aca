"""Migrations of the tracking store: from empty and from each revision, by many processes at once, and killed in the
middle."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic import op
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text

from tests.patience import HANG_S, wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.giving_up import check_gives_up
from tracelake import limits
from tracelake._errors import UsageError
from tracelake.tracking import migrate as migrating
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import copy_tracking, current, migrate, paused_snapshot
from tracelake.tracking.schema import (
    HEAD,
    INCOMPLETE,
    VERSION_TABLE,
    metadata,
    previews_checksum,
    span_checksum,
    spans,
    trace_info,
)

CONFIG = Config()
CONFIG.set_main_option("script_location", str(migrating._SCRIPTS))
REVISIONS = [script.revision for script in ScriptDirectory.from_config(CONFIG).walk_revisions()][::-1]


def is_whole(database: TrackingDatabase) -> bool:
    """Return whether the tables are those of this release."""
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return current(connection) == HEAD and not compare_metadata(context, metadata)


def test_the_last_revision_is_the_head() -> None:
    """The schema's HEAD is the last migration, and the migrations form one line."""
    assert REVISIONS[-1] == HEAD


@pytest.mark.parametrize("revision", [None, *REVISIONS])
def test_from_each_revision(new_url: Callable[[], str], revision: str | None) -> None:
    """A database of any revision, or an empty one, gets the tables of this release; a second migration changes
    nothing."""
    with closing(TrackingDatabase(new_url())) as database:
        if revision is not None:
            migrate(database, revision)
        migrate(database)
        assert is_whole(database)
        migrate(database)
        assert is_whole(database)


def describe(database: TrackingDatabase) -> dict[str, object]:
    """Return all properties of the tables, but the names of constraints and, on PostgreSQL, the order of columns."""
    with database.reading() as connection:
        tables = inspect(connection)
        return {
            name: (
                {each["name"]: (str(each["type"]), each["nullable"], each["default"]) for each in columns},
                database.is_sqlite and [each["name"] for each in columns],
                tables.get_pk_constraint(name)["constrained_columns"],
                sorted(each["column_names"] for each in tables.get_unique_constraints(name)),
                sorted((each["name"], each["column_names"]) for each in tables.get_indexes(name)),
                tables.get_table_options(name),
                database.is_sqlite
                and "AUTOINCREMENT"
                in connection.scalar(
                    text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": name}
                ),
            )
            for name in tables.get_table_names()
            for columns in [tables.get_columns(name)]
        }


def test_new_tables_are_those_of_all_migrations(new_url: Callable[[], str]) -> None:
    """A new database, which runs no migration, has the same tables as a database that ran all of them."""
    with closing(TrackingDatabase(new_url())) as old, closing(TrackingDatabase(new_url())) as new:
        migrate(old, REVISIONS[0])
        migrate(old)
        migrate(new)
        assert describe(new) == describe(old)


def test_several_at_once(new_url: Callable[[], str]) -> None:
    """Processes that start together all find complete tables."""
    url = new_url()
    code = (
        "import sys; from tracelake.tracking.database import TrackingDatabase as D;"
        "from tracelake.tracking.migrate import migrate; migrate(D(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(lambda process: process.communicate(timeout=HANG_S)[1], processes))
    assert [process.returncode for process in processes] == [0] * 4, errors
    with closing(TrackingDatabase(url)) as database:
        assert is_whole(database)


_KILLED = """
import os, signal, sys
from sqlalchemy import event
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate

database, last, statements = TrackingDatabase(sys.argv[1]), int(sys.argv[2]), iter(range(1000))

def count(_connection, _cursor, statement, *_rest):
    if statement.lstrip().startswith(("CREATE", "INSERT")) and next(statements) == last:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(database.engine, "before_cursor_execute", count)
migrate(database)
"""


@pytest.mark.parametrize(
    ("revision", "statements"), [(None, 1), (None, 4), (None, 9), (None, 14), (REVISIONS[0], 3)]
)
def test_killed_on_the_way(new_url: Callable[[], str], revision: str | None, statements: int) -> None:
    """A migration killed in the middle leaves the previous revision, and the next one makes all tables."""
    url = new_url()
    with closing(TrackingDatabase(url)) as database:
        if revision is not None:
            migrate(database, revision)
        before = describe(database)
    command = [sys.executable, "-c", _KILLED, url, str(statements)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with closing(TrackingDatabase(url)) as database:
        assert describe(database) == before
        with database.reading() as connection:
            assert current(connection) == revision
        migrate(database)
        assert is_whole(database)


_WRITTEN = {
    "0003": (
        "tracelake_trace_tags",
        "INSERT INTO tracelake_trace_tags (lake, trace_id, key, value) VALUES (1, 't', %s, '')",
    ),
    "0004": (
        "tracelake_spans",
        "INSERT INTO tracelake_spans (lake, trace_id, span_id, sequence, name, kind, start_ns, end_ns)"
        " VALUES (1, 't', %s, 1, '', '', 1, 1)",
    ),
}
"""The row that a server of a revision writes into the table that the next revision copies."""


@pytest.mark.parametrize("revision", _WRITTEN)
def test_what_is_being_written_is_copied_too(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """A write that is open when a migration begins, and acknowledged during it, exists afterwards."""
    monkeypatch.setattr(limits, "POSTGRES_LOCK_TIMEOUT_S", HANG_S)
    monkeypatch.setattr(limits, "POSTGRES_STATEMENT_TIMEOUT_S", HANG_S)
    # The database's administrator may have chosen another isolation level too: the copy contains the state
    # after locking.
    url = f"{postgres.url(postgres.new_schema())}%20-cdefault_transaction_isolation%3Dserializable"
    table, insert = _WRITTEN[revision]
    with (
        closing(TrackingDatabase(url)) as database,
        closing(psycopg.connect(url)) as writer,
        closing(psycopg.connect(url, autocommit=True)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        migrate(database, revision)
        writer.execute(insert, ["before"])
        writer.commit()
        writer.execute(insert, ["open"])
        migrated = pool.submit(migrate, database)
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)"
        try:
            wait_until(
                lambda: migrated.done() or other.execute(waits, [table]).fetchone(),
                "nobody waits for the writer",
            )
        finally:
            writer.commit()
        migrated.result()
        assert other.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)


def is_waiting(connection: psycopg.Connection) -> bool:
    """Return whether a transaction waits for the table of spans."""
    query = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'tracelake_spans'::regclass"
    return connection.execute(query).fetchone() is not None


def check_long(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a revision may exceed the statement timeout, and that no other transaction may at that time."""
    url = postgres.url(postgres.new_schema())
    with closing(TrackingDatabase(url)) as database:
        migrate(database, "0004")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "POSTGRES_STATEMENT_TIMEOUT_S", 1.0)
        patch.setattr(limits, "POSTGRES_REPLY_TIMEOUT_S", 1.5)
        with closing(TrackingDatabase(url)) as database:
            with closing(psycopg.connect(url)) as other, ThreadPoolExecutor(1) as pool:
                other.execute("LOCK TABLE tracelake_spans")
                migrated = pool.submit(migrate, database)
                wait_until(lambda: migrated.done() or is_waiting(other))
                time.sleep(2)
                other.commit()
                migrated.result()
            check_gives_up(database)
    with closing(TrackingDatabase(url)) as database:
        assert is_whole(database)


def test_a_revision_may_take_long(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a lake with many rows could never be migrated."""
    check_long(postgres, monkeypatch)


def test_what_marks_said_was_given_up_is_kept(new_url: Callable[[], str]) -> None:
    """A trace with discarded rows stays marked as such after its mark is deleted, also if an older release
    discarded them."""
    with closing(TrackingDatabase(new_url())) as database:
        migrate(database, "0005")
        insert = (
            "INSERT INTO tracelake_trace_info (lake, trace_id, workspace, experiment_id, start_ns, end_ns, state, "
            "spans_location, archival_failure, updated_ns) VALUES (1, :mark, '', '0', 1, 1, '', '', :mark, 1)"
        )
        with database.writing() as connection:
            connection.execute(text(insert), [{"mark": mark} for mark in (INCOMPLETE, "MALFORMED_TRACE")])
        migrate(database)
        with database.reading() as connection:
            query = select(trace_info.c.trace_id).where(trace_info.c.given_up)
            assert connection.execute(query).scalars().all() == [INCOMPLETE]


def test_rows_of_an_earlier_revision_get_checksums(new_url: Callable[[], str], tmp_path: Path) -> None:
    """Revision 0008 adds checksums on SQLite. Rows on PostgreSQL get theirs when they are copied to SQLite."""
    insert = (
        "INSERT INTO tracelake_lakes (lake, lake_id) VALUES (7, 'lake-a')",
        "INSERT INTO tracelake_trace_info (lake, trace_id, workspace, experiment_id, start_ns, end_ns, state, "
        "request_preview, spans_location, updated_ns) VALUES (7, 't', '', '0', 1, 1, '', 'é\"', '', 1)",
        "INSERT INTO tracelake_spans (lake, trace_id, span_id, sequence, name, kind, workspace, start_ns, end_ns, "
        "input_tokens) VALUES (7, 't', 's', 5, 'ü\n', '', 'w', 1, 1, 9000000000)",
    )
    with (
        closing(TrackingDatabase(new_url())) as database,
        closing(TrackingDatabase(f"sqlite://{tmp_path}/copy.db")) as copy,
    ):
        migrate(database, "0007")
        with database.writing() as connection:
            for statement in insert:
                connection.execute(text(statement))
        migrate(database)
        migrate(copy)
        with copy.writing() as connection:  # so that the lake has another number there
            connection.execute(text("INSERT INTO tracelake_lakes (lake, lake_id) VALUES (1, 'lake-b')"))
        with paused_snapshot(database) as (connection, _):
            copy_tracking(connection, "lake-a", copy)
        for each in [copy, *([database] if database.is_sqlite else [])]:
            with each.reading() as connection:
                (*previews, stored) = connection.execute(
                    select(
                        trace_info.c.request_preview,
                        trace_info.c.response_preview,
                        trace_info.c.previews_checksum,
                    )
                ).one()
                assert stored == previews_checksum(previews)
                (*row, stored) = connection.execute(select(spans)).one()
                assert stored == span_checksum(row)


def check_order(url: str) -> None:
    """Check that trace ids are in byte order, for any collation of the database."""
    with closing(TrackingDatabase(url)) as database:
        migrate(database, REVISIONS[0])
        migrate(database)
    query = (
        "SELECT table_name, collation_name FROM information_schema.columns WHERE column_name = 'trace_id' AND "
        "table_schema = current_schema()"
    )
    with closing(psycopg.connect(url)) as connection:
        orders: dict[str, str] = dict(connection.execute(query).fetchall())
    assert orders == {table.name: "C" for table in metadata.sorted_tables if "trace_id" in table.c}


def test_ids_are_in_order_of_their_bytes(postgres: PostgresServer) -> None:
    """All sessions lock in one order, also with a Danish collation, and ids with one prefix are adjacent."""
    check_order(postgres.url(postgres.new_schema()))


def test_another_order_is_noticed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if the rule is broken in one table."""
    execute = op.execute
    monkeypatch.setattr(
        op, "execute", lambda statement: None if "parts ALTER COLUMN" in statement else execute(statement)
    )
    with pytest.raises(AssertionError):
        check_order(postgres.url(postgres.new_schema()))


def test_a_newer_revision_is_refused(database: TrackingDatabase) -> None:
    """Tables of a newer release stay unchanged, and the error names the solution."""
    with database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(UsageError, match="has revision 9999"):
        migrate(database)
