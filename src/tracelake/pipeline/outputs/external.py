"""Exactly-once output of table changes to another system, keyed by transaction.

The external system is a `Sink`. A sink returns the last transaction that it has, and writes rows and marker in one
step. All other logic is here. The content of an output is the new spans as OTLP, or the changes of a table with their
signs. Messages are split until the system accepts each.

A single row that exceeds the message limit is left out and recorded. The system stores the names of such rows with the
marker, in one step with the other rows, so they are correct whichever replica wrote. Before the transaction is
committed, the names are copied once to a record of the lake.

`Output` is the interface of all outputs, including the built-in ones. `pipeline/publish.py` lists them in order.

With any number of replicas and crashes, an output receives transaction T once, and only after T-1. Publishing T again,
by any replica, changes nothing. After a crash between two outputs, the next run publishes T to all of them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import DamageError, StorageError
from tracelake.formats import decode
from tracelake.formats import encode as encode_record
from tracelake.journal.model import QuarantineRecord, Seal, Step
from tracelake.journal.store import OutputReceipt, OutputReceipts
from tracelake.limits import OUTPUT_LEFT_OUT_NAMED_MAX
from tracelake.otlp.encode import encode
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.merge_task import TableChange
from tracelake.pipeline.protocol import NO_MARKER, is_to_be_written
from tracelake.pipeline.run_result import Counts
from tracelake.scratch import scratch_directory
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch
from tracelake.shards.parts import check_part, cut
from tracelake.shards.rows import read_group
from tracelake.shards.shard import EMPTY, Shard
from tracelake.storage import Entry, KeyValueStore, LocalFiles, ObjectStore
from tracelake.storage.ports import change_record, whole_of
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS, BuiltInTable
from tracelake.tables.changes import ChangeLog, Retractions
from tracelake.tables.scan import CHANGE, Scan
from tracelake.versions.model import Reference


class OvertakenError(Exception):
    """A peer decided a transaction before us: it skipped the transaction in the first table, and we have rows of it, or
    it appended rows, and we wanted to skip."""


@dataclass(frozen=True, slots=True)
class SealedTransaction:
    """A transaction with fixed input, and the parts that tasks wrote for it."""

    step: Step
    seal: Seal
    changes: Mapping[str, TableChange]
    """By table. Empty if only the commit is missing."""
    epochs: Mapping[str, int]
    """Epoch of each table before the first upload."""

    @property
    def transaction(self) -> int:
        """Number of the transaction."""
        return self.step.transaction


@dataclass(slots=True)
class Publication:
    """A transaction on its way through the outputs. It collects the entries for the commit, the last output."""

    entries: dict[str, Reference] = field(default_factory=dict)
    commit: str = ""
    """Id of the commit, once it exists."""
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0))
    """Counts that the commit carries."""


class Output(Protocol):
    """Output that receives each transaction once. An error in one output ends the run; the next run publishes the
    transaction to all outputs again."""

    def holds(self, transaction: int) -> bool:
        """Return whether the output has a transaction already."""
        ...

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Write a transaction to the output, and add the output's part of the commit to `publication`. If the output
        has the transaction already, write nothing."""
        ...

    def skip(self, record: QuarantineRecord, publication: Publication) -> None:
        """Move the output past a quarantined transaction without its rows, and add the output's part of the commit to
        `publication`."""
        ...


_OUTPUT_MESSAGE_BYTES: Final = 512 * 1024
"""In-memory size of the rows in one output message."""
_OUTPUT_WRITE_TRIES_MAX: Final = 3
"""Attempts of one run to write a transaction to an output."""


class Content(Protocol):
    """The data that an output sends: the rows of a transaction, and their encoding as messages."""

    shard: Shard
    """Table that the rows are read from."""

    def rows(self, batch: Batch) -> int:
        """Return the number of rows of a transaction."""
        ...

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """Yield the rows."""
        ...

    def encode(self, rows: pa.Table) -> bytes:
        """Return the message with these rows."""
        ...

    def name(self, row: pa.Table) -> str:
        """Return a description of the row in a table of one row."""
        ...


