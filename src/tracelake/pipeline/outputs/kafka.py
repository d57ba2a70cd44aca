"""A topic of Kafka as an output: rows and the marker of a transaction in one transaction of Kafka.

The marker is a record of a topic of the output's own, which nobody else writes to: `tracelake-<id of the output>`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from tracelake.limits import (
    KAFKA_MARKERS_READ,
    KAFKA_MESSAGE_MAX_BYTES,
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
        self._written = NO_MARKER

    def fence(self) -> int:
        """See `Sink`: to begin with the same transactional id ends what writers before us have begun."""
        self._make_marker_topic()
        self._producer = new_client(library().Producer, self._config())
        with self._failing("cannot begin to write"):
            self._producer.init_transactions(KAFKA_WAIT_S)
        # Only now: until its writer is fenced, a transaction of Kafka may still be committed.
        self._written = self._last_marker()
        return self._written

    def write(self, transaction: int, messages: Iterator[bytes]) -> None:
        """See `Sink`."""
        assert self._producer is not None, "it is fenced first"
        assert transaction > self._written, "transactions strictly increase"
        first = next(messages)  # none is empty
        try:
            with self._failing(f"transaction {transaction} cannot be written"):
                self._producer.begin_transaction()
                headers = [(TRANSACTION_HEADER, str(transaction).encode())]
                written = 0
                for message in chain([first], messages):
                    self._produce(self._address.topic, message, headers)
                    written += 1
                marker = {"output": self._id, "transaction": transaction, "messages": written}
                self._produce(self._markers, json.dumps(marker).encode(), headers)
                self._producer.commit_transaction(KAFKA_TRANSACTION_MAX_S)
        except BaseException:
            self._producer = None  # whether it is committed, the marker says to whoever comes next
            raise
        self._written = transaction

    def _produce(self, topic: str, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        began_s = time.monotonic()
        key = self._id if topic == self._markers else None
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
            except BufferError:  # it has as much as it may have on its way
                self._producer.poll(0.1)
                if time.monotonic() - began_s > KAFKA_TRANSACTION_MAX_S:
                    raise TimeoutError from None
            else:
                self._producer.poll(0)
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

    def _last_marker(self) -> int:
        name = PartitionName("", self._markers, "", 0)
        ends = self._cluster.ends([name])[name]
        start = max(ends.low, ends.end - KAFKA_MARKERS_READ)
        while True:
            last = NO_MARKER
            for _, value in self._cluster.messages(name, start, ends.end):
                if value is not None:
                    marker = int(json.loads(value)["transaction"])
                    assert marker > last, "transactions strictly increase"
                    last = marker
            if last != NO_MARKER or start == ends.low:
                return last
            start = ends.low

    def _config(self) -> dict[str, Any]:
        return client_config(
            self._address.servers,
            **{
                "transactional.id": f"tracelake-{self._id}",
                "transaction.timeout.ms": int(KAFKA_TRANSACTION_MAX_S * 1000),
                "message.max.bytes": KAFKA_MESSAGE_MAX_BYTES,
                "compression.type": "zstd",
            },
        )

    def _failing(self, what: str) -> Any:
        return as_storage_error(f"topic {self._address.topic} of Kafka at {self._address.servers}: {what}")
