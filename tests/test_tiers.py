"""Tiered merging leaves few pieces and moves rows rarely, in any order of sizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tracelake.batching import DAY_S, ONE_WINDOW, WINDOW_SETTLES_S, Windows, class_of, due, runs

FAN_OUT = 4
"""Fan-out below the real one, so that few pieces have many size classes."""
COUNT = 3_000


def alike(_: int) -> int:
    """Return the sizes of small pieces only."""
    return 1


def large_first(number: int) -> int:
    """Return the sizes of a large piece followed by small ones."""
    return 10_000 if number == 0 else 1


def one_in_a_run(number: int) -> int:
    """Return the most expensive sizes: a large piece whenever one more makes a run due."""
    return 300 if number % FAN_OUT == FAN_OUT - 1 else 1


def nested(number: int) -> int:
    """Return sizes with few small pieces between any two large ones."""
    size = 1
    while number and number % FAN_OUT == 0:
        number, size = number // FAN_OUT, size * FAN_OUT
    return size


def rising(number: int) -> int:
    """Return sizes that grow."""
    return number + 1


def at_random(number: int) -> int:
    """Return sizes of all magnitudes in random order."""
    return int(10 ** random.Random(number).uniform(0, 4))


@pytest.mark.parametrize("size", [alike, large_first, one_in_a_run, nested, rising, at_random])
def test_few_are_left_and_a_row_is_moved_few_times(size: Callable[[int], int]) -> None:
    """Pieces and moves per row grow logarithmically; with equal sizes, or one large, a row moves once per class."""
    there: list[int] = []
    total = moved = 0
    for number in range(COUNT):
        there.append(size(number))
        total += size(number)
        while run := due(there, FAN_OUT):
            assert FAN_OUT <= len(run) <= FAN_OUT**2
            together = sum(there[run.start : run.stop])
            moved += together
            there[run.start : run.stop] = [together]
        classes = class_of(total, FAN_OUT) + 1
        assert len(there) <= (FAN_OUT - 1) * classes
        assert [each for run in runs(there, FAN_OUT) for each in run] == list(range(len(there)))
    assert sum(there) == total
    assert moved <= total * FAN_OUT * classes
    if size in (alike, large_first):
        small = COUNT if size is alike else COUNT - 1
        assert moved <= small * class_of(small, FAN_OUT), "the large one was moved with small ones"


def test_a_class_is_the_whole_logarithm() -> None:
    """A class is the integer part of the logarithm; zero and less are in the lowest class."""
    assert [class_of(size, 8) for size in (-1, 0, 1, 7, 8, 63, 64, 512)] == [0, 0, 0, 0, 1, 1, 2, 3]


def test_what_is_large_and_new_counts_for_what_is_older() -> None:
    """A large new piece counts for older ones; otherwise small pieces between large ones would never merge."""
    assert runs([1, 9, 1, 1, 9, 1], 3) == [range(5), range(5, 6)]
    assert due([1, 9, 1, 1, 9, 1], 3) == range(5)
    assert due([9, 1, 1], 3) == range(0)


def test_a_merge_that_makes_another_due_includes_it() -> None:
    """A piece is not moved twice in a row: what one merge completes is merged with it, within the limit."""
    assert due([16, 4, 4, 4, 1, 1, 1, 1], 4) == range(1, 8)
    assert due([16, 16, 16, 4, 4, 4, 1, 1, 1, 1], 4) == range(10)
    assert due([4, 4, 1, 1, 1, 1], 4) == range(2, 6), "the older run stays incomplete"
    assert due([40, 40, 40, 1, 1, 1, 1], 4) == range(3, 7), "the merged one is of another class"
    assert due([16, 16, 16, *[1] * 16], 4) == range(3, 19), "no more than the limit"
    moves = 0
    there: list[int] = []
    for _ in range(64):
        there.append(1)
        while run := due(there, 4):
            moves += sum(there[run.start : run.stop])
            there[run.start : run.stop] = [sum(there[run.start : run.stop])]
    assert (there, moves) == ([64], 3 * (3 * 4 + 16) + 3 * 4 + 64)


PER_WINDOW = 150
"""Items of a window."""


def check_windows(windows: int, size: Callable[[int], int] = alike) -> float:
    """Check that no merge crosses a window or rewrites a settled one, and return how often a row was moved."""
    there: list[tuple[int, int]] = []
    total = moved = 0
    settled: list[tuple[int, int]] = []
    for number in range(windows * PER_WINDOW):
        now_s = DAY_S + number * DAY_S // PER_WINDOW
        there.append((now_s, size(number)))
        total += there[-1][1]
        rule = Windows(DAY_S, now_s)
        while run := rule.due([time_s for time_s, _ in there], [rows for _, rows in there], FAN_OUT):
            merged = there[run.start : run.stop]
            assert len({time_s // DAY_S for time_s, _ in merged}) == 1, "one window at a time"
            rows = sum(rows for _, rows in merged)
            moved += rows
            there[run.start : run.stop] = [(rule.time_of([time_s for time_s, _ in merged]), rows)]
        before = [item for item in there if rule.is_settled(item[0] // DAY_S)]
        assert before[: len(settled)] == settled, "a settled window is never rewritten"
        assert len(before) == len({time_s // DAY_S for time_s, _ in before}), "it is one item"
        settled = before
    assert sum(rows for _, rows in there) == total
    return moved / total


@pytest.mark.parametrize("size", [alike, one_in_a_run, at_random])
def test_windows_bound_the_work_on_a_row(size: Callable[[int], int]) -> None:
    """A row moves as often in a sequence of 400 windows as in one of 10; old windows are not touched."""
    most = class_of(sum(map(size, range(PER_WINDOW))), FAN_OUT) + 1
    assert check_windows(400) <= class_of(PER_WINDOW, FAN_OUT) + 1
    few, many = check_windows(10, size), check_windows(40, size)
    assert many <= few * 1.2
    assert many <= FAN_OUT * most


def test_windows_grow_old_items_no_further() -> None:
    """Without windows, the number of moves grows with the logarithm of the age; with windows, it does not."""
    sizes = [1] * 400 * PER_WINDOW
    assert class_of(len(sizes), FAN_OUT) > class_of(PER_WINDOW, FAN_OUT) + 1


def test_a_window_settles_once_clocks_agree_that_it_has_ended() -> None:
    """The last merge waits for late writers."""
    day = 20_000
    times_s = [day * DAY_S + 5, day * DAY_S + 9]
    for passed_s, due_items in ((0, 0), (DAY_S, 0), (DAY_S + WINDOW_SETTLES_S, 2)):
        assert len(Windows(DAY_S, day * DAY_S + passed_s).due(times_s, [1, 1], FAN_OUT)) == due_items
    assert ONE_WINDOW.due(times_s, [1, 1], FAN_OUT) == range(0)
    assert ONE_WINDOW.due([0] * FAN_OUT, [1] * FAN_OUT, FAN_OUT) == range(FAN_OUT)


def test_items_without_a_time_and_wrong_clocks() -> None:
    """Old items without times are one window, and a wrong clock neither splits a window nor ends the division."""
    day = 20_000
    now_s = (day + 3) * DAY_S
    rule = Windows(DAY_S, now_s)
    ahead, behind = (day + 30_000) * DAY_S, 5 * DAY_S
    times_s = [0, 0, day * DAY_S, ahead, behind, (day + 1) * DAY_S, 0, (day + 2) * DAY_S]
    assert rule.numbers(times_s) == [0, 0, day, day, day, day + 1, day + 1, day + 2]
    assert rule.time_of(times_s[2:5]) == day * DAY_S
    assert not rule.is_settled(0), "old items stay as they are until they are due"
    assert [number for number, _ in rule.groups(times_s)] == [0, day, day + 1, day + 2]
    slow = Windows(DAY_S, now_s - DAY_S)
    assert slow.numbers(times_s) == rule.numbers(times_s), "a clock that is a day behind merges no windows"
