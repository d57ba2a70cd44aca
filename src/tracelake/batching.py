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

Items of different *windows* of time are never merged. So the work on an old window ends, however old the sequence
becomes. A settled window becomes one item by a last merge, which rewrites each row at most once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final, TypeVar

ItemT = TypeVar("ItemT")

DAY_S: Final = 86_400
WINDOW_SETTLES_S: Final = 3_600
"""Time from the end of a window to its last merge. Clocks of writers differ, and slow writers append late."""
_CLOCK_AHEAD_MAX_S: Final = DAY_S
"""Time by which an item may be newer than the clock of the merging process. The time of a newer item is wrong."""


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
    """Return the oldest run of at least `fan_out` items, cut to `fan_out` squared; empty if no run is due.

    If the merged item would make the run before it due, the items of both are merged at once.
    """
    alike_runs = runs(sizes, fan_out)
    for number, run in enumerate(alike_runs):
        if len(run) >= fan_out:
            return with_older_runs(sizes, alike_runs[:number], run[: fan_out**2], fan_out)
    return range(0)


def with_older_runs(sizes: Sequence[int], older_runs: Sequence[range], run: range, fan_out: int) -> range:
    """Extend a due run by the older runs that its merged item would make due, up to `fan_out` squared items."""
    size = sum(sizes[run.start : run.stop])
    for older in reversed(older_runs):
        older_sizes = sizes[older.start : older.stop]
        is_due = len(older) + 1 >= fan_out and class_of(size, fan_out) >= class_of(max(older_sizes), fan_out)
        if not is_due or run.stop - older.start > fan_out**2:
            break
        run, size = range(older.start, run.stop), size + sum(older_sizes)
    return run


@dataclass(frozen=True, slots=True)
class Windows:
    """Division of a sequence into windows of time, as a process decides it at one moment."""

    length_s: int | None
    """Length of a window; None for a single window."""
    now_s: float
    """The current time, in seconds since 1970."""

    def numbers(self, times_s: Iterable[int]) -> list[int]:
        """Return the number of the window of each item, given all times from the oldest item to the newest.

        Numbers never fall, so the items of a window are adjacent. An item without a time (0), or with a wrong one, is
        in the window of the item before it. Old items without times are in window 0.
        """
        if self.length_s is None:
            return [0 for _ in times_s]
        latest_s = self.now_s + _CLOCK_AHEAD_MAX_S
        plausible_s = (time_s if time_s <= latest_s else 0 for time_s in times_s)
        return list(accumulate((time_s // self.length_s for time_s in plausible_s), max))

    def is_settled(self, number: int) -> bool:
        """Return whether a window has ended, long enough ago that nothing will be added to it."""
        return (
            self.length_s is not None
            and number > 0
            and self.now_s >= (number + 1) * self.length_s + WINDOW_SETTLES_S
        )

    def time_of(self, times_s: Sequence[int]) -> int:
        """Return the time of adjacent items of one window as one item."""
        return max((time_s for time_s in times_s if time_s <= self.now_s + _CLOCK_AHEAD_MAX_S), default=0)

    def groups(self, times_s: Sequence[int]) -> list[tuple[int, range]]:
        """Return each window, by its number, with the positions of its items."""
        numbers, start = self.numbers(times_s), 0
        groups = []
        for number, alike in groupby(numbers):
            stop = start + len(list(alike))
            groups.append((number, range(start, stop)))
            start = stop
        return groups

    def due(self, times_s: Sequence[int], sizes: Sequence[int], fan_out: int) -> range:
        """Return the oldest run to merge: one that is due within its window, or all items of a settled window."""
        for number, items in self.groups(times_s):
            if self.is_settled(number):
                if len(items) > 1:
                    return items[: fan_out**2]
                continue
            run = due([sizes[place] for place in items], fan_out)
            if run:
                return items[run.start : run.stop]
        return range(0)


ONE_WINDOW: Final = Windows(None, 0.0)
"""No division: all items are in one window, which never settles."""


def has_elapsed(interval_s: float, began_s: float, now_s: float) -> bool:
    """Return whether an interval that all processes share has ended.

    If it began far in the future, the clock that set it was wrong. The interval then ends now; otherwise it would last
    until that time.
    """
    return abs(now_s - began_s) >= interval_s
