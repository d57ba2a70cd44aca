"""The ingestion of the tracking store: a request that the database refuses affects no other request."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import text, update

from tests.broken import Broken, assert_caught
from tests.patience import HANG_S
from tests.tracking.requests import request, span_numbers, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError, LimitError, StorageError, UsageError
from tracelake.otlp.partition import COLUMNS, TraceSpans
from tracelake.server.otlp_http import experiment_of
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import ARCHIVE_REPO, INCOMPLETE, trace_info
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


def test_what_no_index_has_room_for_is_refused_alone(store: TrackingStore) -> None:
    """Two names too long for one PostgreSQL key are an error of the request, not an unreachable store."""
    name, experiment_id = (
        letters(1, limits.TRACKING_NAME_MAX_CHARS),
        letters(2, limits.TRACKING_KEY_MAX_CHARS),
    )
    numbers = iter(range(1, 1_000))

    def check() -> None:
        one, long, other = next(numbers), next(numbers), next(numbers)
        with closing(TrackingDoor(store)) as door:
            too_long = replace(request((long, 1), workspace=name), experiment_id=experiment_id)
            answers = stored(door, request((one, 1)), too_long, request((other, 1)))
        assert [answers[0], answers[2]] == [None, None]
        assert answers[1] is None if store.database.is_sqlite else isinstance(answers[1], UsageError)
        assert {trace_id(one), trace_id(other)} <= store.traces([trace_id(one), trace_id(other)]).keys()

    check()
    if not store.database.is_sqlite:
        broken = Broken("it is of the store", TrackingDatabase._failures, "_POSTGRES_TOO_LARGE", '"none"')
        assert_caught(broken, check)


def test_the_longest_names_that_come_in_can_change_places(store: TrackingStore) -> None:
    """Later metadata of a trace is in its key too: a mark or a size never makes the key longer than the limit."""

    def check() -> None:
        for characters in range(limits.TRACKING_KEY_MAX_CHARS, 0, -1):
            try:
                experiment_id = experiment_of(letters(3, characters))
                break
            except LimitError:
                continue
        brought = request((characters, 1), workspace=letters(4, limits.TRACKING_NAME_MAX_CHARS))
        outbox = Outbox(store)
        assert store.write([replace(brought, experiment_id=experiment_id)]) == [None]
        outbox.give_up([row.sequence for row in outbox.waiting()])
        assert store.infos([trace_id(characters)])[trace_id(characters)]["archival_failure"] == INCOMPLETE
        moved = update(trace_info).values(spans_location=ARCHIVE_REPO, archive_bytes=2**62)
        with store.database.writing() as connection:
            connection.execute(moved.where(trace_info.c.trace_id == trace_id(characters)))

    check()
    if not store.database.is_sqlite:
        for bytes_max in ("10**9", "608"):
            assert_caught(
                Broken("an id is short", experiment_of, "> limits.EXPERIMENT_ID_MAX_BYTES", f"> {bytes_max}"),
                check,
            )


def test_a_table_that_is_not_to_be_had_is_of_the_store(store: TrackingStore) -> None:
    """A missing table, or one without permissions, causes a retryable error, never a permanent refusal."""

    def rename(before: str, after: str) -> None:
        with store.database.writing() as connection:
            connection.execute(text(f"ALTER TABLE {before} RENAME TO {after}"))

    def check() -> None:
        rename("tracelake_outbox", "elsewhere")
        try:
            with closing(TrackingDoor(store)) as door, pytest.raises(StorageError, match="tracelake_outbox"):
                stored(door, request((1, 1)), request((2, 1)))
            with pytest.raises(StorageError, match="cannot read"):
                Outbox(store).waiting()
        finally:
            rename("elsewhere", "tracelake_outbox")
        assert store.write([request((1, 1))]) == [None]

    check()
    if not store.database.is_sqlite:
        broken = Broken("it is of the store", TrackingDatabase._failures, "_POSTGRES_REFUSED", '"none"')
        assert_caught(broken, check)


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
