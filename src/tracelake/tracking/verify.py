"""Checks of the inbox and the tracking store for `tracelake verify`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from sqlalchemy import Column, Connection, Select, exists, func, or_, select

from tracelake import limits
from tracelake._errors import DamageError, InputError, NotFoundError, StorageError
from tracelake.otlp.framing import segment_problem
from tracelake.otlp.partition import COLUMNS, take_apart
from tracelake.results import SERVER_KINDS, Finding, Problem
from tracelake.storage import ObjectStore
from tracelake.storage.ports import VERIFY_ALIKE_MAX
from tracelake.tracking import schema
from tracelake.tracking.database import at_once, is_damage
from tracelake.tracking.ingest_queue import PREFIX
from tracelake.tracking.migrate import has_mirrors
from tracelake.tracking.outbox import segments
from tracelake.tracking.store import TrackingStore, stored_name, unpacked

ROW: Final = "outbox row"
TRACE: Final = "trace"
DATABASE: Final = "tracking store"
_SPAN_ID: Final = COLUMNS.index("span_id")
_WORKSPACE: Final = COLUMNS.index("workspace")
_KIND: Final = COLUMNS.index("kind")
_Key: TypeAlias = tuple[str, str, bool]
"""Id and workspace of a span, and whether it is on the server side."""
_CLAIMED: Final = ("trace_id", "span_id", "workspace", "kind", "sequence")
"""Columns of a claim that are compared with its payload."""


def check_inbox(objects: ObjectStore) -> Iterator[Finding]:
    """Yield problems of pending segments. A segment that disappears during the check was taken by the pipeline."""
    for info in list(objects.list(PREFIX)):
        try:
            problem = segment_problem(objects.get(info.path))
        except NotFoundError:
            continue
        except DamageError as error:
            problem = Problem(str(error))
        if problem is not None:
            yield Finding("damaged", "segment", info.path, str(problem))


def check_store(store: TrackingStore, settled: Collection[int]) -> Iterator[Finding]:
    """Yield problems of outbox rows and traces. `settled` are rows that transactions have acknowledged.

    All reads are one transaction, so concurrent changes are no findings. Damage of the SQLite file itself is a
    finding of kind DATABASE. Raises StorageError if the database is busy, unavailable or full.
    """
    if store.database.is_sqlite:
        store.database.close()  # open connections may have cached pages from before the damage
    try:
        with store.database.reading() as connection:
            if store.database.is_sqlite and (
                problems := _file_problems(connection)
                or list(_kind_problems(connection))
                or list(_checksum_problems(connection))
            ):
                name = store.database.name
                yield from (Finding("damaged", DATABASE, name, f"{each}; restore it") for each in problems)
                return  # the rest of a damaged file is not trustworthy
            waiting = yield from _check_outbox(connection, store.lake, settled)
            yield from _check_traces(connection, store.lake, waiting)
    except StorageError as error:
        if not is_damage(error):
            raise
        yield Finding("damaged", DATABASE, store.database.name, str(error))


def unchecked(store: TrackingStore) -> Iterator[str]:
    """Yield the parts of the database that `check_store` cannot check, with the reason. Raises StorageError if the
    database is unavailable."""
    with store.database.reading() as connection:
        if store.database.is_sqlite:
            if not has_mirrors(connection):
                yield (
                    f"columns of {store.database.name}: an earlier release wrote it, and this check cannot "
                    "write to it"
                )
        elif connection.exec_driver_sql("SHOW data_checksums").scalar() != "on":
            yield f"columns of {store.database.name}: its pages have no checksums (data_checksums is off)"


def _file_problems(connection: Connection) -> list[str]:
    """Return SQLite's integrity problems: pages, order and types of values, indexes that differ from their table."""
    problems = connection.exec_driver_sql(f"PRAGMA integrity_check({VERIFY_ALIKE_MAX})").scalars()
    return [str(problem) for problem in problems if problem != "ok"]


