"""Both ports as one simulated process sees them: each call waits for the scheduler, which decides its outcome.

The models keep both stores in memory, without locks, because every call on them is one step of the simulation. The
module also defines the calls of actors and the faults that can hit them.

A `CrashPoint` stops the caller of a real store at a chosen call, as if its process were killed:

    crash = CrashPoint(at=17, after=True)           # the 17th call takes effect, but its caller gets no reply
    objects = CrashingObjectStore(real_objects, crash)
    key_value = CrashingKeyValueStore(real_key_value, crash)

Written data stays in the real stores; a new actor over those is the restarted process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from tracelake import storage
from tracelake._errors import NotFoundError, StorageError
from tracelake.storage.ports import EachAlone, beginning_of_both, end_of, is_at
from tracelake.storage.wrappers import DelegatingKeyValueStore, DelegatingObjectStore

_ResultT = TypeVar("_ResultT")


class KeyValueModel:
    """Records by (partition, key). The caller names the version of each write, so that runs repeat exactly."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], storage.Entry] = {}
        self.digest = 0
        """A function of the content: equal contents have equal digests."""

    def get(self, partition: str, key: str) -> storage.Entry | None:
        """Return the record, or None if it is absent."""
        return self.records.get((partition, key))

    def scan(self, partition: str, start: str = "", stop: str | None = None) -> list[storage.Entry]:
        """Return the records with start <= key < stop in key order."""
        entries = (entry for (of, _), entry in self.records.items() if of == partition)
        keys = [entry for entry in entries if start <= entry.key and (stop is None or entry.key < stop)]
        return sorted(keys, key=lambda entry: entry.key)

    def set(self, partition: str, key: str, value: bytes, version: storage.Version) -> storage.Version:
        """Write the record unconditionally."""
        self._replace(partition, key, storage.Entry(key, bytes(value), version))
        return version

    def set_if(
        self, partition: str, key: str, value: bytes, expected: storage.Expected, version: storage.Version
    ) -> storage.Outcome:
        """Write the record if its version is `expected`."""
        current = self.get(partition, key)
        if not is_at(current, expected):
            return storage.Conflict(current)
        return storage.Done(self.set(partition, key, value, version))

    def delete_if(
        self, partition: str, key: str, expected: storage.Version, version: storage.Version
    ) -> storage.Outcome:
        """Delete the record if its version is `expected`."""
        current = self.get(partition, key)
        if not is_at(current, expected):
            return storage.Conflict(current)
        self._replace(partition, key, None)
        return storage.Done(version)

    def forget(self, partition: str, key: str) -> None:
        """Delete the record unconditionally."""
        self._replace(partition, key, None)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix."""
        for entry in self.scan(partition):
            if entry.key.startswith(beginning):
                self._replace(partition, entry.key, None)

    def _replace(self, partition: str, key: str, entry: storage.Entry | None) -> None:
        name = (partition, key)
        if (before := self.records.pop(name, None)) is not None:
            self.digest ^= hash((name, before.value, before.version))
        if entry is not None:
            self.records[name] = entry
            self.digest ^= hash((name, entry.value, entry.version))


class ObjectModel:
    """Objects by path, each with its modification time in seconds."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.digest = 0
        """A function of the content: equal contents have equal digests."""

    def put(self, path: str, data: bytes, now_s: float = 0.0) -> None:
        """Write an object, replacing an existing one."""
        self.delete(path)
        self.objects[path] = (bytes(data), now_s)
        self.digest ^= hash((path, data))

    def create(self, path: str, data: bytes, now_s: float = 0.0) -> bool:
        """Write an object if none exists; return False if one does."""
        if path in self.objects:
            return False
        self.put(path, data, now_s)
        return True

    def replace(self, path: str, data: bytes, expected: bytes, now_s: float = 0.0) -> bool:
        """Replace an object if its bytes are `expected`; return False if it has others, or is absent."""
        if path not in self.objects or self.objects[path][0] != expected:
            return False
        self.put(path, data, now_s)
        return True

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError if it is absent."""
        if path not in self.objects:
            raise NotFoundError(f"no object {path!r} in the simulated store; list what is there")
        return self.objects[path][0]

    def head(self, path: str) -> storage.ObjectInfo | None:
        """Return size and time, or None if the object is absent."""
        stored = self.objects.get(path)
        return None if stored is None else storage.ObjectInfo(path, len(stored[0]), stored[1])

    def list(self, prefix: str) -> list[storage.ObjectInfo]:
        """Return the objects whose path begins with `prefix`, in order of path."""
        paths = sorted(path for path in self.objects if path.startswith(prefix))
        return [storage.ObjectInfo(path, len(self.objects[path][0]), self.objects[path][1]) for path in paths]

    def copy(self, source: str, target: str, now_s: float = 0.0) -> None:
        """Copy an object, replacing the target. Raises NotFoundError if the source is absent."""
        self.put(target, self.get(source), now_s)

    def delete(self, path: str) -> None:
        """Delete the object, if it exists."""
        if (before := self.objects.pop(path, None)) is not None:
            self.digest ^= hash((path, before[0]))


class Fate(IntEnum):
    """Outcome that the scheduler chooses for an actor's next call, or an event that hits the actor itself."""

    DONE = 0
    LOST_AFTER = 1
    LOST_BEFORE = 2
    REFUSED = 3
    LATE = 4
    LAND = 5
    KILL = 6
    DELAY = 7
    STALL = 8
    PARTITION = 9


