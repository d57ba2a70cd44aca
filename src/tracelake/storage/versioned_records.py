"""Records on an object store that can create and nothing more, such as local files.

Each write of a record is a new object in the record's directory, under the next number: `…/00000007`
follows `…/00000006`. Two writers who saw 6 both try to create 7, and one of them does. The highest number
is the record.

**Old versions** go when RECORD_VERSIONS_KEPT newer ones are there, lowest first. A writer that slept
since it saw 6 could then create a 7 that was there before and is gone. So a writer lists again after its
create: while the highest number is less than RECORD_VERSIONS_KEPT above its own, its number cannot have been removed,
and its write is a true one. Else nobody knows, and the outcome says so. That holds of numbers which stood there
together: where each file is looked at by itself, the highest may go in between, and a sleeper's number be left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tracelake import limits
from tracelake._errors import ContentionError, IndeterminateError, NotFoundError, StorageError
from tracelake.storage.files import FileObjectStore
from tracelake.storage.names import check_value
from tracelake.storage.outcomes import new_version, settle
from tracelake.storage.ports import (
    Conflict,
    Done,
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
    record_path,
)
from tracelake.storage.records_in_objects import RecordsInObjects


class VersionedKeyValueStore(RecordsInObjects):
    """A `KeyValueStore` on any `ObjectStore`, by creating and never replacing; safe for processes.

    All methods raise StorageError where the object store fails, DamageError where a record is torn.
    """

    def __init__(self, objects: ObjectStore) -> None:
        """Keep records in `objects`, which should hold nothing else."""
        super().__init__(objects)
        self._paths: Callable[[str], Iterable[str]] = (
            objects.paths
            if isinstance(objects, FileObjectStore)
            else lambda prefix: (info.path for info in objects.list(prefix))
        )

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

    def _place(self, path: str) -> str:
        return path.rpartition("/")[0]

    def _at(self, place: str) -> ObjectRecord | None:
        return self._newest(place)[1]

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
        return [_number(path) for path in self._paths(f"{directory}/")]


def _version_path(directory: str, number: int) -> str:
    return f"{directory}/{number:012}"


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])
