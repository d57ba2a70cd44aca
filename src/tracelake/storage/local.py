"""Objects as files of a local directory: durable on return and never partial.

Every object is written under a temporary name in `.tmp/` of the same directory tree and synced. Then it gets its name
in one step: by a hard link, which fails if the name exists, or by a rename, which replaces. Finally the directory is
synced, because a name is only as durable as its directory. A killed writer leaves only a file in `.tmp/`.

The parent of an object is a directory, so if `a` is an object, `a/b` cannot be one. File paths are strings here,
because making a `Path` of each costs more than reading a small file.

The module also reports the free space of file systems, and recognizes errors of full ones.

It also counts the file descriptors of the process, and keeps a reserve of them for stores.

DuckDB ends the whole process if it cannot open a file. The limit is therefore raised at startup, and a server refuses
reads before the last descriptors are in use.

Both stores also exist in memory, for tests and experiments: thread-safe, lost when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final
from weakref import WeakValueDictionary

from tracelake import limits
from tracelake._errors import IndeterminateError, NotFoundError, StorageError
from tracelake.storage import ports
from tracelake.storage.ports import RESERVED_DIRECTORY, ObjectInfo, check_path, check_prefix, check_range

_SYNCED_DIRECTORIES_MAX: Final = 10_000
"""Directories that a file store remembers as durable."""
DIRECTORY_TRIES_MAX: Final = 10
"""Attempts to create a directory for a file while others remove it as empty."""
OBJECTS_AT_ONCE: Final = 16
"""Small objects that one call writes, reads or deletes concurrently."""


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, if absent; durable on return. Raises OSError if one cannot be created."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: str | Path) -> None:
    """Make the names in a directory durable. Raises OSError if the file system fails."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Lock a directory until the block ends, also against other threads."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# Errors for a path without a file: absent, below a file, or a directory.
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Directories whose names are durable, by root. All open stores of a root share the set, because each task
# opens a store. It is dropped with the last store, because a directory that is deleted and created again is
# not durable.
_SYNCED: Final[WeakValueDictionary[str, set[str]]] = WeakValueDictionary()

_UNWRITABLE: Final = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM)
"""Error codes of an unwritable location, which may still be readable."""


