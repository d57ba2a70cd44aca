"""Selection of index parts to merge: few remain, each document is written few times, and large parts stay."""

from __future__ import annotations

import math

import pytest

from tracelake.batching import DAY_S, WINDOW_SETTLES_S, Windows
from tracelake.limits import INDEX_MERGED_MAX_BYTES, INDEX_REBUILT_PART_ROWS
from tracelake.search.model import PartRef
from tracelake.search.protocol import INDEX_FAN_OUT as FAN_OUT
from tracelake.search.protocol import (
    INDEX_REPLACED_MIN,
    INDEX_REST_SHARE,
    Generation,
    IndexWindows,
    LiveRows,
    counts_replaced,
    counts_replaced_since,
    due,
    due_when_idle,
    generations,
    replaced_generations,
    to_rewrite,
    until_due,
    with_merged,
)


def part(
    lower: int, upper: int, *, documents: int = 1, lo: int = 0, hi: int = 4, size_bytes: int = 1
) -> PartRef:
    """Return a part of the transactions [lower, upper)."""
    sha256 = f"{lower:032x}{upper:016x}{lo:016x}"
    return PartRef(
        path=f"search/spans/parts/b/{sha256}.pack",
        documents=documents,
        size_bytes=size_bytes,
        sha256=sha256,
        build="b",
        lo=lo,
        hi=hi,
        lower=lower,
        upper=upper,
        as_of=upper - 1,
    )


def merged(run: list[Generation]) -> PartRef:
    """Return one part in place of a run."""
    documents, size_bytes = sum(each.documents for each in run), sum(each.size_bytes for each in run)
    return part(run[0].lower, run[-1].upper, documents=documents, size_bytes=size_bytes)


@pytest.mark.parametrize("gaps", [1, 3])
def test_ten_thousand_transactions_leave_few_parts_each_written_few_times(gaps: int) -> None:
    """The number of parts and of writes of a row grow with the logarithm, whenever merges run."""
    parts: list[PartRef] = []
    written = 0
    for number in range(10_000):
        parts.append(part(number * gaps, number * gaps + 1))
        while run := list(due(generations(parts))):
            old = [each for gen in run for each in gen.parts]
            placed = with_merged(parts, old, [merged(run)])
            assert placed is not None
            parts = list(placed)
            written += sum(each.documents for each in old)
        levels = math.ceil(math.log(number + 2, FAN_OUT))
        assert len(parts) <= (FAN_OUT - 1) * levels
    assert sum(each.documents for each in parts) == 10_000
    assert written <= 10_000 * math.log(10_000, FAN_OUT)


def check_no_run_is_built_of_rows(size_bytes: int) -> None:
    """Check that parts of large spans are joined too: no run exceeds a task's join limit, and few parts remain."""
    documents, count = 2_000, 1_500
    parts: list[PartRef] = []
    written = 0
    for number in range(count):
        parts.append(part(number, number + 1, documents=documents, size_bytes=documents * size_bytes))
        while run := list(due(generations(parts))):
            new = merged(run)
            assert len(run) > 1
            assert new.size_bytes <= INDEX_MERGED_MAX_BYTES
            parts = list(with_merged(parts, [each.parts[0] for each in run], [new]) or ())
            written += new.documents
    large = 2 * sum(each.size_bytes for each in parts) / INDEX_MERGED_MAX_BYTES
    large += sum(each.documents for each in parts) / INDEX_REBUILT_PART_ROWS
    assert len(parts) <= large + (FAN_OUT - 1) * math.log(count, FAN_OUT)
    assert written <= documents * count * math.log(count, FAN_OUT)


@pytest.mark.parametrize("size_bytes", [100, 1_500, 10_000, 140_000])
def test_no_run_is_built_of_rows(size_bytes: int) -> None:
    """A run rebuilt from rows of many bytes takes minutes, during which a pipeline falls behind."""
    check_no_run_is_built_of_rows(size_bytes)


def test_nothing_is_due_before_it_is_told() -> None:
    """Waiting for the reported number of transactions misses no merge."""
    parts: list[PartRef] = []
    not_before = 0
    for number in range(200):
        parts.append(part(number, number + 1))
        run = list(due(generations(parts)))
        if run:
            assert number >= not_before
            parts = list(with_merged(parts, [each.parts[0] for each in run], [merged(run)]) or ())
        if not due(generations(parts)):
            not_before = number + until_due(generations(parts))
            assert not_before > number


