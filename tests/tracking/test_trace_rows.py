"""The row of a trace, which MLflow's searches use: derived from the winning versions, in either tier."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from sqlalchemy import update

from tests.tracking.requests import request, trace_id
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import ARCHIVE_REPO, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore


def archive(store: TrackingStore) -> None:
    """Archive everything in the lake's tables, as a pass does at its end."""
    Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])
    with store.database.writing() as connection:
        connection.execute(
            update(trace_info).values(spans_location=ARCHIVE_REPO, archive_location="lake:x@0")
        )
        connection.execute(trace_parts.delete())


def told(store: TrackingStore, trace: int) -> dict[str, Any]:
    """Return the row's figures on its trace's spans."""
    info = store.infos([trace_id(trace)])[trace_id(trace)]
    names = ("workspace", "name", "state", "start_ns", "end_ns", "request_preview")
    return {name: info[name] for name in names}


def test_a_root_that_has_ended_stays_so(store: TrackingStore) -> None:
    """A version with a running root, which arrives late or with the ended one, reverts nothing."""
    numbers, database = iter(range(1, 1_000)), store.database

    def check() -> None:
        store = TrackingStore(database, "lake-a")
        for is_one_group in (False, True):
            for order in permutations(("runs", "ended", "child")):
                trace = next(numbers)
                claims = {
                    "runs": request((trace, 1), end_ns=0),
                    "ended": request((trace, 1), text="asked"),
                    "child": request((trace, 2), end_ns=0),
                }
                for group in [order] if is_one_group else [[name] for name in order]:
                    store.write([claims[name] for name in group])
                assert told(store, trace) == {
                    "workspace": "default",
                    "name": "span 1",
                    "state": "OK",
                    "start_ns": 1_001,
                    "end_ns": 2_000,
                    "request_preview": "asked",
                }, (order, is_one_group)
        trace = next(numbers)
        for span in (2, 1):
            store.write([request((trace, span), end_ns=0)])
        running = told(store, trace)
        assert (running["name"], running["state"], running["end_ns"]) == ("span 1", "IN_PROGRESS", 0)

    check()


def test_a18_late_spans_are_told_by_the_row(store: TrackingStore) -> None:
    """The row of a trace archived in the tables contains the data of a late root, as if the trace were hot (A18)."""
    numbers = iter(range(1, 1_000))

    def check() -> None:
        here, there = next(numbers), next(numbers)
        store.write([request((there, 2), workspace="a")])
        archive(store)
        store.write([request((here, 2), workspace="a")])
        for trace in (here, there):
            late = [
                request((trace, 3), end_ns=9_999, workspace="b"),
                request((trace, 1), end_ns=5_000, text="asked", workspace="a"),
            ]
            store.write(late)
        assert told(store, there) == told(store, here)
        assert told(store, there) == {
            "workspace": "a",
            "name": "span 1",
            "state": "OK",
            "start_ns": 1_001,
            "end_ns": 5_000,
            "request_preview": "asked",
        }
        info = store.infos([trace_id(there)])[trace_id(there)]
        assert (info["spans_location"], info["archive_location"]) == (ARCHIVE_REPO, "lake:x@0")
        assert info["db_payload_generation"] == 1

    check()
