"""Compaction of one bucket, on executors: rewrites its rows into fewer parts, with retracted rows in history or
dropped.

A task takes all parts of one bucket in a run of adjacent batches. Small transactions have parts of all buckets. If
there are such parts, a task may take the parts of all buckets. Rows that are live at the end of the run are written,
sorted, into new parts. Rows that were inserted and retracted within the run become history, until they may be
forgotten. Retractions of older rows are carried along. Large parts that lost no row are kept unchanged.

DuckDB computes the order from the narrow sort columns and spills to disk if memory is short. `MergeSources` then
moves the rows from row groups of known size into tables of known size. So rows of many MiB each take no more memory
than small ones.

`Collector` deletes the garbage of one shard: replaced batches that no lease protects, and orphans of crashed writers.

Compaction and collection are safe with concurrent readers and writers, and at any crash. Objects are deleted before the
records that name them, so an interrupted collection is resumed. Deleting twice is harmless.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import DamageError, StorageError
from tracelake.limits import EPOCH_MIN_S, STAGED_ROWS_AGE_MAX_S, STORED_EXPANDS
from tracelake.limits.input import MIB
from tracelake.scratch import scratch_directory
from tracelake.shards.leases import Lease, drop_expired_leases, expired_leases, leases, moment, this_machine
from tracelake.shards.model import Batch, BatchRef, Moment, Part, Retired
from tracelake.shards.parts import (
    GROUP_BYTES,
    KEY_FILTER,
    PARTS,
    STAGED,
    Numbers,
    check_part,
    is_all,
    may_share,
    write_part,
)
from tracelake.shards.protocol import collectable, drop_retired, is_orphan_epoch, next_epoch
from tracelake.shards.rows import (
    GONE,
    RETRACTIONS,
    ROW_ID,
    FileOf,
    buckets_of_ids,
    conform,
    first_row_id,
    in_buckets_sql,
    parquet,
    quoted,
    retractions_by_bucket,
)
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore, delete_all, open_objects

COMPACTION_MEMORY_BYTES: Final = 512 * MIB
"""Memory of one compaction task."""
COMPACTED_AT_HAND_ROWS: Final = 20_000
"""Rows of a compaction that uses the process's open database."""
_COMPACTED_AT_HAND_MAX_BYTES: Final = 8 * MIB
"""Stored bytes of a compaction that uses the process's open database."""
TAKEN_APART_MAX_BYTES: Final = 64 * MIB
"""Stored bytes of a compaction whose single task splits parts of all buckets."""
COMPACTED_PART_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of one part that compaction writes."""

Sizes: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """Row group of a part; `first` is the position of its first row among the rows of all parts."""

    part: Part
    number: int
    first: int
    rows: int
    arrow_bytes: int


class MergeSources:
    """Parts from which a compaction reads rows in any order."""

    def __init__(self, parts: Sequence[Part], file: FileOf, memory_max_bytes: int) -> None:
        """Read the row ids of the parts. If all parts have at most `memory_max_bytes` Arrow bytes, keep their rows in
        memory."""
        self._file = file
        self._groups: list[_RowGroup] = []
        self.looked_up = False
        """Whether readers look up keys in these parts (see `write_part`)."""
        ids: list[Numbers] = []
        self.schema: pa.Schema
        """The schema of the newest version among the parts, without the column that only history has."""
        newest = max(parts, key=lambda part: part.schema_version)
        self.schema_version = newest.schema_version
        with pq.ParquetFile(file(newest.path)) as opened:
            self.schema = pa.schema([field for field in opened.schema_arrow if field.name != GONE.name])
        first, room = 0, memory_max_bytes
        in_memory: list[pa.Table] = []
        for part in parts:
            with pq.ParquetFile(file(part.path)) as opened:
                footer = opened.metadata
                self.looked_up |= KEY_FILTER in (footer.metadata or {})
                for number, arrow_bytes in enumerate(_group_bytes(part, footer)):
                    room -= arrow_bytes
                    few = room >= 0
                    rows = opened.read_row_group(
                        number, self.schema.names if few else [ROW_ID.name], use_threads=False
                    )
                    ids.append(rows[ROW_ID.name].to_numpy() + (part.first_row_id if part.relative else 0))
                    self._groups.append(_RowGroup(part, number, first, len(rows), arrow_bytes))
                    first += len(rows)
                    in_memory = [*in_memory, conform(rows, self.schema)] if few else []
        self._ids = np.concatenate(ids)
        self._rows_in_memory = (
            self._numbered(pa.concat_tables(in_memory), self._ids) if room >= 0 and in_memory else None
        )
        self._by_id: Numbers = np.argsort(self._ids, kind="stable")

    def gather(self, ids: Numbers, retracted_at: Numbers | None, max_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows with these ids, in this order, in tables of about `max_bytes` Arrow bytes, or of one row.

        No table of several rows has more than twice as many bytes. The size of a row is only known as the mean of its
        group, and the large rows of many groups may be adjacent here. So a table that turns out larger is read again
        with fewer rows.

        For history, `retracted_at` is the time at which each row was retracted.
        """
        rows: Numbers = self._by_id[np.searchsorted(self._ids, ids, sorter=self._by_id)]
        firsts = np.array([group.first for group in self._groups], np.int64)
        if self._rows_in_memory is not None and self._rows_in_memory.nbytes <= max_bytes:
            if len(rows):
                yield _with_retraction_times(self._rows_in_memory.take(rows).combine_chunks(), retracted_at)
            return
        groups: Numbers = np.searchsorted(firsts, rows, "right") - 1
        row_bytes: Sizes = np.array([group.arrow_bytes / group.rows for group in self._groups], np.float64)
        end_bytes = np.cumsum(row_bytes[groups])
        start = 0
        while start < len(rows):
            before = end_bytes[start - 1] if start else 0.0
            end = max(start + 1, int(np.searchsorted(end_bytes, before + max_bytes, "right")))
            while not (tables := self._read(rows[start:end], groups[start:end], 2 * max_bytes)):
                end = start + (end - start) // 2
            times = None if retracted_at is None else retracted_at[start:end]
            yield _in_order(tables, groups[start:end], times)  # unnamed, to be freed early
            start = end

    def _read(self, rows: Numbers, groups: Numbers, max_bytes: int) -> list[pa.Table]:
        """Read rows from their row groups, each once. Return an empty list if several rows exceed `max_bytes`."""
        by_group: Numbers = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[by_group])) + 1
        tables: list[pa.Table] = []
        size = 0
        for few in np.split(by_group, cuts):
            tables.append(self._of_group(self._groups[groups[few[0]]], rows[few]))
            size += tables[-1].nbytes
            if size > max_bytes and len(rows) > 1:
                return []
        return tables

    def _of_group(self, group: _RowGroup, rows: Numbers) -> pa.Table:
        with pq.ParquetFile(self._file(group.part.path)) as file:
            table = file.read_row_group(group.number, self.schema.names, use_threads=False)
        return self._numbered(conform(table, self.schema).take(rows - group.first), self._ids[rows])

    def _numbered(self, rows: pa.Table, ids: Numbers) -> pa.Table:
        """Replace the ids of rows by those that they have in the table."""
        place = rows.schema.get_field_index(ROW_ID.name)
        return rows.set_column(place, ROW_ID, pa.array(ids)).cast(self.schema)


