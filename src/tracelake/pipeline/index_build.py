"""Parts of the index out of the rows of table `spans` that are live: of all transactions, or of some."""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa

from tracelake._errors import DamageError, ExpiredError
from tracelake.limits import INDEX_REBUILT_BATCH_ROWS, INDEX_REBUILT_PART_ROWS, STORED_EXPANDS
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.search.build import build_part
from tracelake.search.documents import COLUMNS
from tracelake.search.finalize import write_parts
from tracelake.search.model import Receipt, rebuild_name
from tracelake.shards.model import Part
from tracelake.shards.rows import ROW_ID, first_row_id, rows_sql, time_sql
from tracelake.shards.store import Snapshot
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore, open_objects
from tracelake.tables.indexes import INDEX
from tracelake.tasks.progress import OnProgress, Progress
from tracelake.tasks.runners import TaskRunner
from tracelake.versions.protocol import may_publish
from tracelake.versions.store import Repository


@dataclass(frozen=True, slots=True)
class Begun:
    """A build by its name, and the epoch of garbage collection in which it began, before anything was written."""

    build: str
    epoch: int

    @classmethod
    def now(cls, repository: Repository) -> Begun:
        """Begin a build."""
        epoch = repository.epoch()
        return cls(rebuild_name(epoch, uuid.uuid4().hex[:12]), epoch)


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Index the live rows of the buckets [low, high) that were inserted by the transactions [lower, upper)."""

    objects_url: str
    build: str
    low: int
    high: int
    lower: int
    upper: int
    spans: Snapshot

    @property
    def work_bytes(self) -> int:
        """About what the parts take in memory that it reads."""
        return sum(part.size_bytes for part in self.spans.parts) * STORED_EXPANDS


@dataclass(frozen=True, slots=True)
class CountTask:
    """Count the live rows of some buckets."""

    objects_url: str
    spans: Snapshot


def run_index_task(task: IndexTask) -> None:
    """Carry out one task: its part is staged, with its receipt."""
    objects = open_objects(task.objects_url)
    with _live_rows(objects, task.spans, COLUMNS, task.lower, task.upper) as batches:
        build_part(objects, INDEX, task.build, task.low, task.high, uuid.uuid4().hex, batches)


def run_count_task(task: CountTask) -> Counter[int]:
    """Carry out one task: return how many rows of each transaction are live."""
    return live_by_transaction(open_objects(task.objects_url), task.spans)


@dataclass(frozen=True, slots=True)
class Builder:
    """Where parts are built, and of how many buckets."""

    key_value: KeyValueStore
    objects: ObjectStore
    buckets: int
    runner: TaskRunner

    def build(
        self,
        begun: Begun,
        transactions: tuple[int, int],
        snapshot: Snapshot,
        progress: OnProgress,
        rows: int | None = None,
    ) -> list[Receipt]:
        """Build parts of the rows of the transactions [lower, upper) that a snapshot says are live, and write them.

        `rows` is how many there are at most, where that is known.

        Raises:
            ExpiredError: garbage was collected twice meanwhile, and what was built with it.
        """
        self._stage(begun.build, transactions, snapshot, progress, rows)
        try:
            return write_parts(self.objects, INDEX, begun.build, self.buckets)
        except DamageError as error:
            if may_publish(begun.epoch, Repository(self.key_value, self.objects).epoch()):
                raise
            raise ExpiredError(
                "garbage was collected twice while parts of the index were built, and what was built with it. Nothing "
                "was changed; run it again."
            ) from error

    def _stage(
        self,
        build: str,
        transactions: tuple[int, int],
        snapshot: Snapshot,
        progress: OnProgress,
        rows: int | None,
    ) -> None:
        lower, upper = transactions
        held = _with_times(snapshot, lower, upper)
        tasks = [
            IndexTask(
                self.objects.url,
                build,
                low,
                high,
                lower,
                upper,
                held.for_buckets(set(range(low, high))),
            )
            for low, high in self._groups(_rows(held) if rows is None else rows)
        ]
        self.runner.run(
            run_index_task, tasks, lambda done: progress(Progress("indexing", done, len(tasks), "tasks"))
        )

    def count_live(self, snapshot: Snapshot, progress: OnProgress) -> Counter[int]:
        """Return how many rows of each transaction are live in a snapshot, by reading it."""
        tasks = [
            CountTask(self.objects.url, snapshot.for_buckets(set(range(low, high))))
            for low, high in self._groups(_rows(snapshot))
        ]
        counted = self.runner.run(
            run_count_task, tasks, lambda done: progress(Progress("indexing", done, len(tasks), "tasks"))
        )
        return sum(counted, Counter())

    def _groups(self, rows: int) -> list[tuple[int, int]]:
        """Return the ranges of buckets that so many rows are taken in."""
        groups = min(self.buckets, 1 + rows // INDEX_REBUILT_PART_ROWS)
        return list(pairwise(self.buckets * group // groups for group in range(groups + 1)))


def live_by_transaction(objects: ObjectStore, snapshot: Snapshot) -> Counter[int]:
    """Return how many rows of each transaction are live in a snapshot, by reading it."""
    with _opened(objects) as (files, db):
        ids = rows_sql(snapshot, files.file, [ROW_ID.name], SPANS_TABLE)
        counts = db.sql(f"select {time_sql()}, count(*) from ({ids}) group by 1").fetchall()
    return Counter({int(transaction): int(rows) for transaction, rows in counts})


@contextmanager
def _live_rows(
    objects: ObjectStore, snapshot: Snapshot, columns: Sequence[str], lower: int, upper: int
) -> Iterator[Iterator[pa.RecordBatch]]:
    schema = pa.schema([field for field in (*SPANS_TABLE, ROW_ID) if field.name in columns])
    inserted = f"{ROW_ID.name} >= {first_row_id(lower)} and {ROW_ID.name} < {first_row_id(upper)}"
    with _opened(objects) as (files, db):
        rows = rows_sql(snapshot, files.file, schema.names, SPANS_TABLE)
        reader = db.sql(f"from ({rows}) where {inserted}").to_arrow_reader(INDEX_REBUILT_BATCH_ROWS)
        # DuckDB does not have all of the finer types.
        yield (
            narrow
            for batch in reader
            for narrow in pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
        )


@contextmanager
def _opened(objects: ObjectStore) -> Iterator[tuple[LocalFiles, duckdb.DuckDBPyConnection]]:
    with tempfile.TemporaryDirectory(prefix="tracelake-index-") as folder:
        files = LocalFiles(objects, Path(folder))
        with duckdb.connect(config={"threads": 1}) as db:
            yield files, db


def _rows(snapshot: Snapshot) -> int:
    return sum(part.rows for part in snapshot.parts)


def _with_times(snapshot: Snapshot, lower: int, upper: int) -> Snapshot:
    """Return a snapshot without the parts that have no row of the transactions [lower, upper)."""
    first, end = first_row_id(lower), first_row_id(upper)

    def overlaps(part: Part) -> bool:
        return part.last_row_id >= first and part.first_row_id < end

    parts, history = (tuple(filter(overlaps, held)) for held in (snapshot.parts, snapshot.history))
    return Snapshot(snapshot.as_of, parts, snapshot.retractions, history)
