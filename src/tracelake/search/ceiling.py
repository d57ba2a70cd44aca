"""How many parts a searcher can open: tantivy maps every file of every part into memory, and maps are limited.

Linux allows a process `vm.max_map_count` of them, 65,530 by default. Beyond that opening fails as if files were
damaged, so it is checked before.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tracelake import limits
from tracelake._errors import LimitError
from tracelake.search.model import BUILD_ANEW
from tracelake.search.pack import SEGMENT_SUFFIXES

_ALLOWED: Final = Path("/proc/sys/vm/max_map_count")
_USED: Final = Path("/proc/self/maps")
MAPS_PER_PART: Final = len(SEGMENT_SUFFIXES)
_EXHAUSTED: Final = re.compile(
    r"cannot allocate memory|too many open files|os error (?:12|23|24)\b", re.IGNORECASE
)


def ceiling() -> int | None:
    """Return how many parts a searcher can open on this machine, None where the system does not say."""
    try:
        allowed = int(_ALLOWED.read_text())
    except (OSError, ValueError):
        return None
    return max(0, allowed - limits.INDEX_MAPS_KEPT_FREE) // MAPS_PER_PART


def check_ceiling(parts: int, more: int) -> None:
    """Raise LimitError where an index of so many parts, `more` of them not open yet, cannot be opened here."""
    most = ceiling()
    if most is None:
        return
    try:
        used = _USED.read_bytes().count(b"\n")
    except OSError:
        used = 0
    if parts > most or used + more * MAPS_PER_PART > most * MAPS_PER_PART + limits.INDEX_MAPS_KEPT_FREE:
        raise too_many(parts)


def too_many(parts: int) -> LimitError:
    """Return the error of an index that has more parts than can be opened."""
    most = ceiling()
    allowed = f"{most:,} in a process" if most is not None else "fewer"
    return LimitError(
        f"the index has {parts:,} parts, and this machine can open {allowed}, of all indexes together: each takes "
        f"{MAPS_PER_PART} memory maps. Nothing is damaged: {BUILD_ANEW}, or raise vm.max_map_count (Linux)."
    )


def is_exhausted(error: ValueError) -> bool:
    """Whether tantivy failed because the system had no more memory maps or files to give."""
    return _EXHAUSTED.search(str(error)) is not None
