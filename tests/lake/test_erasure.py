"""Erasure: no reader finds the traces from the moment of the request, and later their bytes are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

import tracelake
from tests.tracking.requests import payload, request, trace_id
from tracelake._errors import NotFoundError, UsageError
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tracking.store import TracedRequest, TrackingStore

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
    places = (Path(lake.place), lake._opened.stores.cache)
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    return [str(path) for path in files if text in path.read_bytes()]


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


def test_examples_of_an_erased_trace_are_gone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """No dataset has an example of an erased trace, at any commit, and no file has its text."""
    _fill(store, pipeline)
    dataset = lake.datasets.create("evaluation", message="create")
    dataset.add(where="true", message="add")
    before, commit = {example.id: example for example in dataset.examples()}, lake.log()[0].id
    report = lake.erasures.request(trace=trace_id(1))
    others = {key: each for key, each in before.items() if each.provenance.trace_id != trace_id(1)}
    assert 0 < len(others) < len(before)
    for _ in range(2):
        for at in ("main", commit):
            assert {each.id: each for each in lake.datasets.get("evaluation", at).examples()} == others
        (report,) = lake.erasures.run(report.id)
    assert report.state == "finished"
    assert report.removed["dataset examples"] == len(before) - len(others)
    assert _objects_with(lake, SECRET.encode()) == []
    assert lake.verify().findings == ()


def test_the_traces_of_a_user_are_erased_before_and_after_their_commit(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """All traces with a span of the user are erased: committed ones, and pending ones."""
    users = (("alice", 1), ("bob", 2), ("alice", 3))
    for name, number in users[:2]:
        store.write([_of_user(name, number)])
    pipeline.run_once()
    store.write([_of_user(*users[2])])
    assert lake.erase(user="alice").state == "open"
    assert [hit.trace_id for hit in lake.search("*")] == [trace_id(2)]
    pipeline.run_once()
    (report,) = lake.erasures.run()
    assert (report.state, report.traces) == ("finished", 2)
    assert [hit.trace_id for hit in lake.search("*")] == [trace_id(2)]
    assert _objects_with(lake, b"alice") == []
    assert report.value.startswith("sha256:")


def test_traces_that_match_a_condition_are_erased(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A condition selects whole traces, by any version of their spans."""
    _fill(store, pipeline)
    report = lake.erase(
        where=f"input = '{SECRET}' and span_id = '{1:016x}'"
    )  # a version that another one replaced
    assert (report.state, report.traces) == ("finished", 1)
    assert {hit.trace_id for hit in lake.search("*")} == {trace_id(2), trace_id(3)}


def _of_user(name: str, number: int) -> TracedRequest:
    body = pb.TracesData.FromString(payload((number, 1), text=OTHER))
    span = body.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="user.id").value.string_value = name
    data = body.SerializeToString()
    return TracedRequest("protobuf", data, take_apart("protobuf", data))


@pytest.mark.parametrize("wrong", [{}, {"trace": "12"}, {"user": " "}, {"user": "a", "session": "b"}])
def test_an_unclear_selection_is_refused(lake: tracelake.Lake, wrong: dict[str, str]) -> None:
    """A request needs exactly one criterion, with a value."""
    with pytest.raises(UsageError):
        lake.erase(**wrong)
