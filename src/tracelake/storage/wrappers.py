"""Wrappers of stores: bulk operations on objects, isolation of unreadable objects, and the records of one lake.

Bulk operations use the fastest method of each store. `IsolatingObjectStore` is for readers of all objects, such as
`verify` and collections, which continue after damage. One unreadable object, for example on a bad disk sector or
owned by another user, must not hide all others, so it counts as damage. If no other object is readable either, the
error is raised unchanged: the store is down, or the process has too many open files.

`ScopedKeyValueStore` puts each partition under the lake's id, so that lakes can share a store. It combines each
checksum with partition and key (see `formats`) on writing, and reverses that on reading. A record that was moved to
the place of another record, of this or any lake, is therefore damaged for its reader, in every store.

`LocalFiles` provides objects as files, for libraries that read files: the local object itself, or a copy in a cache of
bounded size.

    <folder>/<path, percent-encoded>     a complete copy; its access time is its last use
    <folder>/.<random>.partial           an incomplete copy; renamed once it is complete

Processes share a folder. A sweep never removes copies that this process uses, or that any process used a moment ago
and may be about to open. If the copies exceed the limit, the least recently used others are removed first. A query
that needs more than the limit at once therefore gets it, if the disk has room.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from tracelake import limits
from tracelake._errors import DamagedRecordsError, DamageError, NotFoundError, StorageError
from tracelake.formats import turned
from tracelake.storage import ports
from tracelake.storage.buckets import BucketObjectStore
from tracelake.storage.local import OBJECTS_AT_ONCE, FileObjectStore
from tracelake.storage.ports import DatabaseCheck, check_database

_ResultT = TypeVar("_ResultT")
_READ_AHEAD: Final = 256
"""Small objects of a batch that are read in parallel."""


class DelegatingObjectStore:
    """An `ObjectStore` that passes its calls on to another one. Subclasses override `_call`, or single methods."""

    def __init__(self, store: ports.ObjectStore) -> None:
        self.store = store

    def _call(self, call: Callable[[], _ResultT]) -> _ResultT:
        """Make a call on the other store. All methods but `url` and `local_path` use it."""
        return call()

    @property
    def url(self) -> str:
        """Return the URL of the other store."""
        return self.store.url

    def put(self, path: str, data: bytes) -> None:
        """See ObjectStore."""
        self._call(lambda: self.store.put(path, data))

    def create(self, path: str, data: bytes) -> bool:
        """See ObjectStore."""
        return self._call(lambda: self.store.create(path, data))

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """See ObjectStore."""
        return self._call(lambda: self.store.replace(path, data, expected))

    def get(self, path: str) -> bytes:
        """See ObjectStore."""
        return self._call(lambda: self.store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore."""
        return self._call(lambda: self.store.get_range(path, start, length))

    def head(self, path: str) -> ports.ObjectInfo | None:
        """See ObjectStore."""
        return self._call(lambda: self.store.head(path))

    def list(self, prefix: str) -> Iterator[ports.ObjectInfo]:
        """See ObjectStore."""
        return self._call(lambda: self.store.list(prefix))

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        self._call(lambda: self.store.copy(source, target))

    def delete(self, path: str) -> None:
        """See ObjectStore."""
        self._call(lambda: self.store.delete(path))

    def local_path(self, path: str) -> str | None:
        """See ObjectStore."""
        return self.store.local_path(path)


