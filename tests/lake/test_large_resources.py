"""A large resource with many small spans: a request of one megabyte becomes a gigabyte of rows, because each row
contains the resource.

Lists and searches leave its pending rows to the pipeline, and continue. A trace that does not fit in memory is not
read whole. If a commit has very many spans of a trace, a reader holds only those that a caller requests.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

import tracelake
from tests.lake.test_hot_lists import counts, lists_of
from tests.tracking.requests import payload, request, trace_id
from tracelake import limits
from tracelake._errors import LimitError
from tracelake.archive.service import LakeArchive
from tracelake.hot import index, tier
from tracelake.hot.tier import HotTraces
from tracelake.otlp import parse
from tracelake.otlp.columns import of_workspace
from tracelake.otlp.conventions import WORKSPACE, WORKSPACE_DEFAULT
from tracelake.otlp.partition import rows_of, take_apart
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables import table as whole_trace
from tracelake.tracking.outbox import Uncommitted
from tracelake.tracking.store import TracedRequest, TrackingStore

ROWS_BYTES = 1_000_000
"""Memory limit for the rows of one part here; text that grows at the usual rate stays below it."""


def grown(
    trace: int,
    spans: range,
    resource_bytes: int = 40_000,
    text: str = "apple",
    workspace: str = WORKSPACE_DEFAULT,
) -> TracedRequest:
    """Return a request with small spans of a large resource."""
    data = pb.TracesData.FromString(payload(*((trace, span) for span in spans), text=text))
    resource = data.resource_spans[0].resource
    resource.attributes.add(key=WORKSPACE).value.string_value = workspace
    resource.attributes.add(key="large").value.string_value = "x" * resource_bytes
    body = data.SerializeToString()
    return TracedRequest("protobuf", body, take_apart("protobuf", body))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNCOMMITTED_PART_ROWS_MAX_BYTES", ROWS_BYTES)


def check_sizes(*_: object) -> None:
    """Check that the size of rows is known before they are made."""
    for each in (
        request((1, 1), (1, 2), text="apple " * 1_000),
        grown(1, range(1, 51)),
        grown(1, range(1, 3)),
    ):
        (of_trace,) = each.traces.values()
        rows = rows_of(of_trace.data).take()
        told = parse.rows_bytes(of_trace.data)
        assert 0.7 * rows.nbytes < told < 2 * rows.nbytes + 1_000
    assert parse.rows_bytes(b"\xff" * 50) == 100, "decoding says what is wrong"


def check_lists(lake: tracelake.Lake, store: TrackingStore, _: object) -> None:
    """Check that lists show the other traces completely, and this one as in commits."""
    store.write([request((1, 1), (2, 1))])
    store.write([grown(1, range(2, 60)), request((3, 1))])
    listed = lists_of(lake, store).newest()
    assert counts(listed) == {trace_id(2): 1, trace_id(3): 1}
    assert set(listed.tables["spans"]["trace_id"].to_pylist()) == {trace_id(2), trace_id(3)}


def check_room(lake: tracelake.Lake, store: TrackingStore, _: object) -> None:
    """Check that the newest traces are listed as far as the memory limit allows."""
    for trace in range(1, 8):
        store.write([grown(trace, range(1, 11), 20_000)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)
        patch.setattr(limits, "UNCOMMITTED_ROWS_MAX_BYTES", 750_000)
        assert set(counts(lists_of(lake, store).newest())) == {trace_id(number) for number in (5, 6, 7)}


def check_room_beside_a_commit(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Check that traces are listed from the commit if it has more of their rows than fit in memory."""
    store.write([grown(1, range(1, 20))])
    assert pipeline.run_once() is not None
    store.write([request((1, 30), (2, 1))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "UNCOMMITTED_ROWS_MAX_BYTES", 500_000)
        assert counts(lists_of(lake, store).newest()) == {trace_id(2): 1}
    assert counts(lists_of(lake, store).newest()) == {trace_id(1): 20, trace_id(2): 1}


def check_searches(lake: tracelake.Lake, store: TrackingStore, _: object) -> None:
    """Check that a search finds other pending traces and reports the gap. It shows nothing of this one, because
    parts replace."""
    store.write([request((1, 1), text="apple"), request((2, 1), text="apple")])
    assert lake.search("apple").total == 2
    store.write([grown(1, range(1, 60), text="pear"), request((3, 1), text="apple")])
    results = lake.search("apple")
    assert {hit.trace_id for hit in results} == {trace_id(2), trace_id(3)}
    assert results.total == 2
    assert "spans of 1 traces have large resources" in str(results.not_searched)


def check_step(lake: tracelake.Lake, store: TrackingStore, _: object) -> None:
    """Check that one step has the same memory limit."""
    for trace in range(1, 6):
        store.write([grown(trace, range(1, 11), 20_000)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "UNCOMMITTED_ROWS_MAX_BYTES", 750_000)
        assert lake.search("apple", limit=100).total == 30


def check_sizes_of_text(lake: tracelake.Lake, store: TrackingStore, _: object) -> None:
    """Check that a part with any amount of text is listed and searched: its rows take a few times its bytes."""
    store.write([request(*((1, span) for span in range(1, 30)), text="apple " * 10_000)])
    assert counts(lists_of(lake, store).newest()) == {trace_id(1): 29}
    assert (lake.search("apple").total, lake.search("apple").not_searched) == (29, None)


def check_sifted(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Check the same for a scan of pending rows."""
    store.write([request((8, 1), text="apple")])
    lake.search("apple")
    assert pipeline.run_once() is not None
    store.write([grown(1, range(1, 60)), request((3, 1), text="apple")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "UNCOMMITTED_SEARCH_WHOLE_BYTES", 0)
        results = lake.search("apple")
    assert {hit.trace_id for hit in results} == {trace_id(3), trace_id(8)}
    assert "spans of 1 traces have large resources" in str(results.not_searched)


def check_search_room(lake: tracelake.Lake, store: TrackingStore, _: object) -> None:
    """Check that all parts of a process share one memory limit, the newest first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "UNCOMMITTED_ROWS_MAX_BYTES", 750_000)
        for trace in range(1, 6):
            store.write([grown(trace, range(1, 11), 20_000)])
            results = lake.search("apple", limit=100)
        assert results.total == 30
        assert "spans of 2 traces have large resources" in str(results.not_searched)


def check_whole(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Check that a trace that exceeds the limit is not read whole, in either tier or in both; others are."""

    def check(*whole: int) -> None:
        for trace in (1, 2, 3):
            if trace in whole:
                assert len(lake.trace(trace_id(trace)).spans) == 20
            else:
                with pytest.raises(LimitError, match=f"{trace_id(trace)} take more than 700,000 bytes"):
                    lake.trace(trace_id(trace))

    with pytest.MonkeyPatch.context() as patch:
        for module in (limits, whole_trace):
            patch.setattr(module, "TRACE_ROWS_MAX_BYTES", 700_000)
        patch.setattr(tier, "HOT_TRACE_PARTS", 1)  # as for one of very many parts
        store.write([grown(1, range(1, 21)), grown(2, range(1, 21), 1_000), grown(3, range(1, 11))])
        store.write([grown(1, range(1, 3))])
        with pytest.raises(LimitError, match=trace_id(1)):
            HotTraces(Uncommitted(store)).rows(trace_id(1))
        assert len(lake.trace(trace_id(3)).spans) == 10
        while pipeline.run_once() is not None:
            pass
        store.write([grown(3, range(11, 21))])
        check(2)
        while pipeline.run_once() is not None:
            pass
        check(2)
        with pytest.raises(LimitError, match=trace_id(1)):
            lake.trace(trace_id(1), at=lake.log()[0].id)


def check_workspaces(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Check that a workspace reads all its spans of a trace, for any number of spans of another workspace."""

    def check() -> None:
        assert [span["span_id"] for span in lake.within("b").trace(trace_id(1)).spans] == [
            f"{90:016x}",
            f"{91:016x}",
        ]
        with pytest.raises(LimitError, match=trace_id(1)):
            lake.within("a").trace(trace_id(1))
        with pytest.raises(LimitError, match=trace_id(1)):
            lake.trace(trace_id(1))

    with pytest.MonkeyPatch.context() as patch:
        for module in (limits, whole_trace):
            patch.setattr(module, "TRACE_ROWS_MAX_BYTES", 700_000)
            patch.setattr(module, "LARGE_TRACE_ROWS_BYTES", 50_000)
        store.write([grown(1, range(90, 91), 1_000, workspace="b"), grown(1, range(1, 21), workspace="a")])
        store.write([grown(1, range(91, 92), 1_000, workspace="b")])
        for spans in (range(21, 31), range(31, 41)):
            store.write([grown(1, spans, workspace="a")])
        check()
        with pytest.MonkeyPatch.context() as in_steps:
            in_steps.setattr(tier, "HOT_TRACE_PARTS", 1)
            in_steps.setattr(limits, "LARGE_TRACE_ROWS_BYTES", 600_000)
            in_steps.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)
            check()
        while pipeline.run_once() is not None:
            pass
        check()
        assert lake.archive.delete([trace_id(1)]) == [trace_id(1)]
        check()  # in tables alone
        patch.setattr(tier, "HOT_TRACE_PARTS", 64)
        store.write([grown(2, range(1, 2), 1_000, workspace="b")])
        data = (
            grown(2, range(1, 21), workspace="a").payload
            + grown(2, range(1, 2), 1_000, workspace="b").payload
        )
        patch.setattr(HotTraces, "rows", lambda *_, **__: SPANS.empty_table())
        patch.setattr(HotTraces, "is_settled", lambda *_: False)
        patch.setattr(HotTraces, "is_given_up", lambda *_: True)
        patch.setattr(LakeArchive, "read", lambda *_: data)
        assert len(lake.within("b").trace(trace_id(2)).spans) == 1
    assert of_workspace(b"\xff", "a") == b"\xff", "decoding says what is wrong"


def check_about(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Check that, if a commit has many spans of a trace, only those are read that the given rows are about."""
    store.write([grown(1, range(1, 41)), request((2, 1))])
    assert pipeline.run_once() is not None
    table, claims = (
        lake.table("spans"),
        pa.Table.from_batches([rows_of(payload((1, 7), (1, 50), (2, 1))).take()]),
    )
    read = table.about(claims, [trace_id(1), trace_id(2)])
    assert sorted(zip(read["trace_id"].to_pylist(), read["span_id"].to_pylist(), strict=True)) == [
        (trace_id(1), f"{7:016x}"),
        (trace_id(2), f"{1:016x}"),
    ]
    many = [trace_id(number) for number in range(1, 80)]  # by a query
    assert table.about(claims, many).sort_by("trace_id") == read.sort_by("trace_id")
    for traces in ([trace_id(1)], many):
        with pytest.raises(LimitError, match="take more than 300,000 bytes"):
            table.lookup(traces, max_bytes=300_000)
        assert len(table.lookup(traces, max_bytes=10**8)) == (40 if len(traces) == 1 else 41)


Check = Callable[[tracelake.Lake, TrackingStore, InboxPipeline], None]
CHECKS: tuple[Check, ...] = (
    check_sizes,
    check_lists,
    check_room,
    check_room_beside_a_commit,
    check_searches,
    check_sifted,
    check_search_room,
    check_step,
    check_sizes_of_text,
    check_whole,
    check_workspaces,
    check_about,
)


@pytest.mark.parametrize("check", CHECKS)
def test_rules(check: Check, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Each rule of large resources holds."""
    check(lake, store, pipeline)
