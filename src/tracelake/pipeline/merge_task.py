"""The second task of a transaction: merge staged slices with the tables, and write parts and an index part. It runs
on executors.

A task owns a range of buckets. It merges their staged rows with the tables as of the previous transaction, writes the
parts of both tables, and builds one index part over the new rows. Its memory is bounded whatever the amount of work.

`merge` upserts the spans of some buckets: it classifies each incoming span as new, as a replacement of a stored row, or
as a repeat.

A span that arrives several times gives several claims, and the greatest one (`upsert_rule`) is its row. The rule
depends on content only. The table is therefore the same for any order of inputs and number of partitions, and after a
replay (S5, S6: repeats give no output).

DuckDB computes the sets from keys and from the columns that the rows of traces need. Texts are read only for
contested spans, one piece at a time, so neither new nor stored spans need to fit into memory.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits
from tracelake.limits.input import MIB
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.pipeline.decode_task import (
    STAGED_TOGETHER_MAX_BYTES,
    Repriced,
    Repricer,
    StagedSlice,
    read_stream,
)
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.deletions import rows_to_delete
from tracelake.results import is_server_side
from tracelake.search.analyzers import get_analyzer
from tracelake.search.build import build_part
from tracelake.search.vectors import VectorSettings
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Part
from tracelake.shards.parts import Numbers, all_of, by_bucket, cut, write_part
from tracelake.shards.rows import (
    GIVEN_UP,
    RETRACTIONS,
    ROW_ID,
    SHARED,
    literal,
    retractions_by_bucket,
    share_texts,
    with_row_ids,
    with_row_ids_of_all,
)
from tracelake.shards.shard import Snapshot
from tracelake.storage import ObjectStore, open_objects
from tracelake.tables import upsert_rule
from tracelake.tables.builtin import (
    SPAN_COLUMNS,
    TABLE_SPANS,
    TABLE_TRACES,
    TRACES,
    BuiltInTable,
    aggregate_sql,
    summed_traces,
)

UPSERT_FEW_SPANS: Final = 500
"""Spans of new traces, each seen once, whose `traces` rows are computed without a query."""

Incoming = Callable[[], Iterable[pa.Table]]
"""Function that returns the incoming spans as tables, the same each time. They have schema SPANS, in any order, with
repeats."""

_TRACE_CONTENT: Final = [name for name in TRACES.names if name != TRANSACTION_FIELD.name]
# `empty_table` would import pandas.
_NOTHING_GONE: Final = pa.table({"row_id": pa.nulls(0, pa.int64())})
_NO_DELETIONS: Final = pa.Table.from_batches([], deletions.ROWS)
_STORED: Final = pa.schema([*(SPANS.field(name) for name in SPAN_COLUMNS), ROW_ID])


@dataclass(frozen=True, slots=True)
class UpsertResult:
    """Result of an upsert. The caller selects the spans themselves with `winning_rows`."""

    lost: Numbers
    """Sorted numbers of the incoming spans that are not taken. Spans are numbered in input order."""
    span_retractions: pa.Table
    traces: list[pa.Table]
    """New rows, sorted by trace, in tables of bounded size."""
    trace_retractions: pa.Table
    new: int
    replaced: int
    repeated: int
    deleted: int = 0
    repriced: int = 0


def merge(
    incoming: Incoming,
    spans: Lookup,
    traces: Lookup,
    transaction: int,
    deletions: pa.Table = _NO_DELETIONS,
    repriced: Repriced | None = None,
) -> UpsertResult:
    """Merge incoming spans with the stored ones. First delete the stored rows that `deletions` requests, so that an
    incoming span of a deleted trace is a new row; and those of `repriced`, which are among the incoming spans with
    their new cost."""
    with _connect() as db:
        read = _load_incoming(db, incoming)
        trace_ids = _distinct(
            pa.chunked_array([*read["trace_id"].chunks, *deletions["trace_id"].chunks], pa.string())
        )
        rows = list(spans.rows(trace_ids, SPAN_COLUMNS))
        stored = pa.concat_tables(rows) if rows else _STORED.empty_table()
        # A trace has a row if and only if it has a span.
        stored_trace_ids = _distinct(stored["trace_id"])
        deleted = rows_to_delete(stored, deletions)
        repriced = repriced or Repriced()
        dropped = pa.concat_arrays([deleted, pa.array(repriced.row_ids, pa.int64())])
        if len(dropped):
            stored = stored.filter(pc.invert(pc.is_in(stored[ROW_ID.name], value_set=dropped)))
        _load(db, "stored", [stored], _STORED)
        if not stored_trace_ids and (few := _of_few(read, transaction)) is not None:
            return few
        lost, replaced = _contest(db, incoming, spans)
        fits = read.nbytes + stored.nbytes <= limits.SHAPED_AT_ONCE_MAX_BYTES
        trace_rows, trace_retractions = _merge_traces(db, traces, stored_trace_ids, transaction, fits=fits)
    # Of these repriced spans, a later version or the same one arrived with the transaction.
    updated = int(np.isin(repriced.numbers, lost).sum())
    return UpsertResult(
        lost=lost,
        span_retractions=_retractions(_sorted_ids(replaced, dropped), transaction),
        traces=trace_rows,
        trace_retractions=trace_retractions,
        new=len(read) - len(lost) - len(repriced.numbers) - len(replaced),
        replaced=len(replaced) + updated,
        repeated=len(lost) - updated,
        deleted=len(deleted),
        repriced=len(repriced.numbers) - updated,
    )


def _sorted_ids(replaced: pa.Table, dropped: pa.Array[Any]) -> pa.Table:
    """Return the ids of all rows to retract."""
    if not len(dropped):
        return replaced
    return pa.concat_tables([replaced, pa.table({"row_id": dropped})]).sort_by("row_id")


def _of_few(read: pa.Table, transaction: int) -> UpsertResult | None:
    """Return the result if there are few spans, each once, and their traces are not stored yet. Otherwise return
    None.

    Most small transactions are like this, and SQL statements take longer than computing a few trace rows.
    """
    if len(read) > UPSERT_FEW_SPANS:
        return None
    of_traces: dict[str, dict[tuple[str, bool], dict[str, Any]]] = {}
    for span in read.select(SPAN_COLUMNS).to_pylist():
        ids = span["span_id"], is_server_side(span)
        if of_traces.setdefault(span["trace_id"], {}).setdefault(ids, span) is not span:
            return None  # a repeated span needs the upsert rule
    spans_of = {trace_id: list(spans.values()) for trace_id, spans in of_traces.items()}
    nothing = _retractions(_NOTHING_GONE, transaction)
    traces = [summed_traces(spans_of, transaction)] if spans_of else []
    return UpsertResult(
        np.empty(0, np.int64), nothing, traces, nothing, new=len(read), replaced=0, repeated=0
    )


def winning_rows(tables: Iterable[pa.Table], first: int, lost: Numbers, transaction: int) -> pa.Table:
    """Return the incoming rows that go into table `spans`, in its form and order: all rows except the numbers in
    `lost`.

    `first` is the number of the tables' first span among all incoming ones.
    """
    rows = pa.concat_tables(tables)
    indices = np.setdiff1d(np.arange(first, first + len(rows)), lost, assume_unique=True) - first
    columns = TABLE_SPANS.sorted_by
    order = pc.sort_indices(rows.select(columns).take(indices), [(name, "ascending") for name in columns])
    chosen = rows.take(indices[order.to_numpy()]).combine_chunks()
    return chosen.append_column(TRANSACTION_FIELD, pa.repeat(pa.scalar(transaction, pa.int64()), len(chosen)))


@contextmanager
def _connect() -> Iterator[duckdb.DuckDBPyConnection]:
    db = _database().cursor()
    try:
        yield db
    except GIVEN_UP:
        _database.cache_clear()
        raise
    finally:
        db.close()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})  # one core per task, as Spark counts


def _numbered(tables: Iterable[pa.Table]) -> Iterator[tuple[Numbers, pa.Table]]:
    first = 0
    for table in tables:
        yield np.arange(first, first + len(table), dtype=np.int64), table
        first += len(table)


def _load_incoming(db: duckdb.DuckDBPyConnection, incoming: Incoming) -> pa.Table:
    """Register relation `incoming` with the columns that the rows of traces need."""
    narrow = [
        table.select(SPAN_COLUMNS).append_column("ord", pa.array(ords))
        for ords, table in _numbered(incoming())
    ]
    return _load(db, "incoming", narrow, _STORED.remove(len(_STORED) - 1).append(pa.field("ord", pa.int64())))


def _load(db: duckdb.DuckDBPyConnection, name: str, tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Register tables as a relation. Their chunks are not combined, because a combined chunk may exceed Arrow's size
    limit."""
    rows = pa.concat_tables(tables) if tables else schema.empty_table()
    db.register(name, rows)
    return rows