class NewSpans:
    """New spans, as OTLP `TracesData` in protobuf."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self.shard = Shard(TABLE_SPANS.name, key_value, objects)
        self._objects = objects

    def rows(self, batch: Batch) -> int:
        """Return 0 for a correction of costs alone, because messages have no costs. See `Content`."""
        rows = sum(part.rows for part in batch.parts)
        return 0 if rows == batch.counts.get("repriced", 0) else rows

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """See `Content`."""
        with scratch_directory("output") as folder:
            files = LocalFiles(self._objects, folder)
            for part in batch.parts:
                file = files.file(part.path)
                check_part(file, part)
                with pq.ParquetFile(file) as opened:
                    for group in range(opened.num_row_groups):
                        yield read_group(opened, group, SPANS)

    def encode(self, rows: pa.Table) -> bytes:
        """See `Content`."""
        return encode(rows).SerializeToString(deterministic=True)

    def name(self, row: pa.Table) -> str:
        """See `Content`."""
        return f"span {row['span_id'][0]} of trace {row['trace_id'][0]}"


class TableChanges:
    """Inserted and retracted rows of a built-in table, as lines of JSON."""

    def __init__(self, table: str, key_value: KeyValueStore, objects: ObjectStore, buckets: int) -> None:
        self._table: BuiltInTable = BUILT_IN[table]
        self.shard = Shard(table, key_value, objects)
        self._url = objects.url
        self._buckets = buckets

    def rows(self, batch: Batch) -> int:
        """See `Content`."""
        return sum(part.rows for part in (*batch.parts, *batch.retractions))

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """Yield the rows, retractions first, so that a consumer never has two rows of one key. See `Content`."""
        with scratch_directory("output") as folder:
            log = ChangeLog(self._table.name, _no_view, self.shard)
            like = Scan(self._url, str(folder), self._table.layout(self._buckets), EMPTY)
            scans = log.scans_like(like, batch.lower - 1, batch.upper - 1, Retractions.MARK)
            for scan in reversed(scans):
                for rows in scan.batches():
                    yield pa.Table.from_batches([rows])

    def encode(self, rows: pa.Table) -> bytes:
        """See `Content`."""
        lines = (json.dumps(row, ensure_ascii=False, default=_as_text) for row in _plain(rows))
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")

    def name(self, row: pa.Table) -> str:
        """See `Content`."""
        key = ", ".join(f"{column} {row[column][0]}" for column in self._table.key)
        return f"{'new' if row[CHANGE.name][0].as_py() > 0 else 'old'} row {key} of table {self._table.name}"


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    try:
        return rows.to_pylist(maps_as_pydicts="strict")
    except (KeyError, ValueError, pa.ArrowException):
        return rows.to_pylist()  # map keys that no JSON object can have: as a list of pairs


def _as_text(value: object) -> str:
    assert isinstance(value, bytes), f"a column of {type(value).__name__}"
    return base64.b64encode(value).decode()


def _no_view() -> Any:
    raise AssertionError("what is published now is in no commit")


logger = logging.getLogger("tracelake.pipeline")

FORMAT_VERSION: Final = 1


class OversizedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that an output left out because it exceeds the message limit."""

    row: str
    """Description of the row, by its key."""
    size_bytes: int
    """Size of its message."""


class OversizedInTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of one transaction that an output left out because they exceed the message limit."""

    transaction: int
    total: int
    max_bytes: int
    """Message limit of the system at that time."""
    first: tuple[OversizedRow, ...]


class OversizedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows that an output has left out of all transactions so far."""

    output: str
    total: int
    newest: tuple[OversizedInTransaction, ...]
    """The last transactions with rows left out, in order. The total number of row names is bounded."""
    format_version: int = FORMAT_VERSION


def merge_oversized(standing: OversizedRecord, more: OversizedInTransaction) -> OversizedRecord:
    """Return the record with one more transaction. Idempotent and pure."""
    if standing.newest and more.transaction <= standing.newest[-1].transaction:
        return standing
    newest = [*standing.newest, more]
    while len(newest) > 1 and sum(max(1, len(of.first)) for of in newest) > OUTPUT_LEFT_OUT_NAMED_MAX:
        del newest[0]
    return OversizedRecord(standing.output, standing.total + more.total, tuple(newest))


class OversizedRowStore:
    """Records of left-out rows of the outputs of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str = "main") -> None:
        self._store = store
        self._partition = f"left-out/{pipeline}"

    def all(self) -> dict[str, OversizedRecord]:
        """Return the records by output id, without damaged ones. `verify` reports those."""
        records = {}
        for entry in whole_of(self._store.scan, self._partition):
            with contextlib.suppress(DamageError):
                records[entry.key] = self._decode(entry)
        return records

    def entries(self) -> list[Entry]:
        """Return the stored entries."""
        return self._store.scan(self._partition)

    def note(self, output_id: str, name: str, more: OversizedInTransaction) -> None:
        """Record the rows left out of a transaction. Idempotent. A damaged record does not block the transaction."""
        try:
            change_record(
                self._store,
                self._partition,
                output_id,
                self._decode,
                encode_record,
                lambda there: merge_oversized(there or OversizedRecord(name, 0, ()), more),
            )
        except DamageError as error:
            logger.error("%s The rows that output %s omitted are listed only in its markers.", error, name)

    def forget(self, output_id: str) -> None:
        """Delete the record of an output that is removed."""
        with contextlib.suppress(DamageError):  # it is never read again
            entry = self._store.get(self._partition, output_id)
            if entry is not None:
                self._store.delete_if(self._partition, output_id, entry.version)

    def _decode(self, entry: Entry) -> OversizedRecord:
        return decode(OversizedRecord, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)


class Messages:
    """Iterator over the messages of one transaction. When it is exhausted, its list of left-out rows is complete."""

    def __init__(
        self,
        tables: Iterable[pa.Table],
        encode: Callable[[pa.Table], bytes],
        name: Callable[[pa.Table], str],
        fits: Callable[[bytes], bool],
    ) -> None:
        """Create the iterator. `encode` makes a message of rows, `fits` returns whether the sink accepts a message, and
        `name` describes the row in a table of one row."""
        self._encode = encode
        self._name = name
        self._fits = fits
        self._messages = self._encode_all(tables)
        self.left_out: list[OversizedRow] = []
        self.left_out_total = 0

    def __iter__(self) -> Iterator[bytes]:
        """Return itself."""
        return self

    def close(self) -> None:
        """Release the source of the rows, also after a sink failed."""
        self._messages.close()

    def __next__(self) -> bytes:
        """Return the next message."""
        return next(self._messages)

    def _encode_all(self, tables: Iterable[pa.Table]) -> Generator[bytes, None, None]:
        for table in tables:
            for few in cut(table, _OUTPUT_MESSAGE_BYTES):
                yield from self._fitting(few)

    def _fitting(self, rows: pa.Table) -> Iterator[bytes]:
        message = self._encode(rows)
        if self._fits(message):
            yield message
        elif len(rows) > 1:
            half = len(rows) // 2
            yield from self._fitting(rows.slice(0, half))
            yield from self._fitting(rows.slice(half))
        else:
            self.left_out_total += 1
            if len(self.left_out) < OUTPUT_LEFT_OUT_NAMED_MAX:
                self.left_out.append(OversizedRow(self._name(rows), len(message)))


class Sink(Protocol):
    """External system that accepts rows. A StorageError is retried; any other error ends the run."""

    def fence(self) -> int:
        """Fence all earlier writers. Return the last transaction that the system has, -1 for none.

        Without fencing, an earlier writer could still write, and the returned transaction would be out of date.
        """
        ...

    def write(self, transaction: int, messages: Messages) -> None:
        """Write at least one message and the transaction's marker atomically."""
        ...


