"""Batches within limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.broken import Broken, assert_caught
from tracelake.batching import batches


@example([0, 0], 20, 1)
@example([12, 12], 20, None)
@example([20, 20], 20, None)
@example([12, 9, 9], 20, None)
@given(st.lists(st.integers(0, 12)), st.integers(0, 20), st.none() | st.integers(1, 4))
def check(sizes: list[int], most_bytes: int, most: int | None) -> None:
    """Check that batches have all items in order, are full, and exceed the limit only with a single item."""
    cut = list(batches(sizes, int, most_bytes, most))
    assert [size for batch in cut for size in batch] == sizes
    assert all(cut)

    def fits(batch: list[int]) -> bool:
        return len(batch) == 1 or (sum(batch) <= most_bytes and len(batch) <= (most or len(batch)))

    assert all(map(fits, cut))
    assert not any(fits([*batch, following[0]]) for batch, following in pairwise(cut))


def test_all_are_in_batches_that_fit() -> None:
    """All items are in batches within the limit."""
    check()


@pytest.mark.parametrize(
    "broken",
    [
        Broken("by bytes", batches, " or size_bytes > room", ""),
        Broken("by number", batches, "len(batch) == most or ", ""),
        Broken("each has all the room", batches, "room = [], most_bytes", "room = [], room"),
        Broken("one by itself is none too many", batches, "if batch and (", "if ("),
        Broken("the last is one, too", batches, "    if batch:\n        yield batch", "    pass"),
        Broken("what is in it takes room", batches, "room -= size_bytes", "pass"),
    ],
    ids=lambda broken: broken.rule,
)
def test_each_rule_is_needed(broken: Broken) -> None:
    """Without any one rule, a batch exceeds the limit, or an item is left out."""
    assert_caught(broken, check)