class FileObjectStore:
    """An `ObjectStore` on a local file system with hard links. Safe for any number of threads and processes.

    All methods raise StorageError if the file system fails, for example if the disk is full.
    """

    def __init__(self, root: str | Path) -> None:
        """Open the directory `root`, creating it if absent."""
        self._root = str(Path(root).absolute())
        self._temporaries = f"{self._root}/{RESERVED_DIRECTORY}"
        self._synced = _SYNCED.setdefault(self._root, set())
        with _failures("open", self._root):
            try:
                make_directory(Path(self._temporaries))
            except OSError as error:
                # An unwritable directory is still readable; each write reports why it fails.
                if error.errno not in _UNWRITABLE or not os.path.isdir(self._root):
                    raise

    @property
    def url(self) -> str:
        """Return the URL: `file:///absolute/path`, percent-encoded."""
        return Path(self._root).as_uri()

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one; durable on return."""
        target = self._file(path)
        with _failures("write", target), self._temporary() as temporary:
            _write_synced(temporary, data)
            self._publish_replacing(temporary, target)

    def put_temporary(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one, without a sync. A power failure may damage or remove it."""
        target = self._file(path)
        with _failures("write", target), self._temporary() as temporary:
            with open(temporary, "xb") as file:
                file.write(data)
            self._give_name(os.replace, temporary, target)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if none exists; return False if one does. Never leaves a partial object.

        Raises StorageError if it was not written, and IndeterminateError if it was written but may not survive a
        power failure. A retry then returns False, so that only the content identifies the writer.
        """
        target = self._file(path)
        created = self._link({target: data})
        # Also if we lost the race, because the caller acts on the winner's object.
        self._sync_names([target])
        return target in created

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """Replace an object if its bytes are `expected`; return False if it has others, or is absent.

        Other replacements in this store wait, in all processes. A put in the meantime is lost.
        """
        target = self._file(path)
        with _failures("replace", target), _locked(self._temporaries), suppress(NotFoundError):
            if self.get(path) == expected:
                self.put(path, data)
                return True
        return False

    def create_all(self, objects: Mapping[str, bytes]) -> None:
        """Write those of these objects, by path, that do not exist; all are durable on return. Faster than one by
        one."""
        targets = [(self._file(path), data) for path, data in objects.items()]
        for start in range(0, len(targets), OBJECTS_AT_ONCE):
            self._link(dict(targets[start : start + OBJECTS_AT_ONCE]))
        self._sync_names([target for target, _ in targets])

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError if it is absent."""
        target = self._file(path)
        try:
            with open(target, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise _unread(target, error) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end. Raises NotFoundError if the object is absent."""
        check_range(path, start, length)
        target = self._file(path)
        try:
            with open(target, "rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise _unread(target, error) from error

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time, or None if the object is absent."""
        target = self._file(path)
        return _info(path, target, lambda: os.stat(target))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose path begins with `prefix`, in order of path.

        Objects that are created or deleted during the listing may be included or not. Raises StorageError if the root
        is missing, so that a failing listing never looks empty.
        """
        check_prefix(prefix)
        return self._walk(prefix.rpartition("/")[0], prefix)

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing the target. Raises NotFoundError if the source is absent."""
        # Copy the bytes. A hard link would share the source's time, and garbage
        # collectors that check an object's age would take the new object for an old one.
        source_file, target_file = self._file(source), self._file(target)
        with _failures("copy", source_file), self._temporary() as temporary:
            try:
                shutil.copyfile(source_file, temporary)
            except _NO_FILE as error:
                raise _absent(source_file) from error
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            self._publish_replacing(temporary, target_file)

    def delete(self, path: str) -> None:
        """Delete the object, if it exists."""
        self.delete_all([path])

    def delete_all(self, paths: Collection[str]) -> None:
        """Delete objects, if they exist. Each directory is synced once.

        If one cannot be deleted, the others are, and StorageError reports the first failure.
        """
        failed: StorageError | None = None
        directories: dict[str, None] = {}
        for target in [self._file(path) for path in paths]:
            try:
                os.unlink(target)
            except _NO_FILE:
                continue
            except OSError as error:
                failed = failed or _failed("delete", target, error)
            else:
                directories[_directory(target)] = None
        for directory in directories:
            with _failures("delete from", directory):
                _sync_if_there(directory)
        if failed is not None:
            raise failed

    def remove_folder(self, prefix: str) -> None:
        """Remove the directory of a prefix if it is empty. Only for prefixes whose names are used once.

        A late writer creates and syncs it again.
        """
        directory = self._file(prefix.removesuffix("/"))
        with suppress(OSError):
            os.rmdir(directory)

    def local_path(self, path: str) -> str | None:
        """Return the path of the object's file, whether or not it exists."""
        return self._file(path)

    def temporaries(self) -> tuple[Path, ...]:
        """Return the files in `.tmp/`: those of killed writers, and of writers at work."""
        with _failures("list", self._temporaries):
            return tuple(Path(self._temporaries).iterdir())

    def sweep_temporaries(
        self,
        age_s: float = limits.TEMPORARY_FILE_AGE_MAX_S,
        find_erased: Callable[[bytes], Collection[str]] = lambda _: (),
    ) -> int:
        """Delete files in `.tmp/` that are older than `age_s`, or contain erased values; return their number."""
        swept = 0
        for file in self.temporaries():
            with _failures("sweep", str(file)), suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - age_s or find_erased(file.read_bytes()):
                    file.unlink()
                    swept += 1
        return swept

    def _file(self, path: str) -> str:
        check_path(path)
        return f"{self._root}/{path}"

    def _link(self, targets: Mapping[str, bytes]) -> set[str]:
        """Link synced files with this content to unused names; return the names that we created.

        The disk receives all content before the first sync waits. Many files therefore take little longer than one,
        and need no threads.
        """
        created: set[str] = set()
        with ExitStack() as stack:
            written: list[tuple[str, str, IO[bytes]]] = []
            for target, data in targets.items():
                with _failures("create", target):
                    if not os.path.exists(target):
                        temporary = stack.enter_context(self._temporary())
                        file: IO[bytes] = stack.enter_context(open(temporary, "xb"))
                        file.write(data)
                        file.flush()
                        _begin_writing(file)
                        written.append((target, temporary, file))
            for target, _, file in written:
                with _failures("create", target):
                    os.fsync(file.fileno())
            for target, temporary, _ in written:
                with _failures("create", target), suppress(FileExistsError):
                    self._give_name(os.link, temporary, target)
                    created.add(target)
        return created

    def _sync_names(self, targets: Collection[str]) -> None:
        """Make the names of files as durable as their content."""
        for directory, target in {_directory(target): target for target in targets}.items():
            try:
                _sync_if_there(directory)
            except OSError as error:
                raise IndeterminateError(
                    f"{target} exists but may not survive a power failure ({error}); repair the disk, then "
                    "read the object back to see which writer succeeded"
                ) from error

    @contextmanager
    def _temporary(self) -> Iterator[str]:
        make_directory(Path(self._temporaries))
        path = f"{self._temporaries}/{uuid.uuid4().hex}"
        try:
            yield path
        finally:
            # A later sweep removes the file; the object itself is not affected.
            with suppress(OSError):
                os.unlink(path)

    def _publish_replacing(self, temporary: str, target: str) -> None:
        self._give_name(os.replace, temporary, target)
        _sync_if_there(_directory(target))

    def _give_name(self, give: Callable[[str, str], None], temporary: str, target: str) -> None:
        """Give a file its name, creating the durable directory again if another process removes it as empty."""
        directory = _directory(target)
        for tries in range(DIRECTORY_TRIES_MAX):
            if tries:  # a sleep of zero would give the processor away
                time.sleep(min(tries, 2) / 1000)
            try:
                self._make_durable_directory(directory)
            except (FileNotFoundError, FileExistsError):  # Another process removed it, or it is a file.
                continue
            try:
                return give(temporary, target)
            except FileNotFoundError:
                if not os.path.exists(temporary):
                    raise
        code = errno.ENOTDIR if os.path.isfile(directory) else errno.ENOENT
        raise OSError(code, os.strerror(code), directory)

    def _make_durable_directory(self, directory: str) -> None:
        """Create a directory and sync its name and those of all its parents, once per directory and process.

        Existing parents are synced too, because another process may have created one without syncing it yet.
        """
        if os.path.isdir(directory) and directory in self._synced:
            return
        os.makedirs(directory, exist_ok=True)  # Again, if another thread or process removed it.
        above, passed = directory, [directory]
        while above != self._root:
            above = _directory(above)
            sync_directory(above)
            if above in self._synced:  # Its own name and all above it are durable.
                break
            passed.append(above)
        if len(self._synced) >= _SYNCED_DIRECTORIES_MAX:
            self._synced.clear()
        self._synced.update(passed)

    def _walk(self, directory: str, prefix: str) -> Iterator[ObjectInfo]:
        base = f"{directory}/" if directory else ""
        # A directory sorts by its name with the slash: `a.b` precedes the contents of `a/`.
        for name, entry in sorted(self._names(directory).items()):
            path = base + name
            if path == f"{RESERVED_DIRECTORY}/" or not path.startswith(prefix):
                continue
            if path.endswith("/"):
                yield from self._walk(path[:-1], prefix)
            elif (info := _info(path, entry.path, entry.stat)) is not None:
                yield info

    def _names(self, directory: str) -> dict[str, os.DirEntry[str]]:
        """Return the entries of a directory by name, directories with a slash; none if it is absent."""
        folder = f"{self._root}/{directory}" if directory else self._root
        with _failures("list", folder):
            try:
                with os.scandir(folder) as entries:
                    return {
                        f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name: entry
                        for entry in entries
                    }
            except (FileNotFoundError, NotADirectoryError):
                if not os.path.isdir(self._root):
                    raise
                return {}


def _directory(file: str) -> str:
    return file.rpartition("/")[0]


def _info(path: str, file: str, stat_of: Callable[[], os.stat_result]) -> ObjectInfo | None:
    try:
        status = stat_of()
    except _NO_FILE:
        return None
    except OSError as error:
        raise _failed("read", file, error) from error
    return ObjectInfo(path, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None


def _write_synced(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_if_there(directory: str) -> None:
    """Make the names in a directory durable. If the directory was removed, all its names were deleted."""
    with suppress(FileNotFoundError):
        sync_directory(directory)


def _begin_writing(file: IO[bytes]) -> None:
    """Start writing the file to disk, without waiting for it."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _failures(doing: str, file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(doing, file, error) from error


def _failed(doing: str, file: str, error: OSError) -> StorageError:
    failed = StorageError(
        f"cannot {doing} {file}: {error.strerror or error}; check the disk and its free space, then try again"
    )
    failed.is_unwritable = error.errno in _UNWRITABLE
    return failed


def _absent(file: str) -> NotFoundError:
    return NotFoundError(f"no object at {file}; check the path, or list what is there")


def _unread(file: str, error: OSError) -> StorageError | NotFoundError:
    return _absent(file) if isinstance(error, _NO_FILE) else _failed("read", file, error)


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_WORDS: Final = ("no space left on device", "disk is full", "disk quota exceeded")
"""What SQLite, DuckDB, Java and the system call it, where only the text of the error is left."""


def low_space(directories: Sequence[Path]) -> list[str]:
    """Return a sentence for each directory on a file system with too little free space. A file system is named once."""
    reasons: dict[int, str] = {}
    for directory in directories:
        with suppress(OSError):
            system, device = os.statvfs(directory), directory.stat().st_dev
            free_bytes = system.f_bavail * system.f_frsize
            if free_bytes < limits.READY_SPACE_MIN_BYTES:
                reasons.setdefault(
                    device,
                    f"{free_bytes / 1e6:,.0f} MB are free at {directory}, and the server needs "
                    f"{limits.READY_SPACE_MIN_BYTES / 1e6:,.0f} MB there; delete files, or make the file system larger",
                )
    return list(reasons.values())


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that a file system or quota is full."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        if any(words in str(cause).lower() for words in _WORDS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


DESCRIPTORS_RESERVED: Final = 256
"""Open files reserved for stores, because DuckDB ends the process if it cannot open one."""
_DESCRIPTORS_RESERVED_SHARE: Final = 4
"""Divisor that caps this reserve under a low limit of open files."""

_OPEN: Final = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Directories that list the open descriptors on Linux and macOS."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit, or to as many as are useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.DESCRIPTORS_WANTED if hard < 0 else min(limits.DESCRIPTORS_WANTED, hard)
    if 0 <= soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a separate, lower bound.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_max() -> int:
    """Return the number of files that the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.DESCRIPTORS_WANTED if soft < 0 else soft


def descriptors_open() -> int:
    """Return the number of open descriptors; 0 on a machine that does not report it."""
    for directory in _OPEN:
        with suppress(OSError):
            return sum(1 for _ in directory.iterdir())
    return 0


def has_descriptors() -> bool:
    """Return whether the process has free file descriptors beyond the reserve, so that a read may begin."""
    allowed = descriptors_max()
    reserve = min(DESCRIPTORS_RESERVED, allowed // _DESCRIPTORS_RESERVED_SHARE)
    return descriptors_open() + reserve <= allowed


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

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """Replace an object if its bytes are `expected`; return False if it has others, or is absent."""
        ports.check_path(path)
        with self._lock:
            if path not in self._objects or self._objects[path][0] != expected:
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
