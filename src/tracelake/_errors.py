"""Errors that Tracelake raises on purpose.

TracelakeError
├── UsageError                 the call or the command line is wrong; nothing was done
│   ├── LakeExistsError        the lake exists already
│   ├── NothingToCommitError   the commit would change nothing
│   ├── ConflictError          two commits changed the same entries
│   └── QueryError             a search, filter or SQL text that does not parse
├── NotFoundError              no object has this name, id or path
│   ├── LakeNotFoundError      no lake at this location; also a UsageError
│   ├── RefNotFoundError       no such branch, tag or commit; also a UsageError
│   │   └── CommitExpiredError the commit has expired, or never existed
│   ├── TableNotFoundError     no such table; also a UsageError
│   └── DatasetNotFoundError   no such dataset; also a UsageError
├── InputError                 input data that cannot be ingested; the message has the position and reason
│   ├── DecodeError            the bytes are not valid OTLP
│   ├── UnsupportedError       the server does not support the content type or encoding
│   ├── RecordsRemovedError    a log deleted records before they were read
│   └── SourceChangedError     an input differs from its journal record (J11)
├── AccessError                the client may not do this
│   ├── NoKeyError             the key is missing, unknown, expired or revoked
│   ├── ForbiddenError         the key lacks the permission
│   └── QuotaError             the key has used up its quota for now
├── ProviderError              the sign-in provider is unreachable or sent an invalid response
├── LimitError                 the request exceeds a limit of `tracelake.limits`; split it
├── StorageError               a store cannot be read or written now; try again later
│   ├── ContentionError        too many lost races with other writers; try again
│   ├── BackPressureError      too much work is pending; try again later
│   ├── IndeterminateError     the outcome of a write is unknown
│   ├── UnreadInputsError      some inputs are unreadable now; all others are ingested
│   └── ExpiredError           a lease, an upload or a read timestamp expired; start again
├── DamageError                stored data is missing, torn or altered; see `tracelake verify`
│   ├── DamagedRecordsError    some records of a partition are damaged; the others are intact
│   └── FormatError            the data has another release's format; it is not damaged
├── TrimmedError               the journal no longer has the records of this transaction
├── TaskError                  a task failed on an executor; nothing was published
│   └── DeathsError            runs crashed repeatedly at the same work
├── EmbeddingError             the user's embedding function failed in a search
├── JavaError                  no usable Java, or Spark's JVM did not start
└── InternalError              a fault of the server; see its log

Each message names the problem, the affected object and the next step. Errors can be pickled, because Spark's
workers send theirs to the driver. `server/http_policy.py` maps errors to HTTP statuses, `cli/output.py` to exit
codes.
"""

from __future__ import annotations

import copyreg
from typing import Any


class TracelakeError(Exception):
    """Base class of all errors that Tracelake raises on purpose. Catch it to handle every one of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and attributes, because subclasses have constructors with other parameters."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(TracelakeError):
    """The call or the command line is wrong. Nothing was done."""


class LakeExistsError(UsageError):
    """The lake exists already."""


class NothingToCommitError(UsageError):
    """The commit would change nothing. `head` is the commit that contains all of it already, or empty."""

    def __init__(self, branch: str, head: str) -> None:
        super().__init__(
            f"nothing to commit on branch {branch}: the branch already has every staged or requested entry"
            + (f", in {head[:12]} or before." if head else ".")
        )
        self.head = head


class ConflictError(UsageError):
    """Two commits changed the same entries differently. `paths` lists the first of these entries, in order."""

    def __init__(self, branch: str, paths: tuple[str, ...]) -> None:
        super().__init__(
            f"branch {branch} and the commit changed the same entries, and nothing was committed: "
            f"{', '.join(paths[:10])}{' and more' if len(paths) > 10 else ''}. Choose a side, or make them equal first."
        )
        self.paths = paths


class QueryError(UsageError):
    """A search, filter or SQL text does not parse.

    `character` is the position in a search, counted from 1, or None if unknown.
    """

    def __init__(self, message: str, character: int | None = None) -> None:
        super().__init__(message)
        self.character = character


class NotFoundError(TracelakeError):
    """No trace, object or other thing has this name, id or path."""


class LakeNotFoundError(NotFoundError, UsageError):
    """No lake exists at this location."""


class RefNotFoundError(NotFoundError, UsageError):
    """No branch, tag or commit matches this reference."""


class CommitExpiredError(RefNotFoundError):
    """The commit has expired, or never existed. The message names the oldest commit that can be read."""


class TableNotFoundError(NotFoundError, UsageError):
    """No table has this name."""


class DatasetNotFoundError(NotFoundError, UsageError):
    """No dataset has this name."""


class InputError(TracelakeError):
    """Input data cannot be ingested. The message gives the position and the reason."""


class DecodeError(InputError):
    """The bytes are not valid OTLP."""


class UnsupportedError(InputError):
    """The server does not support the content type or encoding of the request."""


class RecordsRemovedError(InputError):
    """A log, such as a Kafka topic, deleted records before they were read. They are lost; the message names their
    offsets."""


class SourceChangedError(InputError):
    """An input differs from the journal's record of it (J11)."""


