"""What the error of a backend says about a write: the one place where backend errors are classified.

The question is never "is it worth another try" alone, but first "may the write have happened". What is
not listed here as certain is UNKNOWN: an error that nobody thought of must not look like a write that
did not happen.
"""

from __future__ import annotations

import re
import sqlite3
from enum import Enum
from typing import TYPE_CHECKING, Final

from obstore import exceptions as obstore

from tracelake.limits import ERROR_MAX_CHARS

if TYPE_CHECKING:
    import psycopg


class FailureKind(Enum):
    """What is known about the request that failed."""

    NOT_FOUND = "nothing is there"
    LOST = "the condition of a conditional write did not hold"
    REFUSED = "not done, and trying again is useless until somebody changes something"
    NOT_DONE = "not done; trying again may help"
    UNKNOWN = "may have been done"


# The client library raises Python's own FileNotFoundError for an absent object.
OBSTORE_ERRORS: Final = (obstore.BaseError, OSError)
_OBSTORE = (
    (FileNotFoundError, FailureKind.NOT_FOUND),
    (obstore.NotFoundError, FailureKind.NOT_FOUND),
    (obstore.AlreadyExistsError, FailureKind.LOST),
    (obstore.PreconditionError, FailureKind.LOST),
    (obstore.NotModifiedError, FailureKind.LOST),
    (obstore.PermissionDeniedError, FailureKind.REFUSED),
    (obstore.UnauthenticatedError, FailureKind.REFUSED),
    (obstore.InvalidPathError, FailureKind.REFUSED),
    (obstore.NotSupportedError, FailureKind.REFUSED),
    (obstore.UnknownConfigurationKeyError, FailureKind.REFUSED),
)
# Where the client asks for the role of the machine, having found no credentials.
_MACHINE_ROLES: Final = ("169.254.169.254", "metadata.google.internal")
# How S3, GCS and Azure say that the bucket itself is absent: every object in it then looks absent too.
_NO_BUCKET: Final = (
    "NoSuchBucket",
    "The specified bucket does not exist",
    "ContainerNotFound",
    "The specified container does not exist",
)

_QUERY: Final = re.compile(r"(?<=://)([^\s?]+)\?\S+")
_BODY_CUT: Final = "response body error"
# The path may be in it twice, and what the server said comes last.
_TOO_MANY: Final = "status code: 429"


def of_obstore(error: Exception) -> FailureKind:
    """Classify an error of S3, GCS or Azure for a request that was sent once."""
    for kind, failure in _OBSTORE:
        if isinstance(error, kind):
            if failure is FailureKind.NOT_FOUND and any(code in str(error) for code in _NO_BUCKET):
                return FailureKind.REFUSED
            return failure
    # The library has no kind of its own for this, which GCS says of a second write to an object in a second.
    return FailureKind.NOT_DONE if _TOO_MANY in str(error) else FailureKind.UNKNOWN


def is_body_cut(error: Exception) -> bool:
    """Whether the body of an answer ended early. The client library then tries again for some reads only."""
    return of_obstore(error) is FailureKind.UNKNOWN and _BODY_CUT in str(error)


def obstore_text(error: Exception) -> str:
    """Return what the client library says for people, on one line: not what it adds for debugging, nor queries of URLs.

    A query may have a signature in it, such as the SAS token of Azure.
    """
    text = " ".join(str(error).partition("Debug source:")[0].split())
    return _QUERY.sub(r"\1", text)[:ERROR_MAX_CHARS]


def explain_obstore(error: Exception) -> str:
    """Say in one line what went wrong with a request to S3, GCS or Azure, and what to do about it."""
    text = obstore_text(error)
    if any(code in text for code in _NO_BUCKET):
        return "the bucket is not there; make it, or correct its name"
    if any(host in text for host in _MACHINE_ROLES):
        return "there are no credentials in the environment, and no role of this machine; set the former"
    if code := re.search(r"status code: 40[13] \w+|<Code>(?:InvalidAccessKeyId|SignatureDoesNotMatch)", text):
        codes = re.findall(r"<Code>(\w+)</Code>", text)
        said = codes[0] if codes else code[0].removeprefix("status code: ")
        return f"the store refuses these credentials ({said}); correct them, or what they allow"
    if address := re.search(r"performing \w+ (\w+://[^/ ]+)\S* in .*HTTP error: (.*)", text):
        why = address[2].strip(" :")
        return f"{address[1]} does not answer ({why}); check that address and the network, then try again"
    return f"{text}; check the store and its credentials, then try again"


def of_postgres(error: psycopg.Error, connection_lost: bool) -> FailureKind:
    """Classify an error of a single statement that commits by itself.

    PostgreSQL that answers with an error and keeps the connection has rolled back. Where the connection is
    gone, even an answer proves nothing: an administrator's shutdown may hit after the commit.
    """
    if connection_lost or error.sqlstate is None:
        return FailureKind.UNKNOWN
    # Class 42: no such table, no privilege; class 22: a value that the server cannot take.
    return FailureKind.REFUSED if error.sqlstate[:2] in {"22", "42"} else FailureKind.NOT_DONE


def of_sqlite_commit(error: sqlite3.Error) -> FailureKind:
    """Classify an error of COMMIT: only for want of space is it certain that nothing happened.

    The frame that makes the log's transaction whole could not be written then.
    """
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return FailureKind.NOT_DONE if code == sqlite3.SQLITE_FULL else FailureKind.UNKNOWN
