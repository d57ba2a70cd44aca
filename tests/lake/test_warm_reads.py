"""Reads that keep columns in memory: they show no erased, deleted or foreign trace, and their memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias, cast

import pytest

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import NotFoundError
from tracelake.lake.reads import WorkspaceLake
from tracelake.lake.trace_details import previews_of, read_spans, span_values_of
from tracelake.lake.trace_list import (
    TraceFilter,
    column_values,
    list_traces,
)
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables import table
from tracelake.tables.scan import Scan
from tracelake.tracking.store import TrackingStore

SECRET = "quetzalcoatl"
AnyLake: TypeAlias = tracelake.Lake | WorkspaceLake
ALL = TraceFilter()


def fill(store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Commit two traces in one workspace, and one in another, in two transactions."""
    store.write([request((1, 1), (1, 2), text=SECRET, workspace="a"), request((2, 1), workspace="a")])
    pipeline.run_once()
    store.write([request((3, 1), text=SECRET, workspace="b"), request((1, 3), workspace="a")])
    pipeline.run_once()


def traces_seen(lake: AnyLake) -> Iterator[set[str]]:
    """Yield the traces that each read of a server finds, for reads that keep columns or results in memory."""
    whole = cast("tracelake.Lake", lake)
    listing = list_traces(whole, ALL, with_activity=True)
    yield {row["trace_id"] for row in listing.traces}
    assert listing.activity is None or listing.activity.total["traces"] == len(listing.traces)
    spans = read_spans(whole, listing.traces)
    yield {*previews_of(whole, listing.traces, spans), *span_values_of(whole, listing.traces, spans)}
    ordered = list_traces(whole, replace(ALL, order="spans", last_ns=None, min_duration_ms=0.0))
    yield {row["trace_id"] for row in ordered.traces}
    yield {hit.trace_id for hit in lake.search("*")}
    seen = set()
    for number in (1, 2, 3):
        for read in (
            lake.trace,
            lake.hot.outline,
            lambda trace: lake.hot.page(trace, 10).rows.to_pylist(),
            lambda trace: lake.hot.page(trace, 1).rows.to_pylist(),
            lambda trace: lake.hot.span_rows(trace, f"{1:016x}").to_pylist(),
        ):
            try:
                assert read(trace_id(number))
                seen.add(trace_id(number))
            except NotFoundError:
                assert trace_id(number) not in seen
    yield seen


def assert_sees(lake: AnyLake, *numbers: int) -> None:
    """Check twice that all reads find these traces, the second time from memory."""
    for _ in range(2):
        for seen in traces_seen(lake):
            assert seen == {trace_id(number) for number in numbers}


def test_an_erased_trace_is_in_no_warm_read(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An erasure hides a trace at once from reads that had it in memory, in all workspaces, and later at other
    commits."""
    fill(store, pipeline)
    assert_sees(lake, 1, 2, 3)
    assert_sees(lake.within("a"), 1, 2)
    lake.erasures.request(trace=trace_id(1))
    assert_sees(lake, 2, 3)
    assert_sees(lake.within("a"), 2)
    (report,) = lake.erasures.run()
    assert report.state == "finished"
    assert_sees(lake, 2, 3)
    assert_sees(lake.within("a"), 2)


def test_another_process_erases_a_warm_trace(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A reader hides a trace that another process erases."""
    fill(store, pipeline)
    assert_sees(lake, 1, 2, 3)
    with closing(tracelake.open(lake.place)) as other:
        other.erase(trace=trace_id(3))
    assert_sees(lake, 1, 2)
    assert_sees(lake.within("b"))


def test_a_workspace_sees_no_warm_rows_of_another(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Columns that another workspace, or the whole lake, has read into memory are not shown."""
    fill(store, pipeline)
    for _ in range(2):
        assert_sees(lake, 1, 2, 3)
        assert_sees(lake.within("a"), 1, 2)
        assert_sees(lake.within("b"), 3)
        assert_sees(lake.within("c"))


def test_a_new_commit_is_seen_at_once(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Pending spans, and the next commit, are in the next read; a commit reads only its new parts into memory."""
    fill(store, pipeline)
    assert_sees(lake, 1, 2, 3)
    store.write([request((3, 2))])
    assert {row["trace_id"]: row["span_count"] for row in list_traces(lake, ALL).traces}[trace_id(3)] == 2
    pipeline.run_once()
    assert {row["trace_id"]: row["span_count"] for row in list_traces(lake, ALL).traces}[trace_id(3)] == 2
    assert len(lake.trace(trace_id(3)).spans) == 2


def test_a_pending_version_of_a_span_is_read(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A read of a committed trace shows a newer version of a span before its commit."""
    fill(store, pipeline)
    assert_sees(lake, 1, 2, 3)
    store.write([request((2, 1), workspace="a", end_ns=9_000)])
    for spans in (lake.trace(trace_id(2)).spans, lake.hot.page(trace_id(2), 10).rows.to_pylist()):
        assert [span["end_ns"] for span in spans] == [9_000]
    pipeline.run_once()
    assert [span["end_ns"] for span in lake.trace(trace_id(2)).spans] == [9_000]


def test_few_traces_are_looked_up_with_the_same_result(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of a few traces has the same result by a lookup and by a scan, also with pending spans."""
    fill(store, pipeline)
    for _ in range(2):
        traces = list_traces(lake, ALL).traces
        looked_up = (
            previews_of(lake, traces, read_spans(lake, traces)),
            span_values_of(lake, traces, read_spans(lake, traces)),
        )
        with monkeypatch.context() as patch, closing(tracelake.open(lake.place)) as other:
            patch.setattr(table, "LOOKED_UP_TRACES_MAX", 0)
            assert looked_up == (
                previews_of(other, traces, read_spans(other, traces)),
                span_values_of(other, traces, read_spans(other, traces)),
            )
        assert looked_up[0].keys() == {row["trace_id"] for row in traces}
        store.write([request((3, 2), text="pending"), request((4, 1), text="pending")])


def test_lists_read_memory_only_within_its_limit(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list reads the files of the table if its columns exceed the limit; the result is the same."""
    fill(store, pipeline)
    read = list[bool]()
    in_memory = Scan.in_memory

    def noted(self: Scan, columns: list[str]) -> object:
        rows = in_memory(self, columns)
        read.append(rows is not None)
        return rows

    monkeypatch.setattr(Scan, "in_memory", noted)
    listing, services = list_traces(lake, ALL).traces, column_values(lake, "service")
    assert read
    assert all(read)
    del read[:]
    monkeypatch.setattr(limits, "LIST_COLUMNS_MAX_BYTES", 1)
    with closing(tracelake.open(lake.place)) as other:
        assert (list_traces(other, ALL).traces, column_values(other, "service")) == (listing, services)
    assert read
    assert not any(read)


def test_a_trace_that_retention_deletes_is_in_no_warm_read(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A retention rule deletes traces from reads that had them in memory."""
    fill(store, pipeline)
    assert_sees(lake, 1, 2, 3)
    lake.retention.set("rest", "30d")
    assert lake.retention.apply().spans_deleted == 5
    assert_sees(lake)