def check_rest(every: int) -> None:
    """Check the number of parts, and the cost, if a rest follows every so many transactions."""
    parts: list[PartRef] = []
    written = 0
    for number in range(1_000):
        parts.append(part(number, number + 1))
        rests = number % every == every - 1
        while run := list(due(generations(parts)) or (due_when_idle(generations(parts)) if rests else ())):
            old = [each for gen in run for each in gen.parts]
            parts = list(with_merged(parts, old, [merged(run)]) or ())
            written += sum(each.documents for each in old)
        if rests:
            sizes = [each.documents for each in parts]
            assert all(size > INDEX_REST_SHARE * sum(sizes[at + 1 :]) for at, size in enumerate(sizes))
            assert len(sizes) <= 1 + math.log(number + 1, INDEX_REST_SHARE + 1)
    assert written <= 1_000 * math.log(1_000, FAN_OUT) * (INDEX_REST_SHARE if every < FAN_OUT else 2)


def check_rest_is_of_one_part() -> None:
    """Check that runs that would exceed one part, by documents or bytes, are unchanged."""
    third, half = INDEX_REBUILT_PART_ROWS // 3, INDEX_MERGED_MAX_BYTES // 2
    rows = generations([part(t, t + 1, documents=third) for t in range(5)])
    assert due_when_idle(rows) == rows[2:]
    sizes = generations([part(t, t + 1, documents=2, size_bytes=half) for t in range(5)])
    assert due_when_idle(sizes) == sizes[3:]
    full = part(1, 2, documents=INDEX_REBUILT_PART_ROWS)
    beside = generations([part(0, 1), full, part(2, 3)])
    assert due_when_idle(beside) == (), "of both sides of a large one"
    before = generations([part(0, 1), part(1, 2), part(2, 3, documents=INDEX_REBUILT_PART_ROWS)])
    assert due_when_idle(before) == before[:2]


@pytest.mark.parametrize("every", [1, 7, 500])
def test_at_rest_few_parts_are_left(every: int) -> None:
    """Each part is some times larger than all newer ones together, and large parts are not rewritten for each small
    one."""
    check_rest(every)


def test_at_rest_parts_become_no_larger_than_else() -> None:
    """Merging at rest makes no part above the usual maximum, which would not be searched less and would be rebuilt
    from rows."""
    check_rest_is_of_one_part()


def test_parts_that_are_large_are_left_alone() -> None:
    """Merging large parts gains nothing; the parts of four tasks are one generation, and so are merged together."""
    full = [part(t, t + 1, documents=INDEX_REBUILT_PART_ROWS) for t in range(20)]
    assert due(generations(full)) == ()
    fours = [part(t, t + 1, lo=lo, hi=lo + 1, documents=9) for t in range(9) for lo in range(4)]
    run = due(generations(fours))
    assert [(each.lower, each.documents, len(each.parts)) for each in run] == [(t, 36, 4) for t in range(9)]
    assert due(generations(fours[:28])) == ()


def test_a_run_that_is_not_there_any_more_is_not_replaced() -> None:
    """If another merge or a rebuild was faster, nothing is replaced: the parts of a run are consecutive or absent."""
    parts = [part(t, t + 1) for t in range(4)]
    new = part(1, 3)
    assert with_merged(parts, parts[1:3], [new]) == (parts[0], new, parts[3])
    assert with_merged(parts, parts[1:3], []) == (parts[0], parts[3])
    assert with_merged(parts[:2], parts[1:3], [new]) is None
    assert with_merged([parts[0], parts[2], parts[1]], parts[1:3], [new]) is None
    assert with_merged([], parts[1:3], [new]) is None


