"""Records of a repository (PROTOCOLS §3): commits, their contents, branch records, and references to commits.

A commit names a metarange, a metarange its ranges, and a range a sorted run of entries. Some commits instead contain
their changes against the parent (see `tree`). These records are immutable and content-addressed: the id is the SHA-256
of the bytes, so two processes that build the same record write the same object. A branch is one small record that
conditional writes move. The record contains everything that a helper needs to finish pending commits on the branch.

References name commits. Parsing them is pure; the repository resolves the names.

    main                      the newest commit of a branch; also a tag, or the beginning of a commit's id
    main~3                    the third commit before it
    main@2026-01-01T00:00Z    the newest commit up to that time; a date alone is its first moment; UTC by default
    main@17                   the commit of transaction 17
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from tracelake._errors import RefNotFoundError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import REF_NAME_MAX_CHARS

FORMAT_VERSION: Final = 2
TRANSACTION: Final = "transaction"
"""Metadata key of a commit's transaction number."""
EPOCH_UNSET: Final = -1
CERTAIN: Final = -1
"""Value of `claimed` for a valid name."""
TABLE_WRITER: Final = "writer"
"""Committer of writes to users' tables."""
INDEX_MERGER: Final = "index merge"
"""Committer of merged indexes."""
AFTER: Final = "after_transaction"
"""Metadata key of the last transaction before a commit of another kind; absent if there was none."""


class TableAt(msgspec.Struct, frozen=True, tag="table", forbid_unknown_fields=True):
    """A table as of a transaction."""

    shard: str
    as_of: int


class IndexAt(msgspec.Struct, frozen=True, tag="index", forbid_unknown_fields=True):
    """A full-text index as of a transaction: the object that lists its parts, and the transaction after its last."""

    manifest: str
    upper: int = 0
    epoch: int = EPOCH_UNSET
    """The epoch in which a rebuilt index was begun; its objects are collected unless a commit names the index. Unset
    for what a transaction adds, which is always kept."""
    replaces: str = ""
    """Of an index with merged parts: the manifest that the entry must still name, otherwise the change is skipped."""


class FileAt(msgspec.Struct, frozen=True, eq=False, tag="file", forbid_unknown_fields=True):
    """A file: an object below `files/`, named by its epoch and the SHA-256 of its bytes.

    Two files are equal if their bytes are, regardless of the epoch.
    """

    sha256: str
    size_bytes: int
    epoch: int = 0

    def __eq__(self, other: object) -> bool:
        """Return whether the other is a file with the same bytes."""
        return isinstance(other, FileAt) and (self.sha256, self.size_bytes) == (
            other.sha256,
            other.size_bytes,
        )

    def __ne__(self, other: object) -> bool:
        """Return the opposite of `==`, because structs do not derive it."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash of the compared fields."""
        return hash((self.sha256, self.size_bytes))


Reference = TableAt | IndexAt | FileAt
PathChanges = tuple[tuple[str, Reference | None], ...]
"""Changes in order of path: each path with its new reference, or None to remove it."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sorted run of entries."""

    entries: tuple[tuple[str, Reference], ...]
    epoch: int = 0
    """The branch's epoch at the time of writing. As part of the content, it ensures that no collected name is ever
    written again (see `gc`)."""
    format_version: int = FORMAT_VERSION


class RangeRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metarange's summary of a range: enough to find a path and to detect equal ranges."""

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
    """Empty if `changes` describes the contents."""
    message: str
    committer: str
    created_at: str
    metadata: dict[str, str]
    request: str = ""
    """Id of the request that it was built for. A committer uses it to find its commit in the history."""
    generation: int = 0
    """One more than the highest generation of its parents: the length of the longest path to the first commit."""
    changes: PathChanges | None = None
    """For a commit without a metarange, its changes against the first parent."""
    epoch: int = 0
    format_version: int = FORMAT_VERSION


def is_routine(commit: Commit) -> bool:
    """Return whether a program made the commit: a transaction, a write to a table, or a merge of index parts. Only such
    commits expire."""
    return len(commit.parents) <= 1 and (
        TRANSACTION in commit.metadata
        or (commit.committer == TABLE_WRITER and "table" in commit.metadata)
        or (commit.committer == INDEX_MERGER and commit.message.startswith("index merged:"))
    )


class RetentionReason(StrEnum):
    """Reason for which a commit does not expire."""

    NAMED = "named by a branch, tag, dataset or request"
    PERSON = "made by a person"
    PARENT = "before a person's commit"
    FORK = "several commits follow it"
    PIPELINE = "base of the next transaction"
    AGE = "young"
    DAY = "last of its day"
    ENTRIES = "base of a later commit"
    ALL = "history does not expire"


