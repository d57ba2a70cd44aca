"""Publication of staged rows: one append to the table's shard, then one commit that references it. The write is an
upsert.

A new row retracts the stored row with the same key, and so does a deletion. A row that equals the stored one writes
nothing. Among several rows or deletions of a key in one write, `staging.py` defines the winner. Without a key, every
row is new. Pieces of tasks are already parts; those that lose rows here, and small ones, are rewritten.

The batch is appended at the shard's next time. If another writer was faster, the merge is repeated on top of its
batch. A write with an id happens once: the shard stores the id atomically with the append, even if no row changes, as
long as the table exists.

A writer that crashes before the append leaves unreferenced parts. A writer that crashes between append and commit
leaves invisible rows, until a commit references them: by the same `write_id` again, the next write, or
`finish_writes`.
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
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import ContentionError, InputError, UsageError
from tracelake.limits import PART_COPIES_MAX_BYTES
from tracelake.limits.input import MIB
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part, ShardState, Write
from tracelake.shards.parts import Numbers, write_part
from tracelake.shards.protocol import may_append
from tracelake.shards.rows import RETRACTIONS, first_row_id, relative, with_relative_row_ids
from tracelake.shards.shard import EMPTY, Shard
from tracelake.storage import LocalFiles, ObjectStore, Stores, delete_all
from tracelake.tables.builtin import entry_of
from tracelake.tables.maintenance import Maintainer
from tracelake.tables.scan import Scan, check_parts
from tracelake.tables.spec import TableSpec, check_name, create_spec, read_spec, table_names
from tracelake.tasks.runners import InProcess
from tracelake.user_tables import staging
from tracelake.versions.model import TABLE_WRITER, TableAt
from tracelake.versions.repository import Repository

SMALL_PART_MAX_BYTES: Final = MIB // 4
"""Slice of a write that shares a part with others of its bucket."""
SMALL_PARTS_MAX_BYTES: Final = 8 * MIB
"""Stored size of such slices together."""
_UPPER_MISMATCHES_MAX: Final = 100
"""Consecutive races that a write may lose to other writers."""

PartGroup: TypeAlias = list[Part]
"""Pieces of one bucket that become one part."""


@dataclass(frozen=True, slots=True)
class MergedParts:
    """The parts of a batch."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)

    def paths(self) -> set[str]:
        """Return the paths of all parts."""
        return {part.path for part in (*self.parts, *self.retractions)}

    @property
    def is_empty(self) -> bool:
        """Return whether no row changes."""
        return not self.parts and not self.retractions