def _in_order(tables: list[pa.Table], groups: Numbers, retracted_at: Numbers | None) -> pa.Table:
    """Combine tables read by group into one table in order. Clears `tables` to free memory."""
    rows = pa.concat_tables(tables)
    tables.clear()
    table = rows.take(np.argsort(np.argsort(groups, kind="stable"))).combine_chunks()
    return _with_retraction_times(table, retracted_at)


def _with_retraction_times(rows: pa.Table, retracted_at: Numbers | None) -> pa.Table:
    return rows if retracted_at is None else rows.append_column(GONE, pa.array(retracted_at))


def _group_bytes(part: Part, footer: pq.FileMetaData) -> list[int]:
    value = (footer.metadata or {}).get(GROUP_BYTES, b"")
    sizes = [int(size) for size in value.split(b",") if size]
    if len(sizes) != footer.num_row_groups:
        raise DamageError(f"part {part.path} lacks the sizes of its row groups. Restore it from a backup.")
    return sizes


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Task that compacts one bucket of the times [lower, upper). Rows retracted at or before time `since` are
    dropped."""

    objects_url: str
    shard: str
    epoch: int
    bucket: int
    lower: int
    upper: int
    since: int
    order: tuple[str, ...]
    """Sort columns of the rows, the first one of text or integers. Without any, rows are sorted by id."""
    parts: tuple[Part, ...]
    retractions: tuple[Part, ...]
    history: tuple[Part, ...]
    retracted_later: tuple[Part, ...] = ()
    """Retractions of later batches. Rows that they retract at or before time `since` are dropped."""
    apart: bool = False
    """Whether the task reads parts of all buckets once and splits them into parts of each bucket."""

    @property
    def work_bytes(self) -> int:
        """Approximate memory that its parts take."""
        objects = (*self.parts, *self.retractions, *self.history, *self.retracted_later)
        return sum(part.size_bytes for part in objects) * STORED_EXPANDS

    def mine(self, id_column: str) -> str:
        """Return the SQL condition for rows of the task's bucket. Other tasks read the other rows of the same parts."""
        objects = (*self.parts, *self.retractions, *self.history)
        everywhere = [] if is_all(self.bucket) else [part for part in objects if is_all(part.bucket)]
        if not everywhere:
            return "true"
        return in_buckets_sql(id_column, {self.bucket}, -everywhere[0].bucket)


