"""Connections cut around a write: acknowledged writes last, and unknown outcomes are resolved or reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from obstore.exceptions import GenericError

from tests.patience import HANG_S, wait_until
from tests.storage.conftest import BUCKET_BACKENDS, BucketServer
from tests.storage.servers.cutting import Cut, CuttingProxy
from tests.storage.servers.gcs import GcsServer
from tests.storage.servers.postgres import PostgresServer
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
from tracelake.storage import postgres as storage_postgres
from tracelake.storage.object_records import record_path
from tracelake.storage.ports import tries
from tracelake.storage.postgres import PostgresKeyValueStore

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


@dataclass(frozen=True)
class Cuttable:
    """A server of buckets, and the proxy before it."""

    server: BucketServer
    proxy: CuttingProxy

    def url(self) -> str:
        """Return the URL of an empty location."""
        return self.server.url()


@pytest.fixture(params=BUCKET_BACKENDS)
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuttable]:
    """Yield each bucket server in turn, behind a proxy that the environment names instead of the server."""
    server: BucketServer = request.getfixturevalue(request.param)
    proxy = CuttingProxy(server.port)
    for name, value in server.environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    yield Cuttable(server, proxy)
    proxy.close()


@pytest.mark.parametrize("cut", CUTS)
def test_postgres_write_is_indeterminate_and_settles(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """A conditional write whose connection is cut has an unknown outcome; reading back its write id settles it."""
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
    """A delete whose connection is cut is settled by checking whether the record still exists."""
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
    """A plain write is acknowledged if reading back shows it; otherwise the error names what is unknown."""
    postgres_proxy.cut(cut, b"INSERT")
    if cut == "request":
        with pytest.raises(IndeterminateError, match="'p' / 'k'"):
            table.set("p", "k", b"v")
    else:
        version = table.set("p", "k", b"v")
        found = table.get("p", "k")
        assert found is not None
        assert found.version == version


def test_postgres_many_records_are_all_there_or_none(
    table: PostgresKeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused record fails all records of its statement; large numbers of records take several statements."""
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 1)
    with table._pool.connection() as connection:
        connection.execute("ALTER TABLE tracelake_records ADD CHECK (value <> 'no')")
    many = {"c": b"3", "b": b"no", "a": b"1"}
    with pytest.raises(StorageError, match="check constraint") as raised:
        table.set_all("p", many)
    assert not isinstance(raised.value, IndeterminateError)
    assert table.scan("p") == []
    monkeypatch.setattr(storage_postgres, "POSTGRES_STATEMENT_BYTES", 2)

    def check() -> None:
        with pytest.raises(StorageError, match="check constraint"):
            table.set_all("p", many)
        assert [entry.key for entry in table.scan("p")] == ["a"]

    check()


