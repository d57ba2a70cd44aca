"""Rows of the tracking store that archivers decide on: how they are locked, read and changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, bindparam, select, update

from tracelake.archive.protocol import TraceStanding
from tracelake.archive.retention import MALFORMED
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import TRACKING_STORE, archive_objects, outbox, spans, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore

ResultT = TypeVar("ResultT")
_LIFE: Final = (
    select(spans.c.sequence)
    .where(spans.c.lake == trace_info.c.lake, spans.c.trace_id == trace_info.c.trace_id)
    .order_by(spans.c.span_id, spans.c.sequence)
    .limit(1)
    .scalar_subquery()
    .label("life")
)
"""A number of the outbox that a trace came with: of one that was deleted and came again it is another, for ever."""
_DECIDING: Final = (
    trace_info.c.trace_id,
    trace_info.c.experiment_id,
    trace_info.c.spans_location,
    trace_info.c.archive_location,
    trace_info.c.archive_bytes,
    trace_info.c.archive_sha256,
    trace_info.c.archival_failure,
    trace_info.c.db_payload_generation,
    _LIFE,
)
"""Of a row, without its texts: what archivers go by."""


def is_still_at(tracking: TrackingStore, trace_id: str, location: str) -> bool:
    """Whether that is still where a trace is archived: else what is gone there is nobody's loss."""
    info = trace_info.c
    query = select(info.archive_location).where(info.lake == tracking.lake, info.trace_id == trace_id)
    with tracking.database.reading() as connection:
        return bool(connection.execute(query).scalar() == location)


class ArchiveRows:
    """The rows of one lake. Objects are locked before traces, traces by id, and rows of the outbox last, everywhere."""

    def __init__(self, tracking: TrackingStore) -> None:
        self.tracking = tracking
        self.lake = tracking.lake

    def _infos(
        self, connection: Connection, trace_ids: Collection[str], *, lock: bool = True
    ) -> dict[str, Any]:
        """Return the rows of traces, each with its `life`; locked, nobody else changes them until this one ends."""
        rows: dict[str, Any] = {}
        # No trace has another id, and one that the database has no text for must not fail the others.
        for ids in at_once([each for each in trace_ids if each.isascii() and each.isalnum()]):
            query = (
                select(*_DECIDING)
                .where(trace_info.c.lake == self.lake, trace_info.c.trace_id.in_(ids))
                .order_by(trace_info.c.trace_id)
            )
            locking = query.with_for_update(of=trace_info)
            rows.update((row.trace_id, row) for row in connection.execute(locking if lock else query).all())
        return rows

    def _objects(
        self, connection: Connection, paths: Sequence[str], *, lock: bool = True
    ) -> dict[str, tuple[str, int]]:
        """Return state and number of traces of objects; locked as `_infos`."""
        objects = archive_objects.c
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
        of = (archive_objects.c.lake == self.lake, archive_objects.c.path == bindparam("of_path"))
        rows = [
            {"of_path": path, "state": state, "traces": traces} for path, (state, traces) in changed.items()
        ]
        if rows:
            connection.execute(update(archive_objects).where(*of), rows)

    def _waiting(self, connection: Connection, trace_ids: Sequence[str]) -> set[str]:
        waiting: set[str] = set()
        of = trace_parts.c
        rows = select(outbox.c.sequence).where(outbox.c.lake == self.lake)
        for ids in at_once(trace_ids):
            query = select(of.trace_id).where(
                of.lake == self.lake, of.trace_id.in_(ids), of.sequence.in_(rows)
            )
            waiting.update(connection.execute(query).scalars())
        return waiting

    def _parts(self, connection: Connection, trace_ids: Sequence[str]) -> dict[str, list[tuple[bytes, int]]]:
        parts: dict[str, list[tuple[bytes, int]]] = {}
        of = trace_parts.c
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
            update(trace_info).where(*self._of(trace_info, trace_id)).values(archival_failure=MALFORMED)
        )

    def _of(self, table: Any, trace_id: str) -> tuple[Any, Any]:
        return table.c.lake == self.lake, table.c.trace_id == trace_id

    def _write(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """Carry out one transaction that writes."""
        with self.tracking.database.writing() as connection:
            return body(connection)

    def _read(self, body: Callable[[Connection], ResultT]) -> ResultT:
        """Carry out one transaction that reads."""
        with self.tracking.database.reading() as connection:
            return body(connection)


def standing(info: Any) -> TraceStanding | None:
    """Return what the row of a trace says, None where there is none."""
    if info is None:
        return None
    return TraceStanding(
        info.spans_location == TRACKING_STORE, info.db_payload_generation, info.life, info.archive_location
    )
