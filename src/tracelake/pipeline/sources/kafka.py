"""Kafka topics as a source. Inputs are ranges of offsets, which tasks read directly.

Tracelake joins no consumer group and commits no offsets to the broker. The lake records the taken offsets of each
partition, once a commit contains them and before the next transaction opens.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tracelake._errors import DamageError, NotFoundError, StorageError, UsageError
from tracelake.formats import decode, encode
from tracelake.journal.model import RecordedInput
from tracelake.journal.store import IngestedFiles
from tracelake.limits import KAFKA_WAIT_S
from tracelake.limits.input import MIB
from tracelake.otlp.framing import LOG_MAGIC, log_frame, removed_frame
from tracelake.pipeline import kafka_client, protocol
from tracelake.pipeline.protocol import Offsets, mean_after, united
from tracelake.pipeline.sources import base
from tracelake.replicas.replica import BacklogEntry
from tracelake.scratch import scratch_directory
from tracelake.storage import Entry, KeyValueStore, ObjectStore
from tracelake.storage.ports import change_record
from tracelake.tasks.backoff import Backoff

KAFKA_ASKED_AGAIN_MAX_S: Final = 10 * 60.0
"""Longest backoff before an unreachable cluster is asked again about discarded offsets or consumer offsets to
store; the backoff doubles up to it."""
_KAFKA_RANGES_AT_ONCE: Final = 64
"""Ranges of one partition that one poll returns."""
_KAFKA_READ_MESSAGES: Final = 1_000
"""Messages fetched from the client in one call."""
_KAFKA_READ_AHEAD_BYTES: Final = 16 * MIB
"""Bytes that a client prefetches."""
_KAFKA_RECEIVE_MAX_BYTES: Final = 2**31 - 1
"""Size of a broker's response; a message larger than a range comes alone."""
_KAFKA_STATISTICS_S: Final = 1.0
"""Interval at which a client without messages checks its progress, for example past aborted messages."""

_WAYS_OUT: Final = (
    "Repair the broker, for example from a replica of the partition, and run `tracelake pipeline retry`; or "
    "discard these offsets and their whole range with `tracelake pipeline discard`"
)
CLUSTERS = "kafka/"
"""Path prefix of cluster addresses, for tasks on any machine."""


@dataclass(frozen=True, slots=True)
class Ends:
    """First offset that a partition still has, and the first that does not exist yet."""

    low: int
    end: int


