"""The second task of a transaction: merge staged slices with the tables, and write parts and an index part. It runs
on executors.

A task owns a range of buckets. It merges their staged rows with the tables as of the previous transaction, writes the
parts of both tables, and builds one index part over the new rows. Its memory is bounded whatever the amount of work.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from tracelake import limits
from tracelake.limits.units import MIB
from tracelake.pipeline.staged_slices import STAGED_TOGETHER_MAX_BYTES, StagedSlice, read_stream
from tracelake.pipeline.upsert import merge, taken
from tracelake.search.analyzers import analyzer_named
from tracelake.search.build import build_part
from tracelake.search.vectors import VectorSettings
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Part
from tracelake.shards.partitioning import Numbers, all_of, by_bucket, cut
from tracelake.shards.parts import write_part
from tracelake.shards.rows import retractions_by_bucket, with_row_ids, with_row_ids_of_all
from tracelake.shards.shard import Snapshot
from tracelake.storage import ObjectStore, open_objects
from tracelake.tables.builtin import TABLE_SPANS, TABLE_TRACES, BuiltInTable

WRITTEN_TOGETHER_MAX_BYTES: Final = 16 * MIB
"""Arrow bytes of a transaction's new spans that become one part for all buckets; a part costs as much as some
hundred rows."""


@dataclass(frozen=True, slots=True)
class TableBefore:
    """A built-in table as of the previous transaction, and the epoch in which parts are written now."""

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

    @property
    def work_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(piece.arrow_bytes for piece in self.pieces)


@dataclass(slots=True)
class TableChange:
    """Effect of a transaction on one table: parts and counts."""

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
    attempt, analyzer = uuid.uuid4().hex, analyzer_named(task.text)
    build_part(
        objects,
        task.index,
        task.build,
        task.low,
        task.high,
        attempt,
        new_spans,
        analyzer=analyzer,
        vectors=task.vectors,
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

    def run(self) -> Iterator[pa.RecordBatch]:
        """Merge and write everything, and yield the new rows of table `spans`."""
        for pieces in steps(self._task.pieces, limits.SHAPED_AT_ONCE_MAX_BYTES):
            yield from self._shape(pieces)

    @property
    def _is_together(self) -> bool:
        """True if all buckets share parts. It depends on the transaction only, so a replay writes the same parts."""
        task = self._task
        return (task.low, task.high) == (0, task.buckets) and (task.work_bytes <= WRITTEN_TOGETHER_MAX_BYTES)

    def _shape(self, pieces: list[StagedSlice]) -> Iterator[pa.RecordBatch]:
        task, receipt = self._task, self._receipt
        tables = _OldParts(self._objects, pieces)
        buckets = {piece.bucket for piece in pieces}
        merged = merge(
            tables.read,
            self._lookup(TABLE_SPANS, buckets),
            self._lookup(TABLE_TRACES, buckets),
            task.transaction,
        )
        yield from self._write_spans(pieces, tables, merged.lost)
        self._write_rows(TABLE_TRACES, merged.traces)
        self._retract(TABLE_SPANS, merged.span_retractions)
        self._retract(TABLE_TRACES, merged.trace_retractions)
        receipt.of(TABLE_SPANS.name).count(new=merged.new, replaced=merged.replaced, repeated=merged.repeated)
        receipt.of(TABLE_TRACES.name).count(rows=sum(map(len, merged.traces)))

    def _lookup(self, table: BuiltInTable, buckets: set[int]) -> Lookup:
        live = self._task.tables[table.name].live
        snapshot = live.for_buckets(buckets)
        return Lookup(self._objects, snapshot, table.bucketed_by, buckets=self._task.buckets)

    def _write(self, table: BuiltInTable, bucket: int, rows: pa.Table) -> None:
        """Write a part of a table."""
        epoch = self._task.tables[table.name].epoch
        part = write_part(self._objects, table.name, epoch, bucket, rows, table.bucketed_by, looked_up=True)
        self._receipt.of(table.name).parts.append(part)

    def _retract(self, table: BuiltInTable, gone: pa.Table) -> None:
        """Write the retraction parts of a table."""
        epoch, written = self._task.tables[table.name].epoch, self._receipt.of(table.name).retractions
        together = [(all_of(self._task.buckets), gone)] if len(gone) else []
        by_bucket = together if self._is_together else retractions_by_bucket(gone, self._task.buckets)
        for bucket, rows in by_bucket:
            written.append(write_part(self._objects, table.name, epoch, bucket, rows, None))

    def _write_spans(
        self, pieces: list[StagedSlice], tables: _OldParts, lost: Numbers
    ) -> Iterator[pa.RecordBatch]:
        """Write the spans that are taken: one part for all buckets, or parts of bounded size for each bucket.

        Rows are yielded before they are written, because a separate thread indexes their text in the meantime.
        """
        task = self._task
        if self._is_together:
            rows = self._numbered_together(TABLE_SPANS, taken(tables.read(), 0, lost, task.transaction))
            yield from rows.to_batches()
            self._write_together(TABLE_SPANS, rows)
            return
        first = 0
        before: Counter[int] = Counter()
        for run in _runs_of_parts(pieces, limits.SHAPED_AT_ONCE_MAX_BYTES):
            bucket = run[0].bucket
            rows = taken(map(tables.table, run), first, lost, task.transaction)
            first += sum(piece.rows for piece in run)
            if not len(rows):
                continue
            numbered = with_row_ids(rows, task.transaction, bucket, task.buckets, before[bucket])
            before[bucket] += len(rows)
            for few in cut(numbered, limits.ROW_GROUP_MAX_BYTES):
                yield from few.to_batches()
            self._write(TABLE_SPANS, bucket, numbered)

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
    """Yield groups of slices of one bucket. Each group becomes one part."""
    run: list[StagedSlice] = []
    size = 0
    for piece in pieces:
        if run and (piece.bucket != run[0].bucket or size + piece.arrow_bytes > max_bytes):
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
        self._kept: dict[StagedSlice | tuple[str, int], pa.Table] = {}

    def read(self) -> Iterator[pa.Table]:
        """Yield the table of each slice, in order."""
        return map(self.table, self._pieces)

    def table(self, piece: StagedSlice) -> pa.Table:
        """Return the rows of a slice."""
        if not self._keeps_streams:
            return self._alone(piece)
        stream = self._kept.get(_stream(piece))
        if stream is None:
            stream = self._kept[_stream(piece)] = read_stream(self._objects, piece)
        return stream.slice(piece.first, piece.rows)

    def _alone(self, piece: StagedSlice) -> pa.Table:
        """Return the rows of a slice without keeping the rest of its stream in memory."""
        if piece in self._kept:
            return self._kept[piece]
        rows = read_stream(self._objects, piece)
        if len(rows) > piece.rows:
            rows = rows.take(np.arange(piece.first, piece.first + piece.rows))
        if self._keeps:
            self._kept[piece] = rows
        return rows


def _stream(piece: StagedSlice) -> tuple[str, int]:
    return piece.path, piece.offset
