"""Verification of stored records and objects for `tracelake verify`, shared by the packages above.

Each of those packages has a `verify.py` that checks its own records and objects, and returns findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tracelake._errors import TracelakeError
from tracelake.formats import is_intact
from tracelake.results import Finding
from tracelake.storage.object_records import whole_of
from tracelake.storage.ports import Entry, KeyValueStore, ObjectStore


def object_finding(objects: ObjectStore, what: str, path: str, problem: TracelakeError | str) -> Finding:
    """Return the finding for an unreadable object: missing or damaged."""
    is_missing = objects.head(path) is None
    return Finding("missing" if is_missing else "damaged", what, path, str(problem))


def whole_records(
    scan: Callable[[str], Iterable[Entry]], partition: str, findings: list[Finding]
) -> list[Entry]:
    """Return the records of a partition with matching checksums, whatever their kind; add findings for the others.

    A record is named by its partition and key.
    """

    def damaged(key: str, problem: object) -> None:
        findings.append(Finding("damaged", "record", f"{partition}/{key}", str(problem)))

    readable = []
    for entry in whole_of(scan, partition, damaged):
        if is_intact(entry.value):
            readable.append(entry)
        else:
            damaged(
                entry.key,
                f"its checksum does not match its {len(entry.value)} bytes; restore it from a backup",
            )
    return readable


def check_records(key_value: KeyValueStore, partitions: Iterable[str]) -> Iterator[Finding]:
    """Yield findings for the damaged records of partitions."""
    for partition in partitions:
        findings: list[Finding] = []
        whole_records(key_value.scan, partition, findings)
        yield from findings
