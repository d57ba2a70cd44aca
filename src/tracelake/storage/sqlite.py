"""Records in one SQLite file: durable on return, safe for threads, processes and kill -9.

Names are BLOBs of UTF-8, which SQLite compares byte by byte. Writers queue within the process before they request
SQLite's write lock, which is unfair among many. Every write takes that lock first (BEGIN IMMEDIATE), so it replaces
exactly the record that it reads.

**Meaning of a failure.** Before COMMIT, the write did not happen. If COMMIT fails because the disk is full, it did not
happen either, because the frame that completes the transaction in the log could not be written. If COMMIT fails for
another reason, such as a failing fsync, the outcome is unknown. SQLite then shows the old record, but the log may
contain complete frames, and recovery after a crash would restore the write. A later commit overwrites those frames.
Before it reads such a record again, this store therefore commits an empty transaction, so that the result of the read
stays true.

`ReadOnlyFile` reads a SQLite file in a directory that cannot be written: it is read-only, the process has no
permission, or the disk is full.

SQLite in WAL mode needs a shared-memory file beside the database, even to read. If it cannot be made:

1. `mode=ro` reads the database if that file is there already.
2. Without a write-ahead log, and if the directory is read-only, `immutable=1` reads the file as it is.
3. Otherwise a private copy of the database and its log in the temporary directory is read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tracelake import limits
from tracelake._errors import DamageError, IndeterminateError, StorageError, UsageError
from tracelake.storage import ports
from tracelake.storage.failures import FailureKind, of_sqlite_commit
from tracelake.storage.local import make_directory
from tracelake.storage.ports import VERIFY_ALIKE_MAX, DatabaseCheck, Row, check_rows, sealed_version

WRITE_ERRORS: Final = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
)
"""Primary result codes of a database whose directory is unwritable."""
_MEMORY: Final = "/dev/shm"  # noqa: S108  a private directory in it, if the disk of the temporary directory is full


class ReadOnlyFile:
    """An address at which a SQLite file can be read, and why it cannot be written. `close` deletes a private copy."""

    def __init__(self, path: Path) -> None:
        """Find the address. Raises sqlite3.Error or OSError if the file cannot be read either."""
        is_writable = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
        self.reason = "its disk is full or fails" if is_writable else "its directory or file is read-only"
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        log = path.with_name(f"{path.name}-wal")
        has_log = log.exists() and log.stat().st_size > 0
        self.address = f"{path.as_uri()}?mode=ro"
        if self._can_read():
            return
        if not has_log and not is_writable:
            self.address += "&immutable=1"
        else:
            self.address = f"{self._copied(path, log).as_uri()}?mode=ro"
        with closing(sqlite3.connect(self.address, uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def close(self) -> None:
        """Delete the private copy, if there is one. Calling it twice is allowed."""
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _can_read(self) -> bool:
        try:
            with closing(sqlite3.connect(self.address, uri=True)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) not in WRITE_ERRORS:
                raise
            return False
        return True

    def _copied(self, path: Path, log: Path) -> Path:
        places = [place for place in (tempfile.gettempdir(), _MEMORY) if Path(place).is_dir()]
        for number, place in enumerate(places):
            self._copy = tempfile.TemporaryDirectory(prefix="tracelake-read-only-", dir=place)
            copy = Path(self._copy.name) / path.name
            try:
                shutil.copyfile(path, copy)
                if log.exists():
                    shutil.copyfile(log, copy.with_name(log.name))
            except OSError:
                self.close()
                if number + 1 == len(places):
                    raise
            else:
                return copy
        raise FileNotFoundError("no temporary directory")


SQLITE_LOOK_S: Final = 2.0
"""Time to wait for a SQLite file that looks damaged, because another process may be creating it."""


class Calls:
    """Counts the calls of one store that are in progress. A call inside another one of the same thread counts as part
    of that one."""

    def __init__(self, what: str) -> None:
        """Set the store's name, for errors."""
        self._what = what
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._over = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a call inside the `with` block. Raises UsageError if the store is closed."""
        thread = threading.current_thread()
        with self._changed:
            if self._over and thread not in self._threads:
                raise UsageError(f"the store {self._what} is closed; open it again")
            self._threads.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(thread)
                self._changed.notify_all()

    def end(self, timeout_s: float) -> set[threading.Thread]:
        """Refuse new calls, wait for running ones, and return the threads of those that did not end in time."""
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._threads, timeout_s)
            return set(self._threads)


_SCHEMA_VERSION = 1
_APPLICATION = 0x544C4B56
"""Application id in SQLite's file header: TLKV."""
_MAGIC = b"SQLite format 3\0"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS records (partition BLOB NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,"
    " version TEXT NOT NULL, PRIMARY KEY (partition, key))"
)
_ALL = "SELECT partition, key, value, version FROM records"
_LOAD = "INSERT INTO records (partition, key, value, version) VALUES (?, ?, ?, ?)"
_GET = "SELECT key, value, version FROM records WHERE partition = ? AND key = ?"
_COLUMNS = "SELECT key, value, version FROM records WHERE partition = ?"
_KEYS = "SELECT key FROM records WHERE partition = ?"
_PUT = "INSERT OR REPLACE INTO records (partition, key, value, version) VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM records WHERE partition = ? AND key = ?"
_ERASE = "DELETE FROM records WHERE partition = ? AND key >= ? AND key < ?"
_SYNCED = "PRAGMA synchronous = FULL"
# Changes nothing, but writes a frame of the log.
_TOUCH = f"PRAGMA user_version = {_SCHEMA_VERSION}"


