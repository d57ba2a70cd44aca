"""Statistics of a large lake are reused while they are young, and renewed in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import cast
from unittest import mock

import pytest

import tracelake
from tests.lake.test_session_lists import turn
from tests.lake.test_usage import hot
from tracelake._errors import BackPressureError
from tracelake.hot.rows import HotLists
from tracelake.hot.tier import shared_lists
from tracelake.lake import reads
from tracelake.lake.trace_list import TraceFilter, column_values, list_traces, read_overview
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables import result_cache
from tracelake.tables.result_cache import ResultCache
from tracelake.tracking.store import TrackingStore

COST_S = 2.0


class Clock:
    """Time of a cache, and a count of its readings. Each takes `COST_S`."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.readings = 0
        self.was_read = Event()
        self.fails = False

    def read(self) -> int:
        """Return the number of this reading."""
        self.now_s += COST_S
        self.readings += 1
        self.was_read.set()
        if self.fails:
            raise ValueError("no result")
        return self.readings


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Replace the clock of result caches."""
    clock = Clock()
    with mock.patch("tracelake.tables.result_cache.time.monotonic", side_effect=lambda: clock.now_s):
        yield clock


@pytest.fixture
def cache() -> Iterator[ResultCache]:
    """Return a cache, closed afterwards."""
    cache = ResultCache()
    yield cache
    cache.close()


def test_a_young_result_is_reused(clock: Clock, cache: ResultCache) -> None:
    """A result is returned for ten times the time that it took; each key has its own."""
    assert cache.get(0, "a", clock.read) == 1
    clock.now_s += 8 * COST_S
    assert cache.get(0, "a", clock.read) == 1
    assert cache.get(0, "b", clock.read) == 2
    assert clock.readings == 2


def test_an_older_result_is_renewed_behind_its_reader(clock: Clock, cache: ResultCache) -> None:
    """The first reader of an older result does not wait, and causes one renewal; later ones get the new result."""
    assert [cache.get(0, key, clock.read) for key in "ab"] == [1, 2]
    clock.now_s += 12 * COST_S
    go_on = Event()

    def slowly() -> int:
        assert go_on.wait(60)
        return clock.read()

    assert [cache.get(0, "a", slowly) for _ in range(3)] == [1, 1, 1]
    clock.was_read.clear()
    renewed = Event()

    def read_last() -> int:
        renewed.set()
        return 7

    assert cache.get(0, "b", read_last) == 2
    go_on.set()
    assert renewed.wait(60)  # renewals run in turn, so those of "a" have ended
    assert clock.readings == 3
    assert cache.get(0, "a", clock.read) == 3


def test_a_result_older_than_a_minute_is_not_returned(clock: Clock, cache: ResultCache) -> None:
    """After a minute without readers, the next one waits for a new result."""
    assert cache.get(0, "a", clock.read) == 1
    clock.now_s += 61
    assert cache.get(0, "a", clock.read) == 2


def test_a_renewal_that_fails_is_tried_again(clock: Clock, cache: ResultCache) -> None:
    """An error in the background leaves the older result, and the next reader starts another renewal."""
    assert cache.get(0, "a", clock.read) == 1
    clock.now_s += 12 * COST_S
    clock.fails = True
    clock.was_read.clear()
    assert cache.get(0, "a", clock.read) == 1
    assert clock.was_read.wait(60)
    clock.fails = False
    deadline = time.perf_counter() + 10
    while cache.get(0, "a", clock.read) == 1:
        assert time.perf_counter() < deadline, "no other renewal"


def test_readers_that_wait_share_one_result(cache: ResultCache) -> None:
    """While a result is computed, others of its key wait for it, also if they would compute it in another way."""
    begun, go_on = Event(), Event()

    def slowly() -> int:
        begun.set()
        assert go_on.wait(60)
        return 7

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, 0, "a", slowly)
        assert begun.wait(60)
        second = threads.submit(cache.get, 0, "a", lambda: 8, lambda: 9)
        assert cache.get(0, "b", lambda: 1) == 1
        go_on.set()
        assert (first.result(60), second.result(60)) == (7, 7)


def test_an_error_of_one_reader_is_not_that_of_another(cache: ResultCache) -> None:
    """A reader whose request is cancelled fails alone; one that waited for it reads by itself."""
    begun, go_on = Event(), Event()

    def cancelled() -> int:
        begun.set()
        assert go_on.wait(60)
        raise BackPressureError("the client has gone")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, 0, "a", cancelled)
        assert begun.wait(60)
        second = threads.submit(cache.get, 0, "a", lambda: 8)
        go_on.set()
        assert second.result(60) == 8
        with pytest.raises(BackPressureError):
            first.result(60)
    assert cache.get(0, "a", lambda: 9) == 9


def test_a_result_that_began_before_a_change_is_not_kept(cache: ResultCache) -> None:
    """If results are dropped while one is computed, its reader gets it, and later readers a new one."""
    for change in (cache.clear, lambda: cache.get(1, "b", lambda: 0)):

        def read(change: Callable[[], object] = change) -> int:
            change()
            return 1

        assert cache.get(0, "a", read) == 1
        assert cache.get(0, "a", lambda: 2) == 2
        cache.clear()


def test_a_closed_cache_renews_nothing(clock: Clock, cache: ResultCache) -> None:
    """After its end, a cache returns what it has."""
    assert cache.get(0, "a", clock.read) == 1
    clock.now_s += 12 * COST_S
    cache.close()
    assert cache.get(0, "a", clock.read) == 1
    assert cache.get(0, "b", clock.read) == 2


def test_no_more_results_are_kept_than_the_limit(clock: Clock, cache: ResultCache) -> None:
    """The result that was not read for the longest time is dropped."""
    with mock.patch.object(result_cache, "_ENTRIES_MAX", 2):
        assert [cache.get(0, key, clock.read) for key in "abacb"] == [1, 2, 1, 3, 4]


def test_pages_of_a_large_lake_reuse_statistics(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Rows of a list are always the newest ones; its statistics may be older, until an erasure or a deletion."""
    store.write([hot(turn(1, "chat", "ada"), turn(2, "chat", "bob"))])
    assert pipeline.run_once() is not None
    with (
        mock.patch.object(reads, "_REUSED_SPANS_MIN", 2),
        mock.patch.multiple(result_cache, _YOUNG_FACTOR=1e9, _YOUNG_MAX_S=1e9, _AGE_MAX_S=1e9),
    ):
        assert traffic(lake) == (2, 2, 2)
        store.write([hot(turn(3, "chat", "ada"), turn(4, "chat", "ada"))])
        assert traffic(lake) == (4, 2, 2)
        assert list_traces(lake, TraceFilter(user="ada"), with_activity=True).activity is not None
        assert pipeline.run_once() is not None
        assert traffic(lake) == (4, 2, 2)
        with tracelake.open(lake.place) as other:
            other.erase(trace=f"{2:032x}")
        assert traffic(lake) == (3, 3, 3)
        assert read_overview(cast("tracelake.Lake", lake.within("other")), TraceFilter()).activity is None
    assert traffic(lake) == (3, 3, 3)


