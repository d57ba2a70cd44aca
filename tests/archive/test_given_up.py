"""Spans that the tables never receive are read from the trace's archive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from tests.archive.place import HotLake
from tests.broken import Broken, assert_caught
from tests.tracking.requests import request, trace_id
from tracelake._errors import DamageError, NotFoundError
from tracelake.archive import service
from tracelake.archive.repositories import read_archived
from tracelake.hot import tier
from tracelake.hot.tier import HotTier, HotTraces
from tracelake.storage import ObjectStore
from tracelake.tracking.outbox import Outbox
from tracelake.versions.branch_store import MAIN

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


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_what_was_given_up_and_archived_is_read_whole(make: Make, layout: str) -> None:
    """A trace is never read shorter than its archive has it; missing spans are an error (A14)."""
    lake = make(layout)
    reads = list[str]()

    def check(first: int) -> None:
        given_up(lake, first)
        del reads[:]
        assert spans(lake, first) == ["span 1", "span 2"]
        assert spans(lake, first + 1) == ["span 1"]
        assert lake.lake.trace(trace_id(first + 2)).spans[0]["end_ns"] == LATER
        assert len(reads) == 3
        assert spans(lake, first + 3) == ["span 1"]
        assert len(reads) == 3, "the tables have it"
        assert lake.lake.within("default").trace(trace_id(first + 1)).summary["span_count"] == 1
        with pytest.raises(NotFoundError):
            lake.lake.within("other").trace(trace_id(first + 1))

    def noted(objects: ObjectStore, location: str, size_bytes: int, sha256: str) -> bytes:
        reads.append(location)
        return read_archived(objects, location, size_bytes, sha256)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "read_archived", noted)
        check(1)
        assert_caught(
            Broken("its archive is read", HotTier._here, "is_given_up(trace_id)", "is_given_up('')"),
            lambda: check(11),
        )
        assert_caught(
            Broken("of no other", HotTier._here, "not traces.is_given_up(trace_id)", "len(rows)"),
            lambda: check(21),
        )
    for info in list(lake.lake.objects.list("archive/")):
        lake.lake.objects.delete(info.path)
    with pytest.raises(DamageError, match="is missing"):
        spans(lake, 1)
    assert spans(lake, 4) == ["span 1"]


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_what_a_revert_took_of_a_trace_is_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """A hot trace with many parts and an archived one are read completely if `main` has less of them."""
    lake = make(layout)
    main = lake.lake.branch(MAIN)

    def check(first: int) -> None:
        lake.write((first, 1), (first + 1, 1), (first + 3, 1))
        lake.write((first, 2), (first + 1, 2), (first + 2, 1))
        main.revert(main.log()[0].id)
        for hot in (True, False):
            assert spans(lake, first) == spans(lake, first + 1) == ["span 1", "span 2"]
            assert spans(lake, first + 2) == spans(lake, first + 3) == ["span 1"]
            if hot:
                assert lake.archive.run().fates == {"archived": 4}
        assert lake.archive.delete([trace_id(first + 2)])
        with pytest.raises(NotFoundError):
            spans(lake, first + 2)

    monkeypatch.setattr(tier, "HOT_TRACE_PARTS", 0)
    check(16)
    rules = (
        Broken("it is noticed", HotTier._rows, "len(rows) < max(", "len(rows) < 0 * max("),
        Broken("all parts are read", HotTraces._of_large, " or complete", ""),
        Broken("its archive is read", HotTier._here, "not complete and ", ""),
    )
    for number, rule in enumerate(rules, 2):
        assert_caught(rule, partial(check, 16 * number))


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
    assert_caught(
        Broken("it is looked at again", service.read_trace, "if is_still_at(", "if not is_still_at("),
        lambda: check(11),
    )
