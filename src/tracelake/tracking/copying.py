"""Copies of the tracking store of one lake, from a database of either kind to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, insert, select, text

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import lakes, metadata, outbox
from tracelake.tracking.store import TrackingStore

_SEQUENCE: Final = "pg_get_serial_sequence('tracelake_outbox', 'sequence')"


@contextmanager
def paused_snapshot(database: TrackingDatabase) -> Iterator[tuple[Connection, Any]]:
    """Yield a connection that reads one snapshot, and a function that ends the pause of writers.

    Writers of the outbox wait until that function is called. Whatever the caller reads elsewhere before is of the
    same moment: no request is acknowledged, and no row of the outbox deleted, between both.
    """
    with database._failures("copy"), database.engine.connect() as lock, database.engine.connect() as reader:
        driver: Any = lock.connection.driver_connection
        if not database.is_sqlite:
            reader.execution_options(isolation_level="REPEATABLE READ")
        # Both connections are open before the lock is taken, because to open one may wait for it.
        reader.connection  # noqa: B018
        driver.execute(
            "BEGIN IMMEDIATE" if database.is_sqlite else "LOCK TABLE tracelake_outbox IN SHARE MODE"
        )
        is_paused = True

        def resume() -> None:
            nonlocal is_paused
            if is_paused:
                is_paused = False
                driver.execute("ROLLBACK")

        try:
            with reader.begin():
                reader.execute(select(lakes.c.lake).limit(1)).all()  # the snapshot begins here
                yield reader, resume
        finally:
            resume()


def copy_tracking(source: Connection, lake_id: str, target: TrackingDatabase) -> int:
    """Copy all rows of a lake into a migrated database that has none of it; return how many."""
    number = source.execute(select(lakes.c.lake).where(lakes.c.lake_id == lake_id)).scalar_one()
    with target.reading() as connection:
        if connection.execute(select(lakes.c.lake).where(lakes.c.lake_id == lake_id)).first() is not None:
            raise StorageError(
                f"{target.name} has a tracking store of this lake already; name an empty database"
            )
    there = TrackingStore(target, lake_id)
    last = _last_number(source)
    copied = 0
    with target.writing() as connection:
        for table in metadata.sorted_tables:
            if table is lakes:
                continue
            rows = source.execution_options(yield_per=limits.VERIFY_ROWS_AT_ONCE).execute(
                select(table).where(table.c.lake == number)
            )
            for some in rows.mappings().partitions():
                copied += len(some)
                # An experiment that each lake has may be there already.
                connection.execute(
                    target.insert(table).on_conflict_do_nothing(),
                    [{**row, "lake": there.lake} for row in some],
                )
        _number_from(connection, target, there.lake, last)
    return copied


def _last_number(connection: Connection) -> int:
    """Return the last number that a row of the outbox had. The journal knows rows by it, so it is never used again."""
    if connection.dialect.name == "sqlite":
        query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'tracelake_outbox'"
    else:
        query = f"SELECT coalesce(pg_sequence_last_value({_SEQUENCE}::regclass), 0)"
    return int(connection.execute(text(query)).scalar_one())


def _number_from(connection: Connection, database: TrackingDatabase, lake: int, last: int) -> None:
    """Let the next row of the outbox have a number after `last`."""
    if not database.is_sqlite:
        connection.execute(text(f"SELECT setval({_SEQUENCE}, greatest(:last, 1))"), {"last": last})
    elif (
        last
        and connection.execute(select(outbox.c.sequence).where(outbox.c.sequence == last)).first() is None
    ):
        row = {"sequence": last, "lake": lake, "payload": b"", "size_bytes": 0, "received_ns": 0}
        connection.execute(insert(outbox), row)
        connection.execute(outbox.delete().where(outbox.c.sequence == last))
