"""Checks of a pipeline for `tracelake verify`: journal, tables, index and commits must agree on the same rows.

It also checks the records of Kafka topics and outputs, without contacting a broker or another system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final, TypeVar

from tracelake._errors import DamageError, UsageError
from tracelake.formats import decode
from tracelake.indexing.build import live_rows_by_transaction
from tracelake.journal.model import OffsetRange, Step, inputs_of
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import IngestedFiles
from tracelake.pipeline import kafka_client
from tracelake.pipeline.outputs import configured, external
from tracelake.pipeline.outputs.configured import OutputRecord
from tracelake.pipeline.outputs.external import OversizedRecord
from tracelake.pipeline.protocol import begins_at, has_all, united
from tracelake.pipeline.run_result import shown
from tracelake.pipeline.sources.kafka import CLUSTERS, PARTITION
from tracelake.pipeline.sources.registry import SourceRegistry
from tracelake.results import Finding, SetAsideInput
from tracelake.search.verify import IndexCheck
from tracelake.shards.verify import ShardCheck
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.ports import whole_of
from tracelake.tables.view import INDEX_ENTRY
from tracelake.versions.model import IndexAt
from tracelake.versions.verify import CheckedCommit


def check_quarantine(
    key_value: KeyValueStore, objects: ObjectStore
) -> tuple[tuple[SetAsideInput, ...], list[Finding]]:
    """Return the quarantined inputs, and a finding for each quarantined inbox segment that is missing."""
    suspects = QuarantineStore(key_value, "main").all()
    sources = SourceRegistry(objects, IngestedFiles(key_value, "main"))
    missing = [
        Finding("missing", "file", suspect.path, "an inbox segment that is set aside is missing")
        for suspect in suspects
        if suspect.state == "set aside"
        and (source := sources[suspect.source]).is_ours
        and source.is_committed(suspect.path, suspect.size_bytes, suspect.sha256)
    ]
    return tuple(map(shown, suspects)), missing


_NOTHING_ERASED: Final[Mapping[int, int]] = MappingProxyType({})


def check_counts(
    commits: list[CheckedCommit],
    steps: Mapping[int, Step],
    spans: ShardCheck,
    erased: Mapping[int, int] = _NOTHING_ERASED,
) -> Iterator[Finding]:
    """Compare the spans that each transaction read with the counts in its batch and commit. `erased` are the rows that
    erasures removed, by transaction."""
    counted = {batch.lower: batch.counts for batch in spans.batches if batch.counts}
    for committed in commits:
        t, metadata = committed.transaction, committed.commit.metadata
        if t is None:
            continue
        recorded_counts = {name: int(metadata[f"spans_{name}"]) for name in ("new", "replaced", "repeated")}
        step = steps.get(t)
        if step is not None:
            read = sum(recorded_range.spans for ranges in step.sources.values() for recorded_range in ranges)
            if read != sum(recorded_counts.values()):
                detail = f"it read {read} spans, and its commit says {recorded_counts}"
                yield Finding("mismatch", "journal", f"transaction {t}", detail)
        rows = spans.inserted(t)
        if rows is None:
            continue
        repriced = int(metadata.get("spans_repriced", 0))
        expected = recorded_counts["new"] + recorded_counts["replaced"] + repriced
        erased_rows = erased.get(t, 0)
        if rows + erased_rows == 0 and expected:
            detail = f"table spans has no batch of it, and its commit says {recorded_counts}"
            yield Finding("missing", "batch", f"transaction {t}", detail)
        elif (
            not rows <= expected <= rows + erased_rows  # an open erasure may have removed some of them
            or {name: counted.get(t, recorded_counts)[name] for name in recorded_counts} != recorded_counts
        ):
            detail = f"it has {rows} rows and counted {counted.get(t)}, and its commit says {recorded_counts}"
            yield Finding("mismatch", "batch", f"transaction {t}", detail)


def check_index(
    objects: ObjectStore, commits: list[CheckedCommit], spans: ShardCheck, buckets: int
) -> tuple[IndexCheck, list[Finding]]:
    """Check the index as of every commit against the rows of table `spans`. Return the check and its findings."""

    def live_at(t: int, some: range | None) -> Mapping[int, int] | None:
        if spans.unknown or t < spans.shard.state().since:
            return None  # some rows are unreadable, or forgotten
        snapshot = spans.shard.snapshot(t)
        return live_rows_by_transaction(objects, snapshot.for_buckets(set(some or range(buckets))))

    check = IndexCheck(objects, spans.inserted, live_at)
    findings: list[Finding] = []
    for committed in commits:
        reference = committed.entries.get(INDEX_ENTRY)
        if isinstance(reference, IndexAt):
            findings += check.manifest(reference.manifest)
        elif committed.transaction is not None:
            detail = f"it names no {INDEX_ENTRY}"
            findings.append(Finding("mismatch", "commit", f"transaction {committed.transaction}", detail))
    findings += check.parts()
    return check, findings


def check_topics(
    key_value: KeyValueStore,
    objects: ObjectStore,
    steps: Mapping[int, Step],
    settled: int,
    quarantined_paths: Collection[str] = (),
    pipeline: str = "main",
) -> Iterator[Finding]:
    """Yield missing, damaged or contradictory records of partitions and clusters.

    All offsets that transactions below `settled` read must be recorded as taken, except inputs in `quarantined_paths`.
    """
    partition = f"{PARTITION}/{pipeline}"
    damaged: dict[str, str] = {}
    positions: dict[str, kafka_client.PartitionPosition] = {}
    entries = whole_of(key_value.scan, partition, lambda key, error: damaged.update({key: str(error)}))
    for entry in entries:
        try:
            positions[entry.key] = decode(
                kafka_client.PartitionPosition,
                entry.value,
                f"record {partition}/{entry.key}",
                kafka_client.FORMAT_VERSION,
            )
        except DamageError as error:
            damaged[entry.key] = str(error)
    for key, why in damaged.items():
        yield Finding("damaged", "record", f"{partition}/{key}", why)
    for key, position in positions.items():
        if united(position.taken) != position.taken or any(start < 0 for start, _ in position.taken):
            detail = f"its ranges are not in order, or overlap: {position.taken[:5]}"
            yield Finding("mismatch", "record", f"{partition}/{key}", detail)
    yield from _check_ingested(steps, settled, quarantined_paths, positions, damaged, partition)
    yield from _check_clusters(objects, {key.partition("/")[0] for key in (*positions, *damaged)})


def _check_ingested(
    steps: Mapping[int, Step],
    settled: int,
    quarantined_paths: Collection[str],
    positions: Mapping[str, kafka_client.PartitionPosition],
    damaged: Mapping[str, str],
    partition: str,
) -> Iterator[Finding]:
    by_partition: dict[kafka_client.PartitionName, list[tuple[int, int, int]]] = defaultdict(list)
    for t, step in steps.items():
        for recorded_input in (
            recorded_input for ranges in step.sources.values() for recorded_input in inputs_of(ranges)
        ):
            if isinstance(recorded_input, OffsetRange):
                name, start, stop = kafka_client.name_of(recorded_input.path)
                by_partition[name].append((start, stop, t))
    for name, ranges in by_partition.items():
        key = name.key()
        position = positions.get(key)
        for start, stop, t in ranges:
            if t >= settled or key in damaged or name.path(start, stop) in quarantined_paths:
                continue
            if position is None or not has_all(position.taken, start, stop):
                detail = (
                    f"transaction {t} has offsets {start} to {stop - 1}, which are not recorded as ingested"
                )
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
                "the address of a cluster is not recorded, although its topics were read: watch one of "
                "them again"
            )
            yield Finding("missing", "record", path, detail)
    for path in sorted(paths):
        try:
            decode(kafka_client.ClusterRecord, objects.get(path), path, kafka_client.FORMAT_VERSION)
        except DamageError as error:
            yield Finding("damaged", "record", path, f"{error} Or watch a topic of that cluster again.")


VersionedT = TypeVar("VersionedT", OutputRecord, OversizedRecord)


def check_outputs(
    key_value: KeyValueStore, upper: Callable[[], int], pipeline: str = "main"
) -> tuple[list[str], list[Finding]]:
    """Return sentences about rows that outputs left out, and findings about damaged or contradictory output records."""
    findings: list[Finding] = []
    records: dict[str, OutputRecord] = {}
    for place, record in _read(
        key_value, f"outputs/{pipeline}", OutputRecord, configured.FORMAT_VERSION, findings
    ):
        key = place.removeprefix(f"outputs/{pipeline}/")
        findings += (Finding("mismatch", "record", place, why) for why in _wrong(key, record, upper))
        if record.id in records:
            why = f"it has the id of output {records[record.id].name}, so they would share one marker"
            findings.append(Finding("mismatch", "record", place, why))
        records[record.id] = record
    sentences: list[str] = []
    for place, oversized in _read(
        key_value, f"left-out/{pipeline}", OversizedRecord, external.FORMAT_VERSION, findings
    ):
        of = [each.transaction for each in oversized.newest]
        if any(after <= before for before, after in pairwise(of)) or oversized.total < sum(
            each.total for each in oversized.newest
        ):
            findings.append(
                Finding(
                    "mismatch",
                    "record",
                    place,
                    "its counts do not add up, or its transactions are not in order",
                )
            )
        elif of and of[-1] > upper():
            findings.append(
                Finding(
                    "mismatch", "record", place, f"it names transaction {of[-1]}, which does not exist yet"
                )
            )
        sentences.append(
            f"output {oversized.output} has omitted {oversized.total} rows that are too large for it: "
            "see "
            "`tracelake output list`"
        )
    return sentences, findings


def _wrong(key: str, record: OutputRecord, upper: Callable[[], int]) -> Iterator[str]:
    if f"{record.name}/" != key:
        yield f"it says that it is output {record.name}"
    if record.since is not None and not 0 < record.since <= begins_at(upper()):
        yield f"it begins with transaction {record.since}, but the next one is {upper()}"
    if record.to.startswith(f"{kafka_client.SCHEME}://"):
        try:
            kafka_client.address_of(record.to)
        except UsageError as error:
            yield str(error)


def _read(
    key_value: KeyValueStore, partition: str, kind: type[VersionedT], version: int, findings: list[Finding]
) -> Iterator[tuple[str, VersionedT]]:
    def damaged(key: str, error: DamageError) -> None:
        findings.append(Finding("damaged", "record", f"{partition}/{key}", str(error)))

    for entry in whole_of(key_value.scan, partition, damaged):
        place = f"{partition}/{entry.key}"
        try:
            yield place, decode(kind, entry.value, f"record {place}", version)
        except DamageError as error:
            damaged(entry.key, error)