@dataclass(slots=True)
class CompactReceipt:
    """Result of a task: the new parts of its bucket, and the numbers of bytes read and written."""

    parts: list[Part] = field(default_factory=list)
    retractions: list[Part] = field(default_factory=list)
    history: list[Part] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0


def compact_tasks(
    objects_url: str,
    shard: str,
    epoch: int,
    since: int,
    order: tuple[str, ...],
    batches: Sequence[Batch],
    retracted_later: tuple[Part, ...] = (),
) -> list[CompactTask]:
    """Return a task for each bucket of which the batches, adjacent and in order, have parts.

    If some parts are of all buckets and rows are few, one task rewrites them as such parts. If rows are many, one
    task splits them by bucket as long as it can hold them. Otherwise, the task of each bucket reads all of them.
    """

    def of(parts: Iterable[Part], bucket: int) -> tuple[Part, ...]:
        return tuple(part for part in parts if may_share(part.bucket, bucket))

    objects = [part for batch in batches for part in batch.objects()]
    buckets = sorted({part.bucket for part in objects})
    apart = bool(buckets) and is_all(buckets[0]) and not _are_few(objects)
    if buckets and is_all(buckets[0]):
        together = sum(part.size_bytes for part in objects) <= TAKEN_APART_MAX_BYTES
        buckets = buckets[:1] if together or not apart else list(range(-buckets[0]))
    return [
        CompactTask(
            objects_url=objects_url,
            shard=shard,
            epoch=epoch,
            bucket=bucket,
            lower=batches[0].lower,
            upper=batches[-1].upper,
            since=since,
            order=order,
            parts=of(chain.from_iterable(batch.parts for batch in batches), bucket),
            retractions=of(chain.from_iterable(batch.retractions for batch in batches), bucket),
            history=of(chain.from_iterable(batch.history for batch in batches), bucket),
            retracted_later=of(retracted_later, bucket),
            apart=apart and is_all(bucket),
        )
        for bucket in buckets
    ]


def run_compact_task(task: CompactTask) -> CompactReceipt:
    """Run one task.

    Raises:
        DamageError: A part differs from what was written.
        StorageError: Memory or disk are too small.
    """
    objects = open_objects(task.objects_url)
    try:
        with scratch_directory("compact") as folder:
            return _Compaction(task, objects, folder).run()
    except duckdb.Error as error:
        raise StorageError(
            f"bucket {task.bucket} of table {task.shard} was not compacted; nothing was changed: {error}"
        ) from error


