"""PostgreSQL reclaims the space of archived rows, however long that takes, even if other sessions use the table."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.storage.servers.postgres import PostgresServer
from tests.tracking.giving_up import check_gives_up
from tracelake import limits
from tracelake.archive.store import reclaim_disk
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate

ROWS = b"""
INSERT INTO tracelake_outbox (lake, payload, size_bytes, received_ns)
SELECT 1, repeat('x', 1900)::bytea, 1900, 1 FROM generate_series(1, 40)
"""


@pytest.fixture
def url(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a tracking store whose vacuum is slow; any other statement may take a second."""
    url = postgres.url(postgres.new_schema())
    with closing(TrackingDatabase(url)) as database:
        migrate(database)
    monkeypatch.setattr(limits, "POSTGRES_STATEMENT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(limits, "POSTGRES_REPLY_TIMEOUT_S", 1.5)
    return f"{url}%20-cvacuum_cost_delay%3D100%20-cvacuum_cost_limit%3D1"


def check_long(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Check that a table is cleaned even beyond the statement timeout, and that no other statement exceeds it."""
    caplog.clear()
    with closing(psycopg.connect(url, autocommit=True)) as other, closing(TrackingDatabase(url)) as database:
        other.execute(ROWS)
        other.execute("DELETE FROM tracelake_outbox")
        began_s = time.monotonic()
        reclaim_disk(database)
        assert time.monotonic() > began_s + limits.POSTGRES_REPLY_TIMEOUT_S, "it is not slow enough to tell"
        assert not caplog.records
        check_gives_up(database)


def test_a_table_may_take_long(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise each pass would start the cleaning again, and none would finish it."""
    check_long(url, caplog)


def check_beside(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Check that a table that another session vacuums is skipped."""
    caplog.clear()
    with closing(psycopg.connect(url)) as other, closing(TrackingDatabase(url)) as database:
        other.execute("LOCK TABLE tracelake_trace_parts IN SHARE UPDATE EXCLUSIVE MODE")
        reclaim_disk(database)
    assert not caplog.records


def test_two_archivers_at_once(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither archiver waits for the other, or warns."""
    monkeypatch.setattr(limits, "POSTGRES_LOCK_TIMEOUT_S", 0.2)
    check_beside(url, caplog)


def test_what_fails_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A failed cleaning is reported; it costs space, and fails no pass."""
    with closing(psycopg.connect(url)) as other, closing(TrackingDatabase(url)) as database:
        other.execute("ALTER TABLE tracelake_outbox RENAME TO gone")
        other.commit()
        reclaim_disk(database)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "keeps the space" in record.getMessage()


def check_keepalives(url: str) -> None:
    """Check that the operating system probes the machine while no other traffic does."""
    with closing(TrackingDatabase(url)) as database, database.reading() as connection:
        driver: Any = connection.connection.driver_connection
        with socket.socket(fileno=driver.fileno()) as asked:
            try:
                idle_s = asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert asked.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            finally:
                asked.detach()
    assert idle_s == int(limits.STORE_CONNECT_TIMEOUT_S)


def test_a_machine_that_vanished_is_missed(postgres: PostgresServer) -> None:
    """A client that waits for a long reply notices a lost machine too."""
    url = postgres.url(postgres.new_schema())
    check_keepalives(url)
