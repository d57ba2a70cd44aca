"""A read of a large trace takes only pending spans from the tracking store, because the tables have the rest."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.archive.store import ArchiveStore
from tracelake.hot import tier
from tracelake.hot.tier import HotTraces
from tracelake.tracking.outbox import ListedPart, Outbox, StoredPart, Uncommitted
from tracelake.tracking.store import TrackingStore

LARGE = [(2, 10**6), (64, 1)]
"""Limits of parts and bytes, each of which makes a trace of three small parts a large one."""


@pytest.fixture(name="read")
def _read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    return notes(monkeypatch)


def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record which parts are read, each in a separate step, and treat a trace of three parts as large."""
    read: list[tuple[str, int]] = []
    of_traces = Uncommitted.of_traces

    def noted(self: Uncommitted, wanted: Collection[ListedPart]) -> list[StoredPart]:
        parts = of_traces(self, wanted)
        read.extend((part.trace_id, part.sequence) for part in parts)
        return parts

    monkeypatch.setattr(Uncommitted, "of_traces", noted)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)
    monkeypatch.setattr(tier, "HOT_TRACE_PARTS", 2)
    return read


def span_ids(traces: HotTraces, trace: int) -> list[int]:
    return sorted(int(str(each), 16) for each in traces.rows(trace_id(trace))["span_id"].to_pylist())


def test_of_a_large_trace_what_waits_is_read(store: TrackingStore, read: list[tuple[str, int]]) -> None:
    """The tables have the rows that left the outbox; a small trace is read whole."""
    traces = HotTraces(Uncommitted(store))
    assert span_ids(traces, 1) == []
    for spans in (((1, 1), (1, 2)), ((1, 2),), ((1, 3), (2, 1))):
        store.write([request(*spans)])
    assert span_ids(traces, 1) == [1, 2, 3]
    assert len(read) == 3
    waiting = Outbox(store)
    waiting.trim([row.sequence for row in waiting.waiting()])
    store.write([request((1, 4))])
    assert span_ids(traces, 1) == [4]
    assert len(read) == 4
    assert span_ids(traces, 2) == [1]


@pytest.mark.usefixtures("read")
def test_what_was_given_up_is_read(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Discarded spans stay readable, during the discard and after a user deletes its mark, because no table ever
    has them."""
    traces, waiting = HotTraces(Uncommitted(store)), Outbox(store)
    for span in (1, 2, 3):
        store.write([request((1, span))])
    first, second, _ = (row.sequence for row in waiting.waiting())
    waiting.trim([first])
    assert span_ids(traces, 1) == [2, 3]
    of_trace = Uncommitted.of_trace

    def given_up(self: Uncommitted, trace_id: str, **asked: Any) -> list[ListedPart]:
        if asked.get("waiting"):
            Outbox(store).give_up([second])
        return of_trace(self, trace_id, **asked)

    monkeypatch.setattr(Uncommitted, "of_trace", given_up)
    assert span_ids(traces, 1) == [1, 2, 3]
    assert ArchiveStore(store).unmark([trace_id(1)]) == [trace_id(1)]
    assert span_ids(traces, 1) == [1, 2, 3]


@pytest.mark.parametrize(("parts", "size_bytes"), LARGE)
def test_a_trace_is_large_by_parts_and_by_bytes(
    store: TrackingStore, monkeypatch: pytest.MonkeyPatch, parts: int, size_bytes: int
) -> None:
    """Either limit alone makes a trace large."""
    for span in (1, 2, 3):
        store.write([request((1, span))])
    first, second = (Uncommitted(store).of_trace(trace_id(number)) for number in (1, 2))
    assert not tier.is_large(first)
    monkeypatch.setattr(tier, "HOT_TRACE_PARTS", parts)
    monkeypatch.setattr(tier, "HOT_TRACE_BYTES", size_bytes)
    assert tier.is_large(first)
    assert not tier.is_large(second)


def test_large_traces_are_read_in_turn(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that gets no turn in time gets an error; small traces need no turn."""
    traces = HotTraces(Uncommitted(store))
    for span in (1, 2, 3):
        store.write([request((1, span))])
    store.write([request((2, 1))])
    monkeypatch.setattr(tier, "HOT_TRACE_PARTS", 2)
    monkeypatch.setattr(limits, "HOT_TRACE_WAIT_S", 0.01)
    traces._reading.begin()
    with monkeypatch.context() as patch:
        assert span_ids(traces, 2) == [1]
        patch.setattr(Uncommitted, "of_traces", None)  # a waiting reader holds no spans in memory either
        with pytest.raises(BackPressureError, match="read this one again later"):
            traces.rows(trace_id(1))
    traces._reading.end()
    assert span_ids(traces, 1) == [1, 2, 3]
    assert len(lake.trace(trace_id(1)).spans) == 3
