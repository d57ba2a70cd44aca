"""Archivers and the trim lock rows of PostgreSQL in one order, so that they never deadlock over shared rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import Connection, TextClause, text

from tests.broken import Broken, assert_caught
from tests.patience import wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request, trace_id
from tracelake.archive.store import ArchiveRows, ArchiveStore
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.outbox import Outbox, keep
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

    assert_caught(
        Broken(
            "archivers lock traces by id",
            ArchiveRows._infos,
            "trace_info.c.trace_id)",
            "trace_info.c.trace_id.desc())",
        ),
        check,
    )
    assert_caught(
        Broken(
            "who trims locks traces by id",
            Outbox._locked,
            ".order_by(info.trace_id)",
            ".order_by(info.trace_id.desc())",
        ),
        check,
    )
    check()


MIDDLE_ROW = text("SELECT 1 FROM tracelake_outbox WHERE sequence = :of FOR UPDATE")
LOCATION = "lake:a#1"
ARCHIVED = text(
    "UPDATE tracelake_trace_info SET spans_location = 'ARCHIVE_REPO', archive_location = :location"
).bindparams(location=LOCATION)
TRACES_OF_SOME = "self._locked(connection, some)"


def test_who_trims_and_who_deletes_lock_traces_first_and_then_rows_by_number(store: TrackingStore) -> None:
    """In either order both finish. Otherwise each holds the lock that the other waits for."""
    archive, outbox = ArchiveStore(store), Outbox(store)

    def delete(location: str | None) -> list[str]:
        return archive.delete(dict.fromkeys(IDS, (location, "")))

    def check(done: Callable[[list[int]], None], location: str | None, is_first: bool) -> None:
        delete(None)
        delete(LOCATION)
        outbox.trim([row.sequence for row in outbox.waiting()])
        if location:
            store.write([request(*((number, 1) for number in (1, 2, 3)))])
            outbox.trim([row.sequence for row in outbox.waiting()])
            with store.database.writing() as connection:
                connection.execute(ARCHIVED)
        for number in (1, 2, 3):
            store.write([request((number, 2))])
        first, middle, last = (row.sequence for row in outbox.waiting())
        gone: list[str] = []
        works = [partial(done, [last, middle, first]), lambda: gone.extend(delete(location))]
        at_once(store, MIDDLE_ROW.bindparams(of=middle), *(works if is_first else reversed(works)))
        assert sorted(gone) == IDS
        assert outbox.waiting() == []

    in_order, in_reverse = ".order_by(outbox.c.sequence)", ".order_by(outbox.c.sequence.desc())"
    deletes_first = (
        (Broken("who trims locks rows by number", Outbox._locked_rows, in_order, in_reverse), None),
        (
            Broken(
                "who deletes locks rows by number", keep, "(of.sequence).with", "(of.sequence.desc()).with"
            ),
            None,
        ),
        (
            Broken(
                "who deletes locks traces before rows",
                ArchiveStore.delete,
                "infos = ",
                "keep(connection, self.lake, places); infos = ",
            ),
            LOCATION,
        ),
    )
    for broken, location in deletes_first:
        assert_caught(broken, partial(check, outbox.trim, location, is_first=False))
    rows = "self._locked_rows(connection, some)"
    gives_up = Broken("who gives up locks traces before rows", Outbox.give_up, TRACES_OF_SOME, rows)
    assert_caught(gives_up, partial(check, outbox.give_up, None, is_first=True))
    rows = "self._locked_rows(connection, sequences); archived = "
    trims = Broken("who trims locks traces before rows", Outbox._trim, "archived = ", rows)
    assert_caught(trims, partial(check, outbox.trim, LOCATION, is_first=True))
    for is_first in (True, False):
        check(outbox.give_up, None, is_first)
        check(outbox.trim, None, is_first)
        check(outbox.trim, LOCATION, is_first)


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

    kept = "keep(connection, self.lake, deleted)"
    assert_caught(Broken("rows lose the parts that tell them", ArchiveStore.delete, kept, "pass"), check)
    outbox.trim([row.sequence for row in outbox.waiting()])
    check()
