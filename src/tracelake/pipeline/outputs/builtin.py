"""Built-in outputs: tables (one append per transaction), the full-text index (one manifest), and the commit.

During a rebuild with another analyzer, a transaction may be staged with the old analyzer, or its predecessor may have
restored the old index. In both cases, `IndexOutput` indexes the missing rows from the table. The commit on `main` is
the last output: it references the results of all other outputs, and makes the transaction visible to readers.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Final

from tracelake._errors import DamageError
from tracelake.indexing.build import IndexBuilder, IndexedRows
from tracelake.journal.model import QuarantineRecord, Step
from tracelake.pipeline.outputs.external import OvertakenError, Publication, SealedTransaction
from tracelake.pipeline.run_result import Counts, now
from tracelake.replicas.replica import BatchCounts
from tracelake.search.analyzers import get_analyzer
from tracelake.search.finalize import Redactions, finalize, finalize_nothing, published
from tracelake.search.model import Manifest, manifest_path
from tracelake.search.protocol import first_missing
from tracelake.search.vectors import IndexSettings
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch
from tracelake.shards.protocol import UpdateFate, classify
from tracelake.shards.shard import Shard, batch_records
from tracelake.storage import KeyValueStore, ObjectStore, delete_all
from tracelake.tables.builtin import TABLE_SPANS, BuiltInTable
from tracelake.tables.view import INDEX, INDEX_ENTRY, analyzer_of, base_of, build_name, standing_manifest
from tracelake.tasks.runners import InProcess
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.repository import Repository


class TableOutput:
    """Output that appends to one table. The first table, which `decides`, determines whether a transaction was
    published or quarantined."""

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
        self.shard = Shard(table.name, key_value, objects, batch_records(objects))
        self._objects = objects
        self._tally = tally
        self._decides = decides

    def upper(self) -> int:
        """Return the first transaction that it does not have."""
        return self.shard.state().upper

    def holds(self, transaction: int) -> bool:
        """Return whether a batch of the transaction was appended, even an empty one."""
        return self.upper() > transaction

    def has_rows(self, transaction: int) -> bool:
        """Return whether it has rows of an uncommitted transaction."""
        return self.shard.batch_at(transaction) is not None

    def begin(self, transaction: int) -> None:
        """If the table is newer than the lake, append an empty batch for all transactions before this one."""
        upper = self.upper()
        if upper < transaction:
            self.shard.compare_and_append(Batch(upper, transaction, uuid.uuid4().hex, (), (), {}))

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Append the parts that tasks wrote, and add the table's entry to the commit. Raises OvertakenError if a peer
        has quarantined the transaction."""
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
            ingested_s=int(now().timestamp()),
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
        # A peer, or this process before a crash, appended the same rows or quarantined T. Nothing references
        # our parts.
        delete_all(self._objects, [part.path for part in batch.objects()])
        if self._decides and not batch.is_empty and not self.has_rows(t):
            raise OvertakenError

    def skip(self, record: QuarantineRecord, publication: Publication) -> None:
        """Append an empty batch. Raises OvertakenError if a peer has appended rows of the transaction, which is then
        not quarantined."""
        t = record.transaction
        self.shard.compare_and_append(Batch(t, t + 1, uuid.uuid4().hex, (), (), {}))
        if self._decides and self.has_rows(t):  # every peer appends rows here first
            raise OvertakenError
        publication.entries[self.table.entry] = TableAt(self.table.name, t)


