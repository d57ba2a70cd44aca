"""What glibc keeps of memory that a process has let go of."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""


def give_memory_back() -> None:
    """Let glibc keep one heap, not eight for each processor: each keeps the most that its threads ever decoded."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such thing
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