def _kind_problems(connection: Connection) -> Iterator[str]:
    """Yield values whose type differs from their column's. A flipped bit turns a text into a blob, which SQLite
    accepts."""
    for table in schema.metadata.sorted_tables:
        kinds = {column.name: _kinds(column) for column in table.c}
        stored = [func.typeof(column).label(column.name) for column in table.c]
        odd = or_(*(kind.not_in(kinds[kind.name]) for kind in stored))
        for row in connection.execute(select(*stored).where(odd).limit(VERIFY_ALIKE_MAX)).mappings():
            for name, kind in row.items():
                if kind not in kinds[name]:
                    yield f"{kind} value in {table.name}.{name}"


def _checksum_problems(connection: Connection) -> Iterator[str]:
    """Yield traces and spans of any lake whose columns differ from their checksum."""
    info = schema.trace_info
    previews = [info.c[name] for name in (*schema.PREVIEWS, "previews_checksum")]
    for table, columns, checksum in (
        (info, previews, schema.previews_checksum),
        (schema.spans, list(schema.spans.c), schema.span_checksum),
    ):
        query = select(table.c.trace_id, *columns)
        rows = connection.execution_options(yield_per=limits.VERIFY_ROWS_AT_ONCE).execute(query)
        differ = (trace_id for trace_id, *row, stored in rows if checksum(row) != stored)
        for trace_id in islice(differ, VERIFY_ALIKE_MAX):
            yield f"a row of trace {trace_id} in {table.name} differs from its checksum"


def _kinds(column: Column[Any]) -> list[str]:
    of_python: dict[type, str] = {str: "text", bytes: "blob"}
    kind = of_python.get(column.type.python_type, "integer")
    return [kind, "null"] if column.nullable else [kind]


def _check_outbox(
    connection: Connection, lake: int, settled: Collection[int]
) -> Generator[Finding, None, frozenset[int]]:
    """Yield problems of outbox rows; return the rows' numbers."""
    query = (
        select(schema.outbox.c.sequence)
        .where(schema.outbox.c.lake == lake)
        .order_by(schema.outbox.c.sequence)
    )
    waiting = list(connection.execute(query).scalars())
    for sequence in waiting:  # one at a time, because each may have megabytes
        size_bytes = connection.execute(
            select(schema.outbox.c.size_bytes).where(schema.outbox.c.sequence == sequence)
        ).scalar_one()
        if problem := _row_problem(segments(connection, lake, [sequence])[sequence], size_bytes):
            yield Finding("damaged", ROW, f"outbox/{sequence}", problem)
        if sequence in settled:
            detail = "a committed transaction contains it, but it was not deleted: it would be ingested twice"
            yield Finding("mismatch", ROW, f"outbox/{sequence}", detail)
    return frozenset(waiting)


def _row_problem(payload: bytes, size_bytes: int) -> str | None:
    if len(payload) != size_bytes:
        return f"it has {len(payload)} bytes, and its row says {size_bytes}"
    try:
        problem = segment_problem(payload)
    except DamageError as error:
        return str(error)
    return None if problem is None else str(problem)


def _check_traces(connection: Connection, lake: int, waiting: Collection[int]) -> Iterator[Finding]:
    ids = connection.execute(
        select(schema.trace_info.c.trace_id)
        .where(schema.trace_info.c.lake == lake)
        .order_by(schema.trace_info.c.trace_id)
    ).scalars()
    for some in at_once(list(ids)):
        parts, claims = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
        for part in connection.execute(_of(lake, some, schema.trace_parts, *schema.trace_parts.c)):
            parts[part.trace_id].append(part)
        for claim in connection.execute(
            _of(lake, some, schema.spans, *(schema.spans.c[name] for name in _CLAIMED))
        ):
            claims[claim.trace_id].append(claim)
        for info in connection.execute(_of(lake, some, schema.trace_info, *schema.trace_info.c)):
            for problem in _trace_problems(info, parts[info.trace_id], claims[info.trace_id], waiting):
                yield Finding("damaged", TRACE, info.trace_id, problem)
    for table, what in ((schema.trace_parts, "a payload"), (schema.spans, "columns of spans")):
        has_info = exists().where(
            schema.trace_info.c.lake == table.c.lake, schema.trace_info.c.trace_id == table.c.trace_id
        )
        query = select(table.c.trace_id).where(table.c.lake == lake, ~has_info).distinct()
        for trace_id in connection.execute(query.limit(VERIFY_ALIKE_MAX)).scalars():
            detail = f"the tracking store has its {what}, but no trace_info row; restore the database"
            yield Finding("missing", TRACE, trace_id, detail)