class DelegatingKeyValueStore(ports.EachAlone):
    """A `KeyValueStore` that passes its calls on to another one. Subclasses override `_call`, or single methods."""

    def __init__(self, store: ports.KeyValueStore) -> None:
        self.store = store

    def _call(self, call: Callable[[], _ResultT]) -> _ResultT:
        """Make a call on the other store. `close` does not use it; `set_all` uses it once for each record."""
        return call()

    def get(self, partition: str, key: str) -> ports.Entry | None:
        """See KeyValueStore."""
        return self._call(lambda: self.store.get(partition, key))

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[ports.Entry]:
        """See KeyValueStore."""
        return self._call(lambda: self.store.scan(partition, start, stop, limit))

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """See KeyValueStore."""
        return self._call(lambda: self.store.keys(partition, start, stop, limit))

    def set(self, partition: str, key: str, value: bytes) -> ports.Version:
        """See KeyValueStore."""
        return self._call(lambda: self.store.set(partition, key, value))

    def set_if(self, partition: str, key: str, value: bytes, expected: ports.Expected) -> ports.Outcome:
        """See KeyValueStore."""
        return self._call(lambda: self.store.set_if(partition, key, value, expected))

    def delete_if(self, partition: str, key: str, expected: ports.Version) -> ports.Outcome:
        """See KeyValueStore."""
        return self._call(lambda: self.store.delete_if(partition, key, expected))

    def note(self, partition: str, key: str, value: bytes) -> None:
        """See KeyValueStore."""
        self._call(lambda: self.store.note(partition, key, value))

    def notes(self, partition: str, beginning: str = "") -> list[ports.Entry]:
        """See KeyValueStore."""
        return self._call(lambda: self.store.notes(partition, beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """See KeyValueStore."""
        self._call(lambda: self.store.forget(partition, keys))

    def erase(self, partition: str, beginning: str) -> None:
        """See KeyValueStore."""
        self._call(lambda: self.store.erase(partition, beginning))

    def close(self) -> None:
        """See KeyValueStore."""
        self.store.close()


class IsolatingObjectStore(DelegatingObjectStore):
    """An `ObjectStore` that raises DamageError for an unreadable object if another is readable."""

    def __init__(self, store: ports.ObjectStore, readable: str) -> None:
        """Use the object at `readable` to check whether the store works at all."""
        super().__init__(store)
        self._readable = readable

    def get(self, path: str) -> bytes:
        """See ObjectStore; raises DamageError as the class describes."""
        return self._read(lambda: self.store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore; raises DamageError as the class describes."""
        return self._read(lambda: self.store.get_range(path, start, length))

    def _read(self, read: Callable[[], _ResultT]) -> _ResultT:
        try:
            return read()
        except StorageError as error:
            self.store.get(self._readable)
            raise DamageError(str(error)) from error


def create_all(store: ports.ObjectStore, objects: Mapping[str, bytes]) -> None:
    """Write those of these objects, by path, that do not exist; all are durable on return. After an error, some are
    written."""
    inner = _inner(store)
    if len(objects) > 1 and isinstance(inner, FileObjectStore):
        inner.create_all(objects)
    else:
        for_each(store, lambda path: store.create(path, objects[path]), objects)


def put_temporary(store: ports.ObjectStore, path: str, data: bytes) -> None:
    """Write an object that only this process needs, and only until it ends. Files are not synced, so a reader must
    verify the data."""
    inner = _inner(store)
    if isinstance(inner, FileObjectStore):
        inner.put_temporary(path, data)
    else:
        store.put(path, data)


def sweep_temporaries(
    store: ports.ObjectStore, find_erased: Callable[[bytes], Collection[str]] = lambda _: ()
) -> None:
    """Delete temporary files of killed writers in a directory: old ones, and those that contain erased values."""
    inner = _inner(store)
    if isinstance(inner, FileObjectStore):
        inner.sweep_temporaries(find_erased=find_erased)


def copy_all(store: ports.ObjectStore, targets: Mapping[str, str]) -> list[str]:
    """Copy objects, each to its target; return the sources that exist. All copies are durable on return."""

    def copy(source: str) -> bool:
        try:
            store.copy(source, targets[source])
        except NotFoundError:
            return False
        return True

    copied = for_each(store, copy, targets)
    return [source for source, was_there in zip(targets, copied, strict=True) if was_there]


def read_all(store: ports.ObjectStore, paths: Collection[str]) -> dict[str, bytes]:
    """Return the bytes of each object by path. Objects that do not exist are omitted."""

    def read(path: str) -> bytes | None:
        try:
            return store.get(path)
        except NotFoundError:
            return None

    bodies = for_each(store, read, paths)
    return {path: body for path, body in zip(paths, bodies, strict=True) if body is not None}


def delete_all(store: ports.ObjectStore, paths: Collection[str]) -> None:
    """Delete objects, if they exist. After an error, some are deleted."""
    inner = _inner(store)
    if isinstance(inner, FileObjectStore):
        inner.delete_all(paths)
    else:
        for_each(store, store.delete, paths)


def remove_folders(store: ports.ObjectStore, prefixes: Iterable[str]) -> None:
    """Remove empty directories of prefixes in a file store. Only for prefixes whose names are not reused."""
    inner = _inner(store)
    if isinstance(inner, FileObjectStore):
        for prefix in prefixes:
            inner.remove_folder(prefix)


def for_each(
    store: ports.ObjectStore, ask: Callable[[str], _ResultT], paths: Collection[str]
) -> list[_ResultT]:
    """Return the result of `ask` for each path. Requests to a bucket run in parallel; requests to any other store run
    one by one.

    Raises the error of the first request that fails.
    """
    if len(paths) > 1 and isinstance(_inner(store), BucketObjectStore):
        with ThreadPoolExecutor(OBJECTS_AT_ONCE) as threads:
            return list(threads.map(ask, paths))
    return [ask(path) for path in paths]


def read_in_parallel(
    store: ports.ObjectStore, ask: Callable[[str], _ResultT], names: Collection[str]
) -> Iterator[tuple[str, _ResultT]]:
    """Yield each name with the result of `ask`, as `for_each` gets it. Few results are in memory."""
    todo = list(names)
    for start in range(0, len(todo), _READ_AHEAD):
        some = todo[start : start + _READ_AHEAD]
        yield from zip(some, for_each(store, ask, some), strict=True)


def _inner(store: ports.ObjectStore) -> ports.ObjectStore:
    return store.store if isinstance(store, IsolatingObjectStore) else store


class ScopedKeyValueStore:
    """A `KeyValueStore` that is one part of another: nothing outside of its scope can be read or written."""

    def __init__(self, store: ports.KeyValueStore, scope: str) -> None:
        """Put `scope/` in front of each partition of `store`; a scope contains no slash."""
        assert scope, "an empty scope would hold everything"
        assert "/" not in scope, "a scope inside another one would not be apart from it"
        self._store = store
        self._prefix = f"{scope}/"

    def get(self, partition: str, key: str) -> ports.Entry | None:
        """Return the record, or None if it is absent."""
        entry = self._store.get(self._prefix + partition, key)
        return None if entry is None else self._turned(partition, entry)

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[ports.Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return self._all(partition, lambda name: self._store.scan(name, start, stop, limit))

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records."""
        return self._store.keys(self._prefix + partition, start, stop, limit)

    def set(self, partition: str, key: str, value: bytes) -> ports.Version:
        """Write the record unconditionally."""
        return self._store.set(self._prefix + partition, key, self._value(partition, key, value))

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key; on an error some are written."""
        turned_by_key = {key: self._value(partition, key, value) for key, value in records.items()}
        self._store.set_all(self._prefix + partition, turned_by_key)

    def set_if(self, partition: str, key: str, value: bytes, expected: ports.Expected) -> ports.Outcome:
        """Write the record if its version is `expected`."""
        outcome = self._store.set_if(
            self._prefix + partition, key, self._value(partition, key, value), expected
        )
        return self._outcome(partition, outcome)

    def delete_if(self, partition: str, key: str, expected: ports.Version) -> ports.Outcome:
        """Delete the record if its version is `expected`."""
        return self._outcome(partition, self._store.delete_if(self._prefix + partition, key, expected))

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Write a note, replacing an existing one."""
        self._store.note(self._prefix + partition, key, self._value(partition, key, value))

    def notes(self, partition: str, beginning: str = "") -> list[ports.Entry]:
        """Return the notes of a partition whose key has this prefix, in key order."""
        return self._all(partition, lambda name: self._store.notes(name, beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes, if they exist."""
        self._store.forget(self._prefix + partition, keys)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix."""
        self._store.erase(self._prefix + partition, beginning)

    def check_database(self, scope: str) -> DatabaseCheck:
        """Check the database of the store, and this scope's rows."""
        return check_database(self._store, self._prefix + scope)

    def close(self) -> None:
        """Close the underlying store."""
        self._store.close()

    def _value(self, partition: str, key: str, value: bytes) -> bytes:
        return turned(value, f"{self._prefix}{partition}\0{key}")

    def _turned(self, partition: str, entry: ports.Entry) -> ports.Entry:
        return replace(entry, value=self._value(partition, entry.key, entry.value))

    def _outcome(self, partition: str, outcome: ports.Outcome) -> ports.Outcome:
        if isinstance(outcome, ports.Conflict) and outcome.current is not None:
            return ports.Conflict(self._turned(partition, outcome.current))
        return outcome

    def _all(self, partition: str, read: Callable[[str], Iterable[ports.Entry]]) -> list[ports.Entry]:
        try:
            return [self._turned(partition, entry) for entry in read(self._prefix + partition)]
        except DamagedRecordsError as error:
            entries = [self._turned(partition, entry) for entry in error.whole]
            raise DamagedRecordsError(entries, error.problems) from error


_PART_COPY_LOCKS: Final = 64
"""Concurrent copies of a process, one for each of so many locks."""

_PARTIAL: Final = ".partial"

_lock = threading.Lock()
_in_use: Counter[Path] = Counter()
"""Copies that this process uses, across all `LocalFiles`."""
_ended: Final[deque[set[Path]]] = deque()
"""Copies of ended `LocalFiles`. They may end at any moment, even while this thread holds the lock, so they are
counted later."""
_making: Final = [threading.Lock() for _ in range(_PART_COPY_LOCKS)]
"""Locks for making copies, so that threads that want the same copy make it once."""
_uses: ContextVar[set[Path] | None] = ContextVar("uses", default=None)


class LocalFiles:
    """Files with the contents of objects. Objects are immutable, so an existing copy is valid.

    A file stays until the surrounding `in_use` ends, or without one, as long as this object lives. Any number of
    threads may use it. Users may delete the folder while it is not in use.
    """

    def __init__(self, objects: ports.ObjectStore, folder: Path, max_bytes: int | None = None) -> None:
        """Keep copies in `folder`, at most `max_bytes` if given; the caller deletes the folder."""
        self._objects = objects
        self._folder = folder
        self._max_bytes = max_bytes
        self._until_sweep_bytes = 0
        self._pinned: set[Path] = set()
        weakref.finalize(self, _end, self._pinned)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the files that this thread requests until the end of the context, and no longer."""
        uses: set[Path] = set()
        token = _uses.set(uses)
        try:
            yield
        finally:
            _uses.reset(token)
            _end(uses)

    def fetch(self, paths: Sequence[str]) -> None:
        """Copy remote objects to the folder in parallel, so that `file` finds them. Raises NotFoundError if one is
        absent, and StorageError if the folder accepts no copy."""
        if not paths or self._objects.local_path(paths[0]) is not None:
            return
        copies = [self._hold(path) for path in paths]
        with ThreadPoolExecutor(limits.PARTS_AT_ONCE) as pool:
            list(pool.map(self._make, paths, copies))

    def file(self, path: str) -> str:
        """Return the path of a file with the object's bytes; copy a remote object to the folder first."""
        if (local := self._objects.local_path(path)) is not None:
            return local
        copy = self._hold(path)
        self._make(path, copy)
        return str(copy)

    def forget(self, path: str) -> bool:
        """Delete the copy of an object, because it is corrupt. Return False if the file is the local object itself."""
        if self._objects.local_path(path) is not None:
            return False
        self._copy(path).unlink(missing_ok=True)
        return True

    def _copy(self, path: str) -> Path:
        return self._folder / quote(path, safe="")

    def _hold(self, path: str) -> Path:
        """Count a copy as in use, and return its path. Do this before looking for the copy, so that no sweep deletes it
        in between."""
        copy = self._copy(path)
        uses = _uses.get()
        uses = self._pinned if uses is None else uses
        with _lock:
            _count_ended()
            if copy not in uses:
                uses.add(copy)
                _in_use[copy] += 1
        return copy

    def _make(self, path: str, copy: Path) -> None:
        with _making[hash(copy) % len(_making)]:
            if _touch(copy):
                return
            data = self._objects.get(path)
            partial = self._folder / f".{uuid.uuid4().hex}{_PARTIAL}"
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                partial.write_bytes(data)
                partial.rename(copy)
            except OSError as error:
                with suppress(OSError):
                    partial.unlink()
                raise StorageError(
                    f"cannot store a copy of {path} in {self._folder}: {error.strerror or error}; free space "
                    "there, or set XDG_CACHE_HOME to a directory on another disk"
                ) from error
        if self._max_bytes is not None:
            self._make_room(len(data), self._max_bytes)

    def _make_room(self, added_bytes: int, max_bytes: int) -> None:
        """Count added bytes, and sweep the folder now and then, because other processes add to it too."""
        with _lock:
            self._until_sweep_bytes -= added_bytes
            if self._until_sweep_bytes > 0:
                return
            free_bytes = max_bytes - _sweep(self._folder, max_bytes)
            self._until_sweep_bytes = max(min(free_bytes, max_bytes // 16), 1)


def _touch(copy: Path) -> bool:
    """Set a copy's access time to now; return False if it does not exist."""
    try:
        # Keep the modification time, because it identifies copies that were checked already.
        os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    except OSError:  # Another user's file, or a read-only disk; the copy is still readable.
        return copy.exists()
    return True


def _sweep(folder: Path, max_bytes: int) -> int:
    """Remove the least recently used copies until the others fit; return the remaining bytes. Requires `_lock`."""
    files: list[tuple[float, int, Path]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat()
                files.append((status.st_atime, status.st_size, Path(entry.path)))
    total = sum(size for _, size, _ in files)
    now = time.time()
    for used_at, size, file in sorted(files):
        left_over = file.suffix == _PARTIAL and used_at < now - limits.TEMPORARY_FILE_AGE_MAX_S
        fits = total <= max_bytes - max_bytes // 16
        if not left_over and (fits or _in_use[file] or used_at > now - limits.PART_COPY_IDLE_MIN_S):
            continue
        with suppress(OSError):
            file.unlink()
            total -= size
    return total


def _end(uses: set[Path]) -> None:
    # Local objects have no copies, and without copies no call would ever empty the queue.
    if uses:
        _ended.append(uses)


def _count_ended() -> None:
    """Subtract ended uses from the counts. Requires `_lock`."""
    while _ended:
        for copy in _ended.popleft():
            _in_use[copy] -= 1
            if not _in_use[copy]:
                del _in_use[copy]
