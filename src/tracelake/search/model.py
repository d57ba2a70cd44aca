"""What the index writes down: receipts of staged parts, and manifests; and where everything lies.

A manifest is the whole index as of one transaction. A part is one object of pack.py, under a name made of
its checksum, so that writing it twice is harmless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from tracelake.formats import decode, encode

FORMAT_VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
"""What names of indexes, builds and attempts look like, so that paths can be made of them."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def staging_prefix(index: str, build: str) -> str:
    """Return the prefix of everything that is staged for one build."""
    return f"search/{index}/staging/{build}/"


def staged_path(index: str, build: str, *, lo: int, hi: int, attempt: str, suffix: str) -> str:
    """Return the path of a staged part (`suffix` pack) or of its receipt (`suffix` receipt)."""
    assert all(NAME.fullmatch(name) for name in (index, build, attempt)), (index, build, attempt)
    return f"{staging_prefix(index, build)}part_{lo}-{hi}_{attempt}.{suffix}"


def part_path(index: str, sha256: str) -> str:
    """Return the canonical path of a part."""
    return f"search/{index}/parts/{sha256}.pack"


def manifest_path(index: str, build: str) -> str:
    """Return the path of the manifest of one build, which is also the marker that the build is done."""
    return f"search/{index}/manifests/{build}.json"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        """Return the record as JSON; equal records give equal bytes."""
        return encode(self)


_AnyRecord = TypeVar("_AnyRecord", bound=_Record)


def _decode(kind: type[_AnyRecord], data: bytes, path: str) -> _AnyRecord:
    return decode(kind, data, f"{kind.__name__.lower()} {path}", FORMAT_VERSION)


class Receipt(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker says of the part that it staged for buckets [lo, hi): its path, and what is in it.

    A range without documents has a receipt and no part: `path` and `sha256` are None.
    """

    build: str
    lo: Count
    hi: Count
    attempt: str
    documents: Count
    fingerprint: str
    size_bytes: Count
    sha256: Sha256 | None
    path: str | None

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read."""
        if self.lo >= self.hi:
            raise ValueError(f"the range [{self.lo}, {self.hi}) is empty")
        present = {self.documents > 0, self.size_bytes > 0, self.sha256 is not None, self.path is not None}
        if len(present) != 1:
            raise ValueError("documents, size_bytes, sha256 and path do not agree on whether there is a part")

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Receipt:
        """Read a receipt that was found at `path`. Raises DamageError."""
        return _decode(cls, data, path)


class PartRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of an index. `ordinal` is its place, which decides the order of equal scores."""

    ordinal: Count
    path: str
    documents: Annotated[int, msgspec.Meta(gt=0)]
    size_bytes: Annotated[int, msgspec.Meta(gt=0)]
    sha256: Sha256
    build: str
    """The build that made it, and the buckets [lo, hi) that it covers there."""
    lo: Count
    hi: Count


class Manifest(_Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole index as of transaction `upper` - 1: exactly the parts that a searcher opens, in order."""

    index: str
    build: str
    upper: Count
    fingerprint: str
    parent: str | None
    """The path of the manifest whose parts come first here."""
    parts: tuple[PartRef, ...]

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read."""
        if [part.ordinal for part in self.parts] != list(range(len(self.parts))):
            raise ValueError("the ordinals of the parts are not 0, 1, 2, …")
        if len({part.sha256 for part in self.parts}) != len(self.parts):
            raise ValueError("a part is named twice")
        for part in self.parts:
            if part.path != part_path(self.index, part.sha256):
                raise ValueError(
                    f"part {part.ordinal} has the path {part.path}, which is not that of its checksum"
                )

    @property
    def documents(self) -> int:
        """The number of documents in all parts."""
        return sum(part.documents for part in self.parts)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Manifest:
        """Read a manifest that was found at `path`. Raises DamageError."""
        return _decode(cls, data, path)


@dataclass(frozen=True, slots=True)
class PartProblem:
    """One part of a manifest that cannot be searched."""

    kind: Literal["missing", "damaged"]
    path: str
    detail: str
