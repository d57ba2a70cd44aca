"""Hot traces of one lake. Requests are stored in one transaction, all or none.

The same transaction puts the requests into the outbox, which the pipeline reads. Each trace has a generation, which
every write to its payload increments while the trace is hot. Check and write are one statement, so that no archiver
can act between them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import zstandard
from sqlalchemy import Connection, delete, func, select

from tracelake import limits
from tracelake._errors import BackPressureError, DamageError, UsageError
from tracelake._settings import load_settings
from tracelake.otlp.framing import Format, segment_of_frames_bytes, write_segment
from tracelake.otlp.partition import COLUMNS, TraceSpans
from tracelake.tracking.database import TrackingDatabase, at_once
from tracelake.tracking.erasure import ERASED, erased_among
from tracelake.tracking.schema import (
    ARCHIVE_REPO,
    DEFAULT_EXPERIMENT,
    LAKE_LOCATION,
    PREVIEWS,
    TRACKING_STORE,
    experiments,
    lakes,
    outbox,
    previews_checksum,
    span_checksum,
    spans,
    trace_info,
    trace_parts,
)

_OUTBOX_IN_PARTS_MAX_SHARE: Final = 1.5
"""Size of a request split by trace, each with its resources, as a share of the size as sent."""

_AT: Final = {name: place for place, name in enumerate(COLUMNS)}
_SPAN, _PARENT, _NAME, _STATUS = (_AT[name] for name in ("span_id", "parent_span_id", "name", "status"))
_START, _END, _SERVICE, _WORKSPACE = (_AT[name] for name in ("start_ns", "end_ns", "service", "workspace"))
_SESSION, _USER, _INPUT, _OUTPUT = (_AT[name] for name in ("session_id", "user_id", "input", "output"))
OF_SPANS: Final = tuple(column.name for column in spans.c)
_stored: Final = itemgetter(*(_AT[name] for name in OF_SPANS if name in _AT))
_texts: Final = itemgetter(
    *(_AT[name] for name in ("name", "service", "session_id", "user_id", "model", "workspace"))
)
"""Columns with arbitrary text. Kinds and states are words or digits, and ids are hex digits."""
OF_INFO: Final = (
    "workspace",
    "experiment_id",
    "start_ns",
    "end_ns",
    "state",
    "name",
    "service",
    "session_id",
    "user_id",
    *PREVIEWS,
    "previews_checksum",
)
"""Columns of table `trace_info` that come from spans."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """An accepted request: its body as received, split by trace if the queue needs that."""

    format: Format
    payload: bytes
    traces: Mapping[str, TraceSpans] = field(default_factory=dict)
    experiment_id: str = ""
    """MLflow's clients name one."""
    refused: int = 0
    """Refused spans of the body. The pipeline refuses them too and reports them."""

    @property
    def size_bytes(self) -> int:
        """Its approximate memory."""
        apart = sum(len(trace.data) for trace in self.traces.values() if trace.data is not self.payload)
        return len(self.payload) + apart


@dataclass(frozen=True, slots=True)
class RefusedSpans:
    """Number of refused spans of a request, and the reason."""

    spans: int
    reason: str


@dataclass(slots=True)
class TraceWrite:
    """The spans that a group of requests brings for one trace."""

    experiment_id: str
    rows: list[tuple[Any, ...]]
    data: list[bytes]


def group_by_trace(requests: Iterable[TracedRequest]) -> dict[str, TraceWrite]:
    """Return the spans of requests by trace, sorted by id, so that locks are always taken in the same order."""
    writes: dict[str, TraceWrite] = {}
    for request in requests:
        for trace_id, trace in request.traces.items():
            write = writes.get(trace_id)
            if write is None:
                write = writes[trace_id] = TraceWrite(request.experiment_id or DEFAULT_EXPERIMENT, [], [])
            write.rows += trace.rows
            write.data.append(trace.data)
    return dict(sorted(writes.items()))


def is_in_parts(requests: Sequence[TracedRequest], writes: Mapping[str, TraceWrite]) -> bool:
    """Return whether the trace parts alone can represent these requests for the pipeline.

    They cannot if spans were refused or a body is JSON, because the pipeline must read such requests as received. They
    cannot if a trace is in several requests, because size limits apply per request. They also cannot if resources
    repeated for each trace make them much larger than the requests.
    """
    sent = sum(len(request.payload) for request in requests)
    apart = sum(len(data) for write in writes.values() for data in write.data)
    return (
        all(request.format == "protobuf" and not request.refused for request in requests)
        and sum(len(request.traces) for request in requests) == len(writes)
        and apart <= _OUTBOX_IN_PARTS_MAX_SHARE * sent
    )