def traffic(lake: tracelake.Lake) -> tuple[int, int, int]:
    """Return the traces of the list, of its statistics, and of the overview."""
    page, overview = list_traces(lake, TraceFilter(), with_activity=True), read_overview(lake, TraceFilter())
    assert page.activity is not None
    assert overview.activity is not None
    assert not page.activity.is_stale
    return len(page.traces), page.activity.total["traces"], overview.activity.total["traces"]


def test_spans_of_both_tiers_count_once(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A committed trace with uncommitted spans, old and new ones, has one row, and each of its spans counts once."""
    store.write([hot(turn(1, "chat", "ada"), turn(2, "chat", "bob"))])
    assert pipeline.run_once() is not None
    again = turn(1, "chat", "ada")
    for number, spans in enumerate(([turn(3, "chat", "ada")], [again, {**again, "spanId": f"{9:016x}"}])):
        store.write([hot(*spans)])
        assert traffic(lake) == (3, 3, 3)
        assert [row["spans"] for row in read_overview(lake, TraceFilter()).operations] == [3 + number]
        rows = list_traces(lake, TraceFilter(order="oldest")).traces
        assert [row["span_count"] for row in rows] == [1 + number, 1, 1]


def test_a_small_lake_reuses_nothing(lake: tracelake.Lake, store: TrackingStore) -> None:
    """The statistics of a small lake are always the newest ones, also beside a cache that would keep them."""
    with mock.patch.multiple(result_cache, _YOUNG_FACTOR=1e9, _YOUNG_MAX_S=1e9, _AGE_MAX_S=1e9):
        for number in range(1, 4):
            store.write([hot(turn(number, "chat", "ada"))])
            assert traffic(lake) == (number, number, number)


def test_lists_that_share_uncommitted_traces_decode_them_once(
    lake: tracelake.Lake, store: TrackingStore
) -> None:
    """All reads in a block show the traces that were there at its first read; a later block shows the newer ones."""
    store.write([hot(turn(1, "chat", "ada"))])
    made = 0
    make = HotLists.build

    def counted(lists: HotLists) -> object:
        nonlocal made
        made += 1
        return make(lists)

    with mock.patch.object(HotLists, "build", counted):
        with shared_lists():
            assert len(list_traces(lake, TraceFilter()).traces) == 1
            store.write([hot(turn(2, "chat", "ada"))])
            assert len(list_traces(lake, TraceFilter()).traces) == 1
            assert column_values(lake, "service")
        assert made == 1
        assert len(list_traces(lake, TraceFilter()).traces) == 2
        assert made == 2