@runtime_checkable
class BoundedSink(Sink, Protocol):
    """Sink with a message size limit. Larger rows are left out, and the sink's marker lists them."""

    def fits(self, message: bytes) -> bool:
        """Return whether it accepts a message. Called after `fence`."""
        ...

    def left_out(self) -> OversizedInTransaction | None:
        """Return the rows left out of the last transaction that the sink has. Called after `fence` or `write`."""
        ...


@runtime_checkable
class TellingSink(Sink, Protocol):
    """Sink that reports the position of written messages, such as the offsets of a log."""

    def receipt(self) -> OutputReceipt | None:
        """Return the position of the messages of the sink's last transaction. Called after `fence` or `write`."""
        ...


class KeyedOutput:
    """Output that writes each transaction to one sink. See `Output`. One thread may use it."""

    def __init__(
        self, name: str, output_id: str, since: int, sink: Sink, content: Content, key_value: KeyValueStore
    ) -> None:
        """Create an output. `since` is its first transaction."""
        self._name = name
        self._id = output_id
        self._since = since
        self._sink = sink
        self._key_value = key_value
        self._content = content
        self._left_outs = OversizedRowStore(key_value)
        self._receipts = OutputReceipts(key_value)
        self._marker: int | None = None  # the sink's last transaction, while no other writer exists

    def holds(self, transaction: int) -> bool:
        """Return whether nothing of a transaction remains to be written, given that the table has its rows."""
        if transaction < self._since:
            return True
        if self._content.shard.state().upper <= transaction:
            return False
        # The sink is not asked, because `fence` would abort a peer's write. If its marker is unknown,
        # `publish` finds out.
        marker = NO_MARKER if self._marker is None else self._marker
        return not is_to_be_written(transaction, self._since, self._rows(transaction), marker)

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Write the rows that the transaction adds to the table, unless the sink has the transaction already."""
        del publication
        t = sealed.transaction
        if t < self._since:
            return
        for remaining_tries in reversed(range(_OUTPUT_WRITE_TRIES_MAX)):
            try:
                self._write(t)
            except StorageError as error:
                if not remaining_tries:
                    raise StorageError(f"output {self._name}, transaction {t}: {error}") from error
            else:
                return

    def skip(self, record: QuarantineRecord, publication: Publication) -> None:
        """Write nothing."""

    def _write(self, t: int) -> None:
        with Lease(self._content.shard, self._key_value):  # keeps the parts until they are read
            batch, rows = self._batch(t), self._rows(t)
            if batch is None or not rows:
                return
            marker = self._fenced()
            if not is_to_be_written(t, self._since, rows, marker):
                self._note(t)  # the writer may have crashed before this
                return
            assert marker < t, "transactions strictly increase"
            self._marker = None  # unknown until written: an attempt may fail, or succeed without a reply
            fits = self._sink.fits if isinstance(self._sink, BoundedSink) else lambda _: True
            with closing(
                Messages(self._content.tables(batch), self._content.encode, self._content.name, fits)
            ) as messages:
                self._sink.write(t, messages)
            self._note(t)
            self._marker = t

    def _note(self, t: int) -> None:
        """Copy the left-out rows and the receipt from the sink's marker to records of the lake. Called before the
        transaction is committed."""
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
        # A committed batch may be compacted with others. Then a peer has continued, and every output has the
        # transaction.
        return batch if batch is not None and (batch.lower, batch.upper) == (t, t + 1) else None
