"""The outbox of the tracking store: requests as received, until a commit on `main` has them.

A row is identified by its number: the pipeline reads it, records it in the journal, and deletes it after the commit.
There is no high watermark, because PostgreSQL commits numbers in another order than it assigns them. A number may
appear below one that was read long ago, and a rolled-back number never appears. The pipeline therefore lists existing
rows, and neither waits for a number nor misses one.

If the trace parts contain all of a request, the row's payload is empty, so that nothing is stored twice. Code that
deletes such a part while its outbox row exists must fill the row's payload first (`keep`).

`Uncommitted` reads the pending rows by trace, before the pipeline commits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    column,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from tracelake import limits
from tracelake._errors import DamageError, InputError
from tracelake.otlp.framing import segment_of_frames, segment_of_frames_bytes, segment_payloads
from tracelake.otlp.partition import take_apart
from tracelake.results import SERVER_KINDS
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import ARCHIVE_REPO, INCOMPLETE, outbox, spans, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore, unpacked


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A damaged row, as far as it is readable."""

    segment: bytes
    traces: dict[str, bool]
    """The traces that it brought, each with whether all its spans are readable."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A pending row of the outbox."""

    sequence: int
    size_bytes: int
    received_ns: int


def segments(connection: Connection, lake: int, sequences: Collection[int]) -> dict[int, bytes]:
    """Return the segments of existing rows by their numbers.

    If parts of a row are missing, its segment is padded to the recorded size, so that every reader sees the damage.
    An unreadable part comes last in the segment.
    """
    query = select(outbox.c.sequence, outbox.c.payload, outbox.c.size_bytes)
    rows = connection.execute(query.where(outbox.c.lake == lake, outbox.c.sequence.in_(sequences))).all()
    parts: dict[int, list[tuple[str, int, bytes]]] = {row.sequence: [] for row in rows if not row.payload}
    if parts:
        of = trace_parts.c
        # `+ 0` as in `Uncommitted.listed`.
        theirs = select(of.sequence, of.trace_id, of.size_bytes, of.payload).where(
            of.lake + 0 == lake, of.sequence.in_(parts)
        )
        for sequence, *part in connection.execute(theirs):
            parts[sequence].append(tuple(part))
    payloads = {}
    for row in rows:
        if not (payload := row.payload):
            in_order = sorted(parts[row.sequence], key=_damaged_last)
            payload = segment_of_frames([part[1:] for part in in_order])
        payloads[row.sequence] = payload[: row.size_bytes].ljust(row.size_bytes, b"\0")
    return payloads


def _damaged_last(part: tuple[str, int, bytes]) -> tuple[bool, str]:
    """Return a sort key that puts damaged parts last. A reader stops at damage, so readable parts must come first."""
    trace_id, size_bytes, payload = part
    try:
        unpacked(trace_id, payload, size_bytes)
    except DamageError:
        return True, trace_id
    return False, trace_id


def _spans_read(segment: bytes) -> Counter[str]:
    """Return the number of readable spans in a segment, by trace."""
    read = Counter[str]()
    for payload in segment_payloads(segment):
        with suppress(InputError):
            for trace_id, trace in take_apart(payload.format, payload.data).items():
                read[trace_id] += len(trace.rows)
    return read


def keep(connection: Connection, lake: int, trace_ids: Collection[str]) -> None:
    """Fill the payloads of outbox rows that consist of parts of these traces, so that the parts can be deleted."""
    parts, of = trace_parts.c, outbox.c
    numbers: set[int] = set()
    for ids in at_once(trace_ids):
        theirs = select(parts.sequence).where(parts.lake == lake, parts.trace_id.in_(ids))
        numbers.update(connection.execute(theirs.distinct()).scalars())
    for some in at_once(numbers):
        rows = select(of.sequence).where(of.lake == lake, of.sequence.in_(some), of.payload == b"")
        locked = connection.execute(rows.order_by(of.sequence).with_for_update()).scalars().all()
        for sequence in locked:
            payload = segments(connection, lake, [sequence])[sequence]
            here = (of.lake == lake, of.sequence == sequence)
            connection.execute(update(outbox).where(*here).values(payload=payload))


