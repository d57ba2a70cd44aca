"""The two storage primitives as ports (PROTOCOLS §0). Backends implement them, and callers assume nothing else.

A conditional write that loses does not raise an error. It returns `Done`, `Conflict` or `Indeterminate`. `settle`
decides a write whose reply was lost. The module also defines the valid keys, values and paths of all backends, and the
pauses between retries.

Each package above has checks for `tracelake verify` and returns findings; the functions for them are here. SQLite and
most PostgreSQL clusters have no checksums of their pages. So the version of a record in a SQL database ends with a
checksum of the whole row: partition, key, value and write id. A version is opaque to its readers, so this needs no new
column, and rows of earlier releases, whose versions have no checksum, stay valid.
"""

from __future__ import annotations

import random
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import xxhash

from tracelake import limits
from tracelake._errors import (
    ContentionError,
    DamagedRecordsError,
    DamageError,
    IndeterminateError,
    LimitError,
    StorageError,
    TracelakeError,
    UsageError,
)
from tracelake.formats import is_intact
from tracelake.results import Finding
from tracelake.tasks.backoff import backoff_s

SETTLE_READ_TRIES_MAX: Final = 6
"""Failed reads while the outcome of a conditional write is determined."""
RECORD_NAME_KEY_BYTES: Final = 80
"""Bytes of a key that are spelled out in its object's name."""

Version: TypeAlias = str
"""The identity of one write of one record. Opaque, unique for each write, never reused."""


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""Value of `expected` for a record that must not exist yet."""
Expected: TypeAlias = Version | _Absent


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it was read: its bytes, and the version for a conditional write."""

    key: str
    value: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Done:
    """The write happened; the record now has this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write did not happen, because the record was not as expected. `current` is None if it is absent."""

    current: Entry | None


@dataclass(frozen=True, slots=True)
class Indeterminate:
    """Unknown outcome, after a timeout or a lost reply.

    The caller must read the record back and decide by an identity that it wrote: the record's `version`, or a writer id
    in the value. It must delete nothing on this outcome.
    """

    version: Version
    reason: str


Outcome: TypeAlias = Done | Conflict | Indeterminate


class KeyValueStore(Protocol):
    """Store of small records under (partition, key). Keys are ordered by the bytes of their UTF-8."""

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None if it is absent."""

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of the records that `scan` returns, reading as few records as the store allows.

        The result may include damaged records, and deleted ones as long as objects of them exist.
        """

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record unconditionally."""

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, as `set` does. After an error, some are written, each completely."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write the record if its version is `expected`; an unreadable record has the version in its DamageError."""

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """Delete the record if its version is `expected`."""

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Write a note, replacing an existing one. A power failure may undo it.

        A partition contains either records or notes. Notes are for data that changes often and that no invariant
        relies on.
        """

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """Return the notes of a partition whose keys begin with this ASCII text, by key."""

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes, if they exist, leaving no tombstone. A power failure may restore one."""

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix, unconditionally, leaving no tombstone.

        Only for keys that no process uses any more: a running conditional write may succeed afterwards, and a power
        failure may restore the records. After an error, some are deleted. `beginning` is not empty, and has at most
        RECORD_NAME_KEY_BYTES.
        """

    def close(self) -> None:
        """Release connections and files. Calling it twice is allowed."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One entry of a listing: path, size in bytes, last change in seconds since 1970."""

    path: str
    size_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """Store of immutable bytes under paths such as `shards/spans/3f….parquet`, with slashes but no leading one."""

    @property
    def url(self) -> str:
        """Return the URL; `open_objects(store.url)` in another process opens the same store."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one; durable on return."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if none exists; return False if one does. Never leaves a partial object."""

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """Replace an object if its bytes are `expected`; return False if it has others, or is absent."""

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError if it is absent."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end. Raises NotFoundError if the object is absent."""

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time, or None if the object is absent."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose path begins with `prefix`, in order of path."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing the target. Raises NotFoundError if the source is absent."""

    def delete(self, path: str) -> None:
        """Delete the object, if it exists."""

    def local_path(self, path: str) -> str | None:
        """Return the path of a local file with the object's bytes, or None for a remote store."""


