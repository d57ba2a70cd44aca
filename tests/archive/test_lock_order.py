"""Archivers and who trims lock rows of PostgreSQL in one order: of three rows that they share, nobody has two ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import TextClause, text

from tests.broken import Broken, assert_caught
from tests.patience import wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request, trace_id
from tracelake.archive.rows import ArchiveRows
from tracelake.archive.store import ArchiveStore
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrating import migrate
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


def at_once(store: TrackingStore, middle: TextClause, *works: Callable[[], object]) -> None:
    """Let them work while the middle one of three is locked, until each waits; then let it go."""
    with ThreadPoolExecutor(len(works)) as pool:
        with store.database.writing() as connection:
            connection.execute(middle)
            begun = []
            for count, work in enumerate(works, 1):
                begun.append(pool.submit(work))

                def all_wait(count: int = count) -> bool:
                    with store.database.engine.connect() as other:
                        return bool(other.execute(text(WAITING)).scalar_one() >= count)

                wait_until(lambda: all_wait() or any(each.done() for each in begun))
        for each in begun:
            each.result()


def test_archivers_and_who_trims_lock_traces_in_one_order(store: TrackingStore) -> None:
    """Two who lock the same traces wait for each other once, and not for ever: PostgreSQL ends one of them then."""
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


def test_who_trims_and_who_deletes_lock_rows_of_the_outbox_in_one_order(store: TrackingStore) -> None:
    """By number, and before traces: else each has what the other waits for."""
    archive, outbox = ArchiveStore(store), Outbox(store)

    def check(done: Callable[[list[int]], None]) -> None:
        archive.delete(dict.fromkeys(IDS, (None, "")))
        outbox.trim([row.sequence for row in outbox.waiting()])
        for number in (1, 2, 3):
            store.write([request((number, 1))])
        first, middle, last = (row.sequence for row in outbox.waiting())
        row = text("SELECT 1 FROM tracelake_outbox WHERE sequence = :of FOR UPDATE").bindparams(of=middle)
        gone: list[str] = []
        at_once(
            store,
            row,
            lambda: gone.extend(archive.delete(dict.fromkeys(IDS, (None, "")))),
            lambda: done([last, middle, first]),
        )
        assert sorted(gone) == IDS
        assert outbox.waiting() == []

    in_order, in_reverse = ".order_by(outbox.c.sequence)", ".order_by(outbox.c.sequence.desc())"
    for_update = "self._locked_rows(connection, some)"
    for broken, done in (
        (Broken("who trims locks rows by number", Outbox._locked_rows, in_order, in_reverse), outbox.trim),
        (
            Broken(
                "who deletes locks rows by number",
                keep,
                "order_by(of.sequence)",
                "order_by(of.sequence.desc())",
            ),
            outbox.trim,
        ),
        (Broken("who gives up locks rows before traces", Outbox.give_up, for_update, "some"), outbox.give_up),
    ):
        assert_caught(broken, partial(check, done))
    check(outbox.trim)
    check(outbox.give_up)
