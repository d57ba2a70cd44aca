"""Both stores in memory, for tests and experiments: thread-safe, lost when the process ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator

from tracelake._errors import NotFoundError
from tracelake.storage import ports


class MemoryKeyValueStore(ports.EachAlone):
    """A `KeyValueStore` in memory. `close` keeps the records, because `memory://name` may be opened again."""

    def __init__(self) -> None:
        """Start without records."""
        self._lock = threading.Lock()
        self._partitions: dict[str, dict[str, ports.Entry]] = {}

    def get(self, partition: str, key: str) -> ports.Entry | None:
        """Return the record, or None if it is absent."""
        _check_names(partition, key)
        with self._lock:
            return self._partitions.get(partition, {}).get(key)

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[ports.Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        ports.encode_key("partition", partition)
        ports.encode_text("start", start)
        ports.encode_text("stop", stop or "")
        ports.check_scan_limit(limit)
        with self._lock:
            entries = list(self._partitions.get(partition, {}).values())
        # Code points sort like their UTF-8 bytes, so strings need no encoding here.
        entries = [entry for entry in entries if start <= entry.key and (stop is None or entry.key < stop)]
        return sorted(entries, key=lambda entry: entry.key)[:limit]

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records."""
        return [entry.key for entry in self.scan(partition, start, stop, limit)]

    def set(self, partition: str, key: str, value: bytes) -> ports.Version:
        """Write the record unconditionally."""
        _check_names(partition, key)
        ports.check_value(key, value)
        with self._lock:
            return self._put(partition, key, value)

    def set_if(self, partition: str, key: str, value: bytes, expected: ports.Expected) -> ports.Outcome:
        """Write the record if its version is `expected`."""
        _check_names(partition, key)
        ports.check_value(key, value)
        with self._lock:
            current = self._partitions.get(partition, {}).get(key)
            if not ports.is_at(current, expected):
                return ports.Conflict(current)
            return ports.Done(self._put(partition, key, value))

    def delete_if(self, partition: str, key: str, expected: ports.Version) -> ports.Outcome:
        """Delete the record if its version is `expected`. Done then carries a version of the deletion itself."""
        _check_names(partition, key)
        with self._lock:
            current = self._partitions.get(partition, {}).get(key)
            if not ports.is_at(current, expected):
                return ports.Conflict(current)
            del self._partitions[partition][key]
            return ports.Done(ports.new_version())

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Write a note, replacing an existing one."""
        self.set(partition, key, value)

    def notes(self, partition: str, beginning: str = "") -> list[ports.Entry]:
        """Return the notes of a partition whose key has this prefix, in key order."""
        return self.scan(partition, beginning, ports.end_of(beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes, if they exist."""
        with self._lock:
            for key in keys:
                self._partitions.get(partition, {}).pop(key, None)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix."""
        ports.encode_beginning(beginning)
        with self._lock:
            records = self._partitions.get(partition, {})
            for key in [key for key in records if key.startswith(beginning)]:
                del records[key]

    def close(self) -> None:
        """Do nothing, because the store holds no resources."""

    def _put(self, partition: str, key: str, value: bytes) -> ports.Version:
        entry = ports.Entry(key, bytes(value), ports.new_version())
        self._partitions.setdefault(partition, {})[key] = entry
        return entry.version


class MemoryObjectStore:
    """An `ObjectStore` in memory."""

    def __init__(self, url: str = "memory:///") -> None:
        """Start without objects. `url` is only a name, because no other process can open the store."""
        self._url = url
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, float]] = {}

    @property
    def url(self) -> str:
        """Return the URL, which is valid only within this process."""
        return self._url

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""
        ports.check_path(path)
        with self._lock:
            self._objects[path] = (bytes(data), time.time())

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if none exists; return False if one does."""
        ports.check_path(path)
        with self._lock:
            if path in self._objects:
                return False
            self._objects[path] = (bytes(data), time.time())
            return True

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError if it is absent."""
        ports.check_path(path)
        with self._lock:
            stored = self._objects.get(path)
        if stored is None:
            raise NotFoundError(f"no object {path!r} in {self._url}; check the path, or list what is there")
        return stored[0]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end. Raises NotFoundError if the object is absent."""
        ports.check_range(path, start, length)
        return self.get(path)[start : start + length]

    def head(self, path: str) -> ports.ObjectInfo | None:
        """Return size and time, or None if the object is absent."""
        ports.check_path(path)
        with self._lock:
            stored = self._objects.get(path)
        return None if stored is None else ports.ObjectInfo(path, len(stored[0]), stored[1])

    def list(self, prefix: str) -> Iterator[ports.ObjectInfo]:
        """Yield the current objects whose path begins with `prefix`, in order of path."""
        ports.check_prefix(prefix)
        with self._lock:
            objects = [(path, value) for path, value in self._objects.items() if path.startswith(prefix)]
        return iter(
            [ports.ObjectInfo(path, len(data), modified) for path, (data, modified) in sorted(objects)]
        )

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing the target. Raises NotFoundError if the source is absent."""
        self.put(target, self.get(source))

    def delete(self, path: str) -> None:
        """Delete the object, if it exists."""
        ports.check_path(path)
        with self._lock:
            self._objects.pop(path, None)

    def local_path(self, path: str) -> str | None:
        """Return None, because no file exists."""
        ports.check_path(path)
        return None


def _check_names(partition: str, key: str) -> None:
    ports.encode_key("partition", partition)
    ports.encode_key("key", key)
