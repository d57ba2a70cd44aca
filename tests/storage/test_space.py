"""Free space of file systems, and errors of full ones."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.storage.local import is_disk_full, low_space


def test_little_free_space_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file system below the limit is named once, with its free bytes; just above the limit, the list is empty."""
    system = os.statvfs(tmp_path)
    free_bytes = system.f_bavail * system.f_frsize
    monkeypatch.setattr(limits, "READY_SPACE_MIN_BYTES", free_bytes // 2)
    assert low_space([tmp_path, tmp_path]) == []
    monkeypatch.setattr(limits, "READY_SPACE_MIN_BYTES", 2 * free_bytes)
    (reason,) = low_space([tmp_path, tmp_path, tmp_path / "absent"])
    assert f"MB are free at {tmp_path}" in reason


def test_errors_of_full_disks() -> None:
    """A full disk is recognized behind the store's error; other errors are not."""
    wrapped = StorageError("the segment could not be written")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(wrapped)
    assert is_disk_full(OSError(errno.EDQUOT, "quota"))
    assert is_disk_full(sqlite3.OperationalError("database or disk is full"))
    assert not is_disk_full(StorageError("no store"))
    assert not is_disk_full(OSError(errno.EIO, "input/output error"))