class SqliteKeyValueStore:
    """A `KeyValueStore` in one file on a local disk.

    Every method raises StorageError if the file is not readable or writable, or a lock is not available within
    `busy_timeout_s`. In that case nothing was written, unless the error is IndeterminateError. Raises DamageError if
    the file is no intact database.
    """

    def __init__(self, path: str | Path, busy_timeout_s: float = limits.SQLITE_BUSY_TIMEOUT_S) -> None:
        """Open the file `path`, creating it and its directory if absent.

        Raises UsageError if a newer release wrote it, or if it is another application's database, which stays
        unchanged.
        """
        self._path = Path(path).absolute()
        self._busy_timeout_s = busy_timeout_s
        self._queue = threading.Lock()
        self._connections: dict[threading.Thread, sqlite3.Connection] = {}
        self._connections_lock = threading.Lock()
        self._calls = Calls(str(self._path))
        self._doubtful: set[tuple[bytes, bytes]] = set()
        self._read_only: ReadOnlyFile | None = None
        try:
            make_directory(self._path.parent)
        except OSError as error:
            raise StorageError(
                f"cannot make {self._path.parent}: {error.strerror}; check the path"
            ) from error
        try:
            with self._failures("open"):
                self._refuse_others()
                try:
                    self._set_up()
                except sqlite3.OperationalError as error:
                    if _code(error) not in WRITE_ERRORS or not self._open_read_only():
                        raise
        except BaseException:
            self.close()
            raise

    def get(self, partition: str, key: str) -> ports.Entry | None:
        """Return the record, or None if it is absent."""
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        if where in self._doubtful:
            self._end_doubt()
        with self._failures("read"):
            return _read(self._connection(), where)

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[ports.Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        query = ports.in_range(_COLUMNS, "?", partition, start, stop, limit)
        with self._failures("read"):
            return [_entry(row) for row in self._connection().execute(*query).fetchall()]

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records."""
        query = ports.in_range(_KEYS, "?", partition, start, stop, limit)
        with self._failures("read"):
            return [_key(row[0]) for row in self._connection().execute(*query).fetchall()]

    def set(self, partition: str, key: str, value: bytes) -> ports.Version:
        """Write the record unconditionally. Raises IndeterminateError if the commit itself failed."""
        ports.check_value(key, value)
        outcome = self._write(partition, key, value, None)
        if isinstance(outcome, ports.Indeterminate):
            raise IndeterminateError(
                f"the write of {partition!r} / {key!r} may or may not have happened: {outcome.reason}; "
                "write it again"
            )
        assert isinstance(outcome, ports.Done), "nothing was expected, so nothing can conflict"
        return outcome.version

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, in one transaction. Raises IndeterminateError if the commit itself failed."""
        rows: dict[tuple[bytes, bytes], bytes] = {}
        for key, value in records.items():
            ports.check_value(key, value)
            rows[ports.encode_key("partition", partition), ports.encode_key("key", key)] = value
        if not self._doubtful.isdisjoint(rows):
            self._end_doubt()
        with self._failures("write"), self._transaction() as connection:
            sealed = [(*where, value, sealed_version(*where, value)) for where, value in rows.items()]
            connection.executemany(_PUT, sealed)
            try:
                self._commit(connection)
            except sqlite3.Error as error:
                if of_sqlite_commit(error) is not FailureKind.UNKNOWN:
                    raise
                self._doubtful |= rows.keys()
                raise IndeterminateError(
                    f"the write of {len(rows)} records of {partition!r} may or may not have happened: {error}; "
                    "write them again"
                ) from error

    def set_if(self, partition: str, key: str, value: bytes, expected: ports.Expected) -> ports.Outcome:
        """Write the record if its version is `expected`."""
        ports.check_value(key, value)
        return self._write(partition, key, value, expected)

    def delete_if(self, partition: str, key: str, expected: ports.Version) -> ports.Outcome:
        """Delete the record if its version is `expected`. Done then carries a version of the deletion itself."""
        return self._write(partition, key, None, expected)

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Write a note, replacing an existing one, without syncing it to disk."""
        ports.check_value(key, value)
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        with self._failures("write"), self._unsynced() as connection:
            connection.execute(_PUT, (*where, value, sealed_version(*where, value)))

    def notes(self, partition: str, beginning: str = "") -> list[ports.Entry]:
        """Return the notes of a partition whose key has this prefix, in key order."""
        return self.scan(partition, beginning, ports.end_of(beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes in one transaction, if they exist."""
        where = [(ports.encode_key("partition", partition), ports.encode_key("key", key)) for key in keys]
        with self._failures("write"), self._unsynced() as connection:
            connection.executemany(_DELETE, where)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix, in one transaction, as durable as a note."""
        where = (ports.encode_key("partition", partition), *ports.encode_beginning(beginning))
        with self._failures("write"), self._unsynced() as connection:
            connection.execute(_ERASE, where)

    @contextmanager
    def snapshot(self) -> Iterator[Iterator[Row]]:
        """Return all rows as of the call, to read inside the `with` block."""
        with self._failures("copy"), closing(self._connect()) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the snapshot begins here
            yield connection.execute(_ALL)

    def load(self, rows: Iterable[Row]) -> None:
        """Insert rows that were read from another store, in one transaction."""
        with self._failures("write"), self._transaction() as connection:
            connection.executemany(_LOAD, rows)
            self._commit(connection)

    def check_database(self, scope: str) -> DatabaseCheck:
        """Check all pages and indexes, and compare each row with its checksum.

        Rows outside of `scope` are checked too, because a row inside may have a damaged partition.
        """
        name = self._path.name
        # A new connection, because the others may have read the damaged pages before they were damaged.
        with self._failures("check"), closing(self._connect()) as connection:
            connection.text_factory = bytes
            problems = integrity_problems(connection)
            if problems:
                return DatabaseCheck(tuple((name, problem) for problem in problems))
            return check_rows(connection.execute(_ALL), scope, name)

    def close(self) -> None:
        """Close all connections after the running calls have ended. Calling it twice is allowed."""
        # Closing a connection that is in use would crash the process.
        busy = self._calls.end(self._busy_timeout_s)
        with self._connections_lock:
            for thread in [each for each in self._connections if each not in busy]:
                self._connections.pop(thread).close()
        if self._read_only is not None:
            self._read_only.close()

    def _write(
        self, partition: str, key: str, value: bytes | None, expected: ports.Expected | None
    ) -> ports.Outcome:
        """Write the value, or delete if it is None, if the version is `expected`; unconditionally if `expected` is
        None."""
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        version = ports.new_version() if value is None else sealed_version(*where, value)
        if where in self._doubtful:
            self._end_doubt()
        if expected is not None:
            # A write that has already lost needs no lock, because no version ever returns.
            with self._failures("read"):
                current = _read(self._connection(), where)
            if not ports.is_at(current, expected):
                return ports.Conflict(current)
        with self._failures("write"), self._transaction() as connection:
            current = _read(connection, where)
            if expected is not None and not ports.is_at(current, expected):
                return ports.Conflict(current)
            if value is None:
                connection.execute(_DELETE, where)
            else:
                connection.execute(_PUT, (*where, value, version))
            try:
                self._commit(connection)
            except sqlite3.Error as error:
                if of_sqlite_commit(error) is not FailureKind.UNKNOWN:
                    raise
                self._doubtful.add(where)
                return ports.Indeterminate(version, f"commit to {self._path} failed: {error}")
        return ports.Done(version)

    def _commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")
        self._doubtful.clear()

    def _end_doubt(self) -> None:
        """Commit a transaction that changes nothing. It overwrites the log frames of a transaction whose COMMIT
        failed."""
        with self._failures("settle an earlier write"), self._transaction() as connection:
            connection.execute(_TOUCH)
            self._commit(connection)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Acquire the queue and SQLite's write lock for the `with` block; roll back unless the block commits."""
        if self._read_only is not None:
            failed = StorageError(
                f"cannot write {self._path}: {self._read_only.reason}, so it was opened to read; "
                "make it writable or free some space, then try again"
            )
            failed.is_unwritable = True
            raise failed
        connection = self._connection()
        if not self._queue.acquire(timeout=self._busy_timeout_s):
            raise StorageError(
                f"cannot write {self._path}: other threads kept it busy for "
                f"{self._busy_timeout_s} s; try again later"
            )
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
        finally:
            try:
                if connection.in_transaction:
                    self._roll_back(connection)
            finally:
                self._queue.release()

    @contextmanager
    def _unsynced(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that is not synced: it becomes durable with the next synced one, in order."""
        connection = self._connection()
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction() as connection:
                yield connection
                # Resolves no doubtful write, because that needs a synced commit.
                connection.execute("COMMIT")
        finally:
            self._connection().execute(_SYNCED)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing certainly ends the transaction and its lock; the next call opens a new connection.
            with self._connections_lock:
                self._connections.pop(threading.current_thread(), None)
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection, opening it if necessary; close those of ended threads."""
        thread = threading.current_thread()
        with self._connections_lock:
            connection = self._connections.get(thread)
            if connection is None:
                for ended in [other for other in self._connections if not other.is_alive()]:
                    self._connections.pop(ended).close()
                connection = self._connections[thread] = self._connect()
            return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path if self._read_only is None else self._read_only.address,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            uri=self._read_only is not None,
        )
        try:
            connection.execute(_SYNCED)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_others(self) -> None:
        """Raise UsageError if the file belongs to another application. The file is not changed, locked or opened for
        writing."""
        deadline = time.monotonic() + SQLITE_LOOK_S
        while True:
            try:
                return self._look_whose_it_is()
            except sqlite3.DatabaseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(limits.SQLITE_POLL_S)

    def _header(self) -> bytes:
        """Return the first bytes of the file; none if it does not exist."""
        try:
            with self._path.open("rb") as file:
                return file.read(100)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}; check the path") from error

    def _look_whose_it_is(self) -> None:
        header = self._header()
        if not header:
            return  # SQLite creates an empty file first, so another process may be about to create the database.
        if not header.startswith(_MAGIC) or len(header) < 100:
            raise DamageError(f"{self._path} is not an intact database; restore it from a backup")
        version, application = int.from_bytes(header[60:64]), int.from_bytes(header[68:72])
        if application == _APPLICATION and version not in (0, _SCHEMA_VERSION):
            raise UsageError(
                f"{self._path} has format {version}, this release reads {_SCHEMA_VERSION}; "
                "use the release that wrote it, or a newer one"
            )
        if application == version == 0:
            # Our new file looks like this while its content is still in the log; it has no tables then.
            address = f"{self._path.as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(address, uri=True)) as connection:
                application = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application and self._header() != header:
                self._look_whose_it_is()  # another process has written our tables since
                return
        if application not in (0, _APPLICATION) or (application == 0 and version != 0):
            raise self._foreign()

    def _foreign(self) -> UsageError:
        return UsageError(
            f"{self._path} is the database of another program and was not changed; name another file for "
            "the metadata"
        )

    def _set_up(self) -> None:
        """Switch the file to a write-ahead log and create the table, concurrently with other processes."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                mode = self._connection().execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait for other processes that switch at the same time, so wait here.
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(limits.SQLITE_POLL_S)
        if mode != "wal":
            raise StorageError(f"{self._path} does not support a write-ahead log; move it to a local disk")
        if self._schema_version() == 0:
            with self._transaction() as connection:
                if self._schema_version() == 0:
                    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                    if tables or self._application():
                        raise self._foreign()
                    connection.execute(_CREATE)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(_TOUCH)
                self._commit(connection)
        if self._application() != _APPLICATION:
            raise self._foreign()

    def _open_read_only(self) -> bool:
        """Open the file read-only, because it cannot be written. Return False if it is not readable, or not set up."""
        try:
            self._read_only = ReadOnlyFile(self._path)
        except (sqlite3.Error, OSError):
            return False
        with self._connections_lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()
        return self._application() == _APPLICATION and self._schema_version() == _SCHEMA_VERSION

    def _application(self) -> int:
        return int(self._connection().execute("PRAGMA application_id").fetchone()[0])

    def _schema_version(self) -> int:
        return int(self._connection().execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            with self._calls.one():
                yield
        except UnicodeDecodeError as error:
            raise DamageError(
                f"{self._path} is not an intact database ({error}); restore it from a backup"
            ) from error
        except sqlite3.Error as error:
            if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _is_undecodable(error):
                raise DamageError(
                    f"{self._path} is not an intact database ({error}); restore it from a backup"
                ) from error
            failed = StorageError(f"cannot {doing} {self._path}: {error}; {_way_out(error)}")
            failed.is_unwritable = _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)
            raise failed from error


def _read(connection: sqlite3.Connection, where: tuple[bytes, bytes]) -> ports.Entry | None:
    row = connection.execute(_GET, where).fetchone()
    return None if row is None else _entry(row)


def _key(stored: bytes) -> str:
    if not isinstance(stored, bytes):
        raise DamageError("a row of the metadata has a key of another type; restore it from a backup")
    return stored.decode()


def integrity_problems(connection: sqlite3.Connection) -> list[str]:
    """Return damaged pages, rows out of order, and differences between tables and their indexes."""
    try:
        rows = connection.execute(f"PRAGMA integrity_check({VERIFY_ALIKE_MAX})").fetchall()
    except sqlite3.DatabaseError as error:
        if _code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise
        return [str(error)]
    texts = (row[0].decode(errors="replace") if isinstance(row[0], bytes) else str(row[0]) for row in rows)
    return [text for text in texts if text != "ok"]


def _entry(row: tuple[bytes, bytes, str]) -> ports.Entry:
    key, value, version = row
    # A flipped bit in a row's header changes the type of a value.
    if not (isinstance(key, bytes) and isinstance(value, bytes) and isinstance(version, str)):
        raise DamageError("a row of the metadata has a value of another type; restore it from a backup")
    return ports.Entry(key.decode(), value, version)


def _is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether Python could not decode a text of the file; SQLite has no code for that."""
    return not hasattr(error, "sqlite_errorcode") and "decode" in str(error)


def _way_out(error: sqlite3.Error) -> str:
    if _code(error) == sqlite3.SQLITE_READONLY:
        return "give this user write access to it and its directory: readers write there too"
    return "check the disk, its free space and other processes with the file open, then try again"


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for an error that Python's module raised."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