@dataclass(frozen=True, slots=True)
class Retained:
    """The reason for which a commit stays, and the time until which it holds."""

    reason: RetentionReason
    until_s: float = math.inf
    """Infinity if only a change of names ends it."""

    @property
    def until(self) -> str | None:
        """Return the time as ISO 8601, UTC; None for infinity."""
        is_dated = self.until_s < math.inf
        return datetime.fromtimestamp(self.until_s, UTC).isoformat(timespec="seconds") if is_dated else None


def seconds_of(created_at: str) -> float:
    """Return the time of a commit in seconds since 1970; infinity if it is unreadable, so that the commit is young."""
    try:
        return datetime.fromisoformat(created_at).timestamp()
    except (ValueError, OverflowError):
        return math.inf


class Change(msgspec.Struct, frozen=True, tag="change", forbid_unknown_fields=True):
    """Entries that a commit sets or removes: few in the record, many in objects, or the staged ones."""

    entries: PathChanges = ()
    objects: tuple[str, ...] = ()
    """Ids of `ChangeSet` objects, in order."""
    staged: bool = False
    """Whether it takes everything staged on the branch."""
    forward: bool = False
    """If set, no table moves to an older time, because its writers append in one order and may commit in another."""


class MergeRequest(msgspec.Struct, frozen=True, tag="merge", forbid_unknown_fields=True):
    """A merge of a commit: its changes since the common ancestor with the branch."""

    commit: str
    prefer: str = ""
    """The side that wins if both changed an entry: `source` or `dest`; otherwise the merge is refused."""


class Revert(msgspec.Struct, frozen=True, tag="revert", forbid_unknown_fields=True):
    """The inverse of an earlier commit's change against its parent."""

    commit: str
    parent: int = 0


class CherryPick(msgspec.Struct, frozen=True, tag="pick", forbid_unknown_fields=True):
    """A commit's change against its parent, applied to another branch."""

    commit: str
    parent: int = 0


RequestKind = Change | MergeRequest | Revert | CherryPick


class ChangeSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object with changes that are too many for a branch record."""

    entries: PathChanges
    nonce: str
    """Unique, so that no two writers share such an object."""
    epoch: int = 0
    """As in `Range`."""
    format_version: int = FORMAT_VERSION


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All data that a helper needs to build a commit. `id` distinguishes a retry from another commit."""

    id: str
    operation: RequestKind
    message: str
    committer: str
    created_at: str
    metadata: dict[str, str] = {}
    allow_empty: bool = False
    remembered: bool = False
    """Whether the request may be repeated, so that its answer is kept."""
    format_version: int = FORMAT_VERSION


class Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that waits for any committer to seal it."""

    request: Request
    since: str
    """The head before the announcement: no commit up to it contains the request."""
    format_version: int = FORMAT_VERSION


class SealedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request with a fixed place in the history."""

    request: Request
    token: str = ""
    """Token of the staged entries that belong to it."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Outcome of a commit request to a branch: its commit, or the reason for its refusal."""

    request: str
    commit: str = ""
    """The commit of the request; if it was refused, the head at the time."""
    refusal: str = ""
    """Empty for a commit; otherwise a value of `protocol.Refusal`."""
    detail: tuple[str, ...] = ()
    """Paths in conflict, as many as the limits allow, or one sentence."""
    token: str = ""
    """Token of its staged entries, which are deleted when the answer leaves the record."""
    remembered: bool = False
    format_version: int = msgspec.field(default_factory=lambda: FORMAT_VERSION)
    """Set by a factory, because `omit_defaults` would omit a plain default."""


class OldAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer that has left its branch record."""

    scope: str
    """The branch name with the branch id."""
    answer: Answer
    epoch: int
    """The epoch in which it left the record; garbage collection uses it."""
    format_version: int = FORMAT_VERSION


class BranchRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mutable record of a branch."""

    id: str = ""
    """Distinguishes a branch from a deleted one of the same name; empty for `main`."""
    head: str = ""
    """The newest commit; empty before the first."""
    staging: str = ""
    """The token for newly staged entries; empty before the first."""
    sealed: tuple[SealedRequest, ...] = ()
    """Requests to build on top of the head, oldest first."""
    done: tuple[Answer, ...] = ()
    """Answers to the latest requests, oldest first. Facts that the history lacks are recorded elsewhere before they
    leave."""
    protected: bool = False
    epoch: int = EPOCH_UNSET
    """Garbage collection epoch for newly written objects; unset until something is staged or sealed."""
    claimed: int = CERTAIN
    """For a name that is only claimed, the epoch of the claim (see `RefClaims`)."""
    format_version: int = FORMAT_VERSION


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A permanent name of a commit."""

    commit: str
    claimed: int = CERTAIN
    """As in `BranchRecord`."""
    format_version: int = FORMAT_VERSION


class Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest epoch of garbage collection and its begin, in seconds since 1970."""

    number: int = 0
    began_s: float = 0.0
    given: str = ""
    """Changes before each name is given. If it is the same before and after a scan of all names, the scan was
    complete."""
    expired: int = 0
    """Number of commits that have ever expired."""
    horizon_s: float = 0.0
    """Time of the newest expired commit; a later commit never needs a lookup of its gap."""
    oldest: str = ""
    """The oldest commit of `main` that can be read, since commits have expired."""
    oldest_at: str = ""
    """Its time."""
    expiring: str = ""
    """Key of the expiry (`Expiry`) that is decided and not yet carried out; empty if there is none."""
    format_version: int = FORMAT_VERSION


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Consecutive expired commits, stored under the id of the newest. Walks through the history continue below."""

    below: str
    """The next older commit that is kept; empty if there is none."""
    generation: int
    """The generation of that commit, or -1. A gap only grows, so the record with the lower generation is the later."""
    commits: int
    """Number of expired commits."""
    unused_since: int = EPOCH_UNSET
    """Epoch in which no kept commit led to the gap any more."""
    format_version: int = FORMAT_VERSION


class Expiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gaps that one collection decided to create or to extend."""

    gaps: dict[str, Gap]
    format_version: int = FORMAT_VERSION


VersionsRecord = (
    Range
    | Metarange
    | Commit
    | ChangeSet
    | BranchRecord
    | Tag
    | Epoch
    | Gap
    | Expiry
    | Announcement
    | Answer
    | OldAnswer
)
RecordT = TypeVar("RecordT", bound=VersionsRecord)


def to_bytes(record: VersionsRecord) -> bytes:
    """Encode a record as JSON. Equal records give equal bytes."""
    return encode(record)


def content_id(data: bytes) -> str:
    """Return the id of a record's bytes."""
    return hashlib.sha256(data).hexdigest()


def from_bytes(kind: type[RecordT], data: bytes, what: str) -> RecordT:
    """Decode a record. Raises DamageError, which names the record by `what`, if the bytes are truncated or have another
    format."""
    return decode(kind, data, what, FORMAT_VERSION)


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
"""Names of branches and tags. No part may be empty, or one that a URL or a path would drop."""
COMMIT_ID: Final = re.compile(r"[0-9a-f]{6,64}")
_GRAMMAR: Final = re.compile(
    r"(?P<name>[^~@]+)(?:~(?P<back>\d{1,9})|@(?P<transaction>\d{1,9})|@(?P<time>.+))?"
)


@dataclass(frozen=True, slots=True)
class Ref:
    """A parsed reference: a name, and a step from its commit. At most one of the fields other than the name is set."""

    name: str
    back: int = 0
    transaction: int | None = None
    time: datetime | None = None


def parse(text: str) -> Ref:
    """Parse a reference. Raises RefNotFoundError if the text is no valid reference."""
    match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if match is None or not is_name(match["name"]):
        raise RefNotFoundError(
            f"{shown(text)} is not a commit reference. Write a branch, a tag or the beginning of a commit's "
            "id, optionally followed by ~3 (steps back), @17 (a transaction) or @2026-01-01T00:00Z (a time)."
        )
    transaction = int(match["transaction"]) if match["transaction"] else None
    time = _time(text, match["time"]) if match["time"] else None
    return Ref(match["name"], int(match["back"] or 0), transaction, time)


def check_name(name: str, what: str) -> None:
    """Raise UsageError if a branch or tag (`what`) cannot have this name."""
    if not is_name(name) or COMMIT_ID.fullmatch(name):
        raise UsageError(
            f"{shown(name)} cannot be a {what}: use letters and digits, with . _ / - between them, and "
            "not a commit's id."
        )


def shown(value: object) -> str:
    """Return a caller's value for display in a message; a long one is truncated."""
    text = repr(value)
    return text if len(text) <= REF_NAME_MAX_CHARS else f"{text[:REF_NAME_MAX_CHARS]}…"


def is_name(name: str) -> bool:
    """Return whether a branch or tag may have this name."""
    return isinstance(name, str) and len(name) <= REF_NAME_MAX_CHARS and bool(NAME.fullmatch(name))


def _time(text: str, time: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError as error:
        raise RefNotFoundError(
            f"{shown(text)} is not valid: {shown(time)} is not a time; write it as 2026-01-01T00:00Z or "
            "2026-01-01."
        ) from error
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
