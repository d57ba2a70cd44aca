"""Classification of backend errors: the only place that decides what an error implies for a write.

The first question is always whether the write may have happened, and only then whether a retry may help. Errors that
are not listed here as certain are UNKNOWN, because an unforeseen error must not look like a write that did not
happen.
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
    """Consequence of a failed request: whether the write may have happened, and whether a retry may help."""

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
# Addresses that the client asks for the machine's role if it found no credentials.
_MACHINE_ROLES: Final = ("169.254.169.254", "metadata.google.internal")
# Replies of S3, GCS and Azure for an absent bucket: every object in it then looks absent too.
_NO_BUCKET: Final = (
    "NoSuchBucket",
    "The specified bucket does not exist",
    "ContainerNotFound",
    "The specified container does not exist",
)

_QUERY: Final = re.compile(r"(?<=://)([^\s?]+)\?\S+")
_BODY_CUT: Final = "response body error"
# The path may occur in the text twice; the server's status comes last.
_TOO_MANY: Final = "status code: 429"


def of_obstore(error: Exception) -> FailureKind:
    """Classify an error of S3, GCS or Azure for a request that was sent once."""
    for kind, failure in _OBSTORE:
        if isinstance(error, kind):
            if failure is FailureKind.NOT_FOUND and any(code in str(error) for code in _NO_BUCKET):
                return FailureKind.REFUSED
            return failure
    # GCS sends this for a second write to an object within a second; the library has no exception class for
    # it.
    return FailureKind.NOT_DONE if _TOO_MANY in str(error) else FailureKind.UNKNOWN


def is_body_cut(error: Exception) -> bool:
    """Return whether a reply's body was truncated. The client library retries only some of these reads."""
    return of_obstore(error) is FailureKind.UNKNOWN and _BODY_CUT in str(error)


def obstore_text(error: Exception) -> str:
    """Return the client library's message on one line, without debugging details and URL queries.

    A query may contain a signature, such as the SAS token of Azure.
    """
    text = " ".join(str(error).partition("Debug source:")[0].split())
    return _QUERY.sub(r"\1", text)[:ERROR_MAX_CHARS]


def explain_obstore(error: Exception) -> str:
    """Return one line that explains a failed request to S3, GCS or Azure, and a remedy."""
    text = obstore_text(error)
    if any(code in text for code in _NO_BUCKET):
        return "the bucket does not exist; create it, or correct its name"
    if any(host in text for host in _MACHINE_ROLES):
        return "the environment has no credentials, and this machine has no role; set credentials"
    if code := re.search(r"status code: 40[13] \w+|<Code>(?:InvalidAccessKeyId|SignatureDoesNotMatch)", text):
        codes = re.findall(r"<Code>(\w+)</Code>", text)
        reason = codes[0] if codes else code[0].removeprefix("status code: ")
        return f"the store refuses these credentials ({reason}); correct them or their permissions"
    if address := re.search(r"performing \w+ (\w+://[^/ ]+)\S* in .*HTTP error: (.*)", text):
        why = address[2].strip(" :")
        return f"{address[1]} does not answer ({why}); check that address and the network, then try again"
    return f"{text}; check the store and its credentials, then try again"


def of_postgres(error: psycopg.Error, connection_lost: bool) -> FailureKind:
    """Classify an error of a single statement that commits by itself.

    If PostgreSQL answers with an error and keeps the connection, it has rolled back. If the connection is lost, even
    an answer proves nothing: an administrator's shutdown may happen after the commit.
    """
    if connection_lost or error.sqlstate is None:
        return FailureKind.UNKNOWN
    # Class 42: no such table, no privilege. Class 22: a value that the server rejects.
    return FailureKind.REFUSED if error.sqlstate[:2] in {"22", "42"} else FailureKind.NOT_DONE


def of_sqlite_commit(error: sqlite3.Error) -> FailureKind:
    """Classify an error of COMMIT. Only a full disk proves that nothing happened.

    SQLite then could not write the frame that completes the transaction in the log.
    """
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return FailureKind.NOT_DONE if code == sqlite3.SQLITE_FULL else FailureKind.UNKNOWN
