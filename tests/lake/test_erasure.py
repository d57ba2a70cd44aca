"""Erasure: no reader finds the traces from the moment of the request, and later their bytes are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake._errors import NotFoundError, UsageError
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tracking.store import TrackingStore

SECRET = "quetzalcoatl"
OTHER = "ordinary"


def _fill(store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Commit two transactions with a trace to erase in each, next to others, and a repeat of a span."""
    store.write([request((1, 1), (1, 2), text=SECRET), request((2, 1), text=OTHER)])
    pipeline.run_once()
    store.write([request((1, 3), text=SECRET, end_ns=3_000), request((3, 1), text=OTHER)])
    store.write([request((1, 1), text=f"{SECRET} later", end_ns=9_000)])
    pipeline.run_once()


def _everything(lake: tracelake.Lake, at: str) -> dict[str, object]:
    """Return all that readers see at a commit."""
    return {
        "spans": lake.sql("select trace_id, span_id, input from spans order by all", at).to_pylist(),
        "traces": lake.sql("select trace_id, span_count from traces order by all", at).to_pylist(),
        "found": sorted((hit.trace_id, hit.span_id) for hit in lake.search("*", at=at, limit=100)),
        "total": lake.search("*", at=at).total,
        "rows": {table.name: table.rows for table in lake.tables(at)},
    }


def _without(everything: dict[str, object], erased: str) -> dict[str, object]:
    spans = [row for row in everything["spans"] if row["trace_id"] != erased]  # type: ignore[attr-defined]
    traces = [row for row in everything["traces"] if row["trace_id"] != erased]  # type: ignore[attr-defined]
    found = [hit for hit in everything["found"] if hit[0] != erased]  # type: ignore[attr-defined]
    rows = {"spans": len(spans), "traces": len(traces)}
    return {"spans": spans, "traces": traces, "found": found, "total": len(found), "rows": rows}


def _objects_with(lake: tracelake.Lake, text: bytes) -> list[str]:
    place = Path(lake.place)
    return [str(path) for path in place.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_no_reader_sees_an_erased_trace(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """From the request on, no table, search or hot read finds the trace, at any commit; other rows stay."""
    _fill(store, pipeline)
    commits = [commit.id for commit in lake.log()]
    before = {commit: _everything(lake, commit) for commit in commits}
    assert lake.search(SECRET).total
    report = lake.erasures.request(trace=trace_id(1))
    assert report.state == "open"
    for commit in commits:
        assert _everything(lake, commit) == _without(before[commit], trace_id(1))
    assert lake.search(SECRET).total == 0
    assert not lake.completions("quetz")
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(1))
    with pytest.raises(NotFoundError):
        lake.annotations.set_tag(trace_id(1), "key", "value")
    assert lake.trace(trace_id(2)).spans
    assert lake.hot.infos([trace_id(1), trace_id(2)]).keys() == {trace_id(2)}


def test_an_uncommitted_trace_is_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """An erasure waits for input from before the request, hides the trace in the meantime, and ends afterwards."""
    store.write([request((1, 1), text=SECRET), request((2, 1), text=OTHER)])
    assert lake.search(SECRET).total == 1
    report = lake.erase(trace=trace_id(1))
    assert (report.state, lake.search(SECRET).total) == ("open", 0)
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(1))
    pipeline.run_once()
    assert lake.search(SECRET).total == 0
    (report,) = lake.erasures.run()
    assert report.state == "finished"
    assert lake.search(SECRET).total == 0
    assert lake.search(OTHER).total == 1


def test_the_bytes_of_an_erased_trace_are_gone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A finished erasure leaves no bytes of the text, and every commit reads as before without the trace."""
    _fill(store, pipeline)
    commits = [commit.id for commit in lake.log()]
    before = {commit: _everything(lake, commit) for commit in commits}
    assert _objects_with(lake, SECRET.encode())
    report = lake.erase(trace=trace_id(1))
    assert report.state == "finished"
    for commit in commits:
        assert _everything(lake, commit) == _without(before[commit], trace_id(1))
    assert _objects_with(lake, SECRET.encode()) == []
    assert lake.verify().findings == ()


def test_late_spans_of_an_erased_trace_are_refused(lake: tracelake.Lake, store: TrackingStore) -> None:
    """The store refuses spans of an erased trace, and stores the rest of the request."""
    store.write([request((1, 1), text=SECRET)])
    lake.erase(trace=trace_id(1))
    (refused,) = store.write([request((1, 2), (2, 1), text=OTHER)])
    assert refused is not None
    assert (refused.spans, "erased" in refused.reason) == (1, True)
    assert lake.hot.infos([trace_id(1), trace_id(2)]).keys() == {trace_id(2)}


@pytest.mark.parametrize("wrong", [{}, {"trace": "12"}, {"user": " "}, {"user": "a", "session": "b"}])
def test_an_unclear_selection_is_refused(lake: tracelake.Lake, wrong: dict[str, str]) -> None:
    """A request needs exactly one criterion, with a value."""
    with pytest.raises(UsageError):
        lake.erase(**wrong)
