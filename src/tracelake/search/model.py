"""What the index writes down: receipts of staged parts, manifests with their lists; and where everything lies.

A manifest stands for the whole index as of one transaction. The newest parts are in the manifest itself, older ones
in lists that it shares with the manifests before it. A part is one object of pack.py. Parts and lists lie under the
build that made them, with a name made of their checksum, so that writing one twice is harmless.

What the spans of a part lie within, so that searches can leave out parts that have nothing of what they ask for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tracelake.formats import decode, encode
from tracelake.limits import INDEX_CONTENTS_MAX_VALUES, INDEX_VALUE_MAX_CHARS
from tracelake.search import analyzers
from tracelake.search.vectors import PartVectors, VectorSettings

NAMED: Final = {"service": "services", "workspace": "workspaces"}
"""Fields of which a part names all values, with where they stand."""


class PartContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The times at which the spans of a part start, both included, and their values of some fields, in lower case.

    It may be wider than what is there, and never narrower. Values that are too many or too long are None: any.
    """

    first_ns: int
    last_ns: int
    services: tuple[str, ...] | None
    workspaces: tuple[str, ...] | None

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read."""
        if self.first_ns > self.last_ns:
            raise ValueError(f"the first span starts at {self.first_ns}, after the last at {self.last_ns}")

    def values(self, field: str) -> tuple[str, ...] | None:
        """Return the values of one of the fields that are `NAMED`, None for any."""
        values: tuple[str, ...] | None = getattr(self, NAMED[field])
        return values


class ContentsOf:
    """Looks at the rows of a part as they pass by."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._values: dict[str, set[str] | None] = {field: set() for field in NAMED}

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take note of some rows, at least one, and return them as they are."""
        ends: Any = pc.min_max(batch.column("start_ns"))
        self._times += [ends["min"].as_py(), ends["max"].as_py()]
        for field, values in self._values.items():
            if values is not None:
                different: Any = pc.unique(batch.column(field))
                self._values[field] = _bounded(values.union(filter(None, different.to_pylist())))
        return batch

    def finish(self) -> PartContents | None:
        """Return what they all lie within, None of no rows."""
        return _contents(self._times, self._values)


def together(several: Iterable[PartContents | None]) -> PartContents | None:
    """Return what parts lie within when they are one; None where one of them does not say it."""
    times: list[int] = []
    values: dict[str, set[str] | None] = {field: set() for field in NAMED}
    for each in several:
        if each is None:
            return None
        times += [each.first_ns, each.last_ns]
        for field, before in values.items():
            own = each.values(field)
            values[field] = None if before is None or own is None else _bounded(before.union(own))
    return _contents(times, values)


def _bounded(values: set[str]) -> set[str] | None:
    few = len(values) <= INDEX_CONTENTS_MAX_VALUES
    return values if few and all(len(value) <= INDEX_VALUE_MAX_CHARS for value in values) else None


def _contents(times: Sequence[int], values: dict[str, set[str] | None]) -> PartContents | None:
    if not times:
        return None
    by_name = {
        NAMED[field]: None if own is None else tuple(sorted({analyzers.lowered(value) for value in own}))
        for field, own in values.items()
    }
    return PartContents(first_ns=min(times), last_ns=max(times), **by_name)


def spans_outside(searcher: tantivy.Searcher, contents: PartContents) -> int:
    """Return how many spans of an index start at other times, or have other values, than its contents say."""
    schema, all_of_them = analyzers.schema(), tantivy.Query.all_query()
    within = tantivy.Query.range_query(
        schema, "start", tantivy.FieldType.Integer, contents.first_ns, contents.last_ns
    )
    outside = [_without(all_of_them, within)]
    for field in NAMED:
        values = contents.values(field)
        if values is not None:
            having = tantivy.Query.exists_query(field)
            outside.append(_without(having, tantivy.Query.term_set_query(schema, field, list(values))))
    hits: Any = searcher.search(
        tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in outside]), 1, count=True
    )
    return int(hits.count or 0)


def _without(query: tantivy.Query, other: tantivy.Query) -> tantivy.Query:
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.MustNot, other)])


FORMAT_VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
"""What names of indexes, builds and attempts look like, so that paths can be made of them."""

BUILD_ANEW: Final = "build the index anew with `tracelake index rebuild`"
"""What to do about an index that cannot be read."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def rebuild_name(epoch: int, unique: str) -> str:
    """Return the name of a build that makes the index anew, begun in an epoch of garbage collection."""
    return f"rebuild-{epoch:06d}-{unique}"


def staging_prefix(index: str, build: str) -> str:
    """Return the prefix of everything that is staged for one build."""
    return f"search/{index}/staging/{build}/"


