"""Adaptive batch size. Each transaction should take a few seconds, so that the oldest input becomes visible first.

`next_size` decides without I/O or clocks. The journal records the inputs of each transaction, so a replay does not
depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tracelake import limits
from tracelake.limits.input import MIB
from tracelake.pipeline.sources.base import Input

LOOK_TRANSACTIONS: Final = 4
"""Transactions of the current size for which one poll of a continuous pipeline returns input."""
TRANSACTION_AIM_S: Final = 5.0
"""Target duration of a continuous pipeline's transaction while more input is pending."""
_TRANSACTION_FIRST_BYTES: Final = 2 * MIB
"""Input of a pipeline's first transaction, which is visible soon."""
_TRANSACTION_FIRST_INPUTS: Final = 100
"""Inputs of a pipeline's first transaction."""
_TRANSACTION_LEAST_BYTES: Final = MIB // 4
"""Smallest input size of a transaction when all transactions are slow."""
_TRANSACTION_LEAST_INPUTS: Final = 10
"""Smallest number of inputs of a transaction when all are slow."""
TRANSACTION_ARROW_MAX_BYTES: Final = 1024 * MIB
"""Memory for a transaction's rows in all its tasks, estimated from the previous one."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Size limit of a transaction. A single input is taken whatever its size."""

    input_bytes: int
    inputs: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Size of a transaction, and its duration from first read to commit."""

    input_bytes: int
    inputs: int
    arrow_bytes: int
    seconds: float
    was_cut: bool
    """True if more input was pending than the transaction took."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower and upper bound of the batch size, and its initial value."""

    first: BatchSize = BatchSize(_TRANSACTION_FIRST_BYTES, _TRANSACTION_FIRST_INPUTS)
    least: BatchSize = BatchSize(_TRANSACTION_LEAST_BYTES, _TRANSACTION_LEAST_INPUTS)
    greatest: BatchSize = BatchSize(limits.TRANSACTION_INPUT_MAX_BYTES, limits.TRANSACTION_INPUTS_MAX)


BOUNDS = Bounds()


def next_size(size: BatchSize, last: BatchStats, bounds: Bounds = BOUNDS) -> BatchSize:
    """Return the size of the next transaction.

    It aims at a duration of TRANSACTION_AIM_S. It changes by a factor of four at most, so one wrong clock reading has
    little effect. A transaction that took all pending input says nothing about larger ones. No transaction should
    exceed TRANSACTION_ARROW_MAX_BYTES.
    """
    least, greatest = bounds.least, bounds.greatest
    share = TRANSACTION_AIM_S / max(last.seconds, TRANSACTION_AIM_S / 100)
    is_slow = share < 1.0
    if not is_slow and not last.was_cut:
        return size

    def fit(before: int, measured: int, lowest: int, highest: int) -> int:
        low, high = (before // 4, before) if is_slow else (before, 4 * before)
        return max(lowest, min(max(low, min(int(measured * share), high)), highest))

    input_bytes = fit(size.input_bytes, last.input_bytes, least.input_bytes, greatest.input_bytes)
    if last.arrow_bytes:
        most = TRANSACTION_ARROW_MAX_BYTES * last.input_bytes // last.arrow_bytes
        input_bytes = max(least.input_bytes, min(input_bytes, most))
    return BatchSize(input_bytes, fit(size.inputs, last.inputs, least.inputs, greatest.inputs))


def while_cold(size: BatchSize, before: BatchStats | None) -> BatchSize:
    """Return a size that this process can execute without the runner for large tasks, estimated from the previous
    transaction.

    It applies until that runner has started, so that input does not wait for the start.
    """
    most = limits.NEAR_WORK_MAX_BYTES // limits.STORED_EXPANDS
    if before is not None and before.arrow_bytes:
        most = min(most, limits.NEAR_WORK_MAX_BYTES * before.input_bytes // before.arrow_bytes)
    return BatchSize(min(size.input_bytes, most), size.inputs)


def cut(inputs: Sequence[Input], size: BatchSize) -> int:
    """Return how many of the pending inputs, in this order, one transaction takes."""
    room = size.input_bytes
    for number, item in enumerate(inputs):
        room -= item.size_bytes
        if number and (number >= size.inputs or room < 0):
            return number
    return len(inputs)


class BatchSizer:
    """Batch size of a continuous pipeline."""

    def __init__(self, bounds: Bounds = BOUNDS, is_warm: Callable[[], bool] = lambda: True) -> None:
        """Create a sizer. `is_warm` returns whether the runner for large transactions has started."""
        self._bounds = bounds
        self._is_warm = is_warm
        self._size = bounds.first
        self._last: BatchStats | None = None

    def cut(self, inputs: list[Input]) -> tuple[list[Input], list[Input]]:
        """Return the inputs of the next transaction, and the remaining ones."""
        end = cut(inputs, self._size if self._is_warm() else while_cold(self._size, self._last))
        return inputs[:end], inputs[end:]

    def some(self, inputs: list[Input]) -> list[Input]:
        """Return the first pending inputs: enough for LOOK_TRANSACTIONS transactions, and at least one."""
        several = BatchSize(LOOK_TRANSACTIONS * self._size.input_bytes, LOOK_TRANSACTIONS * self._size.inputs)
        return inputs[: cut(inputs, several)]

    def record(self, inputs: Sequence[Input], arrow_bytes: int, seconds: float, *, was_cut: bool) -> None:
        """Record the inputs and duration of a transaction. `was_cut`: more input was pending."""
        input_bytes = sum(item.size_bytes for item in inputs)
        self._last = BatchStats(input_bytes, len(inputs), arrow_bytes, seconds, was_cut)
        self._size = next_size(self._size, self._last, self._bounds)
