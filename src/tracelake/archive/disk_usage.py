"""Disk usage of the tracking store, and the return of freed space to the file system.

SQLite returns free pages by `PRAGMA incremental_vacuum` and a checkpoint that truncates the log. PostgreSQL's
`VACUUM` makes rows reusable, and truncates the file if its end is free.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from tracelake._errors import StorageError
from tracelake.archive.protocol import LIVE
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import ARCHIVE_REPO, TRACKING_STORE, archive_objects, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore

_ARCHIVE_CUT_PAGES: Final = 200
"""Pages that one SQLite transaction returns to the disk after a pass."""
_ARCHIVE_TRUNCATE_WAIT_S: Final = 0.5
"""Wait for readers before SQLite's log is truncated after a pass."""
ARCHIVE_CLEANING_MAX_S: Final = 3600.0
"""Time that PostgreSQL may vacuum one table after a pass."""


_log: Final = logging.getLogger(__name__)
_CLEARED: Final = (trace_parts.name, "tracelake_outbox", trace_info.name)


@dataclass(frozen=True, slots=True)
class ArchiveSpace:
    """Traces and bytes in the tracking store and in the archive."""

    hot_traces: int
    hot_bytes: int
    """Uncompressed OTLP in the tracking store."""
    archived_traces: int
    archived_bytes: int
    """Bytes in the repository; 0 in layout `lake`, whose tables are the archive."""
    failed_traces: int
    """Traces marked as malformed or incomplete. Passes skip them."""
    uploads: int
    """Objects for a sweep to delete: abandoned uploads, and uploads that are not finalized."""
    database_bytes: int
    """Size of the database files, including other lakes in it."""
    free_bytes: int
    """Reusable bytes in these files; 0 if the database does not report them."""


def space(tracking: TrackingStore) -> ArchiveSpace:
    """Return the counts and sizes of hot and archived traces."""
    info, parts, objects = trace_info.c, trace_parts.c, archive_objects.c
    traces = (
        select(
            info.spans_location,
            func.count(),
            func.coalesce(func.sum(info.archive_bytes), 0),
            func.count(info.archival_failure),
        )
        .where(info.lake == tracking.lake)
        .group_by(info.spans_location)
    )
    # `+ 0` makes the database use an index with the sizes instead of the primary key, which reads all
    # payloads.
    part_bytes = select(func.coalesce(func.sum(parts.size_bytes), 0)).where(parts.lake + 0 == tracking.lake)
    uploads = select(func.count()).where(objects.lake == tracking.lake, objects.state != LIVE)
    with tracking.database.reading() as connection:
        database_bytes, free_bytes = _database_bytes(tracking.database, connection)
        of = {place: counts for place, *counts in connection.execute(traces)}
        hot, archived = of.get(TRACKING_STORE, (0, 0, 0)), of.get(ARCHIVE_REPO, (0, 0, 0))
        return ArchiveSpace(
            hot_traces=hot[0],
            hot_bytes=int(connection.execute(part_bytes).scalar_one()),
            archived_traces=archived[0],
            archived_bytes=int(archived[1]),
            failed_traces=hot[2] + archived[2],
            uploads=connection.execute(uploads).scalar_one(),
            database_bytes=database_bytes,
            free_bytes=free_bytes,
        )


def reclaim_disk(database: TrackingDatabase, stopping: Callable[[], bool] = lambda: False) -> None:
    """Make cleared space reusable, and shrink the files if possible. A failure only costs space, so it is logged.

    On SQLite, other writers can write between steps of a few pages.
    """
    try:
        if database.is_sqlite:
            _cut_sqlite(database, stopping)
        else:
            _clean_postgres(database)
    except (sqlite3.Error, SQLAlchemyError, StorageError) as error:
        _log.warning("%s keeps the space of archived traces until the next pass: %s", database.name, error)


def _clean_postgres(database: TrackingDatabase) -> None:
    with database.engine.connect() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = autocommit.connection.driver_connection
        autocommit.detach()  # its time-outs must not return to the pool
        # A long time-out, because a vacuum of a large table that is cut off would restart in each pass and
        # never finish.
        autocommit.execute(text(f"SET statement_timeout = {int(ARCHIVE_CLEANING_MAX_S * 1000)}"))
        driver.is_patient = True
        for table in _CLEARED:
            # A locked table is being vacuumed by another archiver or by PostgreSQL itself.
            autocommit.execute(text(f"VACUUM (SKIP_LOCKED) {table}"))


def _cut_sqlite(database: TrackingDatabase, stopping: Callable[[], bool]) -> None:
    with database.reading() as connection:
        free_pages = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
    while free_pages > 0 and not stopping():
        with database.writing() as connection:
            raw: Any = connection.connection.driver_connection
            # Each step of the statement frees a page. Python runs only one step of a statement without
            # columns, but all steps of a script. A script ends the current transaction, so it has its own.
            raw.executescript(f"BEGIN IMMEDIATE; PRAGMA incremental_vacuum({_ARCHIVE_CUT_PAGES}); COMMIT")
        free_pages -= _ARCHIVE_CUT_PAGES
    with database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        # The checkpoint waits for readers, and writers wait for it. A short time-out keeps a slow reader from
        # blocking them.
        waits_ms = int(raw.execute("PRAGMA busy_timeout").fetchone()[0])
        raw.execute(f"PRAGMA busy_timeout = {int(_ARCHIVE_TRUNCATE_WAIT_S * 1000)}")
        try:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            raw.execute(f"PRAGMA busy_timeout = {waits_ms}")


def _database_bytes(database: TrackingDatabase, connection: Connection) -> tuple[int, int]:
    if not database.is_sqlite:
        tables = "SELECT oid FROM pg_class WHERE relkind = 'r' AND relname LIKE 'tracelake_%'"
        query = f"SELECT sum(pg_total_relation_size(oid)) FROM ({tables}) AS ours"
        return int(connection.execute(text(query)).scalar() or 0), 0
    page_bytes = int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())
    free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()) * page_bytes
    files = [Path(database.name), Path(f"{database.name}-wal")]
    return sum(file.stat().st_size for file in files if file.exists()), free