def test_what_counts_many_replaced_rows_is_written_again_even_where_it_is_large() -> None:
    """Large parts are rewritten only if their replaced rows are many and a large share of the index."""
    assert counts_replaced(5 * INDEX_REPLACED_MIN, 4 * INDEX_REPLACED_MIN - 1)
    assert not counts_replaced(5 * INDEX_REPLACED_MIN, 4 * INDEX_REPLACED_MIN)
    assert not counts_replaced(INDEX_REPLACED_MIN, 1), "few, so they cost nothing"
    large = part(0, 10, documents=INDEX_REBUILT_PART_ROWS)
    found = generations([large, part(10, 11, documents=10), part(11, 12, documents=10)])
    live = {3: INDEX_REBUILT_PART_ROWS // 2, 10: 8, 11: 7}
    assert [each.lower for each in to_rewrite(found, live)] == [0, 11]


def test_generations_with_replaced_generations_rows_are_found_by_batches() -> None:
    """A run ends where a batch of the table does, so that its live rows are known; half of them must be dead."""
    found = generations([part(t, t + 2, documents=10) for t in range(0, 12, 2)])

    def runs(*batches: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        return [
            (run[0].lower, run[-1].upper, live)
            for run, live in replaced_generations(found, [LiveRows(*batch) for batch in batches])
        ]

    assert runs(*((t, t + 2, 5) for t in range(0, 12, 2))) == []
    assert runs(*((t, t + 2, 4 if t == 6 else 5) for t in range(0, 12, 2))) == [(6, 8, 4)]
    assert runs((0, 4, 0), (4, 7, 8), (7, 12, 9)) == [(0, 4, 0), (4, 12, 17)]
    assert runs((2, 4, 9)) == [(0, 2, 0), (4, 6, 0), (6, 8, 0), (8, 10, 0), (10, 12, 0)]
    assert counts_replaced_since(INDEX_REPLACED_MIN, 0)
    assert not counts_replaced_since(INDEX_REPLACED_MIN - 1, 0)
    assert counts_replaced_since(5 * INDEX_REPLACED_MIN, 4 * INDEX_REPLACED_MIN)
    assert not counts_replaced_since(5 * INDEX_REPLACED_MIN - 1, 4 * INDEX_REPLACED_MIN)


PER_WINDOW = 20
"""Transactions of a day."""


def check_windows(windows: int) -> float:
    """Check that no merge crosses a window or rewrites a settled one, and return how often a document was written by
    merges. The table's batches of a day are one batch."""
    parts: list[PartRef] = []
    written = 0
    settled: list[PartRef] = []
    for number in range(windows * PER_WINDOW):
        parts.append(part(number, number + 1))
        now_s = DAY_S + number * DAY_S // PER_WINDOW
        lowers = [*range(0, number, PER_WINDOW), number]
        rule = Windows(DAY_S, now_s)
        index = IndexWindows(rule, lowers, [DAY_S + lower * DAY_S // PER_WINDOW for lower in lowers])
        while run := list(due(generations(parts), windows=index) or due_when_idle(generations(parts), index)):
            assert run[0].lower // PER_WINDOW == (run[-1].upper - 1) // PER_WINDOW, "one window at a time"
            parts = list(with_merged(parts, [each.parts[0] for each in run], [merged(run)]) or ())
            written += sum(each.documents for each in run)
        assert until_due(generations(parts), windows=index) >= 1
        old = [each for each in parts if rule.is_settled(1 + each.lower // PER_WINDOW)]
        assert old[: len(settled)] == settled, "a settled window is never rewritten"
        assert [each.documents for each in old] == [PER_WINDOW] * len(old), "it is one part"
        settled = old
    assert sum(each.documents for each in parts) == windows * PER_WINDOW
    return written / (windows * PER_WINDOW)


def test_windows_bound_the_work_on_a_document() -> None:
    """A document is written as often in a lake of 60 days as in one of 6."""
    assert check_windows(60) == pytest.approx(check_windows(6), rel=0.1)


def test_large_parts_stay_in_a_settled_window() -> None:
    """The last merge of a window takes what fits into one part; parts without a time are an old window."""
    now_s = 9 * DAY_S + WINDOW_SETTLES_S
    days = IndexWindows(Windows(DAY_S, now_s), range(8), [0, 0, *[8 * DAY_S] * 6])
    full = INDEX_REBUILT_PART_ROWS
    sizes = [1, 1, 5, full, 2, 3, 4, full]
    parts = [part(t, t + 1, documents=documents) for t, documents in enumerate(sizes)]
    assert [(each.lower, each.documents) for each in due(generations(parts), windows=days)] == [
        (4, 2),
        (5, 3),
        (6, 4),
    ]
    assert due(generations(parts[:4]), windows=days) == ()
