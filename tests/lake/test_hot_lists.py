"""Listing pending rows costs only the rows since the last list, and one thread lists for all concurrent callers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing

import pyarrow as pa
import pytest
import zstandard
from sqlalchemy import update

import tracelake
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError, DamageError
from tracelake.hot.rows import HotList, HotLists, UncommittedTraces
from tracelake.lake.trace_list import TraceFilter, list_traces, read_overview
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.server.app import create_app
from tracelake.tables.table import Table
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import ListedPart, Outbox, StoredPart, Uncommitted
from tracelake.tracking.schema import trace_parts
from tracelake.tracking.store import TrackingStore


class Turns:
    """A lock for one thread that causes an event before it is acquired."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = [meanwhile]

    def acquire(self, timeout: float) -> bool:
        """Acquire the lock after the concurrent events of the test."""
        assert timeout == limits.UNCOMMITTED_LIST_WAIT_S
        while self.meanwhile:
            self.meanwhile.pop()()
        return True

    def release(self) -> None:
        """Release the lock, for which no thread waits."""


def lists_of(lake: tracelake.Lake, store: TrackingStore) -> HotLists:
    return HotLists(lake._opened, Uncommitted(store))


def counts(listed: HotList) -> dict[str, int]:
    if not listed.tables:
        return {}
    return {str(row["trace_id"]): int(row["span_count"]) for row in listed.tables["traces"].to_pylist()}


