"""A cluster of Kafka as the source asks it: topics, offsets, and the messages of a range."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tracelake._errors import DamageError, NotFoundError, StorageError
from tracelake.formats import decode, encode
from tracelake.limits import (
    KAFKA_READ_AHEAD_BYTES,
    KAFKA_READ_MESSAGES,
    KAFKA_RECEIVE_MAX_BYTES,
    KAFKA_STATISTICS_S,
    KAFKA_WAIT_S,
)
from tracelake.otlp.log_frames import LOG_MAGIC, log_frame, removed_frame
from tracelake.pipeline.kafka.client import (
    admin_of,
    as_storage_error,
    client_config,
    code_of,
    library,
    new_client,
)
from tracelake.pipeline.kafka.model import FORMAT_VERSION, ClusterRecord, PartitionName
from tracelake.storage import ObjectStore

_WAYS_OUT: Final = (
    "Mend the broker, as from a replica of the partition, and take them by `tracelake pipeline retry`; or give these "
    "offsets up, with all of their range, by `tracelake pipeline discard`"
)
CLUSTERS = "kafka/"
"""Where the lake keeps the addresses of clusters, for tasks on any machine."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What a partition has: the first offset that is still there, and the first that is not there yet."""

    low: int
    end: int


class Cluster:
    """A cluster by its addresses. All methods raise StorageError where no broker answers in time."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        admin_of(servers)  # settings that it does not take are refused now

    def id(self) -> str:
        """Return the id that the cluster gave itself."""
        with as_storage_error(f"Kafka at {self.servers}"):
            admin = admin_of(self.servers)  # it has to outlive what it is asked
            described = admin.describe_cluster(request_timeout=KAFKA_WAIT_S).result(2 * KAFKA_WAIT_S)
        return quote(str(described.cluster_id), safe="")

    def partitions(self, cluster_id: str, topic: str) -> list[PartitionName]:
        """Return the partitions of a topic. Raises NotFoundError where there is none of this name."""
        kafka = library()
        asked = kafka.TopicCollection([topic])
        with as_storage_error(f"topic {topic} of Kafka at {self.servers}"):
            try:
                admin = admin_of(self.servers)
                future = admin.describe_topics(asked, request_timeout=KAFKA_WAIT_S)[topic]
                described = future.result(2 * KAFKA_WAIT_S)
            except kafka.KafkaException as error:
                if code_of(error) == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise NotFoundError(f"Kafka at {self.servers} has no topic {topic}") from error
                raise
        topic_id = str(described.topic_id).replace("/", "_").replace("+", "-")  # as Kafka itself writes it
        return [PartitionName(cluster_id, topic, topic_id, each.id) for each in described.partitions]

    def ends(self, names: Iterable[PartitionName]) -> dict[PartitionName, Ends]:
        """Return what partitions have; of transactions that are not over nothing counts, nor what comes after."""
        names = list(names)
        spec = library().admin.OffsetSpec
        first, last = self._offsets(names, spec.earliest()), self._offsets(names, spec.latest())
        return {name: Ends(first[name], last[name]) for name in names}

    def low(self, name: PartitionName) -> int:
        """Return the first offset that a partition still has. Raises NotFoundError where its topic is gone."""
        if name not in self.partitions(name.cluster, name.topic):
            raise NotFoundError(
                f"{name} (id {name.topic_id}) is not at Kafka at {self.servers} any more: it was deleted, or made anew"
            )
        return self._offsets([name], library().admin.OffsetSpec.earliest())[name]

    def message_max_bytes(self, topic: str) -> int | None:
        """Return what one batch of messages of a topic may have; None where we may not ask."""
        kafka = library()
        code = kafka.KafkaError
        asked = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, topic)
        with as_storage_error(f"topic {topic} of Kafka at {self.servers}"):
            admin = admin_of(self.servers)
            try:
                futures = admin.describe_configs([asked], request_timeout=KAFKA_WAIT_S)
                return int(futures[asked].result(2 * KAFKA_WAIT_S)["max.message.bytes"].value)
            except kafka.KafkaException as error:
                if code_of(error) in (code.TOPIC_AUTHORIZATION_FAILED, code.CLUSTER_AUTHORIZATION_FAILED):
                    return None
                raise

    def _offsets(self, names: list[PartitionName], spec: Any) -> dict[PartitionName, int]:
        kafka = library()
        asked = {kafka.TopicPartition(name.topic, name.partition): spec for name in names}
        with as_storage_error(f"Kafka at {self.servers}"):
            admin = admin_of(self.servers)
            futures: Mapping[Any, Any] = admin.list_offsets(
                asked,
                isolation_level=kafka.IsolationLevel.READ_COMMITTED,
                request_timeout=KAFKA_WAIT_S,
            )
            by_number = {
                (where.topic, where.partition): future.result(2 * KAFKA_WAIT_S).offset
                for where, future in futures.items()
            }
        return {name: by_number[name.topic, name.partition] for name in names}

    def frames(self, name: PartitionName, start: int, stop: int) -> Iterator[bytes]:
        """Yield a range as a file (`otlp/log_frames.py`): what is committed of it, and what of it was removed.

        Raises NotFoundError where the partition is another by now, or gone.
        """
        yield LOG_MAGIC
        position = start
        while position < stop:
            low = self.low(name)
            if position < low:
                lost = min(low, stop)
                yield removed_frame(position, _lost(name, position, lost))
                position = lost
                continue
            before = position
            try:
                for offset, value in self.messages(name, position, stop):
                    position = offset + 1 if offset < stop else stop
                    if (
                        value is not None
                    ):  # a message without a value says, in a compacted topic, that a key is gone
                        yield log_frame(offset, value)
            except DamageError as error:
                # What the client tells behind it is no more to be trusted.
                yield removed_frame(position, f"{error}. {_WAYS_OUT}")
                return
            if position == before and self.low(name) <= position:
                raise StorageError(f"{name} of Kafka at {self.servers} does not give offset {position}")

    def messages(self, name: PartitionName, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield offset and value of what is committed, and last (stop, None): what lies between is passed by.

        Where the broker has removed the next one meanwhile, it ends without a word. Raises DamageError where
        one is not as it was written: no reader ever gets it from this broker.
        """
        for offset, _, value in self.records(name, start, stop):
            yield offset, value

    def records(
        self, name: PartitionName, start: int, stop: int
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield offset, key and value, as `messages` does."""
        kafka = library()
        code = kafka.KafkaError
        moves = _Moves()
        consumer = new_client(kafka.Consumer, _consumer_config(self.servers, moves))
        with closing(consumer), as_storage_error(f"{name} of Kafka at {self.servers}"):
            consumer.assign([kafka.TopicPartition(name.topic, name.partition, start)])
            moved_s = time.monotonic()
            while True:
                messages = consumer.consume(KAFKA_READ_MESSAGES, 0.5)
                for message in messages:
                    error = message.error()
                    if error is None:
                        if message.offset() >= stop:
                            yield stop, None, None
                            return
                        yield message.offset(), message.key(), message.value()
                        moved_s = time.monotonic()
                    elif error.code() == code._PARTITION_EOF:
                        if message.offset() < stop:
                            raise StorageError(
                                f"{name} of Kafka at {self.servers} ends at offset {message.offset()}, before {stop}"
                            )
                        yield stop, None, None
                        return
                    elif error.code() in (code._AUTO_OFFSET_RESET, code.OFFSET_OUT_OF_RANGE):
                        return
                    elif error.code() in (code._BAD_MSG, code._BAD_COMPRESSION, code.INVALID_MSG):
                        where = f"{name} of Kafka at {self.servers} from offset {message.offset()} on"
                        raise DamageError(f"messages of {where} are corrupt: {error.str()}")
                    elif not error.retriable():
                        raise kafka.KafkaException(error)
                if moves.moved():
                    moved_s = time.monotonic()
                if time.monotonic() - moved_s > KAFKA_WAIT_S:
                    raise TimeoutError


def _lost(name: PartitionName, start: int, stop: int) -> str:
    return (
        f"retention has removed offsets {start} to {stop - 1} of {name} of Kafka before they were read: they are lost. "
        "What is left of the topic is taken. Give the topic a longer retention, and give these up with "
        "`tracelake pipeline discard`"
    )


class _Moves:
    """Whether a client moves on: over what was aborted it goes without a message, however long that is."""

    def __init__(self) -> None:
        self._next = self._seen = -1

    def told(self, statistics: str) -> None:
        """Note what the client says of itself."""
        for topic in json.loads(statistics).get("topics", {}).values():
            for partition in topic["partitions"].values():
                self._next = max(self._next, partition["next_offset"])

    def moved(self) -> bool:
        """Whether it has come further since the last time."""
        before, self._seen = self._seen, self._next
        return self._next > before


def _consumer_config(servers: str, moves: _Moves) -> dict[str, Any]:
    return client_config(
        servers,
        **{
            "group.id": "tracelake",  # it needs one, and neither joins it nor commits to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "queued.max.messages.kbytes": KAFKA_READ_AHEAD_BYTES // 1024,
            "receive.message.max.bytes": KAFKA_RECEIVE_MAX_BYTES,
            "statistics.interval.ms": int(1000 * min(KAFKA_STATISTICS_S, KAFKA_WAIT_S / 4)),
            "stats_cb": moves.told,
        },
    )


def remember_cluster(objects: ObjectStore, cluster_id: str, servers: str) -> None:
    """Let tasks find a cluster."""
    objects.put(f"{CLUSTERS}{cluster_id}.json", encode(ClusterRecord(servers)))


def cluster_of(objects: ObjectStore, cluster_id: str) -> Cluster:
    """Return a cluster that a pipeline was told of. Raises StorageError where none was."""
    path = f"{CLUSTERS}{cluster_id}.json"
    try:
        data = objects.get(path)
    except NotFoundError as error:
        raise StorageError(
            f"{path} is not in the lake, and its journal names topics of that cluster. Watch a topic of it again."
        ) from error
    return Cluster(decode(ClusterRecord, data, path, FORMAT_VERSION).servers)
