"""Builds the index anew from table `spans`, beside readers and pipelines (see docs/internals/index.md).

The new parts hold one document for each row that is live, so that scores count no row that was replaced. They are
published as one commit. Transactions that were committed meanwhile have parts of their own, which are taken over as
they are; one that is committed at the same moment is reconciled by the next (see `indexes.base_of`).
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from tracelake._errors import DamageError, ExpiredError, LimitError, UsageError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, INDEX_REBUILT_BATCH_ROWS, INDEX_REBUILT_PART_ROWS
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.pipeline.executors import Executor
from tracelake.pipeline.indexes import INDEX, INDEX_ENTRY, index_at
from tracelake.pipeline.progress import OnProgress, Progress
from tracelake.records import IndexReport
from tracelake.search import fields
from tracelake.search.build import build_part
from tracelake.search.documents import COLUMNS
from tracelake.search.finalize import (
    clean_staging,
    read_manifest,
    read_parts,
    with_lists,
    write_marker,
    write_parts,
)
from tracelake.search.model import Manifest, PartRef, manifest_path, rebuild_name
from tracelake.search.protocol import parts_of_build
from tracelake.shards.leases import Lease
from tracelake.shards.rows import ROW_ID, rows_sql
from tracelake.shards.store import Shard, Snapshot
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore, open_objects
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.protocol import may_publish
from tracelake.versions.store import Repository

_TABLE: Final = "tables/spans"


@dataclass(frozen=True, slots=True)
class RebuildTask:
    """Index the live rows of the buckets [low, high)."""

    objects_url: str
    build: str
    low: int
    high: int
    spans: Snapshot


def run_rebuild_task(task: RebuildTask) -> None:
    """Carry out one task: its part is staged, with its receipt."""
    objects = open_objects(task.objects_url)
    with _live_rows(objects, task.spans, COLUMNS) as batches:
        build_part(objects, INDEX, task.build, task.low, task.high, uuid.uuid4().hex, batches)


def count_live(objects: ObjectStore, snapshot: Snapshot) -> int:
    """Return how many rows are live in a snapshot, by reading it."""
    with _live_rows(objects, snapshot, [ROW_ID.name]) as batches:
        return sum(batch.num_rows for batch in batches)


@contextmanager
def _live_rows(
    objects: ObjectStore, snapshot: Snapshot, columns: Sequence[str]
) -> Iterator[Iterator[pa.RecordBatch]]:
    schema = pa.schema([ROW_ID if name == ROW_ID.name else SPANS_TABLE.field(name) for name in columns])
    with tempfile.TemporaryDirectory(prefix="tracelake-index-") as folder:
        files = LocalFiles(objects, Path(folder))
        with duckdb.connect(config={"threads": 1}) as db:
            reader = db.sql(rows_sql(snapshot, files.file, columns, SPANS_TABLE)).to_arrow_reader(
                INDEX_REBUILT_BATCH_ROWS
            )
            # DuckDB does not have all of the finer types.
            yield (
                narrow
                for batch in reader
                for narrow in pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
            )


def rebuild(
    key_value: KeyValueStore, objects: ObjectStore, buckets: int, executor: Executor, progress: OnProgress
) -> IndexReport:
    """Build the index anew, and publish it on `main`.

    Raises:
        UsageError: the lake is still empty.
        LimitError: others were faster, again and again.
        ExpiredError: garbage was collected twice meanwhile; run it again.
    """
    repository = Repository(key_value, objects)
    head = repository.head()
    named = repository.find(head, [_TABLE]).get(_TABLE) if head else None
    if not isinstance(named, TableAt):
        raise UsageError("the lake is still empty: there is nothing to index. Ingest something first.")
    epoch = repository.epoch()  # before anything is written
    build = rebuild_name(epoch, uuid.uuid4().hex[:12])
    shard = Shard(named.shard, key_value, objects)
    with Lease(shard, key_value) as lease:  # the rows stay until they are read
        snapshot = shard.snapshot(named.as_of, lease.state)
        groups = min(buckets, 1 + sum(part.rows for part in snapshot.parts) // INDEX_REBUILT_PART_ROWS)
        bounds = [buckets * group // groups for group in range(groups + 1)]
        tasks = [
            RebuildTask(objects.url, build, low, high, snapshot.for_buckets(set(range(low, high))))
            for low, high in pairwise(bounds)
        ]
        executor.run(
            run_rebuild_task, tasks, lambda done: progress(Progress("indexing", done, len(tasks), "tasks"))
        )
    try:
        chosen = write_parts(objects, INDEX, build, buckets)
    except DamageError as error:
        if may_publish(epoch, repository.epoch()):
            raise
        raise ExpiredError(
            "garbage was collected twice while the index was built anew, and what was built with it. Nothing was "
            "changed; run it again."
        ) from error
    parts = parts_of_build(INDEX, chosen, 0, named.as_of + 1)
    report = _publish(repository, objects, (build, epoch), parts, named.as_of + 1)
    clean_staging(objects, INDEX, build)
    return report


def _publish(
    repository: Repository,
    objects: ObjectStore,
    begun: tuple[str, int],
    parts: Sequence[PartRef],
    upper: int,
) -> IndexReport:
    """Commit the parts as the index, with those of later transactions; again where one is faster."""
    build, epoch = begun
    for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
        replaced, later, now = _later(repository, objects, upper)
        manifest = Manifest(
            index=INDEX,
            build=f"{build}-{now:010d}",
            upper=now,
            fingerprint=fields.FINGERPRINT,
            parent=replaced,
            lists=(),
            newest=(*parts, *later),
        )
        path = manifest_path(INDEX, manifest.build)
        manifest = write_marker(objects, path, with_lists(objects, manifest))
        # A commit never takes an index back to fewer transactions: where one is faster, this changes nothing.
        commit_id = repository.commit_entries(
            {INDEX_ENTRY: IndexAt(path, now, epoch)},
            message=f"index rebuilt: {manifest.documents} documents in {manifest.part_count} parts",
            committer="index rebuild",
        )
        if index_at(repository, commit_id) == path:
            return IndexReport(commit_id, manifest.upper, manifest.documents, manifest.part_count)
    raise LimitError(
        f"the index was built anew, and {CONDITIONAL_WRITE_TRIES_MAX} transactions in a row were faster than its "
        "commit; try again when fewer come in."
    )


def _later(repository: Repository, objects: ObjectStore, upper: int) -> tuple[str | None, list[PartRef], int]:
    """Return the manifest to replace, its parts of transactions from `upper` on, and its upper then."""
    head = repository.head()
    assert head is not None, "a branch that has a commit keeps one"
    replaced = index_at(repository, head)
    transaction = repository.transaction_of(head)
    if replaced is None or transaction < upper:  # nothing of it is needed: it may be damaged
        return replaced, [], upper
    manifest = read_manifest(objects, replaced)
    later = [part for part in read_parts(objects, manifest) if part.lower >= upper]
    return replaced, later, max(upper, manifest.upper)
