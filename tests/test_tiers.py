"""Tiered merging leaves few pieces and moves rows rarely, in any order of sizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tracelake.batching import class_of, due, runs

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
