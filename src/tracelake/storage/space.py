"""Free space of file systems, and errors of full ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelake import limits

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_WORDS: Final = ("no space left on device", "disk is full", "disk quota exceeded")
"""What SQLite, DuckDB, Java and the system call it, where only the text of the error is left."""


def low_space(directories: Sequence[Path]) -> list[str]:
    """Return which directories have too little free space, each with its reason; file systems are named once."""
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
    """Return whether an error, or one that caused it, is of a full file system or quota."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if any(words in str(seen).lower() for words in _WORDS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
