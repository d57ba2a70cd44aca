"""Acknowledged requests are looked up and decoded in batches, many rows a statement; each failure is reported
alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, select, update

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import StorageError, UnreadInputsError
from tracelake.hot.index import UNCOMMITTED_SEARCH_MAX_BYTES
from tracelake.journal.model import RecordedInput
from tracelake.pipeline.protocol import (
    OUTBOX_BYTES,
    OUTBOX_ROWS,
    OUTBOX_TRACES,
    OUTBOX_WAIT_S,
    QUIET_S,
    is_due,
)
from tracelake.pipeline.sources import server_inputs
from tracelake.pipeline.sources.server_inputs import OUTBOX, OutboxSource, OutboxWatch
from tracelake.tasks.runners import InProcess
from tracelake.tracking.outbox import Outbox, Uncommitted
from tracelake.tracking.schema import INCOMPLETE, trace_parts
from tracelake.tracking.schema import outbox as outbox_rows
from tracelake.tracking.store import TrackingStore


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path) -> Iterator[tracelake.Lake]:
    """Return an empty lake in a directory."""
    with tracelake.init(tmp_path / "lake") as opened:
        yield opened


def stored(lake: tracelake.Lake, rows: int) -> TrackingStore:
    """Put this many rows into the outbox, and return its store."""
    store = lake.hot.set_up()
    for number in range(1, rows + 1):
        store.write([request((number, 1))])
    return store


def taken(lake: tracelake.Lake) -> int:
    """Run a pipeline once, and return the number of spans in the tables."""
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        pipeline.run_once()
    return lake.table("spans").info().rows


def check_together(lake: tracelake.Lake) -> None:
    """Take rows from a store that fails on single lookups."""

    def alone(*_: object) -> object:
        raise AssertionError("a row is asked for alone")

    stored(lake, 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "read", alone)
        patch.setattr(Outbox, "size_bytes", alone)
        assert taken(lake) == 7


def test_rows_are_looked_up_and_read_together(lake: tracelake.Lake) -> None:
    """Seven rows take fewer than seven statements."""
    check_together(lake)


def check_peer(lake: tracelake.Lake) -> None:
    """Let a peer take some rows between poll and read, and some between both lookups."""
    store = stored(lake, 9)
    asked = set[int]()
    read_all, there = Outbox.read_all, Outbox.there

    def gone(rows: Outbox, sequences: Collection[int]) -> set[int]:
        rows.trim([1, 2])
        return there(rows, sequences)

    def late(rows: Outbox, sequences: Collection[int]) -> dict[int, bytes]:
        asked.update(sequences)
        rows.trim([3])
        return read_all(rows, sequences)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "there", gone)
        patch.setattr(Outbox, "read_all", late)
        assert (taken(lake), asked) == (6, set(range(3, 10)))
    assert Outbox(store).waiting() == []


def test_what_a_peer_took_meanwhile_is_left_out(lake: tracelake.Lake) -> None:
    """An input that is gone at lookup or at read counts as taken; all others are read."""
    check_peer(lake)


@pytest.mark.parametrize("which", ["there", "read_all"])
def test_where_many_cannot_be_asked_for_each_is(
    lake: tracelake.Lake, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a batch statement fails, each row is read alone and is either returned or reported with its reason."""

    asks = getattr(Outbox, which)

    def away(outbox: Outbox, sequences: Collection[int]) -> object:
        if len(sequences) > 1:
            raise StorageError("the tracking store is away")
        return asks(outbox, sequences)

    stored(lake, 3)
    monkeypatch.setattr(Outbox, which, away)
    assert taken(lake) == 3


