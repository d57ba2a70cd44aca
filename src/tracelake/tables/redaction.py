"""Removal of traces from a table at every time, by rewriting the parts that have their rows.

Commits name a table by its shard and a time, and the shard's state names the parts. A rewritten part therefore replaces
the old one at every commit, and no commit changes. Rows keep their ids, so later retractions of other rows stay valid.

Batches are rewritten from the newest to the oldest. A retraction is never older than its row, so it disappears first.
An interrupted run leaves a consistent table, in which the next run finds all rows that are left.

A compaction that read an old part loses its race, because the state no longer names the batches that it merged.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from tracelake.scratch import scratch_directory
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part, ShardState
from tracelake.shards.parts import KEY_FILTER, Numbers, write_part
from tracelake.shards.rows import RETRACTIONS, ROW_ID, first_row_id, parquet
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore
from tracelake.tables.builtin import BuiltInTable
from tracelake.tables.predicates import condition
from tracelake.tables.scan import check_parts, of_traces_sql, rows_of


@dataclass(slots=True)
class Redacted:
    """Rows and parts that a redaction replaced."""

    rows: int = 0
    parts: int = 0
    size_bytes: int = 0
    """Bytes of the replaced parts."""
    paths: list[str] = field(default_factory=list)


class TableRedactor:
    """Removes traces from one built-in table. Any number may run at once, beside writers and compactions."""

    def __init__(
        self,
        table: BuiltInTable,
        buckets: int,
        key_value: KeyValueStore,
        objects: ObjectStore,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare. `pause` is called after each batch that was read or rewritten."""
        self._pause = pause
        self._table = table
        self._layout = table.layout(buckets)
        self._key_value = key_value
        self._objects = objects
        self._shard = Shard(table.name, key_value, objects)

    def traces_matching(self, where: str) -> set[str]:
        """Return the traces with a row, of any time, that matches a DuckDB condition. Raises QueryError if DuckDB
        refuses it."""
        matching: set[str] = set()
        with self._leased() as (lease, files):
            query = f"select distinct trace_id from {{}} where {condition(where)}"
            for stored in self._stored(lease.state):
                parts = self._layout.matching(stored, where)
                matching.update(map(str, self._read(files, parts, query, where)["trace_id"].to_pylist()))
        return matching

    def count(self, trace_ids: Collection[str], since: int = 0) -> int:
        """Count the rows of traces in all parts, including replaced rows, from a transaction on."""
        with self._leased() as (lease, files):
            return sum(len(ids) for ids in self._row_ids(files, lease, trace_ids, first_row_id(since)))

    def rows_by_transaction(self, trace_ids: Collection[str]) -> Counter[int]:
        """Count the rows of traces, as `count` does, by the transaction that inserted them."""
        counted = Counter[int]()
        with self._leased() as (lease, files):
            for ids in self._row_ids(files, lease, trace_ids):
                counted.update((ids // first_row_id(1)).tolist())
        return counted

    def rewrite(self, trace_ids: Collection[str], until: int) -> Redacted:
        """Rewrite the batches before transaction `until` that have rows of these traces, or retractions of such rows.

        Batches that a concurrent compaction replaced are left to the next call.
        """
        result = Redacted()
        with self._leased() as (lease, files):
            row_ids = np.concatenate([*self._row_ids(files, lease, trace_ids), np.array([], np.int64)])
            if not len(row_ids):
                return result
            for ref in reversed(lease.state.batches):
                if ref.upper > until:
                    continue  # its commit will be made from it
                batch = self._shard.batch(ref)
                rewritten = self._without(files, batch, trace_ids, row_ids, lease.state.epoch)
                if rewritten is None:
                    continue
                written = {part.path for part in rewritten.objects()} - {p.path for p in batch.objects()}
                if self._shard.replace([ref], rewritten, written):
                    _count(result, batch, rewritten)
                self._continue(lease)  # not within a batch: a compaction may replace it during the pause
        return result

    def _without(
        self, files: LocalFiles, batch: Batch, trace_ids: Collection[str], row_ids: Numbers, epoch: int
    ) -> Batch | None:
        """Return the batch without rows of these traces, or None if it has none."""
        ids, numbers = pa.array(sorted(trace_ids), pa.string()), pa.array(row_ids)
        may_have = {part.path for part in self._layout.with_keys(batch.objects(), sorted(trace_ids))}

        def of_traces(rows: pa.Table) -> Any:
            return pc.is_in(rows["trace_id"], ids)

        def of_rows(rows: pa.Table) -> Any:
            return pc.is_in(rows[RETRACTIONS.names[0]], numbers)

        changed = replace(
            batch,
            id=uuid.uuid4().hex,
            epoch=epoch,
            parts=self._rewritten(files, batch.parts, of_traces, epoch, may_have),
            history=self._rewritten(files, batch.history, of_traces, epoch, may_have),
            retractions=self._rewritten(files, batch.retractions, of_rows, epoch, None),
        )
        return None if changed.objects() == batch.objects() else changed

    def _rewritten(
        self,
        files: LocalFiles,
        parts: Sequence[Part],
        are_erased: Callable[[pa.Table], Any],
        epoch: int,
        may_have: Collection[str] | None,
    ) -> tuple[Part, ...]:
        rewritten: list[Part | None] = []
        for part in parts:
            if may_have is not None and part.path not in may_have:
                rewritten.append(part)
                continue
            check_parts(files, [part])
            rewritten.append(self._part(files.file(part.path), part, are_erased, epoch))
        return tuple(part for part in rewritten if part is not None)

    def _part(self, path: str, part: Part, are_erased: Callable[[pa.Table], Any], epoch: int) -> Part | None:
        """Return a part without the erased rows: the same one if it has none, None if no row is left."""
        rows = pq.read_table(path)
        is_erased = are_erased(rows)
        if not pc.any(is_erased).as_py():
            return part
        rows = rows.filter(pc.invert(is_erased))
        if not len(rows):
            return None
        if part.relative:  # ids that count from 0 would have gaps
            ids = pc.add(rows[ROW_ID.name], part.first_row_id)
            rows = rows.set_column(rows.schema.get_field_index(ROW_ID.name), ROW_ID, ids)
        return write_part(
            self._objects,
            self._shard.name,
            epoch,
            part.bucket,
            rows,
            self._table.bucketed_by if part.first_key else None,
            looked_up=KEY_FILTER in (pq.read_metadata(path).metadata or {}),
            schema_version=part.schema_version,
        )

    def _row_ids(
        self, files: LocalFiles, lease: Lease, trace_ids: Collection[str], first: int = 0
    ) -> Iterator[Numbers]:
        for stored in self._stored(lease.state) if trace_ids else ():
            new = [part for part in stored if part.last_row_id >= first]
            parts = self._layout.with_keys(new, sorted(trace_ids))
            query = f"select {ROW_ID.name} from {{}} where {of_traces_sql(trace_ids)} and {ROW_ID.name} >= {first}"
            yield self._read(files, parts, query)[ROW_ID.name].to_numpy()
            self._continue(lease)

    def _continue(self, lease: Lease) -> None:
        self._pause()
        lease.renew()

    def _stored(self, state: ShardState) -> Iterator[Sequence[Part]]:
        """Yield the parts of each batch, and separately its history, which has a further column."""
        for ref in state.batches:
            batch = self._shard.batch(ref)
            yield batch.parts
            yield batch.history

    def _read(
        self, files: LocalFiles, parts: Sequence[Part], query: str, where: str | None = None
    ) -> pa.Table:
        """Return the result of a query with a placeholder for the source."""
        if not parts:
            return pa.table({"trace_id": pa.array([], pa.string()), ROW_ID.name: pa.array([], pa.int64())})
        check_parts(files, parts)
        source = parquet(parts, files.file, self._layout.schema, self._layout.added)
        with rows_of(query.replace("{}", source, 1), where) as reader:
            return reader.read_all()

    @contextmanager
    def _leased(self) -> Iterator[tuple[Lease, LocalFiles]]:
        """Keep the parts of the current state until the block ends. Copies of remote parts are deleted with it."""
        with Lease(self._shard, self._key_value) as lease, scratch_directory("redaction") as folder:
            yield lease, LocalFiles(self._objects, Path(folder))


def _count(result: Redacted, before: Batch, after: Batch) -> None:
    remaining = {part.path for part in after.objects()}
    replaced = [part for part in before.objects() if part.path not in remaining]
    rows_before = sum(part.rows for part in (*before.parts, *before.history))
    result.rows += rows_before - sum(part.rows for part in (*after.parts, *after.history))
    result.parts += len(replaced)
    result.size_bytes += sum(part.size_bytes for part in replaced)
    result.paths += [part.path for part in replaced]
