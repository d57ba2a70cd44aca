"""Table maintenance: compaction when it is due, and garbage collection of replaced parts.

Maintenance is safe next to writers, readers and other maintainers, and may be killed at any time. A compaction ends
with one conditional write, so the loser of a race has only wasted its work. Compaction stops at the committed upper:
batches that no commit names yet stay as their writer made them.

The module also contains the consistency checks of tables for `tracelake verify`: queries over parts that were already
read.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from functools import partial
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, TableNotFoundError, TracelakeError
from tracelake.batching import Windows
from tracelake.limits import MAINTENANCE_TRIES
from tracelake.results import CompactReport, Finding, GcReport
from tracelake.scratch import scratch_directory
from tracelake.shards.compaction import Collector, CompactReceipt, compact_tasks, run_compact_task
from tracelake.shards.leases import Lease
from tracelake.shards.lookup import has_live_rows
from tracelake.shards.model import Batch, BatchRef, Part, ShardState
from tracelake.shards.parts import Numbers, write_part
from tracelake.shards.protocol import COMPACTION_FAN_OUT, due, forget, of_one_window, settle_append
from tracelake.shards.rows import RETRACTIONS, ids_by_batch, quoted, retracted, sorted_ids
from tracelake.shards.shard import Shard, Snapshot
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS, TABLE_TRACES, TRACES, aggregate_sql, entry_of
from tracelake.tables.scan import check_parts, connection
from tracelake.tables.spec import read_spec
from tracelake.tables.view import CommitView, named_by
from tracelake.tasks.backoff import RetrySchedule
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner, run_reporting, silent
from tracelake.versions.model import TableAt
from tracelake.versions.repository import Repository

_COMPACTION_TRIES_MAX: Final = 10
"""Consecutive races lost to other compactions."""

logger = logging.getLogger("tracelake.maintenance")


class Maintainer:
    """Compacts tables and deletes replaced parts. A call names the table's shard and the columns to sort by; without
    columns, rows are sorted by row id."""

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        runner: TaskRunner,
        committed: Callable[[str], int] | None = None,
        tries: int = MAINTENANCE_TRIES,
        window_s: int | None = None,
    ) -> None:
        """Create a maintainer.

        Args:
            committed: returns the committed upper of a table; by default that of branch `main`
            tries: number of failed calls after which a failing batch is skipped; 0 skips it at once, for a caller
                that maintains only once
            window_s: length of the windows whose batches are not compacted together; None for no windows. User tables
                have none, because their writers replace rows of any age.
        """
        self._window_s = window_s
        self._key_value = key_value
        self._objects = objects
        self._runner = runner
        self._committed = committed or partial(committed_upper, Repository(key_value, objects))
        self._again: defaultdict[str, RetrySchedule] = defaultdict(
            partial(RetrySchedule, COMPACTION_FAN_OUT, tries)
        )
        """Retry schedules of tables with unfinished compactions after a failure, by table name."""

    def tries_again(self) -> bool:
        """Return whether the compaction of some table failed and its pause is over."""
        return any(again.is_time() for again in self._again.values())

    def maintain(
        self, shard: Shard, order: tuple[str, ...], progress: OnProgress = silent
    ) -> list[CompactReport]:
        """Compact the due batches of committed transactions, and collect the replaced parts.

        A failure is logged and retried by a later call, after a growing pause or some transactions; only time depends
        on this. Damaged data blocks only its own compaction, not that of later batches. Other failures, such as a
        full disk, are not the fault of the batch and end the call. If they repeat, later batches are compacted first.
        """
        reports: list[CompactReport] = []
        again, upper = self._again[shard.name], 0
        try:
            state = shard.state()
            upper = state.upper
            windows = self._windows(shard)
            behind = _Behind(upper, windows)
            if due(state.batches, upper, windows=windows):  # rarely the case, and otherwise not worth a lease
                if upper < again.not_before and not again.is_time():
                    return reports
                while (report := self._compact_or_pass_by(shard, order, again, behind, progress)) is not None:
                    reports.append(report)
            if reports:
                Collector(shard, self._key_value, self._objects).retired()
        except TracelakeError as error:
            again.ended(upper)
            _tell(shard, error)
        else:
            if behind.has_passed:
                again.skipped(upper)
            else:
                again.succeeded()
        return reports

    def _windows(self, shard: Shard) -> Windows:
        return Windows(self._window_s if shard.name in BUILT_IN else None, time.time())

    def _compact_or_pass_by(
        self,
        shard: Shard,
        order: tuple[str, ...],
        again: RetrySchedule,
        behind: _Behind,
        progress: OnProgress,
    ) -> CompactReport | None:
        """Compact the next due batches, skipping those that cannot be compacted. Return None if nothing is due."""
        while True:
            try:
                return self._compact(shard, order, behind.due, progress)
            except TracelakeError as error:
                if not again.passes_by(error) or not behind.pass_by(shard, str(error)):
                    raise
                _tell(shard, error)

    def compact_all(
        self, shard: Shard, order: tuple[str, ...], since: int | None = None, progress: OnProgress = silent
    ) -> CompactReport:
        """Compact the batches of each window of ingest time into one batch, even if they are not due.

        Args:
            order: Columns by which the rows of the written parts are sorted.
            since: The earliest transaction at which the table can still be read afterwards. Rows that were retracted
                at or before it are dropped. With None, all can be read and no row is dropped.

        Raises:
            ContentionError: Other maintainers won too many races in a row.
        """
        windows, forgets, lost = self._windows(shard), since is not None, 0
        reports = [self.forget(shard, order, since)] if since is not None else []
        choice = _NextWindow(shard, windows, forgets=forgets)
        while lost < _COMPACTION_TRIES_MAX:
            report = self._compact(shard, order, choice, progress)
            if report is None:
                return _total(shard, reports)
            if report.batches:
                reports.append(report)
                choice.go_on()
                lost = 0
            else:
                lost += 1
        raise ContentionError(
            f"table {shard.name}: other compactions committed first {_COMPACTION_TRIES_MAX} times; try again."
        )

    def forget(self, shard: Shard, order: tuple[str, ...], since: int) -> CompactReport:
        """Forget times before `since`, which can then no longer be read. Drop rows that were retracted at or before it,
        and their history.

        If all rows of a batch were retracted by then, its parts are dropped after a read of only the row ids. If at
        least half of them were, the batch is rewritten. So a dropped row costs at most one written row, and work does
        not grow with the table.
        """
        shard.change(partial(forget, since=since))
        with Lease(shard, self._key_value) as lease, scratch_directory("forget") as folder:
            state = lease.state
            refs = settle_append(state.batches, self._committed(shard.name))
            before = [shard.batch(ref) for ref in refs]
            dead = RetractedRows(LocalFiles(self._objects, folder), self._objects, before, state.since)
            receipts: list[CompactReceipt] = []
            after: list[Batch] = []
            for batch, ids in zip(before, ids_by_batch(dead.ids, before), strict=True):
                is_settled = batch.upper <= state.since + 1
                rewritten = replace(batch, history=()) if is_settled else batch
                if dead.drop(ids, batch) and batch.parts:
                    rewritten, new = self._without_dead(shard.name, order, state, rewritten, dead)
                    receipts += new
                after.append(rewritten)
            after = [dead.without_retractions(shard.name, state.epoch, batch) for batch in after]
            rewrites = {
                ref.id: replace(new, id=uuid.uuid4().hex, epoch=state.epoch)
                for ref, old, new in zip(refs, before, after, strict=True)
                if new != old
            }
            parts_before, parts_after = _paths(before), _paths(after)
            written = parts_after - parts_before
            if rewrites and not shard.rewrite(rewrites, state.epoch, written):
                rewrites, parts_after = {}, parts_before
        return CompactReport(
            table=shard.name,
            batches=len(rewrites),
            parts_before=len(parts_before),
            parts_after=len(parts_after),
            read_bytes=sum(receipt.read_bytes for receipt in receipts),
            written_bytes=sum(receipt.written_bytes for receipt in receipts),
            since=state.since,
        )

    def _without_dead(
        self, table: str, order: tuple[str, ...], state: ShardState, batch: Batch, dead: RetractedRows
    ) -> tuple[Batch, list[CompactReceipt]]:
        """Return a batch without its dead rows, and the receipts of the tasks that rewrote it, if it has others."""
        if dead.has_all(batch):
            return replace(batch, parts=()), []
        tasks = compact_tasks(
            self._objects.url, table, state.epoch, state.since, order, [batch], dead.retractions
        )
        receipts = run_reporting(self._runner, run_compact_task, tasks, lambda _: None)
        return _with_receipts(batch, receipts), receipts

    def _compact(
        self,
        shard: Shard,
        order: tuple[str, ...],
        choose: Callable[[Sequence[BatchRef]], Sequence[BatchRef]],
        progress: OnProgress = silent,
    ) -> CompactReport | None:
        with Lease(shard, self._key_value) as lease:
            run = choose(settle_append(lease.state.batches, self._committed(shard.name)))
            if not run:
                return None
            batches = [shard.batch(ref) for ref in run]
            epoch, since = lease.state.epoch, lease.state.since
            tasks = compact_tasks(self._objects.url, shard.name, epoch, since, order, batches)
            receipts = run_reporting(
                self._runner,
                run_compact_task,
                tasks,
                lambda finished_tasks: progress(
                    Progress("compacting", finished_tasks, len(tasks), "buckets")
                ),
            )
            merged = _merged(run, receipts, epoch, self._windows(shard))
            before = {part.path for batch in batches for part in batch.objects()}
            written = {part.path for part in merged.objects()} - before
            won = shard.replace(run, merged, written)
        return CompactReport(
            table=shard.name,
            batches=len(run) if won else 0,
            parts_before=sum(len(batch.objects()) for batch in batches),
            parts_after=len(merged.objects()),
            read_bytes=sum(receipt.read_bytes for receipt in receipts),
            written_bytes=sum(receipt.written_bytes for receipt in receipts),
            since=since,
        )


class _Behind:
    """Selects due batches, and skips those that cannot be compacted."""

    def __init__(self, until: int, windows: Windows) -> None:
        """Ignore batches that reach beyond `until`."""
        self._lower, self._until, self._windows = 0, until, windows
        self._tried: Sequence[BatchRef] = ()
        self.has_passed = False

    def due(self, batches: Sequence[BatchRef]) -> Sequence[BatchRef]:
        """Return the due batches, the oldest first."""
        remaining = [batch for batch in batches if batch.lower >= self._lower]
        self._tried = due(remaining, self._until, windows=self._windows)
        return self._tried

    def pass_by(self, shard: Shard, message: str) -> bool:
        """Skip the batch whose parts an error message names, or all due batches if it names none. Return False if
        nothing was due."""
        if not self._tried:
            return False
        mentioned = [ref for ref in self._tried if _is_mentioned(shard, ref, message)]
        self._lower, self._tried = (mentioned or self._tried)[-1].upper, ()
        self.has_passed = True
        return True


def _tell(shard: Shard, error: TracelakeError) -> None:
    logger.warning("table %s was not compacted: %s. The compaction will be retried.", shard.name, error)


def _is_mentioned(shard: Shard, ref: BatchRef, message: str) -> bool:
    """Return whether an error message names one of a batch's objects, or the batch's record, which is then
    unreadable."""
    with suppress(DamageError):
        return ref.path in message or any(part.path in message for part in shard.batch(ref).objects())
    return False


def committed_upper(repository: Repository, table: str) -> int:
    """Return the transaction up to which the head of `main` contains a table. After a revert, it is smaller than the
    table's upper."""
    head = repository.head()
    path = entry_of(table)
    reference = repository.find(head, [path]).get(path) if head is not None else None
    return reference.as_of + 1 if isinstance(reference, TableAt) else 0


