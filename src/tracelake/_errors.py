"""Every error that Tracelake raises on purpose.

TracelakeError
├── UsageError                 the call or the command line is wrong; nothing was done
│   ├── LakeNotFoundError      no lake at that place
│   ├── LakeExistsError        a lake is there already
│   ├── RefNotFoundError       no such branch, tag or commit
│   ├── TableNotFoundError     no such table
│   ├── DatasetNotFoundError   no such dataset
│   ├── NothingToCommitError   a commit would change nothing
│   ├── ConflictError          two commits changed the same entries
│   └── QueryError             a search, filter or SQL text that does not parse
├── InputError                 data from outside that cannot be taken; says where and why
│   ├── DecodeError            bytes that are not OTLP
│   └── SourceChangedError     an input differs from what the journal recorded (J11)
├── NotFoundError              a trace or object that is not there
├── LimitError                 a limit of `tracelake.limits` was reached
├── StorageError               a store failed or could not be reached; try again later
│   ├── IndeterminateError     a write whose outcome could not be found out
│   └── ExpiredError           a lease, an upload or a time to read at that has ended; begin again
└── DamageError                stored data is missing, torn or altered; `tracelake verify` names all of it

Each message says what happened, to what, and what to do next.
"""


class TracelakeError(Exception):
    """The root of the tree: catch it to catch everything that Tracelake raises on purpose."""


class UsageError(TracelakeError):
    """The call or the command line is wrong; nothing was done."""


class LakeNotFoundError(UsageError):
    """No lake at that place."""


class LakeExistsError(UsageError):
    """A lake is there already."""


class RefNotFoundError(UsageError):
    """No such branch, tag or commit."""


class TableNotFoundError(UsageError):
    """No such table."""


class DatasetNotFoundError(UsageError):
    """No such dataset."""


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
    """A search, filter or SQL text that does not parse."""


class InputError(TracelakeError):
    """Data from outside that cannot be taken; the message says where and why."""


class DecodeError(InputError):
    """Bytes that are not OTLP."""


class SourceChangedError(InputError):
    """An input differs from what the journal recorded of it (J11)."""


class NotFoundError(TracelakeError):
    """A trace or object that is not there."""


class LimitError(TracelakeError):
    """A limit of `tracelake.limits` was reached."""


class StorageError(TracelakeError):
    """A store failed or could not be reached; try again later."""


class IndeterminateError(StorageError):
    """A write whose outcome could not be found out."""


class ExpiredError(StorageError):
    """A lease, an upload or a time to read at that has ended; begin again."""


class DamageError(TracelakeError):
    """Stored data is missing, torn or altered; `tracelake verify` names all of it."""
