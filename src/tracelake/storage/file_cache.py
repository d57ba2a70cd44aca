"""Objects as files, for libraries that read files: the local object itself, or a copy in a cache of bounded size.

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.storage.ports import ObjectStore

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

    def __init__(self, objects: ObjectStore, folder: Path, max_bytes: int | None = None) -> None:
        """Keep copies in `folder`, at most `max_bytes` if given; the caller deletes the folder."""
        self._objects = objects
        self._folder = folder
        self._max_bytes = max_bytes
        self._until_sweep_bytes = 0
        self._held: set[Path] = set()
        weakref.finalize(self, _end, self._held)

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
        """Copy remote objects in parallel, so that `file` finds them. Raises as `file` does."""
        if not paths or self._objects.local_path(paths[0]) is not None:
            return
        copies = [self._hold(path) for path in paths]
        with ThreadPoolExecutor(limits.PARTS_AT_ONCE) as pool:
            list(pool.map(self._make, paths, copies))

    def file(self, path: str) -> str:
        """Return a file with the object's bytes.

        Raises NotFoundError if a remote object is absent, and StorageError if the folder accepts no copy.
        """
        if (local := self._objects.local_path(path)) is not None:
            return local
        copy = self._hold(path)
        self._make(path, copy)
        return str(copy)

    def forget(self, path: str) -> bool:
        """Remove a corrupt copy; return False if the file is the object itself."""
        if self._objects.local_path(path) is not None:
            return False
        self._copy(path).unlink(missing_ok=True)
        return True

    def _copy(self, path: str) -> Path:
        return self._folder / quote(path, safe="")

    def _hold(self, path: str) -> Path:
        """Count a copy as in use before looking for it, so that no sweep removes it in between."""
        copy = self._copy(path)
        uses = _uses.get()
        uses = self._held if uses is None else uses
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
                    f"cannot keep a copy of {path} in {self._folder}: {error.strerror or error}; free space there, "
                    "or set XDG_CACHE_HOME to a directory on another disk"
                ) from error
        if self._max_bytes is not None:
            self._make_room(len(data), self._max_bytes)

    def _make_room(self, added_bytes: int, max_bytes: int) -> None:
        """Count added bytes, and sweep the folder now and then, because other processes add to it too."""
        with _lock:
            self._until_sweep_bytes -= added_bytes
            if self._until_sweep_bytes > 0:
                return
            left = max_bytes - _sweep(self._folder, max_bytes)
            self._until_sweep_bytes = max(min(left, max_bytes // 16), 1)


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
