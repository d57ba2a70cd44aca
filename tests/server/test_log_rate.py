"""A repeated log message appears once a second."""

from __future__ import annotations

import logging

from tracelake.server.run import LOG_THINGS_MAX, OncePerSecond


def a_record(text: str, *values: object) -> logging.LogRecord:
    """Return a record like a logger's."""
    return logging.LogRecord("tracelake.server", logging.WARNING, __file__, 1, text, values, None)


def test_what_repeats_is_said_once_a_second_with_its_number() -> None:
    """Similar messages within a second are dropped, for any values; the next message gives their number."""
    now_s = 0.0
    rate = OncePerSecond(lambda: now_s)
    assert rate.filter(a_record("no room for %s", "a"))
    assert [rate.filter(a_record("no room for %s", name)) for name in "bcd"] == [False] * 3
    assert rate.filter(a_record("another thing"))
    now_s = 1.5
    record = a_record("no room for %s", "e")
    assert rate.filter(record)
    assert record.getMessage() == "no room for e (and 3 more like it)"
    now_s = 3.0
    record = a_record("no room for %s", "f")
    assert rate.filter(record)
    assert record.getMessage() == "no room for f"


def test_what_is_remembered_is_bounded() -> None:
    """The memory for a flood of different texts is cleared periodically."""
    rate = OncePerSecond(lambda: 0.0)
    assert all(rate.filter(a_record(f"{number} is new")) for number in range(3 * LOG_THINGS_MAX))
    assert len(rate._logged) <= LOG_THINGS_MAX
