"""Kafka ranges without a broker: the pipeline's requests and the replies."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tracelake._errors import NotFoundError
from tracelake.journal.store import IngestedFiles
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.kafka_client import PartitionName
from tracelake.pipeline.sources import kafka
from tracelake.pipeline.sources.base import GoneInput, Input, NewInputs, QuarantinedIndex
from tracelake.pipeline.sources.kafka import KAFKA, Cluster, KafkaSource, remember_cluster
from tracelake.pipeline.staging import InputReader, ReadInput
from tracelake.storage import open_key_value, open_objects
from tracelake.tasks.runners import InProcess

NAME = PartitionName("cluster", "topic", "id", 0)


def a_source() -> KafkaSource:
    """Return the source of a new lake, with the cluster configured."""
    url = f"memory://{uuid.uuid4().hex}"
    objects = open_objects(url)
    remember_cluster(objects, NAME.cluster, "broker:1")
    return KafkaSource(objects, IngestedFiles(open_key_value(f"{url}/metadata"), "main"))


def test_a_range_that_an_open_transaction_has_in_part_is_cut_anew() -> None:
    """A range that overlaps an open transaction is cut again: an offset is in exactly one transaction."""
    source = a_source()
    held = QuarantinedIndex({}, {}, frozenset(), frozenset([(KAFKA, NAME.path(10, 20))]))
    for start, stop, judged in [
        (0, 10, NewInputs),
        (0, 11, GoneInput),
        (10, 20, GoneInput),
        (19, 30, GoneInput),
        (20, 30, NewInputs),
    ]:
        assert isinstance(source.judge(Input(KAFKA, NAME.path(start, stop), 1), held), judged), (start, stop)


def test_of_ranges_that_overlap_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two polls of a growing topic return overlapping ranges, one range is taken."""
    url = f"memory://{uuid.uuid4().hex}"
    read: list[str] = []

    def stage(_reader: InputReader, inputs: Sequence[Input], *_: Any) -> ReadInput:
        read.extend(item.path for item in inputs)
        return ReadInput({}, [], tuple(inputs))

    monkeypatch.setattr(InputReader, "stage", stage)
    pipeline = Pipeline("main", open_key_value(f"{url}/metadata"), open_objects(url), 2, InProcess())
    ranges = [(0, 10), (0, 12), (12, 14), (10, 14)]
    pipeline.run([[Input(KAFKA, NAME.path(start, stop), 1) for start, stop in ranges]])
    assert read == [NAME.path(0, 10), NAME.path(12, 14)]


def of_another_id(cluster_id: str, topic: str) -> list[PartitionName]:
    """A recreated topic."""
    return [PartitionName(cluster_id, topic, "another", 0)]


def gone(cluster_id: str, topic: str) -> list[PartitionName]:
    """A topic that was deleted."""
    raise NotFoundError(f"no topic {topic} at {cluster_id}")


@pytest.mark.parametrize("partitions", [of_another_id, gone])
def test_ranges_of_a_topic_that_is_gone_can_be_given_up(
    partitions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted topic's ranges count as finished, because nothing remains to read; no broker's reply about another
    topic counts."""

    class Deleted(Cluster):
        def __init__(self) -> None:
            self.servers = "broker:1"
            self.partitions = partitions  # type: ignore[method-assign]  # what the broker would say

        def _offsets(self, *_: Any) -> dict[PartitionName, int]:
            raise AssertionError("nothing is asked of a topic that is gone")

    monkeypatch.setattr(kafka, "cluster_of", lambda _objects, _cluster: Deleted())
    source = a_source()
    source.discard(NAME.path(5, 9), unread=False)
    assert source.is_committed(NAME.path(5, 9), 0, "")
