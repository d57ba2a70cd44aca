"""Kafka topic as an output. Rows and the marker of a transaction are written in one Kafka transaction.

The marker is a record in a separate topic, `tracelake-<id of the output>`, which only this output writes. It has the
number of the transaction, the rows that were left out, and the offsets of the messages.

| record in the marker topic | meaning |
|---|---|
| its key is not the output's id | ignored |
| its key is the id, with a valid marker above all earlier ones | the output has this transaction |
| its key is the id, with any other value | compaction may have removed a marker; the state is unknown |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from tracelake._errors import DamageError
from tracelake.formats import decode, encode
from tracelake.journal.store import OutputReceipt, PartitionOffsets
from tracelake.limits import KAFKA_MESSAGE_MAX_BYTES, KAFKA_TRANSACTION_MAX_S, KAFKA_WAIT_S
from tracelake.limits.units import MIB
from tracelake.pipeline.kafka_client import (
    PartitionName,
    address_of,
    admin_of,
    as_storage_error,
    client_config,
    code_of,
    library,
    new_client,
)
from tracelake.pipeline.outputs.external import Messages, OversizedInTransaction, OversizedRow
from tracelake.pipeline.protocol import NO_MARKER
from tracelake.pipeline.sources.kafka import Cluster

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
    left_out: tuple[OversizedRow, ...] = ()
    partitions: tuple[PartitionOffsets, ...] = ()
    """Offsets of its messages in the first partitions. Empty if the broker did not report all offsets."""
    format_version: int = FORMAT_VERSION

    def of_left_out(self) -> OversizedInTransaction | None:
        """Return the rows that were left out of the transaction."""
        if not self.left_out_total:
            return None
        return OversizedInTransaction(self.transaction, self.left_out_total, self.max_bytes, self.left_out)

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
            raise _foreign(topic, offset, f"it is no marker ({error})") from error
        if marker.output != output_id or (last is not None and marker.transaction <= last.transaction):
            raise _foreign(
                topic, offset, f"it says transaction {marker.transaction} of output {marker.output}"
            )
        last = marker
    return last


def _foreign(topic: str, offset: int, what: str) -> DamageError:
    return DamageError(
        f"topic {topic} of Kafka belongs to an output of this lake alone, and somebody else has written offset "
        f"{offset}: {what}. So nobody can tell what the output has. Let nobody else write there; remove the output "
        "(`tracelake output remove`) and add it again: it goes on with the next transaction."
    )


class OutputOffsets:
    """Offsets of the messages of one transaction, collected one by one."""

    def __init__(self) -> None:
        self._by_partition: dict[int, tuple[int, int, int]] = {}
        self._is_known = True

    def add(self, partition: int, offset: int | None) -> None:
        """Add the offset of a message. If the log did not report it, the others become useless."""
        if offset is None or offset < 0:
            self._is_known = False
            return
        first, last, messages = self._by_partition.get(partition, (offset, offset, 0))
        self._by_partition[partition] = min(first, offset), max(last, offset), messages + 1

    def known(self) -> tuple[PartitionOffsets, ...]:
        """Return the offsets in the first partitions, none if some offset is unknown."""
        if not self._is_known:
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
        self._address = address_of(url)
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
        self._producer = new_client(library().Producer, self._config())
        with self._failing("cannot begin to write"):
            self._producer.init_transactions(KAFKA_WAIT_S)
        # Read the marker only now. Until a writer is fenced, its Kafka transaction may still be committed.
        self._last = self._last_marker()
        return NO_MARKER if self._last is None else self._last.transaction

    def write(self, transaction: int, messages: Messages) -> None:
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
                    self._id, transaction, written, self._max_bytes, total, left_out, self._offsets.known()
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

    def left_out(self) -> OversizedInTransaction | None:
        """See `BoundedSink`."""
        return None if self._last is None else self._last.of_left_out()

    def receipt(self) -> OutputReceipt | None:
        """See `TellingSink`."""
        return None if self._last is None else self._last.receipt()

    def _flush(self) -> None:
        if self._called_back(self._producer.flush, KAFKA_TRANSACTION_MAX_S):
            raise TimeoutError

    def _called_back(self, serve: Callable[[float], Any], within_s: float) -> Any:
        """Serve delivery callbacks. Raises the client's fatal error, for example when a peer has fenced this writer.

        After such an error the client still calls back for each message, and Python raises a SystemError each time.
        """
        kafka = library()
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
        if error is not None and error.code() == library().KafkaError.MSG_SIZE_TOO_LARGE:
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
        kafka = library()
        topic = kafka.admin.NewTopic(self._markers, 1, config={"cleanup.policy": "compact"})
        with self._failing("the topic of its markers cannot be made"):
            admin = admin_of(self._address.servers)  # must outlive the request
            future = admin.create_topics([topic], request_timeout=KAFKA_WAIT_S)[self._markers]
            try:
                future.result(2 * KAFKA_WAIT_S)
            except kafka.KafkaException as error:
                if code_of(error) != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _last_marker(self) -> Marker | None:
        name = PartitionName("", self._markers, "", 0)
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
        return client_config(
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
        return as_storage_error(f"topic {self._address.topic} of Kafka at {self._address.servers}: {what}")