def _contest(db: duckdb.DuckDBPyConnection, incoming: Incoming, spans: Lookup) -> tuple[Numbers, pa.Table]:
    """Create tables `lost` (numbers of incoming rows that another claim beats) and `replaced` (ids of stored rows to
    retract)."""
    db.execute("create temp table lost (ord bigint)")
    db.execute("create temp table replaced (row_id bigint)")
    db.execute(f"""
        create temp table contested as
        select {upsert_rule.IDS}
        from (select {upsert_rule.ID_COLUMNS} from incoming union all select {upsert_rule.ID_COLUMNS} from stored)
        group by {upsert_rule.IDS} having count(*) > 1
    """)
    if not db.execute("select 1 from contested limit 1").fetchall():
        return np.empty(0, np.int64), _NOTHING_GONE
    db.register("none", SPANS.empty_table())
    db.execute(f"""
        create temp table claims as
        select {upsert_rule.KEY_COLUMNS}, 0::bigint as ord, 0::bigint as _row_id, {upsert_rule.COLUMNS} from none
    """)
    _add_claims(db, incoming, spans)
    db.execute(f"""
        create temp table ranked as
        select ord, _row_id, row_number() over (
            partition by {upsert_rule.KEY} order by {upsert_rule.ORDER}, ord is null desc, ord
        ) as rank
        from claims
    """)
    db.execute("insert into lost select ord from ranked where ord is not null and rank > 1")
    db.execute("insert into replaced select _row_id from ranked where ord is null and rank > 1")
    lost: Numbers = db.sql("from lost order by ord").to_arrow_table()["ord"].to_numpy()
    return lost, db.sql("from replaced order by row_id").to_arrow_table()