def collect(
    shard: Shard, key_value: KeyValueStore, objects: ObjectStore, epoch_min_s: float, *, dry_run: bool
) -> GcReport:
    """Delete unreachable objects: replaced parts and orphans (see `Lake.gc`)."""
    collector = Collector(shard, key_value, objects)
    replaced = collector.retired(dry_run=dry_run)
    orphans = collector.orphans(epoch_min_s=epoch_min_s, dry_run=dry_run)
    freed = replaced.size_bytes + orphans.size_bytes
    return GcReport(shard.name, replaced.objects, orphans.objects, freed, replaced.leased)


class RetractedRows:
    """Rows of batches that later batches retracted by a time, before which nothing is readable."""

    def __init__(self, files: LocalFiles, objects: ObjectStore, batches: Sequence[Batch], since: int) -> None:
        self._files, self._objects = files, objects
        self.retractions = tuple(part for batch in batches for part in batch.retractions)
        check_parts(files, self.retractions)
        self._retracted = Snapshot(since, (), self.retractions)
        self.ids = sorted_ids(retracted(self._retracted, files.file).values())
        self._dropped: list[Numbers] = []

    def drop(self, ids: Numbers, batch: Batch) -> bool:
        """Note that these rows of a batch are dropped if they are half of its rows; return whether they are."""
        is_worth_it = len(ids) > 0 and 2 * len(ids) >= sum(part.rows for part in batch.parts)
        if is_worth_it:
            self._dropped.append(ids)
        return is_worth_it

    def has_all(self, batch: Batch) -> bool:
        """Return whether all rows of a batch are dead. Only their ids are read."""
        # Safety: the numbers of rows and retractions do not suffice, because an interrupted erasure may leave
        # retractions without rows.
        return not has_live_rows(self._objects, changed(self._retracted, parts=batch.parts))

    def without_retractions(self, table: str, epoch: int, batch: Batch) -> Batch:
        """Return a batch without the retractions of dropped rows."""
        dropped = sorted_ids(self._dropped)
        parts = [self.without_dropped(table, epoch, part, dropped) for part in batch.retractions]
        return replace(batch, retractions=tuple(part for part in parts if part is not None))

    def without_dropped(self, table: str, epoch: int, part: Part, dropped: Numbers) -> Part | None:
        """Return a part of retractions without these rows; None if no retraction remains."""
        rows = pq.read_table(self._files.file(part.path))
        remaining = rows.filter(~np.isin(rows[RETRACTIONS.names[0]].to_numpy(), dropped))
        if len(remaining) == len(rows):
            return part
        return (
            write_part(self._objects, table, epoch, part.bucket, remaining, None) if len(remaining) else None
        )


