"""What waits is listed at the cost of what came since, and by one thread for all who ask at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pyarrow as pa
import pytest

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.lake.hot_lists import HotLists, WaitingRows
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.uncommitted import ListedPart, StoredPart, Uncommitted


class Turns:
    """A lock for one thread: when it is waited for, something happens first."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = [meanwhile]

    def acquire(self, timeout: float) -> bool:
        """Take it, once what others do meanwhile has happened."""
        assert timeout == limits.UNCOMMITTED_LIST_WAIT_S
        while self.meanwhile:
            self.meanwhile.pop()()
        return True

    def release(self) -> None:
        """Nobody else waits for it."""


def lists_of(lake: tracelake.Lake, store: TrackingStore) -> HotLists:
    return HotLists(lake._opened, Uncommitted(store))


def counts(listed: Mapping[str, pa.Table]) -> dict[str, int]:
    if not listed:
        return {}
    return {str(row["trace_id"]): int(row["span_count"]) for row in listed["traces"].to_pylist()}


def test_a_list_costs_what_came_since(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a trace is read once, also where the trace gets others; what has left the outbox is not kept."""
    read: list[tuple[str, int]] = []
    of_traces = Uncommitted.of_traces

    def noted(self: Uncommitted, wanted: Collection[ListedPart]) -> list[StoredPart]:
        parts = of_traces(self, wanted)
        read.extend((part.trace_id, part.sequence) for part in parts)
        return parts

    monkeypatch.setattr(Uncommitted, "of_traces", noted)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)  # each part is a step
    waiting = WaitingRows(Uncommitted(store))
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
    """Who waits while another begins a list gets that; of a list begun before it asked, nobody knows what it has."""
    lists, made = lists_of(lake, store), list[int]()
    make = HotLists._make

    def noted(self: HotLists) -> Mapping[str, pa.Table]:
        made.append(1)
        return make(self)

    monkeypatch.setattr(HotLists, "_make", noted)
    store.write([request((1, 1))])
    others: list[Mapping[str, pa.Table]] = []
    monkeypatch.setattr(lists, "_making", Turns(lambda: others.append(lists.newest())))
    assert counts(lists.newest()) == {trace_id(1): 1}
    assert (len(made), len(others)) == (1, 1)

    # One is under way that was begun before this came; it ends without it.
    lists._begun += 1
    store.write([request((2, 1))])

    def ends() -> None:
        lists._made = lists._begun

    monkeypatch.setattr(lists, "_making", Turns(ends))
    assert counts(lists.newest()) == {trace_id(1): 1, trace_id(2): 1}
    assert len(made) == 2


def test_a_list_is_not_waited_for_forever(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot have a list in time is told so, and a list that fails does not keep others from the next."""
    lists = lists_of(lake, store)
    store.write([request((1, 1))])
    with lists._making:
        monkeypatch.setattr(limits, "UNCOMMITTED_LIST_WAIT_S", 0.01)
        with pytest.raises(BackPressureError, match="list it again"):
            lists.newest()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "UNCOMMITTED_TRACES_MAX", "none")
        with pytest.raises(ValueError, match="none"):
            lists.newest()
    assert counts(lists.newest()) == {trace_id(1): 1}
