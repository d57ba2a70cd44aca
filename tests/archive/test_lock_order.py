"""Archivers and the trim lock rows of PostgreSQL in one order, so that they never deadlock over shared rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import Connection, TextClause, text

from tests.patience import wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request, trace_id
from tracelake.archive.store import ArchiveStore
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.store import TrackingStore

IDS = [trace_id(number) for number in (1, 2, 3)]
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[TrackingStore]:
    """Return the tracking store of a lake in PostgreSQL."""
    with closing(TrackingDatabase(postgres.url(postgres.new_schema()))) as database:
        migrate(database)
        yield TrackingStore(database, "lake-a")


MIDDLE_TRACE = text("SELECT 1 FROM tracelake_trace_info WHERE trace_id = :of FOR UPDATE").bindparams(
    of=IDS[1]
)


def waiting(store: TrackingStore) -> int:
    """Return the number of connections that wait for a lock."""
    with store.database.engine.connect() as other:
        return int(other.execute(text(WAITING)).scalar_one())


def all_wait_or_any_ended(store: TrackingStore, begun: Sequence[Future[object]]) -> bool:
    """Return whether as many connections wait as tasks were started, or one of these has ended."""
    return waiting(store) >= len(begun) or any(each.done() for each in begun)


def at_once(store: TrackingStore, middle: TextClause, *works: Callable[[], object]) -> None:
    """Run tasks while the middle one of three rows is locked, until each task waits; then release the lock."""
    with ThreadPoolExecutor(len(works)) as pool:
        with store.database.writing() as connection:
            connection.execute(middle)
            begun: list[Future[object]] = []
            for work in works:
                begun.append(pool.submit(work))

                wait_until(partial(all_wait_or_any_ended, store, begun))
        for each in begun:
            each.result()


def test_archivers_and_who_trims_lock_traces_in_one_order(store: TrackingStore) -> None:
    """Two sessions that lock the same traces never deadlock. PostgreSQL would end one of them."""
    archive, outbox = ArchiveStore(store), Outbox(store)

    def check() -> None:
        store.write([request(*((number, 1) for number in (1, 2, 3)))])
        sequence = outbox.waiting()[-1].sequence
        at_once(store, MIDDLE_TRACE, lambda: outbox.give_up([sequence]), lambda: archive.unmark(IDS))
        assert sequence not in outbox.there([sequence])

    check()


MIDDLE_ROW = text("SELECT 1 FROM tracelake_outbox WHERE sequence = :of FOR UPDATE")
LOCATION = "lake:a#1"
ARCHIVED = text(
    "UPDATE tracelake_trace_info SET spans_location = 'ARCHIVE_REPO', archive_location = :location"
).bindparams(location=LOCATION)


def test_what_comes_while_a_deletion_waits_is_read_by_the_pipeline(
    store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row stored as parts of its traces gets a payload, also if it arrived before the trace was locked."""
    archive, outbox = ArchiveStore(store), Outbox(store)
    insert_spans = store._insert_spans

    def check() -> None:
        store.write([request((1, 1))])
        outbox.trim([row.sequence for row in outbox.waiting()])
        with ThreadPoolExecutor(1) as pool:
            deletions = []

            def then_delete(connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
                insert_spans(connection, rows)
                deletion = pool.submit(archive.delete, {IDS[0]: (None, "")})
                deletions.append(deletion)
                wait_until(lambda: waiting(store) or deletion.done())

            with monkeypatch.context() as patched:
                patched.setattr(store, "_insert_spans", then_delete)
                store.write([request((1, 2))])
            assert deletions[0].result() == IDS[:1]
        brought = outbox.read_all([row.sequence for row in outbox.waiting()])
        assert len(brought) == 1
        assert all(data.strip(b"\0") for data in brought.values()), (
            "one that lacks its parts is nothing but zeros"
        )

    outbox.trim([row.sequence for row in outbox.waiting()])
    check()
