"""An output to another system, keyed by transaction: what is new in a table, exactly once.

The system is a `Sink`: it says up to which transaction it has rows, and takes rows and marker in one step. Everything
else is here.
"""

from __future__ import annotations

from contextlib import closing
from typing import Protocol, runtime_checkable

from tracelake._errors import StorageError
from tracelake.journal.model import Aside
from tracelake.journal.receipts import OutputReceipt, OutputReceipts
from tracelake.limits import OUTPUT_WRITE_TRIES_MAX
from tracelake.pipeline.outputs.contents import Content
from tracelake.pipeline.outputs.keyed_protocol import NO_MARKER, is_to_be_written
from tracelake.pipeline.outputs.left_out import LeftOutOf, LeftOuts
from tracelake.pipeline.outputs.messages import Messages
from tracelake.pipeline.outputs.port import Publication, SealedTransaction
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch
from tracelake.storage import KeyValueStore


class Sink(Protocol):
    """Another system that takes rows. What it raises as StorageError is tried again; anything else ends the run."""

    def fence(self) -> int:
        """Return the last transaction of which it has rows, -1 where it has none.

        From now on no writer that came before us can write: else the answer would be worth nothing.
        """
        ...

    def write(self, transaction: int, messages: Messages) -> None:
        """Write messages, at least one, and the marker of the transaction: both or neither, whatever happens."""
        ...


@runtime_checkable
class BoundedSink(Sink, Protocol):
    """A system that takes no message above some size: what alone is larger is left out, and its marker has the names.

    Then a transaction may have no message at all.
    """

    def fits(self, message: bytes) -> bool:
        """Whether it takes a message; asked after `fence`."""
        ...

    def left_out(self) -> LeftOutOf | None:
        """Return what was left out of the last transaction that it has; asked after `fence` or `write`."""
        ...


@runtime_checkable
class TellingSink(Sink, Protocol):
    """A system that says where it has what was written, as a log does by offsets."""

    def receipt(self) -> OutputReceipt | None:
        """Return where the messages of the last transaction are that it has; asked after `fence` or `write`."""
        ...


class KeyedOutput:
    """One output; see `Output`. One thread uses it."""

    def __init__(
        self,
        name: str,
        output_id: str,
        since: int,
        sink: Sink,
        content: Content,
        key_value: KeyValueStore,
    ) -> None:
        """`since`: its first transaction."""
        self._name = name
        self._id = output_id
        self._since = since
        self._sink = sink
        self._key_value = key_value
        self._content = content
        self._left_outs = LeftOuts(key_value)
        self._receipts = OutputReceipts(key_value)
        self._marker: int | None = None  # what the sink has, as long as nobody else can write

    def holds(self, transaction: int) -> bool:
        """Whether nothing is left to write of a transaction whose rows the table has."""
        if transaction < self._since:
            return True
        if self._content.shard.state().upper <= transaction:
            return False
        # Nobody is asked here, for to ask is to end what a peer is writing; who does not know publishes, and finds out.
        marker = NO_MARKER if self._marker is None else self._marker
        return not is_to_be_written(transaction, self._since, self._rows(transaction), marker)

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Write what the table has got by the transaction, unless it is there."""
        del publication
        t = sealed.transaction
        if t < self._since:
            return
        for tries_left in reversed(range(OUTPUT_WRITE_TRIES_MAX)):
            try:
                self._write(t)
            except StorageError as error:
                if not tries_left:
                    raise StorageError(f"output {self._name}, transaction {t}: {error}") from error
            else:
                return

    def pass_over(self, aside: Aside, publication: Publication) -> None:
        """Write nothing."""

    def _write(self, t: int) -> None:
        with Lease(self._content.shard, self._key_value):  # the parts stay until they are read
            batch, rows = self._batch(t), self._rows(t)
            if batch is None or not rows:
                return
            marker = self._fenced()
            if not is_to_be_written(t, self._since, rows, marker):
                self._note(t)  # who wrote it may have died before
                return
            assert marker < t, "transactions strictly increase"
            self._marker = None  # until it is written nobody knows: a try may fail, or be carried out unheard
            fits = self._sink.fits if isinstance(self._sink, BoundedSink) else _any_fits
            with closing(
                Messages(self._content.tables(batch), self._content.encode, self._content.name, fits)
            ) as messages:
                self._sink.write(t, messages)
            self._note(t)
            self._marker = t

    def _note(self, t: int) -> None:
        """Copy what a marker says, before its transaction is committed: what was left out, and where the rest is."""
        left_out = self._sink.left_out() if isinstance(self._sink, BoundedSink) else None
        if left_out is not None and left_out.transaction == t:
            self._left_outs.note(self._id, self._name, left_out)
        receipt = self._sink.receipt() if isinstance(self._sink, TellingSink) else None
        if receipt is not None and receipt.transaction == t:
            self._receipts.note(self._id, receipt)

    def _fenced(self) -> int:
        if self._marker is None:
            self._marker = self._sink.fence()
        return self._marker

    def _rows(self, t: int) -> int:
        batch = self._batch(t)
        return 0 if batch is None else self._content.rows(batch)

    def _batch(self, t: int) -> Batch | None:
        batch = self._content.shard.batch_at(t)
        # What is committed may be compacted with others: then a peer has gone on, and every output has it.
        return batch if batch is not None and (batch.lower, batch.upper) == (t, t + 1) else None


def _any_fits(_message: bytes) -> bool:
    return True
