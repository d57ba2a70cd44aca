"""Batches of items, bounded by bytes and by number.

The module also decides the size-tiered merging of an append-only sequence: batches of a table, or parts of an index.
Pure.

The size class of an item is the logarithm of its size to the base `fan_out`. An item counts with the highest class
among itself and all newer items. Items of one class are therefore adjacent and form a run, and classes fall from the
oldest to the newest. A run of `fan_out` items is due for a merge.

In any order of large and small items, n rows have fewer than `fan_out` items in each of log(n) classes. If all items of
a run have the same size class, the merged item has the next class. Otherwise the newest item of the run is as large as
its largest. A row is therefore rewritten once per class if items have similar sizes. In any order, it is rewritten at
most `fan_out` times per class, because as many new rows pay for each large rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import TypeVar

ItemT = TypeVar("ItemT")


def batches(
    items: Iterable[ItemT], bytes_of: Callable[[ItemT], int], most_bytes: int, most: int | None = None
) -> Iterator[list[ItemT]]:
    """Yield the items in order, in lists of at most `most_bytes` together, and of at most `most` items if given.

    A larger item is a list by itself.
    """
    batch: list[ItemT] = []
    room = most_bytes
    for item in items:
        size_bytes = bytes_of(item)
        if batch and (len(batch) == most or size_bytes > room):
            yield batch
            batch, room = [], most_bytes
        batch.append(item)
        room -= size_bytes
    if batch:
        yield batch


def class_of(size: int, fan_out: int) -> int:
    """Return the integer logarithm of a size; 0 for size 0."""
    number = 0
    while size >= fan_out:
        size //= fan_out
        number += 1
    return number


def runs(sizes: Sequence[int], fan_out: int) -> list[range]:
    """Return the runs of adjacent items that count with the same class, given all sizes from the oldest to the
    newest."""
    classes = [class_of(size, fan_out) for size in reversed(sizes)]
    counted = list(accumulate(classes, max))[::-1]
    alike_runs, start = [], 0
    for _, alike in groupby(counted):
        stop = start + len(list(alike))
        alike_runs.append(range(start, stop))
        start = stop
    return alike_runs


def due_when_idle(sizes: Sequence[int], share: int) -> range:
    """Return the longest run of newest items in which none exceeds `share` times the size of the others together.

    Each item before the run is therefore larger than `share` times all newer ones. So a large item is rewritten only
    if new items pay for it.
    """
    for start in range(len(sizes) - 1):
        run = sizes[start:]
        if max(run) <= share * (sum(run) - max(run)):
            return range(start, len(sizes))
    return range(0)


def due(sizes: Sequence[int], fan_out: int) -> range:
    """Return the oldest run of at least `fan_out` items, cut to `fan_out` squared; empty if no run is due."""
    for run in runs(sizes, fan_out):
        if len(run) >= fan_out:
            return run[: fan_out**2]
    return range(0)
