"""Records that an object store keeps: what is alike whether a record is one object, or a directory of versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import groupby

from tracelake._errors import DamageError
from tracelake.storage.many import delete_all, for_each
from tracelake.storage.names import check_value, encode_beginning
from tracelake.storage.note_objects import NoteObjects
from tracelake.storage.ports import Entry, Expected, Outcome, Version
from tracelake.storage.record_objects import (
    ObjectRecord,
    key_in,
    may_hold,
    partition_path,
    paths_between,
    record_path,
    scan_records,
    spells_out,
)


class RecordsInObjects(NoteObjects, ABC):
    """The part of a `KeyValueStore` that looks for records in objects, each at a place that its key names."""

    @abstractmethod
    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""

    @abstractmethod
    def _place(self, path: str) -> str:
        """Return the place of the record that an object is of; objects of one place are listed together."""

    @abstractmethod
    def _at(self, place: str) -> ObjectRecord | None:
        """Return the record at a place, or that it was deleted; None where there never was one."""

    @abstractmethod
    def _write_if(self, partition: str, key: str, value: bytes | None, expected: Expected) -> Outcome:
        """Write a record, with None delete it, iff it is at `expected`."""

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None where it is absent."""
        record = self._at(record_path(partition, key))
        return None if record is None else record.present

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return scan_records(self._records, partition, start, stop, limit)

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records as names of objects spell them out; of long ones what the objects say."""
        return [entry.key for entry in scan_records(self._names, partition, start, stop, limit)]

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, in a bucket OBJECTS_AT_ONCE of them at the same time; some of them where it raises."""
        for_each(self._objects, lambda key: self.set(partition, key, records[key]), records)

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
        delete_all(self._objects, [path for path in paths if may_hold(self._place(path), first, end)])

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _records(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, Entry | DamageError]]:
        """Yield places and records that may be in the range, or what is wrong with one, in order of the places."""
        for place in self._places(partition, start, stop):
            yield from self._read(place)

    def _names(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, Entry | DamageError]]:
        """Yield the same, of records whose place spells out their key without what they hold."""
        for place in self._places(partition, start, stop):
            if spells_out(place):
                yield place, Entry(key_in(place), b"", "")
            else:
                yield from self._read(place)

    def _places(self, partition: str, start: bytes, stop: bytes | None) -> Iterator[str]:
        listed = self._objects.list(paths_between(partition, start, stop))
        for place, _ in groupby(self._place(info.path) for info in listed):
            if may_hold(place, start, stop):
                yield place

    def _read(self, place: str) -> Iterator[tuple[str, Entry | DamageError]]:
        try:
            record = self._at(place)
        except DamageError as error:
            yield place, error
            return
        if record is not None and record.present is not None:
            yield place, record.present