def _are_few(objects: Sequence[Part]) -> bool:
    return (
        sum(part.rows for part in objects) <= COMPACTED_AT_HAND_ROWS
        and sum(part.size_bytes for part in objects) <= _COMPACTED_AT_HAND_MAX_BYTES
    )


def _open(temporary: Path) -> duckdb.DuckDBPyConnection:
    """Open a database that spills to this directory if memory is short, and deletes it on close."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": f"{COMPACTION_MEMORY_BYTES}B",
        "temp_directory": str(temporary),
    }
    return duckdb.connect(config=config)


@cache
def _shared() -> duckdb.DuckDBPyConnection:
    """Return the database of this process for small compactions. Their cursors do not see each other's tables."""
    return _open(Path(tempfile.gettempdir()) / f"tracelake-compact-{uuid.uuid4().hex}")


class _Compaction:
    def __init__(self, task: CompactTask, objects: ObjectStore, folder: Path) -> None:
        self._task = task
        self._objects = objects
        self._file = LocalFiles(objects, folder).file
        self._receipt = CompactReceipt()
        # Opening a database costs more than sorting a few rows.
        few = _are_few((*task.parts, *task.retractions, *task.history))
        self._db = _shared().cursor() if few else _open(folder / "duckdb")

    def run(self) -> CompactReceipt:
        task, receipt = self._task, self._receipt
        for part in (*task.parts, *task.retractions, *task.history, *task.retracted_later):
            check_part(self._file(part.path), part)
            receipt.read_bytes += part.size_bytes
        with self._db:
            self._split_retractions()
            lost = self._lost_rows()
            unchanged = {
                part.path: part for part in task.parts if part.path not in lost and self._may_stay(part)
            }
            rewritten = [part for part in task.parts if part.path not in unchanged]
            receipt.parts = [*unchanged.values(), *self._write(rewritten, self._live_sql(rewritten))]
            if task.retractions or task.history:
                sources = [*rewritten, *task.history]
                receipt.history = self._write(sources, self._history_sql(rewritten), is_history=True)
        receipt.parts.sort(key=lambda part: part.first_key)
        now = (*receipt.parts, *receipt.retractions, *receipt.history)
        receipt.written_bytes = sum(part.size_bytes for part in now if part.path not in unchanged)
        return receipt

    def _may_stay(self, part: Part) -> bool:
        """Whether a part that lost no row can be kept: it is large and has no rows of other tasks."""
        return not is_all(part.bucket) and _is_large(part)

    def _split_retractions(self) -> None:
        """Create table `gone` for rows inserted within the run. Carry the other retractions along as one part, or one
        per bucket."""
        task, border = self._task, first_row_id(self._task.lower)
        self._db.execute("create temp table gone (row_id bigint, time bigint)")
        if task.retracted_later:
            self._db.execute(
                f"insert into gone select row_id, time from {parquet(task.retracted_later, self._file)} where "
                f"row_id >= {border} and row_id < {first_row_id(task.upper)} and time <= {task.since}"
            )
        if not task.retractions:
            return
        source = (
            f"select row_id, time from {parquet(task.retractions, self._file)} where {task.mine('row_id')}"
        )
        self._db.execute(f"insert into gone {source} and row_id >= {border}")
        older = self._db.sql(f"{source} and row_id < {border} order by row_id").to_arrow_table()
        if len(older):
            rows = older.cast(RETRACTIONS)
            by_bucket = retractions_by_bucket(rows, -task.bucket) if task.apart else [(task.bucket, rows)]
            self._receipt.retractions = [
                write_part(self._objects, task.shard, task.epoch, bucket, few, None)
                for bucket, few in by_bucket
            ]

    def _lost_rows(self) -> set[str]:
        if not (self._task.retractions or self._task.retracted_later):
            return set()
        bounds = self._db.sql("select row_id from gone").to_arrow_table()["row_id"].to_numpy()
        return {
            part.path
            for part in self._task.parts
            if ((bounds >= part.first_row_id) & (bounds <= part.last_row_id)).any()
        }

    def _live_sql(self, parts: Sequence[Part]) -> str:
        return f"""
            select {self._order()} from {parquet(parts, self._file)}
            anti join (select row_id as {ROW_ID.name} from gone) using ({ROW_ID.name})
            where {self._task.mine(ROW_ID.name)}
        """

    def _history_sql(self, parts: Sequence[Part]) -> str:
        branches = []
        if parts:
            branches.append(f"""
                select {self._order()}, time as {GONE.name}
                from {parquet(parts, self._file)} as rows join gone on gone.row_id = rows.{ROW_ID.name}
                where time > {self._task.since}
            """)
        if self._task.history:
            branches.append(
                f"select {self._order()}, {GONE.name} from {parquet(self._task.history, self._file)} "
                f"where {GONE.name} > {self._task.since} and {self._task.mine(ROW_ID.name)}"
            )
        return " union all by name ".join(branches)

    def _order(self) -> str:
        return ", ".join(map(quoted, dict.fromkeys((*self._task.order, ROW_ID.name))))

    def _write(self, parts: Sequence[Part], query: str, *, is_history: bool = False) -> list[Part]:
        """Write the rows of a query on these parts into a few parts of bounded size; `is_history` marks history."""
        if not parts:
            return []
        task = self._task
        columns = [ROW_ID.name, *([GONE.name] if is_history else [])]
        ids_and_times = self._db.sql(
            f"select {', '.join(columns)} from ({query}) order by {self._order()}"
        ).to_arrow_table()
        if not len(ids_and_times):
            return []
        sources = MergeSources(parts, self._file, COMPACTED_PART_MAX_BYTES)
        key = _text_key(task.order, sources.schema)
        return [
            write_part(
                self._objects,
                task.shard,
                task.epoch,
                bucket,
                rows,
                key,
                looked_up=sources.looked_up,
                schema_version=sources.schema_version,
            )
            for bucket, (ids, *times) in self._by_bucket([ids_and_times[name].to_numpy() for name in columns])
            for rows in sources.gather(ids, times[0] if times else None, COMPACTED_PART_MAX_BYTES)
        ]

    def _by_bucket(self, columns: list[Numbers]) -> Iterator[tuple[int, list[Numbers]]]:
        """Yield (bucket, its columns in order) for each bucket that gets separate parts; `columns` begin with the
        ids."""
        if not self._task.apart:
            yield self._task.bucket, columns
            return
        of_row = buckets_of_ids(columns[0], -self._task.bucket)
        for bucket in np.unique(of_row):
            yield int(bucket), [column[of_row == bucket] for column in columns]