def _add_claims(db: duckdb.DuckDBPyConnection, incoming: Incoming, spans: Lookup) -> None:
    """Fill `claims` with the ranking columns of contested spans, table by table."""
    is_contested = f"semi join contested using ({upsert_rule.IDS})"
    ords: Numbers = (
        db.sql(
            f"select ord from (select ord, {upsert_rule.ID_COLUMNS} from incoming) {is_contested} order by ord"
        )
        .to_arrow_table()["ord"]
        .to_numpy()
    )
    if not len(ords):
        return
    incoming_rows = (
        table.take(mine - numbers[0]).append_column("ord", pa.array(mine))
        for numbers, table in _numbered(incoming())
        if len(mine := ords[np.isin(ords, numbers, assume_unique=True)])
    )
    places = db.sql(f"""
        select trace_id, _row_id from (select _row_id, {upsert_rule.ID_COLUMNS} from stored) {is_contested}
    """).to_arrow_table()
    ids = places[ROW_ID.name].combine_chunks()
    stored_rows = (
        table.filter(pc.is_in(table[ROW_ID.name], value_set=ids))
        for table in spans.rows(_distinct(places["trace_id"]), SPANS.names)
    )
    for tables, identity in (
        (incoming_rows, "ord, null::bigint"),
        (stored_rows, f"null::bigint, {ROW_ID.name}"),
    ):
        for rows in _together(tables, limits.ROW_GROUP_MAX_BYTES):
            db.register("claimed", rows)
            db.execute(
                f"insert into claims select {upsert_rule.KEY_COLUMNS}, {identity}, {upsert_rule.COLUMNS} from claimed"
            )
            db.unregister("claimed")