def new_version() -> Version:
    """Return a random identity for a new write, so that no two writes of any process share one."""
    return uuid.uuid4().hex


def is_at(current: Entry | None, expected: Expected) -> bool:
    """Return whether a record is as a conditional write expects it."""
    if current is None:
        return expected is ABSENT
    return current.version == expected


def settle(
    store: KeyValueStore,
    partition: str,
    key: str,
    outcome: Outcome,
    is_mine: Callable[[Entry], bool],
    *,
    pause: Callable[[float], None] | None = None,
) -> Done | Conflict:
    """Turn the outcome of `set_if` or `delete_if` on (partition, key) into a decision; read back if needed.

    `is_mine(entry)` returns whether the record that was read proves our write, by an identity in its value. It
    matters if another writer may have built on our write before we read back. Return False if the value has no
    identity; the version alone then decides.

    Done means that the write happened, and contains *its* version, even if the record has changed since. A next write
    that expects it then loses, as it must. Conflict after a lost reply means that the record does not show our write:
    it never happened, or was replaced by a write without our identity. Either way the caller decides again from
    `current`. After `delete_if`, Conflict(None) means that the record is absent, whichever process deleted it.

    Assumption: a write whose reply was lost does not take effect after the read. The SQLite store ensures this (see
    `sqlite.py`). On a store across a network a late write can still succeed while the record stays as it expected. So
    a caller must not destroy anything on a Conflict that was read back, before a later conditional write on the same
    record has succeeded.

    `pause` waits between failed reads, in seconds; `time.sleep` if it is None. Raises IndeterminateError if
    `SETTLE_READ_TRIES_MAX` reads fail.
    """
    if not isinstance(outcome, Indeterminate):
        return outcome
    failure: StorageError | None = None
    for attempt in range(SETTLE_READ_TRIES_MAX):
        if attempt:
            (pause or time.sleep)(backoff_s(limits.STORE_PAUSE_FIRST_S, attempt, limits.STORE_PAUSE_MAX_S))
        try:
            current = store.get(partition, key)
        except StorageError as error:
            failure = error
            continue
        if current is not None and (current.version == outcome.version or is_mine(current)):
            return Done(outcome.version)
        return Conflict(current)
    raise IndeterminateError(
        f"the write of {partition!r} / {key!r} may or may not have happened ({outcome.reason}), and "
        f"reading it back failed {SETTLE_READ_TRIES_MAX} times ({failure}); "
        "repair the store, then try again"
    ) from failure


RESERVED_DIRECTORY = ".tmp"
"""Reserved first segment of object paths: file stores write unfinished objects there."""
_NO_NAMES = frozenset({"", ".", ".."})

RecordT = TypeVar("RecordT")
WantedT = TypeVar("WantedT")


def change_record(
    store: KeyValueStore,
    partition: str,
    key: str,
    decode: Callable[[Entry], RecordT],
    encode: Callable[[Any], bytes],
    decide: Callable[[RecordT | None], WantedT],
) -> WantedT:
    """Apply a decision to a record by conditional writes until one succeeds; return the current record.

    `decide` gets the record, or None without one, and returns the wanted record, or None to delete it. It is called
    again after each write that lost to another writer. Raises ContentionError after too many.
    """
    for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
        entry = store.get(partition, key)
        standing = None if entry is None else decode(entry)
        wanted = decide(standing)
        is_unchanged = wanted == standing
        if is_unchanged:
            return wanted
        if wanted is None:
            assert entry is not None
            value, outcome = b"", store.delete_if(partition, key, entry.version)
        else:
            value = encode(wanted)
            outcome = store.set_if(partition, key, value, ABSENT if entry is None else entry.version)
        if isinstance(settle(store, partition, key, outcome, is_mine=partial(_has_value, value)), Done):
            return wanted
    raise contention(partition, key)


