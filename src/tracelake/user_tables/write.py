"""Publish what tasks have staged: one append to the table's shard, then one commit that names it.

The batch stands at the shard's own next time. Where another writer was faster, the merge is done again against
what it wrote. A write with an id is remembered by the shard in the moment in which it is appended, even where it
changes no row, and for as long as the table lasts: it happens once. A writer that ends before the append leaves
parts that nothing names; one that ends between append and commit leaves rows that are not visible until somebody
commits: the same `write_id` again, the next write, or `finish_writes`.

Upsert into a table of the user: which staged rows are taken, which stored rows they retract.

A key has one row. A new row retracts the stored one, and a deleted key too; what is stored the same already
gives no output. Of several rows with one key in one write `ties.py` says which one stands, deletions included.
Without a key every row is new.

Pieces of tasks are parts already. Those that lose rows here, and those that are small, are written again.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import ContentionError, InputError, UsageError
from tracelake.limits import (
    MERGE_THREADS_MAX,
    PART_COPIES_MAX_BYTES,
    SMALL_PART_MAX_BYTES,
    SMALL_PARTS_MAX_BYTES,
    UPPER_MISMATCHES_MAX,
)
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part, ShardState, Write
from tracelake.shards.partitioning import Numbers
from tracelake.shards.parts import write_part
from tracelake.shards.protocol import may_append
from tracelake.shards.rows import RETRACTIONS, first_row_id, relative, with_relative_row_ids
from tracelake.shards.shard import EMPTY, Shard
from tracelake.storage import LocalFiles, ObjectStore, Stores, delete_all
from tracelake.tables.builtin import entry_of
from tracelake.tables.maintenance import Maintainer
from tracelake.tables.scan import Scan, check_parts
from tracelake.tables.spec import TableSpec, check_name, create_spec, read_spec, table_names
from tracelake.tasks.runners import InProcess
from tracelake.user_tables.keys import Outcome, compare
from tracelake.user_tables.staging import LAST_STANDS, Pieces, restage, stage, staged_for
from tracelake.versions.model import TableAt
from tracelake.versions.repository import Repository

Together: TypeAlias = list[Part]
"""Pieces of one bucket that become one part."""


@dataclass(frozen=True, slots=True)
class MergedParts:
    """What a batch is made of."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)

    def paths(self) -> set[str]:
        """Return the paths of all parts."""
        return {part.path for part in (*self.parts, *self.retractions)}

    @property
    def is_empty(self) -> bool:
        """Whether no row changes."""
        return not self.parts and not self.retractions


class TableMerge:
    """Merges staged rows with the rows of a snapshot."""

    def __init__(self, objects: ObjectStore, copies: str, spec: TableSpec, staged: Sequence[Pieces]) -> None:
        self._objects = objects
        self._files = LocalFiles(objects, Path(copies), PART_COPIES_MAX_BYTES)
        self._spec = spec
        self._rows = [part for task in staged for part in task.rows]
        self._blocks = [block for task in staged for block in task.blocks]
        orders = {task.order for task in staged}
        assert len(orders) <= 1, "one write has one order"
        self._order = orders.pop() if orders else LAST_STANDS

    def against(self, stored: Scan, epoch: int) -> MergedParts:
        """Write the changes that lead from what is stored to what is wanted; called again for a newer state.

        Raises InputError where nothing tells which of several rows of a key stands.
        """
        outcome = self.compared(stored)
        time = stored.snapshot.as_of + 1
        # DuckDB and Parquet leave other threads to run while they work.
        with ThreadPoolExecutor(min(MERGE_THREADS_MAX, os.cpu_count() or 1)) as threads:
            taken = threads.map(lambda pieces: self._taken(pieces, outcome, epoch), self._groups())
            parts = list(_numbered((part for part in taken if part is not None), first_row_id(time)))
            retractions = threads.map(
                lambda bucket_ids: self._retraction(bucket_ids[0], bucket_ids[1], time, epoch),
                outcome.gone.items(),
            )
            return MergedParts(parts, list(retractions))

    def compared(self, stored: Scan) -> Outcome:
        """Compare by key. Raises InputError as `against`."""
        if not self._spec.key:
            return Outcome()
        return compare(self._files, self._spec, self._order, self._blocks, stored)

    def _groups(self) -> Iterator[Together]:
        """Yield pieces alone, and small ones of one bucket together."""
        by_bucket = sorted(self._rows, key=lambda part: part.bucket)
        for _, pieces in groupby(by_bucket, key=lambda part: part.bucket):
            group: Together = []
            for piece in pieces:
                if piece.size_bytes > SMALL_PART_MAX_BYTES:
                    yield [piece]
                    continue
                if sum(part.size_bytes for part in (*group, piece)) > SMALL_PARTS_MAX_BYTES:
                    yield group
                    group = []
                group.append(piece)
            if group:
                yield group

    def _taken(self, pieces: Together, outcome: Outcome, epoch: int) -> Part | None:
        """Return a part of those rows of the pieces that are taken, None where there are none."""
        left = [piece for piece in pieces if len(outcome.lost.get(piece.path, ())) < piece.rows]
        if not left:
            return None
        if len(left) == 1 and left[0].path not in outcome.lost:
            return left[0]
        check_parts(self._files, left)
        rows = pa.concat_tables([self._kept(piece, outcome.lost.get(piece.path)) for piece in left])
        if self._spec.key and len(left) > 1:
            rows = rows.sort_by([(column, "ascending") for column in self._spec.key])
        numbered = with_relative_row_ids(rows)
        return write_part(self._objects, self._spec.name, epoch, pieces[0].bucket, numbered, None)

    def _kept(self, piece: Part, lost: Numbers | None) -> pa.Table:
        rows = pq.read_table(self._files.file(piece.path), columns=self._spec.schema.names)
        if lost is None:
            return rows
        kept = np.ones(len(rows), dtype=np.bool_)
        kept[lost] = False
        return rows.filter(pa.array(kept))

    def _retraction(self, bucket: int, gone: Numbers, time: int, epoch: int) -> Part:
        times = np.full(len(gone), time, dtype=np.int64)
        rows = pa.table([pa.array(gone), pa.array(times)], schema=RETRACTIONS)
        return write_part(self._objects, self._spec.name, epoch, bucket, rows, None)


