"""Values of queries: times, durations and numbers, as exact bounds of integers or floats."""

from __future__ import annotations

import math
import re
from calendar import monthrange
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s?([a-zµ]+)")
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-][01]\d:[0-5]\d)?)?)?",
    re.ASCII,
)
_LEAST: Final = Decimal(-(1 << 63))
_MOST: Final = Decimal((1 << 63) - 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number(text: str) -> Decimal | None:
    """Return the number that a text is, None where it is none."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def double(text: str) -> float | None:
    """Return the number that a text is as attributes are compared, None where it is none."""
    if text.lower().lstrip("+-") == "infinity":
        return -math.inf if text.startswith("-") else math.inf
    return float(text) if _NUMBER.fullmatch(text) else None


def nanoseconds(text: str) -> Decimal | None:
    """Return how long a text such as `1.5s` says, None where it says nothing."""
    match = _QUANTITY.fullmatch(text)
    unit = None if match is None else _NS.get(match.group(2))
    return None if match is None or unit is None else Decimal(match.group(1)) * unit


def period(text: str) -> tuple[int, int] | None:
    """Return the first and last nanosecond since 1970 that a time names: a month, day, minute, second or less.

    UTC where it names no zone. None where it is no time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    # In integers: the calendar of Python ends with the year 9999, and the last day of it is a time, too.
    first = _since(moment)
    if zone not in (None, "Z"):
        ahead = (int(zone[1:3]) * 60 + int(zone[4:6])) * _NS["m"]
        first += -ahead if zone[0] == "+" else ahead
    if fraction is not None:
        step = 10 ** (9 - len(fraction))
        first += int(fraction) * step
        return first, first + step - 1
    if day is None:
        return first, first + monthrange(moment.year, moment.month)[1] * _NS["d"] - 1
    return first, first + _NS["s" if second else "m" if hour else "d"] - 1  # what it names last


def _since(moment: datetime) -> int:
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000


def integers(
    low: Decimal | None, high: Decimal | None, with_low: bool, with_high: bool
) -> tuple[int, int] | None:
    """Return the least and the greatest integer of 64 bits between two numbers, None where there is none."""
    if (low is not None and low > _MOST) or (high is not None and high < _LEAST):
        return None
    least = math.ceil(_LEAST if low is None else max(low, _LEAST))
    greatest = math.floor(_MOST if high is None else min(high, _MOST))
    least += not with_low and low == least
    greatest -= not with_high and high == greatest
    return (least, greatest) if least <= greatest and least <= _MOST and greatest >= _LEAST else None
