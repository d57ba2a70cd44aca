"""The first rows of a list: those of a commit are cached, and uncommitted rows are merged into them."""

from __future__ import annotations

from unittest import mock

import pytest

import tracelake
from tests.lake.test_session_lists import turn
from tests.lake.test_usage import hot
from tests.pipeline.spans import a_span
from tracelake._errors import QueryError
from tracelake.lake import reads
from tracelake.lake.trace_list import KEYS, TraceFilter, list_groups, list_traces
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.results import Row
from tracelake.tables.view import CommitView
from tracelake.tracking.store import TrackingStore

FILTERS = [TraceFilter(order=order, limit=2) for order in KEYS]
FILTERS += [TraceFilter(limit=2, service="shop"), TraceFilter(user="ada"), TraceFilter(user="eve")]


def listed(lake: tracelake.Lake, wanted: TraceFilter) -> list[Row]:
    """Return the rows of all pages."""
    rows, page = list[Row](), list_traces(lake, wanted)
    while True:
        rows += page.traces
        if page.next_page is None:
            return rows
        page = list_traces(lake, TraceFilter(order=wanted.order, limit=2, page=page.next_page))


def check_as_without_cache(lake: tracelake.Lake) -> None:
    """Compare each list with that of statements over all rows."""
    for wanted in FILTERS:
        with mock.patch.object(reads.LakeReads, "first_rows", lambda of, rows: of.select(str(rows))[0]):
            expected = list_traces(lake, wanted)
        page = list_traces(lake, wanted)
        assert (page.traces, page.more) == (expected.traces, expected.more)


def check_both_tiers(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Lists are those of one statement, with rows of either tier, or both, and after a commit and an erasure."""
    store.write([hot(*(turn(number, "chat", "ada") for number in range(1, 6)))])
    assert pipeline.run_once() is not None
    check_as_without_cache(lake)
    store.write([hot(turn(6, "chat", "eve"), {**turn(1, "chat", "ada"), "spanId": f"{9:016x}"})])
    check_as_without_cache(lake)
    assert [row["span_count"] for row in list_traces(lake, TraceFilter(order="spans")).traces][:2] == [2, 1]
    assert len(listed(lake, TraceFilter(order="oldest", limit=2))) == 6
    assert pipeline.run_once() is not None
    store.write([hot(turn(7, "chat", "eve"))])
    check_as_without_cache(lake)
    lake.erase(trace=f"{2:032x}")
    check_as_without_cache(lake)
    assert len(listed(lake, TraceFilter(order="oldest", limit=2))) == 6


def test_lists_have_the_first_rows_of_both_tiers(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """See `check_both_tiers`."""
    check_both_tiers(lake, store, pipeline)


def test_a_commit_is_read_once(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """While traces arrive, a list reads the commit once. The next commit is read again."""
    store.write([hot(turn(1, "chat", "ada"))])
    assert pipeline.run_once() is not None
    select = CommitView.select
    with mock.patch.object(CommitView, "select", autospec=True, side_effect=select) as selected:
        for number in (2, 3):
            store.write([hot(turn(number, "chat", "ada"))])
            assert len(list_traces(lake, TraceFilter(order="oldest")).traces) == number
        assert selected.call_count == 1
        assert pipeline.run_once() is not None
        store.write([hot(turn(4, "chat", "ada"))])
        assert len(list_traces(lake, TraceFilter(order="oldest")).traces) == 4
        assert selected.call_count == 2


@pytest.mark.parametrize("step", [1, 64])
def test_rows_that_are_replaced_leave_no_gap(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, step: int
) -> None:
    """If uncommitted rows replace the first rows of a commit and sort elsewhere, the rows after them follow."""
    store.write([hot(*(turn(number, "chat", "ada") for number in range(1, 6)))])
    assert pipeline.run_once() is not None
    early = [{**turn(number, "chat", "ada"), "spanId": f"{9:016x}"} for number in (4, 5)]
    store.write([hot(*({**span, "startTimeUnixNano": str(number)} for number, span in enumerate(early)))])
    with mock.patch.object(reads, "_REPLACED_STEP", step):
        rows = list_traces(lake, TraceFilter(limit=2)).traces
    assert [int(row["trace_id"], 16) for row in rows] == [4, 3]


def check_groups(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Sessions are counted again for uncommitted traces that are in one, and only for these."""

    def sessions() -> dict[str, int]:
        page = list_groups(lake, "session", TraceFilter())
        return {row["session_id"]: row["span_count"] for row in page.groups}

    store.write([hot(turn(1, "chat", "ada"), turn(2, "other", "ada"))])
    assert pipeline.run_once() is not None
    select = CommitView.select
    with mock.patch.object(CommitView, "select", autospec=True, side_effect=select) as selected:
        for number in (3, 4):
            store.write([hot(a_span(number, 0, start=number))])
            assert sessions() == {"chat": 1, "other": 1}
        assert selected.call_count == 1
    store.write([hot(turn(5, "new", "ada"), {**turn(1, "chat", "ada"), "spanId": f"{9:016x}"})])
    assert sessions() == {"chat": 2, "other": 1, "new": 1}


def test_sessions_are_counted_again_if_uncommitted_traces_are_in_one(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """See `check_groups`."""
    check_groups(lake, store, pipeline)


def test_a_filter_that_is_not_unicode_is_refused(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A lone surrogate in a filter is an error of the query, also if the outbox is empty."""
    store.write([hot(turn(1, "chat", "ada"))])
    for _ in range(2):
        with pytest.raises(QueryError, match="is no query"):
            list_traces(lake, TraceFilter(session="\udc80"))
        pipeline.run_once()