def _numbered(parts: Iterable[Part], first: int) -> Iterator[Part]:
    """Give parts the ids of their rows, one after the other."""
    for part in parts:
        yield relative(part, first)
        first += part.rows


def create_table(stores: Stores, spec: TableSpec) -> TableSpec:
    """Make a table without rows, and name it by a commit; fine where it is there just so. Raises UsageError."""
    spec = create_spec(stores.objects, spec)
    _commit(stores, spec, -1, f"table {spec.name} made", {})
    return spec


@dataclass(frozen=True, slots=True)
class WriteId:
    """By what a caller tells a write from others: a text, and of a series, such as a streaming query, a number."""

    text: str
    number: int | None = None
    """Numbers of a series climb: one that is less than that of a write which happened has happened before."""

    def __post_init__(self) -> None:
        """Raise UsageError for a text that says nothing."""
        if not self.text:
            raise UsageError("the id of a write is empty; leave it out, or give the write a name of its own.")

    def to_write(self, counts: dict[str, int]) -> Write:
        """Return what the table is to remember."""
        kind = "write" if self.number is None else "series"
        name = hashlib.sha256(f"{kind} {self.text}".encode(errors="surrogatepass")).hexdigest()[:32]
        return Write(name, self.number or 0, counts)


def write_batches(
    stores: Stores,
    name: str,
    batches: Iterable[pa.RecordBatch],
    tombstone: str | None,
    write_id: WriteId | None,
) -> str:
    """Stage rows in this process, and publish them; see `stage` and `publish`."""
    check_name(name)
    spec = read_spec(stores.objects, name)
    epoch = Shard(name, stores.key_value, stores.objects).state().epoch
    return publish(stores, spec, [stage(stores.objects, spec, epoch, batches, tombstone)], write_id)


def publish(
    stores: Stores, spec: TableSpec, staged: Sequence[Pieces], write_id: WriteId | None = None
) -> str:
    """Make staged rows part of a table; return the commit that shows them.

    Args:
        stores: the lake.
        spec: the table.
        staged: what tasks have written; on return it is part of the table, deleted, or left to garbage collection.
        write_id: a write of this id happens once: where it has, nothing is appended.

    Raises:
        InputError: rows of one key differ, and their order does not say which of them stands.
        ContentionError: other writers were faster again and again.
        ExpiredError: the rows were staged more than a day ago, and have been collected.
    """
    staged = [staged_for(stores.objects, stores.copies, spec, task) for task in staged]
    as_of, counts = _append(stores, spec, staged, write_id)
    commit = _commit(
        stores, spec, as_of, f"table {spec.name}: {counts.get('inserted', 0)} rows inserted", counts
    )
    shard = Shard(spec.name, stores.key_value, stores.objects)
    Maintainer(stores.key_value, stores.objects, InProcess(), tries=0).maintain(shard, spec.key)
    return commit


def check_first(stores: Stores, spec: TableSpec, staged: Sequence[Pieces]) -> None:
    """Raise InputError where a first write cannot be for the order of its rows: then it makes no table either."""
    nothing = Scan(stores.objects.url, stores.copies, spec.layout(), EMPTY)
    try:
        TableMerge(stores.objects, stores.copies, spec, staged).compared(nothing)
    except InputError:
        _delete(stores, staged, kept=())
        raise