def test_a_list_costs_what_came_since(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a trace is read once, also if the trace gets more parts; parts that left the outbox are dropped."""
    read: list[tuple[str, int]] = []
    of_traces = Uncommitted.of_traces

    def noted(self: Uncommitted, wanted: Collection[ListedPart]) -> list[StoredPart]:
        parts = of_traces(self, wanted)
        read.extend((part.trace_id, part.sequence) for part in parts)
        return parts

    monkeypatch.setattr(Uncommitted, "of_traces", noted)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)  # each part is a step
    waiting = UncommittedTraces(Uncommitted(store))
    assert waiting.newest() == ([], waiting._rows)
    store.write([request((1, 1), (1, 2), (2, 1))])
    store.write([request((1, 3))])
    ids, rows = waiting.newest()
    assert (ids, len(rows)) == ([trace_id(1), trace_id(2)], 4)
    (first, second) = (row.sequence for row in Outbox(store).waiting())
    assert sorted(read) == [(trace_id(1), first), (trace_id(1), second), (trace_id(2), first)]
    store.write([request((1, 4)), request((3, 1))])
    del read[:]
    ids, rows = waiting.newest()
    spans = zip(rows["trace_id"].to_pylist(), rows["span_id"].to_pylist(), strict=True)
    assert sorted(spans) == [
        (trace_id(trace), f"{span:016x}") for trace, span in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (3, 1))
    ]
    assert {sequence for _, sequence in read} == {second + 1}
    Outbox(store).trim([first])
    assert waiting.newest()[0] == [trace_id(3), trace_id(1)]
    assert sorted(map(str, waiting._rows["span_id"].to_pylist())) == [f"{span:016x}" for span in (1, 3, 4)]
    assert len(waiting._numbers) == 3
    Outbox(store).trim([second, second + 1])
    assert (waiting.newest()[0], len(waiting._rows), len(read)) == ([], 0, 2)


def test_who_lists_together_shares_what_is_begun_next(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that waits shares the next list. A list that began before the call is not shared: it may lack rows."""
    lists, made = lists_of(lake, store), list[int]()
    make = HotLists.build

    def noted(self: HotLists) -> HotList:
        made.append(1)
        return make(self)

    monkeypatch.setattr(HotLists, "build", noted)
    store.write([request((1, 1))])
    others: list[HotList] = []
    monkeypatch.setattr(lists, "_making", Turns(lambda: others.append(lists.newest())))
    assert counts(lists.newest()) == {trace_id(1): 1}
    assert (len(made), len(others)) == (1, 1)

    # One list began before this call; it ends without it.
    lists._started += 1
    store.write([request((2, 1))])

    def ends() -> None:
        lists._made = lists._started

    monkeypatch.setattr(lists, "_making", Turns(ends))
    assert counts(lists.newest()) == {trace_id(1): 1, trace_id(2): 1}
    assert len(made) == 2


def test_a_list_is_not_waited_for_forever(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that cannot get a list in time gets an error, and a failed list does not block the next one."""
    lists = lists_of(lake, store)
    store.write([request((1, 1))])
    with lists._making:
        monkeypatch.setattr(limits, "UNCOMMITTED_LIST_WAIT_S", 0.01)
        with pytest.raises(BackPressureError, match="list them again"):
            lists.newest()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "UNCOMMITTED_TRACES_MAX", "none")
        with pytest.raises(TypeError, match="concatenate"):
            lists.newest()
    assert counts(lists.newest()) == {trace_id(1): 1}


def damage(store: TrackingStore, trace: int, change: Callable[[bytes], bytes]) -> None:
    """Damage the payload of the newest part of a trace, as a bad disk does."""
    of = trace_parts.c
    _, sequence, _ = Uncommitted(store).of_trace(trace_id(trace))[-1]
    [part] = [each for each in Uncommitted(store).parts([sequence]) if each.trace_id == trace_id(trace)]
    with store.database.writing() as connection:
        changed = update(trace_parts).where(of.trace_id == trace_id(trace), of.sequence == sequence)
        connection.execute(changed.values(payload=change(part.payload)))


def flipped(payload: bytes) -> bytes:
    return payload[:-6] + bytes([payload[-6] ^ 1]) + payload[-5:]


def refused(packed: bytes) -> bytes:
    """Return a payload of the same decompressed size, with an invalid span after a good one."""
    whole = zstandard.ZstdDecompressor().decompress(packed)
    data = whole.replace(b"\x12\x08" + (2).to_bytes(8), b"\x12\x08" + bytes(8))
    assert len(data) == len(whole)
    assert data != whole
    return zstandard.ZstdCompressor().compress(data)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flipped,
    "cut": lambda payload: payload[: len(payload) // 2],
    "nothing": lambda _payload: b"",
    "no zstd": lambda _payload: b"not zstd",
    "huge": lambda payload: payload[:4] + b"\xc0" + payload[5:],
    "refused": refused,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_hides_nothing_else(lake: tracelake.Lake, store: TrackingStore, how: str) -> None:
    """Lists omit only the unreadable part, and report it; reading its trace is an error that names it."""
    store.write([request((1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2))])
    store.write([request((1, 2), (1, 3))])
    whole = lists_of(lake, store)
    assert whole.newest().not_listed is None
    damage(store, 1, DAMAGE[how])
    damage(store, 3, DAMAGE[how])
    others = {trace_id(1): 1, trace_id(2): 1, trace_id(4): 2}
    lists = lists_of(lake, store)
    for _ in range(2):
        listed = lists.newest()
        assert counts(listed) == others
        assert "the spans of 2 traces in the tracking store cannot be read" in str(listed.not_listed)
    assert {row["trace_id"] for row in listed.tables["spans"].to_pylist()} == set(others)
    # Parts that were read before are not read again.
    assert counts(whole.newest()) == {**others, trace_id(1): 3, trace_id(3): 2}
    for trace in (1, 3):
        with pytest.raises(DamageError, match=trace_id(trace)):
            lake.trace(trace_id(trace))
    store.write([request((3, 3))])
    assert counts(lists.newest()) == {**others, trace_id(3): 1}


def test_all_who_list_are_told_what_is_not(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """The API, the page and a table report the gap, also in a workspace, until the row has left the outbox."""
    store.write([request((1, 1))])
    store.write([request((2, 1))])
    damage(store, 1, flipped)
    with closing(TrackingDoor(store)) as door:
        client = Client(create_app(lake, door))
        document = client.get("/api/v1/traces").json()
        assert [each["trace_id"] for each in document["traces"]] == [trace_id(2)]
        assert "the spans of 1 traces" in document["not_listed"]
        assert client.get("/api/v1/services").json() == {"services": ["checkout"]}
        page = client.get("/traces")
        assert (page.status_code, "Not all is listed: the spans of 1 traces" in page.text) == (200, True)
        assert client.get(f"/api/v1/traces/{trace_id(1)}").status_code == 500
        for of in (lake, lake.within("default")):
            table = of.sql("SELECT trace_id FROM traces", uncommitted=True)
            assert table.to_pylist() == [{"trace_id": trace_id(2)}]
            assert table.schema.metadata[b"tracelake.not_listed"].startswith(b"the spans of 1 traces")
            assert of.sql("SELECT trace_id FROM traces").schema.metadata is None
        assert pipeline.run_once() is not None
        document = client.get("/api/v1/traces").json()
        assert (len(document["traces"]), document["not_listed"]) == (1, None)


def check_thousands(lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """List, count, query and search thousands of pending traces, some of them partly committed."""
    store.write([request(*((trace, 1) for trace in range(1, 11)))])
    assert pipeline.run_once() is not None
    store.write(
        [
            request(*((trace, 1) for trace in range(at, at + 500)), text="found")
            for at in range(11, 3_011, 500)
        ]
    )
    store.write([request((1, 2), (3_011, 1), text="found last")])

    def totals() -> tuple[int, int, int | None]:
        counted = "SELECT count(*) AS traces, sum(span_count) AS spans FROM traces"
        (row,), (same,) = lake.select(counted)[0].to_pylist(), lake.sql(counted, uncommitted=True).to_pylist()
        assert row == same
        assert sum(each["traces"] for each in read_overview(lake, TraceFilter()).services) == row["traces"]
        page = list_traces(lake, TraceFilter(order="oldest", offset=row["traces"] - 1))
        assert (len(page.traces), page.not_listed) == (1, None)
        return int(row["traces"]), int(row["spans"]), lake.search("found last").total

    assert totals() == (3_011, 3_012, 2)
    store.write([request((3_012, 1))])
    assert totals() == (3_012, 3_013, 2), "each list has all that was acknowledged before"
    assert pipeline.run_once() is not None
    assert totals() == (3_012, 3_013, 2)


def test_lists_and_searches_have_thousands_of_pending_traces(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """See `check_thousands`."""
    check_thousands(lake, store, pipeline)


def test_a_commit_is_asked_for_new_traces_alone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list looks up the traces that came since the last one. After a commit, or an erasure, it looks up all."""
    lists, asked = lists_of(lake, store), list[list[str]]()
    lookup = Table.lookup

    def noted(self: Table, trace_ids: Sequence[str], columns: Sequence[str], *rest: object) -> pa.Table:
        if "span_count" in columns:
            asked.append(list(trace_ids))
        return lookup(self, trace_ids, columns, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "lookup", noted)
    store.write([request((1, 1), (2, 1))])
    assert counts(lists.newest()) == {trace_id(1): 1, trace_id(2): 1}
    store.write([request((1, 2), (3, 1))])
    assert counts(lists.newest()) == {trace_id(1): 2, trace_id(2): 1, trace_id(3): 1}
    assert list(map(sorted, asked)) == [[trace_id(1), trace_id(2)], [trace_id(3)]]
    assert pipeline.run_once() is not None
    store.write([request((1, 3), (3, 2))])
    assert counts(lists.newest()) == {trace_id(1): 3, trace_id(3): 2}, "the new commit has spans of both"
    store.write([request((3, 3))])
    assert counts(lists.newest()) == {trace_id(1): 3, trace_id(3): 3}, "and still has them"


def test_lists_say_that_more_traces_are_pending(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit of lists, the list is not silently incomplete."""
    lists = lists_of(lake, store)
    for trace in (1, 2, 3):
        store.write([request((trace, 1), text="x" * 100)])
    assert lists.newest().not_listed is None
    room = 2 * sum(part[2] for part in Uncommitted(store).of_trace(trace_id(1)))
    for name, most in (("UNCOMMITTED_TRACES_MAX", 2), ("UNCOMMITTED_LIST_MAX_BYTES", room)):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, most)
            listed = lists.newest()
        assert set(counts(listed)) == {trace_id(3), trace_id(2)}, "the newest"
        assert "not listed yet" in str(listed.not_listed)
    monkeypatch.setattr(limits, "UNCOMMITTED_TRACES_MAX", 3)
    assert lists.newest().not_listed is None
    assert pipeline.run_once() is not None
    store.write([request((3, 2))])
    monkeypatch.setattr(limits, "UNCOMMITTED_LIST_MAX_SPANS", 0)
    listed = lists.newest()
    assert (counts(listed), "not listed yet" in str(listed.not_listed)) == ({}, True)


def test_lists_of_what_is_damaged_alone(lake: tracelake.Lake, store: TrackingStore) -> None:
    """If no pending row can be read, the list is empty and reports the reason."""
    store.write([request((1, 1))])
    damage(store, 1, flipped)
    listed = lists_of(lake, store).newest()
    assert counts(listed) == {}
    assert listed.not_listed is not None
