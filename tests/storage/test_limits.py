"""Timeouts and retries of the clients match `limits`."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.patience import HANG_S
from tests.storage.servers.gcs import GcsServer
from tests.storage.servers.postgres import PostgresServer
from tracelake import limits
from tracelake._errors import IndeterminateError, StorageError
from tracelake.storage import BucketObjectStore
from tracelake.storage.postgres import PostgresKeyValueStore


class Silent:
    """Port that accepts connections and never replies."""

    def __init__(self) -> None:
        """Listen."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.taken.append(self.listener.accept()[0])
            except OSError:
                return

    def count(self, expected: int) -> int:
        """Return the number of connections, after reaching this number or a timeout."""
        deadline = time.monotonic() + HANG_S
        while len(self.taken) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(self.taken)

    def close(self) -> None:
        """Hang up."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.taken:
            connection.close()


def test_bucket_requests_end(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read from a server that never replies is tried STORE_TRIES_MAX times, and so is a create."""
    monkeypatch.setattr(limits, "OBJECT_REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 2)
    silent = Silent()
    for name, value in gcs.environment(silent.port).items():
        monkeypatch.setenv(name, value)
    store = BucketObjectStore(gcs.url())
    with pytest.raises(StorageError):
        store.get("a")
    assert silent.count(2) == 2
    with pytest.raises(IndeterminateError):
        store.create("a", b"")
    assert silent.count(8) == 2 + 2 * (1 + 2), "each try is one put and a reading back"
    silent.close()


def test_bucket_tries_end_in_time(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library begins no try after STORE_TRIES_TIMEOUT_S, however many remain."""
    monkeypatch.setattr(limits, "OBJECT_REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 1_000)
    monkeypatch.setattr(limits, "STORE_TRIES_TIMEOUT_S", 0.3)
    silent = Silent()
    for name, value in gcs.environment(silent.port).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError):
        BucketObjectStore(gcs.url()).get("a")
    assert len(silent.taken) < 10
    silent.close()


def test_postgres_limits_are_set(postgres: PostgresServer) -> None:
    """The server knows the timeouts of statements and locks, the client that of connections."""
    store = PostgresKeyValueStore(postgres.url(postgres.new_schema()))
    with store._pool.connection() as connection:
        shown = connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout')"
        ).fetchall()
        parameters = connection.info.get_parameters()
    store.close()
    assert {name: int(setting) / 1_000 for name, setting in shown} == {
        "statement_timeout": limits.POSTGRES_STATEMENT_TIMEOUT_S,
        "lock_timeout": limits.POSTGRES_LOCK_TIMEOUT_S,
    }
    assert float(parameters["connect_timeout"]) == limits.STORE_CONNECT_TIMEOUT_S
    assert (
        limits.POSTGRES_LOCK_TIMEOUT_S
        < limits.POSTGRES_STATEMENT_TIMEOUT_S
        < limits.POSTGRES_REPLY_TIMEOUT_S
        < limits.POSTGRES_TURN_TIMEOUT_S
        < limits.DOCTOR_CHECK_TIMEOUT_S
    )