class Cluster:
    """Client of a cluster. All methods raise StorageError if no broker answers in time."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        kafka_client.admin_of(servers)  # rejects invalid settings now

    def id(self) -> str:
        """Return the cluster's id."""
        with kafka_client.as_storage_error(f"Kafka at {self.servers}"):
            admin = kafka_client.admin_of(self.servers)  # must outlive the request
            described = admin.describe_cluster(request_timeout=KAFKA_WAIT_S).result(2 * KAFKA_WAIT_S)
        return quote(str(described.cluster_id), safe="")

    def partitions(self, cluster_id: str, topic: str) -> list[kafka_client.PartitionName]:
        """Return the partitions of a topic. Raises NotFoundError if the topic does not exist."""
        kafka = kafka_client.library()
        topics = kafka.TopicCollection([topic])
        with kafka_client.as_storage_error(f"Kafka topic {topic} at {self.servers}"):
            try:
                admin = kafka_client.admin_of(self.servers)
                future = admin.describe_topics(topics, request_timeout=KAFKA_WAIT_S)[topic]
                described = future.result(2 * KAFKA_WAIT_S)
            except kafka.KafkaException as error:
                if kafka_client.code_of(error) == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise NotFoundError(f"Kafka at {self.servers} has no topic {topic}") from error
                raise
        topic_id = str(described.topic_id).replace("/", "_").replace("+", "-")  # in Kafka's own notation
        return [
            kafka_client.PartitionName(cluster_id, topic, topic_id, each.id) for each in described.partitions
        ]

    def ends(self, names: Iterable[kafka_client.PartitionName]) -> dict[kafka_client.PartitionName, Ends]:
        """Return the offset bounds of partitions. An unfinished Kafka transaction, and all after it, is excluded."""
        names = list(names)
        spec = kafka_client.library().admin.OffsetSpec
        first, last = self._offsets(names, spec.earliest()), self._offsets(names, spec.latest())
        return {name: Ends(first[name], last[name]) for name in names}

    def low(self, name: kafka_client.PartitionName) -> int:
        """Return the first offset that a partition still has. Raises NotFoundError if its topic is gone."""
        if name not in self.partitions(name.cluster, name.topic):
            raise NotFoundError(
                f"{name} (id {name.topic_id}) no longer exists at Kafka at {self.servers}: it was deleted "
                "or created again"
            )
        return self._offsets([name], kafka_client.library().admin.OffsetSpec.earliest())[name]

    def message_max_bytes(self, topic: str) -> int | None:
        """Return the size limit of a message batch of a topic, None if this client lacks the permission to read it."""
        kafka = kafka_client.library()
        code = kafka.KafkaError
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, topic)
        with kafka_client.as_storage_error(f"Kafka topic {topic} at {self.servers}"):
            admin = kafka_client.admin_of(self.servers)
            try:
                futures = admin.describe_configs([resource], request_timeout=KAFKA_WAIT_S)
                return int(futures[resource].result(2 * KAFKA_WAIT_S)["max.message.bytes"].value)
            except kafka.KafkaException as error:
                if kafka_client.code_of(error) in (
                    code.TOPIC_AUTHORIZATION_FAILED,
                    code.CLUSTER_AUTHORIZATION_FAILED,
                ):
                    return None
                raise

    def _offsets(
        self, names: list[kafka_client.PartitionName], spec: Any
    ) -> dict[kafka_client.PartitionName, int]:
        kafka = kafka_client.library()
        specs = {kafka.TopicPartition(name.topic, name.partition): spec for name in names}
        with kafka_client.as_storage_error(f"Kafka at {self.servers}"):
            admin = kafka_client.admin_of(self.servers)
            futures: Mapping[Any, Any] = admin.list_offsets(
                specs, isolation_level=kafka.IsolationLevel.READ_COMMITTED, request_timeout=KAFKA_WAIT_S
            )
            by_number = {
                (where.topic, where.partition): future.result(2 * KAFKA_WAIT_S).offset
                for where, future in futures.items()
            }
        return {name: by_number[name.topic, name.partition] for name in names}

    def frames(self, name: kafka_client.PartitionName, start: int, stop: int) -> Iterator[bytes]:
        """Yield a range as a file in the format of `otlp/framing.py`: its committed messages, and markers for removed
        ones.

        Raises NotFoundError if the partition is gone or was created again.
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
                    if value is not None:  # a message without a value is a tombstone of a compacted topic
                        yield log_frame(offset, value)
            except DamageError as error:
                # The client is not reliable after corrupt messages.
                yield removed_frame(position, f"{error}. {_WAYS_OUT}")
                return
            if position == before and self.low(name) <= position:
                raise StorageError(f"{name} of Kafka at {self.servers} does not give offset {position}")

    def messages(
        self, name: kafka_client.PartitionName, start: int, stop: int
    ) -> Iterator[tuple[int, bytes | None]]:
        """Yield offset and value of committed messages, and finally (stop, None). Skipped offsets have no message.

        If the broker removes the next message in the meantime, the iteration ends early. Raises DamageError for a
        corrupt message, which this broker can never deliver.
        """
        for offset, _, value in self.records(name, start, stop):
            yield offset, value

    def records(
        self, name: kafka_client.PartitionName, start: int, stop: int
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield offset, key and value, like `messages`."""
        kafka = kafka_client.library()
        code = kafka.KafkaError
        moves = _Moves()
        consumer = kafka_client.new_client(kafka.Consumer, _consumer_config(self.servers, moves))
        with closing(consumer), kafka_client.as_storage_error(f"{name} of Kafka at {self.servers}"):
            consumer.assign([kafka.TopicPartition(name.topic, name.partition, start)])
            moved_s = time.monotonic()
            while True:
                messages = consumer.consume(_KAFKA_READ_MESSAGES, 0.5)
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


def _lost(name: kafka_client.PartitionName, start: int, stop: int) -> str:
    return (
        f"Kafka's retention deleted offsets {start} to {stop - 1} of {name} before they were read: they are "
        "lost. The rest of the topic is ingested. Give the topic a longer retention, and discard these with "
        "`tracelake pipeline discard`"
    )


