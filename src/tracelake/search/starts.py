"""The times that a query names, as nanoseconds between which spans start."""

from __future__ import annotations

from decimal import Decimal

from tracelake.search import units
from tracelake.search.grammar import Last, Refused, ValueRange


def starts(node: Last | ValueRange, now_ns: int) -> tuple[int, int] | None:
    """Return the first and the last nanosecond at which its spans may start, None for none.

    `now_ns` is when `last 2h` ends. Raises Refused for what is no time.
    """
    if isinstance(node, Last):
        ago = units.nanoseconds(node.text)
        if ago is None:
            raise Refused(
                node.place, f"{node.text!r} is no time; write last 30m, 2h or 7d, or quote the words"
            )
        return units.integers(now_ns - ago, Decimal(now_ns), with_low=True, with_high=True)
    low, high = (None if text is None else units.period(text) for text in (node.low, node.high))
    for text, value in ((node.low, low), (node.high, high)):
        if text is not None and value is None:
            raise Refused(
                node.place,
                f"{text!r} is no time; write 2026-01-31, 2026-01-31T17:30 or 2026-01-31T17:30:05Z",
            )
    # A day is a time from its first nanosecond to its last: > is after all of it, <= before its end.
    least = None if low is None else Decimal(low[0] if node.with_low else low[1])
    greatest = None if high is None else Decimal(high[1] if node.with_high else high[0])
    return units.integers(least, greatest, node.with_low, node.with_high)
