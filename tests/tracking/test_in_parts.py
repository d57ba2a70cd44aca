"""Outbox rows stored as parts of their traces: stored once, and read as they were sent."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from sqlalchemy import delete, select, update

from tests.strategies import span_facts
from tests.tracking.requests import request, span_numbers, trace_id
from tests.tracking.test_store import archive, requests_of
from tracelake.archive.store import ArchiveStore
from tracelake.otlp.framing import Payload, Reading, segment_problem
from tracelake.otlp.partition import take_apart
from tracelake.tracking import store as rows_of_requests
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import outbox, trace_parts
from tracelake.tracking.store import TracedRequest, TrackingStore
from tracelake.tracking.verify import check_store

TEXT = "a text of some length, " * 20
Check: TypeAlias = Callable[[TrackingStore, Path], None]


def as_json(of: TracedRequest) -> TracedRequest:
    """Return a request in JSON form, with its ids in hex."""
    document = MessageToDict(TracesData.FromString(of.payload))
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span |= {
            name: b64decode(span[name]).hex()
            for name in ("traceId", "spanId", "parentSpanId")
            if name in span
        }
    body = json.dumps(document).encode()
    return TracedRequest("json", body, take_apart("json", body))


def stored(store: TrackingStore) -> list[bytes]:
    """Return the payloads stored in rows of the outbox themselves."""
    query = select(outbox.c.payload).where(outbox.c.lake == store.lake).order_by(outbox.c.sequence)
    with store.database.reading() as connection:
        return [bytes(each) for each in connection.execute(query).scalars()]


def check_told(store: TrackingStore, folder: Path) -> None:
    """Check several requests of several traces: nothing is stored twice, and nothing is lost."""
    requests = [request((1, 1), (2, 1), (1, 2), text=TEXT), request((3, 1), text=TEXT)]
    assert store.write(requests) == [None, None]
    assert stored(store) == [b""]
    told = TracesData.FromString(b"".join(requests_of(store, folder)))
    sent = TracesData.FromString(b"".join(each.payload for each in requests))
    assert sorted(span_facts(told)) == sorted(span_facts(sent))


def check_as_received(store: TrackingStore, folder: Path) -> None:
    """Check that JSON, requests with refused spans, a trace of two requests, and large resources are read as
    received."""
    one, two = request((1, 1), text=TEXT), request((1, 2), text=TEXT)
    small = request(*((number, 1) for number in range(10, 30)))
    for group in ([as_json(one)], [replace(one, refused=1)], [one, two], [small]):
        assert store.write(group) == [None] * len(group)
        assert stored(store) != [b""]
        assert requests_of(store, folder) == [each.payload for each in group]
        Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])


def check_refused(store: TrackingStore, folder: Path) -> None:
    """Check that spans refused by an archived trace are stored neither in the row nor in the parts."""
    store.write([request((4, 1), text=TEXT)])
    archive(store, 4, "file:///archive/4")
    Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])
    mixed = request((1, 1), (4, 2), text=TEXT)
    for each in (mixed, as_json(mixed)):
        (refused,) = store.write([each])
        assert refused is not None
        assert span_numbers(b"".join(requests_of(store, folder))) == [1]
        Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])


def check_deleted(store: TrackingStore, folder: Path) -> None:
    """Check that deleting a trace leaves the row intact, because a transaction that has begun reads it again."""
    store.write([request((1, 1), (2, 1), text=TEXT)])
    store.write([request((2, 2), text=TEXT)])
    rows = Outbox(store)
    before = rows.read_all([row.sequence for row in rows.waiting()])
    assert ArchiveStore(store).delete({trace_id(2): (None, "")}) == [trace_id(2)]
    assert rows.read_all([row.sequence for row in rows.waiting()]) == before
    assert list(check_store(store, ())) == []
    assert span_numbers(b"".join(requests_of(store, folder))) == [1, 1, 2]


def check_lost(store: TrackingStore, _folder: Path) -> None:
    """Check that a row without one of its parts is damaged, and not a smaller one."""
    store.write([request((1, 1), (2, 1), text=TEXT)])
    with store.database.writing() as connection:
        connection.execute(delete(trace_parts).where(trace_parts.c.trace_id == trace_id(2)))
    (row,) = Outbox(store).waiting()
    segment = Outbox(store).read(row.sequence)
    assert segment is not None
    assert segment_problem(segment) is not None
    assert f"outbox/{row.sequence}" in [each.path for each in check_store(store, ())]


def check_damaged(store: TrackingStore, folder: Path) -> None:
    """Check that a row with one unreadable part, whichever it is, is damaged, and that all its other parts are
    read."""
    for bad in (1, 2, 3):
        traces = [10 * bad + each for each in (1, 2, 3)]
        store.write([request(*((trace, trace) for trace in traces), text=TEXT)])
        (row,) = Outbox(store).waiting()
        of = trace_parts.c
        with store.database.writing() as connection:
            part = (of.trace_id == trace_id(traces[bad - 1]), of.sequence == row.sequence)
            whole = connection.execute(select(of.payload).where(*part)).scalar_one()
            flipped = whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:]
            connection.execute(update(trace_parts).where(*part).values(payload=flipped))
        segment = Outbox(store).read(row.sequence)
        assert segment is not None
        assert len(segment) == row.size_bytes
        assert segment_problem(segment) is not None
        assert f"outbox/{row.sequence}" in [each.path for each in check_store(store, ())]
        (folder / "row").write_bytes(segment)
        payloads = [each.data for each in Reading(str(folder / "row")) if isinstance(each, Payload)]
        others = [trace for place, trace in enumerate(traces, 1) if place != bad]
        assert span_numbers(b"".join(payloads)) == others
        looked = Outbox(store).looked_through(row.sequence)
        assert looked is not None
        assert looked.traces == {trace_id(trace): trace in others for trace in traces}
        for _ in range(2):
            Outbox(store).let_go(row.sequence, looked.traces)
        assert Outbox(store).waiting() == []
        marked = {each: info["given_up"] for each, info in store.infos(list(looked.traces)).items()}
        assert marked == {each: not is_whole for each, is_whole in looked.traces.items()}


def check_again(store: TrackingStore, folder: Path) -> None:
    """Check that traces missing from a row with a separate payload return as one row of parts, once, even if these
    are damaged."""
    sent = as_json(request((1, 1), (2, 2), (3, 3), text=TEXT))
    store.write([sent])
    rows = Outbox(store)
    (row,) = rows.waiting()
    for _ in range(2):
        rows.let_go(
            row.sequence, {trace_id(1): True, trace_id(2): False, trace_id(3): False, trace_id(4): False}
        )
        (again,) = rows.waiting()
        assert again.sequence > row.sequence
        assert again.received_ns == row.received_ns
        assert stored(store) == [b""]
        assert span_numbers(b"".join(requests_of(store, folder))) == [2, 3]
        assert list(check_store(store, ())) == []
    assert not any(info["given_up"] for info in store.infos([trace_id(each) for each in (1, 2, 3)]).values())
    rows.let_go(again.sequence, {trace_id(2): False, trace_id(3): True})
    assert rows.waiting() == []
    given_up = {each: info["given_up"] for each, info in store.infos([trace_id(2), trace_id(3)]).items()}
    assert given_up == {trace_id(2): True, trace_id(3): False}


CHECKS: list[Check] = [
    *(check_told, check_as_received, check_refused, check_deleted, check_lost, check_damaged, check_again)
]
DECIDES = rows_of_requests.is_in_parts


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_row_is_read_as_it_was_sent(check: Check, store: TrackingStore, tmp_path: Path) -> None:
    """A row is read as it was sent, on both databases."""
    check(store, tmp_path)