class _Moves:
    """Detects whether a consumer advances. A consumer skips aborted messages without delivering any, so delivery alone
    does not show it."""

    def __init__(self) -> None:
        self._next = self._reported = -1

    def update(self, statistics: str) -> None:
        """Record the client's statistics."""
        for topic in json.loads(statistics).get("topics", {}).values():
            for partition in topic["partitions"].values():
                self._next = max(self._next, partition["next_offset"])

    def moved(self) -> bool:
        """Return whether the consumer has advanced since the last call."""
        before, self._reported = self._reported, self._next
        return self._next > before


def _consumer_config(servers: str, moves: _Moves) -> dict[str, Any]:
    return kafka_client.client_config(
        servers,
        **{
            "group.id": "tracelake",  # required by the client; it neither joins the group nor commits to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "queued.max.messages.kbytes": _KAFKA_READ_AHEAD_BYTES // 1024,
            "receive.message.max.bytes": _KAFKA_RECEIVE_MAX_BYTES,
            "statistics.interval.ms": int(1000 * min(_KAFKA_STATISTICS_S, KAFKA_WAIT_S / 4)),
            "stats_cb": moves.update,
        },
    )


def remember_cluster(objects: ObjectStore, cluster_id: str, servers: str) -> None:
    """Record the address of a cluster for tasks."""
    objects.put(f"{CLUSTERS}{cluster_id}.json", encode(kafka_client.ClusterRecord(servers)))


def cluster_of(objects: ObjectStore, cluster_id: str) -> Cluster:
    """Return the client of a recorded cluster. Raises StorageError if the lake has no record of the cluster."""
    path = f"{CLUSTERS}{cluster_id}.json"
    try:
        data = objects.get(path)
    except NotFoundError as error:
        raise StorageError(
            f"{path} is missing, and the journal references topics of that cluster. Watch one of them again."
        ) from error
    return Cluster(decode(kafka_client.ClusterRecord, data, path, kafka_client.FORMAT_VERSION).servers)


PARTITION: Final = "kafka"


