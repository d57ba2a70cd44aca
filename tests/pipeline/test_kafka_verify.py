"""`verify` checks what the lake knows of topics and outputs, and names missing, damaged and contradictory records."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

import tracelake
from tests.pipeline.kafka_place import URL, KafkaPlace
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.formats import encode
from tracelake.pipeline.kafka_client import PartitionPosition
from tracelake.pipeline.outputs.configured import OutputRecord
from tracelake.pipeline.outputs.external import OversizedInTransaction, OversizedRecord
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tasks.runners import InProcess

PARTITIONS = ("kafka/main", "outputs/main", "left-out/main")
POSITION = ("kafka/main", "cluster/topic/id/0000000000")
Change = Callable[[KeyValueStore, ObjectStore], None]


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    """Return a lake with transactions from a topic, to be damaged and repaired."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as opened,
    ):
        place = KafkaPlace([]).used(patch)
        pipeline = opened.pipeline(watch=[URL], runner=InProcess())
        for number in range(4):
            place.values.append(a_line(a_span(number, number)))
            pipeline.run_once()
        pipeline.run_once()
        yield opened


def a_record(partition: str, key: str, value: bytes | None) -> Change:
    """Return a function that replaces or deletes a record."""

    def change(store: KeyValueStore, _: ObjectStore) -> None:
        if value is not None:
            store.set(partition, key, value)
        else:
            entry = store.get(partition, key)
            assert entry is not None
            store.delete_if(partition, key, entry.version)

    return change


def an_object(path: str, data: bytes | None) -> Change:
    """Return a function that replaces or deletes an object."""
    return lambda _, objects: objects.delete(path) if data is None else objects.put(path, data)


def output(name: str, since: int = 1, to: str = "kafka://b:1/t", of: str = "id") -> Change:
    """Return a function that writes the record of an output."""
    return a_record("outputs/main", "o/", encode(OutputRecord(name, to, of, since=since)))


def left_out(*transactions: int, total: int) -> Change:
    """Return a function that writes the record of oversized rows."""
    newest = tuple(OversizedInTransaction(t, 1, 10, ()) for t in transactions)
    return a_record("left-out/main", "id", encode(OversizedRecord("o", total, newest)))


@pytest.mark.parametrize(
    ("change", "kind", "detail"),
    [
        (a_record(*POSITION, b"nonsense"), "damaged", "kafka/main/cluster"),
        (a_record(*POSITION, None), "missing", "transaction 0 has offsets 0 to 0"),
        (
            a_record(*POSITION, encode(PartitionPosition(((1, 4),)))),
            "mismatch",
            "transaction 0 has offsets 0 to 0",
        ),
        (
            a_record(*POSITION, encode(PartitionPosition(((0, 2), (2, 4))))),
            "mismatch",
            "not in order, or overlap",
        ),
        (an_object("kafka/cluster.json", None), "missing", "the address of a cluster is not recorded"),
        (an_object("kafka/cluster.json", b"{"), "damaged", "kafka/cluster.json"),
        (a_record("outputs/main", "o/", b"nonsense"), "damaged", "outputs/main/o/"),
        (output("p"), "mismatch", "says that it is output p"),
        (output("o", since=99), "mismatch", "begins with transaction 99"),
        (output("o", to="kafka://b/t"), "mismatch", "a Kafka address names"),
        (a_record("left-out/main", "id", b"nonsense"), "damaged", "left-out/main/id"),
        (left_out(2, 1, total=2), "mismatch", "are not in order"),
        (left_out(1, 2, total=1), "mismatch", "do not add up"),
        (left_out(99, total=1), "mismatch", "which does not exist yet"),
    ],
)
def test_what_is_wrong_with_records_is_named(lake: Lake, change: Change, kind: str, detail: str) -> None:
    """Each record is read and compared with the journal and the other records."""
    store, objects = lake._opened.key_value, lake.objects
    kept = {partition: store.scan(partition) for partition in PARTITIONS}
    cluster = objects.get("kafka/cluster.json")
    change(store, objects)
    try:
        findings = [each for each in lake.verify().findings if each.kind == kind]
        assert any(detail in f"{each.path} {each.detail}" for each in findings), findings
    finally:
        objects.put("kafka/cluster.json", cluster)
        for partition, entries in kept.items():
            for entry in store.scan(partition):
                store.delete_if(partition, entry.key, entry.version)
            for entry in entries:
                store.set(partition, entry.key, entry.value)


def test_a_lake_with_topics_and_outputs_is_whole(lake: Lake) -> None:
    """An intact lake has no findings."""
    assert lake.verify().ok
