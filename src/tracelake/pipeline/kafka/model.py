"""Records of Kafka as a source: which offsets are taken, where a cluster is; and the names of ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tracelake._errors import DamageError
from tracelake.journal.model import OffsetRange

FORMAT_VERSION: Final = 1
_PATH: Final = re.compile(r"kafka/([^/]+)/([^/]+)/([^/]+)/(\d+)/(\d+)-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class PartitionName:
    """One partition, which no other is ever taken for: a topic that is deleted and made anew has another id."""

    cluster: str
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic}"

    def key(self) -> str:
        """Return its key in records."""
        return f"{self.cluster}/{self.topic}/{self.topic_id}/{self.partition:010d}"

    def path(self, start: int, stop: int) -> str:
        """Return the name of a range of it, as an input."""
        return f"kafka/{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}/{start}-{stop}"


def name_of(path: str) -> tuple[PartitionName, int, int]:
    """Return what the name of a range says: its partition, the first offset, and the one behind the last."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise DamageError(f"{path!r} names no range of a partition of Kafka. Restore the journal.")
    cluster, topic, topic_id, partition, start, stop = match.groups()
    return PartitionName(cluster, topic, topic_id, int(partition)), int(start), int(stop)


def is_range(path: str) -> bool:
    """Whether a name is that of a range of Kafka."""
    return _PATH.fullmatch(path) is not None


def to_offset_range(path: str, **taken: Any) -> OffsetRange:
    """Return what was read of a range as the journal records it."""
    name, start, stop = name_of(path)
    return OffsetRange(
        cluster=name.cluster,
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        start=start,
        stop=stop,
        **taken,
    )


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of one partition is taken."""

    taken: tuple[tuple[int, int], ...]
    """Ranges of offsets in order, none of which touches another; before the first look began, all that was gone."""
    mean_bytes: float | None = None
    """What an offset had in the mean, to cut ranges by."""
    format_version: int = FORMAT_VERSION


class ClusterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tasks find a cluster: its brokers as a pipeline was last told them. Credentials stand nowhere."""

    servers: str
    format_version: int = FORMAT_VERSION