def without(request: TracedRequest, refused: Collection[str]) -> tuple[Format, bytes] | None:
    """Return the payload of a request without refused traces, or None if nothing remains."""
    if not any(trace_id in refused for trace_id in request.traces):
        return request.format, request.payload
    remaining = b"".join(trace.data for trace_id, trace in request.traces.items() if trace_id not in refused)
    return ("protobuf", remaining) if remaining else None


def info_of(write: TraceWrite, workspace: str | None = None) -> dict[str, Any] | None:
    """Return the `trace_info` columns of some spans. Without the root span its columns are null.

    The row is of one workspace, by default that of the first span, and reflects only that workspace's spans. Returns
    None if there are none.
    """
    brought = {row[_WORKSPACE] for row in write.rows}
    if workspace is None:
        workspace = stored_name(write.rows[0][_WORKSPACE])
    its = {name for name in brought if stored_name(name) == workspace}
    if not its:
        return None
    rows = write.rows if its == brought else [row for row in write.rows if row[_WORKSPACE] in its]
    root = min((row for row in rows if row[_PARENT] is None), key=_by_precedence, default=None)
    previews = [
        _cut(root[at], limits.TRACKING_PREVIEW_MAX_CHARS) if root else None for at in (_INPUT, _OUTPUT)
    ]
    return {
        "workspace": workspace,
        "experiment_id": write.experiment_id,
        "start_ns": min(row[_START] for row in rows),
        "end_ns": max(row[_END] for row in rows),
        "state": _state(root),
        "name": root and stored_name(root[_NAME]),
        "service": root and stored_name(root[_SERVICE]),
        "session_id": stored_name(_first(rows, _SESSION)),
        "user_id": stored_name(_first(rows, _USER)),
        **dict(zip(PREVIEWS, previews, strict=True)),
        "previews_checksum": previews_checksum(previews),
    }


def span_rows(lake: int, trace_id: str, sequence: int, write: TraceWrite) -> list[tuple[Any, ...]]:
    """Return rows of table `spans`, with the columns OF_SPANS."""
    rows = []
    for row in write.rows:
        span_id, *others = _stored(row)
        texts = "".join(filter(None, _texts(row)))
        if len(texts) > limits.TRACKING_NAME_MAX_CHARS or "\0" in texts:  # otherwise each text fits too
            others = [stored_name(each) if isinstance(each, str) else each for each in others]
        columns = (lake, trace_id, span_id, sequence, *others)
        rows.append((*columns, span_checksum(columns)))
    return rows


def refusals(requests: Sequence[TracedRequest], refused: Mapping[str, str]) -> list[RefusedSpans | None]:
    """Return each request's refused spans with the reasons, or None. `refused` maps traces to reasons."""
    of_requests: list[RefusedSpans | None] = []
    for each in requests:
        its = [trace_id for trace_id in refused if trace_id in each.traces]
        count = sum(len(each.traces[trace_id].rows) for trace_id in its)
        reasons = "; ".join(dict.fromkeys(refused[trace_id] for trace_id in its))
        of_requests.append(RefusedSpans(count, reasons) if count else None)
    return of_requests


def _state(root: tuple[Any, ...] | None) -> str:
    if root is None or not root[_END]:
        return "IN_PROGRESS"
    return "ERROR" if root[_STATUS] == "ERROR" else "OK"


def _by_start(row: tuple[Any, ...]) -> tuple[int, str]:
    return row[_START], row[_SPAN]


def _by_precedence(row: tuple[Any, ...]) -> tuple[int, str, int]:
    """Return a sort key that puts the version of a span that ended last first. It usually wins, except for senders'
    own precedence."""
    return *_by_start(row), -row[_END]


def _first(rows: Sequence[tuple[Any, ...]], at: int) -> str | None:
    return min((row for row in rows if row[at] is not None), key=_by_start, default=[None] * len(COLUMNS))[at]


def stored_name(text: str | None) -> str | None:
    """Return a name, such as a workspace, in the form that a column can hold."""
    return _cut(text, limits.TRACKING_NAME_MAX_CHARS)


