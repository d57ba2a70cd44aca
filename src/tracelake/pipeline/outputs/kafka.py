"""A topic of Kafka as an output: rows and the marker of a transaction in one transaction of Kafka.

The marker is a record of a topic of the output's own, which nobody else writes to: `tracelake-<id of the output>`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from tracelake.formats import encode
from tracelake.journal.receipts import OutputReceipt
from tracelake.limits import (
    KAFKA_BATCH_MAX_BYTES,
    KAFKA_MARKERS_READ,
    KAFKA_MESSAGE_MAX_BYTES,
    KAFKA_MESSAGE_OVERHEAD_BYTES,
    KAFKA_QUEUE_BYTES,
    KAFKA_TRANSACTION_MAX_S,
    KAFKA_WAIT_S,
)
from tracelake.pipeline.kafka.client import (
    address_of,
    admin_of,
    as_storage_error,
    client_config,
    code_of,
    library,
    new_client,
)
from tracelake.pipeline.kafka.cluster import Cluster
from tracelake.pipeline.kafka.model import PartitionName
from tracelake.pipeline.outputs.keyed_protocol import NO_MARKER
from tracelake.pipeline.outputs.left_out import LeftOutOf
from tracelake.pipeline.outputs.markers import Marker, last_marker
from tracelake.pipeline.outputs.messages import Messages
from tracelake.pipeline.outputs.offsets import Offsets

TRANSACTION_HEADER: Final = "tracelake-transaction"


class KafkaSink:
    """One topic; see `Sink`."""

    def __init__(self, output_id: str, url: str) -> None:
        """Raises UsageError for an address that is none, and where the client is not installed."""
        self._id = output_id
        self._address = address_of(url)
        self._markers = f"tracelake-{output_id}"
        self._cluster = Cluster(self._address.servers)
        self._producer: Any = None
        self._last: Marker | None = None
        self._max_bytes = KAFKA_BATCH_MAX_BYTES
        self._was_refused = False
        self._offsets = Offsets()

    def fence(self) -> int:
        """See `Sink`: to begin with the same transactional id ends what writers before us have begun."""
        self._make_marker_topic()
        allowed = self._cluster.message_max_bytes(self._address.topic)
        self._was_refused |= allowed is None  # who may not ask makes no guess
        self._max_bytes = KAFKA_BATCH_MAX_BYTES if allowed is None else allowed
        self._producer = new_client(library().Producer, self._config())
        with self._failing("cannot begin to write"):
            self._producer.init_transactions(KAFKA_WAIT_S)
        # Only now: until its writer is fenced, a transaction of Kafka may still be committed.
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
                self._offsets = Offsets()
                headers = [(TRANSACTION_HEADER, str(transaction).encode())]
                written = 0
                for message in chain([] if first is None else [first], messages):
                    self._produce(self._address.topic, message, headers)
                    written += 1
                self._flush()  # the marker says which offsets they got
                left_out, total = tuple(messages.left_out), messages.left_out_total
                marker = Marker(
                    self._id, transaction, written, self._max_bytes, total, left_out, self._offsets.known()
                )
                self._produce(self._markers, encode(marker), headers)
                self._called_back(self._producer.commit_transaction, KAFKA_TRANSACTION_MAX_S)
        except BaseException:
            self._producer = None  # whether it is committed, the marker says to whoever comes next
            raise
        self._last = marker

    def fits(self, message: bytes) -> bool:
        """See `BoundedSink`. A topic bounds what is compressed: that is a guess, until the broker has refused one."""
        most = self._max_bytes - KAFKA_MESSAGE_OVERHEAD_BYTES
        if len(message) <= most:
            return True
        if self._was_refused or len(message) > KAFKA_MESSAGE_MAX_BYTES:
            return False
        return len(pa.compress(message, codec="zstd", asbytes=True)) <= most

    def left_out(self) -> LeftOutOf | None:
        """See `BoundedSink`."""
        return None if self._last is None else self._last.of_left_out()

    def receipt(self) -> OutputReceipt | None:
        """See `TellingSink`."""
        return None if self._last is None else self._last.receipt()

    def _flush(self) -> None:
        if self._called_back(self._producer.flush, KAFKA_TRANSACTION_MAX_S):
            raise TimeoutError

    def _called_back(self, serve: Callable[[float], Any], within_s: float) -> Any:
        """Let the client tell of what was delivered. Raises what ended it, as when a peer has fenced us.

        The client raises that and still calls back, for each message anew, of which Python makes a SystemError each.
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
            except BufferError:  # it has as much as it may have on its way
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
            admin = admin_of(self._address.servers)  # it has to outlive what it is asked
            future = admin.create_topics([topic], request_timeout=KAFKA_WAIT_S)[self._markers]
            try:
                future.result(2 * KAFKA_WAIT_S)
            except kafka.KafkaException as error:
                if code_of(error) != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _last_marker(self) -> Marker | None:
        name = PartitionName("", self._markers, "", 0)
        ends = self._cluster.ends([name])[name]
        start = max(ends.low, ends.end - KAFKA_MARKERS_READ)
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
                "queue.buffering.max.kbytes": max(KAFKA_QUEUE_BYTES, largest) // 1024,
                "compression.type": "zstd",
            },
        )

    def _failing(self, what: str) -> Any:
        return as_storage_error(f"topic {self._address.topic} of Kafka at {self._address.servers}: {what}")
