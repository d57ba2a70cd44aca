"""How much a transaction takes: what is done in some seconds, so that what waited longest is visible first.

`next_size` decides, without I/O and clocks. What a transaction has taken stands in the journal: a replay does not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracelake import limits
from tracelake.limits import LOOK_TRANSACTIONS
from tracelake.pipeline.sources.base import Input


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What a transaction takes at most; one input alone is always taken."""

    input_bytes: int
    inputs: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What a transaction took, and how long, from its first read to its commit."""

    input_bytes: int
    inputs: int
    arrow_bytes: int
    seconds: float
    was_cut: bool
    """Whether more waited than it took."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What sizes lie between, whatever transactions take, and the size of the first."""

    first: BatchSize = BatchSize(limits.TRANSACTION_FIRST_BYTES, limits.TRANSACTION_FIRST_INPUTS)
    least: BatchSize = BatchSize(limits.TRANSACTION_LEAST_BYTES, limits.TRANSACTION_LEAST_INPUTS)
    greatest: BatchSize = BatchSize(limits.TRANSACTION_INPUT_MAX_BYTES, limits.TRANSACTION_INPUTS_MAX)


BOUNDS = Bounds()


def next_size(size: BatchSize, done: BatchStats, bounds: Bounds = BOUNDS) -> BatchSize:
    """Return the size of the next transaction.

    It follows what is done in TRANSACTION_AIM_S, at most to four times the size before, or to a quarter: so whatever a
    clock says, one transaction changes little. One that took all that waited says nothing of larger ones. None is to
    have more than TRANSACTION_ARROW_MAX_BYTES.
    """
    least, greatest = bounds.least, bounds.greatest
    share = limits.TRANSACTION_AIM_S / max(done.seconds, limits.TRANSACTION_AIM_S / 100)
    is_slow = share < 1.0
    if not is_slow and not done.was_cut:
        return size

    def fit(before: int, took: int, lowest: int, highest: int) -> int:
        low, high = (before // 4, before) if is_slow else (before, 4 * before)
        return max(lowest, min(max(low, min(int(took * share), high)), highest))

    input_bytes = fit(size.input_bytes, done.input_bytes, least.input_bytes, greatest.input_bytes)
    if done.arrow_bytes:
        most = limits.TRANSACTION_ARROW_MAX_BYTES * done.input_bytes // done.arrow_bytes
        input_bytes = max(least.input_bytes, min(input_bytes, most))
    return BatchSize(input_bytes, fit(size.inputs, done.inputs, least.inputs, greatest.inputs))


def while_cold(size: BatchSize, before: BatchStats | None) -> BatchSize:
    """Return the size of a transaction of which all is done in this process, to judge by the one before.

    For as long as what does larger ones has not started: nobody waits for that.
    """
    most = limits.NEAR_WORK_MAX_BYTES // limits.STORED_EXPANDS
    if before is not None and before.arrow_bytes:
        most = min(most, limits.NEAR_WORK_MAX_BYTES * before.input_bytes // before.arrow_bytes)
    return BatchSize(min(size.input_bytes, most), size.inputs)


def cut(inputs: Sequence[Input], size: BatchSize) -> int:
    """Return how many of the inputs, which wait in this order, one transaction takes."""
    room = size.input_bytes
    for number, item in enumerate(inputs):
        room -= item.size_bytes
        if number and (number >= size.inputs or room < 0):
            return number
    return len(inputs)


class BatchSizer:
    """The size of the next transaction of a pipeline that goes on."""

    def __init__(self, bounds: Bounds = BOUNDS, is_warm: Callable[[], bool] = lambda: True) -> None:
        """`is_warm` says whether large transactions begin at once."""
        self._bounds = bounds
        self._is_warm = is_warm
        self._size = bounds.first
        self._done: BatchStats | None = None

    def cut(self, inputs: list[Input]) -> tuple[list[Input], list[Input]]:
        """Return what the next transaction takes, and what waits on."""
        end = cut(inputs, self._size if self._is_warm() else while_cold(self._size, self._done))
        return inputs[:end], inputs[end:]

    def some(self, inputs: list[Input]) -> list[Input]:
        """Return the first of what waits: enough for some transactions, one input at least."""
        several = BatchSize(LOOK_TRANSACTIONS * self._size.input_bytes, LOOK_TRANSACTIONS * self._size.inputs)
        return inputs[: cut(inputs, several)]

    def took(self, inputs: Sequence[Input], arrow_bytes: int, seconds: float, *, was_cut: bool) -> None:
        """Note what a transaction took, and whether more waited."""
        input_bytes = sum(item.size_bytes for item in inputs)
        self._done = BatchStats(input_bytes, len(inputs), arrow_bytes, seconds, was_cut)
        self._size = next_size(self._size, self._done, self._bounds)