MEANING = {
    Fate.DONE: "",
    Fate.LOST_AFTER: "REPLY LOST, it happened",
    Fate.LOST_BEFORE: "REPLY LOST, it did not happen",
    Fate.REFUSED: "REFUSED by the store",
    Fate.LATE: "REPLY LOST, it is still on its way",
    Fate.LAND: "LANDS LATE",
    Fate.KILL: "KILLED before this call",
    Fate.DELAY: "DELAYED",
    Fate.STALL: "THE STORE STALLS",
    Fate.PARTITION: "CUT OFF from the store",
}


class Choice(NamedTuple):
    """One decision of the scheduler: the actor of the next call, and the call's outcome.

    `wait_ms` is the duration of a delay, a stall, a partition or a dead process on the simulated clock.
    """

    actor: int
    fate: Fate = Fate.DONE
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """Maximum number of faults of each kind in one run. Every run ends, because the faults are limited.

    `lost` counts lost replies (the write happened or not), failing reads and refused writes. `late` counts writes
    that are still in flight when their caller gets an unknown outcome. A killed actor is restarted, unless `restart`
    is False.
    """

    kills: int = 0
    lost: int = 0
    late: int = 0
    delays: int = 0
    stalls: int = 0
    partitions: int = 0
    restart: bool = True


BUDGETS = ("kills", "lost", "late", "delays", "stalls", "partitions")
"""The fields of Faults that are counts, in order."""
BUDGET_OF = {
    Fate.KILL: 0,
    Fate.LOST_AFTER: 1,
    Fate.LOST_BEFORE: 1,
    Fate.REFUSED: 1,
    Fate.LATE: 2,
    Fate.DELAY: 3,
    Fate.STALL: 4,
    Fate.PARTITION: 5,
}
"""Index of the count that each fault uses up."""


class Touch(NamedTuple):
    """A key, or all keys with the prefix `name`, that a call reads or writes."""

    store: str
    name: str
    is_prefix: bool
    writes: bool