def _paths(batches: Iterable[Batch]) -> set[str]:
    return {part.path for batch in batches for part in batch.objects()}


class _NextWindow:
    """Chooses all batches of one window after the other. It skips a window that has a single batch, unless that one has
    history that can be dropped."""

    def __init__(self, shard: Shard, windows: Windows, *, forgets: bool) -> None:
        self._shard, self._windows, self._forgets = shard, windows, forgets
        self._lower = self._upper = 0

    def __call__(self, batches: Sequence[BatchRef]) -> Sequence[BatchRef]:
        """Return the batches of the next window to compact; empty if there is none."""
        while run := of_one_window(batches, self._lower, self._windows):
            self._upper = run[-1].upper
            if len(run) > 1 or (self._forgets and self._shard.batch(run[0]).history):
                return run
            self.go_on()
        return ()

    def go_on(self) -> None:
        """Continue after the chosen window."""
        self._lower = self._upper


def _total(shard: Shard, reports: Sequence[CompactReport]) -> CompactReport:
    """Return the report of the compactions of all windows."""
    state = shard.state()
    parts = sum(len(shard.batch(ref).objects()) for ref in state.batches)
    fewer = sum(report.parts_before - report.parts_after for report in reports)
    return CompactReport(
        table=shard.name,
        batches=sum(report.batches for report in reports),
        parts_before=parts + fewer,
        parts_after=parts,
        read_bytes=sum(report.read_bytes for report in reports),
        written_bytes=sum(report.written_bytes for report in reports),
        since=state.since,
    )


