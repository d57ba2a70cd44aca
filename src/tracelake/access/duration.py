"""When a key ends, as people say it."""

from __future__ import annotations

import re
from typing import Final

from tracelake._errors import UsageError
from tracelake.limits import NAME_QUOTED_MAX_CHARS

_UNITS_NS: Final = {"m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_DURATION: Final = re.compile(r"([0-9]{1,5})([mhd])", re.ASCII)


def expiry_ns(text: str | None, now_ns: int) -> int | None:
    """Return when a key ends that ends after `30d`, `12h` or `5m`; None for none, or `never`. Raises UsageError."""
    if text is None or text == "never":
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text[:NAME_QUOTED_MAX_CHARS]!r} is no duration: write a number up to 99999 and m, h or d, such as 30d"
        )
    return now_ns + int(match[1]) * _UNITS_NS[match[2]]