class ConsumerOffsets:
    """Taken offsets of the partitions of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"{PARTITION}/{pipeline}"

    def find(self, name: kafka_client.PartitionName) -> kafka_client.PartitionPosition | None:
        """Return the taken offsets of a partition, None if it was never polled."""
        entry = self._store.get(self._partition, name.key())
        return None if entry is None else self._decode(entry)

    def begin(self, name: kafka_client.PartitionName, low: int) -> kafka_client.PartitionPosition:
        """Record the first available offset of a partition at its first poll, and return the ranges that are taken.

        Offsets below the first one count as taken. If Kafka deletes later ones before they are read, that is an error.
        A second call changes nothing.
        """
        return self._change(
            name, lambda standing: standing or kafka_client.PartitionPosition(united([(0, low)]))
        )

    def take(self, name: kafka_client.PartitionName, ranges: Iterable[Offsets], size_bytes: int = 0) -> None:
        """Record ranges as taken. Idempotent, and in any order."""
        new = united(ranges)
        messages = sum(stop - start for start, stop in new)

        def decide(standing: kafka_client.PartitionPosition | None) -> kafka_client.PartitionPosition:
            before = standing or kafka_client.PartitionPosition(())
            mean = mean_after(before.mean_bytes, size_bytes, messages) if size_bytes else before.mean_bytes
            return kafka_client.PartitionPosition(united([*before.taken, *new]), mean)

        self._change(name, decide)

    def _change(
        self,
        name: kafka_client.PartitionName,
        decide: Callable[[kafka_client.PartitionPosition | None], kafka_client.PartitionPosition],
    ) -> kafka_client.PartitionPosition:
        return change_record(self._store, self._partition, name.key(), self._decode, encode, decide)

    def _decode(self, entry: Entry) -> kafka_client.PartitionPosition:
        return decode(
            kafka_client.PartitionPosition,
            entry.value,
            f"record {self._partition}/{entry.key}",
            kafka_client.FORMAT_VERSION,
        )


KAFKA: Final = "kafka"


class KafkaSource:
    """Ranges of partitions, identified by name. See `Source`."""

    is_ours = True  # a range is named once, never changes, and is finished once taken

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles) -> None:
        self._objects = objects
        self._positions = ConsumerOffsets(ingested.store, ingested.pipeline)
        self._silent = Backoff[str](longest_s=KAFKA_ASKED_AGAIN_MAX_S)  # clusters that did not answer

    def measured_bytes(self, path: str) -> int:
        """Return the estimated size of a range."""
        name, start, stop = kafka_client.name_of(path)
        with base.may_pass():
            position = self._positions.find(name)
        return _about_bytes(stop - start, None if position is None else position.mean_bytes)

    def judge(
        self, item: base.Input, quarantined: base.QuarantinedIndex
    ) -> base.NewInputs | base.AlreadyRead | base.QuarantinedPaths | base.GoneInput:
        """See `Source`. If offsets of a range were taken or quarantined after the poll, the next poll cuts the range
        anew."""
        suspect = quarantined.by_path.get((item.source, item.path))
        if suspect is not None:
            return base.QuarantinedPaths(suspect)
        name, start, stop = kafka_client.name_of(item.path)
        position = self._positions.find(name)
        ingested = () if position is None else position.taken
        begin = name.path(start, stop).rpartition("/")[0] + "/"
        ranges = (
            kafka_client.name_of(path)
            for source, path in chain(quarantined.by_path, quarantined.open_inputs)
            if source == KAFKA and path.startswith(begin)
        )
        suspects = [(first, last) for _, first, last in ranges]
        busy = (*ingested, *protocol.blocking_ranges(ingested, suspects))
        return base.GoneInput() if protocol.has_any(busy, start, stop) else base.NewInputs()

    def judge_all(
        self, items: Sequence[base.Input], quarantined: base.QuarantinedIndex
    ) -> Iterator[base.Verdict]:
        """See `Source`."""
        return (self.judge(item, quarantined) for item in items)

    def ack(self, inputs: Sequence[RecordedInput]) -> None:
        """Record ranges as taken. Ranges with unreadable messages are first copied to quarantine."""
        by_partition: dict[kafka_client.PartitionName, list[tuple[int, int]]] = defaultdict(list)
        read_bytes: dict[kafka_client.PartitionName, int] = defaultdict(int)
        for each in inputs:
            if each.damaged:
                self._keep(each.path, each.size_bytes)
            name, start, stop = kafka_client.name_of(each.path)
            by_partition[name].append((start, stop))
            read_bytes[name] += each.size_bytes
        for name, ranges in by_partition.items():
            self._positions.take(name, ranges, read_bytes[name])

    def discard(self, path: str, *, unread: bool) -> None:
        """Mark a range as discarded: its expired part if some offsets expired, otherwise the whole range.

        With `unread`, it is the whole range, without asking the broker. If the cluster does not answer, raises
        StorageError; a later run retries after a growing backoff.
        """
        name, start, stop = kafka_client.name_of(path)
        position = self._positions.find(name)
        if position is not None and protocol.has_any(position.taken, start, start + 1):
            return  # discarded before
        low = stop
        if not unread:
            with suppress(NotFoundError), self._asking(name.cluster):
                low = cluster_of(self._objects, name.cluster).low(name)
        self._positions.take(name, [protocol.given_up(start, stop, low)])

    def is_committed(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # names of ranges are never reused
        name, start, stop = kafka_client.name_of(path)
        position = self._positions.find(name)
        return position is not None and protocol.has_all(position.taken, start, stop)

    def _keep(self, path: str, size_bytes: int) -> None:
        with scratch_directory("quarantine") as folder, suppress(NotFoundError):
            with self._asking(kafka_client.name_of(path)[0].cluster):
                try:
                    copy = Path(fetch_range(self._objects, path, size_bytes, folder))
                except OSError as error:
                    raise StorageError(f"{path} cannot be copied to quarantine: {error}") from error
            self._objects.create(base.QUARANTINE + path, copy.read_bytes())

    @contextmanager
    def _asking(self, cluster: str) -> Iterator[None]:
        """Guard calls to a cluster inside the `with` block. During the backoff after a failure, fail at once, because
        repeated waiting would delay every run."""
        failing = self._silent.failing(cluster)
        if failing is not None:
            raise StorageError(failing)
        try:
            yield
        except StorageError as error:
            self._silent.failed(cluster, str(error))
            raise
        self._silent.succeeded(cluster)


def fetch_range(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """Write a range to a local file. See `Fetch`. The exact size is known only afterwards."""
    del size_bytes
    name, start, stop = kafka_client.name_of(path)
    descriptor, copy = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file, base.may_pass():
            for frame in cluster_of(objects, name.cluster).frames(name, start, stop):
                file.write(frame)
    except BaseException:
        with suppress(OSError):
            Path(copy).unlink()
        raise
    return copy


class KafkaWatch:
    """Watch for new offsets of a topic. See `Watch`. Partitions added to the topic are found by the next poll."""

    source = KAFKA

    def __init__(self, objects: ObjectStore, ingested: IngestedFiles, url: str) -> None:
        """Watch a topic, which may not exist yet. Raises UsageError if the URL is invalid."""
        self._address = kafka_client.address_of(url)
        self._objects = objects
        self._positions = ConsumerOffsets(ingested.store, ingested.pipeline)
        self._cluster = Cluster(self._address.servers)
        self._cluster_id: str | None = None
        self._since: dict[str, float] = {}  # first time a range was seen
        self._lag: base.Lag | None = None

    def look(self, suspects: Collection[str], *, continuous: bool) -> list[BacklogEntry]:
        """See `Watch`."""
        try:
            names = self._cluster.partitions(self._known_cluster(), self._address.topic)
        except NotFoundError as error:
            raise StorageError(f"{error}; the next poll retries") from error
        quarantined: dict[kafka_client.PartitionName, list[tuple[int, int]]] = defaultdict(list)
        for path in filter(kafka_client.is_range, suspects):
            name, start, stop = kafka_client.name_of(path)
            quarantined[name].append((start, stop))
        waiting = []
        messages = 0
        for name, ends in self._cluster.ends(names).items():
            pending, pending_messages = self._of_partition(
                name, ends, quarantined[name], continuous=continuous
            )
            waiting += pending
            messages += pending_messages
        self._lag = base.Lag(
            messages, "messages", None, min((each.since_s for each in waiting), default=None)
        )
        self._since = {each.path: each.since_s for each in waiting}
        return waiting

    def _of_partition(
        self,
        name: kafka_client.PartitionName,
        ends: Ends,
        quarantined: Sequence[tuple[int, int]],
        *,
        continuous: bool,
    ) -> tuple[list[BacklogEntry], int]:
        """Return pending ranges, and the total number of pending messages."""
        position = self._positions.find(name) or self._positions.begin(name, ends.low)
        holding = protocol.blocking_ranges(position.taken, quarantined)
        log = protocol.Log(position.taken, holding, ends.low, ends.end)
        messages = protocol.lag(log)
        at_once = protocol.messages_at_once(position.mean_bytes)
        most = _KAFKA_RANGES_AT_ONCE if continuous else max(1, messages)
        now_s = time.time()
        waiting = [
            BacklogEntry(
                path := name.path(start, stop),
                _about_bytes(stop - start, position.mean_bytes),
                self._since.get(path, now_s),
            )
            for start, stop in protocol.ranges(log, at_once, most)
        ]
        return waiting, messages

    def took(self, paths: Iterable[str]) -> None:
        """Do nothing, because the lake records taken offsets."""

    def lag(self) -> base.Lag | None:
        """See `Watch`."""
        return self._lag

    def _known_cluster(self) -> str:
        if self._cluster_id is None:
            cluster_id = self._cluster.id()
            remember_cluster(self._objects, cluster_id, self._address.servers)
            self._cluster_id = cluster_id
        return self._cluster_id


def _about_bytes(messages: int, mean_bytes: float | None) -> int:
    return messages if mean_bytes is None else int(messages * mean_bytes)


def find_topics(objects: ObjectStore, url: str) -> list[base.Input]:
    """Raise UsageError: a topic has no end, so it can only be watched. See `Find`."""
    del objects
    kafka_client.address_of(url)
    raise UsageError(
        "a Kafka topic cannot be ingested, only watched: `tracelake pipeline run --watch URL`, with "
        "--once for its current messages."
    )
