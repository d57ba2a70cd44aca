"""The SQLite store when locks, commits and files fail."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracelake._errors import DamageError, IndeterminateError, StorageError, UsageError
from tracelake.storage import ABSENT, Conflict, Done, Indeterminate, SqliteKeyValueStore, settle, sqlite


class Faulty(SqliteKeyValueStore):
    """A store whose next COMMIT fails before or after it happens."""

    fail: str | None = None
    code = sqlite3.SQLITE_IOERR_FSYNC
    commits = 0

    def _commit(self, connection: sqlite3.Connection) -> None:
        fail, self.fail = self.fail, None
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self.code
        if fail == "before":
            raise error
        super()._commit(connection)
        self.commits += 1
        if fail == "after":
            raise error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Faulty]:
    """Yield a store on a new file whose commits can be made to fail."""
    opened = Faulty(tmp_path / "records.db", busy_timeout_s=0.2)
    opened.commits = 0
    yield opened
    opened.close()


@pytest.mark.parametrize("fail", ["before", "after"])
def test_failed_commit_is_indeterminate_and_settles(store: Faulty, fail: str) -> None:
    """A COMMIT that fails may have happened or not; reading the record back decides."""
    store.fail = fail
    outcome = store.set_if("p", "k", b"v", ABSENT)
    assert isinstance(outcome, Indeterminate)
    settled = settle(store, "p", "k", outcome, is_mine=lambda _: False)
    assert settled == (Done(outcome.version) if fail == "after" else Conflict(None))


@pytest.mark.parametrize("fail", ["before", "after"])
def test_failed_commit_of_many_is_said_and_settled(store: Faulty, fail: str) -> None:
    """If the COMMIT of many records fails, all outcomes are unknown, and writing the records again succeeds."""
    store.set("p", "a", b"before")
    many = {"a": b"1", "b": b"2"}
    store.fail = fail
    with pytest.raises(IndeterminateError, match="2 records of 'p' may or may not"):
        store.set_all("p", many)
    log = store._path.with_name("records.db-wal")
    before = log.read_bytes()
    there = {entry.key: entry.value for entry in (store.get("p", "a"), store.get("p", "b")) if entry}
    assert log.read_bytes() != before, "they are settled before they are read"
    assert there == (many if fail == "after" else {"a": b"before"})
    store.set_all("p", many)
    assert {entry.key: entry.value for entry in store.scan("p")} == many
    store.code = sqlite3.SQLITE_FULL
    store.fail = "before"
    with pytest.raises(StorageError):
        store.set_all("p", {"a": b"3"})
    store.code = sqlite3.SQLITE_IOERR_FSYNC
    assert {entry.key: entry.value for entry in store.scan("p")} == many


@pytest.mark.parametrize("fail", ["before", "after"])
def test_failed_commit_of_a_delete_settles(store: Faulty, fail: str) -> None:
    """A delete whose COMMIT failed is settled by checking whether the record still exists."""
    version = store.set("p", "k", b"v")
    store.fail = fail
    outcome = store.delete_if("p", "k", version)
    assert isinstance(outcome, Indeterminate)
    settled = settle(store, "p", "k", outcome, is_mine=lambda _: False)
    assert settled == Conflict(None if fail == "after" else store.get("p", "k"))
    assert (store.get("p", "k") is None) == (fail == "after")


def test_doubtful_record_is_read_after_another_commit(store: Faulty) -> None:
    """A commit overwrites the remains of a failed COMMIT once, before the record in doubt is read."""
    store.fail = "before"
    store.set_if("p", "k", b"v", ABSENT)
    log = store._path.with_name("records.db-wal")
    before = log.read_bytes()
    assert store.get("p", "other") is None
    assert log.read_bytes() == before, "other records are not in doubt"
    assert store.get("p", "k") is None
    assert log.read_bytes() != before
    assert store.get("p", "k") is None
    assert store.commits == 1


def test_remains_of_a_failed_commit_do_not_come_back(store: Faulty, tmp_path: Path) -> None:
    """A value read after a failed COMMIT stays true after a crash, even if the log has whole frames of it."""
    version = store.set("p", "k", b"old")
    remains = frames_of_a_write(tmp_path, b"new")
    store.fail = "before"
    assert isinstance(store.set_if("p", "k", b"new", version), Indeterminate)
    with (tmp_path / "records.db-wal").open("ab") as log:
        log.write(remains)
    assert value_after_crash(tmp_path) == b"new", (
        "else the remains are no danger, and this test shows nothing"
    )
    found = store.get("p", "k")
    assert found is not None
    assert found.value == b"old"
    assert value_after_crash(tmp_path) == b"old"


def copy_of_files(directory: Path, name: str) -> Path:
    """Copy the database and its log, as a crash leaves them, and return the copy of the database."""
    copy = directory / name
    copy.mkdir()
    for file in ("records.db", "records.db-wal"):
        shutil.copy(directory / file, copy / file)
    return copy / "records.db"


def frames_of_a_write(directory: Path, value: bytes) -> bytes:
    """Return the bytes that one more write would append to the log, as a COMMIT that fails in its fsync leaves
    them."""
    path = copy_of_files(directory, "ahead")
    ahead = SqliteKeyValueStore(path)
    ahead.set("p", "k", value)
    log = path.with_name("records.db-wal").read_bytes()
    ahead.close()
    before = (directory / "records.db-wal").read_bytes()
    assert log.startswith(before)
    return log[len(before) :]


def value_after_crash(directory: Path) -> bytes:
    """Return the value of the record that recovery would find if all processes died now."""
    recovered = SqliteKeyValueStore(copy_of_files(directory, "crashed"))
    found = recovered.get("p", "k")
    recovered.close()
    shutil.rmtree(directory / "crashed")
    assert found is not None
    return found.value


def test_doubtful_record_is_not_read_while_commits_fail(store: Faulty) -> None:
    """While no commit succeeds, a record in doubt cannot be read, and other records can."""
    store.set("p", "other", b"v")
    store.fail = "before"
    store.set_if("p", "k", b"v", ABSENT)
    store.fail = "before"
    with pytest.raises(StorageError, match="settle an earlier write"):
        store.get("p", "k")
    assert store.get("p", "other") is not None
    assert isinstance(store.set_if("p", "k", b"again", ABSENT), Done)


def test_notes_are_not_synced_and_settle_no_doubt(store: Faulty) -> None:
    """A note takes no commit that waits for the disk, and does not change the connection's durability."""
    store.note("notes", "k", b"v")
    store.forget("notes", ["k"])
    assert store.commits == 0
    assert store._connection().execute("PRAGMA synchronous").fetchone() == (2,)
    store.fail = "before"
    outcome = store.set_if("p", "k", b"v", ABSENT)
    assert isinstance(outcome, Indeterminate)
    store.note("notes", "k", b"v")
    assert store.commits == 0
    store.get("p", "k")
    assert store.commits == 1, "the doubt was settled by a commit that is synced"


