"""The records of one lake in a store that other lakes may use too: each partition under the lake's id.

What is written here has its checksum turned by its partition and key (see `formats`), and back when it is read. So a
record that came to the place of another, of this lake or of any, is damaged where somebody reads it, in every store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from tracelake._errors import DamagedRecordsError
from tracelake.formats import turned
from tracelake.storage.database_check import DatabaseCheck, check_database
from tracelake.storage.ports import Conflict, Entry, Expected, KeyValueStore, Outcome, Version


class ScopedKeyValueStore:
    """A `KeyValueStore` that is one part of another: nothing outside of its scope can be read or written."""

    def __init__(self, store: KeyValueStore, scope: str) -> None:
        """Put `scope/` in front of each partition of `store`; a scope holds no slash."""
        assert scope, "an empty scope would hold everything"
        assert "/" not in scope, "a scope inside another one would not be apart from it"
        self._store = store
        self._prefix = f"{scope}/"

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None where it is absent."""
        entry = self._store.get(self._prefix + partition, key)
        return None if entry is None else self._turned(partition, entry)

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return self._all(partition, lambda name: self._store.scan(name, start, stop, limit))

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records."""
        return self._store.keys(self._prefix + partition, start, stop, limit)

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there."""
        return self._store.set(self._prefix + partition, key, self._value(partition, key, value))

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key; some of them where it raises."""
        turned_by_key = {key: self._value(partition, key, value) for key, value in records.items()}
        self._store.set_all(self._prefix + partition, turned_by_key)

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write the record iff it is at `expected`."""
        outcome = self._store.set_if(
            self._prefix + partition, key, self._value(partition, key, value), expected
        )
        return self._outcome(partition, outcome)

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """Delete the record iff it is at `expected`."""
        return self._outcome(partition, self._store.delete_if(self._prefix + partition, key, expected))

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Leave a note, replacing the one that was there."""
        self._store.note(self._prefix + partition, key, self._value(partition, key, value))

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """Return the notes of a partition whose key begins so, in key order."""
        return self._all(partition, lambda name: self._store.notes(name, beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes; fine where they are absent."""
        self._store.forget(self._prefix + partition, keys)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key begins so."""
        self._store.erase(self._prefix + partition, beginning)

    def check_database(self, scope: str) -> DatabaseCheck:
        """Check the database of the store, and the rows of this part of it."""
        return check_database(self._store, self._prefix + scope)

    def close(self) -> None:
        """Close the store itself."""
        self._store.close()

    def _value(self, partition: str, key: str, value: bytes) -> bytes:
        return turned(value, f"{self._prefix}{partition}\0{key}")

    def _turned(self, partition: str, entry: Entry) -> Entry:
        return replace(entry, value=self._value(partition, entry.key, entry.value))

    def _outcome(self, partition: str, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Conflict) and outcome.current is not None:
            return Conflict(self._turned(partition, outcome.current))
        return outcome

    def _all(self, partition: str, read: Callable[[str], Iterable[Entry]]) -> list[Entry]:
        try:
            return [self._turned(partition, entry) for entry in read(self._prefix + partition)]
        except DamagedRecordsError as error:
            whole = [self._turned(partition, entry) for entry in error.whole]
            raise DamagedRecordsError(whole, error.problems) from error
