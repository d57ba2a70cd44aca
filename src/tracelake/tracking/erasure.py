"""Erasure in the tracking store: traces that it must not accept again, and the rows that belong to erased traces.

The store refuses late spans of an erased trace by a salted hash of the trace's id. It keeps the hash, not the id, and
only for a stated time. The refusal is written before any row is deleted. A write that began earlier may still store
spans, so an eraser deletes rows until it finds none.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
import time
from collections.abc import Collection, Iterable
from typing import Any, Final

from sqlalchemy import Connection, Table, delete, func, or_, select, text

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.tracking import schema
from tracelake.tracking.database import TrackingDatabase, at_once, fetch

_VACUUM_MAX_S: Final = 3_600.0
"""Duration of a vacuum of one table in PostgreSQL."""
ERASED: Final = "the trace was erased, and the lake does not accept its spans again"
TABLES: Final[tuple[Table, ...]] = (
    schema.trace_parts,
    schema.spans,
    schema.trace_tags,
    schema.trace_metadata,
    schema.assessments,
    schema.trace_info,
)
"""Tables with rows of traces."""
_OF_METADATA: Final = f"SELECT trace_id, value FROM {schema.trace_metadata.name} WHERE lake = ? AND key = ?"


def erased_hash(lake_id: str, trace_id: str) -> str:
    """Return the salted hash by which a lake recognizes an erased trace."""
    return hmac.digest(lake_id.encode(), trace_id.encode(), hashlib.sha256).hex()


def erased_among(connection: Connection, lake: int, lake_id: str, trace_ids: Iterable[str]) -> set[str]:
    """Return those of the given traces that were erased and whose hash has not expired."""
    by_hash = {erased_hash(lake_id, trace_id): trace_id for trace_id in trace_ids}
    erased: set[str] = set()
    now_ns = time.time_ns()
    for some in at_once(by_hash):
        # Each write runs this query, and SQLAlchemy takes as long for it as for the rest of a write.
        query = f"{_OF_METADATA} AND trace_id IN ({', '.join('?' * len(some))})"
        rows = fetch(connection, query, (lake, schema.ERASED_KEY, *some))
        erased.update(by_hash[of_trace] for of_trace, until_ns in rows if int(until_ns) > now_ns)
    return erased


def scrub(database: TrackingDatabase) -> None:
    """Rewrite the database without the bytes of deleted rows. Raises StorageError if it is busy.

    SQLite is vacuumed into a new file image, and its log truncated. PostgreSQL is vacuumed: its free space and its log
    may contain the bytes until it overwrites them.
    """
    if database.is_sqlite:
        with database.engine.connect() as connection:
            scrub_sqlite(connection.connection.driver_connection)
        return
    with database.engine.connect() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        autocommit.detach()  # its time-out must not return to the pool
        autocommit.execute(text(f"SET statement_timeout = {int(_VACUUM_MAX_S * 1000)}"))
        for table in (*TABLES, schema.outbox):
            autocommit.execute(text(f"VACUUM {table.name}"))


def scrub_sqlite(connection: Any) -> None:
    """Rewrite a SQLite database without free space, and truncate its log. Raises StorageError if it is busy."""
    try:
        connection.execute("VACUUM")
        ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise StorageError(
            f"the database cannot be vacuumed: {error}. Run `tracelake erase run` again."
        ) from error
    if is_busy:
        raise StorageError(
            "the database is read by another process, so its log was not truncated. Run `tracelake erase run` again."
        )


class ErasedTraces:
    """Rows of erased traces in the tracking store of one lake."""

    def __init__(self, database: TrackingDatabase, lake: int, lake_id: str) -> None:
        self._database = database
        self._lake = lake
        self._lake_id = lake_id

    def refuse(self, trace_ids: Collection[str]) -> None:
        """Refuse spans of these traces from now on, for `ERASED_IDS_S` seconds. Forget expired refusals."""
        until_ns = time.time_ns() + int(limits.ERASED_IDS_S * 1e9)
        of = schema.trace_metadata.c
        hashes = [erased_hash(self._lake_id, trace_id) for trace_id in trace_ids]
        insert = self._database.insert(schema.trace_metadata).on_conflict_do_nothing()
        settings = schema.archive_settings.c.settings
        row = {"lake": self._lake, "settings": "{}"}
        for some in at_once(hashes):
            rows: list[dict[str, Any]] = [
                {"lake": self._lake, "trace_id": each, "key": schema.ERASED_KEY, "value": str(until_ns)}
                for each in some
            ]
            with self._database.writing() as connection:
                # Safety: an archiver locks the settings before it looks for erased traces in its object.
                self._database.locked(connection, settings, row, is_changed=True)
                connection.execute(insert, rows)
        old = [of.lake == self._lake, of.key == schema.ERASED_KEY, func.length(of.value) <= 19]
        with self._database.writing() as connection:
            # Times of this century have 19 digits, so texts compare as numbers.
            connection.execute(delete(schema.trace_metadata).where(*old, of.value < str(time.time_ns())))

    def count(self, trace_ids: Collection[str]) -> int:
        """Count the rows of traces in all tables."""
        rows = 0
        with self._database.reading() as connection:
            for table in TABLES:
                for some in at_once(trace_ids):
                    query = select(func.count()).where(*self._of(table, some))
                    rows += int(connection.execute(query).scalar_one())
        return rows

    def delete(self, trace_ids: Collection[str]) -> int:
        """Delete the rows of traces that are not in `trace_info`, and return their number.

        The archive deletes the others first, with their payloads in the outbox and the repository.
        """
        rows = 0
        for some in at_once(trace_ids):
            with self._database.writing() as connection:
                of = schema.trace_info.c
                query = select(of.trace_id).where(of.lake == self._lake, of.trace_id.in_(some))
                there = set(connection.execute(query.with_for_update()).scalars())
                free = [trace_id for trace_id in some if trace_id not in there]
                for table in TABLES if free else ():
                    rows += connection.execute(delete(table).where(*self._of(table, free))).rowcount
        return rows

    def traces_of(self, *, session: str | None = None, user: str | None = None) -> set[str]:
        """Return the traces with a span of a session or user."""
        trace_ids: set[str] = set()
        with self._database.reading() as connection:
            for table in (schema.spans, schema.trace_info):
                of = table.c
                matches = [of.session_id == session] if session is not None else []
                matches += [of.user_id == user] if user is not None else []
                query = select(of.trace_id).where(of.lake == self._lake, or_(*matches)).distinct()
                trace_ids.update(connection.execute(query).scalars())
        return trace_ids

    def archive_objects(self) -> list[str]:
        """Return the paths of the archive objects that traces name."""
        of = schema.archive_objects.c
        query = select(of.path).where(of.lake == self._lake, of.traces > 0)
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def traces_in(self, pack: str) -> set[str]:
        """Return the traces that name a pack. It keeps its name if the repository moves."""
        of = schema.trace_info.c
        query = select(of.trace_id).where(of.lake == self._lake, of.archive_location.contains(f"/{pack}#"))
        with self._database.reading() as connection:
            return set(connection.execute(query).scalars())

    def newest_outbox_row(self) -> int:
        """Return the number of the newest outbox row, 0 without any."""
        query = select(func.coalesce(func.max(schema.outbox.c.sequence), 0)).where(
            schema.outbox.c.lake == self._lake
        )
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def pending_until(self, sequence: int, quarantined: Collection[str]) -> int:
        """Count the outbox rows up to a number, without quarantined ones, given by their paths."""
        column = schema.outbox.c.sequence
        query = select(column).where(schema.outbox.c.lake == self._lake, column <= sequence)
        with self._database.reading() as connection:
            return sum(f"outbox/{each}" not in quarantined for each in connection.execute(query).scalars())

    def _of(self, table: Table, trace_ids: Collection[str]) -> tuple[Any, Any]:
        return table.c.lake == self._lake, table.c.trace_id.in_(trace_ids)
