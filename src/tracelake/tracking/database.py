"""The SQL database of the tracking store: SQLite in one file, or PostgreSQL. Writes are durable on return.

On SQLite a writing transaction takes the write lock first (BEGIN IMMEDIATE), so its reads stay valid until it
commits. Writers queue in the process before that, because SQLite's lock wait is unfair. On PostgreSQL each changing
statement locks its rows. Searches have a deadline: SQLite is interrupted, and PostgreSQL uses its
`statement_timeout`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

from sqlalchemy import Column, Connection, Table, create_engine, event, exc, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import QueuePool

from tracelake import _errors, limits
from tracelake.storage.failures import FailureKind, of_sqlite_commit
from tracelake.storage.local import make_directory
from tracelake.storage.sqlite import WRITE_ERRORS, ReadOnlyFile

TRACKING_POOL_MAX: Final = 16
"""Connections of one process to the tracking store."""
TRACKING_SEARCH_POLL_STEPS: Final = 10_000
"""SQLite steps between two checks of that duration."""

_CANCELED: Final = "57014"
"""PostgreSQL's error code for a statement that took too long."""


@contextmanager
def in_time(connection: Connection) -> Iterator[None]:
    """Limit the duration of statements inside the `with` block. Raises QueryError if one takes too long."""
    driver: Any = connection.connection.driver_connection
    is_sqlite = isinstance(driver, sqlite3.Connection)
    if is_sqlite:
        deadline = time.monotonic() + limits.TRACKING_SEARCH_TIMEOUT_S
        driver.set_progress_handler(lambda: time.monotonic() > deadline, TRACKING_SEARCH_POLL_STEPS)
    try:
        yield
    except exc.OperationalError as error:
        if not _is_too_late(error.orig):
            raise
        raise _errors.QueryError(
            "the search took too long; name fewer experiments, or times (timestamp_ms > …), and fewer patterns."
        ) from error
    finally:
        if is_sqlite:
            driver.set_progress_handler(None, 0)  # the connection is reused


def _is_too_late(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_INTERRUPT or getattr(error, "sqlstate", None) == _CANCELED


_WRITES: Final = "tracelake_writes"
_SQLITE_PASSING: Final = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    )
)
"""SQLite error codes about the environment, not the file's content."""
_Rows: TypeAlias = Sequence[tuple[Any, ...]]
_Done = TypeVar("_Done")
_SQLITE_THERE: Final = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
_POSTGRES_THERE: Final = "23505"
"""Error codes for a duplicate key."""
_POSTGRES_TOO_LARGE: Final = "54"
"""Prefix of PostgreSQL's codes for a value over an internal limit, such as an index key; smaller values fit."""
_POSTGRES_REFUSED: Final = "42"
"""Prefix of PostgreSQL's codes for a missing table or missing rights: a fault of the database, not of the request."""
_SQLITE_PRAGMAS: Final = (
    # Set before any table exists, so that the file can shrink after large deletions.
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # Some builds overwrite each page of a deleted payload with zeros, through the log, while writers wait.
    # FAST zeroes only if it needs no extra write; free pages leave the file at the next truncation or are
    # reused.
    "PRAGMA secure_delete = FAST",
    # Statements that change many rows remember the pages before it, otherwise in a file.
    "PRAGMA temp_store = MEMORY",
)


