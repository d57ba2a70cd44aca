"""Verification of stored records and objects for `tracelake verify`, shared by the packages above.

Each of those packages has a `verify.py` that checks its own records and objects, and returns findings.

SQLite and most PostgreSQL clusters have no checksums of their pages. So the version of a record in a SQL database ends
with a checksum of the whole row: partition, key, value and write id. A version is opaque to its readers, so this needs
no new column, and rows of earlier releases, whose versions have no checksum, stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import xxhash

from tracelake._errors import DamagedRecordsError, DamageError, TracelakeError
from tracelake.formats import is_intact
from tracelake.results import Finding
from tracelake.storage.ports import Entry, KeyValueStore, ObjectStore, Version, new_version


def whole_of(
    scan: Callable[[str], Iterable[Entry]],
    partition: str,
    damaged: Callable[[str, DamageError], None] = lambda _key, _error: None,
) -> list[Entry]:
    """Return the readable records of a partition; call `damaged` with the key and error of each other one."""
    try:
        return list(scan(partition))
    except DamagedRecordsError as error:
        for key, problem in error.problems:
            damaged(key, problem)
        return error.whole


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


VERIFY_ALIKE_MAX: Final = 10
"""Traces that `verify` names per problem, and failed reads of the archive repository."""


_WITHOUT_CHECKSUM: Final = re.compile("[0-9a-f]{32}")
_WITH_CHECKSUM: Final = re.compile("([0-9a-f]{32})-([0-9a-f]{32})")

Row: TypeAlias = tuple[Any, ...]
"""Partition, key, value and version, as the database returns them."""


@dataclass(frozen=True, slots=True)
class DatabaseCheck:
    """Result of a check of one database."""

    structure: tuple[tuple[str, str], ...] = ()
    """Damaged pages and indexes: the name of the database, and the problem."""
    rows: tuple[tuple[str, str], ...] = ()
    """Damaged rows: `partition/key`, and the problem."""
    unread: tuple[str, ...] = ()
    """Parts of the database that were not checked, and why."""


@runtime_checkable
class CopiedStore(Protocol):
    """A key-value store in a database whose rows can be copied to another one unchanged, with their versions."""

    def snapshot(self) -> AbstractContextManager[Iterator[Row]]:
        """Return all rows as of the call, to read inside the `with` block."""

    def load(self, rows: Iterable[Row]) -> None:
        """Insert rows that were read from another store. Raises StorageError if one of them exists already."""


@runtime_checkable
class CheckedStore(Protocol):
    """A key-value store in a database that can be checked as a whole."""

    def check_database(self, scope: str) -> DatabaseCheck:
        """Check the pages and indexes of the database, and the rows of partitions that begin with `scope`."""


def check_database(store: KeyValueStore, scope: str) -> DatabaseCheck:
    """Check the database of a store. Records that are objects have a checksum each, so they need no such check."""
    return store.check_database(scope) if isinstance(store, CheckedStore) else DatabaseCheck()


def sealed_version(partition: bytes, key: bytes, value: bytes) -> Version:
    """Return a new version that ends with the checksum of its row."""
    write = new_version()
    return f"{write}-{_checksum(write, partition, key, value)}"


def check_rows(rows: Iterable[Row], scope: str, name: str) -> DatabaseCheck:
    """Compare rows with their checksums. At most VERIFY_ALIKE_MAX damaged rows are named."""
    problems: list[tuple[str, str]] = []
    unsealed = 0
    for row in rows:
        problem, is_sealed = _problem_of(row)
        unsealed += not is_sealed and problem is None
        if problem is not None and len(problems) < VERIFY_ALIKE_MAX:
            partition, key = (_shown(name) for name in row[:2])
            problems.append((f"{partition.removeprefix(scope)}/{key}", problem))
    unread = (
        (f"{unsealed:,} rows of {name} have no checksum, because an earlier release wrote them",)
        if unsealed
        else ()
    )
    return DatabaseCheck(rows=tuple(problems), unread=unread)


def _problem_of(row: Row) -> tuple[str | None, bool]:
    """Return the problem of a row, if any, and whether it has a checksum."""
    partition, key, value, version = row
    version = version.decode(errors="replace") if isinstance(version, bytes) else version
    if not all(isinstance(each, bytes) for each in (partition, key, value)) or not isinstance(version, str):
        return "a value of its row has another type than was written; restore it from a backup", False
    if (sealed := _WITH_CHECKSUM.fullmatch(version)) is not None:
        if sealed[2] != _checksum(sealed[1], partition, key, value):
            return "its row does not match its checksum; restore it from a backup", True
        return None, True
    if _WITHOUT_CHECKSUM.fullmatch(version) is None:
        return f"its version {version!r} is invalid; restore it from a backup", False
    return None, False


def _checksum(write: str, partition: bytes, key: bytes, value: bytes) -> str:
    digest = xxhash.xxh3_128(f"{write} {len(partition)} {len(key)} ".encode())
    for part in (partition, key, value):
        digest.update(part)
    return digest.hexdigest()


def _shown(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
