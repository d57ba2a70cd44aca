"""A PostgreSQL that stops answering, as if its machine vanished: every call times out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest
from sqlalchemy import Connection, text

from tests.patience import HANG_S
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import StorageError
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.store import TrackingStore

FAILS_WITHIN_S = HANG_S
"""Time until an unanswered statement must fail."""


@pytest.fixture
def store(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrackingStore]:
    """Return a tracking store with a short timeout for replies."""
    with closing(TrackingDatabase(postgres.url(postgres.new_schema()))) as database:
        migrate(database)
        monkeypatch.setattr(limits, "POSTGRES_REPLY_TIMEOUT_S", 1.5)
        yield TrackingStore(database, "lake-a")


def backend(connection: Connection) -> psutil.Process:
    """Return the server process that serves a connection."""
    return psutil.Process(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def check_transaction(store: TrackingStore) -> None:
    """Check that a transaction interrupted in the middle fails, and that later requests are stored."""
    with ThreadPoolExecutor(1) as pool, store.database.writing() as connection:
        process = backend(connection)
        process.suspend()
        try:
            asked = pool.submit(connection.execute, text("SELECT 1"))
            assert isinstance(asked.exception(FAILS_WITHIN_S), Exception)
        finally:
            process.resume()
        asked.result()


def test_a_transaction_without_a_reply_fails(store: TrackingStore) -> None:
    """See `check_transaction`."""
    with pytest.raises(StorageError, match="no reply"):
        check_transaction(store)
    assert store.write([request((1, 1))]) == [None]
    assert store.traces([trace_id(1)])


def test_an_idle_connection_without_a_reply_is_replaced(store: TrackingStore) -> None:
    """If the connection breaks between two requests, the next one is stored over another connection."""
    with store.database.reading() as connection:
        process = backend(connection)
    process.suspend()
    try:
        assert store.write([request((1, 1))]) == [None]
    finally:
        process.resume()


def check_broken(store: TrackingStore) -> None:
    """Check the rules of the tests above, without waiting for a missing answer."""
    with pytest.raises(StorageError, match="no reply"):
        check_transaction(store)
