"""Outputs that users configured, stored as records. Every replica reads them before it publishes a transaction.

`KafkaSink` writes to a Kafka topic. It writes the rows and the marker of a transaction in one Kafka transaction.

The marker is a record in a separate topic, `tracelake-<id of the output>`, which only this output writes. It has the
number of the transaction, the rows that were left out, and the offsets of the messages.

| record in the marker topic | meaning |
|---|---|
| its key is not the output's id | ignored |
| its key is the id, with a valid marker above all earlier ones | the output has this transaction |
| its key is the id, with any other value | compaction may have removed a marker; the state is unknown |
"""

from __future__ import annotations

import pkgutil
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from tracelake._errors import DamageError, TracelakeError, UsageError
from tracelake.formats import decode, encode
from tracelake.journal.store import OutputReceipt, PartitionOffsets
from tracelake.limits import KAFKA_MESSAGE_MAX_BYTES, KAFKA_TRANSACTION_MAX_S, KAFKA_WAIT_S
from tracelake.limits.input import MIB
from tracelake.pipeline import kafka_client
from tracelake.pipeline.outputs import external
from tracelake.pipeline.protocol import NO_MARKER, begins_at
from tracelake.pipeline.registrations import Registrations, RegistrationStore
from tracelake.pipeline.sources.kafka import Cluster
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.builtin import BUILT_IN

KAFKA_MESSAGE_OVERHEAD_BYTES: Final = 512
"""Size of a message apart from its value."""
KAFKA_BATCH_MAX_BYTES: Final = 1_000_000
"""Messages sent in one batch, or less if the topic allows less."""
_KAFKA_QUEUE_BYTES: Final = 64 * MIB
"""In-flight messages of an output, at least one message of maximum size."""
OUTPUT_PARTITIONS_TOLD_MAX: Final = 200
"""Partitions of an output whose offsets are recorded for a transaction."""
_KAFKA_MARKERS_READ: Final = 200
"""Offsets at the end of the marker topic that an output reads first."""

FORMAT_VERSION: Final = 1


class Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Marker that is written with the messages of a transaction."""

    output: str
    transaction: int
    messages: int
    max_bytes: int = 0
    """Message limit of the topic, if rows were left out."""
    left_out_total: int = 0
    left_out: tuple[external.OversizedRow, ...] = ()
    partitions: tuple[PartitionOffsets, ...] = ()
    """Offsets of its messages in the first partitions. Empty if the broker did not report all offsets."""
    format_version: int = FORMAT_VERSION

    def of_left_out(self) -> external.OversizedInTransaction | None:
        """Return the rows that were left out of the transaction."""
        if not self.left_out_total:
            return None
        return external.OversizedInTransaction(
            self.transaction, self.left_out_total, self.max_bytes, self.left_out
        )

    def receipt(self) -> OutputReceipt:
        """Return the receipt that the lake stores for users."""
        return OutputReceipt(self.transaction, self.messages, self.partitions)


def last_marker(
    output_id: str, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None]]
) -> Marker | None:
    """Return the last marker among records (offset, key, value). Raises DamageError for an invalid or contradictory
    one."""
    last: Marker | None = None
    for offset, key, value in records:
        if key != output_id.encode():
            continue
        try:
            marker = decode(Marker, value or b"", "it", FORMAT_VERSION)
        except DamageError as error:
            raise _foreign(topic, offset, f"it is not a marker ({error})") from error
        if marker.output != output_id or (last is not None and marker.transaction <= last.transaction):
            raise _foreign(
                topic, offset, f"it says transaction {marker.transaction} of output {marker.output}"
            )
        last = marker
    return last


def _foreign(topic: str, offset: int, what: str) -> DamageError:
    return DamageError(
        f"Kafka topic {topic} must belong to an output of this lake alone, but another producer has written "
        f"offset {offset}: {what}. So the output's content is unknown. Stop other producers, remove the "
        "output (`tracelake output remove`) and add it again: it continues with the next transaction."
    )


class OutputOffsets:
    """Offsets of the messages of one transaction, collected one by one."""

    def __init__(self) -> None:
        self._by_partition: dict[int, tuple[int, int, int]] = {}
        self._is_complete = True

    def add(self, partition: int, offset: int | None) -> None:
        """Add the offset of a message. If one is None or negative, no offsets of the transaction are reported."""
        if offset is None or offset < 0:
            self._is_complete = False
            return
        first, last, messages = self._by_partition.get(partition, (offset, offset, 0))
        self._by_partition[partition] = min(first, offset), max(last, offset), messages + 1

    def partition_offsets(self) -> tuple[PartitionOffsets, ...]:
        """Return the offsets in the first partitions, none if some offset is unknown."""
        if not self._is_complete:
            return ()
        return tuple(
            PartitionOffsets(partition, first, last + 1, messages)
            for partition, (first, last, messages) in sorted(self._by_partition.items())
        )[:OUTPUT_PARTITIONS_TOLD_MAX]


TRANSACTION_HEADER: Final = "tracelake-transaction"


class KafkaSink:
    """Sink for one topic. See `Sink`."""

    def __init__(self, output_id: str, url: str) -> None:
        """Create a sink. Raises UsageError if the address is invalid or the client is not installed."""
        self._id = output_id
        self._address = kafka_client.address_of(url)
        self._markers = f"tracelake-{output_id}"
        self._cluster = Cluster(self._address.servers)
        self._producer: Any = None
        self._last: Marker | None = None
        self._max_bytes = KAFKA_BATCH_MAX_BYTES
        self._was_refused = False
        self._offsets = OutputOffsets()

    def fence(self) -> int:
        """Fence earlier writers by their shared transactional id, which aborts their transactions. See `Sink`."""
        self._make_marker_topic()
        allowed = self._cluster.message_max_bytes(self._address.topic)
        # without permission to read the limit, do not rely on compression
        self._was_refused |= allowed is None
        self._max_bytes = KAFKA_BATCH_MAX_BYTES if allowed is None else allowed
        self._producer = kafka_client.new_client(kafka_client.library().Producer, self._config())
        with self._failing("cannot begin to write"):
            self._producer.init_transactions(KAFKA_WAIT_S)
        # Read the marker only now. Until a writer is fenced, its Kafka transaction may still be committed.
        self._last = self._last_marker()
        return NO_MARKER if self._last is None else self._last.transaction

    def write(self, transaction: int, messages: external.Messages) -> None:
        """See `Sink`."""
        assert self._producer is not None, "it is fenced first"
        assert self._last is None or transaction > self._last.transaction, "transactions strictly increase"
        first = next(messages, None)
        assert first is not None or messages.left_out_total, "none is empty"
        try:
            with self._failing(f"transaction {transaction} cannot be written"):
                self._producer.begin_transaction()
                self._offsets = OutputOffsets()
                headers = [(TRANSACTION_HEADER, str(transaction).encode())]
                written = 0
                for message in chain([] if first is None else [first], messages):
                    self._produce(self._address.topic, message, headers)
                    written += 1
                self._flush()  # the marker contains the offsets of the messages
                left_out, total = tuple(messages.left_out), messages.left_out_total
                marker = Marker(
                    self._id,
                    transaction,
                    written,
                    self._max_bytes,
                    total,
                    left_out,
                    self._offsets.partition_offsets(),
                )
                self._produce(self._markers, encode(marker), headers)
                self._called_back(self._producer.commit_transaction, KAFKA_TRANSACTION_MAX_S)
        except BaseException:
            self._producer = None  # the next writer learns from the marker whether it is committed
            raise
        self._last = marker

    def fits(self, message: bytes) -> bool:
        """Return whether the topic accepts a message. See `BoundedSink`.

        The limit applies to compressed messages, so the result is an estimate until the broker has rejected one.
        """
        most = self._max_bytes - KAFKA_MESSAGE_OVERHEAD_BYTES
        if len(message) <= most:
            return True
        if self._was_refused or len(message) > KAFKA_MESSAGE_MAX_BYTES:
            return False
        return len(pa.compress(message, codec="zstd", asbytes=True)) <= most

    def left_out(self) -> external.OversizedInTransaction | None:
        """See `BoundedSink`."""
        return None if self._last is None else self._last.of_left_out()

    def receipt(self) -> OutputReceipt | None:
        """See `TellingSink`."""
        return None if self._last is None else self._last.receipt()

    def _flush(self) -> None:
        if self._called_back(self._producer.flush, KAFKA_TRANSACTION_MAX_S):
            raise TimeoutError

    def _called_back(self, serve: Callable[[float], Any], within_s: float) -> Any:
        """Call the client to serve delivery callbacks. Raises the client's fatal error, for example when a peer has
        fenced this writer.

        After such an error the client still calls back for each message, and Python raises a SystemError each time.
        """
        kafka = kafka_client.library()
        try:
            return serve(within_s)
        except SystemError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, kafka.KafkaException):
                cause = cause.__cause__ or cause.__context__
            raise cause or kafka.KafkaException(
                kafka.KafkaError(kafka.KafkaError._FATAL, str(error))
            ) from None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None and message.topic() == self._address.topic:
            self._offsets.add(message.partition(), message.offset())
        if error is not None and error.code() == kafka_client.library().KafkaError.MSG_SIZE_TOO_LARGE:
            self._was_refused = True

    def _produce(self, topic: str, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        began_s = time.monotonic()
        key = self._id if topic == self._markers else None
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=self._delivered)
            except BufferError:  # the client's queue is full
                self._called_back(self._producer.poll, 0.1)
                if time.monotonic() - began_s > KAFKA_TRANSACTION_MAX_S:
                    raise TimeoutError from None
            else:
                self._called_back(self._producer.poll, 0)
                return

    def _make_marker_topic(self) -> None:
        kafka = kafka_client.library()
        topic = kafka.admin.NewTopic(self._markers, 1, config={"cleanup.policy": "compact"})
        with self._failing("the topic of its markers cannot be created"):
            admin = kafka_client.admin_of(self._address.servers)  # must outlive the request
            future = admin.create_topics([topic], request_timeout=KAFKA_WAIT_S)[self._markers]
            try:
                future.result(2 * KAFKA_WAIT_S)
            except kafka.KafkaException as error:
                if kafka_client.code_of(error) != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _last_marker(self) -> Marker | None:
        name = kafka_client.PartitionName("", self._markers, "", 0)
        ends = self._cluster.ends([name])[name]
        start = max(ends.low, ends.end - _KAFKA_MARKERS_READ)
        while True:
            records = (each for each in self._cluster.records(name, start, ends.end) if each[0] < ends.end)
            last = last_marker(self._id, self._markers, records)
            if last is not None or start == ends.low:
                return last
            start = ends.low

    def _config(self) -> dict[str, Any]:
        largest = KAFKA_MESSAGE_MAX_BYTES + KAFKA_MESSAGE_OVERHEAD_BYTES
        return kafka_client.client_config(
            self._address.servers,
            **{
                "transactional.id": f"tracelake-{self._id}",
                "transaction.timeout.ms": int(KAFKA_TRANSACTION_MAX_S * 1000),
                "message.max.bytes": largest,
                "batch.size": min(KAFKA_BATCH_MAX_BYTES, self._max_bytes),
                "queue.buffering.max.kbytes": max(_KAFKA_QUEUE_BYTES, largest) // 1024,
                "compression.type": "zstd",
            },
        )

    def _failing(self, what: str) -> Any:
        return kafka_client.as_storage_error(
            f"Kafka topic {self._address.topic} at {self._address.servers}: {what}"
        )


class OutputRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output that a user configured."""

    name: str
    to: str
    """`kafka://brokers/topic`, or `module:name` of a function that creates a sink."""
    id: str
    """Random id. An output that is removed and added again gets a new one."""
    changes: str = ""
    """Table whose changes the output gets. Empty: it gets the new spans, as OTLP."""
    since: int | None = None
    """First transaction of the output. None until a replica has determined it."""
    format_version: int = FORMAT_VERSION