class AccessError(TracelakeError):
    """The client may not do this."""


class NoKeyError(AccessError):
    """The key is missing, unknown, expired or revoked."""


class ForbiddenError(AccessError):
    """The key lacks the permission for this request, or the request's origin or host name is not allowed."""


class QuotaError(AccessError):
    """The key has used up its quota for now. The same request may be sent after `wait_s` seconds."""

    def __init__(self, message: str, wait_s: float = 1.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class ProviderError(TracelakeError):
    """The sign-in provider is unreachable, or its response is invalid."""


class LimitError(TracelakeError):
    """The request exceeds a limit of `tracelake.limits`. A retry does not help; send less at once."""


class StorageError(TracelakeError):
    """Stored data cannot be read or written now, because a store failed or is unreachable. Try again later."""

    is_unwritable = False
    """Whether nothing was written because the store is read-only or its disk is full; reads may still work."""


class ContentionError(StorageError):
    """Other writers won too many races in a row. The request itself is not too large; try again."""


class BackPressureError(StorageError):
    """Too much work is pending, or the store fails, so the request was not accepted. Send it again later."""


class IndeterminateError(StorageError):
    """The outcome of a write is unknown: it may or may not have been applied."""


class UnreadInputsError(StorageError):
    """Some inputs, or the places that contain them, cannot be read now. All other inputs are ingested; these are
    retried.

    `report` describes the completed work, or is None if no other work was pending.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class ExpiredError(StorageError):
    """A lease, an upload or a read timestamp has expired. Start the operation again."""


class DamageError(TracelakeError):
    """Stored data is missing, torn or altered. `tracelake verify` lists all damage."""

    version: str = ""
    """Version of a damaged record, which a conditional write names to replace it; empty without such a record."""


class DamagedRecordsError(DamageError):
    """Some records of a partition are damaged. `whole` has the intact ones, `problems` the key and error of each
    other."""

    def __init__(self, whole: list[Any], problems: list[tuple[str, DamageError]]) -> None:
        more = f" {len(problems) - 1} more are damaged." if len(problems) > 1 else ""
        super().__init__(f"{problems[0][1]}{more}")
        self.whole = whole
        self.problems = problems


class FormatError(DamageError):
    """Stored data has the format of another release, and is not damaged. The message names a release that reads it."""


class TrimmedError(TracelakeError):
    """The transaction is so old that the journal has deleted its records."""


class TaskError(TracelakeError):
    """A task failed on an executor, and nothing was published. Fix the cause and run it again."""

    def __init__(self, message: str, *, kind: str | None = None, ended: bool = False) -> None:
        """Set the message, the class name `kind` of the Python error, and whether Spark itself has `ended`."""
        super().__init__(message)
        self.kind = kind
        self.ended = ended


class DeathsError(TaskError):
    """Several runs crashed or were killed during the same work, without an error message."""

    def __init__(self, runs: int, doing: str) -> None:
        """Set the number of crashed runs and their work."""
        super().__init__(
            f"{runs} runs ended without an error while they {doing}: they ran out of memory, or were killed."
        )


class EmbeddingError(TracelakeError):
    """The user's embedding function failed or took too long. The lake itself is intact."""


class JavaError(TracelakeError):
    """Java is missing or unusable, or Spark's JVM did not start."""


class InternalError(TracelakeError):
    """A fault of the server. The details are only in its log."""
