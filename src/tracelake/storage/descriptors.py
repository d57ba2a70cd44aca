"""File descriptors of the process: the limit, and a reserve for stores.

DuckDB ends the whole process if it cannot open a file. So the limit is raised at startup, and a server refuses reads
before the last descriptors are in use.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelake import limits

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
    """Return whether a read may begin without touching the reserve."""
    allowed = descriptors_max()
    reserve = min(DESCRIPTORS_RESERVED, allowed // _DESCRIPTORS_RESERVED_SHARE)
    return descriptors_open() + reserve <= allowed