class TrackingDatabase:
    """Connections to one database.

    Every method raises StorageError if the database is unavailable, full, or busy for too long. It raises UsageError
    for a value that no column accepts, such as a text with a NUL on PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        """Open `sqlite:///absolute/file`, created if absent, or `postgresql://…`. Raises UsageError for another URL,
        and StorageError if the database cannot be opened."""
        scheme, _, address = url.partition("://")
        self._queue = threading.Lock()
        self._searches = threading.BoundedSemaphore(limits.TRACKING_SEARCHES_MAX)
        self.is_sqlite = scheme == "sqlite"
        self._read_only: ReadOnlyFile | None = None
        if self.is_sqlite:
            self.name = _path(url, address)
            dialect, connect = "sqlite://", self._connect_sqlite
            try:
                make_directory(Path(self.name).parent)
            except OSError as error:
                raise _errors.StorageError(
                    f"cannot make {Path(self.name).parent}: {error.strerror}; check the path"
                ) from error
        elif scheme in ("postgresql", "postgres"):
            self.name = f"PostgreSQL at {address.rpartition('@')[2].partition('?')[0]}"
            self._url = url
            dialect, connect = "postgresql+psycopg://", self._connect_postgres
        else:
            raise _errors.UsageError(
                f"{scheme}://… is not the URL of a tracking store; use sqlite:///absolute/file or "
                "postgresql://host/database"
            )
        self.engine = create_engine(
            dialect,
            creator=connect,
            poolclass=QueuePool,
            pool_size=TRACKING_POOL_MAX,
            max_overflow=0,
            pool_timeout=limits.TRACKING_BUSY_TIMEOUT_S,
            pool_pre_ping=not self.is_sqlite,
        )
        if self.is_sqlite:
            event.listen(self.engine, "begin", _begin)

    @property
    def insert(self) -> Any:
        """The dialect's `insert` function, which supports `on_conflict_do_…`."""
        if self.is_sqlite:
            return sqlite.insert
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415  a lake in a directory needs none of its dialects

        return postgresql.insert

    def locked(
        self, connection: Connection, column: Column[Any], default: Mapping[str, Any], *, is_changed: bool
    ) -> Any:
        """Return a column of a lake's only row in a table, locked until the transaction ends: shared, or exclusively if
        it `is_changed`. A missing row is created as `default`, so that there is one to lock."""
        connection.execute(self.insert(column.table).on_conflict_do_nothing(), default)
        query = select(column).where(column.table.c.lake == default["lake"])
        return connection.execute(query.with_for_update(read=not is_changed)).scalar()

    def inserting(
        self, table: Table, columns: Sequence[str], then: str = "ON CONFLICT DO NOTHING"
    ) -> Callable[[Connection, _Rows], _Rows]:
        """Return a function that inserts rows of these columns and returns the result of the clause `then`.

        The clause refers to an existing row as `known`. The function calls the driver directly: SQLAlchemy spends
        more time on a statement and a row's parameters than SQLite. PostgreSQL receives each column as one array.
        """
        into = f"INSERT INTO {table.name} AS known ({', '.join(columns)})"
        if self.is_sqlite:
            text = f"{into} VALUES ({', '.join('?' * len(columns))}) {then}"
            if "RETURNING" not in then:
                return lambda connection, rows: _carry_out(
                    connection, lambda driver: driver.executemany(text, rows).fetchall()
                )
            return lambda connection, rows: _carry_out(
                connection,
                lambda driver: [row for each in rows for row in driver.execute(text, each).fetchall()],
            )
        arrays = ", ".join(f"%b::{self._type(table.c[name])}[]" for name in columns)
        unnested = f"{into} SELECT * FROM unnest({arrays}) {then}"

        def insert(connection: Connection, rows: _Rows) -> _Rows:
            arrays = tuple(map(list, zip(*rows, strict=True)))
            cursor = _carry_out(connection, lambda driver: driver.execute(unnested, arrays))
            return cursor.fetchall() if cursor.description else []

        return insert

    def _type(self, column: Column[Any]) -> str:
        """Return a column's type without its length, so that an overlong text raises an error instead of being cut."""
        return column.type.compile(self.engine.dialect).partition("(")[0]

    @property
    def is_read_only(self) -> bool:
        """Whether the last SQLite connection was read-only."""
        return self._read_only is not None

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Run a writing transaction and commit it at the end. On SQLite it holds the write lock from its first
        statement.

        An error rolls it back. Raises IndeterminateError if the commit itself failed with an unknown outcome.
        """
        if self.is_sqlite and not self._queue.acquire(timeout=limits.TRACKING_BUSY_TIMEOUT_S):
            raise _errors.StorageError(
                f"cannot write {self.name}: other threads kept it busy for {limits.TRACKING_BUSY_TIMEOUT_S} s; "
                "try again later"
            )
        try:
            with self._failures("write"), self.engine.connect() as connection:
                connection.execution_options(**{_WRITES: True})
                transaction = connection.begin()
                try:
                    yield connection
                except BaseException:
                    _roll_back(connection)
                    raise
                try:
                    transaction.commit()
                except exc.DBAPIError as error:
                    _roll_back(connection)
                    self._commit_failed(error)
        finally:
            if self.is_sqlite:
                self._queue.release()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Run a read-only transaction on a consistent snapshot."""
        with self._failures("read"), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def searching(self) -> Iterator[Connection]:
        """Run a read transaction that may scan every trace. Concurrency and time are limited.

        Raises BackPressureError if too many searches run, and QueryError if this one takes too long.
        """
        if not self._searches.acquire(timeout=limits.TRACKING_SEARCH_WAIT_S):
            raise _errors.BackPressureError(
                f"{limits.TRACKING_SEARCHES_MAX} searches of {self.name} are already running; search "
                "again later"
            )
        try:
            with self.reading() as connection, in_time(connection):
                yield connection
        finally:
            self._searches.release()

    def close(self) -> None:
        """Close all connections. Calling it twice is allowed."""
        self.engine.dispose()
        if self._read_only is not None:
            self._read_only.close()
            self._read_only = None  # the next connection checks again whether the file is writable

    def _commit_failed(self, error: exc.DBAPIError) -> None:
        original = error.orig
        if isinstance(original, sqlite3.Error) and of_sqlite_commit(original) is FailureKind.NOT_DONE:
            raise error
        raise _errors.IndeterminateError(
            f"a write to {self.name} may or may not have happened: {_text(error)}; try again"
        ) from error

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except exc.TimeoutError as error:
            raise _errors.StorageError(
                f"no connection to {self.name} in {limits.TRACKING_BUSY_TIMEOUT_S} s; check that it runs, "
                "and try again later"
            ) from error
        except (exc.OperationalError, exc.InternalError, exc.InterfaceError, exc.ProgrammingError) as error:
            state = getattr(error.orig, "sqlstate", None) or ""
            if isinstance(error, exc.ProgrammingError) and not state.startswith(_POSTGRES_REFUSED):
                raise
            if state.startswith(_POSTGRES_TOO_LARGE):
                raise _errors.UsageError(
                    f"the tracking store cannot store such a value: {_text(error)}"
                ) from error
            raise _errors.StorageError(
                f"cannot {doing} {self.name}: {_text(error)}; repair it, then try again"
            ) from error
        except exc.IntegrityError as error:
            raise _of_constraint(self.name, error) from error
        except (exc.DataError, UnicodeEncodeError) as error:
            why = _text(error) if isinstance(error, exc.DataError) else str(error)
            raise _errors.UsageError(f"the tracking store cannot store such a value: {why}") from error
        except UnicodeDecodeError as error:
            # SQLite's error quotes the damaged bytes, and Python cannot decode them.
            text = error.object.decode(errors="replace")[: limits.ERROR_MAX_CHARS]
            raise _errors.StorageError(f"cannot {doing} {self.name}: {text}; restore it") from error
        except exc.DBAPIError as error:
            if isinstance(error.orig, sqlite3.DatabaseError) and type(error.orig) is sqlite3.DatabaseError:
                raise _errors.StorageError(
                    f"cannot {doing} {self.name}: {_text(error)}; restore it"
                ) from error
            raise

    def _connect_sqlite(self) -> sqlite3.Connection:
        if self._read_only is None:
            try:
                return self._connect_to_write()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in WRITE_ERRORS:
                    raise
                try:
                    self._read_only = ReadOnlyFile(Path(self.name))
                except (sqlite3.Error, OSError):
                    raise error from None
        timeout_s = limits.TRACKING_BUSY_TIMEOUT_S
        address = self._read_only.address
        return sqlite3.connect(
            address, timeout=timeout_s, isolation_level=None, check_same_thread=False, uri=True
        )

    def _connect_to_write(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.name, timeout=limits.TRACKING_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            deadline = time.monotonic() + limits.TRACKING_BUSY_TIMEOUT_S
            for pragma in _SQLITE_PRAGMAS:
                # SQLite does not wait if another connection switches to a write-ahead log at the same time,
                # so wait here.
                while not _run_pragma(connection, pragma):
                    if time.monotonic() > deadline:
                        busy = sqlite3.OperationalError("database is locked")
                        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
                        raise busy
                    time.sleep(limits.SQLITE_POLL_S)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_postgres(self) -> Any:
        # The import takes a tenth of a second, so load it only for PostgreSQL.
        from tracelake.storage.postgres import AnsweredConnection  # noqa: PLC0415

        timeout_ms = int(limits.POSTGRES_LOCK_TIMEOUT_S * 1000)
        connection = AnsweredConnection.connect(
            self._url,
            connect_timeout=int(limits.STORE_CONNECT_TIMEOUT_S),
            application_name="tracelake",
            # Keep-alives detect a dead server machine, because the wait for a reply has no other limit.
            keepalives_idle=int(limits.STORE_CONNECT_TIMEOUT_S),
            keepalives_interval=int(limits.STORE_CONNECT_TIMEOUT_S),
            keepalives_count=3,
        )
        try:
            connection.execute(
                "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
                # A database may turn it off for speed, but an acknowledged write must be durable.
                " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
                " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)",
                (str(int(limits.POSTGRES_STATEMENT_TIMEOUT_S * 1000)), str(timeout_ms)),
            )
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection


def _of_constraint(name: str, error: exc.IntegrityError) -> _errors.TracelakeError:
    """Return the error for a duplicate row, which another write inserted first, or for an invalid value."""
    is_there = (
        getattr(error.orig, "sqlite_errorcode", None) in _SQLITE_THERE
        or getattr(error.orig, "sqlstate", None) == _POSTGRES_THERE
    )
    if is_there:
        return _errors.ContentionError(f"another write to {name} committed first: {_text(error)}; try again")
    return _errors.UsageError(f"the tracking store cannot store such a value: {_text(error)}")


def is_damage(error: _errors.StorageError) -> bool:
    """Return whether an SQLite error means damaged content. Otherwise the file is busy, unavailable or full."""
    cause = error.__cause__
    if isinstance(cause, exc.DBAPIError) and isinstance(cause.orig, sqlite3.DatabaseError):
        code = getattr(cause.orig, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # an invalid text has no code
        return code & 0xFF not in _SQLITE_PASSING
    return isinstance(cause, UnicodeDecodeError)


_Key = TypeVar("_Key", int, str, tuple[str, int])


def at_once(keys: Collection[_Key]) -> Iterator[list[_Key]]:
    """Yield sorted keys in lists short enough for one statement."""
    remaining = iter(sorted(keys))
    while some := list(islice(remaining, limits.TRACKING_IDS_AT_ONCE)):
        yield some


def fetch(connection: Connection, query: str, parameters: Sequence[Any]) -> _Rows:
    """Return the rows of a query with `?` for each parameter. It goes to the driver, as in `inserting`."""
    text = query if connection.dialect.name == "sqlite" else query.replace("?", "%s")
    return _carry_out(connection, lambda driver: driver.execute(text, parameters).fetchall())


def _carry_out(connection: Connection, do: Callable[[Any], _Done]) -> _Done:
    """Call the driver on a connection, and convert its errors to SQLAlchemy's."""
    try:
        return do(connection.connection.driver_connection)
    except connection.dialect.loaded_dbapi.Error as error:
        of_driver = connection.dialect.loaded_dbapi.Error
        raise exc.DBAPIError.instance(None, None, error, of_driver, dialect=connection.dialect) from error


def _run_pragma(connection: sqlite3.Connection, pragma: str) -> bool:
    try:
        connection.execute(pragma)
    except sqlite3.OperationalError as error:
        if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    _carry_out(connection, lambda driver: driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN"))


def _roll_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except exc.SQLAlchemyError:
        connection.invalidate()  # closing the connection surely ends the transaction and its lock


def _path(url: str, address: str) -> str:
    path = unquote(address.removeprefix("localhost"))
    if not path.startswith("/") or path == "/" or "\0" in path:
        raise _errors.UsageError(
            f"{url!r} has no absolute path; write three slashes, as in sqlite:///var/tracking.db"
        )
    return path


def _text(error: exc.DBAPIError) -> str:
    return str(error.orig).strip().replace("\n", " ")[: limits.ERROR_MAX_CHARS] or type(error.orig).__name__
