"""Both ports as one simulated process sees them: each call waits for the scheduler, which decides its fate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Protocol

from tracelake.storage import Entry, Expected, Indeterminate, ObjectInfo, Outcome, Version
from tracelake.storage.each_alone import EachAlone
from tracelake.storage.names import beginning_of_both, end_of
from tracelake.testing.calls import Call, Touch
from tracelake.testing.models import KeyValueModel, ObjectModel


class Caller(Protocol):
    """Whoever makes calls: an actor of a simulation."""

    def call(self, call: Call) -> Any:
        """Wait until the scheduler carries the call out; return or raise what came of it."""

    def new_version(self) -> Version:
        """Return the identity of this actor's next write."""

    def now_s(self) -> float:
        """Return the simulated time in seconds."""


class SimulatedKeyValueStore(EachAlone):
    """A KeyValueStore over the model, whose calls pass the scheduler."""

    def __init__(self, model: KeyValueModel, caller: Caller) -> None:
        self._model = model
        self._caller = caller

    def get(self, partition: str, key: str) -> Entry | None:
        """See KeyValueStore."""
        entry: Entry | None = self._call(
            "get", partition, key, False, lambda: self._model.get(partition, key)
        )
        return entry

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """See KeyValueStore."""
        same = beginning_of_both(start.encode(), (stop or "").encode()).decode(errors="ignore")
        touch = Touch("kv", f"{partition}\0{same}", True, False)
        text = f"scan {partition} [{start!r}, {stop!r})"
        effect: Callable[[], list[Entry]] = lambda: self._model.scan(partition, start, stop)[:limit]  # noqa: E731
        entries: list[Entry] = self._caller.call(Call(text, (touch,), effect))
        return entries

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """See KeyValueStore; one step, as a scan."""
        return [entry.key for entry in self.scan(partition, start, stop, limit)]

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""
        version = self._caller.new_version()
        written: Version = self._call(
            "set", partition, key, True, lambda: self._model.set(partition, key, value, version)
        )
        return written

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """See KeyValueStore."""
        version = self._caller.new_version()
        outcome: Outcome = self._call(
            "set_if",
            partition,
            key,
            True,
            lambda: self._model.set_if(partition, key, value, expected, version),
            Indeterminate(version, "simulated"),
        )
        return outcome

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """See KeyValueStore."""
        version = self._caller.new_version()
        outcome: Outcome = self._call(
            "delete_if",
            partition,
            key,
            True,
            lambda: self._model.delete_if(partition, key, expected, version),
            Indeterminate(version, "simulated"),
        )
        return outcome

    def note(self, partition: str, key: str, value: bytes) -> None:
        """See KeyValueStore."""
        self.set(partition, key, value)

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """See KeyValueStore."""
        return self.scan(partition, beginning, end_of(beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """See KeyValueStore; one step for each."""
        for key in keys:
            self._call("forget", partition, key, True, partial(self._model.forget, partition, key))

    def erase(self, partition: str, beginning: str) -> None:
        """See KeyValueStore; one step for all."""
        touch = Touch("kv", f"{partition}\0{beginning}", True, True)
        effect: Callable[[], None] = lambda: self._model.erase(partition, beginning)  # noqa: E731
        self._caller.call(Call(f"erase {partition}/{beginning}", (touch,), effect))

    def close(self) -> None:
        """See KeyValueStore; no call to the store."""

    def _call(
        self,
        operation: str,
        partition: str,
        key: str,
        writes: bool,
        effect: Callable[[], Any],
        unknown: Indeterminate | None = None,
    ) -> Any:
        touch = Touch("kv", f"{partition}\0{key}", False, writes)
        return self._caller.call(
            Call(f"{operation} {partition}/{key}", (touch,), effect, unknown, unknown is not None)
        )


class SimulatedObjectStore:
    """An ObjectStore over the model, whose calls pass the scheduler."""

    def __init__(self, model: ObjectModel, caller: Caller) -> None:
        self._model = model
        self._caller = caller

    @property
    def url(self) -> str:
        """See ObjectStore; no other process can open it."""
        return "simulated:///"

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore."""
        self._call("put", path, True, lambda: self._model.put(path, data, self._caller.now_s()))

    def create(self, path: str, data: bytes) -> bool:
        """See ObjectStore."""
        created: bool = self._call(
            "create", path, True, lambda: self._model.create(path, data, self._caller.now_s())
        )
        return created

    def get(self, path: str) -> bytes:
        """See ObjectStore."""
        data: bytes = self._call("get", path, False, lambda: self._model.get(path))
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore."""
        data: bytes = self._call(
            "get_range", path, False, lambda: self._model.get(path)[start : start + length]
        )
        return data

    def head(self, path: str) -> ObjectInfo | None:
        """See ObjectStore."""
        info: ObjectInfo | None = self._call("head", path, False, lambda: self._model.head(path))
        return info

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore; one step for the whole listing."""
        touch = Touch("objects", prefix, True, False)
        listed: list[ObjectInfo] = self._caller.call(
            Call(f"list {prefix}", (touch,), lambda: self._model.list(prefix))
        )
        return iter(listed)

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        touches = (Touch("objects", source, False, False), Touch("objects", target, False, True))
        effect: Callable[[], None] = lambda: self._model.copy(source, target, self._caller.now_s())  # noqa: E731
        self._caller.call(Call(f"copy {source} to {target}", touches, effect))

    def delete(self, path: str) -> None:
        """See ObjectStore."""
        self._call("delete", path, True, lambda: self._model.delete(path))

    def local_path(self, path: str) -> str | None:
        """See ObjectStore; there is no file."""
        del path
        return None

    def _call(self, operation: str, path: str, writes: bool, effect: Callable[[], Any]) -> Any:
        return self._caller.call(
            Call(f"{operation} {path}", (Touch("objects", path, False, writes),), effect)
        )


class Observer:
    """A caller outside of the simulation: its calls are carried out at once, and never fail."""

    def __init__(self) -> None:
        self._writes = 0

    def call(self, call: Call) -> Any:
        """Carry the call out."""
        return call.effect()

    def new_version(self) -> Version:
        """Return the identity of the next write."""
        self._writes += 1
        return f"observer-{self._writes}"

    def now_s(self) -> float:
        """Return the time before all others."""
        return 0.0
