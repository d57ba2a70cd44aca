"""What glibc keeps of memory that a process has let go of."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from tracelake import limits

_M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""


def trim_heap() -> None:
    """Let glibc keep one heap, not eight for each processor: each keeps the most that its threads ever decoded."""
    if (libc := _glibc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return to the system what is free anywhere in the heap, not at its end alone."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def resident_bytes() -> int:
    """Return what this process has in memory; 0 where the system does not say."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _glibc() -> Any | None:
    """Return the C library, None where it is another one, which has no such functions."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.mallopt and libc.malloc_trim:
            return libc
    return None


class HeapTrimmer:
    """Trims the heap now and then in a `with` block, in a thread of its own.

    *Else* what is free between the live remains of many requests stays with the process for good. Threads that want
    memory wait for it meanwhile, 0.2 s for 200 MiB in small pieces: so it is done where much has come.
    """

    def __init__(self, trim: Callable[[], None] = trim, resident: Callable[[], int] = resident_bytes) -> None:
        self._trim, self._resident = trim, resident
        self._left_bytes = 0
        """What the process had when it was trimmed last."""
        self._looks = 0
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="tracelake-trimming", daemon=True)

    def __enter__(self) -> None:
        """Begin, in a process that is to have one heap."""
        trim_heap()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(limits.MEMORY_LOOK_S):
            self.look()

    def look(self) -> None:
        """Trim where the process has grown, or has not been trimmed for long."""
        self._looks += 1
        grown_bytes = self._resident() - self._left_bytes
        if grown_bytes >= limits.MEMORY_GROWN_BYTES or self._looks >= limits.MEMORY_LOOKS_MAX:
            self._trim()
            self._looks, self._left_bytes = 0, self._resident()
