"""The archive's part of the tracking store: each decision is one SQL transaction on locked rows.

Writing transactions do only SQL, and a batch needs as many statements as one trace, because writers wait for them. On
SQLite a writing transaction has the write lock from its start; on PostgreSQL rows are locked as they are read. The
lock order is the same everywhere: objects, then traces by id, then outbox rows.

The module also reports the disk usage of the tracking store, and returns freed space to the file system. SQLite
returns free pages, if they are many, by `PRAGMA incremental_vacuum` and a checkpoint that truncates the log.
PostgreSQL's `VACUUM` makes rows reusable, and truncates the file if its end is free.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import zstandard
from sqlalchemy import Connection, bindparam, delete, func, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from tracelake._errors import DamageError, StorageError
from tracelake.archive import protocol
from tracelake.archive.model import AbandonedUpload, HotSnapshot, LayoutName, StoredUpload, locked_settings
from tracelake.archive.protocol import CONDEMNED, LIVE, OPEN, TraceState
from tracelake.archive.repositories import count_spans, path_of
from tracelake.archive.retention import MALFORMED, ArchiveOutcome
from tracelake.limits import TRACE_ARCHIVED_MAX_BYTES
from tracelake.tracking import schema
from tracelake.tracking.database import TrackingDatabase, at_once
from tracelake.tracking.erasure import erased_among
from tracelake.tracking.outbox import keep
from tracelake.tracking.schema import (
    ARCHIVE_REPO,
    TRACKING_STORE,
    archive_objects,
    spans,
    trace_info,
    trace_parts,
)
from tracelake.tracking.store import TrackingStore, unpacked

ResultT = TypeVar("ResultT")
_LIFE: Final = (
    select(spans.c.sequence)
    .where(spans.c.lake == schema.trace_info.c.lake, spans.c.trace_id == schema.trace_info.c.trace_id)
    .order_by(spans.c.span_id, spans.c.sequence)
    .limit(1)
    .scalar_subquery()
    .label("life")
)
"""An outbox number of a trace's spans. If a deleted trace arrives again, its number is always different."""
_DECIDING: Final = (
    schema.trace_info.c.trace_id,
    schema.trace_info.c.experiment_id,
    schema.trace_info.c.spans_location,
    schema.trace_info.c.archive_location,
    schema.trace_info.c.archive_bytes,
    schema.trace_info.c.archive_sha256,
    schema.trace_info.c.archival_failure,
    schema.trace_info.c.db_payload_generation,
    _LIFE,
)
"""Columns of a trace's row that archivers need, without its texts."""
_Contents: TypeAlias = Mapping[str, Collection[str]]


def is_still_at(tracking: TrackingStore, trace_id: str, location: str) -> bool:
    """Return whether a trace is still archived at a location. If not, missing data at the location is no damage."""
    info = schema.trace_info.c
    query = select(info.archive_location).where(info.lake == tracking.lake, info.trace_id == trace_id)
    with tracking.database.reading() as connection:
        return bool(connection.execute(query).scalar() == location)


