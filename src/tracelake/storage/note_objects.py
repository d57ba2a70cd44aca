"""Notes as objects: one each under `n<hex of the partition>/`, apart from records.

Nobody expects anything of a note, so it is put and deleted without a condition, and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Collection

from tracelake._errors import DamagedRecordsError, DamageError
from tracelake.storage.many import delete_all, read_all
from tracelake.storage.names import check_value
from tracelake.storage.outcomes import new_version
from tracelake.storage.ports import Entry, ObjectStore
from tracelake.storage.record_objects import decode, encode, key_in, note_path, notes_path


class NoteObjects:
    """The part of a `KeyValueStore` that keeps notes, on any `ObjectStore`."""

    def __init__(self, objects: ObjectStore) -> None:
        """Keep notes in `objects`, beside nothing but records."""
        self._objects = objects

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Leave a note, replacing the one that was there."""
        check_value(key, value)
        path = note_path(partition, key)
        self._objects.put(path, encode(path, partition, key, value, new_version()))

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """Return the notes of a partition whose key begins so, in key order; those that go meanwhile perhaps.

        Raises DamagedRecordsError where some cannot be read.
        """
        # What is no note may be listed (see `may_hold`), and begins otherwise.
        listed = self._objects.list(f"{notes_path(partition)}k{beginning.encode().hex()}")
        bodies = read_all(self._objects, [info.path for info in listed])
        whole: list[Entry] = []
        problems: list[tuple[str, DamageError]] = []
        for path, body in bodies.items():
            try:
                whole.append(decode(path, body).entry)
            except DamageError as error:
                problems.append((key_in(path), error))
        whole.sort(key=lambda entry: entry.key.encode())
        if problems:
            raise DamagedRecordsError(whole, problems)
        return whole

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes; fine where they are absent."""
        delete_all(self._objects, [note_path(partition, key) for key in keys])
