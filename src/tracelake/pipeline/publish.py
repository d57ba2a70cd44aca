"""Publish transaction T: parts, then one append for each table, then the index, then one commit.

Every stage is idempotent for the same T, and any replica can finish what another began (PROTOCOLS §7): readers
stay on the last commit until the new one names everything.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tracelake import limits
from tracelake._errors import DamageError, NotFoundError
from tracelake.journal.model import Aside, Seal, Step
from tracelake.pipeline.decode import Piece
from tracelake.pipeline.merge import ShapeReceipt, ShapeTask, TableBefore, TableChange, run_shape_task
from tracelake.replicas.account import BatchCounts
from tracelake.search.finalize import finalize, finalize_nothing
from tracelake.search.model import manifest_path
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part, ShardState
from tracelake.shards.protocol import UpdateFate, classify
from tracelake.shards.store import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.built_in import BUILT_IN, TABLE_SPANS, TABLE_TRACES
from tracelake.tables.indexes import INDEX, INDEX_ENTRY, base_of, build_name
from tracelake.tasks.progress import OnProgress, Progress
from tracelake.tasks.runners import TaskRunner
from tracelake.versions.model import IndexAt, Reference, TableAt
from tracelake.versions.store import Repository

SET_ASIDE: Final = "set_aside"
"""In the metadata of the commit of a transaction that was set aside: its inputs are in no table."""


class OvertakenError(Exception):
    """A peer was first to append to the first table: nothing where we have rows, or rows where we have none."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a transaction did to the tables."""

    new: int
    replaced: int
    repeated: int
    traces: int

    def to_metadata(self) -> dict[str, str]:
        """Return the counts as a commit carries them."""
        return {
            "spans_new": str(self.new),
            "spans_replaced": str(self.replaced),
            "spans_repeated": str(self.repeated),
            "traces": str(self.traces),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Counts:
        """Return the counts that a commit carries."""
        names = ("spans_new", "spans_replaced", "spans_repeated", "traces")
        return cls(*(int(metadata[name]) for name in names))


class Outputs:
    """The tables, the index and the branch that a pipeline writes."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, tally: BatchCounts | None = None
    ) -> None:
        self._key_value = key_value
        self._objects = objects
        self.tally = tally or BatchCounts()
        self._buckets = buckets
        self.shards = {name: Shard(name, key_value, objects) for name in BUILT_IN}
        self.spans = self.shards[TABLE_SPANS.name]
        self.repository = Repository(key_value, objects)

    def upper(self) -> int:
        """Return the least transaction that has no commit: the commit is the last output of each."""
        head = self.repository.head()
        return 0 if head is None else self.repository.transaction_of(head) + 1

    def table_upper(self) -> int:
        """Return the greatest upper of the tables."""
        return max(shard.state().upper for shard in self.shards.values())

    def only_commit_missing(self, transaction: int) -> bool:
        """Whether all tables and the index have the transaction."""
        tables = all(shard.state().upper > transaction for shard in self.shards.values())
        return tables and self.is_indexed(transaction)

    def is_indexed(self, transaction: int) -> bool:
        """Whether the index of the transaction is published."""
        return self._objects.head(manifest_path(INDEX, build_name(transaction))) is not None

    def publish(
        self, step: Step, seal: Seal, pieces: Sequence[Piece] | None, runner: TaskRunner, progress: OnProgress
    ) -> tuple[str, Counts]:
        """Publish what is missing of a sealed transaction; return its commit and counts.

        `pieces` are the staged rows of the transaction, or None where only the commit is missing.
        """
        t = step.transaction
        if pieces is not None:
            with ExitStack() as leases:
                states = {
                    name: leases.enter_context(Lease(shard, self._key_value)).state
                    for name, shard in self.shards.items()
                }
                receipts = self._shape(t, pieces, states, runner, progress)
            progress(Progress("publishing", 0, 4, "steps", t))
            self._append_all(t, receipts, states)
            progress(Progress("publishing", 2, 4, "steps", t))
        base = base_of(self.repository, self._objects, t)
        path, _ = finalize(self._objects, INDEX, build_name(t), t + 1, self._buckets, base)
        progress(Progress("publishing", 3, 4, "steps", t))
        counts = self._counts(step)
        commit = self._commit(step, seal, path, counts)
        progress(Progress("publishing", 4, 4, "steps", t))
        return commit, counts

    def publish_nothing(self, aside: Aside) -> str:
        """Let tables and index advance by nothing over a transaction that is set aside; return its commit.

        Raises OvertakenError where a peer had appended rows of it before: then it is not set aside.
        """
        t = aside.transaction
        nothing = Batch(t, t + 1, uuid.uuid4().hex, (), (), {})
        for shard in self.shards.values():
            shard.compare_and_append(nothing)
            if shard is self.spans and self.has_rows(t):  # who appends rows of it appends them here first
                raise OvertakenError
        path, _ = finalize_nothing(
            self._objects, INDEX, build_name(t), t + 1, base_of(self.repository, self._objects, t)
        )
        return self.repository.commit_transaction(
            t,
            self._entries(t, path),
            message=f"transaction {t}: set aside after {aside.tries} tries, by the {aside.by}",
            committer="pipeline",
            created_at=aside.set_aside_at,
            metadata={**Counts(0, 0, 0, 0).to_metadata(), SET_ASIDE: aside.by},
        )

    def has_rows(self, transaction: int) -> bool:
        """Whether table `spans` has rows of a transaction that is not committed yet.

        A transaction of repeats has none, and setting it aside changes as little: there its commit says which
        it was.
        """
        return self.spans.batch_at(transaction) is not None

    def rows_of(self, transaction: int) -> tuple[Part, ...]:
        """Return the parts of table `spans` with the rows of a transaction that is not committed yet."""
        batch = self.spans.batch_at(transaction)
        if batch is None or (batch.lower, batch.upper) != (transaction, transaction + 1):
            raise NotFoundError(f"table spans has no batch of transaction {transaction} alone.")
        return batch.parts

    def was_set_aside(self, transaction: int) -> bool:
        """Whether a committed transaction was set aside."""
        head = self.repository.head()
        assert head is not None
        return SET_ASIDE in self.repository.commit(self.repository.commit_of(transaction, head)).metadata

    def _shape(
        self,
        t: int,
        pieces: Sequence[Piece],
        states: Mapping[str, ShardState],
        runner: TaskRunner,
        progress: OnProgress,
    ) -> list[ShapeReceipt]:
        tasks = self._tasks(t, pieces, states)
        return runner.run(
            run_shape_task, tasks, lambda done: progress(Progress("writing", done, len(tasks), "tasks", t))
        )

    def _tasks(self, t: int, pieces: Sequence[Piece], states: Mapping[str, ShardState]) -> list[ShapeTask]:
        live = {name: self.shards[name].snapshot(t - 1, state) for name, state in states.items()}
        groups = shape_tasks(sum(piece.rows for piece in pieces), sum(piece.arrow_bytes for piece in pieces))
        bounds = [self._buckets * group // groups for group in range(groups + 1)]
        return [
            ShapeTask(
                objects_url=self._objects.url,
                transaction=t,
                index=INDEX,
                build=build_name(t),
                buckets=self._buckets,
                low=low,
                high=high,
                pieces=[piece for piece in pieces if low <= piece.bucket < high],
                tables={
                    name: TableBefore(live[name].for_buckets(set(range(low, high))), state.epoch)
                    for name, state in states.items()
                },
            )
            for low, high in pairwise(bounds)
            if low < high
        ]

    def _append_all(self, t: int, receipts: Sequence[ShapeReceipt], states: Mapping[str, ShardState]) -> None:
        for name, shard in self.shards.items():
            change = TableChange()
            for receipt in receipts:
                change.add(receipt.of(name))
            self._append(shard, t, change, states[name].epoch)

    def _append(self, shard: Shard, t: int, change: TableChange, epoch: int) -> None:
        batch = Batch(
            t,
            t + 1,
            uuid.uuid4().hex,
            tuple(change.parts),
            tuple(change.retractions),
            change.counts,
            epoch=epoch,
        )
        upper = shard.state().upper
        verdict = classify(t, upper, t + 1)
        assert verdict is not UpdateFate.HOLD, (
            f"{shard.name} is at {upper}, behind transaction {t} of its peers"
        )
        if verdict is UpdateFate.PROCESS and shard.compare_and_append(batch) is None:
            self.tally.won += 1
            return
        self.tally.rows_dropped += sum(part.rows for part in change.parts)
        # A peer, or we before a crash, appended the same rows, or has set T aside: ours are named by nothing.
        for part in batch.objects():
            self._objects.delete(part.path)
        if shard is self.spans and not batch.is_empty and not self.has_rows(t):
            raise OvertakenError

    def _counts(self, step: Step) -> Counts:
        """Return the counts of a transaction from its batches, so that every replica tells the same."""
        failure: DamageError | None = None
        try:  # before the look at the head: a batch of an uncommitted transaction is not compacted
            spans, traces = (
                self.shards[table.name].batch_at(step.transaction) for table in (TABLE_SPANS, TABLE_TRACES)
            )
        except DamageError as error:
            failure = error
        head = self.repository.head()
        if head is not None and self.repository.transaction_of(head) >= step.transaction:
            # A peer has committed it, and compaction may have made the batch a part of a larger one.
            commit = self.repository.commit(self.repository.commit_of(step.transaction, head))
            return Counts.from_metadata(commit.metadata)
        if failure is not None:
            raise failure
        if spans is None:
            read = sum(taken.spans for ranges in step.sources.values() for taken in ranges)
            return Counts(0, 0, read, 0)
        counts = spans.counts
        return Counts(
            counts["new"], counts["replaced"], counts["repeated"], traces.counts["rows"] if traces else 0
        )

    def _commit(self, step: Step, seal: Seal, manifest: str, counts: Counts) -> str:
        t = step.transaction
        inputs = sum(len(ranges) for ranges in step.sources.values())
        return self.repository.commit_transaction(
            t,
            self._entries(t, manifest),
            message=f"transaction {t}: {counts.new} new spans from {inputs} inputs",
            committer="pipeline",
            created_at=seal.sealed_at,
            metadata=counts.to_metadata(),
        )

    @staticmethod
    def _entries(t: int, manifest: str) -> dict[str, Reference]:
        tables: dict[str, Reference] = {table.entry: TableAt(table.name, t) for table in BUILT_IN.values()}
        return {**tables, INDEX_ENTRY: IndexAt(manifest, t + 1)}


def shape_tasks(spans: int, arrow_bytes: int) -> int:
    """Return how many tasks shape a transaction, if there are buckets for them: a replay cuts alike."""
    if spans <= limits.SMALL_TRANSACTION_SPANS and arrow_bytes <= limits.SHAPED_AT_ONCE_MAX_BYTES:
        return 1
    return max(limits.SHAPE_TASKS_MIN, -(-spans // limits.SHAPE_TASK_SPANS))


TRANSFORM: Final = "1"
"""Version of the shape of rows. Change it with any change of decoding or merging that changes a table."""
