"""Topics of Kafka as a source: ranges of offsets, which tasks read themselves, and of which the pipeline keeps account.

Nothing is asked of the broker but to keep its records: no group, and no offset committed there. What is taken stands
in the lake (`kafka/positions.py`), written once a commit holds it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Final

from tracelake._errors import NotFoundError, StorageError, UsageError
from tracelake.journal.known import KnownInputs
from tracelake.journal.model import RecordedInput
from tracelake.limits import KAFKA_ASKED_AGAIN_MAX_S, KAFKA_RANGES_AT_ONCE
from tracelake.pipeline.kafka import protocol
from tracelake.pipeline.kafka.client import address_of
from tracelake.pipeline.kafka.cluster import Cluster, Ends, cluster_of, remember_cluster
from tracelake.pipeline.kafka.model import PartitionName, is_range, name_of
from tracelake.pipeline.kafka.positions import Positions
from tracelake.pipeline.sources.acknowledged import QUARANTINE
from tracelake.pipeline.sources.port import Gone, Held, HeldBack, Input, Known, Lag, New, Verdict, may_pass
from tracelake.replicas.account import Waiting
from tracelake.scratch import scratch_directory
from tracelake.storage import ObjectStore
from tracelake.tasks.pauses import Pauses

KAFKA: Final = "kafka"


class KafkaSource:
    """Ranges of partitions by their names; see `Source`."""

    is_ours = True  # a range is named once, never changes, and is over once it is taken

    def __init__(self, objects: ObjectStore, known: KnownInputs) -> None:
        self._objects = objects
        self._positions = Positions(known.store, known.pipeline)
        self._silent = Pauses[str](longest_s=KAFKA_ASKED_AGAIN_MAX_S)  # clusters that did not answer

    def measured_bytes(self, path: str) -> int:
        """Return about what a range has."""
        name, start, stop = name_of(path)
        with may_pass():
            position = self._positions.find(name)
        return _about_bytes(stop - start, None if position is None else position.mean_bytes)

    def judge(self, item: Input, held: Held) -> New | Known | HeldBack | Gone:
        """See `Source`. Of which some is taken or held back since the look, is cut anew by the next one."""
        suspect = held.by_path.get((item.source, item.path))
        if suspect is not None:
            return HeldBack(suspect)
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
        return Gone() if protocol.has_any(busy, start, stop) else New()

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

    def __init__(self, objects: ObjectStore, known: KnownInputs, url: str) -> None:
        """Watch a topic, which need not be there yet. Raises UsageError."""
        self._address = address_of(url)
        self._objects = objects
        self._positions = Positions(known.store, known.pipeline)
        self._cluster = Cluster(self._address.servers)
        self._cluster_id: str | None = None
        self._since: dict[str, float] = {}  # when a range was seen first
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str], *, goes_on: bool) -> list[Waiting]:
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
    ) -> tuple[list[Waiting], int]:
        """Return ranges that wait, and how many messages wait in all."""
        position = self._positions.find(name) or self._positions.begin(name, ends.low)
        holding = protocol.still_held(position.taken, held)
        log = protocol.Log(position.taken, holding, ends.low, ends.end)
        messages = protocol.lag(log)
        at_once = protocol.messages_at_once(position.mean_bytes)
        most = KAFKA_RANGES_AT_ONCE if goes_on else max(1, messages)
        now_s = time.time()
        waiting = [
            Waiting(
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