class ArchiveRows:
    """Reads and locks rows of one lake. The lock order is the same everywhere: objects, then traces by id, then outbox
    rows."""

    def __init__(self, tracking: TrackingStore) -> None:
        self.tracking = tracking
        self.lake = tracking.lake

    def _infos(
        self, connection: Connection, trace_ids: Collection[str], *, lock: bool = True
    ) -> dict[str, Any]:
        """Return the rows of traces, each with its `life`. With `lock`, they cannot change until the transaction
        ends."""
        rows: dict[str, Any] = {}
        # Other ids belong to no trace. A text that the database rejects must not fail the rest.
        for ids in at_once([each for each in trace_ids if each.isascii() and each.isalnum()]):
            query = (
                select(*_DECIDING)
                .where(schema.trace_info.c.lake == self.lake, schema.trace_info.c.trace_id.in_(ids))
                .order_by(schema.trace_info.c.trace_id)
            )
            locking = query.with_for_update(of=schema.trace_info)
            rows.update((row.trace_id, row) for row in connection.execute(locking if lock else query).all())
        return rows

    def _objects(
        self, connection: Connection, paths: Sequence[str], *, lock: bool = True
    ) -> dict[str, tuple[str, int]]:
        """Return state and number of traces of objects, optionally locked as in `_infos`."""
        objects = schema.archive_objects.c
        by_path: dict[str, tuple[str, int]] = {}
        for some in at_once(paths):
            query = (
                select(objects.path, objects.state, objects.traces)
                .where(objects.lake == self.lake, objects.path.in_(some))
                .order_by(objects.path)
            )
            for path, state, traces in connection.execute(query.with_for_update() if lock else query):
                by_path[path] = (state, traces)
        return by_path

    def _set_objects(self, connection: Connection, changed: Mapping[str, tuple[str, int]]) -> None:
        """Set state and number of traces of objects."""
        of = (
            schema.archive_objects.c.lake == self.lake,
            schema.archive_objects.c.path == bindparam("of_path"),
        )
        rows = [
            {"of_path": path, "state": state, "traces": traces} for path, (state, traces) in changed.items()
        ]
        if rows:
            connection.execute(update(schema.archive_objects).where(*of), rows)

    def _waiting(self, connection: Connection, trace_ids: Sequence[str]) -> set[str]:
        waiting: set[str] = set()
        of = schema.trace_parts.c
        rows = select(schema.outbox.c.sequence).where(schema.outbox.c.lake == self.lake)
        for ids in at_once(trace_ids):
            query = select(of.trace_id).where(
                of.lake == self.lake, of.trace_id.in_(ids), of.sequence.in_(rows)
            )
            waiting.update(connection.execute(query).scalars())
        return waiting

    def _parts(self, connection: Connection, trace_ids: Sequence[str]) -> dict[str, list[tuple[bytes, int]]]:
        parts: dict[str, list[tuple[bytes, int]]] = {}
        of = schema.trace_parts.c
        for ids in at_once(trace_ids):
            query = (
                select(of.trace_id, of.payload, of.size_bytes)
                .where(of.lake == self.lake, of.trace_id.in_(ids))
                .order_by(of.sequence)
            )
            for trace_id, payload, size_bytes in connection.execute(query).all():
                parts.setdefault(trace_id, []).append((payload, size_bytes))
        return parts

    def _mark_malformed(self, connection: Connection, trace_id: str) -> None:
        connection.execute(
            update(schema.trace_info)
            .where(*self._of(schema.trace_info, trace_id))
            .values(archival_failure=MALFORMED)
        )

    def _of(self, table: Any, trace_id: str) -> tuple[Any, Any]:
        return table.c.lake == self.lake, table.c.trace_id == trace_id

    def _write(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """Run a writing transaction."""
        with self.tracking.database.writing() as connection:
            return body(connection)

    def _read(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """Run a reading transaction."""
        with self.tracking.database.reading() as connection:
            return body(connection)


def standing(info: Any) -> TraceState | None:
    """Return the state in a trace's row, or None if the trace has no row."""
    if info is None:
        return None
    return TraceState(
        info.spans_location == schema.TRACKING_STORE,
        info.db_payload_generation,
        info.life,
        info.archive_location,
    )


LateSpans: TypeAlias = tuple[frozenset[int], frozenset[int]]
"""The outbox numbers of a trace's spans, and those of them whose payload is in the store."""
_OF_TRACES = (
    schema.trace_parts,
    spans,
    schema.trace_tags,
    schema.trace_metadata,
    schema.assessments,
    schema.trace_info,
)


class ArchiveStore(ArchiveRows):
    """Operations of a lake's archivers on its traces and objects."""

    # A pass

    def begin(
        self, layout: LayoutName, trace_ids: Sequence[str], attempt: str, location: str | None = None
    ) -> tuple[list[HotSnapshot], dict[str, tuple[ArchiveOutcome, str]]]:
        """Take snapshots of hot traces, and register their objects before any upload.

        Returns the snapshots, and the outcomes of the other traces with reasons: pending in the pipeline, gone, or
        unreadable. Payloads are decompressed outside transactions, because finalize checks the generation anyway.
        `location` is the repository setting at the start of the pass.
        """
        infos, waiting, parts = self._read(lambda connection: self._look(connection, trace_ids))
        started: list[HotSnapshot] = []
        others: dict[str, tuple[ArchiveOutcome, str]] = {}
        malformed: dict[str, tuple[int, int]] = {}
        for trace_id in trace_ids:
            info = infos.get(trace_id)
            if info is None or info.spans_location != schema.TRACKING_STORE:
                others[trace_id] = (ArchiveOutcome.GONE, "")
            elif trace_id in waiting:
                others[trace_id] = (
                    ArchiveOutcome.WAITING,
                    "the pipeline has not committed all of its spans yet",
                )
            else:
                generation = info.db_payload_generation
                try:
                    its = parts.get(trace_id, ())
                    data = _joined(trace_id, its)
                    if layout != "lake":  # layout `lake` decodes it later for the comparison
                        count_spans(data, f"trace {trace_id} in the tracking store")
                except DamageError as error:
                    malformed[trace_id] = (generation, info.life)
                    others[trace_id] = (ArchiveOutcome.MALFORMED, str(error))
                    continue
                path = path_of(layout, info.experiment_id, trace_id, generation, attempt)
                # Reuse the stored frame: compressing it again took a third of a pass with packs.
                frame = its[0][0] if layout == "pack" and len(its) == 1 else None
                started.append(
                    HotSnapshot(trace_id, info.experiment_id, generation, info.life, data, path, frame)
                )
        self.mark_malformed(malformed)
        if not self._note_uploads(sorted({snapshot.path for snapshot in started} - {""}), location):
            moved = (
                ArchiveOutcome.CHANGED,
                ("the repository has changed in the meantime; the next pass archives it"),
            )
            return [], others | {snapshot.trace_id: moved for snapshot in started}
        return started, others

    def _look(
        self, connection: Connection, trace_ids: Sequence[str]
    ) -> tuple[dict[str, Any], set[str], dict[str, list[tuple[bytes, int]]]]:
        """Return the rows of traces, which of them are pending, and their parts; a consistent read without locks."""
        infos = self._infos(connection, trace_ids, lock=False)
        return infos, self._waiting(connection, trace_ids), self._parts(connection, trace_ids)

    def _note_uploads(self, paths: Sequence[str], location: str | None) -> bool:
        """Insert the rows of uploads before their first byte. Return False if the repository was moved since.

        After a move, sweeps would not find the uploads at the old location.
        """
        row = {"lake": self.lake, "state": OPEN, "traces": 0, "began_ns": time.time_ns()}

        def note(connection: Connection) -> bool:
            if locked_settings(connection, self.tracking, is_changed=False).location != location:
                return False
            connection.execute(insert(schema.archive_objects), [{**row, "path": path} for path in paths])
            return True

        return not paths or self._write(note)

    def finalize(
        self,
        stored: Sequence[StoredUpload],
        holds: Callable[[], bool] = lambda: True,
        contents: _Contents | None = None,
    ) -> dict[str, ArchiveOutcome]:
        """Make uploads the archive of their traces, and clear the payloads of traces that have not changed.

        Check and clearing are one transaction. `holds` is called right before it, and returns whether the stored data
        still exists, if it can disappear. `contents` has all traces of each object. An object with an erased trace is
        given up.
        """
        if not holds():
            return {each.trace_id: ArchiveOutcome.WAITING for each in stored}
        return self._write(lambda connection: self._finalize(connection, stored, contents or {}))

    def _finalize(
        self, connection: Connection, stored: Sequence[StoredUpload], contents: _Contents
    ) -> dict[str, ArchiveOutcome]:
        paths = sorted({each.path for each in stored} - {""})
        if paths:
            # Safety: an erasure locks the settings too. Either it sees the object LIVE, or this sees the erasure.
            locked_settings(connection, self.tracking, is_changed=False)
        objects = self._objects(connection, paths)
        states = {path: state for path, (state, _) in objects.items()} | {"": OPEN}
        inside = {path: contents.get(path, ()) for path in paths}
        erased = erased_among(connection, self.lake, self.tracking.lake_id, chain(*inside.values()))
        states |= {path: CONDEMNED for path, ids in inside.items() if not erased.isdisjoint(ids)}
        infos = self._infos(connection, [each.trace_id for each in stored])
        outcomes = {
            each.trace_id: protocol.finalize(
                states.get(each.path), standing(infos.get(each.trace_id)), each.generation, each.life
            )
            for each in stored
        }
        won = [each for each in stored if outcomes[each.trace_id] is ArchiveOutcome.ARCHIVED]
        self._clear(connection, won)
        traces_of = Counter(each.path for each in won if each.path)
        self._set_objects(
            connection, {path: (LIVE, objects[path][1] + traces) for path, traces in traces_of.items()}
        )
        return outcomes

    def _clear(self, connection: Connection, won: Sequence[StoredUpload]) -> None:
        now_ns = time.time_ns()
        places = [
            {
                "of_trace": each.trace_id,
                "archive_location": each.location,
                "archive_bytes": each.size_bytes,
                "archive_sha256": each.sha256,
                "archived_ns": now_ns,
            }
            for each in won
        ]
        if not won:
            return
        of = (schema.trace_info.c.lake == self.lake, schema.trace_info.c.trace_id == bindparam("of_trace"))
        connection.execute(
            update(schema.trace_info).where(*of).values(spans_location=schema.ARCHIVE_REPO), places
        )
        for ids in at_once([each.trace_id for each in won]):
            connection.execute(
                delete(schema.trace_parts).where(
                    schema.trace_parts.c.lake == self.lake, schema.trace_parts.c.trace_id.in_(ids)
                )
            )

    def mark_malformed(self, read: Mapping[str, tuple[int, int]]) -> None:
        """Mark traces that cannot be archived, unless their generation or life has changed: the write may have
        repaired them."""

        def mark(connection: Connection) -> None:
            for trace_id, info in self._infos(connection, read).items():
                if (info.db_payload_generation, info.life) == read[trace_id]:
                    self._mark_malformed(connection, trace_id)

        if read:
            self._write(mark)

    def unmark(self, trace_ids: Collection[str]) -> list[str]:
        """Remove the marks that make passes skip traces; return the traces that had one."""

        def clear(connection: Connection) -> list[str]:
            infos = self._infos(connection, trace_ids)
            marked = [trace_id for trace_id, info in infos.items() if info.archival_failure is not None]
            for trace_id in marked:
                connection.execute(
                    update(schema.trace_info)
                    .where(*self._of(schema.trace_info, trace_id))
                    .values(archival_failure=None)
                )
            return marked

        return self._write(clear)

    # Unreferenced objects

    def condemn(self, path: str) -> bool:
        """Mark an object as condemned, so that no trace can name it any more and it may be deleted. Return False if
        traces name it."""

        def decide(connection: Connection) -> bool:
            state, traces = self._objects(connection, [path]).get(path, (None, 0))
            if state is None:
                return True
            if not protocol.may_delete_upload(state, traces):
                return False
            self._set_objects(connection, {path: (CONDEMNED, 0)})
            return True

        return self._write(decide)

    def forget(self, paths: Collection[str]) -> None:
        """Delete the rows of condemned objects that were deleted."""

        def drop(connection: Connection) -> None:
            for path in sorted(paths):
                connection.execute(
                    delete(schema.archive_objects).where(
                        schema.archive_objects.c.lake == self.lake,
                        schema.archive_objects.c.path == path,
                        schema.archive_objects.c.state == CONDEMNED,
                    )
                )

        self._write(drop)

    def leftovers(self, began_before_ns: int, most: int | None = None) -> list[AbandonedUpload]:
        """Return unfinished uploads that began before a time, and condemned objects that are not deleted yet."""
        objects = schema.archive_objects.c
        query = (
            select(objects.path, objects.state)
            .where(objects.lake == self.lake)
            .where(
                (objects.state == CONDEMNED)
                | ((objects.state == OPEN) & (objects.began_ns < began_before_ns))
            )
            .order_by(objects.path)
            .limit(most)
        )
        return self._read(lambda connection: [AbandonedUpload(*row) for row in connection.execute(query)])

    def unknown(self, paths: Collection[str]) -> list[str]:
        """Return those of the given objects that have no row. No trace names such an object or ever will. The objects
        must have been listed before this call."""

        def look(connection: Connection) -> list[str]:
            recorded = self._objects(connection, sorted(paths), lock=False)
            return [path for path in paths if path not in recorded]

        return self._read(look)

    def has_objects(self, *, only_live: bool = False) -> bool:
        """Return whether the repository may have an object of this lake; with `only_live`, an object that traces
        name."""
        objects = schema.archive_objects.c
        which = (objects.state == LIVE,) if only_live else ()
        query = select(objects.path).where(objects.lake == self.lake, *which).limit(1)
        return self._read(lambda connection: connection.execute(query).first() is not None)

    # Restore and deletion

    def archived(self, trace_ids: Sequence[str]) -> dict[str, Any]:
        """Return the rows of traces, by id."""
        return self._read(lambda connection: self._infos(connection, trace_ids, lock=False))

    def archived_spans(self, trace_id: str) -> set[str]:
        """Return the ids of a trace's spans whose payload has left the tracking store."""
        here = select(schema.trace_parts.c.sequence).where(*self._of(schema.trace_parts, trace_id))
        query = select(spans.c.span_id).where(*self._of(spans, trace_id), spans.c.sequence.not_in(here))
        return self._read(lambda connection: set(connection.execute(query).scalars()))

    def late(self, trace_id: str) -> LateSpans:
        """Return the outbox numbers of a trace, and those whose spans the tables may not have yet."""
        return self._read(lambda connection: self._late(connection, trace_id))

    def _late(self, connection: Connection, trace_id: str) -> LateSpans:
        writes, waiting = (
            frozenset(
                connection.execute(select(table.c.sequence).where(*self._of(table, trace_id))).scalars()
            )
            for table in (spans, schema.trace_parts)
        )
        return writes, waiting

    def restore(
        self, trace_id: str, location: str, data: bytes, spans: int, path: str, late: LateSpans | None = None
    ) -> bool:
        """Restore the payload of a trace if `location` is still its archive; return whether it was restored."""
        row = {
            "lake": self.lake,
            "trace_id": trace_id,
            "sequence": schema.RESTORED_SEQUENCE,
            "spans": spans,
            "size_bytes": len(data),
            "payload": zstandard.ZstdCompressor(level=1, write_checksum=True).compress(data),
        }

        def put_back(connection: Connection) -> bool:
            objects = self._objects(connection, [path] if path else [])
            info = self._infos(connection, [trace_id]).get(trace_id)
            if not protocol.may_restore(standing(info), location):
                return False
            if late is not None and self._late(connection, trace_id) != late:
                return False
            connection.execute(insert(schema.trace_parts), row)
            connection.execute(
                update(schema.trace_info)
                .where(*self._of(schema.trace_info, trace_id))
                .values(
                    spans_location=schema.TRACKING_STORE,
                    archive_location=None,
                    archive_bytes=None,
                    archive_sha256=None,
                    archived_ns=None,
                    db_payload_generation=schema.trace_info.c.db_payload_generation + 1,
                )
            )
            self._release(connection, objects, {path: 1} if path else {})
            return True

        return self._write(put_back)

    def delete(self, places: Mapping[str, tuple[str | None, str]]) -> list[str]:
        """Delete traces from the tracking store and release their archive objects; return the deleted traces.

        `places` maps each trace to its archive location (None if hot) and its object ("" if none), as the caller read
        them. A trace whose location has changed meanwhile is kept. A tombstone of each deleted trace stays, because
        the tables still have its spans and MLflow's clients must not find them.
        """

        def remove(connection: Connection) -> list[str]:
            objects = self._objects(connection, sorted({path for _, path in places.values()} - {""}))
            infos = self._infos(connection, places)
            deleted = [each for each in infos if protocol.may_delete(standing(infos[each]), places[each][0])]
            keep(connection, self.lake, deleted)
            for trace_id in deleted:
                for table in _OF_TRACES:
                    connection.execute(delete(table).where(*self._of(table, trace_id)))
            self._add_tombstones(connection, deleted)
            freed = Counter(path for trace_id in deleted if (path := places[trace_id][1]))
            self._release(connection, objects, freed)
            return deleted

        return self._write(remove)

    def _add_tombstones(self, connection: Connection, trace_ids: Sequence[str]) -> None:
        """Record deletions. The tables still have the spans, but MLflow's client must not find them."""
        of = {"lake": self.lake, "key": schema.DELETED_KEY, "value": str(time.time_ns())}
        rows = [{**of, "trace_id": trace_id} for trace_id in sorted(trace_ids)]
        if rows:
            connection.execute(
                self.tracking.database.insert(schema.trace_metadata).on_conflict_do_nothing(), rows
            )

    def _release(
        self, connection: Connection, objects: Mapping[str, tuple[str, int]], freed: Mapping[str, int]
    ) -> None:
        """Remove traces' references to objects. An object without references becomes condemned."""
        changed = {}
        for path, traces in freed.items():
            state, names = objects.get(path, (CONDEMNED, 0))
            references = names - traces
            changed[path] = (state if references > 0 else CONDEMNED, max(0, references))
        self._set_objects(connection, changed)


def _joined(trace_id: str, parts: Sequence[tuple[bytes, int]]) -> bytes:
    """Return the parts of a trace as one `TracesData`. Raises DamageError if a part is damaged or the trace is too
    large to be restored."""
    size_bytes = sum(part_bytes for _, part_bytes in parts)
    if size_bytes > TRACE_ARCHIVED_MAX_BYTES:
        raise DamageError(
            f"trace {trace_id} has {size_bytes} bytes, more than the {TRACE_ARCHIVED_MAX_BYTES} that the "
            "archive accepts for one trace; it stays hot"
        )
    data = b"".join(unpacked(trace_id, *part) for part in parts)
    if not data:
        raise DamageError(f"trace {trace_id} has no spans in the tracking store")
    return data


ARCHIVE_FREE_SHARE: Final = 0.25
"""Share of a SQLite file that is free before a pass shrinks it."""
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

    A SQLite file is shrunk if at least a quarter of it is free: that moves pages, and new rows reuse the free ones.
    Other writers can write between steps of a few pages.
    """
    try:
        if database.is_sqlite:
            shrink_sqlite(database, stopping)
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


def shrink_sqlite(database: TrackingDatabase, stopping: Callable[[], bool]) -> None:
    """Return free pages of a SQLite file to the disk, if they are many, and truncate its log."""
    with database.reading() as connection:
        free_pages, pages = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("freelist_count", "page_count")
        )
    if free_pages < pages * ARCHIVE_FREE_SHARE:
        free_pages = 0
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
