"""Every error that Tracelake raises on purpose.

TracelakeError
├── UsageError                 the call or the command line is wrong; nothing was done
│   ├── LakeExistsError        a lake is there already
│   ├── NothingToCommitError   a commit would change nothing
│   ├── ConflictError          two commits changed the same entries
│   └── QueryError             a search, filter or SQL text that does not parse
├── NotFoundError              nothing has this name, id or path
│   ├── LakeNotFoundError      no lake at that place; a UsageError too
│   ├── RefNotFoundError       no such branch, tag or commit; a UsageError too
│   ├── TableNotFoundError     no such table; a UsageError too
│   └── DatasetNotFoundError   no such dataset; a UsageError too
├── InputError                 data from outside that cannot be taken; says where and why
│   ├── DecodeError            bytes that are not OTLP
│   ├── UnsupportedError       a content type or encoding that the server does not take
│   ├── RecordsRemovedError    a log has removed records before they were read
│   └── SourceChangedError     an input differs from what the journal recorded (J11)
├── AccessError                who asks may not have it
│   ├── NoKeyError             a key is missing, unknown, expired or revoked
│   ├── ForbiddenError         the key may do other things, not this
│   └── QuotaError             the key has used up what it may send for now
├── ProviderError              the provider by which people sign in cannot be asked, or answers what it must not
├── LimitError                 more than a limit of `tracelake.limits`; give less at once
├── StorageError               what is stored cannot be read or written now; try again later
│   ├── ContentionError        others were faster, too many times in a row; try again
│   ├── BackPressureError      too much waits already; send it again later
│   ├── IndeterminateError     a write whose outcome could not be found out
│   ├── UnreadInputsError      some inputs cannot be read now; all others are in
│   └── ExpiredError           a lease, an upload or a time to read at that has ended; begin again
├── DamageError                stored data is missing, torn or altered; `tracelake verify` names all of it
│   ├── DamagedRecordsError    some records of a partition are; the others are whole
│   └── FormatError            stored data has the format of another release; it is not damaged
├── TrimmedError               a transaction was done so long ago that the journal tells nothing of it any more
├── TaskError                  a task failed on an executor; nothing was published
│   └── DeathsError            runs ended without a word while they did the same
├── EmbeddingError             the user's function that makes vectors failed on a search
├── JavaError                  no usable Java, or Spark's JVM did not start
└── InternalError              a fault of the server; its log says more

Each message says what happened, to what, and what to do next. Errors can be pickled, as those of Spark's workers are.
What an HTTP client is answered stands in `server/http_policy.py`, what a command ends with in `cli/output.py`.
"""

from __future__ import annotations

import copyreg
from typing import Any


