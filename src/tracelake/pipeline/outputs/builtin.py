"""The output of a built-in table: one append to its shard for each transaction.

The output of the full-text index: one manifest for each transaction, over the parts that tasks have staged.

While the index is built anew with another analyzer, a transaction may be staged with the old one, or the one before it
may have put the old index back. Then the rows that the new index lacks are indexed here, from the table.

The last output: one commit on `main`, which names what all others have of a transaction: readers see it then.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Final

from tracelake._errors import DamageError
from tracelake.indexing.build import IndexBuilder, IndexedRows
from tracelake.journal.model import QuarantineRecord, Step
from tracelake.pipeline.outputs.base import OvertakenError, Publication, SealedTransaction
from tracelake.pipeline.run_result import Counts
from tracelake.replicas.replica import BatchCounts
from tracelake.search.analyzers import analyzer_named
from tracelake.search.finalize import finalize, finalize_nothing, published
from tracelake.search.model import Manifest, manifest_path
from tracelake.search.protocol import first_missing
from tracelake.search.vectors import IndexSettings
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch
from tracelake.shards.protocol import UpdateFate, classify
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore, delete_all
from tracelake.tables.builtin import TABLE_SPANS, BuiltInTable
from tracelake.tables.view import INDEX, INDEX_ENTRY, analyzer_of, base_of, build_name, standing_manifest
from tracelake.tasks.runners import InProcess
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.repository import Repository


class TableOutput:
    """Appends to one table. The first of them `decides` whether a transaction was published or set aside."""

    def __init__(
        self,
        table: BuiltInTable,
        key_value: KeyValueStore,
        objects: ObjectStore,
        tally: BatchCounts,
        *,
        decides: bool,
    ) -> None:
        self.table = table
        self.shard = Shard(table.name, key_value, objects)
        self._objects = objects
        self._tally = tally
        self._decides = decides

    def upper(self) -> int:
        """Return the least transaction that it does not hold."""
        return self.shard.state().upper

    def holds(self, transaction: int) -> bool:
        """Whether a batch of the transaction was appended, be it an empty one."""
        return self.upper() > transaction

    def has_rows(self, transaction: int) -> bool:
        """Whether it has rows of a transaction that is not committed yet."""
        return self.shard.batch_at(transaction) is not None

    def begin(self, transaction: int) -> None:
        """Begin with a transaction, as if none before had changed the table: for one that is newer than the lake."""
        upper = self.upper()
        if upper < transaction:
            self.shard.compare_and_append(Batch(upper, transaction, uuid.uuid4().hex, (), (), {}))

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Append what tasks wrote. Raises OvertakenError where a peer has set the transaction aside."""
        t = sealed.transaction
        if self.table.name in sealed.changes:
            self._append(sealed)
        publication.entries[self.table.entry] = TableAt(self.table.name, t)

    def _append(self, sealed: SealedTransaction) -> None:
        t, change = sealed.transaction, sealed.changes[self.table.name]
        batch = Batch(
            t,
            t + 1,
            uuid.uuid4().hex,
            tuple(change.parts),
            tuple(change.retractions),
            change.counts,
            epoch=sealed.epochs[self.table.name],
        )
        upper = self.upper()
        verdict = classify(t, upper, t + 1)
        assert verdict is not UpdateFate.HOLD, (
            f"{self.shard.name} is at {upper}, behind transaction {t} of its peers"
        )
        if verdict is UpdateFate.PROCESS and self.shard.compare_and_append(batch) is None:
            self._tally.won += 1
            return
        self._tally.rows_dropped += sum(part.rows for part in change.parts)
        # A peer, or we before a crash, appended the same rows, or has set T aside: ours are named by nothing.
        delete_all(self._objects, [part.path for part in batch.objects()])
        if self._decides and not batch.is_empty and not self.has_rows(t):
            raise OvertakenError

    def pass_over(self, aside: QuarantineRecord, publication: Publication) -> None:
        """Append nothing. Raises OvertakenError where a peer had appended rows: then it is not set aside."""
        t = aside.transaction
        self.shard.compare_and_append(Batch(t, t + 1, uuid.uuid4().hex, (), (), {}))
        if self._decides and self.has_rows(t):  # who appends rows of it appends them here first
            raise OvertakenError
        publication.entries[self.table.entry] = TableAt(self.table.name, t)