def staged_path(index: str, build: str, *, lo: int, hi: int, attempt: str, suffix: str) -> str:
    """Return the path of a staged part (`suffix` pack) or of its receipt (`suffix` receipt)."""
    assert all(NAME.fullmatch(name) for name in (index, build, attempt)), (index, build, attempt)
    return f"{staging_prefix(index, build)}part_{lo}-{hi}_{attempt}.{suffix}"


def part_path(index: str, build: str, sha256: str) -> str:
    """Return the canonical path of a part that a build made."""
    return f"search/{index}/parts/{build}/{sha256}.pack"


def list_path(index: str, build: str, parts: PartList) -> str:
    """Return the path of a list of parts that a build made: that of its content."""
    return f"search/{index}/lists/{build}/{hashlib.sha256(parts.to_json('')).hexdigest()}.json"


def manifest_path(index: str, build: str) -> str:
    """Return the path of the manifest of one build, which is also the marker that the build is done."""
    return f"search/{index}/manifests/{build}.json"


class _ManifestRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format_version: int = FORMAT_VERSION

    def to_json(self, path: str) -> bytes:
        """Return the record as JSON for its path; equal records give equal bytes."""
        return encode(self, path)


_AnyRecord = TypeVar("_AnyRecord", bound=_ManifestRecord)


def _decode(kind: type[_AnyRecord], data: bytes, path: str) -> _AnyRecord:
    return decode(kind, data, f"{kind.__name__.lower()} {path}", FORMAT_VERSION, path)


class Receipt(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    lower: Count | None = None
    """The first transaction whose rows it holds, where that is not the one of the build."""
    vectors: PartVectors | None = None
    """What the part has of vectors; None where none were asked for."""
    contents: PartContents | None = None
    """What its spans lie within; None where there is no part, or nobody knows."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read."""
        if self.lo >= self.hi:
            raise ValueError(f"the range [{self.lo}, {self.hi}) is empty")
        if self.path is None and self.contents is not None:
            raise ValueError("there is no part, and it has contents")
        present = {self.documents > 0, self.size_bytes > 0, self.sha256 is not None, self.path is not None}
        if len(present) != 1 or (self.vectors is not None and self.path is None):
            raise ValueError(
                "documents, size_bytes, sha256, path and vectors do not agree on whether there is a part"
            )

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Receipt:
        """Read a receipt that was found at `path`. Raises DamageError."""
        return _decode(cls, data, path)


class PartRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of an index."""

    path: str
    documents: Annotated[int, msgspec.Meta(gt=0)]
    size_bytes: Annotated[int, msgspec.Meta(gt=0)]
    sha256: Sha256
    build: str
    """The build that made it, and the buckets [lo, hi) that it covers there."""
    lo: Count
    hi: Count
    lower: Count
    """The transactions [lower, upper) whose rows it holds: all of one; after a merge, those live `as_of` then."""
    upper: Count
    as_of: Count
    """The transaction as of which its rows are live; that of the rows themselves where nobody has merged it."""
    vectors: PartVectors | None = None
    contents: PartContents | None = None
    """What its spans lie within; None where nobody knows, so that it may have anything."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read."""
        if not self.path.endswith(f"/parts/{self.build}/{self.sha256}.pack"):
            raise ValueError(
                f"the path {self.path} is not that of the checksum {self.sha256} and build {self.build}"
            )


class PartList(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some parts, in order."""

    parts: tuple[PartRef, ...]

    @classmethod
    def from_json(cls, data: bytes, path: str) -> PartList:
        """Read a list that was found at `path`. Raises DamageError."""
        return _decode(cls, data, path)


class ListRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a manifest says of a list: where it is, and what is in its parts together."""

    path: str
    parts: Annotated[int, msgspec.Meta(gt=0)]
    documents: Annotated[int, msgspec.Meta(gt=0)]


class Manifest(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole index as of transaction `upper` - 1: exactly the parts that a searcher opens, in order.

    These are the parts of the lists, then the newest. Every list has more than twice the parts of the next, so
    that there are few (see `protocol.lists_to_join`).
    """

    index: str
    build: str
    upper: Count
    fingerprint: str
    parent: str | None
    """The path of the manifest that the branch named when this one was made."""
    lists: tuple[ListRef, ...]
    newest: tuple[PartRef, ...]
    vectors: VectorSettings | None = None
    """The vectors that its parts have, and those of the next transaction will; None where nobody wants any."""

    @property
    def documents(self) -> int:
        """The number of documents in all parts."""
        return sum(ref.documents for ref in self.lists) + sum(part.documents for part in self.newest)

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return sum(one.parts for one in self.lists) + len(self.newest)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Manifest:
        """Read a manifest that was found at `path`. Raises DamageError."""
        return _decode(cls, data, path)


@dataclass(frozen=True, slots=True)
class PartProblem:
    """One part or list of a manifest that cannot be searched."""

    kind: Literal["missing", "damaged"]
    path: str
    detail: str
