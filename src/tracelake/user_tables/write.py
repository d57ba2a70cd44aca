"""Publish what tasks have staged: one append to the table's shard, then one commit that names it.

The batch stands at the shard's own next time. Where another writer was faster, the merge is done again against
what it wrote. A write with an id is remembered by the shard in the moment in which it is appended, even where it
changes no row, and for as long as the table lasts: it happens once. A writer that ends before the append leaves
parts that nothing names; one that ends between append and commit leaves rows that are not visible until somebody
commits: the same `write_id` again, the next write, or `finish_writes`.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from tracelake._errors import ContentionError, InputError, UsageError
from tracelake.limits import UPPER_MISMATCHES_MAX
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, ShardState, Write
from tracelake.shards.protocol import may_append
from tracelake.shards.store import EMPTY, Shard
from tracelake.storage import Stores, delete_all
from tracelake.tables.built_in import entry_of
from tracelake.tables.maintenance import Maintainer
from tracelake.tables.scan import Scan
from tracelake.tables.spec import TableSpec, check_name, create_spec, read_spec, table_names
from tracelake.tasks.runners import InProcess
from tracelake.user_tables.merge import TableMerge
from tracelake.user_tables.staging import Pieces, stage, staged_anew, staged_for
from tracelake.versions.model import TableAt
from tracelake.versions.store import Repository


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
    anew = staged_anew(stores.objects, spec, staged, state.epoch)
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
