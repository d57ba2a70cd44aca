"""Which error of which backend says what about a write: the table."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from obstore import exceptions as obstore
from psycopg import errors as postgres

from tracelake.storage.failures import (
    OBSTORE_ERRORS,
    Failure,
    obstore_text,
    of_obstore,
    of_postgres,
    of_sqlite_commit,
)

STATUS = "Generic GCS error: Error performing PUT http://x/y in 1ms - Server returned non-2xx status code: "


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (FileNotFoundError("Object at location a not found"), Failure.NOT_FOUND),
        (FileNotFoundError("404: <Code>NoSuchBucket</Code>"), Failure.REFUSED),
        (FileNotFoundError("404: <Code>ContainerNotFound</Code>"), Failure.REFUSED),
        (FileNotFoundError("404: The specified bucket does not exist"), Failure.REFUSED),
        (FileNotFoundError("Bulk delete: The specified container does not exist."), Failure.REFUSED),
        (obstore.AlreadyExistsError("409"), Failure.LOST),
        (obstore.PreconditionError("412"), Failure.LOST),
        (obstore.NotModifiedError("304"), Failure.LOST),
        (obstore.PermissionDeniedError("403"), Failure.REFUSED),
        (obstore.UnauthenticatedError("401"), Failure.REFUSED),
        (obstore.InvalidPathError("a//b"), Failure.REFUSED),
        (obstore.NotSupportedError("no"), Failure.REFUSED),
        (obstore.UnknownConfigurationKeyError("x"), Failure.REFUSED),
        (obstore.GenericError(STATUS + "429 Too Many Requests"), Failure.NOT_DONE),
        (obstore.GenericError(STATUS + "400 Bad Request"), Failure.UNKNOWN),
        (obstore.GenericError(STATUS + "500 Internal Server Error"), Failure.UNKNOWN),
        (obstore.GenericError(STATUS + "503 Slow Down"), Failure.UNKNOWN),
        (obstore.GenericError("HTTP error: error sending request"), Failure.UNKNOWN),
        (obstore.JoinError("task was cancelled"), Failure.UNKNOWN),
        (ConnectionResetError("reset by peer"), Failure.UNKNOWN),
        (TimeoutError("operation timed out"), Failure.UNKNOWN),
        (OSError("something else"), Failure.UNKNOWN),
    ],
)
def test_buckets(error: Exception, failure: Failure) -> None:
    """What is not known as certain may have been done."""
    assert of_obstore(error) is failure
    assert isinstance(error, OBSTORE_ERRORS), "else the stores would not catch it"


def test_every_error_of_the_client_library_is_caught() -> None:
    """A new release of the library with an error outside its tree would pass through the stores."""
    kinds = [
        kind for name, kind in vars(obstore).items() if isinstance(kind, type) and name.endswith("Error")
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert issubclass(kind, OBSTORE_ERRORS), kind


@pytest.mark.parametrize(
    ("error", "connection_lost", "failure"),
    [
        (postgres.UndefinedTable(), False, Failure.REFUSED),
        (postgres.InsufficientPrivilege(), False, Failure.REFUSED),
        (postgres.SyntaxError(), False, Failure.REFUSED),
        (postgres.StringDataRightTruncation(), False, Failure.REFUSED),
        (postgres.LockNotAvailable(), False, Failure.NOT_DONE),
        (postgres.QueryCanceled(), False, Failure.NOT_DONE),
        (postgres.SerializationFailure(), False, Failure.NOT_DONE),
        (postgres.DeadlockDetected(), False, Failure.NOT_DONE),
        (postgres.DiskFull(), False, Failure.NOT_DONE),
        (postgres.ReadOnlySqlTransaction(), False, Failure.NOT_DONE),
        # The connection is gone: whatever was said last, the commit may have been before.
        (postgres.AdminShutdown(), True, Failure.UNKNOWN),
        (postgres.CrashShutdown(), True, Failure.UNKNOWN),
        (postgres.UndefinedTable(), True, Failure.UNKNOWN),
        # No answer of the server at all.
        (psycopg.OperationalError("server closed the connection unexpectedly"), False, Failure.UNKNOWN),
        (psycopg.OperationalError("no reply in 30.0 s"), True, Failure.UNKNOWN),
    ],
)
def test_postgres(error: psycopg.Error, connection_lost: bool, failure: Failure) -> None:
    """An answer on a connection that lives means that it was rolled back; without one nothing is known."""
    assert of_postgres(error, connection_lost) is failure


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (sqlite3.SQLITE_FULL, Failure.NOT_DONE),
        (sqlite3.SQLITE_IOERR, Failure.UNKNOWN),
        (sqlite3.SQLITE_IOERR_FSYNC, Failure.UNKNOWN),
        (sqlite3.SQLITE_BUSY, Failure.UNKNOWN),
        (sqlite3.SQLITE_CORRUPT, Failure.UNKNOWN),
        (None, Failure.UNKNOWN),
    ],
)
def test_sqlite_commit(code: int | None, failure: Failure) -> None:
    """Only for want of space it is certain that a COMMIT did not happen."""
    error = sqlite3.OperationalError("failed")
    if code is not None:
        error.sqlite_errorcode = code
    assert of_sqlite_commit(error) is failure


def test_text_of_an_error_is_for_people() -> None:
    """One line, and nothing of what the client library adds for its own developers."""
    error = obstore.GenericError("Account must be\nspecified\n\nDebug source:\nGeneric {\n    store: 1,\n}")
    assert obstore_text(error) == "Account must be specified"


def test_text_of_an_error_with_a_long_path_still_says_what_the_server_said() -> None:
    """The library puts the path before it, once as such and once in the address."""
    path = "p/" + "k" * 250
    error = obstore.PermissionDeniedError(f"no privileges for {path}: PUT http://x/{path} - status code: 403")
    assert obstore_text(error).endswith("status code: 403")
    assert len(obstore_text(obstore.GenericError("<Error>" * 1_000))) == 1_000
