"""How many parts a searcher can open: every file of every part is mapped into memory, and maps are limited.

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
MAPS_PER_BLOCK: Final = 1
"""Vectors of a part are one file more, which is mapped once they are searched."""
_NO_FILES: Final = re.compile(r"too many open files|os error (?:23|24)\b", re.IGNORECASE)
_NO_MAPS: Final = re.compile(r"cannot allocate memory|os error 12\b", re.IGNORECASE)


def ceiling(*, with_vectors: bool = False) -> int | None:
    """Return how many parts a searcher can open on this machine, None where the system does not say."""
    allowed = _allowed()
    return None if allowed is None else allowed // (MAPS_PER_PART + MAPS_PER_BLOCK * with_vectors)


def check_ceiling(parts: int, more: int) -> None:
    """Raise LimitError where an index of so many parts, `more` of them not open yet, cannot be opened here."""
    _check(parts, parts * MAPS_PER_PART, more * MAPS_PER_PART)


def check_blocks(blocks: int, more: int) -> None:
    """Raise LimitError where the vectors of so many parts, `more` not mapped yet, cannot be beside their text."""
    _check(blocks, blocks * (MAPS_PER_PART + MAPS_PER_BLOCK), more * MAPS_PER_BLOCK, with_vectors=True)


def too_many(parts: int, error: Exception | None = None, *, with_vectors: bool = False) -> LimitError:
    """Return the error of an index that has more parts than can be opened, or for which the system failed so."""
    if error is not None and _NO_FILES.search(str(error)):
        return LimitError(
            f"the index has {parts:,} parts, and this process may have no more files open. Nothing is damaged: raise "
            "that limit (ulimit -n), or close what is open."
        )
    most = ceiling(with_vectors=with_vectors)
    allowed = f"{most:,} in a process" if most is not None else "fewer"
    maps = MAPS_PER_PART + MAPS_PER_BLOCK * with_vectors
    return LimitError(
        f"the index has {parts:,} parts, and this machine can open {allowed}, of all indexes together: each takes "
        f"{maps} memory maps. Nothing is damaged: {BUILD_ANEW}, or raise vm.max_map_count (Linux)."
    )


def is_exhausted(error: Exception) -> bool:
    """Whether opening failed because the system had no more memory maps or files to give."""
    return bool(_NO_FILES.search(str(error)) or _NO_MAPS.search(str(error)))


def _allowed() -> int | None:
    """Return how many maps parts may have."""
    try:
        return max(0, int(_ALLOWED.read_text()) - limits.INDEX_MAPS_KEPT_FREE)
    except (OSError, ValueError):
        return None


def _check(parts: int, maps: int, more: int, *, with_vectors: bool = False) -> None:
    """Raise LimitError where so many parts have more maps than they may, or `more` are not to be had now."""
    allowed = _allowed()
    if allowed is None:
        return
    try:
        used = _USED.read_bytes().count(b"\n")
    except OSError:
        used = 0
    if maps > allowed or used + more > allowed + limits.INDEX_MAPS_KEPT_FREE:
        raise too_many(parts, with_vectors=with_vectors)