def _text_key(order: Sequence[str], schema: pa.Schema) -> str | None:
    """Return the column whose first and last value a part records: the first sort column, if it is text."""
    return order[0] if order and pa.types.is_string(schema.field(order[0]).type) else None


def _is_large(part: Part) -> bool:
    """Whether a part is so large that rewriting it would not give a much larger part."""
    return part.size_bytes * 8 >= COMPACTED_PART_MAX_BYTES


FOLDERS: Final = (PARTS, STAGED, "batches", "states")


@dataclass(frozen=True, slots=True)
class CollectedParts:
    """Number and size of the deleted objects, or in a dry run of the objects to delete."""

    objects: int = 0
    size_bytes: int = 0
    leased: int = 0
    """Replaced batches that stay because a reader's lease holds them."""


class Collector:
    """Garbage collector of one shard. Any number may work on the same shard at once."""

    def __init__(
        self,
        shard: Shard,
        key_value: KeyValueStore,
        objects: ObjectStore,
        machine: str | None = None,
        *,
        ignore_leases: bool = False,
    ) -> None:
        """Create a garbage collector. `machine` identifies the steady clock of `time.monotonic`, by default that of
        this machine.

        With `ignore_leases`, replaced objects are deleted even if a reader has a lease on them, because they contain
        erased rows. The reader gets an error, and opens a newer state.
        """
        self._ignore_leases = ignore_leases
        self._shard = shard
        self._key_value = key_value
        self._objects = objects
        self._machine = machine or this_machine()

    def retired(self, *, dry_run: bool = False) -> CollectedParts:
        """Delete the objects of batches that compaction replaced, if no lease protects them any more."""
        name, ended = self._shard.name, set[str]()
        if dry_run:
            ended = expired_leases(name, self._key_value, self._now)
        else:
            drop_expired_leases(name, self._key_value, self._now)
        with Lease(self._shard, self._key_value) as lease:  # so that live objects stay during the collection
            state = lease.state
            # Safety: the leases of others are read after the state, never before (see `leases`).
            current_leases = {} if self._ignore_leases else leases(name, self._key_value)
            unreferenced = collectable(
                state, [current_leases[key] for key in current_leases if key not in ended]
            )
            if not unreferenced:  # before reading any record, because a long lease may hold many batches
                return CollectedParts(leased=len(state.retired))
            remaining = [retired for retired in state.retired if retired not in unreferenced]
            needed = {part.path for part in (*self._live(state.batches), *self._passing(remaining))}
            doomed = {
                part.path: part.size_bytes for part in self._passing(unreferenced) if part.path not in needed
            }
            records = [ref.path for retired in unreferenced for ref in retired.batches]
            if not dry_run:
                delete_all(self._objects, doomed)
                delete_all(self._objects, records)  # last, because they lead to the parts
                self._shard.change(partial(drop_retired, deleted=unreferenced))
        return CollectedParts(len(doomed) + len(records), sum(doomed.values()), leased=len(remaining))

    def orphans(self, *, epoch_min_s: float = EPOCH_MIN_S, dry_run: bool = False) -> CollectedParts:
        """Delete objects that no state names and that were written two epochs ago or earlier. Begin an epoch if it is
        due.

        An orphan is deleted by the second or third collection after it was written, if these are `epoch_min_s` apart.
        """
        if not dry_run:
            self._shard.change(partial(next_epoch, now_s=time.time(), epoch_min_s=epoch_min_s))
        with Lease(self._shard, self._key_value) as own:
            state = own.state
            paths = {ref.path for ref in state.batches}
            paths |= {ref.path for retired in state.retired for ref in retired.batches}
            paths |= {part.path for part in (*self._live(state.batches), *self._passing(state.retired))}
            if state.rolled is not None:
                paths.add(state.rolled.path)
            orphans = [
                (path, size)
                for path, size, epoch in self._written()
                if is_orphan_epoch(state, epoch) and path not in paths
            ]
            if not dry_run:
                delete_all(self._objects, [path for path, _ in orphans])
        return CollectedParts(len(orphans), sum(size for _, size in orphans))

    def _now(self) -> Moment:
        return moment(self._shard.name, self._objects, self._machine)

    def _written(self) -> Iterator[tuple[str, int, int]]:
        """Yield (path, bytes, epoch) of each object of the shard, without staged ones that a writer may still use."""
        waiting_since = self._now().store_s - STAGED_ROWS_AGE_MAX_S
        for folder in FOLDERS:
            prefix = f"shards/{self._shard.name}/{folder}/"
            for info in list(self._objects.list(prefix)):
                if folder == STAGED and info.modified_s > waiting_since:
                    continue
                epoch = info.path.removeprefix(prefix).partition("/")[0]
                if epoch.isdecimal():
                    yield info.path, info.size_bytes, int(epoch)

    def _live(self, refs: Iterable[BatchRef]) -> Iterator[Part]:
        for ref in refs:
            yield from self._shard.batch(ref).objects()

    def _passing(self, retired: Iterable[Retired]) -> Iterator[Part]:
        """Yield the parts of retired batches. If the record of a batch does not exist, its parts are deleted
        already."""
        for entry in retired:
            for ref in entry.batches:
                if (batch := self._shard.batch_if_there(ref)) is not None:
                    yield from batch.objects()