def test_failed_commit_of_set_raises(store: Faulty) -> None:
    """A plain write whose COMMIT failed raises IndeterminateError; it can be written again."""
    store.fail = "before"
    with pytest.raises(IndeterminateError, match="'p' / 'k'"):
        store.set("p", "k", b"v")
    store.set("p", "k", b"v")


def test_full_disk_in_commit_is_certain(store: Faulty) -> None:
    """A COMMIT that fails for lack of space did not happen, so it raises a plain StorageError."""
    store.code, store.fail = sqlite3.SQLITE_FULL, "before"
    with pytest.raises(StorageError) as raised:
        store.set_if("p", "k", b"v", ABSENT)
    assert not isinstance(raised.value, IndeterminateError)
    assert store.get("p", "k") is None
    store.set("p", "k", b"v")


def test_full_database_is_a_storage_error(store: Faulty) -> None:
    """SQLite's own 'database or disk is full' leaves the old record, and the store usable."""
    version = store.set("p", "k", b"old")
    store._connection().execute("PRAGMA max_page_count = 20")
    with pytest.raises(StorageError, match="full"):
        store.set_if("p", "k", b"x" * 1_000_000, version)
    found = store.get("p", "k")
    assert found is not None
    assert found.version == version
    assert isinstance(store.set_if("p", "k", b"new", version), Done)


