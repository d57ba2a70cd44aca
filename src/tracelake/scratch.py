"""Temporary directories that are gone afterwards, also those of processes that were killed.

Whoever works in one holds a lock on it, which the system lets go of with the process. Each process that makes one
deletes what it finds without a lock, now and then. A directory that has just been made has none yet, so its age counts.
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

from tracelake.limits import SCRATCH_AGE_MIN_S, SCRATCH_DELETE_TRIES_MAX, SCRATCH_SWEEP_INTERVAL_S

_PREFIX: Final = "tracelake-scratch-"
_sweeping = threading.Lock()
_swept: dict[str, float] = {}
"""When this process looked for leftovers in a directory, by the monotonic clock."""


@contextmanager
def scratch_directory(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new directory; delete it with all that is in it at the end, as well as can be.

    It is in the system's place for such, with `kind` in its name; or under `parent`, where its name begins with `kind`
    and whose owner looks after what killed processes leave there. Raises OSError.
    """
    if parent is None:
        _sweep_now_and_then(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=kind if parent else f"{_PREFIX}{kind}-", dir=parent))
    try:
        with _held(directory):
            yield directory
    finally:
        delete_directory(directory)


def delete_directory(directory: Path) -> None:
    """Delete a directory with all that is in it, as well as can be.

    Whenever tantivy opens a directory it starts a thread, which may make its lock file once more while the directory is
    being deleted; so that is tried again.
    """
    for _ in range(SCRATCH_DELETE_TRIES_MAX):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break


def sweep(place: Path) -> int:
    """Delete the scratch directories of processes that are gone; return how many."""
    swept = 0
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    swept += _delete_if_left(Path(entry.path), entry.stat(follow_symlinks=False))
    return swept


def _sweep_now_and_then(place: Path) -> None:
    with _sweeping:
        now_s = time.monotonic()
        if now_s < _swept.get(str(place), float("-inf")) + SCRATCH_SWEEP_INTERVAL_S:
            return
        _swept[str(place)] = now_s
    sweep(place)


def _delete_if_left(directory: Path, status: os.stat_result) -> bool:
    """Delete one of ours that nobody holds. Raises OSError, also where a file system has no such locks."""
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
def _held(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; where the file system has none, nobody else gets it either."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
