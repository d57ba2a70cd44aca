"""Records of a repository: commits, what they name, and the record of a branch (PROTOCOLS §3).

A commit names a metarange, a metarange its ranges, a range a sorted run of entries; or it says what it changes
against its parent (see `tree`). These are immutable and content-addressed: each id is the SHA-256 of the record's
bytes, so two who build the same record write the same object. A branch is one small record, moved by conditional
writes, which holds all that a helper needs to finish the commits that were begun on it.

What people write to name a commit. Pure: what stands behind a name is for the repository to look up.

main                      the newest commit of a branch; also a tag, or the beginning of a commit's id
main~3                    the third commit before it
main@2026-01-01T00:00Z    the newest commit made by then; a date alone is its first moment, UTC by default
main@17                   the commit of transaction 17
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from tracelake._errors import RefNotFoundError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import REF_NAME_MAX_CHARS

FORMAT_VERSION: Final = 2
TRANSACTION: Final = "transaction"
"""The key of a commit's metadata under which its transaction number stands."""
EPOCH_UNSET: Final = -1
CERTAIN: Final = -1
"""What `claimed` is of a name that counts."""
AFTER: Final = "after_transaction"
"""The same for a commit of another kind: the last transaction before it, none where there was none."""


class TableAt(msgspec.Struct, frozen=True, tag="table", forbid_unknown_fields=True):
    """A table at a transaction."""

    shard: str
    as_of: int


class IndexAt(msgspec.Struct, frozen=True, tag="index", forbid_unknown_fields=True):
    """A full-text index at a transaction: the object that lists its parts, and the transaction after its last."""

    manifest: str
    upper: int = 0
    epoch: int = EPOCH_UNSET
    """The epoch in which what the manifest names was begun, where it is collected unless a commit names it: of an
    index that was built anew. What a transaction adds is kept anyhow."""
    replaces: str = ""
    """The manifest that the entry must name before it, else the change is left out; of an index with parts merged."""


class FileAt(msgspec.Struct, frozen=True, eq=False, tag="file", forbid_unknown_fields=True):
    """A file: an object below `files/`, named by the epoch in which it was written and the SHA-256 of its bytes.

    Two are equal where their bytes are, whenever they were written.
    """

    sha256: str
    size_bytes: int
    epoch: int = 0

    def __eq__(self, other: object) -> bool:
        """Tell whether the other is a file of the same bytes."""
        return isinstance(other, FileAt) and (self.sha256, self.size_bytes) == (
            other.sha256,
            other.size_bytes,
        )

    def __ne__(self, other: object) -> bool:
        """Tell the opposite: structs do not derive it."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash of what is compared."""
        return hash((self.sha256, self.size_bytes))


Reference = TableAt | IndexAt | FileAt
PathChanges = tuple[tuple[str, Reference | None], ...]
"""Paths in order, each with what it names from now on, or None where it goes."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sorted run of entries."""

    entries: tuple[tuple[str, Reference], ...]
    epoch: int = 0
    """The epoch of the branch when it was written: part of the content, so that no name that garbage collection
    takes is ever written again (see `collect`)."""
    format_version: int = FORMAT_VERSION


class RangeRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a metarange says of a range: enough to find a path, and to see that two are equal."""

    id: str
    first: str
    last: str
    entries: int


class Metarange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ranges of one commit, in order of path."""

    ranges: tuple[RangeRef, ...]
    epoch: int = 0
    format_version: int = FORMAT_VERSION


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit. `created_at` is ISO 8601, UTC."""

    parents: tuple[str, ...]
    metarange: str
    """Empty where `changes` tells what it names."""
    message: str
    committer: str
    created_at: str
    metadata: dict[str, str]
    request: str = ""
    """The id of the request that it was built for: a committer finds its commit in the history by it."""
    generation: int = 0
    """One more than that of the parents: the length of the longest way back to the first commit."""
    changes: PathChanges | None = None
    """What it changes against its first parent, of a commit without a metarange."""
    epoch: int = 0
    format_version: int = FORMAT_VERSION


class Change(msgspec.Struct, frozen=True, tag="change", forbid_unknown_fields=True):
    """Entries that a commit sets or takes away: some in the record, many in objects, or what is staged."""

    entries: PathChanges = ()
    objects: tuple[str, ...] = ()
    """Ids of `ChangeSet` objects, in order."""
    staged: bool = False
    """Whether it takes all that is staged on the branch."""
    forward: bool = False
    """No table is taken to an older time: its writers append in one order and may commit in another."""


class MergeRequest(msgspec.Struct, frozen=True, tag="merge", forbid_unknown_fields=True):
    """What a commit has that the branch has not, seen from their common ancestor."""

    commit: str
    prefer: str = ""
    """Which side stands where both changed an entry: `source`, `dest`, or neither: then it is refused."""


class Revert(msgspec.Struct, frozen=True, tag="revert", forbid_unknown_fields=True):
    """The change of an earlier commit against its parent, taken back."""

    commit: str
    parent: int = 0


class CherryPick(msgspec.Struct, frozen=True, tag="pick", forbid_unknown_fields=True):
    """The change of a commit against its parent, made once more."""

    commit: str
    parent: int = 0


RequestKind = Change | MergeRequest | Revert | CherryPick


class ChangeSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object with changes that are too many for the record of a branch."""

    entries: PathChanges
    nonce: str
    """Unique, so that no two writers share one such object."""
    epoch: int = 0
    """As of a range."""
    format_version: int = FORMAT_VERSION


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a helper has to know to build a commit. `id` tells a second try from another commit."""

    id: str
    operation: RequestKind
    message: str
    committer: str
    created_at: str
    metadata: dict[str, str] = {}
    allow_empty: bool = False
    remembered: bool = False
    """Whether it may be submitted again: its answer is kept."""
    format_version: int = FORMAT_VERSION


class Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that waits for anyone to seal it."""

    request: Request
    since: str
    """The head before it was announced: no commit up to that one carries it."""
    format_version: int = FORMAT_VERSION


class SealedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request whose place in the history is settled."""

    request: Request
    token: str = ""
    """Where the staged entries are that belong to it."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What became of a request: a commit, or why there is none."""

    request: str
    commit: str = ""
    """The commit that carries it; of one that was refused, the head that it met."""
    refusal: str = ""
    """Empty for a commit; else one of the kinds of `protocol.Refusal`."""
    detail: tuple[str, ...] = ()
    """Paths in conflict, at most as many as limits allow, or one sentence."""
    token: str = ""
    """Where its staged entries were: they are deleted when the answer leaves the record."""
    remembered: bool = False
    format_version: int = msgspec.field(default_factory=lambda: FORMAT_VERSION)
    """Not left out, as a plain default would be."""


class OldAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer that has left the record of its branch."""

    scope: str
    """The branch, with its id."""
    answer: Answer
    epoch: int
    """The epoch in which it left: garbage collection goes by it."""
    format_version: int = FORMAT_VERSION


class BranchRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mutable record of a branch."""

    id: str = ""
    """Tells a branch from one of the same name that was deleted; empty for `main`."""
    head: str = ""
    """The newest commit; empty before the first."""
    staging: str = ""
    """The token under which entries are staged now; empty before the first."""
    sealed: tuple[SealedRequest, ...] = ()
    """Requests to be built on top of head, oldest first."""
    done: tuple[Answer, ...] = ()
    """Answers to the requests that were built last, oldest first; what the history does not tell of them is
    recorded elsewhere before they leave."""
    protected: bool = False
    epoch: int = EPOCH_UNSET
    """Which epoch of garbage collection objects are written in; unset until something is staged or sealed."""
    claimed: int = CERTAIN
    """Of a name that is not given yet, the epoch in which it was claimed (see `naming`)."""
    format_version: int = FORMAT_VERSION


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name that never moves."""

    commit: str
    claimed: int = CERTAIN
    """As of a branch."""
    format_version: int = FORMAT_VERSION


class Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest epoch of garbage collection, and when it began, in seconds since 1970."""

    number: int = 0
    began_s: float = 0.0
    given: str = ""
    """Another one before each name is given: who finds the same one after a look at all names has seen them all."""
    format_version: int = FORMAT_VERSION


VersionsRecord = (
    Range | Metarange | Commit | ChangeSet | BranchRecord | Tag | Epoch | Announcement | Answer | OldAnswer
)
RecordT = TypeVar("RecordT", bound=VersionsRecord)


def to_bytes(record: VersionsRecord) -> bytes:
    """Encode as JSON: the same record always gives the same bytes."""
    return encode(record)


def content_id(data: bytes) -> str:
    """Return the id of a record's bytes."""
    return hashlib.sha256(data).hexdigest()


def from_bytes(kind: type[RecordT], data: bytes, what: str) -> RecordT:
    """Decode a record. Raises DamageError for one that is torn or of another format."""
    return decode(kind, data, what, FORMAT_VERSION)


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
"""Names of branches and tags: of none is a part empty, or one that a URL or a path would leave out."""
COMMIT_ID: Final = re.compile(r"[0-9a-f]{6,64}")
_GRAMMAR: Final = re.compile(
    r"(?P<name>[^~@]+)(?:~(?P<back>\d{1,9})|@(?P<transaction>\d{1,9})|@(?P<time>.+))?"
)


@dataclass(frozen=True, slots=True)
class Ref:
    """A name, and what to do from there; at most one of the others is set."""

    name: str
    back: int = 0
    transaction: int | None = None
    time: datetime | None = None


def parse(text: str) -> Ref:
    """Parse a reference. Raises RefNotFoundError for what is none."""
    match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if match is None or not is_name(match["name"]):
        raise RefNotFoundError(
            f"{shown(text)} names no commit. Write a branch, a tag or the beginning of a commit's id, then perhaps "
            "~3 (steps back), @17 (a transaction) or @2026-01-01T00:00Z (a time)."
        )
    transaction = int(match["transaction"]) if match["transaction"] else None
    time = _time(text, match["time"]) if match["time"] else None
    return Ref(match["name"], int(match["back"] or 0), transaction, time)


def check_name(name: str, what: str) -> None:
    """Raise UsageError where a branch or tag (`what`) cannot have this name."""
    if not is_name(name) or COMMIT_ID.fullmatch(name):
        raise UsageError(
            f"{shown(name)} cannot be a {what}: take letters, digits, and . _ / - between, and no commit's id."
        )


def shown(value: object) -> str:
    """Return what a caller gave, as a message shows it: of a long one, the beginning."""
    text = repr(value)
    return text if len(text) <= REF_NAME_MAX_CHARS else f"{text[:REF_NAME_MAX_CHARS]}…"


def is_name(name: str) -> bool:
    """Tell whether a branch or tag may have this name."""
    return isinstance(name, str) and len(name) <= REF_NAME_MAX_CHARS and bool(NAME.fullmatch(name))


def _time(text: str, time: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError as error:
        raise RefNotFoundError(
            f"{shown(text)} cannot be: {shown(time)} is no time; write it as 2026-01-01T00:00Z or 2026-01-01."
        ) from error
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