def _cut(text: str | None, max_chars: int) -> str | None:
    """Return a text in the form that a column can hold. PostgreSQL allows no NUL."""
    if text is None or (len(text) <= max_chars and "\0" not in text):
        return text
    return text[:max_chars].replace("\0", "\ufffd")


ARCHIVED: Final = "the trace is archived; restore it (`tracelake archive restore`), then send its spans again"
_OF_ROOT: Final = ("state", "name", "service", *PREVIEWS, "previews_checksum")
_OF_ADVANCE: Final = ("lake", "trace_id", "spans_location", "updated_ns", "db_payload_generation")
OF_OUTBOX: Final = ("lake", "payload", "size_bytes", "received_ns")
_OF_ANY: Final = ("session_id", "user_id")


@dataclass(frozen=True, slots=True)
class TracePart:
    """Stored spans of one trace that arrived together in one outbox row. That row may have been deleted since."""

    sequence: int
    """The number of the outbox row in which the spans arrived."""
    spans: int
    payload: bytes
    """The spans as a serialized OTLP `TracesData`."""


@dataclass(frozen=True, slots=True)
class HotTrace:
    """A trace in the tracking store. If it is archived, only late spans have a payload here."""

    info: dict[str, Any]
    parts: tuple[TracePart, ...]

    @property
    def generation(self) -> int:
        """Number of writes that have changed the payload."""
        generation: int = self.info["db_payload_generation"]
        return generation

    @property
    def is_hot(self) -> bool:
        """Whether the payload is in the tracking store."""
        return bool(self.info["spans_location"] == TRACKING_STORE)

    @property
    def data(self) -> bytes:
        """All its parts as one `TracesData`; a span may have several versions."""
        return b"".join(part.payload for part in self.parts)


class _Compressors(threading.local):
    """A compressor per thread, because creating one costs a fifth of compressing a trace."""

    def __init__(self) -> None:
        self.one = zstandard.ZstdCompressor(level=1, write_checksum=True)


