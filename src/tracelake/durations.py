"""Durations as people write them (`30d`, `12h`, `5m`), and pauses between retries. Pure."""

from __future__ import annotations

import re
from typing import Final

from tracelake._errors import UsageError
from tracelake.limits import NAME_QUOTED_MAX_CHARS

_UNITS_NS: Final = {"m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_DURATION: Final = re.compile(r"(0|[1-9][0-9]{0,6})([mhd])", re.ASCII)


def duration_ns(text: str, least: int = 1, most: int = 9_999_999) -> int:
    """Return a duration such as `30d` in nanoseconds: a number within bounds, then m, h or d. Raises UsageError for any
    other text."""
    match = _DURATION.fullmatch(text)
    if match is None or not least <= int(match[1]) <= most:
        raise UsageError(
            f"{text[:NAME_QUOTED_MAX_CHARS]!r} is no duration: write a number from {least} to {most} and m, h or d, "
            "such as 30d"
        )
    return int(match[1]) * _UNITS_NS[match[2]]


def backoff_s(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause before a retry: doubled by each failure, up to the longest."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))  # A larger power may be no float.
