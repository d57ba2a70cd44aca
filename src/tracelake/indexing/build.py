"""Index parts for the live rows of table `spans`, built from these rows or merged from existing parts."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from tracelake._errors import DamageError, ExpiredError
from tracelake.limits import INDEX_MERGED_MAX_BYTES, INDEX_REBUILT_PART_ROWS, STORED_EXPANDS
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.scratch import scratch_directory
from tracelake.search.analyzers import Analyzer, analyzer_named
from tracelake.search.build import build_part, merge_parts
from tracelake.search.documents import COLUMNS
from tracelake.search.finalize import write_parts
from tracelake.search.live_docs import RowIds
from tracelake.search.model import PartRef, Receipt, rebuild_name
from tracelake.search.vectors import VectorSettings, has_vectors
from tracelake.shards.model import Part
from tracelake.shards.rows import ROW_ID, first_row_id, rows_sql, time_sql
from tracelake.shards.shard import Snapshot
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore, open_objects
from tracelake.tables.scan import check_parts
from tracelake.tables.view import INDEX
from tracelake.tasks.runners import OnProgress, Progress, ReceiptT, TaskRunner, TaskT, run_reporting, silent
from tracelake.versions.protocol import may_publish
from tracelake.versions.repository import Repository

_INDEX_REBUILT_BATCH_ROWS: Final = 2_048
"""Rows read at a time in an index rebuild; with a 1 MiB prompt in each, more would not fit into one Arrow
column."""


logger = logging.getLogger("tracelake.maintenance")


@dataclass(frozen=True, slots=True)
class StartedBuild:
    """Name of a build, and the garbage collection epoch in which it began, before anything was written."""

    build: str
    epoch: int

    @classmethod
    def now(cls, repository: Repository) -> StartedBuild:
        """Start a build."""
        epoch = repository.epoch()
        return cls(rebuild_name(epoch, uuid.uuid4().hex[:12]), epoch)


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """Rows of table `spans` to index, and the settings: the live rows that a range of transactions inserted."""

    transactions: tuple[int, int]
    """The first of them, and the one after the last."""
    snapshot: Snapshot
    """Snapshot that determines which rows are live."""
    analyzer: Analyzer
    vectors: VectorSettings | None = None
    receipt_lower: int | None = None
    """First transaction in the receipts. Set if the build of one transaction also has rows of earlier ones."""


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Task that indexes the live rows of buckets [low, high) that transactions [lower, upper) inserted."""

    objects_url: str
    build: str
    low: int
    high: int
    lower: int
    upper: int
    spans: Snapshot
    text: str
    """Name of the analyzer."""
    receipt_lower: int | None = None
    """First transaction in the receipt. Set if the build of one transaction also has rows of earlier ones."""
    vectors: VectorSettings | None = None

    @property
    def work_bytes(self) -> int:
        """Estimated memory of the parts that it reads."""
        return sum(part.size_bytes for part in self.spans.parts) * STORED_EXPANDS


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Task that merges parts of adjacent transactions into one, with the rows that are still live."""

    parts: tuple[PartRef, ...]
    rows: IndexTask
    """Fallback if the parts lack rows or one of them is damaged."""

    @property
    def work_bytes(self) -> int:
        """Estimated memory: the merged part, and a copy to write."""
        return sum(part.size_bytes for part in self.parts) * 2


@dataclass(frozen=True, slots=True)
class CountTask:
    """Task that counts the live rows of some buckets."""

    objects_url: str
    spans: Snapshot


def run_index_task(task: IndexTask) -> None:
    """Run one task, and stage its part with a receipt."""
    objects = open_objects(task.objects_url)
    with _live_rows(objects, task.spans, COLUMNS, task.lower, task.upper) as batches:
        build_part(
            objects,
            INDEX,
            task.build,
            task.low,
            task.high,
            uuid.uuid4().hex,
            batches,
            analyzer=analyzer_named(task.text),
            lower=task.receipt_lower,
            vectors=task.vectors,
        )


def run_merge_task(task: MergeTask) -> None:
    """Run one task, and stage its part with a receipt."""
    rows = task.rows
    objects = open_objects(rows.objects_url)
    live = _live_ids(objects, rows.spans, rows.lower, rows.upper)
    try:
        merge_parts(
            objects,
            INDEX,
            rows.build,
            rows.low,
            rows.high,
            uuid.uuid4().hex,
            task.parts,
            live,
            analyzer=analyzer_named(rows.text),
            vectors=rows.vectors,
        )
    except DamageError as error:
        logger.warning("the index parts could not be merged; rebuilding them from their rows: %s", error)
        run_index_task(rows)


def run_count_task(task: CountTask) -> Counter[int]:
    """Run one task. Return the number of live rows of each transaction."""
    return live_rows_by_transaction(open_objects(task.objects_url), task.spans)


@dataclass(frozen=True, slots=True)
class IndexBuilder:
    """Builder of index parts."""

    key_value: KeyValueStore
    objects: ObjectStore
    buckets: int
    runner: TaskRunner

    def build(
        self, begun: StartedBuild, wanted: IndexedRows, progress: OnProgress, rows: int | None = None
    ) -> list[Receipt]:
        """Build and write parts of these rows. `rows` is the maximum number of rows, if known.

        Raises:
            ExpiredError: garbage was collected twice in the meantime, and with it the parts.
        """
        self._stage(begun.build, wanted, progress, rows)
        return self._written(begun, wanted)

    def merge(
        self, begun: StartedBuild, parts: Sequence[PartRef], wanted: IndexedRows, progress: OnProgress
    ) -> list[Receipt]:
        """Merge adjacent parts into parts of the same rows that `build` would give. They have this analyzer and all
        the rows.

        Raises:
            ExpiredError: garbage was collected twice in the meantime, and with it the parts.
        """
        too_large = sum(part.size_bytes for part in parts) > INDEX_MERGED_MAX_BYTES
        if too_large or not all(has_vectors(part.vectors, wanted.vectors) for part in parts):
            return self.build(begun, wanted, progress, sum(part.documents for part in parts))
        self._stage_merged(begun.build, parts, wanted, progress)
        return self._written(begun, wanted)

    def _written(self, begun: StartedBuild, wanted: IndexedRows) -> list[Receipt]:
        """Write the staged parts of a build."""
        try:
            return write_parts(
                self.objects,
                INDEX,
                begun.build,
                self.buckets,
                wanted.analyzer.fingerprint,
                vectors=wanted.vectors,
            )
        except DamageError as error:
            if may_publish(begun.epoch, Repository(self.key_value, self.objects).epoch()):
                raise
            raise ExpiredError(
                "garbage collection ran twice while parts of the index were built, and deleted them. Nothing "
                "was changed; run it again."
            ) from error

    def stage(self, build: str, wanted: IndexedRows) -> None:
        """Stage parts of these rows for a build that the caller finalizes."""
        self._stage(build, wanted, silent, None)

    def _stage(self, build: str, wanted: IndexedRows, progress: OnProgress, rows: int | None) -> None:
        self._run(run_index_task, self._tasks(build, wanted, rows), progress)

    def _stage_merged(
        self, build: str, parts: Sequence[PartRef], wanted: IndexedRows, progress: OnProgress
    ) -> None:
        (rows,) = self._tasks(build, wanted, 0)
        self._run(run_merge_task, [MergeTask(tuple(parts), rows)], progress)

    def _tasks(self, build: str, wanted: IndexedRows, rows: int | None) -> list[IndexTask]:
        lower, upper = wanted.transactions
        held = _with_times(wanted.snapshot, lower, upper)
        most = wanted.vectors.rows_per_part if wanted.vectors is not None else None
        return [
            IndexTask(
                self.objects.url,
                build,
                low,
                high,
                lower,
                upper,
                held.for_buckets(set(range(low, high))),
                wanted.analyzer.name,
                wanted.receipt_lower,
                wanted.vectors,
            )
            for low, high in self._groups(_rows(held) if rows is None else rows, most)
        ]

    def _run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], progress: OnProgress
    ) -> list[ReceiptT]:
        return run_reporting(
            self.runner,
            function,
            tasks,
            lambda done: progress(Progress("indexing", done, len(tasks), "tasks")),
        )

    def count_live(self, snapshot: Snapshot, progress: OnProgress) -> Counter[int]:
        """Count the live rows of each transaction in a snapshot by reading it."""
        tasks = [
            CountTask(self.objects.url, snapshot.for_buckets(set(range(low, high))))
            for low, high in self._groups(_rows(snapshot))
        ]
        return sum(self._run(run_count_task, tasks, progress), Counter())

    def _groups(self, rows: int, most: int | None = None) -> list[tuple[int, int]]:
        """Return ranges of buckets for this number of rows, with at most `most` rows each."""
        groups = min(self.buckets, 1 + rows // min(INDEX_REBUILT_PART_ROWS, most or INDEX_REBUILT_PART_ROWS))
        return list(pairwise(self.buckets * group // groups for group in range(groups + 1)))


def live_rows_by_transaction(objects: ObjectStore, snapshot: Snapshot) -> Counter[int]:
    """Count the live rows of each transaction in a snapshot by reading it."""
    with _opened(objects, snapshot) as (files, db):
        ids = rows_sql(snapshot, files.file, [ROW_ID.name], SPANS_TABLE)
        counts = db.sql(f"select {time_sql()}, count(*) from ({ids}) group by 1").fetchall()
    return Counter({int(transaction): int(rows) for transaction, rows in counts})


def _live_ids(objects: ObjectStore, snapshot: Snapshot, lower: int, upper: int) -> RowIds:
    with _live_rows(objects, snapshot, [ROW_ID.name], lower, upper) as batches:
        ids = [batch.column(0).to_numpy() for batch in batches]
    return np.sort(np.concatenate(ids)) if ids else np.array([], np.int64)


@contextmanager
def _live_rows(
    objects: ObjectStore, snapshot: Snapshot, columns: Sequence[str], lower: int, upper: int
) -> Iterator[Iterator[pa.RecordBatch]]:
    schema = pa.schema([field for field in (*SPANS_TABLE, ROW_ID) if field.name in columns])
    inserted = f"{ROW_ID.name} >= {first_row_id(lower)} and {ROW_ID.name} < {first_row_id(upper)}"
    with _opened(objects, snapshot) as (files, db):
        rows = rows_sql(snapshot, files.file, schema.names, SPANS_TABLE)
        reader = db.sql(f"from ({rows}) where {inserted}").to_arrow_reader(_INDEX_REBUILT_BATCH_ROWS)
        # DuckDB lacks some of the narrower types.
        yield (
            narrow
            for batch in reader
            for narrow in pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
        )


@contextmanager
def _opened(
    objects: ObjectStore, snapshot: Snapshot
) -> Iterator[tuple[LocalFiles, duckdb.DuckDBPyConnection]]:
    """Open a database to read a snapshot. Raises DamageError for a damaged part."""
    with scratch_directory("index") as folder:
        files = LocalFiles(objects, folder)
        check_parts(files, (*snapshot.parts, *snapshot.retractions, *snapshot.history))
        with duckdb.connect(config={"threads": 1}) as db:
            yield files, db


def _rows(snapshot: Snapshot) -> int:
    return sum(part.rows for part in snapshot.parts)


def _with_times(snapshot: Snapshot, lower: int, upper: int) -> Snapshot:
    """Return a snapshot without the parts that have no row of transactions [lower, upper)."""
    first, end = first_row_id(lower), first_row_id(upper)

    def overlaps(part: Part) -> bool:
        return part.last_row_id >= first and part.first_row_id < end

    parts, history = (tuple(filter(overlaps, held)) for held in (snapshot.parts, snapshot.history))
    return Snapshot(snapshot.as_of, parts, snapshot.retractions, history)