class Outbox:
    """The outbox of one lake."""

    def __init__(self, store: TrackingStore) -> None:
        self._database = store.database
        self._lake = store.lake

    def waiting(self, limit: int | None = None) -> list[OutboxRow]:
        """Return existing rows by ascending number, at most `limit`."""
        query = (
            select(outbox.c.sequence, outbox.c.size_bytes, outbox.c.received_ns)
            .where(outbox.c.lake == self._lake)
            .order_by(outbox.c.sequence)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [OutboxRow(*row) for row in connection.execute(query)]

    def totals(self) -> tuple[int, int, int | None]:
        """Return the number of pending rows, their bytes, and the oldest receive time in nanoseconds."""
        query = select(
            func.count(), func.coalesce(func.sum(outbox.c.size_bytes), 0), func.min(outbox.c.received_ns)
        ).where(outbox.c.lake == self._lake)
        with self._database.reading() as connection:
            rows, size_bytes, oldest_ns = connection.execute(query).one()
        return int(rows), int(size_bytes), oldest_ns

    def count_parts(self, sequences: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the number of trace parts of rows, and the bytes of their spans, by row number."""
        of, sizes = trace_parts.c, dict[int, tuple[int, int]]()
        # `+ 0` as in `Uncommitted.listed`.
        query = select(of.sequence, func.count(), func.sum(of.size_bytes)).where(of.lake + 0 == self._lake)
        with self._database.reading() as connection:
            for some in at_once(sequences):
                rows = connection.execute(query.where(of.sequence.in_(some)).group_by(of.sequence))
                sizes.update((sequence, (int(parts), int(total))) for sequence, parts, total in rows)
        return sizes

    def read(self, sequence: int) -> bytes | None:
        """Return the segment of a row, or None if the row does not exist."""
        return self.read_all([sequence]).get(sequence)

    def read_all(self, sequences: Collection[int]) -> dict[int, bytes]:
        """Return the segments of existing rows by their numbers."""
        payloads: dict[int, bytes] = {}
        with self._database.reading() as connection:
            for some in at_once(sequences):
                payloads.update(segments(connection, self._lake, some))
        return payloads

    def looked_through(self, sequence: int) -> ReadRow | None:
        """Return a damaged row, with the completeness of each of its traces, or None if the row does not exist.

        This scans all spans of the lake, so callers should use it for damaged rows only.
        """
        parts, of = trace_parts.c, spans.c
        with self._database.reading() as connection:
            segment = segments(connection, self._lake, [sequence]).get(sequence)
            # `+ 0` as in `Uncommitted.listed`. If the database has lost parts, the columns of their spans
            # remain.
            brought = select(parts.trace_id, parts.spans).where(
                parts.lake + 0 == self._lake, parts.sequence == sequence
            )
            counts = {row.trace_id: int(row.spans) for row in connection.execute(brought)}
            trace_ids = select(of.trace_id).where(of.lake == self._lake, of.sequence == sequence).distinct()
            traces = counts.keys() | set(connection.execute(trace_ids).scalars())
        if segment is None:
            return None
        read = _spans_read(segment)
        return ReadRow(segment, {each: 0 < counts.get(each, 0) <= read[each] for each in sorted(traces)})

    def there(self, sequences: Collection[int]) -> set[int]:
        """Return the numbers of the given rows that exist."""
        there: set[int] = set()
        with self._database.reading() as connection:
            for some in at_once(sequences):
                there.update(connection.execute(select(outbox.c.sequence).where(*self._of(some))).scalars())
        return there

    def _of(self, sequences: Collection[int]) -> tuple[Any, Any]:
        return outbox.c.lake == self._lake, outbox.c.sequence.in_(sequences)

    def size_bytes(self, sequence: int) -> int | None:
        """Return the size of a row, or None if the row does not exist."""
        query = select(outbox.c.size_bytes).where(outbox.c.lake == self._lake, outbox.c.sequence == sequence)
        with self._database.reading() as connection:
            size: int | None = connection.execute(query).scalar()
        return size

    def trim(self, sequences: Collection[int]) -> None:
        """Delete committed rows; the call is idempotent.

        Late spans of archived traces are deleted too, because the tables now have them and the rest of their traces.
        """
        for some in at_once(sequences):
            with self._database.writing() as connection:
                self._trim(connection, some)

    def give_up(self, sequences: Collection[int]) -> None:
        """Delete rows whose spans will never all reach the tables, because the user discarded them or they are
        damaged.

        Their traces are flagged permanently. They are also marked INCOMPLETE, so archive passes skip them until a
        user removes the mark. Their hot spans stay, because they may be the only copy. The call is idempotent.
        """
        for some in at_once(sequences):
            with self._database.writing() as connection:
                self._locked(connection, some)
                # Mark only for rows that still exist: this call is repeated, and removing the mark is the
                # user's decision.
                waiting = self._locked_rows(connection, some)
                of = trace_info.c
                mark = func.coalesce(of.archival_failure, INCOMPLETE)
                connection.execute(
                    update(trace_info)
                    .where(of.lake == self._lake, of.trace_id.in_(self._traces(waiting)))
                    .values(archival_failure=mark, given_up=True)
                )
                self._trim(connection, some)

    def let_go(self, sequence: int, traces: Mapping[str, bool]) -> None:
        """Delete a damaged row after its readable spans were committed; the call is idempotent.

        If an incomplete trace of it also has parts besides the row's payload, they become a new row. Other incomplete
        traces are flagged as in `give_up`.
        """
        lost = [trace_id for trace_id, is_complete in traces.items() if not is_complete]
        of = trace_info.c
        mark = func.coalesce(of.archival_failure, INCOMPLETE)
        with self._database.writing() as connection:
            for ids in at_once(sorted(traces)):
                its = select(of.trace_id).where(of.lake == self._lake, of.trace_id.in_(ids))
                connection.execute(its.order_by(of.trace_id).with_for_update()).all()
            if self._locked_rows(connection, [sequence]):
                again = self._again(connection, sequence, lost)
                for ids in at_once([trace_id for trace_id in lost if trace_id not in again]):
                    these = (of.lake == self._lake, of.trace_id.in_(ids))
                    connection.execute(
                        update(trace_info).where(*these).values(archival_failure=mark, given_up=True)
                    )
                self._trim(connection, [sequence])

    def _again(self, connection: Connection, sequence: int, trace_ids: Collection[str]) -> set[str]:
        """Create a new row from the parts of traces that an existing row brought; return these traces."""
        own = select(outbox.c.payload, outbox.c.received_ns).where(*self._of([sequence]))
        payload, received_ns = connection.execute(own).one()
        of = trace_parts.c
        sizes = dict[str, int]()
        for ids in at_once(trace_ids if payload else ()):
            its = (of.lake == self._lake, of.trace_id.in_(ids), of.sequence == sequence)
            sizes.update(connection.execute(select(of.trace_id, func.length(of.payload)).where(*its)).all())
        if sizes:
            row = {"lake": self._lake, "payload": b"", "received_ns": received_ns}
            row["size_bytes"] = segment_of_frames_bytes(sizes.values())
            (number,) = connection.execute(insert(outbox).values(row).returning(outbox.c.sequence)).one()
            for table in (trace_parts, spans):
                for ids in at_once(sizes):
                    connection.execute(_copied(table, self._lake, ids, sequence, number))
        return set(sizes)

    def _trim(self, connection: Connection, sequences: Collection[int]) -> None:
        # Lock archived traces first. A concurrent restore relies on late spans being either here or in the
        # tables.
        archived = self._locked(connection, sequences, trace_info.c.spans_location == ARCHIVE_REPO)
        self._locked_rows(connection, sequences)
        connection.execute(delete(outbox).where(*self._of(sequences)))
        for ids in at_once(archived):
            connection.execute(
                delete(trace_parts).where(
                    trace_parts.c.lake == self._lake,
                    trace_parts.c.trace_id.in_(ids),
                    trace_parts.c.sequence.in_(sequences),
                )
            )

    def _locked_rows(self, connection: Connection, sequences: Collection[int]) -> list[int]:
        """Return the numbers of existing rows, locked in the same order as in `keep`: by number, after traces."""
        query = select(outbox.c.sequence).where(*self._of(sequences))
        return list(connection.execute(query.order_by(outbox.c.sequence).with_for_update()).scalars())

    def _locked(self, connection: Connection, sequences: Collection[int], *conditions: Any) -> list[str]:
        """Return the traces of some rows, locked in the common order, by id."""
        info = trace_info.c
        query = (
            select(info.trace_id)
            .where(info.lake == self._lake, info.trace_id.in_(self._traces(sequences)), *conditions)
            .order_by(info.trace_id)
            .with_for_update()
        )
        return list(connection.execute(query).scalars())

    def _traces(self, sequences: Collection[int]) -> Any:
        """Return a query for the traces of some rows."""
        parts = trace_parts.c
        # `+ 0` as in `Uncommitted.listed`.
        return select(parts.trace_id).where(parts.lake + 0 == self._lake, parts.sequence.in_(sequences))


def _copied(table: Table, lake: int, trace_ids: Collection[str], sequence: int, number: int) -> Insert:
    """Return a statement that copies traces' rows from one outbox number to another."""
    of = table.c
    # The checksum of a span contains its number.
    changed = {"sequence": literal(number), "checksum": column("checksum") - sequence + number}
    values = [changed.get(each.name, each) for each in of]
    rows = select(*values).where(of.lake == lake, of.trace_id.in_(trace_ids), of.sequence == sequence)
    return insert(table).from_select([column.name for column in of], rows)


ListedPart: TypeAlias = tuple[str, int, int]
"""Trace id, outbox row, and bytes of a part's spans. These never change while the part exists."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Spans of a trace from one transaction, compressed as in the database."""

    trace_id: str
    sequence: int
    size_bytes: int
    """Size of its decompressed `TracesData`."""
    payload: bytes


def listed(part: StoredPart) -> ListedPart:
    """Return the key that identifies a stored part."""
    return part.trace_id, part.sequence, part.size_bytes


def _is_pending() -> Select[bool]:
    """Return the query of `Uncommitted.is_settled`, which each read of a trace runs. It is built once, because building
    it takes longer than running it."""
    info, parts = trace_info.c, trace_parts.c
    lake, trace = bindparam("of_lake", type_=Integer), bindparam("of_trace", type_=Text)
    rows = select(outbox.c.sequence).where(outbox.c.lake == lake)
    discarded = select(info.trace_id).where(
        info.lake == lake, info.trace_id == trace, info.given_up.is_(True)
    )
    waiting = select(parts.trace_id).where(
        parts.lake == lake, parts.trace_id == trace, parts.sequence.in_(rows)
    )
    return select(or_(discarded.exists(), waiting.exists()))


_IS_PENDING: Final = _is_pending()


@cache
def _newest_sequences() -> Select[int]:
    """Return the query of the numbers of outbox rows, which each search runs."""
    number = outbox.c.sequence
    query = select(number).where(outbox.c.lake == bindparam("of_lake"))
    return query.order_by(number.desc()).limit(bindparam("at_most"))


@cache
def _received_spans(*, in_workspace: bool) -> Select[int]:
    """Return the query of `Uncommitted.received_spans`."""
    of, workspace = spans.c, bindparam("of_workspace", type_=Text)
    claims = select(of.span_id, of.workspace, of.kind.in_(SERVER_KINDS)).where(
        of.lake == bindparam("of_lake"), of.trace_id == bindparam("of_trace")
    )
    if in_workspace:
        claims = claims.where(of.workspace == workspace)
    return select(func.count()).select_from(claims.distinct().subquery())


class Uncommitted:
    """The spans of one lake's outbox rows. A row may disappear at any time; a commit has it then."""

    def __init__(self, store: TrackingStore) -> None:
        self._database = store.database
        self._lake = store.lake

    def newest(self, limit: int) -> list[int]:
        """Return the numbers of outbox rows, the newest first."""
        names = {"of_lake": self._lake, "at_most": limit}
        with self._database.reading() as connection:
            return list(connection.execute(_newest_sequences(), names).scalars())

    def in_ranges(self, runs: Iterable[tuple[int, int]], limit: int) -> list[int]:
        """Return the numbers in these ranges whose spans are still stored, the newest first. The outbox row itself
        may be gone."""
        in_runs = [
            and_(trace_parts.c.sequence >= first, trace_parts.c.sequence <= last) for first, last in runs
        ]
        query = (
            select(trace_parts.c.sequence)
            .where(trace_parts.c.lake + 0 == self._lake, or_(*in_runs))
            .distinct()
            .order_by(trace_parts.c.sequence.desc())
            .limit(limit)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def listed_in(self, sequences: Collection[int]) -> dict[int, list[ListedPart]]:
        """Return the stored parts of each row, in the order of `parts`."""
        of = trace_parts.c
        # `+ 0`: as in `listed`.
        query = select(of.trace_id, of.sequence, of.size_bytes).where(of.lake + 0 == self._lake)
        parts: dict[int, list[ListedPart]] = {sequence: [] for sequence in sequences}
        with self._database.reading() as connection:
            for some in at_once(sequences):
                for row in connection.execute(query.where(of.sequence.in_(some)).order_by(of.trace_id)):
                    parts[row.sequence].append((row.trace_id, row.sequence, row.size_bytes))
        return parts

    def listed(self) -> tuple[list[ListedPart], bool]:
        """Return the pending parts of the newest traces, within the limits of lists, the newest trace first, and
        whether all pending traces are among them.

        A trace with too many pending bytes is left out, and so are traces that exceed the total limit.
        """
        of = trace_parts.c
        waiting = self._waiting()
        newest = (
            select(of.trace_id, func.sum(of.size_bytes))
            # `+ 0` prevents a scan of all the lake's parts by primary key; the database uses the pending
            # numbers instead.
            .where(of.lake + 0 == self._lake, waiting)
            .group_by(of.trace_id)
            .order_by(func.max(of.sequence).desc())
            .limit(limits.UNCOMMITTED_TRACES_MAX + 1)
        )
        parts: dict[str, list[ListedPart]] = {}
        with self._database.reading() as connection:
            room, pending = limits.UNCOMMITTED_LIST_MAX_BYTES, connection.execute(newest).all()
            for trace_id, size in pending[: limits.UNCOMMITTED_TRACES_MAX]:
                if size <= min(room, limits.UNCOMMITTED_LIST_TRACE_MAX_BYTES):
                    parts[trace_id] = []
                    room -= int(size)
            columns = select(of.trace_id, of.sequence, of.size_bytes).order_by(of.sequence)
            for ids in at_once(list(parts)):
                for row in connection.execute(
                    columns.where(of.lake == self._lake, of.trace_id.in_(ids), waiting)
                ):
                    parts[row.trace_id].append((row.trace_id, row.sequence, row.size_bytes))
        return [part for trace_id in parts for part in parts[trace_id]], len(parts) == len(pending)

    def _waiting(self) -> ColumnElement[bool]:
        rows = select(outbox.c.sequence).where(outbox.c.lake == self._lake)
        waits: ColumnElement[bool] = trace_parts.c.sequence.in_(rows)
        return waits

    def is_given_up(self, trace_id: str) -> bool:
        """Return whether the tables may permanently lack spans of a trace, because outbox rows were discarded or
        damaged."""
        info = trace_info.c
        query = select(info.given_up).where(info.lake == self._lake, info.trace_id == trace_id)
        with self._database.reading() as connection:
            return bool(connection.execute(query).scalar())

    def is_settled(self, trace_id: str) -> bool:
        """Return whether a commit has all received spans of a trace, unless it was reverted: no outbox row has spans
        of it, and none was discarded."""
        with self._database.reading() as connection:
            is_pending = connection.execute(_IS_PENDING, {"of_lake": self._lake, "of_trace": trace_id})
            return not is_pending.scalar_one()

    def received_spans(self, trace_id: str, workspace: str | None = None) -> int:
        """Return the number of received spans of a trace, in one workspace or all, from the columns that are kept."""
        query = _received_spans(in_workspace=workspace is not None)
        names = {"of_lake": self._lake, "of_trace": trace_id, "of_workspace": workspace}
        with self._database.reading() as connection:
            return int(connection.execute(query, names).scalar_one())

    def of_trace(
        self, trace_id: str, *, at_most: int | None = None, waiting: bool = False
    ) -> list[ListedPart]:
        """Return the stored parts of a trace by row number, at most `at_most`; with `waiting`, only those in the
        outbox."""
        of = trace_parts.c
        query = select(of.trace_id, of.sequence, of.size_bytes).order_by(of.sequence)
        query = query.where(of.lake == self._lake, of.trace_id == trace_id).limit(at_most)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(self._waiting()) if waiting else query)
            return [(row.trace_id, row.sequence, row.size_bytes) for row in rows]

    def of_traces(self, wanted: Collection[ListedPart]) -> list[StoredPart]:
        """Return the given parts that are still stored."""
        columns = (trace_parts.c[name] for name in ("trace_id", "sequence", "size_bytes", "payload"))
        query = select(*columns).where(trace_parts.c.lake == self._lake)
        key = tuple_(trace_parts.c.trace_id, trace_parts.c.sequence)
        parts: list[StoredPart] = []
        with self._database.reading() as connection:
            for some in at_once([part[:2] for part in wanted]):
                parts.extend(StoredPart(*row) for row in connection.execute(query.where(key.in_(some))))
        return parts

    def parts(self, sequences: Collection[int]) -> list[StoredPart]:
        """Return the stored parts of rows, by row number."""
        columns = (trace_parts.c[name] for name in ("trace_id", "sequence", "size_bytes", "payload"))
        query = select(*columns).where(trace_parts.c.lake + 0 == self._lake)
        parts: list[StoredPart] = []
        with self._database.reading() as connection:
            for some in at_once(sorted(sequences)):
                rows = connection.execute(
                    query.where(trace_parts.c.sequence.in_(some)).order_by(
                        trace_parts.c.sequence, trace_parts.c.trace_id
                    )
                )
                parts.extend(StoredPart(*row) for row in rows)
        return parts


def runs_of(
    sequences: Collection[int], gap: int, apart: Collection[int] = frozenset()
) -> list[tuple[int, int]]:
    """Return ranges that cover the numbers, the newest first. A range may skip up to `gap` numbers, but none in
    `apart`."""
    runs: list[tuple[int, int]] = []
    numbers, goes_on = frozenset(sequences), False
    for sequence in sorted(numbers.union(apart), reverse=True):
        if sequence not in numbers:
            goes_on = False
        elif goes_on and runs[-1][0] - sequence <= gap + 1:
            runs[-1] = sequence, runs[-1][1]
        else:
            runs.append((sequence, sequence))
            goes_on = True
    return runs


def named_runs(runs: Sequence[tuple[int, int]]) -> str:
    """Return ranges as text, such as `1200.1245_900.900`."""
    return "_".join(f"{first}.{last}" for first, last in runs)


def read_runs(text: str) -> list[tuple[int, int]] | None:
    """Return the ranges in a text, or None if it is invalid."""
    runs = []
    for run in text.split("_"):
        first, point, last = run.partition(".")
        if not (point and first.isdecimal() and last.isdecimal() and len(first) < 19 and len(last) < 19):
            return None
        runs.append((int(first), int(last)))
    return runs if len(runs) <= limits.UNCOMMITTED_RUNS_MAX else None