def check_full(lake: tracelake.Lake) -> None:
    """Let one copy fail because the disk is full."""
    write_bytes, full = Path.write_bytes, f"{OUTBOX}-2"

    def write(path: Path, payload: bytes) -> int:
        if path.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_bytes(path, payload)

    stored(lake, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", write)
        with pytest.raises(UnreadInputsError, match="outbox/2"):
            taken(lake)
        assert lake.table("spans").info().rows == 2


def test_one_copy_that_cannot_be_written_stops_no_other(lake: tracelake.Lake) -> None:
    """The failed copy is named, as with single reads, and all other rows are ingested."""
    check_full(lake)


def incomplete(store: TrackingStore, first: int, count: int) -> list[int]:
    """Return those of some traces that report possibly missing spans in the tables."""
    infos = store.infos([trace_id(number) for number in range(first, first + count)])
    marked = {each for each, info in infos.items() if info["archival_failure"] == INCOMPLETE}
    assert marked == {each for each, info in infos.items() if info["given_up"]}
    return [number for number in range(first, first + count) if trace_id(number) in marked]


def check_lacking(lake: tracelake.Lake, first: int) -> None:
    """Take a row of which the database has lost a part."""
    store, before = lake.hot.set_up(), taken(lake)
    store.write([request((first, 1), (first + 1, 1))])
    (lacking,) = Outbox(store).waiting()
    store.write([request((first + 2, 1))])
    with store.database.writing() as connection:
        connection.execute(delete(trace_parts).where(trace_parts.c.trace_id == trace_id(first)))
    assert taken(lake) == before + 2
    assert Outbox(store).waiting() == []
    kept = [info.size_bytes for info in lake.objects.list(f"quarantine/{OUTBOX}/{lacking.sequence}")]
    assert kept == [lacking.size_bytes]
    assert incomplete(store, first, 3) == [first]


def test_a_row_that_lacks_a_part_is_damaged(lake: tracelake.Lake) -> None:
    """A damaged row's remaining data is taken and its traces report the damage; it was once retried for ever, as a
    changing input."""
    check_lacking(lake, 1)


def check_damaged(lake: tracelake.Lake, first: int) -> None:
    """Take a row whose first part has flipped."""
    store, before = lake.hot.set_up(), taken(lake)
    store.write([request((first, 1), (first + 1, 1), (first + 2, 1))])
    with store.database.writing() as connection:
        bad = update(trace_parts).where(trace_parts.c.trace_id == trace_id(first))
        connection.execute(bad.values(payload=b"not zstd"))
    assert taken(lake) == before + 2
    assert Outbox(store).waiting() == []
    assert {row["trace_id"] for row in lake.sql("SELECT trace_id FROM traces").to_pylist()} >= {
        trace_id(first + 1),
        trace_id(first + 2),
    }
    assert incomplete(store, first, 3) == [first]


def test_a_damaged_part_takes_no_other_along(lake: tracelake.Lake) -> None:
    """All intact parts of a row reach the tables; parts behind the damage were once lost."""
    check_damaged(lake, 1)


def check_again(lake: tracelake.Lake, first: int) -> None:
    """Take a row whose own payload has flipped: the data is also in the parts of its traces."""
    store, before = lake.hot.set_up(), taken(lake)
    sent = request((first, 1), (first + 1, 1))
    store.write([replace(sent, refused=1)])  # as received, with spans that the pipeline refuses again
    (row,) = Outbox(store).waiting()
    damaged = (
        update(outbox_rows)
        .where(outbox_rows.c.sequence == row.sequence)
        .values(payload=b"\0" * row.size_bytes)
    )
    lost = update(trace_parts).where(trace_parts.c.trace_id == trace_id(first + 1))
    with store.database.writing() as connection:
        connection.execute(damaged)
        if first % 2:
            connection.execute(lost.values(payload=b"not zstd"))
    lost_spans = first % 2
    taken(lake)  # its own payload is deleted
    assert taken(lake) == before + 2 - lost_spans
    assert Outbox(store).waiting() == []
    kept = [info.size_bytes for info in lake.objects.list(f"quarantine/{OUTBOX}/{row.sequence}")]
    assert kept == [row.size_bytes]
    assert incomplete(store, first, 2) == ([first + 1] if lost_spans else [])


def check_read_before(lake: tracelake.Lake, first: int) -> None:
    """Flip a part that was intact again when the row was acknowledged: the data read is then unknown."""
    store, before = lake.hot.set_up(), taken(lake)
    store.write([request((first, 1), (first + 1, 1))])
    its = trace_parts.c.trace_id == trace_id(first)
    with store.database.writing() as connection:
        whole = connection.execute(select(trace_parts.c.payload).where(its)).scalar_one()
        connection.execute(update(trace_parts).where(its).values(payload=b"not zstd"))
    let_go = OutboxSource.ack

    def mended(source: OutboxSource, given: Sequence[RecordedInput]) -> None:
        if lake.table("spans").info().rows > before:
            with store.database.writing() as connection:
                connection.execute(update(trace_parts).where(its).values(payload=whole))
        let_go(source, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutboxSource, "ack", mended)
        assert taken(lake) == before + 1
    assert incomplete(store, first, 2) == [first, first + 1]


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, False),
        ({"since_last_s": OUTBOX_WAIT_S}, True),
        ({"since_newest_s": QUIET_S}, True),
        ({"rows": OUTBOX_ROWS}, True),
        ({"traces": OUTBOX_TRACES}, True),
        ({"size_bytes": OUTBOX_BYTES}, True),
        ({"wait_s": 0.0}, True),
    ],
)
def test_rows_wait_until_they_are_worth_a_transaction(changes: dict[str, Any], due: bool) -> None:
    """Rows wait on a busy server only, for a limited time, and while lists and searches cover twice as many."""
    busy = {"since_last_s": 0.1, "since_newest_s": 0.1, "rows": 1, "traces": 1, "size_bytes": 1}
    assert is_due(**{**busy, "wait_s": OUTBOX_WAIT_S} | changes) is due
    covered = (
        limits.UNCOMMITTED_SEARCH_ROWS_MAX,
        limits.UNCOMMITTED_TRACES_MAX,
        limits.UNCOMMITTED_LIST_MAX_BYTES,
    )
    assert covered == (2 * OUTBOX_ROWS, 2 * OUTBOX_TRACES, 2 * OUTBOX_BYTES)
    assert UNCOMMITTED_SEARCH_MAX_BYTES >= 2 * OUTBOX_BYTES


