"""What the tracking store takes, what archiving freed of it, and how that comes back to the disk.

SQLite: free pages go back to the file system at once, by `PRAGMA incremental_vacuum` and a checkpoint that cuts the
log. PostgreSQL: `VACUUM` makes rows reusable by later ones, and cuts the file where its end is free.
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
from tracelake.limits import ARCHIVE_CLEANING_MAX_S, ARCHIVE_CUT_PAGES, ARCHIVE_TRUNCATE_WAIT_S
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import ARCHIVE_REPO, TRACKING_STORE, archive_objects, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore

_log: Final = logging.getLogger(__name__)
_CLEARED: Final = (trace_parts.name, "tracelake_outbox", trace_info.name)


@dataclass(frozen=True, slots=True)
class ArchiveSpace:
    """Traces and bytes on both sides."""

    hot_traces: int
    hot_bytes: int
    """OTLP in the tracking store, uncompressed."""
    archived_traces: int
    archived_bytes: int
    """In the repository; 0 in layout `lake`, whose tables are the archive."""
    failed_traces: int
    """Marked as malformed or incomplete; passes skip them."""
    uploads: int
    """Objects that were begun and not finalized, or that are to be deleted: what a sweep takes."""
    database_bytes: int
    """Files of the database, of all lakes in it."""
    free_bytes: int
    """Of them free for what comes next; 0 where the database does not tell."""


def space(tracking: TrackingStore) -> ArchiveSpace:
    """Return what stands where."""
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
    # `+ 0`: through an index that has the sizes, and not by the primary key through all payloads.
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
    """Let what was cleared be used again, and the files shrink where they can. A failure is logged: it costs space.

    Writers get in between, every few pages.
    """
    try:
        if database.is_sqlite:
            _cut_sqlite(database, stopping)
        else:
            _clean_postgres(database)
    except (sqlite3.Error, SQLAlchemyError, StorageError) as error:
        _log.warning("%s keeps the space of what was archived until the next pass: %s", database.name, error)


def _clean_postgres(database: TrackingDatabase) -> None:
    with database.engine.connect() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = autocommit.connection.driver_connection
        autocommit.detach()  # nobody else is to have its time-outs
        # What a large table takes is not wasted half way: each pass would begin it anew, and never end it.
        autocommit.execute(text(f"SET statement_timeout = {int(ARCHIVE_CLEANING_MAX_S * 1000)}"))
        driver.is_patient = True
        for table in _CLEARED:
            # Who has the table now is another archiver, or PostgreSQL itself, that does the same.
            autocommit.execute(text(f"VACUUM (SKIP_LOCKED) {table}"))


def _cut_sqlite(database: TrackingDatabase, stopping: Callable[[], bool]) -> None:
    with database.reading() as connection:
        left = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
    while left > 0 and not stopping():
        with database.writing() as connection:
            raw: Any = connection.connection.driver_connection
            # Each step of the statement frees a page. Python makes all steps of a script, which ends the transaction
            # that is under way, and one of a statement without columns.
            raw.executescript(f"BEGIN IMMEDIATE; PRAGMA incremental_vacuum({ARCHIVE_CUT_PAGES}); COMMIT")
        left -= ARCHIVE_CUT_PAGES
    with database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        # It waits for readers, and writers wait for it: a reader that takes its time must not hold them up.
        waits_ms = int(raw.execute("PRAGMA busy_timeout").fetchone()[0])
        raw.execute(f"PRAGMA busy_timeout = {int(ARCHIVE_TRUNCATE_WAIT_S * 1000)}")
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