class IndexOutput:
    """Publishes the index of a transaction, on top of the one that the branch names."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, first: IndexSettings
    ) -> None:
        """`first` is what an index has that follows none."""
        self._key_value = key_value
        self._repository = Repository(key_value, objects)
        self._objects = objects
        self._buckets = buckets
        self._first = first

    def holds(self, transaction: int) -> bool:
        """Whether the manifest of the transaction is there; an empty or torn one is not: it is built again."""
        return published(self._objects, manifest_path(INDEX, build_name(transaction))) is not None

    def settings(self) -> IndexSettings:
        """Return the settings of the index that stands now, for tasks that stage parts for the next one.

        Where they change before the parts are published, these are staged again, or their vectors do not count.
        """
        return self._settings(standing_manifest(self._repository, self._objects))

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Finalize what tasks have staged, or find it finalized."""
        t = sealed.transaction
        path = self._finalize(t, base_of(self._repository, self._objects, t))
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)

    def pass_over(self, aside: QuarantineRecord, publication: Publication) -> None:
        """Publish a manifest with the same documents."""
        t = aside.transaction
        base = base_of(self._repository, self._objects, t)
        if first_missing(t + 1, base) is None:
            settings = self._settings(base)
            fingerprint = analyzer_named(settings.text).fingerprint
            path, _ = finalize_nothing(
                self._objects, INDEX, build_name(t), t + 1, base, fingerprint, settings.vectors
            )
        else:
            self._stage(t, base)
            path = self._finalize(t, base)
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)

    def _settings(self, base: Manifest | None) -> IndexSettings:
        return (
            self._first if base is None else IndexSettings(text=analyzer_of(base).name, vectors=base.vectors)
        )

    def _finalize(self, t: int, base: Manifest | None) -> str:
        settings = self._settings(base)
        path, _ = finalize(
            self._objects,
            INDEX,
            build_name(t),
            t + 1,
            self._buckets,
            base,
            analyzer_named(settings.text).fingerprint,
            partial(self._stage, t, base),
            settings.vectors,
        )
        return path

    def _stage(self, t: int, base: Manifest | None) -> None:
        """Stage parts of all transactions that an index lacks, in this process: the tables hold them already."""
        shard = Shard(TABLE_SPANS.name, self._key_value, self._objects)
        builder = IndexBuilder(self._key_value, self._objects, self._buckets, InProcess())
        with Lease(shard, self._key_value) as lease:  # the rows stay until they are read
            first, settings = first_missing(t + 1, base), self._settings(base)
            wanted = IndexedRows(
                (t if first is None else first, t + 1),
                shard.snapshot(t, lease.state),
                analyzer_named(settings.text),
                settings.vectors,
                receipt_lower=first,
            )
            builder.stage(build_name(t), wanted)


SET_ASIDE: Final = "set_aside"
"""In the metadata of the commit of a transaction that was set aside: its inputs are in no table."""


def upper_of(repository: Repository) -> int:
    """Return the least transaction that has no commit."""
    head = repository.head()
    return 0 if head is None else repository.transaction_of(head) + 1


class CommitOutput:
    """Commits transactions, with the counts that tables `spans` and `traces` have of them."""

    def __init__(self, repository: Repository, spans: Shard, traces: Shard) -> None:
        self.repository = repository
        self._spans = spans
        self._traces = traces

    def upper(self) -> int:
        """Return the least transaction that has no commit."""
        return upper_of(self.repository)

    def holds(self, transaction: int) -> bool:
        """Whether the transaction has a commit."""
        return self.upper() > transaction

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Make the commit, or find it made."""
        step = sealed.step
        counts = publication.counts = self.counts(step)
        inputs = sum(taken.inputs for ranges in step.sources.values() for taken in ranges)
        publication.commit = self.repository.commit_transaction(
            step.transaction,
            publication.entries,
            message=f"transaction {step.transaction}: {counts.new} new spans from {inputs} inputs",
            committer="pipeline",
            created_at=sealed.seal.sealed_at,
            metadata=counts.to_metadata(),
        )

    def pass_over(self, aside: QuarantineRecord, publication: Publication) -> None:
        """Make a commit that says who set the transaction aside."""
        publication.commit = self.repository.commit_transaction(
            aside.transaction,
            publication.entries,
            message=f"transaction {aside.transaction}: set aside after {aside.tries} tries, by the {aside.by}",
            committer="pipeline",
            created_at=aside.set_aside_at,
            metadata={**Counts(0, 0, 0, 0).to_metadata(), SET_ASIDE: aside.by},
        )

    def was_set_aside(self, transaction: int) -> bool:
        """Whether a committed transaction was set aside."""
        head = self.repository.head()
        assert head is not None
        return SET_ASIDE in self.repository.commit(self.repository.commit_of(transaction, head)).metadata

    def counts(self, step: Step) -> Counts:
        """Return the counts of a transaction from its batches, so that every replica tells the same."""
        failure: DamageError | None = None
        try:  # before the look at the head: a batch of an uncommitted transaction is not compacted
            spans, traces = (shard.batch_at(step.transaction) for shard in (self._spans, self._traces))
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