class TrackingStore:
    """The traces of one lake in a migrated database. Threads share it."""

    def __init__(self, database: TrackingDatabase, lake_id: str, page_key: str = "") -> None:
        self.database = database
        self.lake_id = lake_id
        self.page_key = page_key
        self.lake = _lake(database, lake_id)
        self._compressors = _Compressors()
        self._upserts = {
            place: database.inserting(trace_info, (*_OF_ADVANCE, *OF_INFO), _upsert(place))
            for place in (TRACKING_STORE, ARCHIVE_REPO)
        }
        self._insert_outbox = database.inserting(outbox, OF_OUTBOX, "RETURNING sequence")
        self._insert_parts = database.inserting(trace_parts, [column.name for column in trace_parts.c])
        self._insert_spans = database.inserting(spans, OF_SPANS)
        self._waiting: int | None = None
        self.reports_erased = load_settings().erased_spans == "refuse"
        """Whether senders learn of erased spans, by partial success."""
        self._experiments = {DEFAULT_EXPERIMENT}
        """Existing experiments that this process has seen."""

    def write(self, requests: Sequence[TracedRequest]) -> list[RefusedSpans | None]:
        """Store requests, all or none. Return each request's refused spans, or None.

        Spans of traces that are archived outside the lake's tables, or erased, are refused. Raises BackPressureError if
        the outbox is full, StorageError if nothing was stored, and IndeterminateError if the outcome is unknown.
        """
        self._check_backlog()
        writes = group_by_trace(requests)
        compress = self._compressors.one.compress
        sizes = {trace_id: sum(map(len, write.data)) for trace_id, write in writes.items()}
        packed = {trace_id: compress(b"".join(write.data)) for trace_id, write in writes.items()}
        in_parts = is_in_parts(requests, writes)
        segment = b"" if in_parts else _segment(requests)
        now_ns = time.time_ns()
        with self.database.writing() as connection:
            # Safety: checked in the transaction that stores the spans, and again by the eraser after its refusal.
            erased = erased_among(connection, self.lake, self.lake_id, writes)
            refused = dict.fromkeys(erased, ERASED)
            allowed = dict(writes)
            for trace_id in refused:
                del allowed[trace_id]
            hot = self._tell(connection, allowed, now_ns, TRACKING_STORE) if allowed else set[str]()
            archived = self._refused(connection, [trace_id for trace_id in allowed if trace_id not in hot])
            refused |= dict.fromkeys(archived, ARCHIVED)
            accepted = {trace_id: write for trace_id, write in writes.items() if trace_id not in refused}
            reported = {each: refused[each] for each in refused if self.reports_erased or each not in erased}
            if not accepted:
                return refusals(requests, reported)
            if late := {trace_id: write for trace_id, write in accepted.items() if trace_id not in hot}:
                self._tell(connection, late, now_ns, ARCHIVE_REPO)
            if refused and not in_parts:
                segment = _segment(requests, refused)
            size_bytes = (
                segment_of_frames_bytes([len(packed[each]) for each in accepted])
                if in_parts
                else len(segment)
            )
            [(sequence,)] = self._insert_outbox(connection, [(self.lake, segment, size_bytes, now_ns)])
            parts = [
                (self.lake, trace_id, sequence, len(write.rows), sizes[trace_id], packed[trace_id])
                for trace_id, write in accepted.items()
            ]
            self._insert_parts(connection, parts)
            rows = [
                row
                for trace_id, write in accepted.items()
                for row in span_rows(self.lake, trace_id, sequence, write)
            ]
            self._insert_spans(connection, rows)
            new = self._add_experiments(connection, accepted)
        if len(self._experiments) > limits.EXPERIMENTS_SHOWN_MAX:  # clients choose the ids, so bound the set
            self._experiments = {DEFAULT_EXPERIMENT}
        self._experiments |= new
        self._waiting = (self._waiting or 0) + 1
        return refusals(requests, reported)

    def traces(self, trace_ids: Collection[str]) -> dict[str, HotTrace]:
        """Return the given traces by id; unknown ones are left out. Raises DamageError if a part is unreadable."""
        found_traces: dict[str, HotTrace] = {}
        with self.database.reading() as connection:
            for ids in at_once(trace_ids):
                infos = connection.execute(
                    select(trace_info).where(trace_info.c.lake == self.lake, trace_info.c.trace_id.in_(ids))
                )
                of_traces: dict[str, dict[str, Any]] = {row.trace_id: dict(row._mapping) for row in infos}
                parts = connection.execute(
                    select(trace_parts)
                    .where(trace_parts.c.lake == self.lake, trace_parts.c.trace_id.in_(ids))
                    .order_by(trace_parts.c.sequence)
                )
                by_trace: dict[str, list[TracePart]] = {}
                for part in parts:
                    payload = unpacked(part.trace_id, part.payload, part.size_bytes)
                    by_trace.setdefault(part.trace_id, []).append(
                        TracePart(part.sequence, part.spans, payload)
                    )
                for trace_id, info in of_traces.items():
                    found_traces[trace_id] = HotTrace(info, tuple(by_trace.get(trace_id, ())))
        return found_traces

    def infos(self, trace_ids: Collection[str], workspace: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the `trace_info` rows of traces by id, of one workspace or all; unknown ones are left out."""
        infos: dict[str, dict[str, Any]] = {}
        with self.database.reading() as connection:
            for ids in at_once(trace_ids):
                of = [trace_info.c.lake == self.lake, trace_info.c.trace_id.in_(ids)]
                of += [] if workspace is None else [trace_info.c.workspace == workspace]
                rows = connection.execute(select(trace_info).where(*of))
                infos.update((row.trace_id, dict(row._mapping)) for row in rows)
        return infos

    def is_archived_in_tables(self, trace_id: str) -> bool:
        """Return whether a trace is only in the tables: layout `lake`, and not marked as incomplete."""
        info = trace_info.c
        query = select(info.trace_id).where(
            info.lake == self.lake,
            info.trace_id == trace_id,
            info.spans_location == ARCHIVE_REPO,
            info.archive_location.like(f"{LAKE_LOCATION}%"),
            info.archival_failure.is_(None),
        )
        with self.database.reading() as connection:
            return connection.execute(query).first() is not None

    def ids_that_begin(self, beginning: str, limit: int, workspace: str | None = None) -> list[str]:
        """Return sorted ids of traces with this prefix; with a workspace, only traces with its spans."""
        of = (trace_info if workspace is None else spans).c
        query = select(of.trace_id).where(
            of.lake == self.lake,
            of.trace_id >= beginning,
            of.trace_id < beginning + "g",  # after all hex digits
        )
        if workspace is not None:
            query = query.where(of.workspace == workspace).distinct()
        query = query.order_by(of.trace_id).limit(limit)
        with self.database.reading() as connection:
            return list(connection.execute(query).scalars())

    def began_until(self, experiment_id: str, until_ms: int, limit: int) -> list[str]:
        """Return ids of an experiment's traces that began up to a time, the oldest first. Raises UsageError if the time
        is out of range."""
        info = trace_info.c
        until_ns = until_ms * 1_000_000 + 999_999
        if abs(until_ns) >= 2**63:
            raise UsageError(f"{until_ms} is not a time in milliseconds since 1970.")
        query = (
            select(info.trace_id)
            .where(info.lake == self.lake, info.experiment_id == experiment_id, info.start_ns <= until_ns)
            .order_by(info.start_ns, info.trace_id)
            .limit(limit)
        )
        with self.database.reading() as connection:
            return list(connection.execute(query).scalars())

    def close(self) -> None:
        """Close the database. Calling it twice is allowed."""
        self.database.close()

    def check(self) -> None:
        """Raise StorageError if the database is not writable."""
        with self.database.writing() as connection:
            connection.execute(delete(lakes).where(lakes.c.lake == self.lake, lakes.c.lake_id == ""))

    def _tell(
        self, connection: Connection, writes: dict[str, TraceWrite], now_ns: int, place: str
    ) -> set[str]:
        """Insert or update the rows of traces whose payload is in `place`; return these traces.

        A write to hot traces increments their generation. An existing row may be of another workspace than the first
        new span. A second statement then updates it from the new spans in the row's workspace.
        """
        upsert = self._upserts[place]
        first = {trace_id: info_of(write) or {} for trace_id, write in writes.items()}

        def rows(infos: dict[str, dict[str, Any]], more: int) -> list[tuple[Any, ...]]:
            return [
                (self.lake, trace_id, place, now_ns, more, *map(info.__getitem__, OF_INFO))
                for trace_id, info in infos.items()
            ]

        changed: dict[str, str] = dict(upsert(connection, rows(first, 1 if place == TRACKING_STORE else 0)))
        others = {
            trace_id: info
            for trace_id, of in changed.items()
            if of != first[trace_id]["workspace"] and (info := info_of(writes[trace_id], of))
        }
        if others:
            upsert(connection, rows(others, 0))
        return set(changed)

    def _add_experiments(self, connection: Connection, writes: Mapping[str, TraceWrite]) -> set[str]:
        """Create missing experiments that traces name; return the ids that exist now.

        A wrong id must not hide traces, so an unknown experiment is created with its id as its name.
        """
        new: dict[str, str] = {}
        for write in writes.values():
            if write.experiment_id not in self._experiments:
                new.setdefault(write.experiment_id, str((info_of(write) or {})["workspace"]))
        of = experiments.c
        for experiment_id, workspace in sorted(new.items()):
            statement = self.database.insert(experiments).on_conflict_do_nothing()
            row = {"lake": self.lake, "experiment_id": experiment_id, "workspace": workspace}
            row["created_ns"] = time.time_ns()
            connection.execute(statement, {**row, "name": experiment_id})
            exists = select(of.name).where(of.lake == self.lake, of.experiment_id == experiment_id)
            if connection.execute(exists).scalar() is None:  # another experiment has this name
                name = f"{experiment_id[: limits.TRACKING_NAME_MAX_CHARS // 2]} {secrets.token_hex(8)}"
                connection.execute(statement, {**row, "name": name})
        return set(new)

    def _refused(self, connection: Connection, archived: Sequence[str]) -> set[str]:
        """Return the archived traces that accept no late spans, because their archive is not the lake's tables."""
        refused: set[str] = set()
        for ids in at_once(archived):
            query = select(trace_info.c.trace_id).where(
                trace_info.c.lake == self.lake,
                trace_info.c.trace_id.in_(ids),
                func.coalesce(trace_info.c.archive_location, "").not_like(f"{LAKE_LOCATION}%"),
            )
            refused.update(connection.execute(query).scalars())
        return refused

    def _check_backlog(self) -> None:
        # The count grows with each write and is refreshed only at the limit.
        if self._waiting is None or self._waiting >= limits.OUTBOX_ROWS_MAX:
            query = select(func.count()).select_from(outbox).where(outbox.c.lake == self.lake)
            with self.database.reading() as connection:
                self._waiting = connection.execute(query).scalar_one()
        if self._waiting >= limits.OUTBOX_ROWS_MAX:
            raise BackPressureError(
                f"{self._waiting} rows of the outbox wait for the pipeline; start it (`tracelake pipeline run`) "
                "and send the request again"
            )


def _upsert(place: str) -> str:
    """Return the upsert clause for a known trace whose payload is in `place`."""
    is_its = "excluded.workspace = known.workspace"  # spans of other workspaces do not affect the row
    # A version that says the root is running may arrive after the version that has ended, which wins.
    is_root = "excluded.name IS NOT NULL AND (excluded.state <> 'IN_PROGRESS' OR known.state = 'IN_PROGRESS')"
    conditions = {
        "start_ns": f"{is_its} AND excluded.start_ns < known.start_ns",
        "end_ns": f"{is_its} AND excluded.end_ns > known.end_ns",
        **dict.fromkeys(_OF_ROOT, f"{is_its} AND {is_root}"),
        **{name: f"{is_its} AND known.{name} IS NULL" for name in _OF_ANY},
    }
    sets = [
        f"{name} = CASE WHEN {when} THEN excluded.{name} ELSE known.{name} END"
        for name, when in conditions.items()
    ]
    return (
        f"ON CONFLICT (lake, trace_id) DO UPDATE SET {', '.join(sets)}, updated_ns = excluded.updated_ns,"
        " db_payload_generation = known.db_payload_generation + excluded.db_payload_generation"
        f" WHERE known.spans_location = '{place}' RETURNING trace_id, workspace"
    )


def _segment(requests: Sequence[TracedRequest], refused: Collection[str] = ()) -> bytes:
    """Return requests as a segment for the pipeline, without refused traces."""
    remaining = (without(request, refused) for request in requests)
    return write_segment([item for item in remaining if item is not None])


def unpacked(trace_id: str, payload: bytes, size_bytes: int) -> bytes:
    """Return a decompressed part. Raises DamageError if it differs from the stored one.

    SQLite files have no checksums: a flipped bit can make a value null, or assign a part to another trace.
    """
    data = b""
    try:
        if not (isinstance(payload, bytes) and isinstance(size_bytes, int)):
            raise zstandard.ZstdError("its row is damaged")
        # Check the size first, because decompression allocates the size in the frame header before it reads.
        actual_bytes = zstandard.frame_content_size(payload)
        if actual_bytes <= size_bytes:
            data = zstandard.ZstdDecompressor().decompress(
                payload, max_output_size=size_bytes, allow_extra_data=False
            )
            actual_bytes = len(data)
    except zstandard.ZstdError as error:
        raise DamageError(
            f"the spans of trace {trace_id} in the tracking store cannot be read: {error}; restore the database"
        ) from error
    if actual_bytes != size_bytes:
        raise DamageError(
            f"the spans of trace {trace_id} in the tracking store have {actual_bytes} bytes, not {size_bytes}; restore "
            "the database"
        )
    with suppress(ValueError, TypeError):  # the id may be invalid
        if bytes.fromhex(trace_id) in data:
            return data
    raise DamageError(f"trace {trace_id} has spans of another in the tracking store; restore the database")


def knows(database: TrackingDatabase, lake_id: str) -> bool:
    """Return whether a migrated database is the tracking store of a lake."""
    return _number(database, lake_id) is not None


def _number(database: TrackingDatabase, lake_id: str) -> int | None:
    query = select(lakes.c.lake).where(lakes.c.lake_id == lake_id)
    with database.reading() as connection:
        number: int | None = connection.execute(query).scalar()
    return number


def _lake(database: TrackingDatabase, lake_id: str) -> int:
    """Return the number of a lake; assign one if it has none."""
    if (number := _number(database, lake_id)) is not None:
        return number
    query = select(lakes.c.lake).where(lakes.c.lake_id == lake_id)
    with database.writing() as connection:
        connection.execute(database.insert(lakes).on_conflict_do_nothing(), {"lake_id": lake_id})
        number = connection.execute(query).scalar()
    if number is None:
        raise DamageError(f"{database.name} returns other data than was written; restore it")
    return int(number)