class TableMerge:
    """Merges staged rows with the rows of a snapshot."""

    def __init__(
        self, objects: ObjectStore, copies: str, spec: TableSpec, staged: Sequence[staging.Pieces]
    ) -> None:
        self._objects = objects
        self._files = LocalFiles(objects, Path(copies), PART_COPIES_MAX_BYTES)
        self._spec = spec
        self._rows = [part for task in staged for part in task.rows]
        self._blocks = [block for task in staged for block in task.blocks]
        orders = {task.order for task in staged}
        assert len(orders) <= 1, "one write has one order"
        self._order = orders.pop() if orders else staging.LAST_STANDS

    def against(self, stored: Scan, epoch: int) -> MergedParts:
        """Write parts with the changes that lead from the stored rows to the new state; return them. If another writer
        appended first, call this again with the newer snapshot."""
        outcome = self.compared(stored)
        time = stored.snapshot.as_of + 1
        # DuckDB and Parquet release the GIL while they work.
        with ThreadPoolExecutor(min(staging.MERGE_THREADS_MAX, os.cpu_count() or 1)) as threads:
            written = threads.map(lambda pieces: self._write_winners(pieces, outcome, epoch), self._groups())
            parts = list(_numbered((part for part in written if part is not None), first_row_id(time)))
            retractions = threads.map(
                lambda bucket_ids: self._retraction(bucket_ids[0], bucket_ids[1], time, epoch),
                outcome.retracted.items(),
            )
            return MergedParts(parts, list(retractions))

    def compared(self, stored: Scan) -> staging.Outcome:
        """Compare by key. Raises InputError as `against` does."""
        if not self._spec.key:
            return staging.Outcome()
        return staging.compare(self._files, self._spec, self._order, self._blocks, stored)

    def _groups(self) -> Iterator[PartGroup]:
        """Yield groups of pieces: large ones alone, small ones of one bucket together."""
        by_bucket = sorted(self._rows, key=lambda part: part.bucket)
        for _, pieces in groupby(by_bucket, key=lambda part: part.bucket):
            group: PartGroup = []
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

    def _write_winners(self, pieces: PartGroup, outcome: staging.Outcome, epoch: int) -> Part | None:
        """Return a part with the winning rows of the pieces, None if there are none."""
        with_winners = [piece for piece in pieces if len(outcome.lost.get(piece.path, ())) < piece.rows]
        if not with_winners:
            return None
        if len(with_winners) == 1 and with_winners[0].path not in outcome.lost:
            return with_winners[0]
        check_parts(self._files, with_winners)
        rows = pa.concat_tables(
            [self._winning_rows(piece, outcome.lost.get(piece.path)) for piece in with_winners]
        )
        if self._spec.key and len(with_winners) > 1:
            rows = rows.sort_by([(column, "ascending") for column in self._spec.key])
        numbered = with_relative_row_ids(rows)
        return write_part(self._objects, self._spec.name, epoch, pieces[0].bucket, numbered, None)

    def _winning_rows(self, piece: Part, lost: Numbers | None) -> pa.Table:
        rows = pq.read_table(self._files.file(piece.path), columns=self._spec.schema.names)
        if lost is None:
            return rows
        mask = np.ones(len(rows), dtype=np.bool_)
        mask[lost] = False
        return rows.filter(pa.array(mask))

    def _retraction(self, bucket: int, row_ids: Numbers, time: int, epoch: int) -> Part:
        times = np.full(len(row_ids), time, dtype=np.int64)
        rows = pa.table([pa.array(row_ids), pa.array(times)], schema=RETRACTIONS)
        return write_part(self._objects, self._spec.name, epoch, bucket, rows, None)


def _numbered(parts: Iterable[Part], first: int) -> Iterator[Part]:
    """Assign consecutive row ids to parts."""
    for part in parts:
        yield relative(part, first)
        first += part.rows


def create_table(stores: Stores, spec: TableSpec) -> TableSpec:
    """Create an empty table, and commit it. Idempotent for an equal table. Raises UsageError if a different table has
    the name."""
    spec = create_spec(stores.objects, spec)
    _commit(stores, spec, -1, f"table {spec.name} made", {})
    return spec


@dataclass(frozen=True, slots=True)
class WriteId:
    """Idempotency key of a write: a text, plus a number in a series such as a streaming query."""

    text: str
    number: int | None = None
    """Numbers of a series increase. A write with a lower number than a completed one counts as completed."""

    def __post_init__(self) -> None:
        """Raise UsageError if the text is empty."""
        if not self.text:
            raise UsageError("the id of a write is empty; leave it out, or give the write a unique name.")

    def to_write(self, counts: dict[str, int]) -> Write:
        """Return the record that the table stores for the write."""
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
    """Stage rows in this process and publish them; see `stage` and `publish`."""
    check_name(name)
    spec = read_spec(stores.objects, name)
    epoch = Shard(name, stores.key_value, stores.objects).state().epoch
    return publish(stores, spec, [staging.stage(stores.objects, spec, epoch, batches, tombstone)], write_id)


def publish(
    stores: Stores, spec: TableSpec, staged: Sequence[staging.Pieces], write_id: WriteId | None = None
) -> str:
    """Publish staged rows in a table; return the commit that contains them.

    Args:
        stores: the lake.
        spec: the table.
        staged: the pieces of the tasks; on return they are part of the table, deleted, or left to garbage collection.
        write_id: idempotency key; if a write with this id has completed, nothing is appended.
    Raises:
        InputError: rows of one key differ, and their order does not define the winner.
        ContentionError: other writers won too many races in a row.
        ExpiredError: the rows were staged more than a day ago, and have been collected.
    """
    staged = [staging.staged_for(stores.objects, stores.copies, spec, task) for task in staged]
    as_of, counts = _append(stores, spec, staged, write_id)
    commit = _commit(
        stores, spec, as_of, f"table {spec.name}: {counts.get('inserted', 0)} rows inserted", counts
    )
    shard = Shard(spec.name, stores.key_value, stores.objects)
    Maintainer(stores.key_value, stores.objects, InProcess(), tries=0).maintain(shard, spec.key)
    return commit