class IndexOutput:
    """Output that publishes the index of a transaction, based on the index of the branch."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, first: IndexSettings
    ) -> None:
        """Create the output. `first` is the settings of an index without a predecessor."""
        self._key_value = key_value
        self._repository = Repository(key_value, objects)
        self._objects = objects
        self._buckets = buckets
        self._first = first

    def holds(self, transaction: int) -> bool:
        """Return whether the transaction's manifest exists. An empty or torn one does not count and is rebuilt."""
        return published(self._objects, manifest_path(INDEX, build_name(transaction))) is not None

    def settings(self) -> IndexSettings:
        """Return the settings of the current index, for tasks that stage parts of the next one.

        If they change before the parts are published, the parts are staged again, or their vectors do not count.
        """
        return self._settings(standing_manifest(self._repository, self._objects))

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Make the staged index parts part of the index, and add its entry to the commit. Changes nothing if this was
        done before."""
        t = sealed.transaction
        self._add_entry(t, self._finalize(t, base_of(self._repository, self._objects, t)), publication)

    def skip(self, record: QuarantineRecord, publication: Publication) -> None:
        """Publish an index with the same documents as before the transaction."""
        t = record.transaction
        base = base_of(self._repository, self._objects, t)
        if first_missing(t + 1, base) is None:
            settings = self._settings(base)
            fingerprint = get_analyzer(settings.text).fingerprint
            path, _ = finalize_nothing(
                self._objects, INDEX, build_name(t), t + 1, base, fingerprint, settings.vectors
            )
        else:
            self._stage(t, base)
            path = self._finalize(t, base)
        self._add_entry(t, path, publication)

    def _add_entry(self, t: int, path: str, publication: Publication) -> None:
        # Safety: after the manifest is written and before its commit, whichever process wrote it.
        Redactions(self._key_value, self._objects, INDEX).apply([path])
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
            get_analyzer(settings.text).fingerprint,
            partial(self._stage, t, base),
            settings.vectors,
        )
        return path

    def _stage(self, t: int, base: Manifest | None) -> None:
        """Build index parts, in this process, for all committed transactions that the index `base` does not cover
        yet."""
        shard = Shard(TABLE_SPANS.name, self._key_value, self._objects)
        builder = IndexBuilder(self._key_value, self._objects, self._buckets, InProcess())
        with Lease(shard, self._key_value) as lease:  # keeps the rows until they are read
            first, settings = first_missing(t + 1, base), self._settings(base)
            wanted = IndexedRows(
                (t if first is None else first, t + 1),
                shard.snapshot(t, lease.state),
                get_analyzer(settings.text),
                settings.vectors,
                receipt_lower=first,
            )
            builder.stage(build_name(t), wanted)


SET_ASIDE: Final = "set_aside"
"""Metadata key in the commit of a quarantined transaction, whose inputs are in no table."""


def upper_of(repository: Repository) -> int:
    """Return the first transaction that has no commit."""
    head = repository.head()
    return 0 if head is None else repository.transaction_of(head) + 1


class CommitOutput:
    """Output that commits transactions, with the counts from tables `spans` and `traces`."""

    def __init__(self, repository: Repository, spans: Shard, traces: Shard) -> None:
        self.repository = repository
        self._spans = spans
        self._traces = traces

    def upper(self) -> int:
        """Return the first transaction that has no commit."""
        return upper_of(self.repository)

    def holds(self, transaction: int) -> bool:
        """Return whether the transaction has a commit."""
        return self.upper() > transaction

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Create the commit, unless it exists."""
        step = sealed.step
        counts = publication.counts = self.counts(step)
        inputs = sum(recorded_range.inputs for ranges in step.sources.values() for recorded_range in ranges)
        publication.commit = self.repository.commit_transaction(
            step.transaction,
            publication.entries,
            message=f"transaction {step.transaction}: {_summary(counts, inputs)}",
            committer="pipeline",
            created_at=sealed.seal.sealed_at,
            metadata=counts.to_metadata(),
        )

    def skip(self, record: QuarantineRecord, publication: Publication) -> None:
        """Create a commit that records that the transaction was quarantined, and why."""
        publication.commit = self.repository.commit_transaction(
            record.transaction,
            publication.entries,
            message=f"transaction {record.transaction}: set aside after {record.tries} tries, by the {record.by}",
            committer="pipeline",
            created_at=record.set_aside_at,
            metadata={**Counts(0, 0, 0, 0).to_metadata(), SET_ASIDE: record.by},
        )

    def was_quarantined(self, transaction: int) -> bool:
        """Return whether a committed transaction was quarantined."""
        head = self.repository.head()
        assert head is not None
        return SET_ASIDE in self.repository.commit(self.repository.commit_of(transaction, head)).metadata

    def counts(self, step: Step) -> Counts:
        """Return the counts of a transaction from its batches, so that all replicas agree."""
        failure: DamageError | None = None
        try:  # read before the head: batches of an uncommitted transaction are not compacted
            spans, traces = (shard.batch_at(step.transaction) for shard in (self._spans, self._traces))
        except DamageError as error:
            failure = error
        head = self.repository.head()
        if head is not None and self.repository.transaction_of(head) >= step.transaction:
            # A peer has committed it, and compaction may have merged the batch into a larger one.
            commit = self.repository.commit(self.repository.commit_of(step.transaction, head))
            return Counts.from_metadata(commit.metadata)
        if failure is not None:
            raise failure
        if spans is None:
            read = sum(recorded_range.spans for ranges in step.sources.values() for recorded_range in ranges)
            return Counts(0, 0, read, 0)
        counts = spans.counts
        return Counts(
            counts["new"],
            counts["replaced"],
            counts["repeated"],
            traces.counts["rows"] if traces else 0,
            counts.get("deleted", 0),
            counts.get("repriced", 0),
        )


def _summary(counts: Counts, inputs: int) -> str:
    """Return the counts for the commit message."""
    added = f"{counts.new} new spans from {inputs} inputs"
    changed = [
        f"{number} spans {change}"
        for number, change in ((counts.deleted, "deleted"), (counts.repriced, "priced again"))
        if number
    ]
    return ", ".join(changed + ([added] if counts.new or not changed else []))
