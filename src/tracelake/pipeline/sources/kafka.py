"""Topics of Kafka as a source: ranges of offsets, which tasks read themselves, and of which the pipeline keeps account.

Nothing is asked of the broker but to keep its records: no group, and no offset committed there. What is taken stands
in the lake (`kafka/positions.py`), written once a commit holds it.

A cluster of Kafka as the source asks it: topics, offsets, and the messages of a range.

What is taken of each partition: written once a commit holds it, before the next transaction opens.
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

from tracelake._errors import ContentionError, DamageError, NotFoundError, StorageError, UsageError
from tracelake.formats import decode, encode
from tracelake.journal.model import RecordedInput
from tracelake.journal.store import IngestedFiles
from tracelake.limits import (
    CONDITIONAL_WRITE_TRIES_MAX,
    KAFKA_ASKED_AGAIN_MAX_S,
    KAFKA_RANGES_AT_ONCE,
    KAFKA_READ_AHEAD_BYTES,
    KAFKA_READ_MESSAGES,
    KAFKA_RECEIVE_MAX_BYTES,
    KAFKA_STATISTICS_S,
    KAFKA_WAIT_S,
)
from tracelake.otlp.framing import LOG_MAGIC, log_frame, removed_frame
from tracelake.pipeline import protocol
from tracelake.pipeline.kafka_client import (
    FORMAT_VERSION,
    ClusterRecord,
    PartitionName,
    PartitionPosition,
    address_of,
    admin_of,
    as_storage_error,
    client_config,
    code_of,
    is_range,
    library,
    name_of,
    new_client,
)
from tracelake.pipeline.protocol import Offsets, mean_after, united
from tracelake.pipeline.sources.base import (
    QUARANTINE,
    GoneInput,
    Held,
    Input,
    Known,
    Lag,
    NewInputs,
    QuarantinedPaths,
    Verdict,
    may_pass,
)
from tracelake.replicas.replica import BacklogEntry
from tracelake.scratch import scratch_directory
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, ObjectStore
from tracelake.tasks.backoff import Backoff

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
        """Yield a range as a file (`otlp/framing.py`): what is committed of it, and what of it was removed.

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


PARTITION: Final = "kafka"


