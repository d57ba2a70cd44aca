"""Publication of transaction T: write its parts, then publish to each output in order (tables, index, commit).

Every stage is idempotent for T, and any replica can finish what another began (PROTOCOLS §7). Readers stay on the
previous commit until the new one references everything.

`InputAcker` acknowledges committed inputs to their sources, before the next transaction opens and again after a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from tracelake import limits
from tracelake._errors import DamageError, FormatError, NotFoundError, StorageError, TrimmedError
from tracelake.erasure.store import ErasureStore
from tracelake.journal import model
from tracelake.journal.quarantine import (
    QuarantineStore,
    on_commit,
    on_stay,
    on_transaction,
    quarantined_inputs,
)
from tracelake.journal.store import Journal, repairable
from tracelake.otlp.prices import table_fingerprint
from tracelake.pipeline.decode_task import StagedSlice
from tracelake.pipeline.input_failures import ASIDE_REASON_MAX_CHARS
from tracelake.pipeline.merge_task import (
    ShapeReceipt,
    TableBefore,
    TableChange,
    TransactionMergeTask,
    run_shape_task,
)
from tracelake.pipeline.outputs.builtin import CommitOutput, IndexOutput, TableOutput
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.pipeline.outputs.external import Output, Publication, SealedTransaction
from tracelake.pipeline.run_result import Counts, now
from tracelake.pipeline.sources.registry import SourceRegistry, to_range
from tracelake.replicas.replica import BatchCounts
from tracelake.search.vectors import PLAIN, IndexSettings
from tracelake.shards.leases import Lease
from tracelake.shards.model import Part, ShardState
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS, TABLE_TRACES
from tracelake.tables.view import INDEX, build_name
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner, engine_of
from tracelake.versions.repository import Repository

SMALL_TRANSACTION_SPANS: Final = 20_000
"""Spans of a transaction that one merge task handles, so that it writes one index part."""
SHAPE_TASKS_MIN: Final = 4
"""Merge tasks of a transaction that is not small."""
SHAPE_TASK_SPANS: Final = 100_000
"""Spans of a large transaction per merge task."""


class Outputs:
    """Outputs of a pipeline, in order. An output receives transaction T only after all outputs before it."""

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        tally: BatchCounts | None = None,
        first: IndexSettings = PLAIN,
        added: AddedOutputs | None = None,
    ) -> None:
        """Open the outputs. `first` is the initial index settings; `added` are the outputs that users configured."""
        self._added = added
        self._key_value = key_value
        self._objects = objects
        self._buckets = buckets
        self.tally = tally or BatchCounts()
        self.repository = Repository(key_value, objects)
        deciding, *_ = BUILT_IN
        self.tables = {
            name: TableOutput(table, key_value, objects, self.tally, decides=name == deciding)
            for name, table in BUILT_IN.items()
        }
        self._first = self.tables[deciding]
        self.commit = CommitOutput(
            self.repository, *(self.tables[table.name].shard for table in (TABLE_SPANS, TABLE_TRACES))
        )
        self._index = IndexOutput(key_value, objects, buckets, first)
        self.erasures = ErasureStore(key_value, objects)
        # Outputs in between get T before readers see it. The commit is the last, so its upper is that of all.
        self._before_commit: Sequence[Output] = (*self.tables.values(), self._index)

    @property
    def _all(self) -> Sequence[Output]:
        return (*self._before_commit, self.commit)

    def _others(self) -> Sequence[Output]:
        return () if self._added is None else self._added.opened(self.upper)

    def upper(self) -> int:
        """Return the first transaction that some output lacks. The commit is the last output of each transaction."""
        return self.commit.upper()

    def require_committed(self, forgotten: int) -> None:
        """Raise DamageError if a transaction that the journal has trimmed has no commit."""
        if self.upper() <= forgotten:
            raise DamageError(
                f"the journal has dropped transaction {forgotten}, which is not committed. Restore the "
                "metadata from a backup."
            )

    def table_upper(self) -> int:
        """Return the greatest upper of the tables."""
        return max(table.upper() for table in self.tables.values())

    def is_started(self, transaction: int) -> bool:
        """Return whether an output before the commit has the transaction."""
        return any(output.holds(transaction) for output in self._before_commit)

    def only_commit_missing(self, transaction: int) -> bool:
        """Return whether all outputs before the commit have the transaction."""
        return all(output.holds(transaction) for output in (*self._before_commit, *self._others()))

    def publish(
        self,
        step: model.Step,
        seal: model.Seal,
        pieces: Sequence[StagedSlice] | None,
        runner: TaskRunner,
        progress: OnProgress,
    ) -> tuple[str, Counts]:
        """Publish a sealed transaction to the outputs that do not have it yet. Return the commit and the counts."""
        # Read before anything of T is published. A replica that publishes T + 1 reads it after the commit of
        # T.
        outputs = (*self._before_commit, *self._others(), self.commit)
        t, total = step.transaction, len(outputs)
        sealed = SealedTransaction(step, seal, {}, {})
        if pieces is not None:
            sealed = self._shape(step, seal, pieces, runner, progress)
        publication = Publication()
        for number, output in enumerate(outputs):
            progress(Progress("publishing", number, total, "steps", t))
            output.publish(sealed, publication)
        progress(Progress("publishing", total, total, "steps", t, publication.commit))
        return publication.commit, publication.counts

    def publish_nothing(self, record: model.QuarantineRecord) -> str:
        """Publish a quarantined transaction without rows: tables get an empty batch, the index stays as it is, and a
        commit records the quarantine. Return the commit.

        Raises OvertakenError if a peer has already appended the transaction's rows to table `spans`. The transaction
        must then be published with these rows.
        """
        self._begin(
            [table for table in self.tables.values() if table.upper() < record.transaction],
            record.transaction,
        )
        publication = Publication()
        for output in self._all:
            output.skip(record, publication)
        return publication.commit

    def has_rows(self, transaction: int) -> bool:
        """Return whether table `spans` has rows of an uncommitted transaction.

        If all spans of a transaction are repeats, it adds no rows, and this returns False whether or not it was
        quarantined. Only the commit then shows which of the two happened.
        """
        return self._first.has_rows(transaction)

    def rows_of(self, transaction: int) -> tuple[Part, ...]:
        """Return the parts of table `spans` with the rows of an uncommitted transaction."""
        batch = self._first.shard.batch_at(transaction)
        if batch is None or (batch.lower, batch.upper) != (transaction, transaction + 1):
            raise NotFoundError(f"table spans has no batch of transaction {transaction} alone.")
        return batch.parts

    def was_quarantined(self, transaction: int) -> bool:
        """Return whether a committed transaction was quarantined."""
        return self.commit.was_quarantined(transaction)

    def _begin(self, behind: Sequence[TableOutput], t: int) -> None:
        """Start these tables at transaction T if they are newer than the lake. A table that a commit references is not
        started: it has lost its data."""
        for table in behind:
            head = self.repository.head()
            if head is not None and not self.repository.find(head, [table.table.entry]):
                table.begin(t)

    def _shape(
        self,
        step: model.Step,
        seal: model.Seal,
        pieces: Sequence[StagedSlice],
        runner: TaskRunner,
        progress: OnProgress,
    ) -> SealedTransaction:
        """Run the tasks that write the parts to publish."""
        t = step.transaction
        with ExitStack() as leases:
            states = {
                name: leases.enter_context(Lease(table.shard, self._key_value)).state
                for name, table in self.tables.items()
            }
            behind = [name for name, state in states.items() if state.upper < t]
            self._begin([self.tables[name] for name in behind], t)
            states |= {name: self.tables[name].shard.state() for name in behind}
            erased = self.erasures.ids_by_erasure()
            erased_ids = tuple(frozenset[str]().union(*erased.values()))
            tasks = [replace(task, erased=erased_ids) for task in self._tasks(t, pieces, states)]
            receipts = runner.run(
                run_shape_task,
                tasks,
                lambda finished_tasks: progress(
                    Progress("writing", finished_tasks, len(tasks), "tasks", t, engine=engine_of(runner))
                ),
            )
        late = set[str]().union(*(receipt.late for receipt in receipts))
        # Safety: before any output gets the rows, so that no reader sees them.
        self.erasures.mask_late_spans({of for of, ids in erased.items() if not ids.isdisjoint(late)}, t)
        epochs = {name: state.epoch for name, state in states.items()}
        return SealedTransaction(step, seal, {name: _change_of(name, receipts) for name in states}, epochs)

    def _tasks(
        self, t: int, pieces: Sequence[StagedSlice], states: Mapping[str, ShardState]
    ) -> list[TransactionMergeTask]:
        live = {name: self.tables[name].shard.snapshot(t - 1, state) for name, state in states.items()}
        settings = self._index.settings()
        groups = shape_tasks(sum(piece.rows for piece in pieces), sum(piece.arrow_bytes for piece in pieces))
        bounds = [self._buckets * group // groups for group in range(groups + 1)]
        ranges = [(low, high) for low, high in pairwise(bounds) if low < high]
        return [
            TransactionMergeTask(
                objects_url=self._objects.url,
                transaction=t,
                index=INDEX,
                build=build_name(t),
                text=settings.text,
                buckets=self._buckets,
                low=low,
                high=high,
                pieces=of_range,
                tables={
                    name: TableBefore(live[name].for_buckets(set(range(low, high))), state.epoch)
                    for name, state in states.items()
                },
                vectors=settings.vectors,
            )
            for (low, high), of_range in zip(ranges, by_range(pieces, ranges), strict=True)
        ]


def by_range(pieces: Iterable[StagedSlice], ranges: Sequence[tuple[int, int]]) -> list[list[StagedSlice]]:
    """Return the slices of each range of buckets, in one pass. There may be as many slices as tasks times buckets."""
    range_of = {bucket: number for number, (low, high) in enumerate(ranges) for bucket in range(low, high)}
    of_ranges: list[list[StagedSlice]] = [[] for _ in ranges]
    for piece in pieces:
        of_ranges[range_of[piece.bucket]].append(piece)
    return of_ranges


def _change_of(table: str, receipts: Sequence[ShapeReceipt]) -> TableChange:
    """Merge the results of all tasks for one table."""
    change = TableChange()
    for receipt in receipts:
        change.add(receipt.of(table))
    return change


def shape_tasks(spans: int, arrow_bytes: int) -> int:
    """Return the number of merge tasks of a transaction, before limiting it to the buckets. A replay gets the same
    number."""
    if spans <= SMALL_TRANSACTION_SPANS and arrow_bytes <= limits.SHAPED_AT_ONCE_MAX_BYTES:
        return 1
    by_spans = -(-spans // SHAPE_TASK_SPANS)
    by_bytes = -(-arrow_bytes // limits.SHAPED_AT_ONCE_MAX_BYTES)
    return max(SHAPE_TASKS_MIN, by_spans, by_bytes)


TRANSFORM: Final = f"8-{table_fingerprint()}"
"""Version of the transformation from input to rows. Increase it with each change of decoding or merging that changes
a table."""


class InputAcker:
    """Acknowledges the inputs of one pipeline to their sources."""

    def __init__(
        self, journal: Journal, sources: SourceRegistry, suspects: QuarantineStore, outputs: Outputs
    ) -> None:
        self._journal = journal
        self._sources = sources
        self._suspects = suspects
        self._outputs = outputs

    def settle(self, t: int) -> list[model.QuarantinedInput]:
        """Acknowledge the inputs of a committed transaction to their sources, which may delete them. If the transaction
        was quarantined, acknowledge only inputs that the user discarded.

        Return the inputs that are kept: those of a quarantined transaction, and those that cannot be deleted.
        """
        try:
            step, record = self._journal.read(t).step, self._journal.quarantine_record(t)
        except TrimmedError:
            return []  # older than the journal's floor: acknowledged long ago
        except FormatError:
            raise
        except DamageError as error:
            raise DamageError(f"{error} {repairable(t)}") from error
        if step is None:
            self._journal.check_format()
            raise DamageError(f"the journal has no record of transaction {t}. {repairable(t)}")
        # The commit decides: a peer may have published the transaction completely before it was quarantined.
        if record is not None and self._outputs.was_quarantined(t):
            return self._keep(record, step)
        inputs = {source: list(model.inputs_of(ranges)) for source, ranges in step.sources.items()}
        retained = [suspect for source, acked in inputs.items() for suspect in self.ack(t, source, acked)]
        # Forget the quarantine records last. A process that quarantines an input concurrently checks
        # afterwards whether it was taken.
        retained_paths = {suspect.path for suspect in retained}
        acked = {each.path: each for of in inputs.values() for each in of if each.path not in retained_paths}
        self._suspects.forget(acked)
        return retained

    def ack(self, t: int, source: str, inputs: Sequence[model.RecordedInput]) -> list[model.QuarantinedInput]:
        """Acknowledge inputs to their source. If one cannot be deleted, record it as taken, so that it is not read
        again, and return it."""
        of = self._sources[source]
        try:
            of.ack(inputs)
        except StorageError:
            if not of.is_ours:
                raise
        else:
            return []
        return [
            quarantined for each in inputs if (quarantined := self._ack_alone(t, source, each)) is not None
        ]

    def _ack_alone(
        self, t: int, source: str, recorded_input: model.RecordedInput
    ) -> model.QuarantinedInput | None:
        try:
            self._sources[source].ack([recorded_input])
        except StorageError as error:
            suspect = model.QuarantinedInput(
                source=source,
                path=recorded_input.path,
                size_bytes=recorded_input.size_bytes,
                sha256=recorded_input.sha256,
                transaction=t,
                reason=f"it is fully ingested, but it cannot be deleted: {error}"[:ASIDE_REASON_MAX_CHARS],
                tries=1,
                at=now().isoformat(timespec="microseconds"),
                state="taken",
                damaged=recorded_input.damaged,
            )
            return self._suspects.change(suspect, partial(on_stay, suspect=suspect))
        return None

    def retry_acks(self) -> list[model.QuarantinedInput]:
        """Retry deleting inputs that were taken or discarded earlier. Return those that still cannot be deleted."""
        failed = []
        for suspect in self._suspects.all():
            try:
                self.discard(suspect)
                if suspect.state == "taken":
                    recorded_input = _range_of(suspect)
                    self._sources[suspect.source].ack([recorded_input])
                    self._suspects.change(suspect, partial(on_commit, committed=recorded_input))
            except StorageError:
                failed.append(suspect)
        return failed

    def is_committed(self, suspect: model.QuarantinedInput) -> bool:
        """Return whether a commit contains an input by now, for example one of a peer."""
        return self._sources[suspect.source].is_committed(suspect.path, suspect.size_bytes, suspect.sha256)

    def _keep(self, record: model.QuarantineRecord, step: model.Step) -> list[model.QuarantinedInput]:
        if record.by == "client":
            return []  # the input is fine: inbox input stays pending as before
        quarantined = []
        for suspect in quarantined_inputs(record, step):
            current = None
            # the input is kept, and each run that finds it reports the damaged record
            with contextlib.suppress(DamageError):
                current = self._suspects.change(suspect, partial(on_transaction, suspect=suspect))
            if current is not None:
                with contextlib.suppress(StorageError):  # each run tries again
                    self.discard(current)
                quarantined.append(current)
        return quarantined

    def discard(self, suspect: model.QuarantinedInput) -> None:
        """Delete a discarded input at its source. The quarantine record, which marks the input as discarded, stays."""
        if suspect.state == "discarded":
            self._sources[suspect.source].discard(suspect.path, unread=suspect.unread)


def _range_of(suspect: model.QuarantinedInput) -> model.ReadRange:
    """Return the range that a source needs to acknowledge an input."""
    return to_range(
        suspect.source,
        suspect.path,
        size_bytes=suspect.size_bytes,
        sha256=suspect.sha256,
        records=0,
        checksum="",
        spans=0,
        damaged=suspect.damaged,
    )
