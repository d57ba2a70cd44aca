"""Objects for who reads all that there is, and goes on behind what is damaged: `verify` and collections.

One object that cannot be read, as on a bad place of a disk or where it is another user's, must not hide all others. So
it is damage there; unless nothing else can be read either, as where the store is away or this process has too many
files open: that says nothing of the object, and passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tracelake._errors import DamageError, StorageError
from tracelake.storage.ports import ObjectInfo, ObjectStore

_ResultT = TypeVar("_ResultT")


class SinglyReadObjects:
    """An `ObjectStore` that raises DamageError for an object that cannot be read, where another can."""

    def __init__(self, store: ObjectStore, sound: str) -> None:
        """Read `store`, where `sound` is the path of an object that is there."""
        self.store = store
        self._sound = sound

    @property
    def url(self) -> str:
        """See ObjectStore."""
        return self.store.url

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore."""
        self.store.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """See ObjectStore."""
        return self.store.create(path, data)

    def get(self, path: str) -> bytes:
        """See ObjectStore; raises DamageError as the class says."""
        return self._read(lambda: self.store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore; raises DamageError as the class says."""
        return self._read(lambda: self.store.get_range(path, start, length))

    def head(self, path: str) -> ObjectInfo | None:
        """See ObjectStore."""
        return self.store.head(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        return self.store.list(prefix)

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        self.store.copy(source, target)

    def delete(self, path: str) -> None:
        """See ObjectStore."""
        self.store.delete(path)

    def local_path(self, path: str) -> str | None:
        """See ObjectStore."""
        return self.store.local_path(path)

    def _read(self, read: Callable[[], _ResultT]) -> _ResultT:
        try:
            return read()
        except StorageError as error:
            self.store.get(self._sound)
            raise DamageError(str(error)) from error
