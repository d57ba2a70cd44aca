"""Spans that the tables never receive are read from the trace's archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.archive.place import HotLake
from tests.tracking.requests import request, trace_id
from tracelake.archive import service
from tracelake.archive.repositories import read_archived
from tracelake.storage import ObjectStore
from tracelake.tracking.outbox import Outbox

Make = Callable[..., HotLake]
LATER: Final = 3_000


def given_up(lake: HotLake, first: int) -> None:
    """Archive four traces: the tables lack a span of the first, all of the second, a version of the third, and
    nothing of the fourth."""
    lake.write((first, 1), (first + 2, 1), (first + 3, 1))
    lake.write((first, 2), (first + 1, 1), commit=False)
    lake.tracking.write([request((first + 2, 1), end_ns=LATER)])
    rows = Outbox(lake.tracking)
    rows.give_up([row.sequence for row in rows.waiting()])
    traces = range(first, first + 4)
    assert len(lake.archive.retry([*map(trace_id, traces)])) == 3
    assert lake.archive.run().fates == {"archived": 4}
    assert lake.hot(traces) == []


def spans(lake: HotLake, trace: int) -> list[str]:
    """Return the names of the spans of a trace."""
    return [span["name"] for span in lake.lake.trace(trace_id(trace)).spans]


def test_who_restores_it_meanwhile_takes_nothing_away(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a trace is restored while its archive is read, its payload is read instead."""
    lake = make("trace")
    turns = list[int]()

    def meanwhile(objects: ObjectStore, location: str, size_bytes: int, sha256: str) -> bytes:
        if turns:
            lake.archive.restore(trace_id(turns.pop()))
        return read_archived(objects, location, size_bytes, sha256)

    def check(first: int) -> None:
        given_up(lake, first)
        turns.append(first)
        assert spans(lake, first) == ["span 1", "span 2"]

    monkeypatch.setattr(service, "read_archived", meanwhile)
    check(1)