def _together(tables: Iterable[pa.Table], enough_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of tables in larger tables, each as soon as it has enough bytes."""
    few: list[pa.Table] = []
    for table in tables:
        few.append(table)
        if sum(one.nbytes for one in few) >= enough_bytes:
            yield pa.concat_tables(few)
            few = []
    if few:
        yield pa.concat_tables(few)


def _distinct(ids: pa.ChunkedArray[Any]) -> list[str]:
    return sorted(str(one) for one in ids.unique().to_pylist())


def _merge_traces(
    db: duckdb.DuckDBPyConnection, traces: Lookup, trace_ids: list[str], transaction: int, *, fits: bool
) -> tuple[list[pa.Table], pa.Table]:
    """Compute the rows of changed traces from all their spans. Return new rows and retractions of old ones."""
    spans = ", ".join(SPAN_COLUMNS)
    db.execute(f"""
        create temp view all_spans as
        select {spans} from incoming where ord not in (select ord from lost)
        union all
        select {spans} from stored where _row_id not in (select row_id from replaced)
    """)
    aggregated = aggregate_sql("all_spans", transaction)
    if not trace_ids and fits:  # all are new
        rows = db.sql(aggregated).to_arrow_table().cast(TRACES).combine_chunks()
        return [rows] if len(rows) else [], _retractions(_NOTHING_GONE, transaction)
    db.execute(f"create temp table aggregated as {aggregated}")
    _load(db, "stored_traces", list(traces.rows(trace_ids, _TRACE_CONTENT)), TRACES.append(ROW_ID))
    db.execute(f"""
        create temp table unchanged as
        select m.trace_id from aggregated m join stored_traces s using (trace_id)
        where {" and ".join(f"m.{name} is not distinct from s.{name}" for name in _TRACE_CONTENT)}
    """)
    replaced = db.sql("""
        select _row_id as row_id from stored_traces
        where trace_id not in (select trace_id from unchanged) order by row_id
    """).to_arrow_table()
    return list(_changed_traces(db)), _retractions(replaced, transaction)


def _changed_traces(db: duckdb.DuckDBPyConnection) -> Iterator[pa.Table]:
    """Yield the new rows in order, in tables whose texts fit into memory."""
    texts = " + ".join(f"coalesce(strlen({field.name}), 0)" for field in TRACES if field.type == pa.string())
    sizes = db.sql(f"""
        select trace_id, 64 + {texts} as size from aggregated
        where trace_id not in (select trace_id from unchanged) order by trace_id
    """).to_arrow_table()
    if not len(sizes):
        return
    runs: Any = np.cumsum(sizes["size"].to_numpy()) // limits.SHAPED_AT_ONCE_MAX_BYTES
    starts = np.flatnonzero(np.diff(runs, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(sizes)], strict=True):
        low, high = (literal(sizes["trace_id"][int(at)].as_py()) for at in (first, end - 1))
        rows = db.sql(f"""
            from aggregated where trace_id not in (select trace_id from unchanged) and trace_id between {low} and {high}
            order by trace_id
        """).to_arrow_table()
        yield rows.cast(TRACES).combine_chunks()


def _retractions(row_ids: pa.Table, transaction: int) -> pa.Table:
    times = pa.repeat(pa.scalar(transaction, pa.int64()), len(row_ids))
    return row_ids.append_column(RETRACTIONS.field("time"), times).cast(RETRACTIONS)


WRITTEN_TOGETHER_MAX_BYTES: Final = 16 * MIB
"""Arrow bytes of a transaction's new spans that become one part for all buckets; a part costs as much as some
hundred rows."""


@dataclass(frozen=True, slots=True)
class TableBefore:
    """A built-in table as of the previous transaction, and the current epoch, in which new parts are written."""

    live: Snapshot
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionMergeTask:
    """Task that merges the buckets [low, high) of a transaction with the live parts of each built-in table."""

    objects_url: str
    transaction: int
    index: str
    build: str
    text: str
    """Analyzer of the index. If the index is rebuilt with another analyzer in the meantime, its output builds the
    part again."""
    buckets: int
    low: int
    high: int
    pieces: Sequence[StagedSlice]
    tables: Mapping[str, TableBefore]
    vectors: VectorSettings | None = None
    erased: tuple[str, ...] = ()
    """Traces of erasures. The receipt names those of which the task writes rows."""

    @property
    def work_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(piece.arrow_bytes for piece in self.pieces)


@dataclass(slots=True)
class TableChange:
    """Effect of a transaction on one table: new parts and row counts."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Counts as the batch records them."""

    def count(self, **counts: int) -> None:
        """Add to the counts."""
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number

    def add(self, other: TableChange) -> None:
        """Add the effect of another task on the same table."""
        self.parts += other.parts
        self.retractions += other.retractions
        self.count(**other.counts)


@dataclass(slots=True)
class ShapeReceipt:
    """Result of a merge task, by table."""

    tables: dict[str, TableChange] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    """Erased traces of which the task wrote rows."""

    def of(self, table: str) -> TableChange:
        """Return the change of one table."""
        return self.tables.setdefault(table, TableChange())

    def parts(self) -> list[Part]:
        """Return the parts of all tables that contain rows."""
        return [part for change in self.tables.values() for part in change.parts]


def run_shape_task(task: TransactionMergeTask) -> ShapeReceipt:
    """Run one task."""
    objects = open_objects(task.objects_url)
    receipt = ShapeReceipt()
    new_spans = _MergeRun(task, objects, receipt).run()
    build_part(
        objects,
        task.index,
        task.build,
        task.low,
        task.high,
        uuid.uuid4().hex,
        new_spans,
        analyzer=get_analyzer(task.text),
        vectors=task.vectors,
        size_bytes=sum(piece.arrow_bytes for piece in task.pieces),
    )
    return receipt


def steps(pieces: Sequence[StagedSlice], max_bytes: int) -> list[list[StagedSlice]]:
    """Split slices into groups of whole buckets. A group has at most `max_bytes` Arrow bytes, or is a single bucket."""
    runs: list[list[StagedSlice]] = []
    room = 0
    for _, group in groupby(sorted(pieces, key=lambda piece: piece.bucket), lambda piece: piece.bucket):
        of_bucket = list(group)
        size = sum(piece.arrow_bytes for piece in of_bucket)
        if not runs or size > room:
            runs.append([])
            room = max_bytes
        runs[-1] += of_bucket
        room -= size
    return runs


class _MergeRun:
    """Execution of a task: it merges slices and writes parts, one group of buckets at a time."""

    def __init__(self, task: TransactionMergeTask, objects: ObjectStore, receipt: ShapeReceipt) -> None:
        self._task = task
        self._objects = objects
        self._receipt = receipt
        self._erased = pa.array(task.erased, pa.string())

    def run(self) -> Iterator[pa.RecordBatch]:
        """Merge and write everything, and yield the new rows of table `spans`."""
        for pieces in steps(self._task.pieces, limits.SHAPED_AT_ONCE_MAX_BYTES):
            yield from self._shape(pieces)

    @property
    def _is_together(self) -> bool:
        """True if all buckets share parts. It depends on the transaction only, so a replay writes the same parts."""
        task = self._task
        return (
            (task.low, task.high) == (0, task.buckets)
            and task.work_bytes <= WRITTEN_TOGETHER_MAX_BYTES
            and all(piece.prices is None and piece.part is None for piece in task.pieces)  # may be large
        )

    def _shape(self, pieces: list[StagedSlice]) -> Iterator[pa.RecordBatch]:
        task, receipt = self._task, self._receipt
        incoming = [piece for piece in pieces if not piece.deletes and piece.prices is None]
        requests = _OldParts(self._objects, [piece for piece in pieces if piece.deletes])
        to_delete = pa.concat_tables([deletions.ROWS.empty_table(), *requests.read()])
        buckets = {piece.bucket for piece in pieces}
        spans = self._lookup(TABLE_SPANS, buckets)
        excluded = {*task.erased, *_distinct(to_delete["trace_id"])}
        repriced = Repricer(self._objects, spans, task.buckets, excluded)
        try:
            for piece in pieces:
                repriced.stage(piece)
            # Rows of a bucket become one part, as if the spans had arrived. So a recovery gives them the same ids.
            incoming = sorted([*incoming, *repriced.pieces], key=lambda piece: piece.bucket)
            tables = _OldParts(self._objects, incoming)
            merged = merge(
                tables.read,
                spans,
                self._lookup(TABLE_TRACES, buckets),
                task.transaction,
                to_delete,
                repriced.among(incoming),
            )
            if incoming:
                yield from self._write_spans(incoming, tables, merged.lost)
        finally:
            repriced.clean_up()
        self._write_rows(TABLE_TRACES, merged.traces)
        self._retract(TABLE_SPANS, merged.span_retractions)
        self._retract(TABLE_TRACES, merged.trace_retractions)
        counts = {"new": merged.new, "replaced": merged.replaced, "repeated": merged.repeated}
        rare = {"deleted": merged.deleted, "repriced": merged.repriced}
        counts |= {name: count for name, count in rare.items() if count}
        receipt.of(TABLE_SPANS.name).count(**counts)
        receipt.of(TABLE_TRACES.name).count(rows=sum(map(len, merged.traces)))

    def _lookup(self, table: BuiltInTable, buckets: set[int]) -> Lookup:
        live = self._task.tables[table.name].live
        snapshot = live.for_buckets(buckets)
        return Lookup(
            self._objects,
            snapshot,
            table.bucketed_by,
            buckets=self._task.buckets,
            schema=table.schema,
            added=table.added,
        )

    def _write(self, table: BuiltInTable, bucket: int, rows: pa.Table) -> None:
        """Write a part of a table."""
        epoch = self._task.tables[table.name].epoch
        part = write_part(
            self._objects,
            table.name,
            epoch,
            bucket,
            share_texts(rows) if SHARED.name in table.added else rows,
            table.bucketed_by,
            looked_up=True,
            schema_version=table.version,
        )
        self._receipt.of(table.name).parts.append(part)

    def _retract(self, table: BuiltInTable, retractions: pa.Table) -> None:
        """Write the retraction parts of a table."""
        epoch, written = self._task.tables[table.name].epoch, self._receipt.of(table.name).retractions
        together = [(all_of(self._task.buckets), retractions)] if len(retractions) else []
        by_bucket = together if self._is_together else retractions_by_bucket(retractions, self._task.buckets)
        for bucket, rows in by_bucket:
            written.append(write_part(self._objects, table.name, epoch, bucket, rows, None))

    def _write_spans(
        self, pieces: list[StagedSlice], tables: _OldParts, lost: Numbers
    ) -> Iterator[pa.RecordBatch]:
        """Write the winning spans: one part for all buckets, or parts of bounded size for each bucket.

        Rows are yielded before they are written, because a separate thread indexes their text during the write.
        """
        task = self._task
        if self._is_together:
            rows = winning_rows(tables.read(), 0, lost, task.transaction)
            self._note_late(rows)
            rows = self._numbered_together(TABLE_SPANS, rows)
            yield from rows.to_batches()
            self._write_together(TABLE_SPANS, rows)
            return
        first, before = 0, Counter[int]()
        for run in _runs_of_parts(pieces, limits.SHAPED_AT_ONCE_MAX_BYTES):
            bucket = run[0].bucket
            rows = winning_rows(map(tables.table, run), first, lost, task.transaction)
            first += sum(piece.rows for piece in run)
            if not len(rows):
                continue
            self._note_late(rows)
            numbered = with_row_ids(rows, task.transaction, bucket, task.buckets, before[bucket])
            before[bucket] += len(rows)
            for few in cut(numbered, limits.ROW_GROUP_MAX_BYTES):
                yield from few.to_batches()
            self._write(TABLE_SPANS, bucket, numbered)

    def _note_late(self, rows: pa.Table) -> None:
        """Note the erased traces of new rows."""
        if self._task.erased:
            trace_ids = rows["trace_id"]
            is_late = pc.is_in(trace_ids, value_set=self._erased)
            self._receipt.late.update(map(str, trace_ids.filter(is_late).to_pylist()))

    def _write_rows(self, table: BuiltInTable, several: Sequence[pa.Table]) -> None:
        """Write new rows of a table: one part for all buckets, or parts for each bucket."""
        task = self._task
        if self._is_together:
            rows = pa.concat_tables(several) if several else table.schema.empty_table()
            self._write_together(table, self._numbered_together(table, rows))
            return
        before: Counter[int] = Counter()
        for rows in several:
            for bucket, of_bucket in by_bucket(rows, table.bucketed_by, task.buckets):
                numbered = with_row_ids(of_bucket, task.transaction, bucket, task.buckets, before[bucket])
                before[bucket] += len(of_bucket)
                self._write(table, bucket, numbered)

    def _numbered_together(self, table: BuiltInTable, rows: pa.Table) -> pa.Table:
        """Return rows of all buckets with their row ids."""
        return with_row_ids_of_all(rows, self._task.transaction, table.bucketed_by, self._task.buckets)

    def _write_together(self, table: BuiltInTable, numbered: pa.Table) -> None:
        """Write rows of all buckets as one part, unless there are none."""
        if len(numbered):
            self._write(table, all_of(self._task.buckets), numbered)


def _runs_of_parts(pieces: Sequence[StagedSlice], max_bytes: int) -> Iterator[list[StagedSlice]]:
    """Yield groups of slices of one bucket. Each group becomes one part, and none has rows of several."""
    run: list[StagedSlice] = []
    size = 0
    for piece in pieces:
        is_same = run and (piece.bucket, piece.part) == (run[0].bucket, run[0].part)
        if run and not (is_same and size + piece.arrow_bytes <= max_bytes):
            yield run
            run, size = [], 0
        run.append(piece)
        size += piece.arrow_bytes
    if run:
        yield run


class _OldParts:
    """Staged slices as tables. They stay in memory if all of them fit; otherwise they are read twice."""

    def __init__(self, objects: ObjectStore, pieces: Sequence[StagedSlice]) -> None:
        self._objects = objects
        self._pieces = pieces
        self._keeps = sum(piece.arrow_bytes for piece in pieces) <= limits.SHAPED_AT_ONCE_MAX_BYTES
        shared = {_stream(piece) for piece in pieces if piece.first}
        self._keeps_streams = (
            self._keeps and len(shared) * STAGED_TOGETHER_MAX_BYTES <= limits.SHAPED_AT_ONCE_MAX_BYTES
        )
        self._cache: dict[StagedSlice | tuple[str, int], pa.Table] = {}

    def read(self) -> Iterator[pa.Table]:
        """Yield the table of each slice, in order."""
        return map(self.table, self._pieces)

    def table(self, piece: StagedSlice) -> pa.Table:
        """Return the rows of a slice."""
        if not self._keeps_streams:
            return self._alone(piece)
        stream = self._cache.get(_stream(piece))
        if stream is None:
            stream = self._cache[_stream(piece)] = read_stream(self._objects, piece)
        return stream.slice(piece.first, piece.rows)

    def _alone(self, piece: StagedSlice) -> pa.Table:
        """Return the rows of a slice. The rest of the stream that contains the slice is not kept in memory."""
        if piece in self._cache:
            return self._cache[piece]
        rows = read_stream(self._objects, piece)
        if len(rows) > piece.rows:
            rows = rows.take(np.arange(piece.first, piece.first + piece.rows))
        if self._keeps:
            self._cache[piece] = rows
        return rows


def _stream(piece: StagedSlice) -> tuple[str, int]:
    return piece.path, piece.offset
