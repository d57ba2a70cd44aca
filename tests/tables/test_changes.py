"""Parts with changes are selected from records alone, for appended and for compacted batches."""

from __future__ import annotations

import pytest

from tracelake.shards.model import Batch, BatchRef, Part, ShardState
from tracelake.shards.rows import first_row_id
from tracelake.tables.protocol import ChangedParts, are_forgotten, changed_parts, first_end, later_than, up_to


def part(name: str, first: int = 0, last: int = 0) -> Part:
    """Return a part of rows inserted at these times."""
    return Part(name, 0, 1, 1, "", first_row_id=first_row_id(first), last_row_id=first_row_id(last) + 9)


def ref(lower: int, upper: int) -> BatchRef:
    """Return the reference to a batch, as in the state."""
    return BatchRef(lower, upper, "", "", "", 1, 1, 1, 1)


def batch(lower: int, upper: int, parts: list[Part], gone: list[Part], history: list[Part]) -> Batch:
    """Return a batch of some parts."""
    return Batch(lower, upper, "", tuple(parts), tuple(gone), {}, tuple(history))


INSERTED, OLDER, GONE, PAST = part("inserted", 5, 6), part("older", 2, 4), part("gone"), part("past", 4, 5)


@pytest.mark.parametrize(
    ("after", "until", "parts"),
    [
        (4, 6, ChangedParts((INSERTED,), (PAST,), (GONE,), (PAST,))),
        (5, 6, ChangedParts((INSERTED,), (), (GONE,), (PAST,))),
        (6, 7, ChangedParts((), (), (GONE,), (PAST,))),
        (1, 2, ChangedParts((OLDER,), (), (GONE,), (PAST,))),
        (1, 4, ChangedParts((OLDER,), (PAST,), (GONE,), (PAST,))),
    ],
)
def test_parts_that_may_have_changes(after: int, until: int, parts: ChangedParts) -> None:
    """Row ids show possible insertions; any part may have retracted rows."""
    row_ids = range(first_row_id(after + 1), first_row_id(until + 1))
    assert changed_parts([batch(2, 7, [OLDER, INSERTED], [GONE], [PAST])], row_ids) == parts


def test_there_may_be_nothing() -> None:
    """A batch without insertions, or without retractions, needs no scan for them."""
    every = range(first_row_id(100))
    assert not changed_parts([], every).has_insertions
    only_inserted = changed_parts([batch(0, 7, [INSERTED], [], [])], every)
    assert (only_inserted.has_insertions, only_inserted.has_retractions) == (True, False)
    only_gone = changed_parts([batch(0, 7, [], [GONE], [])], every)
    assert (only_gone.has_insertions, only_gone.has_retractions) == (False, True)
    assert changed_parts([batch(0, 7, [], [], [PAST])], every).has_retractions


def test_batches_between_two_times() -> None:
    """A batch of several times counts for each of them."""
    first, second, third = refs = ref(0, 2), ref(2, 5), ref(5, 6)
    state = ShardState(upper=6, batches=refs)
    assert up_to(state, 1) == [first]
    assert up_to(state, 2) == [first, second]
    assert later_than(refs, 0) == [*refs]
    assert later_than(refs, 1) == [second, third]
    assert later_than(refs, 4) == [third]


@pytest.mark.parametrize(
    ("since", "after", "until", "forgotten"),
    [
        (0, -1, -1, False),
        (0, -1, 5, False),
        (0, 0, 5, False),
        (2, -1, 1, True),
        (2, -1, 2, False),
        (2, -1, 5, False),
        (2, 0, 5, True),
        (3, 2, 5, True),
        (3, 3, 5, False),
        (3, 1, 1, False),
    ],
)
def test_changes_that_are_forgotten(since: int, after: int, until: int, forgotten: bool) -> None:
    """If `since` has passed `after`, changes may be forgotten. From the beginning they are known as one."""
    assert are_forgotten(ShardState(since=since), after, until) is forgotten


@pytest.mark.parametrize(("since", "after", "end"), [(0, -1, 0), (4, -1, 4), (4, 4, 5), (4, 1, 2)])
def test_the_first_end_of_changes(since: int, after: int, end: int) -> None:
    """From the beginning, changes are read up to `since` first; from elsewhere, one transaction after the other."""
    assert first_end(ShardState(since=since), after) == end
