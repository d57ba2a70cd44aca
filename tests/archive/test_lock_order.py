"""Archivers and who trims lock rows of PostgreSQL in one order: of three rows that they share, nobody has two ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text

from tests.broken import Broken, assert_caught
from tests.patience import wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request, trace_id
from tracelake.archive.rows import ArchiveRows
from tracelake.archive.store import ArchiveStore
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrating import migrate
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


def at_once(store: TrackingStore, *works: Callable[[], object]) -> None:
    """Let them work while the middle one of three traces is locked, until each waits; then let it go."""
    with ThreadPoolExecutor(len(works)) as pool:
        with store.database.writing() as connection:
            middle = text("SELECT 1 FROM tracelake_trace_info WHERE trace_id = :of FOR UPDATE")
            connection.execute(middle, {"of": IDS[1]})
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
        at_once(store, lambda: outbox.give_up([sequence]), lambda: archive.unmark(IDS))
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