def _merged(
    run: Sequence[BatchRef], receipts: Sequence[CompactReceipt], epoch: int, windows: Windows
) -> Batch:
    batch = Batch(
        lower=run[0].lower,
        upper=run[-1].upper,
        id=uuid.uuid4().hex,
        parts=(),
        retractions=(),
        counts={},
        epoch=epoch,
        ingested_s=windows.time_of([ref.ingested_s for ref in run]),
    )
    return _with_receipts(batch, receipts)


def _with_receipts(batch: Batch, receipts: Sequence[CompactReceipt]) -> Batch:
    return replace(
        batch,
        parts=tuple(part for receipt in receipts for part in receipt.parts),
        retractions=tuple(part for receipt in receipts for part in receipt.retractions),
        history=tuple(part for receipt in receipts for part in receipt.history),
    )


def user_tables(repository: Repository, heads: Iterable[str]) -> dict[str, int]:
    """Return the user tables in commits reachable from these heads, each with its latest time."""
    times: dict[str, int] = {}
    for head in filter(None, heads):
        with contextlib.suppress(DamageError):  # the check of the history reports it
            for reference in named_by(repository, head).values():
                if isinstance(reference, TableAt) and reference.shard not in BUILT_IN:
                    times[reference.shard] = max(times.get(reference.shard, -1), reference.as_of)
    return times


