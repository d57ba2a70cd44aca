"""Models of both stores in memory, without locks: every call on them is one step of the simulation."""

from __future__ import annotations

from tracelake._errors import NotFoundError
from tracelake.storage import Conflict, Done, Entry, Expected, ObjectInfo, Outcome, Version
from tracelake.storage.outcomes import is_at


class KeyValueModel:
    """Records by (partition, key). The caller names the version of each write, so that runs repeat exactly."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Entry] = {}
        self.digest = 0
        """Changes with the content, and returns with it: equal contents have equal digests."""

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None where it is absent."""
        return self.records.get((partition, key))

    def scan(self, partition: str, start: str = "", stop: str | None = None) -> list[Entry]:
        """Return the records with start <= key < stop in key order."""
        entries = (entry for (of, _), entry in self.records.items() if of == partition)
        keys = [entry for entry in entries if start <= entry.key and (stop is None or entry.key < stop)]
        return sorted(keys, key=lambda entry: entry.key)

    def set(self, partition: str, key: str, value: bytes, version: Version) -> Version:
        """Write the record whatever was there."""
        self._replace(partition, key, Entry(key, bytes(value), version))
        return version

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected, version: Version) -> Outcome:
        """Write the record iff it is at `expected`."""
        current = self.get(partition, key)
        if not is_at(current, expected):
            return Conflict(current)
        return Done(self.set(partition, key, value, version))

    def delete_if(self, partition: str, key: str, expected: Version, version: Version) -> Outcome:
        """Delete the record iff it is at `expected`."""
        current = self.get(partition, key)
        if not is_at(current, expected):
            return Conflict(current)
        self._replace(partition, key, None)
        return Done(version)

    def forget(self, partition: str, key: str) -> None:
        """Delete the record whatever it holds."""
        self._replace(partition, key, None)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key begins so."""
        for entry in self.scan(partition):
            if entry.key.startswith(beginning):
                self._replace(partition, entry.key, None)

    def _replace(self, partition: str, key: str, entry: Entry | None) -> None:
        name = (partition, key)
        if (before := self.records.pop(name, None)) is not None:
            self.digest ^= hash((name, before.value, before.version))
        if entry is not None:
            self.records[name] = entry
            self.digest ^= hash((name, entry.value, entry.version))


class ObjectModel:
    """Objects by path, each with the time of its last change in seconds."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.digest = 0
        """Changes with the content, and returns with it: equal contents have equal digests."""

    def put(self, path: str, data: bytes, now_s: float = 0.0) -> None:
        """Write the object, replacing what was there."""
        self.delete(path)
        self.objects[path] = (bytes(data), now_s)
        self.digest ^= hash((path, data))

    def create(self, path: str, data: bytes, now_s: float = 0.0) -> bool:
        """Write the object iff nothing is there; False where something is."""
        if path in self.objects:
            return False
        self.put(path, data, now_s)
        return True

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError where it is absent."""
        if path not in self.objects:
            raise NotFoundError(f"no object {path!r} in the simulated store; list what is there")
        return self.objects[path][0]

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time, or None where it is absent."""
        stored = self.objects.get(path)
        return None if stored is None else ObjectInfo(path, len(stored[0]), stored[1])

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose path begins with `prefix`, in order of path."""
        paths = sorted(path for path in self.objects if path.startswith(prefix))
        return [ObjectInfo(path, len(self.objects[path][0]), self.objects[path][1]) for path in paths]

    def copy(self, source: str, target: str, now_s: float = 0.0) -> None:
        """Copy an object, replacing the target. Raises NotFoundError where the source is absent."""
        self.put(target, self.get(source), now_s)

    def delete(self, path: str) -> None:
        """Delete the object; fine where it is absent."""
        if (before := self.objects.pop(path, None)) is not None:
            self.digest ^= hash((path, before[0]))