def create_record(store: KeyValueStore, partition: str, key: str, value: bytes) -> Entry | None:
    """Create a record if absent. Return None if the stored record has this value from our write, else the record of
    another writer. Raises ContentionError after too many lost replies."""
    for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
        outcome = store.set_if(partition, key, value, ABSENT)
        settled = settle(store, partition, key, outcome, is_mine=partial(_has_value, value))
        if not isinstance(settled, Conflict):
            return None
        if settled.current is not None:
            return settled.current
        # The reply and the write were lost: no record exists yet.
    raise contention(partition, key)


def contention(partition: str, key: str) -> ContentionError:
    """Return the error for a record on which too many conditional writes lost."""
    return ContentionError(
        f"{partition}/{key}: {limits.CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost to other "
        "writers. Try again."
    )


def _has_value(value: bytes, entry: Entry) -> bool:
    return entry.value == value


def encode_text(what: str, text: str) -> bytes:
    """Return `text` as UTF-8. Raises UsageError if it contains half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} {text!r} is not Unicode text ({error.reason}); replace that character"
        ) from error


def printable(text: str) -> str:
    """Return `text` for a message, with halves of surrogate pairs escaped."""
    return text.encode(errors="backslashreplace").decode()


def encode_key(what: str, key: str) -> bytes:
    """Return a partition or key as UTF-8. Raises UsageError if it is no valid name, and LimitError if it is too
    long."""
    encoded = encode_text(what, key)
    if len(encoded) > limits.KEY_MAX_BYTES:
        raise LimitError(
            f"{what} {key[: limits.NAME_QUOTED_MAX_CHARS]!r}… has {len(encoded)} bytes, more than KEY_MAX_BYTES = "
            f"{limits.KEY_MAX_BYTES}; shorten it"
        )
    return encoded


def encode_beginning(beginning: str) -> tuple[bytes, bytes]:
    """Return the bounds, as UTF-8, of the keys with this prefix: the first, and the end, which is exclusive."""
    encoded = encode_key("beginning", beginning)
    assert 0 < len(encoded) <= RECORD_NAME_KEY_BYTES, "longer ones are not spelled out in names of objects"
    return encoded, encoded[:-1] + bytes([encoded[-1] + 1])


def end_of(beginning: str) -> str | None:
    """Return the exclusive end of the note keys with this prefix; None for an empty prefix."""
    assert beginning.isascii(), "any other has no next one that is as long"
    assert len(beginning) <= RECORD_NAME_KEY_BYTES, "longer ones are not spelled out in names of objects"
    return beginning[:-1] + chr(ord(beginning[-1]) + 1) if beginning else None


def beginning_of_both(first: bytes, second: bytes) -> bytes:
    """Return the longest common prefix of two byte strings."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return first[: sum(1 for _ in same)]


def check_value(key: str, value: bytes) -> None:
    """Raise LimitError if the value of a record is too large."""
    if len(value) > limits.VALUE_MAX_BYTES:
        raise LimitError(
            f"the value of {key!r} has {len(value)} bytes, more than VALUE_MAX_BYTES = "
            f"{limits.VALUE_MAX_BYTES}; put it in the object store and its path in the record"
        )


def check_scan_limit(limit: int | None) -> None:
    """Raise UsageError if the limit of a scan is negative."""
    if limit is not None and limit < 0:
        raise UsageError(f"a scan cannot return {limit} records; give a limit of at least 0, or None for all")


def check_path(path: str) -> None:
    """Raise UsageError if `path` is no object path, and LimitError if it is too long."""
    if not path:
        raise UsageError("the path of an object is empty; name the object")
    _check_segments(path, path.split("/"))


