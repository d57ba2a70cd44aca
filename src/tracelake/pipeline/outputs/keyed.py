"""An output to another system, keyed by transaction: what is new in table `spans`, as OTLP, exactly once.

The system is a `Sink`: it says up to which transaction it has rows, and takes rows and marker in one step. Everything
else is here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq

from tracelake._errors import StorageError
from tracelake.journal.model import Aside
from tracelake.limits import OUTPUT_MESSAGE_BYTES, OUTPUT_WRITE_TRIES_MAX
from tracelake.otlp.encode import encode
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.outputs.keyed_protocol import NO_MARKER, is_to_be_written
from tracelake.pipeline.outputs.port import Publication, SealedTransaction
from tracelake.shards.cutting import cut
from tracelake.shards.leases import Lease
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part
from tracelake.shards.store import Shard
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore
from tracelake.tables.built_in import TABLE_SPANS


class Sink(Protocol):
    """Another system that takes rows. What it raises as StorageError is tried again; anything else ends the run."""

    def fence(self) -> int:
        """Return the last transaction of which it has rows, -1 where it has none.

        From now on no writer that came before us can write: else the answer would be worth nothing.
        """
        ...

    def write(self, transaction: int, messages: Iterator[bytes]) -> None:
        """Write messages, at least one, and the marker of the transaction: both or neither, whatever happens."""
        ...


class KeyedOutput:
    """One output; see `Output`. One thread uses it."""

    def __init__(
        self, name: str, since: int, sink: Sink, key_value: KeyValueStore, objects: ObjectStore
    ) -> None:
        """`since`: its first transaction."""
        self._name = name
        self._since = since
        self._sink = sink
        self._key_value = key_value
        self._objects = objects
        self._spans = Shard(TABLE_SPANS.name, key_value, objects)
        self._marker: int | None = None  # what the sink has, as long as nobody else can write

    def holds(self, transaction: int) -> bool:
        """Whether nothing is left to write of a transaction whose rows table `spans` has."""
        if transaction < self._since:
            return True
        if self._spans.state().upper <= transaction:
            return False
        # Nobody is asked here, for to ask is to end what a peer is writing; who does not know publishes, and finds out.
        marker = NO_MARKER if self._marker is None else self._marker
        return not is_to_be_written(transaction, self._since, self._rows(transaction), marker)

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Write what table `spans` has got by the transaction, unless it is there."""
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
        with Lease(self._spans, self._key_value):  # the parts stay until they are read
            rows = self._rows(t)
            if not rows:
                return
            marker = self._fenced()
            if not is_to_be_written(t, self._since, rows, marker):
                return
            assert marker < t, "transactions strictly increase"
            self._marker = None  # until it is written nobody knows: a try may fail, or be carried out unheard
            self._sink.write(t, self._messages(self._parts(t)))
            self._marker = t

    def _fenced(self) -> int:
        if self._marker is None:
            self._marker = self._sink.fence()
        return self._marker

    def _rows(self, t: int) -> int:
        return sum(part.rows for part in self._parts(t))

    def _parts(self, t: int) -> tuple[Part, ...]:
        batch = self._spans.batch_at(t)
        # What is committed may be compacted with others: then a peer has gone on, and every output has it.
        if batch is None or (batch.lower, batch.upper) != (t, t + 1):
            return ()
        return batch.parts

    def _messages(self, parts: tuple[Part, ...]) -> Iterator[bytes]:
        with tempfile.TemporaryDirectory(prefix="tracelake-output-") as folder:
            files = LocalFiles(self._objects, Path(folder))
            for part in parts:
                file = files.file(part.path)
                check_part(file, part)
                with pq.ParquetFile(file) as opened:
                    for group in range(opened.num_row_groups):
                        rows = (
                            opened.read_row_group(group, columns=SPANS.names).select(SPANS.names).cast(SPANS)
                        )
                        for few in cut(rows, OUTPUT_MESSAGE_BYTES):
                            yield encode(few).SerializeToString(deterministic=True)
