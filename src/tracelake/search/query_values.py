"""Values of queries and terms of attributes.

Times, durations and numbers of a query become exact bounds of integers or floats. Times in a query become the first and
last nanosecond at which matching spans start.

An attribute becomes one term of path and value in field `attribute`. A path may therefore have any characters, and one
dictionary lookup answers a query. A number also becomes a term of field `number`: sixteen hex digits each for the path
and the value, ordered like the numbers. A range of terms is therefore a range of numbers.

tantivy's JSON fields are not used. In tantivy 0.27, a range over a field with two kinds of numbers ends the process,
and a range over a path with a dot finds nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from calendar import monthrange
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final, TypeAlias

import msgspec
import numpy as np

from tracelake.limits import INDEX_ARRAY_MAX_ELEMENTS, INDEX_VALUE_MAX_CHARS
from tracelake.search.query_parser import Last, QuerySyntaxError, ValueRange

_INDEX_PATHS_KEPT: Final = 4_096
"""Attribute paths whose terms a process caches."""

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
    """Parse an exact number; return None if the text is no number."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def double(text: str) -> float | None:
    """Parse a number in the form in which attributes are compared; return None if the text is no number."""
    if text.lower().lstrip("+-") == "infinity":
        return -math.inf if text.startswith("-") else math.inf
    return float(text) if _NUMBER.fullmatch(text) else None


def nanoseconds(text: str) -> Decimal | None:
    """Parse a duration such as `1.5s`; return None if the text is no duration."""
    match = _QUANTITY.fullmatch(text)
    unit = None if match is None else _NS.get(match.group(2))
    return None if match is None or unit is None else Decimal(match.group(1)) * unit


def period(text: str) -> tuple[int, int] | None:
    """Return the first and last nanosecond since 1970 of a month, day, minute, second or fraction.

    The time is UTC if it names no zone. Return None if the text is no time.
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
    # Computed with integers, because Python's calendar ends with the year 9999 and its last day is a valid
    # time.
    first = _since(moment)
    if zone not in (None, "Z"):
        utc_offset_ns = (int(zone[1:3]) * 60 + int(zone[4:6])) * _NS["m"]
        first += -utc_offset_ns if zone[0] == "+" else utc_offset_ns
    if fraction is not None:
        step = 10 ** (9 - len(fraction))
        first += int(fraction) * step
        return first, first + step - 1
    if day is None:
        return first, first + monthrange(moment.year, moment.month)[1] * _NS["d"] - 1
    return first, first + _NS["s" if second else "m" if hour else "d"] - 1  # the smallest unit named


def _since(moment: datetime) -> int:
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000


def integers(
    low: Decimal | None, high: Decimal | None, with_low: bool, with_high: bool
) -> tuple[int, int] | None:
    """Return the smallest and largest 64-bit integer between two numbers; None if there is none."""
    if (low is not None and low > _MOST) or (high is not None and high < _LEAST):
        return None
    least = math.ceil(_LEAST if low is None else max(low, _LEAST))
    greatest = math.floor(_MOST if high is None else min(high, _MOST))
    least += not with_low and low == least
    greatest -= not with_high and high == greatest
    return (least, greatest) if least <= greatest and least <= _MOST and greatest >= _LEAST else None


Element: TypeAlias = str | bool | int | float
SEPARATOR: Final = "\0"
"""Separator between path and value of a term."""
JOINT: Final = " "
"""Separator between the terms of a row, which tantivy gets as one text."""
REPLACEMENT: Final = "\x1a"
"""Replacement in terms for characters with a special meaning."""
_SPACES: Final = " \t\n\r\f"
_FOR_SPACES: Final = "\1\2\3\4\5"
_IN_TERMS: Final = str.maketrans(_FOR_SPACES + _SPACES, len(_FOR_SPACES) * REPLACEMENT + _FOR_SPACES)
_IN_VALUES: Final = str.maketrans(_FOR_SPACES, _SPACES)
BYTES_IN_TERMS: Final = bytes(ord(chr(byte).translate(_IN_TERMS)) for byte in range(256))
"""Translation of value bytes to term bytes. White space is replaced because tantivy splits terms at it."""
NUMERIC: Final = re.compile("[idID]")
"""Type letters of numeric attributes (see `otlp.values`)."""


def path_term(path: str) -> str:
    """Return the path of an attribute in the form of terms. A long path becomes its beginning and a checksum."""
    path = path.replace(SEPARATOR, REPLACEMENT).translate(_IN_TERMS)
    if len(path) <= INDEX_VALUE_MAX_CHARS:
        return path
    return f"{path[:INDEX_VALUE_MAX_CHARS]}{REPLACEMENT}{_digits_of(path)}"


def term_of(path: str, value: str) -> str:
    """Return the term of an attribute; `path` is a result of `path_term`."""
    return f"{path}{SEPARATOR}{value.translate(_IN_TERMS)}"


def elements_of(text: str) -> list[Element]:
    """Return the first scalar elements of a JSON array; none if the text is no array."""
    if not text.startswith("["):
        return []
    try:
        array = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []
    plain = [element for element in array if isinstance(element, str | bool | int | float)]
    short = [each for each in plain if not isinstance(each, str) or len(each) <= INDEX_VALUE_MAX_CHARS]
    return short[:INDEX_ARRAY_MAX_ELEMENTS]


def element_text(element: Element) -> str:
    """Return an array element in the form that a query names."""
    return element if isinstance(element, str) else json.dumps(element)


def element_number(element: Element) -> float | None:
    """Return the number of an element; None for a text or boolean."""
    if isinstance(element, str | bool):
        return None
    try:
        number = float(element)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


def as_written(term: str) -> str:
    """Return a path or value of a term in its original spelling."""
    return term.translate(_IN_VALUES)


def number_terms(paths: Sequence[str], values: Sequence[float]) -> list[str]:
    """Return the terms of numeric attributes. Values must not be NaN."""
    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
    sign = np.uint64(1 << 63)
    ordered = np.where(bits & sign, ~bits, bits | sign).astype(">u8").tobytes().hex()
    return [_digits_of(path) + ordered[16 * at : 16 * at + 16] for at, path in enumerate(paths)]


@functools.lru_cache(_INDEX_PATHS_KEPT)
def _digits_of(path: str) -> str:
    return hashlib.blake2b(path.lower().encode(errors="replace"), digest_size=8).hexdigest()


def starts(node: Last | ValueRange, now_ns: int) -> tuple[int, int] | None:
    """Return the first and last nanosecond at which matching spans may start; None if there is none.

    `now_ns` is the end of `last 2h`. Raises QuerySyntaxError if the text is no time.
    """
    if isinstance(node, Last):
        ago = nanoseconds(node.text)
        if ago is None:
            raise QuerySyntaxError(
                node.place, f"{node.text!r} is not a time; write last 30m, 2h or 7d, or quote the words"
            )
        return integers(now_ns - ago, Decimal(now_ns), with_low=True, with_high=True)
    low, high = (None if text is None else period(text) for text in (node.low, node.high))
    for text, value in ((node.low, low), (node.high, high)):
        if text is not None and value is None:
            raise QuerySyntaxError(
                node.place,
                f"{text!r} is not a time; write 2026-01-31, 2026-01-31T17:30 or 2026-01-31T17:30:05Z",
            )
    # A day lasts from its first to its last nanosecond: > means after all of it, <= until its end.
    least = None if low is None else Decimal(low[0] if node.with_low else low[1])
    greatest = None if high is None else Decimal(high[1] if node.with_high else high[0])
    return integers(least, greatest, node.with_low, node.with_high)
