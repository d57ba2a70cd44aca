"""Offset protocol: in any order of ranges and under any failure, each offset is read once or named."""

from __future__ import annotations

from itertools import pairwise, product

from tracelake.pipeline import protocol
from tracelake.pipeline.protocol import (
    KAFKA_RANGE_BYTES,
    KAFKA_RANGE_FIRST_MESSAGES,
    KAFKA_RANGE_MESSAGES_MAX,
    Log,
    Offsets,
)

END = 4
SPANS: list[Offsets] = [(start, stop) for start in range(END + 1) for stop in range(END + 1)]
"""All ranges of a small partition, including empty ones."""
SOME = [span for span in SPANS if span[0] < span[1]]


def offsets(ranges: tuple[Offsets, ...] | list[Offsets]) -> list[int]:
    """Return all offsets of ranges, with repeats."""
    return sorted(offset for start, stop in ranges for offset in range(start, stop))


def test_ranges_are_united_without_a_loss() -> None:
    """The union has each offset once, in order, and no two ranges of it touch."""
    for ranges in product(SPANS, SPANS):
        whole = protocol.united(ranges)
        assert offsets(whole) == sorted(set(offsets(ranges)))
        assert all(first[1] < second[0] for first, second in pairwise(whole))


def test_what_is_read_is_what_is_left() -> None:
    """All offsets that are neither taken nor quarantined are in one range; lost and existing offsets never share a
    range."""
    for first, second, held, low, at_once in product(SOME, SOME, SOME, range(END + 1), (1, 3)):
        log = Log(protocol.united((first, second)), (held,), low, END)
        ranges = protocol.ranges(log, at_once, 1000)
        gone = set(offsets([first, second, held]))
        assert offsets(ranges) == [offset for offset in range(END) if offset not in gone]
        assert protocol.lag(log) == len(offsets(ranges))
        for start, stop in ranges:
            assert stop <= log.low or start >= log.low
            assert start < log.low or stop - start <= at_once
        assert protocol.ranges(log, at_once, 1) == ranges[:1], "a bound leaves the others for a later look"


def test_a_range_is_taken_where_all_of_it_is() -> None:
    """A range taken wholly, partly or not at all is recognized; discarding a partial range loses no other offset."""
    for first, second, (start, stop), low in product(SPANS, SPANS, SOME, range(END + 1)):
        taken, each = (first, second), set(range(start, stop))
        assert protocol.has_all(taken, start, stop) == (each <= set(offsets(taken)))
        assert protocol.has_any(taken, start, stop) == bool(each & set(offsets(taken)))
        given_up = protocol.given_up(start, stop, low)
        assert set(range(*given_up)) == ({offset for offset in each if offset < low} or each)
        assert protocol.blocking_ranges((given_up,), [(start, stop)]) == (), "what is left of it may be taken"
        assert protocol.blocking_ranges((), [(start, stop)]) == ((start, stop),)


def test_ranges_are_as_large_as_messages_allow() -> None:
    """The first range is small; then bytes decide, up to a number of messages; a large message goes alone."""
    assert protocol.messages_at_once(None) == KAFKA_RANGE_FIRST_MESSAGES
    assert protocol.messages_at_once(1.0) == KAFKA_RANGE_MESSAGES_MAX
    assert protocol.messages_at_once(0.0) == KAFKA_RANGE_MESSAGES_MAX
    assert protocol.messages_at_once(KAFKA_RANGE_BYTES / 10) == 10
    assert protocol.messages_at_once(KAFKA_RANGE_BYTES * 10.0) == 1
    assert protocol.mean_after(None, 300, 3) == 100
    assert protocol.mean_after(100, 600, 3) == 125
    assert protocol.mean_after(100, 0, 0) == 100
