"""Index parts for the live rows of table `spans`, built from these rows or merged from existing parts.

`rebuild` rebuilds the index from table `spans`, while readers and pipelines continue (see docs/internals/index.md).

The new parts have one document for each live row, so that scores ignore replaced rows. One commit publishes them.
Transactions that were committed in the meantime have separate parts, which are taken over unchanged. If their parts
were merged with older ones, or have another analyzer, these transactions are built too. If a transaction is committed
at the same moment as the rebuilt index, the next transaction reconciles the two (see `base_of`).
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Final, Literal, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from tracelake import limits
from tracelake._errors import ContentionError, DamageError, ExpiredError, UsageError
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.results import IndexReport
from tracelake.scratch import scratch_directory
from tracelake.search.analyzers import Analyzer, current, get_analyzer, of_fingerprint
from tracelake.search.build import build_part, merge_parts
from tracelake.search.documents import COLUMNS
from tracelake.search.finalize import (
    Redactions,
    clean_staging,
    read_manifest,
    read_parts,
    with_lists,
    write_marker,
    write_parts,
)
from tracelake.search.model import Manifest, PartRef, Receipt, RowIds, manifest_path, rebuild_name
from tracelake.search.protocol import has_vectors, parts_of_build
from tracelake.search.vectors import PLAIN, IndexSettings, VectorSettings
from tracelake.shards.leases import Lease
from tracelake.shards.model import Part
from tracelake.shards.rows import ROW_ID, first_row_id, rows_sql, time_sql
from tracelake.shards.shard import Shard, Snapshot
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore, open_objects
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.scan import check_parts
from tracelake.tables.view import INDEX, INDEX_ENTRY, TABLE_ENTRY, base_of, index_at, vectors_at
from tracelake.tasks.runners import OnProgress, Progress, ReceiptT, TaskRunner, TaskT, run_reporting, silent
from tracelake.versions.model import IndexAt, TableAt
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
        return sum(part.size_bytes for part in self.spans.parts) * limits.STORED_EXPANDS


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
            analyzer=get_analyzer(task.text),
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
            analyzer=get_analyzer(rows.text),
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
    """Builds index parts with tasks."""

    key_value: KeyValueStore
    objects: ObjectStore
    buckets: int
    runner: TaskRunner

    def build(
        self, started: StartedBuild, wanted: IndexedRows, progress: OnProgress, rows: int | None = None
    ) -> list[Receipt]:
        """Build and write parts of these rows. `rows` is the maximum number of rows, if known.

        Raises:
            ExpiredError: garbage was collected twice in the meantime, and with it the parts.
        """
        self._stage(started.build, wanted, progress, rows)
        return self._written(started, wanted)

    def merge(
        self, started: StartedBuild, parts: Sequence[PartRef], wanted: IndexedRows, progress: OnProgress
    ) -> list[Receipt]:
        """Merge adjacent parts into parts with the rows that `build` would index. The parts must have this analyzer and
        contain all these rows."""
        too_large = sum(part.size_bytes for part in parts) > limits.INDEX_MERGED_MAX_BYTES
        if too_large or not all(has_vectors(part.vectors, wanted.vectors) for part in parts):
            return self.build(started, wanted, progress, sum(part.documents for part in parts))
        self._stage_merged(started.build, parts, wanted, progress)
        return self._written(started, wanted)

    def _written(self, started: StartedBuild, wanted: IndexedRows) -> list[Receipt]:
        """Write the staged parts of a build."""
        try:
            return write_parts(
                self.objects,
                INDEX,
                started.build,
                self.buckets,
                wanted.analyzer.fingerprint,
                vectors=wanted.vectors,
            )
        except DamageError as error:
            if may_publish(started.epoch, Repository(self.key_value, self.objects).epoch()):
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
        relevant = _with_times(wanted.snapshot, lower, upper)
        most = wanted.vectors.rows_per_part if wanted.vectors is not None else None
        return [
            IndexTask(
                self.objects.url,
                build,
                low,
                high,
                lower,
                upper,
                relevant.for_buckets(set(range(low, high))),
                wanted.analyzer.name,
                wanted.receipt_lower,
                wanted.vectors,
            )
            for low, high in self._groups(_rows(relevant) if rows is None else rows, most)
        ]

    def _run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], progress: OnProgress
    ) -> list[ReceiptT]:
        return run_reporting(
            self.runner,
            function,
            tasks,
            lambda finished_tasks: progress(Progress("indexing", finished_tasks, len(tasks), "tasks")),
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
        groups = min(
            self.buckets,
            1 + rows // min(limits.INDEX_REBUILT_PART_ROWS, most or limits.INDEX_REBUILT_PART_ROWS),
        )
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
        rows = rows_sql(snapshot, files.file, schema.names, SPANS_TABLE, TABLE_SPANS.added)
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
    """Open a database to read a snapshot. Raises DamageError if a part is damaged."""
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

    parts, history = (
        tuple(filter(overlaps, candidates)) for candidates in (snapshot.parts, snapshot.history)
    )
    return Snapshot(snapshot.as_of, parts, snapshot.retractions, history)


_INDEX_COMMITS_BACK_MAX: Final = 100
"""Ancestors of a commit with a damaged index that are searched for its vector settings."""

AS_BEFORE: Final = "as before"
Vectors: TypeAlias = VectorSettings | Literal["as before"] | None
"""Vectors of a rebuilt index: the present ones, others, or none."""


def rebuild(
    key_value: KeyValueStore,
    objects: ObjectStore,
    buckets: int,
    runner: TaskRunner,
    progress: OnProgress,
    text: str | None = None,
    first: IndexSettings = PLAIN,
    vectors: Vectors = AS_BEFORE,
) -> IndexReport:
    """Rebuild the index, and publish it on `main`.

    Args:
        text: the analyzer. Default: that of the present index, or that of `first` if the index is unreadable.
        vectors: the vector settings. Default: those of the present index.

    Raises:
        UsageError: the lake is empty, or the analyzer does not exist.
        ContentionError: other commits were faster, too many times in a row.
        ExpiredError: garbage was collected twice in the meantime; run it again.
    """
    return IndexRebuild(
        IndexBuilder(key_value, objects, buckets, runner), progress, text, first, vectors
    ).run()


class IndexRebuild:
    """A rebuild, and the parts that it has built so far."""

    def __init__(
        self,
        builder: IndexBuilder,
        progress: OnProgress,
        text: str | None = None,
        first: IndexSettings = PLAIN,
        vectors: Vectors = AS_BEFORE,
    ) -> None:
        self._chosen = None if text is None else get_analyzer(text)
        self._builder = builder
        self._progress = progress
        self._objects = builder.objects
        self._repository = Repository(builder.key_value, builder.objects)
        self._first = first
        self._requested_vectors = vectors
        self._vectors = self._wanted_vectors()
        self._builds: list[str] = []
        self._begin(self._chosen or self._standing_analyzer() or get_analyzer(first.text))

    def _begin(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._started = StartedBuild.now(self._repository)
        self._parts: list[PartRef] = []
        self._upper = 0
        """The transaction after the last one that is built."""

    def run(self) -> IndexReport:
        """Build and publish the index. See `rebuild`."""
        self._extend(None)
        for number in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            replaced, later, now = self._later()
            # Read after the manifest to replace, because the commit replaces nothing else.
            standing = self._standing_analyzer() if self._chosen is None else None
            vectors = self._wanted_vectors()
            if standing not in (None, self._analyzer) or vectors != self._vectors:
                self._vectors = vectors  # a user changed them during the rebuild
                self._begin(standing or self._analyzer)
                self._extend(None)
                continue
            if (end := max((part.upper for part in later if part.lower < self._upper), default=0)) > 0:
                self._extend(end)
                continue  # settings are read after each manifest, because they belong to the index that is replaced
            report = self._publish(number, replaced, later, now)
            if report is not None:
                for build in self._builds:
                    clean_staging(self._objects, INDEX, build)
                return report
        raise _outrun()

    def _standing_analyzer(self) -> Analyzer | None:
        """Return the analyzer of the index that the next transaction builds on, None if it is unreadable."""
        standing = self._standing()
        analyzer = None if standing is None else of_fingerprint(standing.fingerprint)
        return None if analyzer is None else current(analyzer)

    def _standing(self) -> Manifest | None:
        """Return the index that the next transaction builds on, None if it is unreadable."""
        head = self._repository.head()
        if head is None:
            return None
        with suppress(DamageError):
            return base_of(self._repository, self._objects, self._repository.transaction_of(head) + 1)
        return None

    def _extend(self, end: int | None) -> None:
        """Build the missing transactions, up to `end`, by default up to the head."""
        head = self._repository.head()
        reference = self._repository.find(head, [TABLE_ENTRY]).get(TABLE_ENTRY) if head else None
        if not isinstance(reference, TableAt):
            raise UsageError("the lake is empty, so there is nothing to index. Ingest traces first.")
        lower, upper = self._upper, end or reference.as_of + 1
        if lower:
            # The name has the previous build's name as a prefix. Garbage collection finds the manifests of a
            # build's parts by the prefix of their names.
            self._started = replace(self._started, build=f"{self._started.build}-{lower:010d}")
        shard = Shard(reference.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease:  # keeps the rows until they are read
            snapshot = shard.snapshot(reference.as_of, lease.state)
            wanted = IndexedRows((lower, upper), snapshot, self._analyzer, self._vectors)
            chosen = self._builder.build(self._started, wanted, self._progress)
        self._builds.append(self._started.build)
        self._parts += parts_of_build(INDEX, chosen, lower, upper, as_of=reference.as_of)
        self._upper = upper

    def _publish(
        self, number: int, replaced: str | None, later: list[PartRef], now: int
    ) -> IndexReport | None:
        """Commit the parts, with those of later transactions, as the index. Return None if another commit came
        first."""
        manifest = Manifest(
            index=INDEX,
            build=f"{self._started.build}-{now:010d}-{number:03d}",  # unique for each attempt
            upper=now,
            fingerprint=self._analyzer.fingerprint,
            parent=replaced,
            lists=(),
            newest=(*self._parts, *later),
            vectors=self._vectors,
        )
        path = manifest_path(INDEX, manifest.build)
        manifest = write_marker(self._objects, path, with_lists(self._objects, manifest))
        # Safety: after the manifest is written and before its commit.
        Redactions(self._builder.key_value, self._objects, INDEX).apply([path])
        # A commit never moves an index back to fewer transactions, and replaces only the index that it has
        # read. If another commit is faster, this one changes nothing.
        commit_id = self._repository.commit_entries(
            {INDEX_ENTRY: IndexAt(path, now, self._started.epoch, replaces=replaced or "")},
            message=f"index rebuilt: {manifest.documents} documents in {manifest.part_count} parts",
            committer="index rebuild",
        )
        if index_at(self._repository, commit_id) != path:
            return None
        counted = [part.vectors for part in self._parts if part.vectors is not None]
        return IndexReport(
            commit_id,
            manifest.upper,
            manifest.documents,
            manifest.part_count,
            self._analyzer.name,
            sum(each.vectors for each in counted),
            sum(each.failed for each in counted),
        )

    def _wanted_vectors(self) -> VectorSettings | None:
        """Return the vector settings of the rebuilt index."""
        return self._standing_vectors() if self._requested_vectors == AS_BEFORE else self._requested_vectors

    def _standing_vectors(self) -> VectorSettings | None:
        """Return the vector settings of the next transaction. For a damaged index, return its earlier or its first
        ones."""
        standing = self._standing()
        if standing is not None:
            return standing.vectors
        for commit_id, _ in islice(
            self._repository.log(self._repository.head() or ""), _INDEX_COMMITS_BACK_MAX
        ):
            with suppress(DamageError):
                return vectors_at(self._repository, self._objects, commit_id)
        return self._first.vectors

    def _later(self) -> tuple[str | None, list[PartRef], int]:
        """Return the manifest to replace, its parts of transactions that are not built, and its upper."""
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            head = self._repository.head()
            assert head is not None, "a branch that has a commit keeps one"
            replaced = index_at(self._repository, head)
            transaction = self._repository.transaction_of(head)
            if replaced is None or transaction < self._upper:  # not needed, so it may be damaged
                return replaced, [], self._upper
            manifest = read_manifest(self._objects, replaced)
            if manifest.fingerprint == self._analyzer.fingerprint:
                later = [part for part in read_parts(self._objects, manifest) if part.upper > self._upper]
                return replaced, later, max(self._upper, manifest.upper)
            self._extend(None)  # parts of another analyzer are not taken over
        raise _outrun()


def _outrun() -> ContentionError:
    return ContentionError(
        f"the rebuilt index lost the commit race to {limits.CONDITIONAL_WRITE_TRIES_MAX} transactions in a row; try "
        "again when fewer arrive."
    )
