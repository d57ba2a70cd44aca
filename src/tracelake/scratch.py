"""Temporary directories that are deleted afterwards, also after a process was killed.

A process locks each directory it uses, and the system releases the lock when the process ends. Each process that
creates such a directory occasionally deletes unlocked ones. A new directory has no lock yet, so its age counts too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SCRATCH_DELETE_TRIES_MAX: Final = 3
"""Attempts to delete a scratch directory."""
SCRATCH_AGE_MIN_S: Final = 600.0
"""Age of an unused scratch directory."""
SCRATCH_SWEEP_INTERVAL_S: Final = 3600.0
"""Interval at which a process that creates scratch directories looks for leftovers."""

SCRATCH_MEMORY_MAX_BYTES: Final = 64 * 1024 * 1024
"""Expected contents of a scratch directory in memory. Beyond: it is on the disk."""
_SCRATCH_MEMORY_FREE: Final = 8
"""Free space there, as a multiple of the expected contents."""

MEMORY: Final = Path("/dev/shm")  # noqa: S108  only for private directories
"""File system in memory, if the system has one."""
_PREFIX: Final = "tracelake-scratch-"
_sweeping = threading.Lock()
_swept: dict[str, float] = {}
"""Monotonic time of this process's last search for leftovers, by directory."""


@contextmanager
def scratch_directory(kind: str, parent: Path | None = None, size_bytes: int | None = None) -> Iterator[Path]:
    """Yield a new directory; delete it with its contents at the end, on a best-effort basis.

    It is in the system's temporary directory, with `kind` in its name, or under `parent`, where its name begins with
    `kind`. The owner of `parent` deletes the leftovers of killed processes there. With `size_bytes`, the expected size
    of its contents, it is in memory if there is room: tantivy syncs each file, which costs more than a small index.
    Raises OSError if it cannot be created.
    """
    prefix = kind
    if parent is None:
        parent, prefix = _place(size_bytes), f"{_PREFIX}{kind}-"
        _sweep_now_and_then(parent)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with _locked(directory):
            yield directory
    finally:
        delete_directory(directory)


def delete_directory(directory: Path) -> None:
    """Delete a directory with its contents, on a best-effort basis.

    Opening a directory in tantivy starts a thread, which may create its lock file again during the deletion. So the
    deletion is retried.
    """
    for _ in range(_SCRATCH_DELETE_TRIES_MAX):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break


def sweep(place: Path) -> int:
    """Delete the scratch directories of ended processes; return their number."""
    swept = 0
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    swept += _delete_if_abandoned(Path(entry.path), entry.stat(follow_symlinks=False))
    return swept


def _place(size_bytes: int | None) -> Path:
    """Return the directory for a scratch directory of this size, or of an unknown one."""
    with suppress(OSError):
        if (
            size_bytes is not None
            and size_bytes <= SCRATCH_MEMORY_MAX_BYTES
            and os.access(MEMORY, os.W_OK)
            and shutil.disk_usage(MEMORY).free >= _SCRATCH_MEMORY_FREE * size_bytes
        ):
            return MEMORY
    return Path(tempfile.gettempdir())


def _sweep_now_and_then(place: Path) -> None:
    with _sweeping:
        now_s = time.monotonic()
        if now_s < _swept.get(str(place), float("-inf")) + SCRATCH_SWEEP_INTERVAL_S:
            return
        _swept[str(place)] = now_s
    sweep(place)


def _delete_if_abandoned(directory: Path, status: os.stat_result) -> bool:
    """Delete a scratch directory that no process locks. Raises OSError if the deletion fails or the file system has no
    locks."""
    if status.st_uid != os.getuid() or time.time() < status.st_mtime + SCRATCH_AGE_MIN_S:
        return False
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        delete_directory(directory)
    finally:
        os.close(descriptor)
    return True


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock a directory during the block. If the file system has no locks, no other process can lock it either."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
