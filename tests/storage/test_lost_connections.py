"""Connections that are cut around a write: each acknowledged write is there, and doubt is resolved or said."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.storage.servers.cutting import Cut, CuttingProxy
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tracelake import limits
from tracelake._errors import IndeterminateError, StorageError, UsageError
from tracelake.storage import (
    ABSENT,
    BucketKeyValueStore,
    BucketObjectStore,
    Conflict,
    Done,
    Indeterminate,
    settle,
)
from tracelake.storage.failures import Failure
from tracelake.storage.postgres import PostgresKeyValueStore
from tracelake.storage.record_objects import record_path

CUTS: list[Cut] = ["request", "reply"]


@pytest.fixture
def postgres_proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    """A proxy before PostgreSQL."""
    proxy = CuttingProxy(postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def table(postgres: PostgresServer, postgres_proxy: CuttingProxy) -> Iterator[PostgresKeyValueStore]:
    """A PostgreSQL store behind the proxy."""
    store = PostgresKeyValueStore(postgres.url(postgres.new_schema(), postgres_proxy.port))
    yield store
    store.close()


@pytest.fixture
def s3_proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """A proxy before the S3 server, which the environment names instead of the server."""
    proxy = CuttingProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()


@pytest.mark.parametrize("cut", CUTS)
def test_postgres_write_is_indeterminate_and_settles(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """A conditional write whose connection is cut is unknown; its write id, read back, tells the truth."""
    postgres_proxy.cut(cut, b"INSERT")
    outcome = table.set_if("p", "k", b"v", ABSENT)
    assert isinstance(outcome, Indeterminate)
    settled = settle(table, "p", "k", outcome, is_mine=lambda _: False)
    assert settled == (Conflict(None) if cut == "request" else Done(outcome.version))
    assert postgres_proxy.cuts == 1


@pytest.mark.parametrize("cut", CUTS)
def test_postgres_delete_settles(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """A delete whose connection is cut is settled by whether the record is still there."""
    version = table.set("p", "k", b"v")
    postgres_proxy.cut(cut, b"DELETE")
    outcome = table.delete_if("p", "k", version)
    assert isinstance(outcome, Indeterminate)
    settle(table, "p", "k", outcome, is_mine=lambda _: False)
    assert (table.get("p", "k") is None) == (cut == "reply")


@pytest.mark.parametrize("cut", CUTS)
def test_postgres_plain_write_reads_back(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """A plain write is acknowledged where reading back shows it, and otherwise says what is unknown."""
    postgres_proxy.cut(cut, b"INSERT")
    if cut == "request":
        with pytest.raises(IndeterminateError, match="'p' / 'k'"):
            table.set("p", "k", b"v")
    else:
        version = table.set("p", "k", b"v")
        found = table.get("p", "k")
        assert found is not None
        assert found.version == version


@pytest.mark.parametrize("cut", CUTS)
def test_postgres_read_is_asked_again(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """Reads survive a cut connection without the caller noticing."""
    table.set("p", "k", b"v")
    postgres_proxy.cut(cut, b"AND key = ")
    assert table.get("p", "k") is not None
    postgres_proxy.cut(cut, b"ORDER BY")
    assert len(table.scan("p")) == 1
    assert postgres_proxy.cuts == 2


def test_postgres_that_never_answers(
    table: PostgresKeyValueStore, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops in the middle costs the time-out, and the write is unknown, then found out."""
    monkeypatch.setattr(limits, "POSTGRES_REPLY_TIMEOUT_S", 0.3)
    blocker = PostgresKeyValueStore(postgres.url())
    with table._pool.connection() as connection:
        schema = connection.execute("SELECT current_schema()").fetchone()
    assert schema is not None
    with blocker._pool.connection() as connection, connection.transaction():
        connection.execute(f"LOCK TABLE {schema[0]}.tracelake_records IN SHARE MODE".encode())
        outcome = table.set_if("p", "k", b"v", ABSENT)
        assert isinstance(outcome, Indeterminate)
        assert "no reply" in outcome.reason
    blocker.close()