def finish_writes(stores: Stores) -> list[str]:
    """Commit what writers appended that ended before their commit; return the tables of which that is so.

    The batch is all that a commit is made of, so anyone may make it; a writer that lives finds it made. Where the
    history has named the batch before, somebody has taken the table back since, and it stays so.
    """
    repository = Repository(stores.key_value, stores.objects)
    finished = []
    for name in table_names(stores.objects):
        shard = Shard(name, stores.key_value, stores.objects)
        as_of = shard.state().upper - 1
        if as_of < 0 or _was_named(repository, name, as_of):
            continue
        batch = shard.batch_at(as_of)
        counts = batch.counts if batch is not None else {}
        _commit(
            stores,
            read_spec(stores.objects, name),
            as_of,
            f"table {name}: rows of a writer that ended",
            counts,
        )
        finished.append(name)
    return finished


def _was_named(repository: Repository, table: str, as_of: int) -> bool:
    """Whether a commit of the history names a table at this time or a later one: nearly always, the newest does."""
    path = entry_of(table)
    for commit_id, _ in repository.log(repository.head() or ""):
        reference = repository.find(commit_id, [path]).get(path)
        if isinstance(reference, TableAt) and reference.as_of >= as_of:
            return True
    return False


def _append(
    stores: Stores, spec: TableSpec, staged: Sequence[Pieces], write_id: WriteId | None
) -> tuple[int, dict[str, int]]:
    """Append; return a time at which the rows are there, and what was counted.

    Pieces are deleted only once our own append has told that no batch names them; else garbage collection has them.
    """
    shard = Shard(spec.name, stores.key_value, stores.objects)
    for _ in range(UPPER_MISMATCHES_MAX):
        with Lease(shard, stores.key_value) as lease:
            state = lease.state
            as_of = state.upper
            if write_id is not None:
                wanted = write_id.to_write({})
                if (there := shard.find_write(state, wanted.name, wanted.number)) is not None:
                    return as_of - 1, there.counts
            staged = [_timely(stores, spec, task, state) for task in staged]
            snapshot = shard.snapshot(as_of - 1, state)
            stored = Scan(stores.objects.url, stores.copies, spec.layout(), snapshot)
            try:
                merged = TableMerge(stores.objects, stores.copies, spec, staged).against(stored, state.epoch)
            except InputError:
                _delete(stores, staged, kept=())  # no append was tried with these rows that did not say no
                raise
        inserted = sum(part.rows for part in merged.parts)
        retracted = sum(part.rows for part in merged.retractions)
        counts = {"inserted": inserted, "retracted": retracted}
        if merged.is_empty and write_id is None:
            _delete(stores, staged, kept=())
            return as_of - 1, counts
        batch = Batch(
            lower=as_of,
            upper=as_of + 1,
            id=uuid.uuid4().hex,
            parts=tuple(merged.parts),
            retractions=tuple(merged.retractions),
            counts=counts,
            epoch=min([state.epoch, *(task.epoch for task in staged)]),
        )
        write = write_id.to_write(counts) if write_id is not None else None
        if shard.compare_and_append(batch, write) is None:
            _delete(stores, staged, kept=merged.paths())
            return as_of, counts
        delete_all(stores.objects, merged.paths() - _paths(staged))
    raise ContentionError(
        f"table {spec.name}: {UPPER_MISMATCHES_MAX} other writers in a row were faster. Nothing was written; "
        "try again, or let fewer write at a time."
    )


def _timely(stores: Stores, spec: TableSpec, staged: Pieces, state: ShardState) -> Pieces:
    """Return pieces that may be appended: of a task that took long, copies."""
    if may_append(state, staged.epoch):
        return staged
    anew = restage(stores.objects, spec, staged, state.epoch)
    _delete(stores, [staged], kept=())
    return anew


def _delete(stores: Stores, staged: Sequence[Pieces], kept: Collection[str]) -> None:
    """Delete the pieces that no batch names."""
    delete_all(stores.objects, _paths(staged).difference(kept))


def _paths(staged: Sequence[Pieces]) -> set[str]:
    return {path for task in staged for path in task.paths()}


def _commit(stores: Stores, spec: TableSpec, as_of: int, message: str, counts: Mapping[str, int]) -> str:
    return Repository(stores.key_value, stores.objects).commit_entries(
        {entry_of(spec.name): TableAt(spec.name, as_of)},
        message=message,
        committer="writer",
        created_at=datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
        metadata={"table": spec.name, **{f"rows_{name}": str(count) for name, count in counts.items()}},
    )
