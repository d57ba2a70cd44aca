"""Pages of the trace list by tokens: no trace appears twice or is missing while traces arrive."""

from __future__ import annotations

import time
from typing import get_args

import pytest

import tracelake
from tests.lake.test_usage import hot, used
from tests.pipeline.spans import a_span
from tracelake._errors import QueryError, UsageError
from tracelake.lake.trace_list import Order, TraceFilter, TracePage, list_traces, range_of
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search import prefilter
from tracelake.tracking.store import TrackingStore

TRACES = 23
HOUR_NS = 3_600 * 10**9


def fill(store: TrackingStore) -> list[str]:
    """Write traces with many equal keys; return their ids."""
    for trace in range(TRACES):
        store.write(
            [hot({**used(trace, 0, None, (trace % 3, 2**62)), "startTimeUnixNano": str(100 + trace // 2)})]
        )
    return [f"{trace + 1:032x}" for trace in range(TRACES)]


def ids_of(page: TracePage) -> list[str]:
    """Return the ids of a page."""
    return [str(row["trace_id"]) for row in page.traces]


def check_all_once(lake: tracelake.Lake, store: TrackingStore, order: Order) -> None:
    """Check that each trace is on one page, while traces arrive that precede all of them."""
    wanted, seen, arriving = fill(store), list[str](), 1_000
    page: str | None = None
    for _ in range(TRACES):
        listing = list_traces(lake, TraceFilter(order=order, limit=3, page=page))
        seen += ids_of(listing)
        page = listing.next_page
        if page is None:
            break
        late = {**used(arriving, 0, None, (9, 9)), "startTimeUnixNano": str(9_000 + arriving)}
        store.write([hot({**late, "endTimeUnixNano": str(9_000 + arriving), "name": "late"})])
        arriving += 1
    assert sorted(each for each in seen if each in wanted) == wanted
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("order", get_args(Order))
def test_pages_have_each_trace_once_while_others_arrive(
    lake: tracelake.Lake, store: TrackingStore, order: Order
) -> None:
    """This holds in every order, with equal keys."""
    check_all_once(lake, store, order)


@pytest.mark.parametrize("order", get_args(Order))
def test_the_page_before_is_the_page_that_was_there(
    lake: tracelake.Lake, store: TrackingStore, order: Order
) -> None:
    """`previous_page` returns the same pages in reverse; the first page has none."""
    fill(store)
    pages = [list_traces(lake, TraceFilter(order=order, limit=5))]
    while (following := pages[-1].next_page) is not None:
        pages.append(list_traces(lake, TraceFilter(order=order, limit=5, page=following)))
    assert [len(page.traces) for page in pages] == [5, 5, 5, 5, 3]
    assert (pages[0].previous_page, pages[-1].more) == (None, False)
    back = pages[-1]
    for expected in reversed(pages[:-1]):
        assert back.previous_page is not None
        back = list_traces(lake, TraceFilter(order=order, limit=5, page=back.previous_page))
        assert ids_of(back) == ids_of(expected)
        assert back.more
    assert back.previous_page is None


def test_offsets_are_taken_as_before(lake: tracelake.Lake, store: TrackingStore) -> None:
    """An offset is a number of rows; a page read by offset has a token for the next."""
    wanted = fill(store)
    pages = [
        list_traces(lake, TraceFilter(order="oldest", limit=10, offset=offset)) for offset in (0, 10, 20)
    ]
    assert [each for page in pages for each in ids_of(page)] == wanted
    last = list_traces(lake, TraceFilter(order="oldest", limit=10, page=pages[1].next_page))
    assert ids_of(last) == ids_of(pages[2])


def test_a_token_is_of_one_list(lake: tracelake.Lake, store: TrackingStore) -> None:
    """A token with another filter or order, with an offset, or any other text is refused."""
    fill(store)
    page = list_traces(lake, TraceFilter(limit=5)).next_page
    assert page is not None
    for other in (TraceFilter(order="oldest", page=page), TraceFilter(service="shop", page=page)):
        with pytest.raises(QueryError, match="another list"):
            list_traces(lake, other)
    with pytest.raises(UsageError, match="not both"):
        list_traces(lake, TraceFilter(page=page, offset=5))
    for text in ("", "x", page + "0", page.replace("a_", "c_", 1), page.replace("_", "_1 or 1=1 --_", 2)):
        with pytest.raises(QueryError, match="is not a page"):
            list_traces(lake, TraceFilter(page=text))
    assert len(list_traces(lake, TraceFilter(limit=7, page=page)).traces) == 7


NEWEST = ["skewed", "past", "end", "future"]


def write_starts(store: TrackingStore) -> None:
    """Write traces that start in the past, slightly in the future as from a fast clock, and far in the future."""
    now_ns = time.time_ns()
    starts = {
        "past": now_ns - HOUR_NS,
        "skewed": now_ns + HOUR_NS,
        "future": now_ns + prefilter.NEWEST_AHEAD_MAX_S * 10**9 + HOUR_NS,
        "end": 2**63 - 2,
    }
    for number, (name, start_ns) in enumerate(starts.items()):
        store.write([hot(a_span(number, 0, start=start_ns, end=start_ns + 1, name=name))])


def check_far_future_is_last(lake: tracelake.Lake) -> None:
    """Check lists and searches, on one page and on several."""
    assert [row["name"] for row in list_traces(lake, TraceFilter()).traces] == NEWEST
    page = list_traces(lake, TraceFilter(limit=1))
    listed = [row["name"] for row in page.traces]
    while page.next_page is not None:
        page = list_traces(lake, TraceFilter(limit=1, page=page.next_page))
        listed += [row["name"] for row in page.traces]
    assert listed == NEWEST
    assert [hit.name for hit in lake.search("*", sort="newest")] == NEWEST
    hits = lake.search("*", sort="newest", limit=1)
    searched = [hit.name for hit in hits]
    while hits.next_page is not None:
        hits = lake.search("*", sort="newest", limit=1, page=hits.next_page)
        searched += [hit.name for hit in hits]
    assert searched == NEWEST


def test_a_trace_of_the_far_future_is_the_last_of_the_newest(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """This holds before and after the commit; a clock that is an hour ahead changes nothing."""
    write_starts(store)
    check_far_future_is_last(lake)
    assert pipeline.run_once() is not None
    check_far_future_is_last(lake)


@pytest.mark.parametrize(("length_ns", "step_ns"), [(HOUR_NS, HOUR_NS // 60), (HOUR_NS // 4, HOUR_NS // 240)])
def test_the_same_minute_has_the_same_range(length_ns: int, step_ns: int) -> None:
    """A length of time begins up to a minute early, never late, so that lists of the minute share cached results."""
    wanted = TraceFilter(last_ns=length_ns)
    moments = range(1_000 * HOUR_NS, 1_001 * HOUR_NS, 7 * 10**9)
    starts = [range_of(wanted, now_ns)[0] for now_ns in moments]
    assert all(
        0 <= now_ns - length_ns - (start or 0) < step_ns
        for now_ns, start in zip(moments, starts, strict=True)
    )
    assert len(set(starts)) == HOUR_NS // step_ns
    assert range_of(TraceFilter(last_ns=length_ns, start_ns=moments[0]), moments[0])[0] == moments[0]