@pytest.mark.parametrize("cut", CUTS)
def test_postgres_read_is_asked_again(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """Reads survive a cut connection without any error to the caller."""
    table.set("p", "k", b"v")
    postgres_proxy.cut(cut, b"AND key = ")
    assert table.get("p", "k") is not None
    postgres_proxy.cut(cut, b"ORDER BY")
    assert len(table.scan("p")) == 1
    assert postgres_proxy.cuts == 2


def test_postgres_that_never_answers(
    table: PostgresKeyValueStore, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops replying costs the timeout; the write's outcome is unknown and later resolved."""
    blocker = PostgresKeyValueStore(postgres.url())
    with table._pool.connection() as connection:
        schema = connection.execute("SELECT current_schema()").fetchone()
    assert schema is not None
    with blocker._pool.connection() as connection, connection.transaction():
        connection.execute(f"LOCK TABLE {schema[0]}.tracelake_records IN SHARE MODE".encode())
        monkeypatch.setattr(
            storage_postgres, "POSTGRES_IDLE_S", HANG_S
        )  # earlier calls would have to be as quick
        monkeypatch.setattr(limits, "POSTGRES_REPLY_TIMEOUT_S", 0.3)
        outcome = table.set_if("p", "k", b"v", ABSENT)
        assert isinstance(outcome, Indeterminate)
        assert "no reply" in outcome.reason
    blocker.close()


def test_postgres_lock_that_cannot_be_had(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held for too long raises an error; nothing is written, and the store stays usable."""
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


def test_postgres_lock_that_is_given_back(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held beyond the statement timeout and then released costs the writer only time."""
    monkeypatch.setattr(limits, "POSTGRES_LOCK_TIMEOUT_S", 0.1)
    schema = postgres.new_schema()
    table, other = PostgresKeyValueStore(postgres.url(schema)), PostgresKeyValueStore(postgres.url(schema))
    pauses: list[float] = []
    with other._pool.connection() as connection:
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE tracelake_records IN SHARE MODE")

        def given_back(seconds: float) -> None:
            pauses.append(seconds)
            connection.execute("ROLLBACK")

        monkeypatch.setattr("tracelake.storage.ports.tries", lambda: tries(given_back))
        assert isinstance(table.set_if("p", "k", b"v", ABSENT), Done)
    assert len(pauses) == 1
    table.close()
    other.close()


def test_postgres_connections_that_are_all_taken(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all connections are in use, a caller waits for one, longer than the connect timeout."""
    store = PostgresKeyValueStore(postgres.url(postgres.new_schema()), connections_max=1)
    monkeypatch.setattr(limits, "STORE_CONNECT_TIMEOUT_S", 0.2)
    taken = store._pool.getconn()
    back = threading.Timer(0.5, store._pool.putconn, (taken,))
    back.start()
    assert store.get("p", "k") is None
    back.join()
    store.close()


def test_postgres_killed_in_the_middle_of_traffic() -> None:
    """PostgreSQL is killed and restarted twice under writers: every acknowledged write exists, each at most once."""
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
        thread.join(timeout=HANG_S)
    stored = {entry.key: entry.value for entry in store.scan("p")}
    store.close()
    server.close()
    assert troubles, "else no write was under way when the server died, and this test shows nothing"
    for writer, numbers in enumerate(acknowledged):
        for number in numbers:
            assert stored[f"{writer}/{number:06}"] == b"%d" % number


def wait_for_more(acknowledged: list[list[int]], count: int) -> None:
    """Wait until this number of further writes was acknowledged."""
    target = sum(map(len, acknowledged)) + count
    wait_until(
        lambda: sum(map(len, acknowledged)) >= target,
        "the writers make no progress",
        moving=lambda: sum(map(len, acknowledged)),
    )


def test_postgres_out_of_reach(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable database or an invalid URL is reported without the password."""
    monkeypatch.setattr(limits, "STORE_CONNECT_TIMEOUT_S", 1)
    with pytest.raises(StorageError, match="check that it runs") as raised:
        PostgresKeyValueStore(f"postgresql://me:secret@127.0.0.1:{postgres.port}/nowhere")
    assert "secret" not in str(raised.value)
    with pytest.raises(UsageError, match="cannot be read"):
        PostgresKeyValueStore("postgresql://h/d?no_such_option=1")


def test_postgres_table_of_another_release(postgres: PostgresServer) -> None:
    """A table with an unknown format is refused; a closed store raises an error that says so."""
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
def test_bucket_create_finds_out_whose_it_is(bucket: Cuttable, cut: Cut) -> None:
    """A create whose connection is cut returns True exactly if its own object exists."""
    store = BucketObjectStore(bucket.url())
    bucket.proxy.cut(cut, b"PUT /tests")
    assert store.create("a", b"same bytes") is True
    assert bucket.proxy.cuts == 1
    bucket.proxy.cut(cut, b"PUT /tests")
    assert store.create("a", b"same bytes") is False, "equal bytes are not the same write"


@pytest.mark.parametrize("cut", CUTS)
def test_bucket_replace_survives_cuts(bucket: Cuttable, cut: Cut) -> None:
    """A replacement whose connection is cut returns True, and one that comes too late returns False."""
    store = BucketObjectStore(bucket.url())
    store.put("a", b"1")
    bucket.proxy.cut(cut, b"PUT /tests")
    assert store.replace("a", b"2", b"1") is True
    assert bucket.proxy.cuts == 1
    assert store.replace("a", b"2", b"1") is False
    assert store.get("a") == b"2"


@pytest.mark.parametrize("cut", CUTS)
def test_bucket_records_survive_cuts(bucket: Cuttable, cut: Cut) -> None:
    """Writes, replacements and deletes of records are settled although each loses its connection once."""
    store = BucketKeyValueStore(bucket.url())
    bucket.proxy.cut(cut, b"PUT /tests")
    first = store.set_if("p", "k", b"1", ABSENT)
    assert isinstance(first, Done)
    bucket.proxy.cut(cut, b"PUT /tests")
    second = store.set_if("p", "k", b"2", first.version)
    assert isinstance(second, Done)
    bucket.proxy.cut(cut, b"PUT /tests")
    assert isinstance(store.set_if("p", "k", b"3", first.version), Conflict)
    bucket.proxy.cut(cut, b"GET /tests")
    found = store.get("p", "k")
    assert found is not None
    assert found.value == b"2"
    bucket.proxy.cut(cut, b"PUT /tests")
    assert isinstance(store.delete_if("p", "k", second.version), Done)
    assert store.get("p", "k") is None


def test_bucket_scan_passes_over_what_is_no_record(bucket: Cuttable) -> None:
    """A scan skips files that are not records: a server may list the temporary file of an upload."""
    url = bucket.url()
    records = BucketKeyValueStore(url)
    records.set("p", "k", b"v")
    path = record_path("p", "k")
    BucketObjectStore(url).put(f"{path.rpartition('/')[0]}/.k61.received.17", b"half")
    assert [entry.key for entry in records.scan("p")] == ["k"]


def test_bucket_write_that_was_replaced_before_it_was_read_back(bucket: Cuttable) -> None:
    """A write that was replaced before it could be read back is neither claimed nor denied."""
    url = bucket.url()

    def overtake(*_: object) -> Exception:
        BucketKeyValueStore(url).set("p", "k", b"theirs")
        error: Exception = GenericError("no reply")
        return error

    store = BucketKeyValueStore(url)
    first = store.set("p", "k", b"1")
    store._bucket.put_once = overtake  # type: ignore[method-assign,assignment]
    assert isinstance(store.set_if("p", "k", b"2", first), Indeterminate)
    with pytest.raises(IndeterminateError, match="'p' / 'k'"):
        store.set("p", "k", b"3")


def test_bucket_that_is_not_there(bucket: Cuttable) -> None:
    """An absent bucket is a storage error, also for reads, and never an absent object."""
    url = bucket.url().replace("://tests/", "://no-such-bucket/")
    store, records = BucketObjectStore(url), BucketKeyValueStore(url)
    for call in (
        lambda: store.put("a", b""),
        lambda: store.create("a", b""),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.head("a"),
        lambda: store.copy("a", "b"),
        lambda: store.delete("a"),
        lambda: list(store.list("")),
        lambda: records.get("p", "k"),
        lambda: records.set("p", "k", b""),
        lambda: records.scan("p"),
    ):
        with pytest.raises(StorageError, match="no-such-bucket"):
            call()


def test_bucket_out_of_reach(bucket: Cuttable, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable store raises an error after its retries and does not hang."""
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 2)
    for name, value in bucket.server.environment(1).items():
        monkeypatch.setenv(name, value)
    gone, records = BucketObjectStore(bucket.url()), BucketKeyValueStore(bucket.url())
    for call in (lambda: gone.get("a"), lambda: list(gone.list("")), lambda: records.set("p", "k", b"")):
        with pytest.raises(StorageError, match="does not answer"):
            call()
    with pytest.raises(IndeterminateError, match="may or may not"):
        gone.create("a", b"")


def test_bucket_that_takes_reads_only(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a bucket refuses a write, the error contains the store's message in readable words."""
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 2)
    store, records = BucketObjectStore(gcs.url()), BucketKeyValueStore(gcs.url())
    monkeypatch.setattr(gcs, "refusals", [503] * 10)
    with pytest.raises(IndeterminateError, match=r"may or may not have been created.*503"):
        store.create("a", b"")
    outcome = records.set_if("p", "k", b"", ABSENT)
    assert isinstance(outcome, Indeterminate)
    assert "503" in outcome.reason
    assert "Debug" not in outcome.reason


def test_gcs_limit_of_writes_is_no_doubt(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that GCS refuses for its rate limit is retried; otherwise it certainly did not happen."""
    store, records = BucketObjectStore(gcs.url()), BucketKeyValueStore(gcs.url())
    monkeypatch.setattr(gcs, "refusals", [429])
    assert store.create("a", b"") is True
    monkeypatch.setattr(gcs, "refusals", [429])
    assert isinstance(records.set_if("p", "k", b"", ABSENT), Done)
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 2)
    for call in (lambda: store.create("b", b""), lambda: records.set_if("p", "l", b"", ABSENT)):
        monkeypatch.setattr(gcs, "refusals", [429] * 2)
        with pytest.raises(StorageError, match="429") as raised:
            call()
        assert not isinstance(raised.value, IndeterminateError)


def test_no_put_on_a_condition_is_in_parts(bucket: Cuttable) -> None:
    """A large object is created in one request, because the condition would not hold for a multipart upload."""
    store = BucketObjectStore(bucket.url())
    data = b"x" * (12 * limits.MIB)
    assert store.create("large", data)
    assert not store.create("large", data)
    assert store.get("large") == data
    assert record_path("p", "k") == "p70/k6b"