@dataclass(slots=True)
class Call:
    """One call of an actor. `effect` executes it on the model; `unknown` is the answer to a lost reply."""

    text: str
    touches: tuple[Touch, ...]
    effect: Callable[[], Any]
    unknown: Any = None
    """The port's return value for an unknown outcome; None if the port raises StorageError."""
    conditional: bool = False
    wait_ms: int = 0
    outcomes: tuple[Fate, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Determine the faults that can hit this call."""
        if not self.touches:
            self.outcomes = ()
        elif not any(touch.writes for touch in self.touches):
            self.outcomes = (Fate.LOST_BEFORE,)
        elif self.conditional:
            self.outcomes = (Fate.LOST_AFTER, Fate.LOST_BEFORE, Fate.REFUSED, Fate.LATE)
        else:
            self.outcomes = (Fate.LOST_AFTER, Fate.LOST_BEFORE, Fate.LATE)

    def answer_unknown(self) -> object:
        """Return the caller's answer to a lost reply; an exception is raised in the caller."""
        return StorageError(f"simulated: no reply to {self.text}") if self.unknown is None else self.unknown


def commute(ours: tuple[Touch, ...], theirs: tuple[Touch, ...]) -> bool:
    """Return whether two calls commute: neither writes a key that the other touches."""
    return not any((a.writes or b.writes) and _overlap(a, b) for a in ours for b in theirs)


def _overlap(a: Touch, b: Touch) -> bool:
    if a.store != b.store:
        return False
    if a.is_prefix:
        return b.name.startswith(a.name) or (b.is_prefix and a.name.startswith(b.name))
    return a.name.startswith(b.name) if b.is_prefix else a.name == b.name


class Caller(Protocol):
    """The maker of calls: an actor of a simulation."""

    def call(self, call: Call) -> Any:
        """Wait until the scheduler makes the call; return or raise its result."""

    def new_version(self) -> storage.Version:
        """Return the version of this actor's next write."""

    def now_s(self) -> float:
        """Return the simulated time in seconds."""


class SimulatedKeyValueStore(EachAlone):
    """A KeyValueStore over the model; its calls pass the scheduler."""

    def __init__(self, model: KeyValueModel, caller: Caller) -> None:
        self._model = model
        self._caller = caller

    def get(self, partition: str, key: str) -> storage.Entry | None:
        """See KeyValueStore."""
        return self._call("get", partition, key, False, lambda: self._model.get(partition, key))

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[storage.Entry]:
        """See KeyValueStore."""
        same = beginning_of_both(start.encode(), (stop or "").encode()).decode(errors="ignore")
        touch = Touch("kv", f"{partition}\0{same}", True, False)
        text = f"scan {partition} [{start!r}, {stop!r})"
        effect: Callable[[], list[storage.Entry]] = lambda: self._model.scan(partition, start, stop)[:limit]  # noqa: E731
        entries: list[storage.Entry] = self._caller.call(Call(text, (touch,), effect))
        return entries

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """See KeyValueStore; one step, like a scan."""
        return [entry.key for entry in self.scan(partition, start, stop, limit)]

    def set(self, partition: str, key: str, value: bytes) -> storage.Version:
        """See KeyValueStore."""
        version = self._caller.new_version()
        return self._call(
            "set", partition, key, True, lambda: self._model.set(partition, key, value, version)
        )

    def set_if(self, partition: str, key: str, value: bytes, expected: storage.Expected) -> storage.Outcome:
        """See KeyValueStore."""
        version = self._caller.new_version()
        write = partial(self._model.set_if, partition, key, value, expected, version)
        return self._call("set_if", partition, key, True, write, storage.Indeterminate(version, "simulated"))

    def delete_if(self, partition: str, key: str, expected: storage.Version) -> storage.Outcome:
        """See KeyValueStore."""
        version = self._caller.new_version()
        write = partial(self._model.delete_if, partition, key, expected, version)
        return self._call(
            "delete_if", partition, key, True, write, storage.Indeterminate(version, "simulated")
        )

    def note(self, partition: str, key: str, value: bytes) -> None:
        """See KeyValueStore."""
        self.set(partition, key, value)

    def notes(self, partition: str, beginning: str = "") -> list[storage.Entry]:
        """See KeyValueStore."""
        return self.scan(partition, beginning, end_of(beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """See KeyValueStore; one step per key."""
        for key in keys:
            self._call("forget", partition, key, True, partial(self._model.forget, partition, key))

    def erase(self, partition: str, beginning: str) -> None:
        """See KeyValueStore; one step for all keys."""
        touch = Touch("kv", f"{partition}\0{beginning}", True, True)
        effect: Callable[[], None] = lambda: self._model.erase(partition, beginning)  # noqa: E731
        self._caller.call(Call(f"erase {partition}/{beginning}", (touch,), effect))

    def close(self) -> None:
        """See KeyValueStore; makes no call to the store."""

    def _call(
        self,
        operation: str,
        partition: str,
        key: str,
        writes: bool,
        effect: Callable[[], _ResultT],
        unknown: storage.Indeterminate | None = None,
    ) -> _ResultT:
        touch = Touch("kv", f"{partition}\0{key}", False, writes)
        call = Call(f"{operation} {partition}/{key}", (touch,), effect, unknown, unknown is not None)
        return cast("_ResultT", self._caller.call(call))


class SimulatedObjectStore:
    """An ObjectStore over the model; its calls pass the scheduler."""

    def __init__(self, model: ObjectModel, caller: Caller) -> None:
        self._model = model
        self._caller = caller

    @property
    def url(self) -> str:
        """Return a URL that no other process can open."""
        return "simulated:///"

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore."""
        self._call("put", path, True, lambda: self._model.put(path, data, self._caller.now_s()))

    def create(self, path: str, data: bytes) -> bool:
        """See ObjectStore."""
        return self._call("create", path, True, lambda: self._model.create(path, data, self._caller.now_s()))

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """See ObjectStore."""
        effect: Callable[[], bool] = lambda: self._model.replace(path, data, expected, self._caller.now_s())  # noqa: E731
        return self._call("replace", path, True, effect)

    def get(self, path: str) -> bytes:
        """See ObjectStore."""
        return self._call("get", path, False, lambda: self._model.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore."""
        return self._call("get_range", path, False, lambda: self._model.get(path)[start : start + length])

    def head(self, path: str) -> storage.ObjectInfo | None:
        """See ObjectStore."""
        return self._call("head", path, False, lambda: self._model.head(path))

    def list(self, prefix: str) -> Iterator[storage.ObjectInfo]:
        """See ObjectStore; one step for the whole listing."""
        touch = Touch("objects", prefix, True, False)
        listed: list[storage.ObjectInfo] = self._caller.call(
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
        """Return None, because no file exists."""
        del path
        return None

    def _call(self, operation: str, path: str, writes: bool, effect: Callable[[], _ResultT]) -> _ResultT:
        call = Call(f"{operation} {path}", (Touch("objects", path, False, writes),), effect)
        return cast("_ResultT", self._caller.call(call))


class Observer:
    """A caller outside of the simulation: its calls run at once, and never fail."""

    def __init__(self) -> None:
        self._writes = 0

    def call(self, call: Call) -> Any:
        """Make the call."""
        return call.effect()

    def new_version(self) -> storage.Version:
        """Return the version of the next write."""
        self._writes += 1
        return f"observer-{self._writes}"

    def now_s(self) -> float:
        """Return time zero, before all others."""
        return 0.0


ResultT = TypeVar("ResultT")


class Crashed(BaseException):
    """The simulated process was killed. Not an Exception, so that no `except Exception` catches it."""


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


class CrashingObjectStore(DelegatingObjectStore):
    """An ObjectStore whose calls pass a crash point."""

    def __init__(self, store: storage.ObjectStore, crash: CrashPoint) -> None:
        super().__init__(store)
        self._crash = crash

    def _call(self, call: Callable[[], ResultT]) -> ResultT:
        return self._crash.pass_through(call)

    def list(self, prefix: str) -> Iterator[storage.ObjectInfo]:
        """See ObjectStore; one call for the whole listing."""
        return self._call(lambda: iter([*self.store.list(prefix)]))


class CrashingKeyValueStore(DelegatingKeyValueStore):
    """A KeyValueStore whose calls pass a crash point."""

    def __init__(self, store: storage.KeyValueStore, crash: CrashPoint) -> None:
        super().__init__(store)
        self._crash = crash

    def _call(self, call: Callable[[], ResultT]) -> ResultT:
        return self._crash.pass_through(call)
