"""Which neighbours are put together in a row that grows at its end: batches of a table, parts of an index. Pure.

A thing has a class by its size: the logarithm to the base of the fan-out. It counts as of the highest class among it
and all that are newer; so things that count alike stand beside each other, in a run, and classes fall from the oldest
to the newest. A run of `fan_out` is due. So of n rows there are fewer than `fan_out` things in each of log(n) classes,
in whatever order large and small ones came. What is put together is of the next class where its things are of one;
else its newest is as large as its largest. So a row is moved once a class where things come alike, and at most
`fan_out` times a class however they come: what a large one costs is paid by as many rows that are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby


def class_of(size: int, fan_out: int) -> int:
    """Return the whole logarithm of a size; 0 for nothing."""
    number = 0
    while size >= fan_out:
        size //= fan_out
        number += 1
    return number


def runs(sizes: Sequence[int], fan_out: int) -> list[range]:
    """Return which neighbours count alike, given all sizes from the oldest to the newest."""
    classes = [class_of(size, fan_out) for size in reversed(sizes)]
    counted = list(accumulate(classes, max))[::-1]
    alike_runs, start = [], 0
    for _, alike in groupby(counted):
        stop = start + len(list(alike))
        alike_runs.append(range(start, stop))
        start = stop
    return alike_runs


def due_at_rest(sizes: Sequence[int], share: int) -> range:
    """Return the most of the newest of which none is more than `share` times as large as the others together.

    So each that is left is larger than so many times all newer ones, and a large one is written again only where
    new ones pay for it.
    """
    for start in range(len(sizes) - 1):
        run = sizes[start:]
        if max(run) <= share * (sum(run) - max(run)):
            return range(start, len(sizes))
    return range(0)


def due(sizes: Sequence[int], fan_out: int) -> range:
    """Return the oldest run of at least `fan_out`, no more than its square of it; empty where there is none."""
    for run in runs(sizes, fan_out):
        if len(run) >= fan_out:
            return run[: fan_out**2]
    return range(0)
