"""Heap trimming: return memory that glibc keeps after the process freed it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tracelake.limits.input import MIB
from tracelake.tasks.backoff import PeriodicThread

MEMORY_LOOK_S: Final = 5.0
"""Interval at which a server checks its memory."""
MEMORY_GROWN_BYTES: Final = 32 * MIB
"""Memory growth since the server last returned free memory to the system."""
MEMORY_LOOKS_MAX: Final = 12
"""Checks without returning free memory."""


_M_ARENA_MAX: Final = -8
"""Constant of glibc's malloc.h."""


def trim_heap() -> None:
    """Limit glibc to one heap, instead of eight per processor. Each heap keeps its peak size."""
    if (libc := _glibc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return all free heap pages to the system, not only those at the heap's end."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system does not report it."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _glibc() -> Any | None:
    """Return the C library, or None if it is not glibc."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.mallopt and libc.malloc_trim:
            return libc
    return None


class HeapTrimmer(PeriodicThread):
    """Background thread that trims the heap from time to time, as a context manager.

    Without trimming, free memory between long-lived allocations stays with the process. While trimming runs, threads
    that allocate wait: 0.2 s for 200 MiB in small pieces. Therefore it runs only after the process has grown.
    """

    def __init__(self, trim: Callable[[], None] = trim, resident: Callable[[], int] = resident_bytes) -> None:
        self._trim, self._resident = trim, resident
        self._left_bytes = 0
        """Resident memory after the last trim."""
        self._looks = 0
        super().__init__("tracelake-trimming", self.look, MEMORY_LOOK_S)

    def start(self) -> None:
        """Limit the process to one heap, and start the thread."""
        trim_heap()
        super().start()

    def look(self) -> float:
        """Trim if the process has grown, or after a long time without a trim."""
        self._looks += 1
        grown_bytes = self._resident() - self._left_bytes
        if grown_bytes >= MEMORY_GROWN_BYTES or self._looks >= MEMORY_LOOKS_MAX:
            self._trim()
            self._looks, self._left_bytes = 0, self._resident()
        return MEMORY_LOOK_S
