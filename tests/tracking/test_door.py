"""The ingestion of the tracking store: a request that the database refuses affects no other request."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace

import pytest

from tests.patience import HANG_S
from tests.tracking.requests import request, span_numbers, trace_id
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.partition import COLUMNS, TraceSpans
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.store import TracedRequest, TrackingStore


def altered(number: int, column: str, value: object) -> TracedRequest:
    """Return a request of one trace with a value that every decoder refuses."""
    good = request((number, 1))
    trace = good.traces[trace_id(number)]
    at = COLUMNS.index(column)
    rows = [(*row[:at], value, *row[at + 1 :]) for row in trace.rows]
    return replace(good, traces={trace_id(number): TraceSpans(rows, trace.data)})


def stored(door: TrackingDoor, *requests: TracedRequest) -> list[object]:
    """Store requests as one group; return their results."""
    first, *others = [(each.format, each.payload, each.traces, each.experiment_id) for each in requests]
    group, _ = door.join(*first)
    for each in others:
        assert door.join(*each)[0] is group
    door.release(group)
    return list(group.written.result(HANG_S))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param("start_ns", 2**63, id="too great a number"),
        pytest.param("name", "\ud800", id="half a letter"),
        pytest.param("name", None, id="nothing"),
    ],
)
def test_what_the_database_refuses_is_refused_alone(store: TrackingStore, column: str, value: object) -> None:
    """If the database refuses one request of a group, that one gets the error, and the others are stored once."""
    with closing(TrackingDoor(store)) as door:
        answers = stored(door, request((1, 1)), altered(2, column, value), request((3, 1)))
        assert [answers[0], answers[2]] == [None, None]
        assert isinstance(answers[1], Exception)
        assert not isinstance(answers[1], StorageError)
        with pytest.raises(type(answers[1])):
            stored(door, altered(2, column, value))
        traces = store.traces([trace_id(number) for number in (1, 2, 3)])
        assert {key: span_numbers(trace.data) for key, trace in traces.items()} == {
            trace_id(1): [1],
            trace_id(3): [1],
        }
        assert len(Outbox(store).waiting()) == 2


def letters(seed: int, count: int) -> str:
    """Return letters of four bytes each without repetition, so that no index can compress them."""
    chance = random.Random(seed)
    return "".join(chr(chance.randrange(0x10000, 0x110000)) for _ in range(count))


def test_a_store_that_is_away_is_asked_once(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store fails, the requests of a group are not retried one by one; if it fails during retries, the rest
    get 503."""
    sizes: list[int] = []

    def write(requests: list[TracedRequest]) -> list[None]:
        sizes.append(len(requests))
        raise errors[min(len(sizes), len(errors)) - 1]

    monkeypatch.setattr(store, "write", write)
    with closing(TrackingDoor(store)) as door:
        errors: list[Exception] = [StorageError("away")]
        with pytest.raises(StorageError, match="away"):
            stored(door, request((1, 1)), request((2, 1)))
        assert sizes == [2]
        sizes.clear()
        errors = [ValueError("odd"), StorageError("away")]
        answers = stored(door, request((1, 1)), request((2, 1)))
        assert [type(answer) for answer in answers] == [BackPressureError] * 2
        assert sizes == [2, 1, 1]
