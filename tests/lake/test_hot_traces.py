"""A large trace of the tracking store is read at the cost of what came since it was read before."""

from __future__ import annotations

from collections.abc import Collection

import pytest

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.lake.hot_traces import HotTraces
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.uncommitted import ListedPart, StoredPart, Uncommitted


@pytest.fixture(name="read")
def _read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    return notes(monkeypatch)


def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note which parts are read, each in a step of its own, and take a trace of three parts for a large one."""
    read: list[tuple[str, int]] = []
    of_traces = Uncommitted.of_traces

    def noted(self: Uncommitted, wanted: Collection[ListedPart]) -> list[StoredPart]:
        parts = of_traces(self, wanted)
        read.extend((part.trace_id, part.sequence) for part in parts)
        return parts

    monkeypatch.setattr(Uncommitted, "of_traces", noted)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)
    monkeypatch.setattr(limits, "HOT_TRACE_PARTS", 2)
    return read


def span_ids(traces: HotTraces, trace: int) -> list[int]:
    return sorted(int(str(each), 16) for each in traces.rows(trace_id(trace))["span_id"].to_pylist())


def test_a_large_trace_costs_what_came_since(store: TrackingStore, read: list[tuple[str, int]]) -> None:
    """Each part is read once, and claims that do not stand are not kept; a small trace is read each time."""
    traces = HotTraces(Uncommitted(store))
    assert span_ids(traces, 1) == []
    for spans in (((1, 1), (1, 2)), ((1, 2),), ((1, 3), (2, 1))):
        store.write([request(*spans)])
    assert [span_ids(traces, 1), span_ids(traces, 1)] == [[1, 2, 3]] * 2
    assert [len(read), len({part for part in read if part[0] == trace_id(1)})] == [3, 3]
    store.write([request((1, 4))])
    assert span_ids(traces, 1) == [1, 2, 3, 4]
    assert len(read) == 4
    assert [span_ids(traces, 2), span_ids(traces, 2)] == [[1]] * 2
    assert len(read) == 6


def test_what_is_gone_is_not_shown(store: TrackingStore, read: list[tuple[str, int]]) -> None:
    """A trace of which a part has left is read anew: what is kept of it may be that part's."""
    traces = HotTraces(Uncommitted(store))
    for span in (1, 2, 3, 4):
        store.write([request((1, span))])
    assert span_ids(traces, 1) == [1, 2, 3, 4]
    with store.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM tracelake_trace_parts WHERE sequence = 2")
    assert span_ids(traces, 1) == [1, 3, 4]
    assert len(read) == 4 + 3


def test_what_was_restored_is_not_kept(store: TrackingStore, read: list[tuple[str, int]]) -> None:
    """All restored parts have one number: another may stand there when the trace is read again."""
    traces = HotTraces(Uncommitted(store))
    for span in (1, 2, 3, 4):
        store.write([request((1, span))])

    def restore(sequence: int) -> None:
        with store.database.writing() as connection:
            connection.exec_driver_sql("DELETE FROM tracelake_trace_parts WHERE sequence = 0")
            update = f"UPDATE tracelake_trace_parts SET sequence = 0 WHERE sequence = {sequence}"
            connection.exec_driver_sql(update)

    restore(1)
    assert span_ids(traces, 1) == [1, 2, 3, 4]
    restore(2)
    assert span_ids(traces, 1) == [2, 3, 4]
    assert span_ids(traces, 1) == [2, 3, 4]
    with store.database.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE tracelake_trace_parts SET payload = (SELECT payload FROM tracelake_trace_parts"
            " WHERE sequence = 4) WHERE sequence = 0"
        )
    assert span_ids(traces, 1) == [3, 4]
    assert read.count((trace_id(1), 0)) == 4


def test_what_is_kept_is_bounded(
    store: TrackingStore, read: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traces that were read last are kept, as far as there is room; one that is larger is not."""
    traces = HotTraces(Uncommitted(store))
    for span in (1, 2, 3):
        store.write([request((1, span), (2, span))])
    monkeypatch.setattr(limits, "HOT_TRACES_KEPT_BYTES", traces.rows(trace_id(1)).nbytes)
    assert len(read) == 3
    assert span_ids(traces, 2) == span_ids(traces, 2) == [1, 2, 3]
    assert len(read) == 6
    assert span_ids(traces, 1) == [1, 2, 3]
    assert (len(read), list(traces._kept)) == (9, [trace_id(1)])
    for span in (1, 2, 3):
        store.write([request((3, span), (3, 10 + span), (3, 20 + span))])
    assert len(span_ids(traces, 3)) == 9
    assert list(traces._kept) == [trace_id(1)]


def test_large_traces_are_read_in_turn(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has no turn in time is told so; small traces need none."""
    traces = HotTraces(Uncommitted(store))
    for span in (1, 2, 3):
        store.write([request((1, span))])
    store.write([request((2, 1))])
    monkeypatch.setattr(limits, "HOT_TRACE_PARTS", 2)
    monkeypatch.setattr(limits, "HOT_TRACE_WAIT_S", 0.01)
    with traces._reading, monkeypatch.context() as patch:
        assert span_ids(traces, 2) == [1]
        patch.setattr(Uncommitted, "of_trace", None)  # nor do they have its parts in memory meanwhile
        with pytest.raises(BackPressureError, match="read this one again later"):
            traces.rows(trace_id(1))
    assert span_ids(traces, 1) == [1, 2, 3]
    assert len(lake.trace(trace_id(1)).spans) == 3
