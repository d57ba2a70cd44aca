"""Adaptive batch size: it follows transaction durations within bounds; no input is skipped or taken twice."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelake
from tests.pipeline.poison import good, names
from tracelake import limits
from tracelake.limits import MIB
from tracelake.pipeline import batch_sizing
from tracelake.pipeline.batch_sizing import (
    BOUNDS,
    BatchSize,
    BatchSizer,
    BatchStats,
    Bounds,
    cut,
    next_size,
    while_cold,
)
from tracelake.pipeline.sources.base import Input
from tracelake.tasks.runners import InProcess

FIRST, LEAST, GREATEST = BOUNDS.first, BOUNDS.least, BOUNDS.greatest
AIM_S = batch_sizing.TRANSACTION_AIM_S
MIDDLE = BatchSize(8 * MIB, 200)


def done(
    seconds: float, *, took: BatchSize = MIDDLE, arrow_bytes: int = 0, was_cut: bool = True
) -> BatchStats:
    """Return the statistics of a transaction that took the maximum, unless arguments say otherwise."""
    return BatchStats(took.input_bytes, took.inputs, arrow_bytes, seconds, was_cut)


@pytest.mark.parametrize(
    ("size", "took", "expected"),
    [
        (MIDDLE, done(AIM_S), MIDDLE),
        (MIDDLE, done(AIM_S / 1.5), BatchSize(12 * MIB, 300)),
        (MIDDLE, done(AIM_S / 3), BatchSize(24 * MIB, 600)),
        (MIDDLE, done(0.0), BatchSize(32 * MIB, 800)),
        (MIDDLE, done(AIM_S / 100, was_cut=False), MIDDLE),
        (MIDDLE, done(2 * AIM_S), BatchSize(4 * MIB, 100)),
        (MIDDLE, done(2 * AIM_S, was_cut=False), BatchSize(4 * MIB, 100)),
        (MIDDLE, done(1e9), BatchSize(2 * MIB, 50)),
        (MIDDLE, done(2 * AIM_S, took=BatchSize(64 * MIB, 1)), BatchSize(8 * MIB, 50)),
        (MIDDLE, done(AIM_S / 2, took=BatchSize(1, 200)), BatchSize(8 * MIB, 400)),
        (LEAST, done(1e9, took=LEAST), LEAST),
        (GREATEST, done(0.0, took=GREATEST), GREATEST),
        (
            MIDDLE,
            done(AIM_S, arrow_bytes=2 * batch_sizing.TRANSACTION_ARROW_MAX_BYTES),
            BatchSize(4 * MIB, 200),
        ),
    ],
)
def test_the_size_follows_the_time(size: BatchSize, took: BatchStats, expected: BatchSize) -> None:
    """Half the time doubles the size, up to four times; slowness cuts it, down to a quarter; an emptied backlog
    changes nothing."""
    assert next_size(size, took) == expected


counts = st.integers(0, 1 << 40)


clocks = st.floats(-1e308, 1e308)
"""Durations as a clock measures them: the clock may have been set, and the machine may have slept."""


@given(st.lists(st.builds(BatchStats, counts, counts, counts, clocks, st.booleans()), max_size=20))
def test_the_size_is_bounded(transactions: list[BatchStats]) -> None:
    """The next batch size is within its bounds, whatever earlier transactions and clocks measured."""
    size = FIRST
    for transaction in transactions:
        before, size = size, next_size(size, transaction)
        assert before.inputs // 4 <= size.inputs <= 4 * before.inputs
        assert size.input_bytes <= 4 * before.input_bytes
        assert LEAST.input_bytes <= size.input_bytes <= GREATEST.input_bytes
        assert LEAST.inputs <= size.inputs <= GREATEST.inputs


@given(st.lists(st.integers(0, 10), max_size=20), st.integers(1, 20), st.integers(1, 5))
def test_inputs_are_cut_in_order(sizes: list[int], input_bytes: int, most: int) -> None:
    """A cut takes at least one input and exactly those that fit."""
    inputs = [Input("files", str(number), size) for number, size in enumerate(sizes)]
    size = BatchSize(input_bytes, most)
    end = cut(inputs, size)
    assert min(1, len(inputs)) <= end <= len(inputs)
    fits = [sum(sizes[:number]) <= input_bytes and number <= most for number in range(len(sizes) + 1)]
    assert end <= 1 or fits[end]
    assert end == len(inputs) or not fits[end + 1]


def test_a_backlog_drains_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuous pipeline takes a few inputs first, then more; each is in once, the oldest in the first
    transaction."""
    bounds = Bounds(first=BatchSize(MIB, 2), least=BatchSize(MIB, 1))
    monkeypatch.setattr("tracelake.pipeline.continuous.BatchSizer", lambda **_: BatchSizer(bounds))
    # Each transaction is quick, even on a slow machine.
    monkeypatch.setattr("tracelake.pipeline.batch_sizing.TRANSACTION_AIM_S", 1e9)
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as lake:
        for number in range(9):
            lake.objects.put(f"inbox/{9 - number}.segment", good(number))
        report = lake.pipeline(runner=InProcess()).run_once()
        assert report is not None
        assert len(report.transactions) == 3
        by_transaction = lake.sql("select transaction, count(*) as spans from spans group by 1 order by 1")
        # The second is cut before the first is done.
        assert by_transaction["spans"].to_pylist() == [2, 2, 5]
        first = lake.sql("select span_id from spans where transaction = 0 order by 1")["span_id"].to_pylist()
        assert [int(str(span_id), 16) - 1 for span_id in first] == [0, 1]
        assert names(lake) == set(range(9))


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        (None, BatchSize(8 * MIB, 200)),
        (done(1.0), BatchSize(8 * MIB, 200)),
        (done(1.0, arrow_bytes=16 * MIDDLE.input_bytes), BatchSize(4 * MIB, 200)),
        (done(1.0, arrow_bytes=MIDDLE.input_bytes), BatchSize(8 * MIB, 200)),
    ],
)
def test_until_something_has_started_transactions_are_small(
    took: BatchStats | None, expected: BatchSize
) -> None:
    """Until the executor has started, transactions are small enough for this process, by read and memory size; a
    small one is unchanged."""
    assert limits.NEAR_WORK_MAX_BYTES == 64 * MIB
    assert while_cold(BatchSize(32 * MIB, 200), took) == expected
    assert while_cold(BatchSize(MIB, 7), took) == BatchSize(MIB, 7)


def test_what_failed_says_nothing() -> None:
    """Only a committed transaction changes the size of the next."""
    fitting = BatchSizer()
    inputs = [Input("files", str(number), 1) for number in range(FIRST.inputs + 1)]
    assert list(map(len, fitting.cut(inputs))) == [FIRST.inputs, 1]
    assert list(map(len, fitting.cut(inputs))) == [FIRST.inputs, 1]
    fitting.record(inputs[: FIRST.inputs], 0, 0.0, was_cut=True)
    assert list(map(len, fitting.cut(inputs * 4))) == [4 * FIRST.inputs, 4]
