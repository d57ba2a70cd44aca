"""Reading back the records of outputs, for `tracelake verify`; no other system is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

from tracelake._errors import DamageError, UsageError
from tracelake.formats import decode
from tracelake.pipeline.kafka.client import SCHEME, address_of
from tracelake.pipeline.outputs import added, left_out
from tracelake.pipeline.outputs.added import OutputRecord
from tracelake.pipeline.outputs.keyed_protocol import begins_at
from tracelake.pipeline.outputs.left_out import LeftOutRecord
from tracelake.results import Finding
from tracelake.storage import KeyValueStore
from tracelake.storage.record_objects import whole_of

VersionedT = TypeVar("VersionedT", OutputRecord, LeftOutRecord)


def check_outputs(
    key_value: KeyValueStore, upper: Callable[[], int], pipeline: str = "main"
) -> tuple[list[str], list[Finding]]:
    """Return what outputs have left out, in sentences, and what is damaged or contradictory of their records."""
    findings: list[Finding] = []
    records: dict[str, OutputRecord] = {}
    for place, record in _read(
        key_value, f"outputs/{pipeline}", OutputRecord, added.FORMAT_VERSION, findings
    ):
        key = place.removeprefix(f"outputs/{pipeline}/")
        findings += (Finding("mismatch", "record", place, why) for why in _wrong(key, record, upper))
        if record.id in records:
            why = f"it has the id of output {records[record.id].name}: they would share one marker"
            findings.append(Finding("mismatch", "record", place, why))
        records[record.id] = record
    sentences: list[str] = []
    for place, left in _read(
        key_value, f"left-out/{pipeline}", LeftOutRecord, left_out.FORMAT_VERSION, findings
    ):
        of = [each.transaction for each in left.newest]
        if any(after <= before for before, after in pairwise(of)) or left.total < sum(
            each.total for each in left.newest
        ):
            findings.append(
                Finding("mismatch", "record", place, "its transactions do not add up, or do not climb")
            )
        elif of and of[-1] > upper():
            findings.append(
                Finding("mismatch", "record", place, f"it names transaction {of[-1]}, which is to come")
            )
        sentences.append(
            f"output {left.output} has left out {left.total} rows, too large for it: see `tracelake output list`"
        )
    return sentences, findings


def _wrong(key: str, record: OutputRecord, upper: Callable[[], int]) -> Iterator[str]:
    if f"{record.name}/" != key:
        yield f"it says that it is output {record.name}"
    if record.since is not None and not 0 < record.since <= begins_at(upper()):
        yield f"it begins with transaction {record.since}, and the next one is {upper()}"
    if record.to.startswith(f"{SCHEME}://"):
        try:
            address_of(record.to)
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
