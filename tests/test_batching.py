"""Batches within limits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

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