class ConsumerOffsets:
    """The partitions of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"{PARTITION}/{pipeline}"

    def find(self, name: PartitionName) -> PartitionPosition | None:
        """Return what is taken of a partition, None where it was never looked at."""
        entry = self._store.get(self._partition, name.key())
        return None if entry is None else self._decode(entry)

    def begin(self, name: PartitionName, low: int) -> PartitionPosition:
        """Note, at the first look at a partition, what it has: what comes after is lost only by name."""
        return self._change(name, lambda standing: standing or PartitionPosition(united([(0, low)])))

    def take(self, name: PartitionName, taken: Iterable[Offsets], size_bytes: int = 0) -> None:
        """Note that ranges are taken; again, and in any order, is fine."""
        new = united(taken)
        messages = sum(stop - start for start, stop in new)

        def decide(standing: PartitionPosition | None) -> PartitionPosition:
            before = standing or PartitionPosition(())
            mean = mean_after(before.mean_bytes, size_bytes, messages) if size_bytes else before.mean_bytes
            return PartitionPosition(united([*before.taken, *new]), mean)

        self._change(name, decide)

    def _change(
        self, name: PartitionName, decide: Callable[[PartitionPosition | None], PartitionPosition]
    ) -> PartitionPosition:
        """Carry out a decision; one that was carried out, and whose reply was lost, changes little the second time."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._store.get(self._partition, name.key())
            standing = None if entry is None else self._decode(entry)
            wanted = decide(standing)
            if wanted == standing:
                return wanted
            expected = ABSENT if entry is None else entry.version
            if isinstance(self._store.set_if(self._partition, name.key(), encode(wanted), expected), Done):
                return wanted
        raise ContentionError(
            f"{self._partition}/{name.key()}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def _decode(self, entry: Entry) -> PartitionPosition:
        return decode(PartitionPosition, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)


KAFKA: Final = "kafka"


class KafkaSource:
    """Ranges of partitions by their names; see `Source`."""

    is_ours = True  # a range is named once, never changes, and is over once it is taken

    def __init__(self, objects: ObjectStore, known: IngestedFiles) -> None:
        self._objects = objects
        self._positions = ConsumerOffsets(known.store, known.pipeline)
        self._silent = Backoff[str](longest_s=KAFKA_ASKED_AGAIN_MAX_S)  # clusters that did not answer

    def measured_bytes(self, path: str) -> int:
        """Return about what a range has."""
        name, start, stop = name_of(path)
        with may_pass():
            position = self._positions.find(name)
        return _about_bytes(stop - start, None if position is None else position.mean_bytes)

    def judge(self, item: Input, held: Held) -> NewInputs | Known | QuarantinedPaths | GoneInput:
        """See `Source`. Of which some is taken or held back since the look, is cut anew by the next one."""
        suspect = held.by_path.get((item.source, item.path))
        if suspect is not None:
            return QuarantinedPaths(suspect)
        name, start, stop = name_of(item.path)
        position = self._positions.find(name)
        taken = () if position is None else position.taken
        begin = name.path(start, stop).rpartition("/")[0] + "/"
        ranges = (
            name_of(path)
            for source, path in chain(held.by_path, held.in_open)
            if source == KAFKA and path.startswith(begin)
        )
        suspects = [(first, last) for _, first, last in ranges]
        busy = (*taken, *protocol.still_held(taken, suspects))
        return GoneInput() if protocol.has_any(busy, start, stop) else NewInputs()

    def judge_all(self, items: Sequence[Input], held: Held) -> Iterator[Verdict]:
        """See `Source`."""
        return (self.judge(item, held) for item in items)

    def let_go(self, taken: Sequence[RecordedInput]) -> None:
        """Note what is taken; ranges with messages that could not be read are kept in quarantine first."""
        by_partition: dict[PartitionName, list[tuple[int, int]]] = defaultdict(list)
        read_bytes: dict[PartitionName, int] = defaultdict(int)
        for each in taken:
            if each.damaged:
                self._keep(each.path, each.size_bytes)
            name, start, stop = name_of(each.path)
            by_partition[name].append((start, stop))
            read_bytes[name] += each.size_bytes
        for name, ranges in by_partition.items():
            self._positions.take(name, ranges, read_bytes[name])

    def give_up(self, path: str, *, unread: bool) -> None:
        """Note that it is not taken: what of it is lost, or, where nothing is, or nobody answers for it, all of it.

        A cluster that does not answer is asked again after a pause, which grows. Raises StorageError till then.
        """
        name, start, stop = name_of(path)
        position = self._positions.find(name)
        if position is not None and protocol.has_any(position.taken, start, start + 1):
            return  # it was given up before
        low = stop
        if not unread:
            with suppress(NotFoundError), self._asking(name.cluster):
                low = cluster_of(self._objects, name.cluster).low(name)
        self._positions.take(name, [protocol.given_up(start, stop, low)])

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # no range ever has the name of another
        name, start, stop = name_of(path)
        position = self._positions.find(name)
        return position is not None and protocol.has_all(position.taken, start, stop)

    def _keep(self, path: str, size_bytes: int) -> None:
        with scratch_directory("quarantine") as folder, suppress(NotFoundError):
            with self._asking(name_of(path)[0].cluster):
                try:
                    copy = Path(fetch_range(self._objects, path, size_bytes, folder))
                except OSError as error:
                    raise StorageError(f"{path} cannot be kept in quarantine: {error}") from error
            self._objects.create(QUARANTINE + path, copy.read_bytes())

    @contextmanager
    def _asking(self, cluster: str) -> Iterator[None]:
        """Ask a cluster, unless it did not answer lately: what is left to do at each run must not hold up each run."""
        failing = self._silent.failing(cluster)
        if failing is not None:
            raise StorageError(failing)
        try:
            yield
        except StorageError as error:
            self._silent.failed(cluster, str(error))
            raise
        self._silent.went_well(cluster)


def fetch_range(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """See `Fetch`. How many bytes a range has is known only then."""
    del size_bytes
    name, start, stop = name_of(path)
    descriptor, copy = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file, may_pass():
            for frame in cluster_of(objects, name.cluster).frames(name, start, stop):
                file.write(frame)
    except BaseException:
        with suppress(OSError):
            Path(copy).unlink()
        raise
    return copy


class KafkaWatch:
    """Looks what a topic has that is not taken; see `Watch`. Partitions that are added are found with the next look."""

    source = KAFKA

    def __init__(self, objects: ObjectStore, known: IngestedFiles, url: str) -> None:
        """Watch a topic, which need not be there yet. Raises UsageError."""
        self._address = address_of(url)
        self._objects = objects
        self._positions = ConsumerOffsets(known.store, known.pipeline)
        self._cluster = Cluster(self._address.servers)
        self._cluster_id: str | None = None
        self._since: dict[str, float] = {}  # when a range was seen first
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str], *, goes_on: bool) -> list[BacklogEntry]:
        """See `Watch`."""
        try:
            names = self._cluster.partitions(self._known_cluster(), self._address.topic)
        except NotFoundError as error:
            raise StorageError(f"{error}; it is looked for again") from error
        held: dict[PartitionName, list[tuple[int, int]]] = defaultdict(list)
        for path in filter(is_range, suspects):
            name, start, stop = name_of(path)
            held[name].append((start, stop))
        waiting = []
        messages = 0
        for name, ends in self._cluster.ends(names).items():
            some, left = self._of_partition(name, ends, held[name], goes_on=goes_on)
            waiting += some
            messages += left
        self._lag = Lag(messages, "messages", None, min((each.since_s for each in waiting), default=None))
        self._since = {each.path: each.since_s for each in waiting}
        return waiting

    def _of_partition(
        self, name: PartitionName, ends: Ends, held: Sequence[tuple[int, int]], *, goes_on: bool
    ) -> tuple[list[BacklogEntry], int]:
        """Return ranges that wait, and how many messages wait in all."""
        position = self._positions.find(name) or self._positions.begin(name, ends.low)
        holding = protocol.still_held(position.taken, held)
        log = protocol.Log(position.taken, holding, ends.low, ends.end)
        messages = protocol.lag(log)
        at_once = protocol.messages_at_once(position.mean_bytes)
        most = KAFKA_RANGES_AT_ONCE if goes_on else max(1, messages)
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
        """Note nothing: what was taken stands in the lake."""

    def lag(self) -> Lag | None:
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


def find_topics(objects: ObjectStore, url: str) -> list[Input]:
    """See `Find`: a topic has no end, and is watched."""
    del objects
    address_of(url)
    raise UsageError(
        "a topic of Kafka is watched: `tracelake pipeline run --watch URL`, with --once for what it has now."
    )
