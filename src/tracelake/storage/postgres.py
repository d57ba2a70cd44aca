"""Records in a PostgreSQL table: for many machines, over connections that may break at any moment.

Names are `bytea`, which PostgreSQL compares byte by byte whatever the collation of the database. Every write is one
statement that commits by itself, so a lost connection leaves one question: did that statement happen? The write id in
the record answers it (`settle`). A write whose connection was lost can still succeed until the server's statement
timeout is over. Connections without a reply are closed, because a machine that vanished would block its client
forever.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from tracelake import limits
from tracelake._errors import IndeterminateError, StorageError, UsageError
from tracelake.batching import batches
from tracelake.limits.input import MIB
from tracelake.storage import ports
from tracelake.storage.failures import FailureKind, of_postgres
from tracelake.storage.ports import DatabaseCheck, check_rows, sealed_version

POSTGRES_STATEMENT_BYTES: Final = 16 * MIB
"""Records that one statement writes; a single larger one is allowed."""
POSTGRES_IDLE_S: Final = 1.0
"""Idle time of a connection."""
_POSTGRES_POLL_S: Final = 0.1
"""Interval at which the wait for a reply checks the clock."""

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class AnsweredConnection(psycopg.Connection[Row]):
    """A connection that closes if a reply makes no progress, for example because the server's machine vanished."""

    answered_s: float = -math.inf
    """Time of the server's last reply, by the monotonic clock."""
    is_patient: bool = False
    """Whether to wait for a reply without a timeout."""

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = _POSTGRES_POLL_S, timeout: float | None = None
    ) -> T:
        """Run one exchange with the server. Raises OperationalError after POSTGRES_REPLY_TIMEOUT_S of silence."""
        reply = super().wait(gen if self.is_patient else self._in_time(gen), interval, timeout)
        self.answered_s = time.monotonic()
        return reply

    def _in_time(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard_s = time.monotonic()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready:  # A long reply over a slow line arrives piece by piece.
                    heard_s = time.monotonic()
                elif time.monotonic() > heard_s + limits.POSTGRES_REPLY_TIMEOUT_S:
                    # The reply may still arrive, so the connection must not be reused.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no reply in {limits.POSTGRES_REPLY_TIMEOUT_S} s")
                state = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value


# Otherwise the pool's messages about failed attempts would appear on standard error if logging is not
# configured.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


# Two processes that create a table at once can collide in the catalog; the lock serializes them.
_SET_UP = (
    "SELECT pg_advisory_xact_lock(7424952211)",
    "CREATE TABLE IF NOT EXISTS tracelake_records (partition bytea NOT NULL, key bytea NOT NULL,"
    " value bytea NOT NULL, version text NOT NULL, PRIMARY KEY (partition, key))",
    "COMMENT ON TABLE tracelake_records IS 'format 1'",
)
_FORMAT = "SELECT obj_description(to_regclass('tracelake_records'), 'pg_class')"
_COLUMNS = "SELECT key, value, version FROM tracelake_records WHERE partition = %s"
_ALL = "SELECT partition, key, value, version FROM tracelake_records"
_PAGE = (
    "SELECT partition, key, value, version FROM tracelake_records"
    " WHERE (partition, key) > (%s, %s) AND partition < %s ORDER BY partition, key LIMIT %s"
)
_CHECK_INDEX = "SELECT bt_index_check('tracelake_records_pkey'::regclass, true)"
_KEYS = "SELECT key FROM tracelake_records WHERE partition = %s"
_GET = f"{_COLUMNS} AND key = %s"
_INSERT_INTO = "INSERT INTO tracelake_records (partition, key, value, version)"
_INSERT = f"{_INSERT_INTO} VALUES (%s, %s, %s, %s)"
_OR_REPLACE = (
    " ON CONFLICT (partition, key)"
    " DO UPDATE SET value = excluded.value, version = excluded.version RETURNING version"
)
_PUT = f"{_INSERT}{_OR_REPLACE}"
# The reply is one row, because a long reply would begin to arrive before the commit.
_PUT_ALL = (
    f"WITH written AS ({_INSERT_INTO} SELECT %s, * FROM unnest(%s::bytea[], %s::bytea[], %s::text[]){_OR_REPLACE})"
    " SELECT count(*) FROM written"
)
_CREATE = f"{_INSERT} ON CONFLICT DO NOTHING RETURNING version"
_REPLACE = (
    "UPDATE tracelake_records SET value = %s, version = %s"
    " WHERE partition = %s AND key = %s AND version = %s RETURNING version"
)
_DELETE = "DELETE FROM tracelake_records WHERE partition = %s AND key = %s AND version = %s RETURNING version"
_FORGET = "DELETE FROM tracelake_records WHERE partition = %s AND key = ANY(%s)"
_ERASE = "DELETE FROM tracelake_records WHERE partition = %s AND key >= %s AND key < %s"


# Words in permanent refusals by a server or the client library, and the remedy for each.
_REFUSALS: Final = {
    "password": "set the right one in PGPASSWORD, the file ~/.pgpass, or the setting `metadata`",
    'database "': "create the database, for example with `createdb`, or correct its name in the URL",
    'role "': "create the user, for example with `createuser`, or correct the name in the URL",
    "pg_hba": "admit this machine and user in the server's pg_hba.conf",
}
_NO_REPLY: Final = "check that it runs at that address and accepts connections, then try again"


class PostgresKeyValueStore:
    """A `KeyValueStore` in the table `tracelake_records` of a database; safe for threads and processes.

    Every method raises StorageError if the database is unreachable or refuses. In that case nothing was written, unless
    the error is IndeterminateError. Reads are retried over new connections.
    """

    def __init__(self, url: str, connections_max: int = limits.POSTGRES_CONNECTIONS_MAX) -> None:
        """Open `postgresql://user:password@host:port/database?…`, creating the table if absent.

        Raises UsageError if the URL is invalid, or another release wrote the table. Raises StorageError without a
        connection after STORE_CONNECT_TIMEOUT_S, or as soon as the server refuses.
        """
        try:
            parts = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise UsageError(f"the PostgreSQL URL cannot be read ({error}); correct it") from error
        # Never the URL itself, because it may contain a password.
        self._name = f"PostgreSQL database {parts.get('dbname', '')!r} on {parts.get('host', 'localhost')}"
        self._reach(url)
        self._pool: ConnectionPool[AnsweredConnection] = ConnectionPool(
            url,
            connection_class=AnsweredConnection,
            kwargs={
                "autocommit": True,
                "connect_timeout": int(limits.STORE_CONNECT_TIMEOUT_S),
                "prepare_threshold": None,
                "application_name": "tracelake",
            },
            min_size=1,
            max_size=connections_max,
            timeout=limits.POSTGRES_TURN_TIMEOUT_S,
            reconnect_timeout=limits.STORE_CONNECT_TIMEOUT_S,
            configure=_configure,
            check=_check,
            open=True,
        )
        try:
            self._run(self._set_up, "set up")
        except BaseException:
            self.close()
            raise

    def get(self, partition: str, key: str) -> ports.Entry | None:
        """Return the record, or None if it is absent."""
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        rows = self._read(_GET, where)
        return _entry(rows[0]) if rows else None

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[ports.Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return [
            _entry(row) for row in self._read(*ports.in_range(_COLUMNS, "%s", partition, start, stop, limit))
        ]

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records."""
        rows = self._read(*ports.in_range(_KEYS, "%s", partition, start, stop, limit))
        return [row[0].decode() for row in rows]

    def set(self, partition: str, key: str, value: bytes) -> ports.Version:
        """Write the record unconditionally. Raises IndeterminateError if the reply was lost."""
        ports.check_value(key, value)
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        version = sealed_version(*where, value)
        written = self._write(version, _PUT, (*where, value, version))
        self._make_sure(written, partition, key)
        return version

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, up to POSTGRES_STATEMENT_BYTES per statement; each statement writes all its records
        or none.

        Raises IndeterminateError if a reply was lost.
        """
        inside = ports.encode_key("partition", partition)
        for key, value in records.items():
            ports.check_value(key, value)
            ports.encode_key("key", key)
        # Sorted by key, because two statements that lock the same rows in different orders would deadlock.
        in_order = sorted(records, key=str.encode)
        for keys in batches(in_order, lambda key: len(records[key]), POSTGRES_STATEMENT_BYTES):
            values = [records[key] for key in keys]
            versions = [
                sealed_version(inside, key.encode(), value) for key, value in zip(keys, values, strict=True)
            ]
            row = (inside, [key.encode() for key in keys], values, versions)
            self._make_sure(self._write(versions[0], _PUT_ALL, row), partition, *keys)

    def set_if(self, partition: str, key: str, value: bytes, expected: ports.Expected) -> ports.Outcome:
        """Write the record if its version is `expected`."""
        ports.check_value(key, value)
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        version = sealed_version(*where, value)
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            if expected is ports.ABSENT:
                written = self._write(version, _CREATE, (*where, value, version))
            else:
                written = self._write(version, _REPLACE, (value, version, *where, expected))
            if isinstance(written, ports.Indeterminate):
                return written
            if written:
                return ports.Done(version)
            current = self.get(partition, key)
            # The conflicting record was deleted since, so the condition holds again: retry.
            if not (expected is ports.ABSENT and current is None):
                return ports.Conflict(current)
        raise StorageError(f"{key!r} is created and deleted too often in {self._name}; try again later")

    def delete_if(self, partition: str, key: str, expected: ports.Version) -> ports.Outcome:
        """Delete the record if its version is `expected`. Done then carries a version of the deletion itself."""
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        version = ports.new_version()
        written = self._write(version, _DELETE, (*where, expected))
        if isinstance(written, ports.Indeterminate):
            return written
        return ports.Done(version) if written else ports.Conflict(self.get(partition, key))

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Write a note, replacing an existing one."""
        ports.check_value(key, value)
        where = (ports.encode_key("partition", partition), ports.encode_key("key", key))
        self._do(_PUT, (*where, value, sealed_version(*where, value)))

    def notes(self, partition: str, beginning: str = "") -> list[ports.Entry]:
        """Return the notes of a partition whose key has this prefix, in key order."""
        return self.scan(partition, beginning, ports.end_of(beginning))

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes with one statement, if they exist."""
        self._do(
            _FORGET,
            (ports.encode_key("partition", partition), [ports.encode_key("key", key) for key in keys]),
        )

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix, with one statement."""
        self._do(_ERASE, (ports.encode_key("partition", partition), *ports.encode_beginning(beginning)))

    @contextmanager
    def snapshot(self) -> Iterator[Iterator[Row]]:
        """Return all rows as of the call, to read inside the `with` block."""
        connection = self._take()
        try:
            with connection.transaction(), connection.cursor("tracelake_snapshot", binary=True) as cursor:
                cursor.itersize = limits.VERIFY_ROWS_AT_ONCE
                cursor.execute(_ALL.encode())  # one statement, so all rows are of one moment
                yield iter(cursor)
        except psycopg.Error as error:
            raise self._failed("copy", error) from error
        finally:
            self._pool.putconn(connection)

    def load(self, rows: Iterable[Row]) -> None:
        """Insert rows that were read from another store, in one transaction."""
        connection = self._take()
        try:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(_INSERT.encode(), rows)
        except psycopg.Error as error:
            raise self._failed("write", error) from error
        finally:
            self._pool.putconn(connection)

    def check_database(self, scope: str) -> DatabaseCheck:
        """Compare the rows of partitions that begin with `scope` with their checksums, and the index with its table.

        PostgreSQL checks pages itself if they have checksums; `unread` reports if they have none.
        """
        unread = []
        if self._run(lambda connection: connection.execute("SHOW data_checksums").fetchone(), "check") != (
            "on",
        ):
            unread.append(f"the pages of {self._name} have no checksums (data_checksums is off)")
        structure, missing = self._check_index()
        unread += missing
        checked = check_rows(self._rows(*ports.encode_beginning(scope)), scope, self._name)
        return DatabaseCheck(structure, checked.rows, (*unread, *checked.unread))

    def _check_index(self) -> tuple[tuple[tuple[str, str], ...], list[str]]:
        """Compare the index with its table with the extension amcheck; return problems and skipped checks."""
        has_amcheck = "SELECT 1 FROM pg_extension WHERE extname = 'amcheck'"
        if self._run(lambda connection: connection.execute(has_amcheck).fetchone(), "check") is None:
            return (), [
                f"the index of {self._name} was not compared with its table: CREATE EXTENSION amcheck"
            ]
        try:
            self._run(lambda connection: connection.execute(_CHECK_INDEX), "check")
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.errors.DataCorrupted | psycopg.errors.IndexCorrupted):
                return ((self._name, _text(cause)),), []
            return (), [f"the index of {self._name} was not compared with its table: {error}"]
        return (), []

    def _rows(self, start: bytes, stop: bytes) -> Iterator[Row]:
        """Yield partition, key, value and version of the rows with start <= partition < stop, in pages."""
        last: tuple[bytes, bytes] = (start, b"")
        while rows := self._read(_PAGE, (*last, stop, limits.VERIFY_ROWS_AT_ONCE)):
            yield from rows
            last = rows[-1][0], rows[-1][1]

    def close(self) -> None:
        """Close all connections. Calling it twice is allowed."""
        self._pool.close()

    def _make_sure(self, written: bool | ports.Indeterminate, partition: str, key: str, *others: str) -> None:
        """Check a write whose reply was lost. Raise IndeterminateError if its first record does not have the written
        version."""
        if isinstance(written, ports.Indeterminate):
            entry = self.get(partition, key)
            if entry is None or entry.version != written.version:
                more = f" and of {len(others):,} others" if others else ""
                raise IndeterminateError(
                    f"the write of {partition!r} / {key!r}{more} may or may not have happened: {written.reason}; "
                    "read it, and write again if need be"
                )

    def _write(
        self, version: ports.Version, query: str, values: tuple[object, ...]
    ) -> bool | ports.Indeterminate:
        """Run one write statement; return whether it changed a row. Retry while the statement is certain not to have
        run."""
        failed: psycopg.Error | None = None
        for _ in ports.tries():
            connection = self._take()
            try:
                return connection.execute(query.encode(), values).fetchone() is not None
            except psycopg.Error as error:
                failed, failure = error, of_postgres(error, connection.closed)
                if failure is FailureKind.UNKNOWN:
                    return ports.Indeterminate(
                        version, f"the connection to {self._name} was lost: {_text(error)}"
                    )
                if failure is FailureKind.REFUSED:
                    break
            finally:
                self._pool.putconn(connection)
        assert failed is not None, "there is at least one try"
        raise self._failed("write", failed) from failed

    def _do(self, query: str, values: Any) -> None:
        """Run an idempotent statement."""
        self._run(lambda connection: connection.execute(query.encode(), values), "write")

    def _read(self, query: str, values: Any) -> list[Row]:
        # Binary, because the text format would send values as hexadecimal digits.
        return self._run(
            lambda connection: connection.execute(query.encode(), values, binary=True).fetchall(), "read"
        )

    def _run(self, action: Callable[[AnsweredConnection], T], doing: str) -> T:
        """Run an idempotent action, retrying over another connection if one is lost."""
        failed: psycopg.Error | None = None
        for _ in ports.tries():
            connection = self._take()
            try:
                return action(connection)
            except psycopg.Error as error:
                failed = error
                if of_postgres(error, connection.closed) is FailureKind.REFUSED:
                    break
            finally:
                self._pool.putconn(connection)
        assert failed is not None, "there is at least one try"
        raise self._failed(doing, failed) from failed

    def _reach(self, url: str) -> None:
        """Connect once outside the pool, which does not report errors. Raises StorageError with the reason if it
        fails."""
        reason, deadline = "", time.monotonic() + limits.STORE_CONNECT_TIMEOUT_S
        for _ in ports.tries():
            timeout_s = int(deadline - time.monotonic())
            if timeout_s < 1 or any(word in reason for word in _REFUSALS):
                break
            try:
                psycopg.connect(url, connect_timeout=timeout_s, application_name="tracelake").close()
            except psycopg.OperationalError as error:
                reason = str(error).strip().partition("\n")[0].rpartition(" failed: ")[2].removesuffix(".")
            else:
                return
        way_out = next((way_out for word, way_out in _REFUSALS.items() if word in reason), _NO_REPLY)
        raise StorageError(f"cannot connect to {self._name}: {reason}; {way_out}")

    def _take(self) -> AnsweredConnection:
        try:
            return self._pool.getconn()
        except PoolClosed as error:
            raise UsageError(f"the store in {self._name} is closed; open it again") from error
        except (PoolTimeout, TooManyRequests, psycopg.Error) as error:
            raise StorageError(
                f"no connection to {self._name} in {limits.POSTGRES_TURN_TIMEOUT_S} s; check that it runs, "
                "accepts connections, and knows the user and password"
            ) from error

    def _set_up(self, connection: AnsweredConnection) -> None:
        mark = connection.execute(_FORMAT).fetchone()
        if mark == (None,):
            with connection.transaction():
                for statement in _SET_UP:
                    connection.execute(statement)
        elif mark != ("format 1",):
            raise UsageError(
                f"tracelake_records in {self._name} has {mark and mark[0]}, this release reads format 1; "
                "use the release that wrote it, or a newer one"
            )

    def _failed(self, doing: str, error: psycopg.Error) -> StorageError:
        return StorageError(f"cannot {doing} in {self._name}: {_text(error)}; repair it, then try again")


def _configure(connection: AnsweredConnection) -> None:
    connection.execute(
        "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
        # A database may disable it for speed, but an acknowledged write must be durable.
        " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
        " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)",
        (
            str(int(limits.POSTGRES_STATEMENT_TIMEOUT_S * 1000)),
            str(int(limits.POSTGRES_LOCK_TIMEOUT_S * 1000)),
        ),
    )


def _check(connection: AnsweredConnection) -> None:
    """Check the connection, unless the server replied a moment ago. Raises psycopg.Error if it is lost.

    An idle connection may have been closed; a write over it would have an unknown outcome.
    """
    if time.monotonic() - connection.answered_s > POSTGRES_IDLE_S:
        ConnectionPool.check_connection(connection)


def _entry(row: Row) -> ports.Entry:
    key, value, version = row
    return ports.Entry(key.decode(), value, version)


def _text(error: psycopg.Error) -> str:
    return str(error).strip().replace("\n", " ") or type(error).__name__