def _of(lake: int, trace_ids: Sequence[str], table: Any, *columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .where(table.c.lake == lake, table.c.trace_id.in_(trace_ids))
        .order_by(table.c.trace_id)
    )


def _trace_problems(
    info: Any, parts: Sequence[Any], claims: Sequence[Any], waiting: Collection[int]
) -> Iterator[str]:
    """Yield problems of a trace: its location, its payload, and its columns."""
    location = info.archive_location or ""
    if info.spans_location == schema.TRACKING_STORE:
        if not parts:
            yield "its row says that it is hot, but it has no payload; restore the database"
    elif info.spans_location != schema.ARCHIVE_REPO or not location:
        yield (
            f"its row says that it is in {info.spans_location} at {location!r}, which is not a location; "
            "restore the database"
        )
    elif not location.startswith(schema.LAKE_LOCATION) and parts:
        yield f"its row says that it is archived at {location}, but the tracking store has a payload too"
    elif late := [part.sequence for part in parts if part.sequence not in waiting]:
        yield (
            f"it is archived in the tables, which must contain its rows {late} by now, but they are still "
            "here"
        )
    by_row: dict[int, set[_Key]] = defaultdict(set)
    for claim in claims:
        by_row[claim.sequence].add((claim.span_id, claim.workspace, claim.kind in SERVER_KINDS))
    for part in parts:
        if problem := _part_problem(part, by_row):
            yield problem


def _part_problem(part: Any, by_row: Mapping[int, set[_Key]]) -> str | None:
    """Return the problem of a payload, or None. A restored payload has no row's number, and spans of several rows."""
    try:
        data = unpacked(part.trace_id, part.payload, part.size_bytes)
        message, keys = TracesData.FromString(data), _keys(data)
    except DamageError as error:
        return str(error)
    except (DecodeError, InputError) as error:
        return f"its payload {part.sequence} cannot be decoded: {error}; restore the database"
    stored = [span for group in message.resource_spans for scope in group.scope_spans for span in scope.spans]
    if any(span.trace_id.hex() != part.trace_id for span in stored):
        return f"its payload {part.sequence} has spans of another trace; restore the database"
    if len(stored) != part.spans:
        return f"its payload {part.sequence} has {len(stored)} spans, and its row says {part.spans}"
    return _columns_problem(part.sequence, keys, by_row)


def _columns_problem(sequence: int, keys: set[_Key], by_row: Mapping[int, set[_Key]]) -> str | None:
    """Return the difference between a payload and its columns, or None."""
    is_restored = sequence == schema.RESTORED_SEQUENCE
    columns = set[_Key]().union(*by_row.values()) if is_restored else by_row.get(sequence, set())
    ids, ids_of_columns = {key[:2] for key in keys}, {key[:2] for key in columns}
    if not _differ(ids, ids_of_columns, is_restored):
        # Before revision 0007, a request with both sides of a call left columns of only one of them.
        if is_restored or columns <= keys:
            return None
        return (
            f"its payload {sequence} lacks a client or a server span that the columns list; restore the "
            "database"
        )
    if _differ({span for span, _ in ids}, {span for span, _ in ids_of_columns}, is_restored):
        return f"its payload {sequence} has other spans than the columns list; restore the database"
    return (
        f"its payload {sequence} has spans of other workspaces than the columns list; restore the database, "
        "unless it was written before revision 0005"
    )


def _keys(data: bytes) -> set[_Key]:
    """Return ids and workspaces of spans in the form of the columns. Raises InputError if the payload does not
    decode."""
    rows = (row for trace in take_apart("protobuf", data).values() for row in trace.rows)
    return {(row[_SPAN_ID], stored_name(row[_WORKSPACE]) or "", row[_KIND] in SERVER_KINDS) for row in rows}


def _differ(stored: Set[Any], columns: Set[Any], is_restored: bool) -> bool:
    """Return whether payload and columns differ. A restored payload may lack columns that late rows brought."""
    return bool(stored - columns or (columns - stored and not is_restored))
