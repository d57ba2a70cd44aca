"""The two storage primitives as ports (PROTOCOLS §0). Backends implement them; nothing else is assumed.

A conditional write never raises for losing: it returns one of three outcomes, and the type says which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

Version: TypeAlias = str
"""The identity of one write of one record. Opaque, unique for each write, never reused."""


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""What `expected` is for a record that must not be there yet."""
Expected: TypeAlias = Version | _Absent


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it was read: its bytes, and the version to name in a conditional write."""

    key: str
    value: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Done:
    """The write happened; the record now has this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write did not happen: the record was not as expected. `current` is None where it is absent."""

    current: Entry | None


@dataclass(frozen=True, slots=True)
class Indeterminate:
    """Nobody knows yet: a time-out or a lost reply.

    Read the record back and decide by an identity that was written: either the record carries `version`,
    or the value itself carries an id of the writer. Never guess, and never delete anything on this outcome.
    """

    version: Version
    reason: str


Outcome: TypeAlias = Done | Conflict | Indeterminate


class KeyValueStore(Protocol):
    """Small records under (partition, key), keys in byte order of their UTF-8."""

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None where it is absent."""

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of the records that `scan` returns, and read no record that a store need not read for that.

        So there may be some of records that are damaged, or deleted, as long as objects of them are left.
        """

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there."""

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, as `set` does; some of them, each whole, where it raises."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write the record iff it is at `expected`: one that nobody can read is at the version in its DamageError."""

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """Delete the record iff it is at `expected`."""

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Leave a note, replacing the one that was there. It may be gone after a power failure.

        A partition holds either records or notes: what nothing rests on, and what comes and goes often.
        """

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """Return the notes of a partition whose key begins so, in ASCII, in key order; all without one."""

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes, leaving no trace; fine where they are absent. One may be back after a power failure."""

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key begins so, whatever they hold, without a condition and leaving no trace.

        Only for keys that nobody names any more: a conditional write that is under way may succeed afterwards, and what
        was erased may be back after a power failure. Some are gone where it raises. `beginning` is not empty, and has
        RECORD_NAME_KEY_BYTES at most.
        """

    def close(self) -> None:
        """Release connections and files. Calling it twice is allowed."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One line of a listing: path, size in bytes, last change in seconds since the epoch."""

    path: str
    size_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """Immutable bytes under a path such as `shards/spans/3f….parquet` (slashes, no leading one)."""

    @property
    def url(self) -> str:
        """Where it is; `open_objects(store.url)` in another process opens the same store."""

    def put(self, path: str, data: bytes) -> None:
        """Write the object, durable on return, replacing what was there."""

    def create(self, path: str, data: bytes) -> bool:
        """Write the object iff nothing is there; False where something is. Never half an object."""

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError where it is absent."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end. Raises NotFoundError where it is absent."""

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time, or None where it is absent."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose path begins with `prefix`, in order of path."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing the target. Raises NotFoundError where the source is absent."""

    def delete(self, path: str) -> None:
        """Delete the object; fine where it is absent."""

    def local_path(self, path: str) -> str | None:
        """Return a path in the file system that holds the object's bytes, or None for a remote store."""
