"""The records of one lake in a store that other lakes may use too: each partition under the lake's id."""

from __future__ import annotations

from collections.abc import Collection

from tracelake.storage.ports import Entry, Expected, KeyValueStore, Outcome, Version


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
        return self._store.get(self._prefix + partition, key)

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return self._store.scan(self._prefix + partition, start, stop, limit)

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there."""
        return self._store.set(self._prefix + partition, key, value)

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write the record iff it is at `expected`."""
        return self._store.set_if(self._prefix + partition, key, value, expected)

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """Delete the record iff it is at `expected`."""
        return self._store.delete_if(self._prefix + partition, key, expected)

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Leave a note, replacing the one that was there."""
        self._store.note(self._prefix + partition, key, value)

    def notes(self, partition: str) -> list[Entry]:
        """Return the notes of a partition in key order."""
        return self._store.notes(self._prefix + partition)

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes; fine where they are absent."""
        self._store.forget(self._prefix + partition, keys)

    def close(self) -> None:
        """Close the store itself."""
        self._store.close()
