"""Records of a repository: commits, and the entries that they name (PROTOCOLS §3). Content-addressed JSON.

A commit names a metarange, a metarange its ranges, a range the entries in order of name. Each id is the
SHA-256 of the record's bytes, so two writers that build the same record write the same object.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeVar

import msgspec

from tracelake._errors import DamageError

FORMAT_VERSION: Final = 1


class TableAt(msgspec.Struct, frozen=True, tag="table", forbid_unknown_fields=True):
    """A table at a transaction."""

    shard: str
    as_of: int


class IndexAt(msgspec.Struct, frozen=True, tag="index", forbid_unknown_fields=True):
    """A full-text index at a transaction: the object that lists its parts."""

    manifest: str


Reference = TableAt | IndexAt


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sorted run of entries."""

    entries: tuple[tuple[str, Reference], ...]
    version: int = FORMAT_VERSION


class Metarange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ranges of one commit, in order."""

    ranges: tuple[str, ...]
    version: int = FORMAT_VERSION


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit. `created_at` is ISO 8601, UTC."""

    parents: tuple[str, ...]
    metarange: str
    message: str
    committer: str
    created_at: str
    metadata: dict[str, str]
    version: int = FORMAT_VERSION


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mutable record of a branch."""

    head: str
    version: int = FORMAT_VERSION


RecordT = TypeVar("RecordT", Range, Metarange, Commit, Branch)


def to_bytes(record: Range | Metarange | Commit | Branch) -> bytes:
    """Encode as JSON: the same record always gives the same bytes."""
    return msgspec.json.encode(record, order="deterministic")


def content_id(data: bytes) -> str:
    """Return the id of a record's bytes."""
    return hashlib.sha256(data).hexdigest()


def from_bytes(kind: type[RecordT], data: bytes, what: str) -> RecordT:
    """Decode a record. Raises DamageError for one that is torn or of another format."""
    try:
        record = msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise DamageError(f"{what} cannot be read: {error}") from error
    if record.version != FORMAT_VERSION:
        raise DamageError(f"{what} has format {record.version}; this release reads {FORMAT_VERSION}.")
    return record