def test_postgres_lock_that_cannot_be_had(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held for too long is an error, with nothing written, and the store goes on."""
    monkeypatch.setattr(limits, "POSTGRES_LOCK_TIMEOUT_S", 0.2)
    schema = postgres.new_schema()
    table, other = PostgresKeyValueStore(postgres.url(schema)), PostgresKeyValueStore(postgres.url(schema))
    with other._pool.connection() as connection, connection.transaction():
        connection.execute("LOCK TABLE tracelake_records IN SHARE MODE")
        with pytest.raises(StorageError, match="lock timeout") as raised:
            table.set_if("p", "k", b"v", ABSENT)
        assert not isinstance(raised.value, IndeterminateError)
    assert table.get("p", "k") is None
    assert isinstance(table.set_if("p", "k", b"v", ABSENT), Done)
    table.close()
    other.close()


def test_postgres_killed_in_the_middle_of_traffic() -> None:
    """Killed and started again twice under writers: every acknowledged write is there, each at most once."""
    server = PostgresServer()
    store = PostgresKeyValueStore(server.url(), connections_max=4)
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    troubles: list[str] = []
    stop = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"{writer}/{number:06}"
            try:
                outcome = store.set_if("p", key, b"%d" % number, ABSENT)
                if isinstance(settle(store, "p", key, outcome, is_mine=lambda _: False), Done):
                    acknowledged[writer].append(number)
                if isinstance(outcome, Indeterminate):
                    troubles.append(outcome.reason)
            except StorageError as error:
                troubles.append(str(error))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    for _ in range(2):
        wait_for_more(acknowledged, 100)
        server.kill()
        server.start()
    wait_for_more(acknowledged, 100)
    stop.set()
    for thread in writers:
        thread.join(timeout=60)
    stored = {entry.key: entry.value for entry in store.scan("p")}
    store.close()
    server.close()
    assert troubles, "else no write was under way when the server died, and this test shows nothing"
    for writer, numbers in enumerate(acknowledged):
        for number in numbers:
            assert stored[f"{writer}/{number:06}"] == b"%d" % number


def wait_for_more(acknowledged: list[list[int]], count: int) -> None:
    """Wait until so many more writes were acknowledged."""
    target = sum(map(len, acknowledged)) + count
    for _ in range(3_000):
        if sum(map(len, acknowledged)) >= target:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the writers make no progress")


def test_postgres_out_of_reach(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is not there, or a URL that is none, is said without the password."""
    monkeypatch.setattr(limits, "STORE_CONNECT_TIMEOUT_S", 1)
    with pytest.raises(StorageError, match="check that it runs") as raised:
        PostgresKeyValueStore(f"postgresql://me:secret@127.0.0.1:{postgres.port}/nowhere")
    assert "secret" not in str(raised.value)
    with pytest.raises(UsageError, match="cannot be read"):
        PostgresKeyValueStore("postgresql://h/d?no_such_option=1")


def test_postgres_table_of_another_release(postgres: PostgresServer) -> None:
    """A table with a format that this release does not know is refused; a closed store says so."""
    store = PostgresKeyValueStore(url := postgres.url(postgres.new_schema()))
    with store._pool.connection() as connection:
        connection.execute("COMMENT ON TABLE tracelake_records IS 'format 2'")
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.get("p", "k")
    with pytest.raises(UsageError, match="format 2"):
        PostgresKeyValueStore(url)


@pytest.mark.parametrize("cut", CUTS)
def test_s3_create_finds_out_whose_it_is(s3: S3Server, s3_proxy: CuttingProxy, cut: Cut) -> None:
    """A create whose connection is cut says True exactly where its own object stands there."""
    store = BucketObjectStore(s3.url())
    s3_proxy.cut(cut, b"PUT /tests")
    assert store.create("a", b"same bytes") is True
    assert s3_proxy.cuts == 1
    s3_proxy.cut(cut, b"PUT /tests")
    assert store.create("a", b"same bytes") is False, "equal bytes are not the same write"


@pytest.mark.parametrize("cut", CUTS)
def test_s3_records_survive_cuts(s3: S3Server, s3_proxy: CuttingProxy, cut: Cut) -> None:
    """Writes, replacements and deletes of records are decided although each loses its connection once."""
    store = BucketKeyValueStore(s3.url())
    s3_proxy.cut(cut, b"PUT /tests")
    first = store.set_if("p", "k", b"1", ABSENT)
    assert isinstance(first, Done)
    s3_proxy.cut(cut, b"PUT /tests")
    second = store.set_if("p", "k", b"2", first.version)
    assert isinstance(second, Done)
    s3_proxy.cut(cut, b"PUT /tests")
    assert isinstance(store.set_if("p", "k", b"3", first.version), Conflict)
    s3_proxy.cut(cut, b"GET /tests")
    found = store.get("p", "k")
    assert found is not None
    assert found.value == b"2"
    s3_proxy.cut(cut, b"PUT /tests")
    assert isinstance(store.delete_if("p", "k", second.version), Done)
    assert store.get("p", "k") is None


def test_s3_write_that_was_replaced_before_it_was_read_back(s3: S3Server) -> None:
    """A write that nobody can find any more is neither claimed nor denied."""
    url = s3.url()

    def overtake(*_: object) -> Failure:
        BucketKeyValueStore(url).set("p", "k", b"theirs")
        return Failure.UNKNOWN

    store = BucketKeyValueStore(url)
    first = store.set("p", "k", b"1")
    store._bucket.put_once = overtake  # type: ignore[method-assign,assignment]
    assert isinstance(store.set_if("p", "k", b"2", first), Indeterminate)
    with pytest.raises(IndeterminateError, match="'p' / 'k'"):
        store.set("p", "k", b"3")


def test_s3_out_of_reach(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is gone, or a bucket that is not there, is an error in the end, and no hang."""
    with pytest.raises(StorageError, match="no-such-bucket"):
        BucketObjectStore("s3://no-such-bucket/x").put("a", b"")
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    gone, records = BucketObjectStore(s3.url()), BucketKeyValueStore(s3.url())
    for call in (lambda: gone.get("a"), lambda: list(gone.list("")), lambda: records.set("p", "k", b"")):
        with pytest.raises(StorageError, match="check the store"):
            call()
    with pytest.raises(IndeterminateError, match="may or may not"):
        gone.create("a", b"")


def test_no_put_on_a_condition_is_in_parts(s3: S3Server) -> None:
    """A large object is created in one request: in parts, the condition would not hold."""
    store = BucketObjectStore(s3.url())
    data = b"x" * (12 * limits.MIB)
    assert store.create("large", data)
    assert not store.create("large", data)
    assert store.get("large") == data
    assert record_path("p", "k") == "p70/k6b"