def check_waiting(lake: tracelake.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll an outbox on a clock that the test sets, while a row arrives before each poll."""
    now_s = 0.0
    store, clock = lake.hot.set_up(), SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr(server_inputs, "time", clock)
    watch = OutboxWatch(lake.objects)

    def look(at_s: float, *, arrives: bool = True, continuous: bool = True) -> int:
        nonlocal now_s
        now_s = 100.0 + at_s
        if arrives:
            store.write([request((int(1_000 * at_s) + 1, 1))])
        found = watch.look((), continuous=continuous)
        lag = watch.lag()
        assert lag is not None, "pending rows are reported whether they are due or not"
        assert lag.waiting == len(Outbox(store).waiting())
        if found and continuous:
            Outbox(store).trim([int(entry.path.rpartition("/")[2]) for entry in found])
        return len(found)

    assert look(0.0) == 1, "the first row of a quiet lake does not wait"
    wait_s = OUTBOX_WAIT_S
    assert [look(at_s) for at_s in (0.5, 1.0, 2.0, wait_s - 0.5)] == [0, 0, 0, 0]
    assert look(wait_s - 0.4, continuous=False) == 5, "a single run takes all"
    assert look(wait_s) == 6, "rows wait for a limited time, counted from the last time"
    assert look(wait_s + 1.0) == 0
    assert look(wait_s + 1.5, arrives=False) == 0
    assert look(wait_s + 2.0, arrives=False) == 1, "a second passed without a new row"
    due = is_due
    of_one = Uncommitted(store).of_trace(trace_id(1))[0][2]
    for after_s, most in ((2.0, {"rows": 3}), (3.0, {"traces": 3}), (4.0, {"size_bytes": 3 * of_one})):
        monkeypatch.setattr(server_inputs, "is_due", partial(_is_due_from, due, most))
        waited = [look(wait_s + after_s + later_s) for later_s in (0.1, 0.2, 0.3)]
        assert waited == [0, 0, 3], "many pending rows, traces or bytes do not wait"


def _is_due_from(due: Callable[..., bool], most: Mapping[str, int], **given: Any) -> bool:
    return any(given[name] >= value for name, value in most.items()) or due(**given)


def test_outbox_rows_of_a_busy_server_wait_for_more(
    lake: tracelake.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `check_waiting`."""
    check_waiting(lake, monkeypatch)
