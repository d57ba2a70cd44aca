"""Notes as objects of a bucket: concurrent requests, up to the limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.patience import HANG_S
from tracelake._errors import StorageError
from tracelake.storage import BucketObjectStore, MemoryObjectStore, ObjectInfo
from tracelake.storage.local import OBJECTS_AT_ONCE
from tracelake.storage.object_records import NoteObjects

KEYS = [f"request {number:02}" for number in range(3 * OBJECTS_AT_ONCE)]


class Crowded(BucketObjectStore):
    """In-memory bucket that answers reads and deletions once as many are in flight as the limit allows."""

    def __init__(self) -> None:
        self._inside = MemoryObjectStore()
        self._all_there = threading.Barrier(OBJECTS_AT_ONCE)
        self._lock = threading.Lock()
        self._under_way = 0
        self.under_way_max = 0

    @contextmanager
    def _together(self) -> Iterator[None]:
        with self._lock:
            self._under_way += 1
            self.under_way_max = max(self.under_way_max, self._under_way)
        try:
            self._all_there.wait(timeout=HANG_S)
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def put(self, path: str, data: bytes) -> None:
        """Write the object at once."""
        self._inside.put(path, data)

    def get(self, path: str) -> bytes:
        """Read the object, concurrently with others."""
        with self._together():
            return self._inside.get(path)

    def delete(self, path: str) -> None:
        """Delete the object, concurrently with others."""
        with self._together():
            self._inside.delete(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List at once."""
        return self._inside.list(prefix)


def test_notes_of_a_bucket_are_read_and_deleted_together() -> None:
    """As many requests are in flight as the limit allows; all notes are returned in order, and all are deleted."""
    bucket = Crowded()
    store = NoteObjects(bucket)
    for key in reversed(KEYS):
        store.note("p", key, key.encode())
    assert [entry.key for entry in store.notes("p")] == KEYS
    store.forget("p", KEYS)
    assert store.notes("p") == []
    assert bucket.under_way_max == OBJECTS_AT_ONCE


def test_a_note_that_goes_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note deleted between listing and reading is left out; an unreadable one is an error."""
    objects = MemoryObjectStore()
    store = NoteObjects(objects)
    for key in KEYS[:3]:
        store.note("p", key, b"")
    listed = list(objects.list(""))
    monkeypatch.setattr(objects, "list", lambda _prefix: iter(listed))
    store.forget("p", KEYS[1:2])
    assert [entry.key for entry in store.notes("p")] == [KEYS[0], KEYS[2]]

    def fail(_path: str) -> bytes:
        raise StorageError("away")

    monkeypatch.setattr(objects, "get", fail)
    with pytest.raises(StorageError, match="away"):
        store.notes("p")