def check_prefix(prefix: str) -> None:
    """Raise UsageError if no object path can begin with `prefix`.

    The text after the last slash is only compared and never opened, so it may be anything but NUL.
    """
    directory, slash, last = prefix.rpartition("/")
    if slash:
        _check_segments(prefix, directory.split("/"))
    if "\0" in last:
        raise UsageError(f"prefix {prefix!r} contains a NUL character; remove it")


def check_range(path: str, start: int, length: int) -> None:
    """Raise UsageError if a range has a negative start or length."""
    if start < 0 or length < 0:
        raise UsageError(
            f"cannot read {length} bytes from {start} of {path!r}; start and length count from 0"
        )


def _check_segments(path: str, segments: list[str]) -> None:
    size_bytes = len(encode_text("path", path))
    if size_bytes > limits.OBJECT_PATH_MAX_BYTES:
        raise LimitError(
            f"path {path[: limits.NAME_QUOTED_MAX_CHARS]!r}… is longer than OBJECT_PATH_MAX_BYTES = "
            f"{limits.OBJECT_PATH_MAX_BYTES}; shorten it"
        )
    if "\0" in path or not _NO_NAMES.isdisjoint(segments):
        raise UsageError(
            f"{path!r} is not the path of an object; write names between single slashes, without a leading "
            "slash, '.', '..' or NUL"
        )
    if segments[0] == RESERVED_DIRECTORY:
        raise UsageError(f"{path!r} is in {RESERVED_DIRECTORY}/, which is reserved; use another first name")
    if size_bytes <= limits.OBJECT_PATH_SEGMENT_MAX_BYTES:
        return
    longest = max(segments, key=lambda segment: len(segment.encode()))
    if len(longest.encode()) > limits.OBJECT_PATH_SEGMENT_MAX_BYTES:
        raise LimitError(
            f"name {longest[: limits.NAME_QUOTED_MAX_CHARS]!r}… in a path is longer than "
            f"OBJECT_PATH_SEGMENT_MAX_BYTES = {limits.OBJECT_PATH_SEGMENT_MAX_BYTES}; shorten it"
        )


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one lake, which all its readers and writers need."""

    key_value: KeyValueStore
    objects: ObjectStore
    cache: Path
    """A local directory for copies of remote objects; its contents may be deleted."""

    @property
    def copies(self) -> str:
        """Return the directory of copies of parts."""
        return str(self.cache / "parts")


def tries(
    pause: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Yield 0, 1, … up to STORE_TRIES_MAX attempts, pausing before each but the first.

    No attempt begins later than STORE_TRIES_TIMEOUT_S after the first, because attempts that each time out would add
    up to many minutes. The jitter keeps clients that lost a store at the same moment from returning at the same
    moment. `pause` takes seconds; `clock` returns them.
    """
    end = clock() + limits.STORE_TRIES_TIMEOUT_S
    for attempt in range(limits.STORE_TRIES_MAX):
        if attempt:
            longest = backoff_s(limits.STORE_PAUSE_FIRST_S, attempt, limits.STORE_PAUSE_MAX_S)
            seconds = longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret
            if clock() + seconds > end:
                return
            pause(seconds)
        yield attempt


class EachAlone(ABC):
    """The part of a `KeyValueStore` that writes many records one by one."""

    @abstractmethod
    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record unconditionally; see `KeyValueStore`."""

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key; see `KeyValueStore`."""
        for key, value in records.items():
            self.set(partition, key, value)


def in_range(
    selected: str, mark: str, partition: str, start: str, stop: str | None, limit: int | None
) -> tuple[str, list[bytes | int]]:
    """Return the SQL query, and its values, for a partition's rows from `start` up to `stop` in key order."""
    check_scan_limit(limit)
    query = f"{selected} AND key >= {mark}"
    values: list[bytes | int] = [encode_key("partition", partition), encode_text("start", start)]
    if stop is not None:
        query += f" AND key < {mark}"
        values.append(encode_text("stop", stop))
    query += " ORDER BY key"
    if limit is not None:
        query += f" LIMIT {mark}"
        values.append(limit)
    return query, values


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
