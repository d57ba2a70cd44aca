"""Stores that stop the caller at a chosen call, as if its process were killed.

    crash = CrashPoint(at=17, after=True)           # the 17th call takes effect, but its caller gets no reply
    objects = CrashingObjectStore(real_objects, crash)
    key_value = CrashingKeyValueStore(real_key_value, crash)

Written data stays in the real stores; a new actor over those is the restarted process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from tracelake.storage import Entry, Expected, KeyValueStore, ObjectInfo, ObjectStore, Outcome, Version
from tracelake.storage.ports import EachAlone

ResultT = TypeVar("ResultT")


class Crashed(BaseException):
    """Raised to simulate a killed process. Not an Exception, so that no `except Exception` catches it."""


class CrashPoint:
    """Counts calls over several stores, and raises Crashed at one of them, before or after its effect.

    After the crash, each further call raises too, because a dead process makes no calls.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.calls = 0
        self._at = at
        self._after = after

    def pass_through(self, call: Callable[[], ResultT]) -> ResultT:
        """Make a call, or crash at it."""
        self.calls += 1
        if self._at is None or self.calls < self._at:
            return call()
        if self.calls == self._at and self._after:
            call()
        raise Crashed(f"killed {'after' if self._after else 'before'} call {self._at}")


class CrashingObjectStore:
    """An ObjectStore whose calls pass a crash point."""

    def __init__(self, store: ObjectStore, crash: CrashPoint) -> None:
        self._store = store
        self._crash = crash

    @property
    def url(self) -> str:
        """Return the URL of the real store."""
        return self._store.url

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore."""
        self._crash.pass_through(lambda: self._store.put(path, data))

    def create(self, path: str, data: bytes) -> bool:
        """See ObjectStore."""
        return self._crash.pass_through(lambda: self._store.create(path, data))

    def get(self, path: str) -> bytes:
        """See ObjectStore."""
        return self._crash.pass_through(lambda: self._store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore."""
        return self._crash.pass_through(lambda: self._store.get_range(path, start, length))

    def head(self, path: str) -> ObjectInfo | None:
        """See ObjectStore."""
        return self._crash.pass_through(lambda: self._store.head(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        return self._crash.pass_through(lambda: iter([*self._store.list(prefix)]))

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        self._crash.pass_through(lambda: self._store.copy(source, target))

    def delete(self, path: str) -> None:
        """See ObjectStore."""
        self._crash.pass_through(lambda: self._store.delete(path))

    def local_path(self, path: str) -> str | None:
        """See ObjectStore; makes no call to the store."""
        return self._store.local_path(path)


class CrashingKeyValueStore(EachAlone):
    """A KeyValueStore whose calls pass a crash point."""

    def __init__(self, store: KeyValueStore, crash: CrashPoint) -> None:
        self._store = store
        self._crash = crash

    def get(self, partition: str, key: str) -> Entry | None:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.get(partition, key))

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.scan(partition, start, stop, limit))

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.keys(partition, start, stop, limit))

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.set(partition, key, value))

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.set_if(partition, key, value, expected))

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.delete_if(partition, key, expected))

    def note(self, partition: str, key: str, value: bytes) -> None:
        """See KeyValueStore."""
        self._crash.pass_through(lambda: self._store.note(partition, key, value))

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """See KeyValueStore."""
        return self._crash.pass_through(lambda: self._store.notes(partition, beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """See KeyValueStore."""
        self._crash.pass_through(lambda: self._store.forget(partition, keys))

    def erase(self, partition: str, beginning: str) -> None:
        """See KeyValueStore."""
        self._crash.pass_through(lambda: self._store.erase(partition, beginning))

    def close(self) -> None:
        """See KeyValueStore; makes no call to the store."""
        self._store.close()