def test_lock_that_cannot_be_had(store: Faulty) -> None:
    """While another connection holds the write lock, writes time out without any effect; reads continue."""
    version = store.set("p", "k", b"v")
    other = sqlite3.connect(store._path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert isinstance(store.set_if("p", "k", b"w", ABSENT), Conflict), "who has lost anyway waits for no lock"
    assert isinstance(store.delete_if("p", "k", "another"), Conflict)
    for write in (lambda: store.set("p", "k", b"w"), lambda: store.set_if("p", "k", b"w", version)):
        with pytest.raises(StorageError, match="locked") as raised:
            write()
        assert not isinstance(raised.value, IndeterminateError)
    found = store.get("p", "k")
    assert found is not None
    assert found.version == version
    other.execute("ROLLBACK")
    other.close()
    store.set("p", "k", b"w")


def test_queue_that_does_not_move(store: Faulty) -> None:
    """A thread that waits too long behind others of its process gets a StorageError."""
    with store._queue, pytest.raises(StorageError, match="other threads"):
        store.set("p", "k", b"v")
    store.set("p", "k", b"v")


def test_interrupted_write_gives_the_lock_back(store: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the middle of a write rolls it back and frees both locks."""

    def interrupt(_: sqlite3.Connection) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "_commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.set("p", "k", b"v")
    assert store.get("p", "k") is None
    store.set("p", "k", b"v")


def test_connections_of_ended_threads_are_closed(store: Faulty) -> None:
    """A store that many short threads use keeps no connection for each of them."""
    for _ in range(20):
        thread = threading.Thread(target=store.get, args=("p", "k"))
        thread.start()
        thread.join()
    assert len(store._connections) <= 2


def test_settings_of_the_file(store: Faulty) -> None:
    """Every connection writes ahead and syncs each commit."""
    connection = store._connection()
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_closed_store_says_so(store: Faulty) -> None:
    """A store may be closed twice; using it afterwards raises an error that names the reason."""
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.get("p", "k")


def closed_in_the_middle(store: Faulty) -> None:
    """If a store is closed while a thread reads, that thread's connection is closed at the latest when it ends."""
    reads, goes_on = threading.Event(), threading.Event()
    said: list[object] = []

    def read() -> None:
        with store._failures("read"):
            reads.set()
            goes_on.wait()
            with contextlib.suppress(UsageError):
                said.append(store.get("p", "k"))

    threads = [threading.Thread(target=each) for each in (read, store.close)]
    threads[0].start()
    reads.wait()
    threads[1].start()
    try:
        while not store._calls._over:
            time.sleep(0.001)
        with pytest.raises(UsageError, match="closed"):
            store.get("p", "k")
    finally:
        goes_on.set()
        for thread in threads:
            thread.join()
    assert (said, store._connections) == ([None], {})


def test_who_closes_waits_for_calls_under_way(tmp_path: Path) -> None:
    """Closing waits for running calls, because SQLite ends the process if a connection in use is closed."""
    closed_in_the_middle(Faulty(tmp_path / "records.db"))


def test_a_call_that_does_not_end_keeps_its_connection(store: Faulty) -> None:
    """Closing waits no longer than for a lock, and leaves connections in use to their threads."""
    store._connection()
    with store._calls.one():
        other = threading.Thread(target=store.close)
        other.start()
        other.join(30)
        assert store._connection().execute("SELECT 1").fetchone() == (1,)


def test_file_that_is_no_database(tmp_path: Path) -> None:
    """A file with other content is damage, and is left as it was."""
    path = tmp_path / "records.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(DamageError, match="not an intact database"):
        SqliteKeyValueStore(path)
    assert path.read_bytes() == b"this is no database" * 100


def test_a_database_that_is_made_this_moment_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lockless read may see half of a peer's write; a second read distinguishes it from damage."""
    path = tmp_path / "records.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # as a peer leaves it before its first commit
        connection.execute("VACUUM")
    begun = path.read_bytes()
    torn = begun[:100] + b"\xff" * (len(begun) - 100)
    path.write_bytes(torn)
    monkeypatch.setattr(sqlite, "SQLITE_LOOK_S", 0.0)
    with pytest.raises(DamageError, match="not an intact database"):
        SqliteKeyValueStore(path)
    monkeypatch.setattr(sqlite, "SQLITE_LOOK_S", 60.0)
    looks = list[float]()

    def ends(seconds: float) -> None:
        looks.append(seconds)
        path.write_bytes(begun)

    monkeypatch.setattr(sqlite, "time", SimpleNamespace(sleep=ends, monotonic=time.monotonic))
    store = SqliteKeyValueStore(path)
    assert len(looks) == 1
    store.set("p", "k", b"v")
    store.close()


def test_file_of_a_newer_release(tmp_path: Path) -> None:
    """A file with a format that this release does not know is refused, and left as it was."""
    path = tmp_path / "records.db"
    SqliteKeyValueStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="format 2"):
        SqliteKeyValueStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE songs (name TEXT)",
        "CREATE TABLE records (partition BLOB, key BLOB, value BLOB, version TEXT)",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7",
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_the_database_of_something_else(tmp_path: Path, mode: str, made: str, closed: bool) -> None:
    """The database of another program is refused, in use or not, and no byte of it changes."""
    path = tmp_path / "songs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute(made)
        if closed:
            connection.close()  # the log is empty then
        before = {
            file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")
        }
        with pytest.raises(UsageError, match="the database of another program and was not changed"):
            SqliteKeyValueStore(path)
        after = {
            file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")
        }
        assert after == before


def test_an_empty_database_is_taken_and_a_store_in_use_too(tmp_path: Path) -> None:
    """An empty file becomes a store; a second process can open it while all its data is still in the log."""
    path = tmp_path / "records.db"
    path.write_bytes(b"")
    one = SqliteKeyValueStore(path)
    one.set("p", "k", b"v")
    two = SqliteKeyValueStore(path)
    entry = two.get("p", "k")
    assert entry is not None
    assert entry.value == b"v"
    one.close()
    two.close()


def test_path_that_cannot_be_made(tmp_path: Path) -> None:
    """A directory that cannot be made, or a file that is a directory, is a StorageError."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "records.db", tmp_path):
        with pytest.raises(StorageError, match=str(tmp_path)):
            SqliteKeyValueStore(path)


def test_a_file_that_may_not_be_written_names_the_right(tmp_path: Path) -> None:
    """The error for a read-only file names the missing permission and does not blame the disk."""

    file = tmp_path / "metadata.db"

    def refused() -> sqlite3.OperationalError:
        read_only = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        with closing(read_only), pytest.raises(sqlite3.OperationalError) as error:
            read_only.execute("DELETE FROM records")
        return error.value

    def check() -> None:
        with closing(SqliteKeyValueStore(file)) as store:
            store.set("p", "k", b"v")
            with pytest.raises(StorageError, match="write access"), store._failures("write"):
                raise refused()
            with pytest.raises(StorageError, match="free space"), store._failures("write"):
                raise sqlite3.OperationalError("disk I/O error")

    check()
