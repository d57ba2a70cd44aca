"""Objects as files, for libraries that read files: where they are, or as copies in a cache of bounded size.

    <folder>/<path, percent-encoded>     a whole copy; its access time says when it was used last
    <folder>/.<random>.partial           a copy that is being made; renamed once it is whole

Processes share a folder. What this one uses is never removed, and what any process used a moment ago is not
either: it may still be about to open it. All else goes, the least recently used first, once the copies take
more than the limit; so a query that needs more than the limit at once gets it, if the disk has room.
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

_PARTIAL: Final = ".partial"

_lock = threading.Lock()
_in_use: Counter[Path] = Counter()
"""Copies that this process uses, whichever `LocalFiles` gave them out."""
_ended: Final[deque[set[Path]]] = deque()
"""What ended `LocalFiles` held. They end at any moment, even while this thread has the lock, so it is counted later."""
_making: Final = [threading.Lock() for _ in range(limits.PART_COPY_LOCKS)]
"""One of them is held while a copy is made, so that threads that want the same one make it once."""
_uses: ContextVar[set[Path] | None] = ContextVar("uses", default=None)


class LocalFiles:
    """Gives each object as a file. Objects are immutable, so a copy that is there is good.

    A file stays until the `in_use` around the call ends, or without one as long as this object lives.
    Any number of threads may use it. The folder may be deleted by hand while nothing uses it.
    """

    def __init__(self, objects: ObjectStore, folder: Path, max_bytes: int | None = None) -> None:
        """Keep copies in `folder`, of `max_bytes` or as many as come; the folder is the caller's to delete."""
        self._objects = objects
        self._folder = folder
        self._max_bytes = max_bytes
        self._until_sweep_bytes = 0
        self._held: set[Path] = set()
        weakref.finalize(self, _end, self._held)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the files that this thread asks for until the end of the context, and no longer."""
        uses: set[Path] = set()
        token = _uses.set(uses)
        try:
            yield
        finally:
            _uses.reset(token)
            _end(uses)

    def fetch(self, paths: Sequence[str]) -> None:
        """Make copies of remote objects, several at a time; `file` then has them. Raises as `file` does."""
        if not paths or self._objects.local_path(paths[0]) is not None:
            return
        copies = [self._hold(path) for path in paths]
        with ThreadPoolExecutor(limits.PARTS_AT_ONCE) as pool:
            list(pool.map(self._make, paths, copies))

    def file(self, path: str) -> str:
        """Return a file with the object's bytes.

        Raises NotFoundError where a remote object is absent, StorageError where the folder takes no copy.
        """
        if (local := self._objects.local_path(path)) is not None:
            return local
        copy = self._hold(path)
        self._make(path, copy)
        return str(copy)

    def forget(self, path: str) -> bool:
        """Remove a copy that is not what it should be; False where there is none, but the object itself."""
        if self._objects.local_path(path) is not None:
            return False
        self._copy(path).unlink(missing_ok=True)
        return True

    def _copy(self, path: str) -> Path:
        return self._folder / quote(path, safe="")

    def _hold(self, path: str) -> Path:
        """Count a copy as in use before it is looked for, so that it cannot go in between."""
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
        """Count what was added, and look at the folder now and then: other processes add to it too."""
        with _lock:
            self._until_sweep_bytes -= added_bytes
            if self._until_sweep_bytes > 0:
                return
            left = max_bytes - _sweep(self._folder, max_bytes)
            self._until_sweep_bytes = max(min(left, max_bytes // 16), 1)


def _touch(copy: Path) -> bool:
    """Note that a copy is used now; False where there is none."""
    try:
        # The time of change stays: who has checked a copy knows it by that.
        os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    except OSError:  # somebody else's, or a disk that takes no writes: it can be read all the same
        return copy.exists()
    return True


def _sweep(folder: Path, max_bytes: int) -> int:
    """Remove the least recently used copies until the others fit; return the bytes that stay. `_lock` is held."""
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
    # Of objects that are files themselves there are no copies, and nobody ever counts what has ended.
    if uses:
        _ended.append(uses)


def _count_ended() -> None:
    """Take what has ended out of the count. `_lock` is held."""
    while _ended:
        for copy in _ended.popleft():
            _in_use[copy] -= 1
            if not _in_use[copy]:
                del _in_use[copy]
