"""Table of backend errors: whether the write certainly failed or its outcome is unknown."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from obstore import exceptions as obstore
from psycopg import errors as postgres

from tracelake._errors import NotFoundError, StorageError
from tracelake.storage.buckets import failed
from tracelake.storage.failures import (
    OBSTORE_ERRORS,
    FailureKind,
    obstore_text,
    of_obstore,
    of_postgres,
    of_sqlite_commit,
)

STATUS = "Generic GCS error: Error performing PUT http://x/y in 1ms - Server returned non-2xx status code: "


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (FileNotFoundError("Object at location a not found"), FailureKind.NOT_FOUND),
        (FileNotFoundError("404: <Code>NoSuchBucket</Code>"), FailureKind.REFUSED),
        (FileNotFoundError("404: <Code>ContainerNotFound</Code>"), FailureKind.REFUSED),
        (FileNotFoundError("404: The specified bucket does not exist"), FailureKind.REFUSED),
        (FileNotFoundError("Bulk delete: The specified container does not exist."), FailureKind.REFUSED),
        (obstore.AlreadyExistsError("409"), FailureKind.LOST),
        (obstore.PreconditionError("412"), FailureKind.LOST),
        (obstore.NotModifiedError("304"), FailureKind.LOST),
        (obstore.PermissionDeniedError("403"), FailureKind.REFUSED),
        (obstore.UnauthenticatedError("401"), FailureKind.REFUSED),
        (obstore.InvalidPathError("a//b"), FailureKind.REFUSED),
        (obstore.NotSupportedError("no"), FailureKind.REFUSED),
        (obstore.UnknownConfigurationKeyError("x"), FailureKind.REFUSED),
        (obstore.GenericError(STATUS + "429 Too Many Requests"), FailureKind.NOT_DONE),
        (obstore.GenericError(STATUS + "400 Bad Request"), FailureKind.UNKNOWN),
        (obstore.GenericError(STATUS + "500 Internal Server Error"), FailureKind.UNKNOWN),
        (obstore.GenericError(STATUS + "503 Slow Down"), FailureKind.UNKNOWN),
        (obstore.GenericError("HTTP error: error sending request"), FailureKind.UNKNOWN),
        (obstore.JoinError("task was cancelled"), FailureKind.UNKNOWN),
        (ConnectionResetError("reset by peer"), FailureKind.UNKNOWN),
        (TimeoutError("operation timed out"), FailureKind.UNKNOWN),
        (OSError("something else"), FailureKind.UNKNOWN),
    ],
)
def test_buckets(error: Exception, failure: FailureKind) -> None:
    """Unless an error proves that a write failed, its outcome is unknown."""
    assert of_obstore(error) is failure
    assert isinstance(error, OBSTORE_ERRORS), "else the stores would not catch it"


@pytest.mark.parametrize("doing", ["write", "create"])
def test_what_is_written_need_not_be_there(doing: str) -> None:
    """A 404 reply to a write means that the bucket is missing, not that an object is absent."""
    absent = FileNotFoundError("Object at location a not found: Server returned non-2xx status code: 404")

    def check() -> None:
        error = failed(doing, "s3://bucket", "a", absent)
        assert isinstance(error, StorageError)
        assert f"cannot {doing} 'a' in s3://bucket" in str(error)

    check()
    assert isinstance(failed("read", "s3://bucket", "a", absent), NotFoundError)


def test_every_error_of_the_client_library_is_caught() -> None:
    """All errors of the client library are caught; one outside its class tree would pass through the stores."""
    kinds = [
        kind for name, kind in vars(obstore).items() if isinstance(kind, type) and name.endswith("Error")
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert issubclass(kind, OBSTORE_ERRORS), kind


@pytest.mark.parametrize(
    ("error", "connection_lost", "failure"),
    [
        (postgres.UndefinedTable(), False, FailureKind.REFUSED),
        (postgres.InsufficientPrivilege(), False, FailureKind.REFUSED),
        (postgres.SyntaxError(), False, FailureKind.REFUSED),
        (postgres.StringDataRightTruncation(), False, FailureKind.REFUSED),
        (postgres.LockNotAvailable(), False, FailureKind.NOT_DONE),
        (postgres.QueryCanceled(), False, FailureKind.NOT_DONE),
        (postgres.SerializationFailure(), False, FailureKind.NOT_DONE),
        (postgres.DeadlockDetected(), False, FailureKind.NOT_DONE),
        (postgres.DiskFull(), False, FailureKind.NOT_DONE),
        (postgres.ReadOnlySqlTransaction(), False, FailureKind.NOT_DONE),
        # The connection is gone, so the commit may have happened before the last message.
        (postgres.AdminShutdown(), True, FailureKind.UNKNOWN),
        (postgres.CrashShutdown(), True, FailureKind.UNKNOWN),
        (postgres.UndefinedTable(), True, FailureKind.UNKNOWN),
        # The server did not reply at all.
        (psycopg.OperationalError("server closed the connection unexpectedly"), False, FailureKind.UNKNOWN),
        (psycopg.OperationalError("no reply in 30.0 s"), True, FailureKind.UNKNOWN),
    ],
)
def test_postgres(error: psycopg.Error, connection_lost: bool, failure: FailureKind) -> None:
    """An error reply on a live connection means a rollback; without a reply the outcome is unknown."""
    assert of_postgres(error, connection_lost) is failure


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (sqlite3.SQLITE_FULL, FailureKind.NOT_DONE),
        (sqlite3.SQLITE_IOERR, FailureKind.UNKNOWN),
        (sqlite3.SQLITE_IOERR_FSYNC, FailureKind.UNKNOWN),
        (sqlite3.SQLITE_BUSY, FailureKind.UNKNOWN),
        (sqlite3.SQLITE_CORRUPT, FailureKind.UNKNOWN),
        (None, FailureKind.UNKNOWN),
    ],
)
def test_sqlite_commit(code: int | None, failure: FailureKind) -> None:
    """A COMMIT certainly did not happen only if space ran out."""
    error = sqlite3.OperationalError("failed")
    if code is not None:
        error.sqlite_errorcode = code
    assert of_sqlite_commit(error) is failure


def test_text_of_an_error_is_for_people() -> None:
    """The error text is one line, without the details that the client library adds for developers."""
    error = obstore.GenericError("Account must be\nspecified\n\nDebug source:\nGeneric {\n    store: 1,\n}")
    assert obstore_text(error) == "Account must be specified"


def test_text_of_an_error_has_no_signature() -> None:
    """The error text repeats URLs without their query, because Azure puts a secret there."""
    error = obstore.GenericError("GET https://a.blob.net/c/k?sv=1&sig=s3cret in 1ms - status code: 500: a?b")
    assert obstore_text(error) == "GET https://a.blob.net/c/k in 1ms - status code: 500: a?b"


def test_text_of_an_error_with_a_long_path_still_says_what_the_server_said() -> None:
    """The server's message survives a long path, which the library repeats before it, both plain and in the URL."""
    path = "p/" + "k" * 250
    error = obstore.PermissionDeniedError(f"no privileges for {path}: PUT http://x/{path} - status code: 403")
    assert obstore_text(error).endswith("status code: 403")
    assert len(obstore_text(obstore.GenericError("<Error>" * 1_000))) == 1_000
