"""The output of a built-in table: one append to its shard for each transaction."""

from __future__ import annotations

import uuid

from tracelake.journal.model import Aside
from tracelake.pipeline.outputs.port import OvertakenError, Publication, SealedTransaction
from tracelake.replicas.account import BatchCounts
from tracelake.shards.model import Batch
from tracelake.shards.protocol import UpdateFate, classify
from tracelake.shards.store import Shard
from tracelake.storage import KeyValueStore, ObjectStore, delete_all
from tracelake.tables.built_in import BuiltInTable
from tracelake.versions.model import TableAt


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

    def pass_over(self, aside: Aside, publication: Publication) -> None:
        """Append nothing. Raises OvertakenError where a peer had appended rows: then it is not set aside."""
        t = aside.transaction
        self.shard.compare_and_append(Batch(t, t + 1, uuid.uuid4().hex, (), (), {}))
        if self._decides and self.has_rows(t):  # who appends rows of it appends them here first
            raise OvertakenError
        publication.entries[self.table.entry] = TableAt(self.table.name, t)