def check_first(stores: Stores, spec: TableSpec, staged: Sequence[staging.Pieces]) -> None:
    """Raise InputError if the rows of a table's first write have no defined winner. Called before the table is
    created."""
    nothing = Scan(stores.objects.url, stores.copies, spec.layout(), EMPTY)
    try:
        TableMerge(stores.objects, stores.copies, spec, staged).compared(nothing)
    except InputError:
        _delete(stores, staged, keep=())
        raise


def finish_writes(stores: Stores) -> list[str]:
    """Commit batches whose writers crashed before their commit; return the affected tables.

    The batch has all data for the commit, so any process may make it; a live writer then finds it made. If the
    history references the batch already, a user has reverted the table since, and the revert stays.
    """
    repository = Repository(stores.key_value, stores.objects)
    finished = []
    for name in table_names(stores.objects):
        shard = Shard(name, stores.key_value, stores.objects)
        as_of = shard.state().upper - 1
        if as_of < 0 or _is_referenced(repository, name, as_of):
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


def _is_referenced(repository: Repository, table: str, as_of: int) -> bool:
    """Return whether a commit of the history references a table at this time or later. Nearly always, the newest
    does."""
    path = entry_of(table)
    for commit_id, _ in repository.log(repository.head() or ""):
        reference = repository.find(commit_id, [path]).get(path)
        if isinstance(reference, TableAt) and reference.as_of >= as_of:
            return True
    return False


def _append(
    stores: Stores, spec: TableSpec, staged: Sequence[staging.Pieces], write_id: WriteId | None
) -> tuple[int, dict[str, int]]:
    """Append the staged rows; return a time as of which they exist, and the counts.

    Pieces are deleted only after our own append has proved that no batch references them. Otherwise, garbage
    collection deletes them.
    """
    shard = Shard(spec.name, stores.key_value, stores.objects)
    for _ in range(_UPPER_MISMATCHES_MAX):
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
                # every append that was tried with these rows failed for certain
                _delete(stores, staged, keep=())
                raise
        inserted = sum(part.rows for part in merged.parts)
        retracted = sum(part.rows for part in merged.retractions)
        counts = {"inserted": inserted, "retracted": retracted}
        if merged.is_empty and write_id is None:
            _delete(stores, staged, keep=())
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
            _delete(stores, staged, keep=merged.paths())
            return as_of, counts
        delete_all(stores.objects, merged.paths() - _paths(staged))
    raise ContentionError(
        f"table {spec.name}: {_UPPER_MISMATCHES_MAX} other writers in a row committed first. Nothing was "
        "written; try again, or run fewer writers at a time."
    )


def _timely(stores: Stores, spec: TableSpec, staged: staging.Pieces, state: ShardState) -> staging.Pieces:
    """Return pieces of a current epoch: copies, if their task took too long."""
    if may_append(state, staged.epoch):
        return staged
    copies = staging.restage(stores.objects, spec, staged, state.epoch)
    _delete(stores, [staged], keep=())
    return copies


def _delete(stores: Stores, staged: Sequence[staging.Pieces], keep: Collection[str]) -> None:
    """Delete the pieces that no batch references."""
    delete_all(stores.objects, _paths(staged).difference(keep))


def _paths(staged: Sequence[staging.Pieces]) -> set[str]:
    return {path for task in staged for path in task.paths()}


def _commit(stores: Stores, spec: TableSpec, as_of: int, message: str, counts: Mapping[str, int]) -> str:
    return Repository(stores.key_value, stores.objects).commit_entries(
        {entry_of(spec.name): TableAt(spec.name, as_of)},
        message=message,
        committer=TABLE_WRITER,
        created_at=datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
        metadata={"table": spec.name, **{f"rows_{name}": str(count) for name, count in counts.items()}},
    )
