"""Reading back what the lake knows of topics of Kafka, for `tracelake verify`; no broker is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from tracelake._errors import DamageError
from tracelake.formats import decode
from tracelake.journal.model import OffsetRange, Step
from tracelake.journal.runs import inputs_of
from tracelake.pipeline.kafka.cluster import CLUSTERS
from tracelake.pipeline.kafka.model import FORMAT_VERSION, ClusterRecord, PartitionName, Position, name_of
from tracelake.pipeline.kafka.positions import PARTITION
from tracelake.pipeline.kafka.protocol import has_all, united
from tracelake.results import Finding
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.record_objects import whole_of


def check_topics(
    key_value: KeyValueStore,
    objects: ObjectStore,
    steps: Mapping[int, Step],
    settled: int,
    kept: Collection[str] = (),
    pipeline: str = "main",
) -> Iterator[Finding]:
    """Yield what is missing, damaged or contradictory of the records of partitions and clusters.

    Of transactions below `settled`, with these steps, all that was read is noted as taken, but what is `kept` by name.
    """
    partition = f"{PARTITION}/{pipeline}"
    damaged: dict[str, str] = {}
    positions: dict[str, Position] = {}
    entries = whole_of(key_value.scan, partition, lambda key, error: damaged.update({key: str(error)}))
    for entry in entries:
        try:
            positions[entry.key] = decode(
                Position, entry.value, f"record {partition}/{entry.key}", FORMAT_VERSION
            )
        except DamageError as error:
            damaged[entry.key] = str(error)
    for key, why in damaged.items():
        yield Finding("damaged", "record", f"{partition}/{key}", why)
    for key, position in positions.items():
        if united(position.taken) != position.taken or any(start < 0 for start, _ in position.taken):
            detail = f"its ranges are not in order, or touch: {position.taken[:5]}"
            yield Finding("mismatch", "record", f"{partition}/{key}", detail)
    yield from _check_taken(steps, settled, kept, positions, damaged, partition)
    yield from _check_clusters(objects, {key.partition("/")[0] for key in (*positions, *damaged)})


def _check_taken(
    steps: Mapping[int, Step],
    settled: int,
    kept: Collection[str],
    positions: Mapping[str, Position],
    damaged: Mapping[str, str],
    partition: str,
) -> Iterator[Finding]:
    by_partition: dict[PartitionName, list[tuple[int, int, int]]] = defaultdict(list)
    for t, step in steps.items():
        for taken in (taken for ranges in step.sources.values() for taken in inputs_of(ranges)):
            if isinstance(taken, OffsetRange):
                name, start, stop = name_of(taken.path)
                by_partition[name].append((start, stop, t))
    for name, ranges in by_partition.items():
        key = name.key()
        position = positions.get(key)
        for start, stop, t in ranges:
            if t >= settled or key in damaged or name.path(start, stop) in kept:
                continue
            if position is None or not has_all(position.taken, start, stop):
                detail = f"transaction {t} has offsets {start} to {stop - 1}, and they are not noted as taken"
                kind = "missing" if position is None else "mismatch"
                yield Finding(kind, "record", f"{partition}/{key}", detail)
        for (_, stop, before), (start, _, after) in pairwise(sorted(ranges)):
            if start < stop:
                detail = f"transactions {before} and {after} both have offset {start} of {name}"
                yield Finding("mismatch", "journal", f"transaction {after}", detail)


def _check_clusters(objects: ObjectStore, watched: set[str]) -> Iterator[Finding]:
    paths = {info.path for info in objects.list(CLUSTERS)}
    for cluster in sorted(watched):
        if (path := f"{CLUSTERS}{cluster}.json") not in paths:
            detail = (
                "where a cluster is stands nowhere, and topics of it were read: watch a topic of it again"
            )
            yield Finding("missing", "record", path, detail)
    for path in sorted(paths):
        try:
            decode(ClusterRecord, objects.get(path), path, FORMAT_VERSION)
        except DamageError as error:
            yield Finding("damaged", "record", path, f"{error} Or watch a topic of that cluster again.")