class TracelakeError(Exception):
    """The root of the tree: catch it to catch everything that Tracelake raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the error says and holds; the constructor of a class may take something else."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(TracelakeError):
    """The call or the command line is wrong; nothing was done."""


class LakeExistsError(UsageError):
    """A lake is there already."""


class NothingToCommitError(UsageError):
    """A commit would change nothing. `head` is the commit that names all of it already, empty where none does."""

    def __init__(self, branch: str, head: str) -> None:
        super().__init__(
            f"nothing to commit on branch {branch}: what was staged or asked for is there already"
            + (f", in {head[:12]} or before." if head else ".")
        )
        self.head = head


class ConflictError(UsageError):
    """Two commits changed the same entries, each in its own way. `paths` are the first of them, in order."""

    def __init__(self, branch: str, paths: tuple[str, ...]) -> None:
        super().__init__(
            f"branch {branch} and the commit changed the same entries, and nothing was committed: "
            f"{', '.join(paths[:10])}{' and more' if len(paths) > 10 else ''}. Choose a side, or make them equal first."
        )
        self.paths = paths


class QueryError(UsageError):
    """A search, filter or SQL text that does not parse.

    `character` says where in a search, counted from 1; None where that is not known.
    """

    def __init__(self, message: str, character: int | None = None) -> None:
        super().__init__(message)
        self.character = character


class NotFoundError(TracelakeError):
    """Nothing has this name, id or path: a trace, an object, or what the classes below say."""


class LakeNotFoundError(NotFoundError, UsageError):
    """No lake at that place."""


class RefNotFoundError(NotFoundError, UsageError):
    """No such branch, tag or commit."""


class TableNotFoundError(NotFoundError, UsageError):
    """No such table."""


class DatasetNotFoundError(NotFoundError, UsageError):
    """No such dataset."""


class InputError(TracelakeError):
    """Data from outside that cannot be taken; the message says where and why."""


class DecodeError(InputError):
    """Bytes that are not OTLP."""


class UnsupportedError(InputError):
    """A content type or encoding that the server does not take."""


class RecordsRemovedError(InputError):
    """A log, such as a topic of Kafka, has removed records before they were read: they are lost; names the offsets."""


class SourceChangedError(InputError):
    """An input differs from what the journal recorded of it (J11)."""


class AccessError(TracelakeError):
    """Who asks may not have it."""


class NoKeyError(AccessError):
    """A key is missing, unknown, expired or revoked."""


class ForbiddenError(AccessError):
    """The key may do other things, not this; or the request comes from a page, or for a name, that is not allowed."""


class QuotaError(AccessError):
    """The key has used up what it may send for now; the same may be sent after `wait_s` seconds."""

    def __init__(self, message: str, wait_s: float = 1.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class ProviderError(TracelakeError):
    """The provider by which people sign in cannot be asked, or answers what it must not."""


class LimitError(TracelakeError):
    """More than a limit of `tracelake.limits` allows; give less at once. Trying again does not help."""


class StorageError(TracelakeError):
    """What is stored cannot be read or written now: a store failed or could not be reached. Try again later."""

    is_unwritable = False
    """Whether nothing was written because the store is read-only or its disk is full; it may still be read."""


class ContentionError(StorageError):
    """Others were faster, too many times in a row: a race was lost, and nothing is too large. Try again."""


class BackPressureError(StorageError):
    """Too much waits already, or the store fails, so nothing was taken; send it again later."""


class IndeterminateError(StorageError):
    """A write whose outcome could not be found out."""


class UnreadInputsError(StorageError):
    """Some inputs, or where they are looked for, cannot be read now. All others are in; these are tried again.

    `report` says what was done, None where there was nothing else to do.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class ExpiredError(StorageError):
    """A lease, an upload or a time to read at that has ended; begin again."""


class DamageError(TracelakeError):
    """Stored data is missing, torn or altered; `tracelake verify` names all of it."""

    version: str = ""
    """Of one record that is there: what a conditional write names to put another in its place."""


class DamagedRecordsError(DamageError):
    """Some records of a partition cannot be read. `whole` are the others, `problems` say which and why, by key."""

    def __init__(self, whole: list[Any], problems: list[tuple[str, DamageError]]) -> None:
        more = f" {len(problems) - 1} more are damaged beside it." if len(problems) > 1 else ""
        super().__init__(f"{problems[0][1]}{more}")
        self.whole = whole
        self.problems = problems


class FormatError(DamageError):
    """Stored data has the format of another release, and is not damaged. The message says which release reads it."""


class TrimmedError(TracelakeError):
    """A transaction was done so long ago that the journal tells nothing of it any more."""


class TaskError(TracelakeError):
    """A task failed on an executor; nothing was published, so run again once the cause is mended."""

    def __init__(self, message: str, *, kind: str | None = None, ended: bool = False) -> None:
        """Say what failed; `kind` names the class of Python's error, `ended` says that Spark itself has."""
        super().__init__(message)
        self.kind = kind
        self.ended = ended


class DeathsError(TaskError):
    """Runs ended without a word while they did the same."""

    def __init__(self, runs: int, doing: str) -> None:
        """Say how many, and what they did."""
        super().__init__(
            f"{runs} runs ended without a word while they {doing}: for want of memory, or killed from outside."
        )


class EmbeddingError(TracelakeError):
    """The function of the user that makes vectors failed, or took too long; nothing of the lake is wrong."""


class JavaError(TracelakeError):
    """No usable Java runtime, or Spark's JVM did not start."""


class InternalError(TracelakeError):
    """A fault of the server; says no more, the log does."""
