"""Records on an object store that can create and nothing more, such as local files.

Each write of a record is a new object in the record's directory, under the next number: `…/00000007`
follows `…/00000006`. Two writers who saw 6 both try to create 7, and one of them does. The highest number
is the record.

**Old versions** go when RECORD_VERSIONS_KEPT newer ones are there, lowest first. A writer that slept
since it saw 6 could then create a 7 that was there before and is gone. So a writer lists again after its
create: while the highest number is less than RECORD_VERSIONS_KEPT above its own, its number cannot have been removed,
and its write is a true one. Else nobody knows, and the outcome says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tracelake import limits
from tracelake._errors import ContentionError, DamageError, IndeterminateError, NotFoundError, StorageError
from tracelake.storage.each_alone import EachAlone
from tracelake.storage.many import delete_all
from tracelake.storage.names import check_value, encode_beginning
from tracelake.storage.note_objects import NoteObjects
from tracelake.storage.outcomes import new_version, settle
from tracelake.storage.ports import (
    Conflict,
    Done,
    Entry,
    Expected,
    Indeterminate,
    ObjectStore,
    Outcome,
    Version,
)
from tracelake.storage.record_objects import (
    ObjectRecord,
    conflict_at,
    decode,
    encode,
    may_hold,
    partition_path,
    paths_between,
    record_path,
    scan_records,
)


class VersionedKeyValueStore(NoteObjects, EachAlone):
    """A `KeyValueStore` on any `ObjectStore`, by creating and never replacing; safe for processes.

    All methods raise StorageError where the object store fails, DamageError where a record is torn.
    """

    def __init__(self, objects: ObjectStore) -> None:
        """Keep records in `objects`, which should hold nothing else."""
        super().__init__(objects)

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None where it is absent."""
        record = self._newest(record_path(partition, key))[1]
        return None if record is None else record.present

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return scan_records(self._records, partition, start, stop, limit)

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there."""
        check_value(key, value)
        version = new_version()
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            number, _current = self._newest(record_path(partition, key))
            outcome = settle(
                self, partition, key, self._append(partition, key, value, version, number), lambda _: False
            )
            if isinstance(outcome, Done):
                return version
        raise ContentionError(f"others write {key!r} in {self._objects.url} all the time; try again later")

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write the record iff it is at `expected`."""
        check_value(key, value)
        return self._write_if(partition, key, value, expected)

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """Delete the record iff it is at `expected`. Done then carries a version of the deletion itself."""
        return self._write_if(partition, key, None, expected)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key begins so, and what deleted ones have left; of each the newest version last."""
        first, end = encode_beginning(beginning)
        paths = [
            info.path for info in self._objects.list(paths_between(partition_path(partition), first, end))
        ]
        delete_all(self._objects, [path for path in paths if may_hold(path.rpartition("/")[0], first, end)])

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _write_if(self, partition: str, key: str, value: bytes | None, expected: Expected) -> Outcome:
        version = new_version()
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            number, path, body = self._newest_body(record_path(partition, key))
            conflict = conflict_at(path, body, expected)
            if conflict is not None:
                return conflict
            outcome = self._append(partition, key, value, version, number)
            if not isinstance(outcome, Conflict):
                return outcome
        raise ContentionError(f"others write {key!r} in {self._objects.url} all the time; try again later")

    def _append(
        self, partition: str, key: str, value: bytes | None, version: Version, number: int
    ) -> Outcome:
        """Create the version that follows `number`; Conflict(None) where somebody else has."""
        directory = record_path(partition, key)
        own = number + 1
        try:
            path = _version_path(directory, own)
            if not self._objects.create(path, encode(path, partition, key, value, version)):
                return Conflict(None)
        except IndeterminateError as error:
            return Indeterminate(version, str(error))
        try:
            numbers = self._numbers(directory)
        except StorageError as error:
            return Indeterminate(version, f"it could not be checked: {error}")
        if max(numbers, default=own) >= own + limits.RECORD_VERSIONS_KEPT:
            return Indeterminate(version, "many newer versions came meanwhile")
        self._remove_old(directory, numbers)
        return Done(version)

    def _remove_old(self, directory: str, numbers: list[int]) -> None:
        for number in sorted(numbers):
            if number > max(numbers) - limits.RECORD_VERSIONS_KEPT:
                break
            try:
                self._objects.delete(_version_path(directory, number))
            except StorageError:
                # The write is done; the next one removes what is left, lowest first as ever.
                break

    def _newest(self, directory: str) -> tuple[int, ObjectRecord | None]:
        """Return the highest number and its record; 0 and None where there is none."""
        number, path, body = self._newest_body(directory)
        return number, None if body is None else decode(path, body)

    def _newest_body(self, directory: str) -> tuple[int, str, bytes | None]:
        """Return the highest number, its path, and what is there; 0 and None where there is none."""
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            # A listing that runs while versions come and go can miss all of them, but not twice.
            numbers = self._numbers(directory) or self._numbers(directory)
            if not numbers:
                return 0, directory, None
            path = _version_path(directory, max(numbers))
            try:
                return max(numbers), path, self._objects.get(path)
            except NotFoundError:
                # It grew old since the listing, so newer ones are there.
                continue
        raise ContentionError(f"{directory} in {self._objects.url} changes faster than it can be read")

    def _numbers(self, directory: str) -> list[int]:
        return [_number(info.path) for info in self._objects.list(f"{directory}/")]

    def _records(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, Entry | DamageError]]:
        """Yield directories and records that may be in the range, or what is wrong with one, in order."""
        paths = (
            info.path.rpartition("/")[0] for info in self._objects.list(paths_between(partition, start, stop))
        )
        for directory, _ in groupby(paths):
            if may_hold(directory, start, stop):
                try:
                    record = self._newest(directory)[1]
                except DamageError as error:
                    yield directory, error
                    continue
                if record is not None and record.present is not None:
                    yield directory, record.present


def _version_path(directory: str, number: int) -> str:
    return f"{directory}/{number:012}"


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])