def check_built_in(view: CommitView) -> Iterator[Finding]:
    """Check that keys are unique in each table, and that table `traces` equals the aggregate of table `spans`."""
    for table in BUILT_IN.values():
        rows, key = view.table(table.name).sql(), ", ".join(table.key_sql)
        yield from _differences(
            f"{table.name}: {table.bucketed_by.removesuffix('_id')}",
            f"select {table.bucketed_by}, 'has the key ' || row({key}) || ' ' || count(*) || ' times' from ({rows}) "
            f"group by {table.bucketed_by}, {key} having count(*) > 1 limit 10",
        )
    spans, traces = (view.table(table.name).sql() for table in (TABLE_SPANS, TABLE_TRACES))
    content = ", ".join(name for name in TRACES.names if name != "transaction")
    aggregate = aggregate_sql(f"({spans})", 0, with_plain_sums=True)
    # Rows written by earlier versions have the sums over all spans, with repeated usage counted twice.
    earlier = ", ".join(
        f"case when s.{name} is not distinct from m.plain_{name} then m.{name} else s.{name} end as {name}"
        for name in ("input_tokens", "output_tokens")
    )
    yield from _differences(
        "traces: trace",
        f"""with summed as materialized (from ({aggregate})), made as (select {content} from summed), stored as (
                select {content} from (
                    select s.* replace ({earlier}) from ({traces}) s left join summed m using (trace_id)
                )
            )
            select trace_id, 'differs from what its spans make' from
            ((from made except all from stored) union all (from stored except all from made)) limit 10""",
    )


def check_keys(view: CommitView, name: str) -> Iterator[Finding]:
    """Check that the keys of a user table are unique."""
    table = view.table(name)
    if key := ", ".join(map(quoted, table.scan.layout.bucketed_by)):
        yield from _differences(
            f"{name}:",
            f"select row({key})::varchar, 'is the key of ' || count(*) || ' rows' "
            f"from ({table.sql()}) group by {key} having count(*) > 1 limit 10",
        )


def check_spec(objects: ObjectStore, name: str) -> Iterator[Finding]:
    """Check that the specification of a user table can be read."""
    try:
        _ = read_spec(objects, name).schema
    except TracelakeError as error:
        kind = "missing" if isinstance(error, TableNotFoundError) else "damaged"
        yield Finding(kind, "table", name, str(error))


def _differences(table: str, query: str) -> Iterator[Finding]:
    with connection() as db:
        differences = db.sql(query).to_arrow_table()
    for row, detail in zip(*(column.to_pylist() for column in differences.columns), strict=True):
        yield Finding("mismatch", "table", f"{table} {row}", detail)