OutputRecords: TypeAlias = Registrations[OutputRecord]


class AddedOutputs:
    """Outputs that users configured for one pipeline. Their sinks stay open between transactions."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, pipeline: str = "main"
    ) -> None:
        self._buckets = buckets
        self._key_value = key_value
        self._objects = objects
        self._pipeline = pipeline
        self._records = RegistrationStore(
            key_value, f"outputs/{pipeline}", OutputRecord, "output", FORMAT_VERSION
        )
        self._open: dict[str, external.KeyedOutput] = {}

    def records(self) -> OutputRecords:
        """Return the configured outputs by name. A damaged record hides no other."""
        return self._records.all()

    def add(self, name: str, to: str, upper: Callable[[], int], changes: str = "") -> OutputRecord:
        """Store an output that starts with the first transaction that no replica has begun. Raises UsageError if the
        name is taken, `to` cannot be opened, or `changes` names no built-in table."""
        self._records.require_name(name)
        if changes and changes not in BUILT_IN:
            raise UsageError(
                f"an output can send the changes of table {' or '.join(BUILT_IN)}, not of {changes!r}."
            )
        record = OutputRecord(name, to, uuid.uuid4().hex, changes)
        _sink(record)  # rejects an output that cannot be opened
        self._records.create(record)
        return self._assign_first_transaction(name, upper)

    def remove(self, name: str) -> None:
        """Remove an output, so that no more is written to it. Raises UsageError if the name is unknown."""
        removed = self._records.remove(name)
        if removed is not None:
            external.OversizedRowStore(self._key_value, self._pipeline).forget(removed.id)

    def opened(self, upper: Callable[[], int]) -> list[external.KeyedOutput]:
        """Return all configured outputs, opened. If an output has no first transaction yet, set it from `upper()`.

        Raises UsageError if an output cannot be opened, and DamageError if an output's record is unreadable: a commit
        would not reach that output.
        """
        records = self.records()
        for reason in records.damaged.values():
            raise DamageError(f"nothing is committed, because an output would miss it. {reason}")
        started = [
            self._assign_first_transaction(record.name, upper) if record.since is None else record
            for record in records.readable
        ]
        self._open = {record.id: self._open.get(record.id) or self._to_output(record) for record in started}
        return list(self._open.values())

    def _assign_first_transaction(self, name: str, upper: Callable[[], int]) -> OutputRecord:
        """Store the first transaction of an output in its record. `upper` is called after the record is visible to
        peers."""

        def begin(record: OutputRecord) -> OutputRecord:
            if record.since is not None:
                return record
            return msgspec.structs.replace(record, since=begins_at(upper()))

        return self._records.change(name, begin)

    def _to_output(self, record: OutputRecord) -> external.KeyedOutput:
        assert record.since is not None
        content: external.Content = (
            external.TableChanges(record.changes, self._key_value, self._objects, self._buckets)
            if record.changes
            else external.NewSpans(self._key_value, self._objects)
        )
        return external.KeyedOutput(
            record.name, record.id, record.since, _sink(record), content, self._key_value
        )


def _sink(record: OutputRecord) -> external.Sink:
    """Return the sink of an output. Raises UsageError if `to` names neither a topic nor an importable factory of
    sinks."""
    if record.to.startswith(f"{kafka_client.SCHEME}://"):
        return KafkaSink(record.id, record.to)
    try:
        make = pkgutil.resolve_name(record.to)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"output {record.name}: {record.to!r} is neither kafka://brokers/topic nor module:name of a sink "
            f"factory: {error}"
        ) from error
    try:
        sink: external.Sink = make(record.id)
    except TracelakeError:
        raise
    except Exception as error:  # user code may raise anything
        raise _no_sink(record, f"{type(error).__name__}: {error}") from error
    for method in ("fence", "write"):
        if not callable(getattr(sink, method, None)):
            raise _no_sink(record, f"it returned a {type(sink).__name__}, which has no {method}")
    return sink


def _no_sink(record: OutputRecord, reason: str) -> UsageError:
    return UsageError(
        f"output {record.name}: {record.to!r} does not create a sink for the id of an output: {reason}"
    )
