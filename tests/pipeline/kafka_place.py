"""An in-memory Kafka cluster that may be unavailable: the pipeline's view of a cluster, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from tracelake._errors import DamageError, NotFoundError, StorageError
from tracelake.pipeline.kafka_client import PartitionName
from tracelake.pipeline.sources import kafka
from tracelake.pipeline.sources import kafka as clusters
from tracelake.pipeline.sources.kafka import Cluster, Ends
from tracelake.storage import ObjectStore

SERVERS = "broker:1"
URL = f"kafka://{SERVERS}/topic"


@dataclass
class KafkaPlace:
    """One topic with one partition."""

    values: list[bytes] = field(default_factory=list)
    low: int = 0
    is_gone: bool = False
    corrupt: int | None = None
    """An unreadable offset."""
    asked: int = 0
    """The number of times a broker was looked up."""

    def ask(self) -> None:
        """Answer, or fail if the cluster is away."""
        self.asked += 1
        if self.is_gone:
            raise StorageError("no broker answered")

    def used(self, patch: pytest.MonkeyPatch) -> KafkaPlace:
        """Make all sources use this cluster."""

        class Asked(PlacedCluster):
            place = self

        patch.setattr(kafka, "Cluster", Asked)
        patch.setattr(clusters, "Cluster", Asked)
        return self


class PlacedCluster(Cluster):
    """The cluster as the source's client sees it."""

    place: KafkaPlace

    def __init__(self, servers: str) -> None:
        self.servers = servers

    def id(self) -> str:
        """See `Cluster`."""
        self.place.ask()
        return "cluster"

    def partitions(self, cluster_id: str, topic: str) -> list[PartitionName]:
        """See `Cluster`."""
        self.place.ask()
        return [PartitionName(cluster_id, topic, "id", 0)]

    def ends(self, names: Iterable[PartitionName]) -> dict[PartitionName, Ends]:
        """See `Cluster`."""
        self.place.ask()
        return {name: Ends(self.place.low, len(self.place.values)) for name in names}

    def low(self, name: PartitionName) -> int:
        """See `Cluster`."""
        self.place.ask()
        if name.topic_id != "id":
            raise NotFoundError("made anew")
        return self.place.low

    def messages(self, name: PartitionName, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
        """See `Cluster`."""
        del name
        self.place.ask()
        for offset in range(start, stop):
            if offset < self.place.low:
                return
            if offset == self.place.corrupt:
                raise DamageError(f"messages from offset {offset} on are corrupt")
            yield offset, self.place.values[offset]
        yield stop, None


def answering(objects: ObjectStore) -> None:
    """Register the cluster, as if it had been watched before."""
    clusters.remember_cluster(objects, "cluster", SERVERS)
