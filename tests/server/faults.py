"""A store that fails on demand, and a reader of inbox contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tracelake._errors import StorageError
from tracelake.otlp.framing import Payload, Reading
from tracelake.storage.local import MemoryObjectStore
from tracelake.storage.ports import ObjectStore


class FaultyStore(MemoryObjectStore):
    """A store in memory whose writes fail while `failing` is set."""

    failing = False

    def put(self, path: str, data: bytes) -> None:
        """Write, or fail."""
        self._check()
        super().put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Create, or fail."""
        self._check()
        return super().create(path, data)

    def _check(self) -> None:
        if self.failing:
            raise StorageError("no space left on device")


def inbox_payloads(store: ObjectStore) -> Iterator[Payload]:
    """Yield every request in the inbox of a store, and fail at a truncated one."""
    with TemporaryDirectory() as directory:
        copy = Path(directory) / "segment"
        for segment in store.list("inbox/"):
            copy.write_bytes(store.get(segment.path))
            reading = Reading(str(copy))
            for item in reading:
                assert isinstance(item, Payload), item
                yield item
            assert reading.whole is not None
            assert reading.whole.problem is None
