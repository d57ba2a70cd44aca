"""Records of an index: receipts of staged parts, manifests, part lists and part contents, with their paths.

A manifest describes the complete index as of one transaction. It contains the newest parts itself, and refers to
lists of older parts, which it shares with earlier manifests. A part is one object of pack.py. Parts and lists are
stored under the build that made them and are named by their checksum, so writing one twice is harmless.

`PartContents` bounds the spans of a part, so that searches can skip parts without matches.

The module also finds the documents of rows that are not live. They are excluded from hits, counts and sort orders.

No part is rewritten when rows are replaced. Each document has the id of its row, and the table knows the ids of removed
rows. For each commit, documents of removed rows are marked as deleted in tantivy's file format, next to the links to
the parts. Totals and facets are therefore exact at every commit. Scores still count the words of marked documents until
their part is merged.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tracelake.formats import decode, encode
from tracelake.limits import INDEX_VALUE_MAX_CHARS
from tracelake.search import analyzers
from tracelake.search.vectors import PartVectors, VectorSettings

INDEX_CONTENTS_MAX_VALUES: Final = 32
"""Services, and workspaces, listed for an index part."""

NAMED: Final = {"service": "services", "workspace": "workspaces"}
"""Fields of which a part lists all values, with their attribute in `PartContents`."""


class PartContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First and last start time of a part's spans, both inclusive, and its lower-case services and workspaces.

    The bounds may be wider than the spans, never narrower. A field is None if its values are too many or too long; the
    part may then have any value.
    """

    first_ns: int
    last_ns: int
    services: tuple[str, ...] | None
    workspaces: tuple[str, ...] | None

    def __post_init__(self) -> None:
        """Reject contradictory values, on writing and on reading."""
        if self.first_ns > self.last_ns:
            raise ValueError(f"the first span starts at {self.first_ns}, after the last at {self.last_ns}")

    def values(self, field: str) -> tuple[str, ...] | None:
        """Return the values of one of the `NAMED` fields; None for any."""
        values: tuple[str, ...] | None = getattr(self, NAMED[field])
        return values


class ContentsOf:
    """Collects the contents of a part (`PartContents`) while its rows are written."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._values: dict[str, set[str] | None] = {field: set() for field in NAMED}

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Record a non-empty batch of rows, and return it unchanged."""
        ends: Any = pc.min_max(batch.column("start_ns"))
        self._times += [ends["min"].as_py(), ends["max"].as_py()]
        for field, values in self._values.items():
            if values is not None:
                different: Any = pc.unique(batch.column(field))
                self._values[field] = _bounded(values.union(filter(None, different.to_pylist())))
        return batch

    def finish(self) -> PartContents | None:
        """Return the bounds of all recorded rows; None if there were no rows."""
        return _contents(self._times, self._values)


def together(several: Iterable[PartContents | None]) -> PartContents | None:
    """Return the bounds of several parts merged into one; None if a part has no bounds."""
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
    """Return the number of spans of an index that are outside of these contents, by start time or by value."""
    schema, all_of_them = analyzers.schema(), tantivy.Query.all_query()
    inside = tantivy.Query.range_query(
        schema, "start", tantivy.FieldType.Integer, contents.first_ns, contents.last_ns
    )
    outside = [_without(all_of_them, inside)]
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
"""Pattern for names of indexes, builds and attempts, which become parts of paths."""

BUILD_ANEW: Final = "build the index anew with `tracelake index rebuild`"
"""Advice in errors about an unreadable index."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def rebuild_name(epoch: int, unique: str) -> str:
    """Return the name of a rebuild of the index that began in an epoch of garbage collection."""
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
    """Return the path of a build's list of parts, which contains its checksum."""
    return f"search/{index}/lists/{build}/{hashlib.sha256(parts.to_json('')).hexdigest()}.json"


def manifest_path(index: str, build: str) -> str:
    """Return the path of the manifest of a build, which is also the marker that the build is complete."""
    return f"search/{index}/manifests/{build}.json"


class _ManifestRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format_version: int = FORMAT_VERSION

    def to_json(self, path: str) -> bytes:
        """Return the record as JSON for its path. Equal records give equal bytes."""
        return encode(self, path)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Self:
        """Read a record from its path. Raises DamageError if it does not decode."""
        return decode(cls, data, f"{cls.__name__.lower()} {path}", FORMAT_VERSION, path)


class Receipt(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description by a worker of the part that it staged for buckets [lo, hi).

    A range without documents has a receipt but no part: `path` and `sha256` are None.
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
    """The first transaction whose rows the part holds, if it differs from that of the build."""
    vectors: PartVectors | None = None
    """The part's vectors; None if none were requested."""
    contents: PartContents | None = None
    """Bounds of the part's spans; None if there is no part or the bounds are unknown."""

    def __post_init__(self) -> None:
        """Reject contradictory values, on writing and on reading."""
        if self.lo >= self.hi:
            raise ValueError(f"the range [{self.lo}, {self.hi}) is empty")
        if self.path is None and self.contents is not None:
            raise ValueError("there is no part, and it has contents")
        present = {self.documents > 0, self.size_bytes > 0, self.sha256 is not None, self.path is not None}
        if len(present) != 1 or (self.vectors is not None and self.path is None):
            raise ValueError(
                "documents, size_bytes, sha256, path and vectors do not agree on whether there is a part"
            )


class PartRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of an index."""

    path: str
    documents: Annotated[int, msgspec.Meta(gt=0)]
    size_bytes: Annotated[int, msgspec.Meta(gt=0)]
    sha256: Sha256
    build: str
    """The build that made the part, and the buckets [lo, hi) that it covers in that build."""
    lo: Count
    hi: Count
    lower: Count
    """The transactions [lower, upper) whose rows the part holds: all rows of one, or after a merge those live at
    `as_of`."""
    upper: Count
    as_of: Count
    """The transaction as of which its rows are live. For a part that was never merged, that of the rows."""
    vectors: PartVectors | None = None
    contents: PartContents | None = None
    """Bounds of the part's spans; None if unknown, so that the part may contain anything."""

    def __post_init__(self) -> None:
        """Reject contradictory values, on writing and on reading."""
        if not self.path.endswith(f"/parts/{self.build}/{self.sha256}.pack"):
            raise ValueError(
                f"the path {self.path} is not that of the checksum {self.sha256} and build {self.build}"
            )


class PartList(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ordered list of parts."""

    parts: tuple[PartRef, ...]


class ListRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reference from a manifest to a list, with the totals of its parts."""

    path: str
    parts: Annotated[int, msgspec.Meta(gt=0)]
    documents: Annotated[int, msgspec.Meta(gt=0)]


class Manifest(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete index as of transaction `upper` - 1: exactly the parts that a searcher opens, in order.

    These are the parts of the lists, then the newest parts. Each list has more than twice as many parts as the next
    one, so there are few lists (see `protocol.lists_to_join`).
    """

    index: str
    build: str
    upper: Count
    fingerprint: str
    parent: str | None
    """Path of the manifest that the branch named when this one was made."""
    lists: tuple[ListRef, ...]
    newest: tuple[PartRef, ...]
    vectors: VectorSettings | None = None
    """Vector settings of its parts and of the next transaction; None if vectors are off."""

    @property
    def documents(self) -> int:
        """The number of documents in all parts."""
        return sum(ref.documents for ref in self.lists) + sum(part.documents for part in self.newest)

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return sum(one.parts for one in self.lists) + len(self.newest)


class Redaction(_ManifestRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replacement of a part, or of a list of parts, by one without the documents of erased traces."""

    path: str
    """Path of the replaced object."""
    erasure: str
    """Id of the erasure."""
    part: PartRef | None = None
    part_list: ListRef | None = None
    is_written: bool = False
    """Whether the replacement exists. If it is neither a part nor a list, no document is left."""

    @property
    def target(self) -> str | None:
        """The path of the replacement; None if no document is left."""
        replacement = self.part or self.part_list
        return None if replacement is None else replacement.path


@dataclass(frozen=True, slots=True)
class PartProblem:
    """Part or list of a manifest that cannot be searched."""

    kind: Literal["missing", "damaged"]
    path: str
    detail: str


RowIds: TypeAlias = npt.NDArray[np.int64]
Marked: TypeAlias = dict[int, list[int]]
"""Numbers of the documents to omit, by segment number."""

NOBODY: Final[RowIds] = np.array([], np.int64)
_FOOTER_END: Final = struct.Struct("<II")
"""Length of the footer and a magic number, in the same format in every tantivy file."""


class RowSelection(Protocol):
    """The rows of table `spans` in a snapshot, by id."""

    @property
    def as_of(self) -> int:
        """The last transaction of the commit."""

    @property
    def count(self) -> int | None:
        """The number of live rows; None if only reading can determine it."""

    def removed_rows(self, parts: Sequence[PartRef]) -> RowIds:
        """Return ids of removed rows, including those in these parts as far as the table remembers them."""

    def live(self) -> RowIds:
        """Return the ids of all live rows, sorted."""


def marked(
    index: tantivy.Index,
    searcher: tantivy.Searcher,
    sizes: Sequence[int],
    parts: Sequence[PartRef],
    rows: RowSelection,
) -> Marked:
    """Return the documents whose rows are not live.

    The table lists the removed rows, which takes time proportional to their number. If the table has forgotten some, or
    if the index is of another transaction than the table, the counts differ, and each document is checked. `sizes` are
    the document counts of the segments.
    """
    removed = rows.removed_rows(parts)
    marks: Marked = defaultdict(list)
    if len(removed):
        query = tantivy.Query.term_set_query(index.schema, "row", removed.tolist())
        for _, address in searcher.search(query, len(removed), count=False).hits:
            marks[address.segment_ord].append(address.doc)
    if searcher.num_docs - sum(map(len, marks.values())) == rows.count:
        return marks
    return not_live(searcher, sizes, rows.live())


def not_live(searcher: tantivy.Searcher, sizes: Sequence[int], live: RowIds) -> Marked:
    """Return the documents whose rows are not in `live`, by checking each; `sizes` as in `marked`."""
    marks: Marked = {}
    for segment, documents in enumerate(sizes):
        ids = rows_of_documents(searcher, segment, documents)
        marks[segment] = np.flatnonzero(~np.isin(ids, live)).tolist()
    return {segment: numbers for segment, numbers in marks.items() if numbers}


def rows_of_documents(searcher: tantivy.Searcher, segment: int, documents: int) -> RowIds:
    """Return the row ids of all documents of a segment, in document order."""
    addresses = [tantivy.DocAddress(segment, document) for document in range(documents)]
    return np.array(searcher.fast_field_values("row", addresses), np.int64)


def write_marks(path: Path, documents: int, marked_ones: Sequence[int], like: Path) -> None:
    """Write the omitted documents of a segment as a tantivy file of deletes, with the footer of the file `like`."""
    alive = np.ones(-(-documents // 64) * 64, bool)
    alive[documents:] = False
    alive[list(marked_ones)] = False
    body = struct.pack("<I", documents) + np.packbits(alive, bitorder="little").tobytes()
    _, footer, magic = _split(like.read_bytes())
    footer["crc"] = zlib.crc32(body)
    encoded = json.dumps(footer).encode()
    path.write_bytes(body + encoded + _FOOTER_END.pack(len(encoded), magic))


def is_as_written(path: Path) -> bool:
    """Whether a file matches the checksum in its footer. tantivy itself does not check it."""
    try:
        body, footer, _ = _split(path.read_bytes())
        return bool(footer["crc"] == zlib.crc32(body))
    except (ValueError, KeyError, TypeError, struct.error):
        return False


def _split(data: bytes) -> tuple[memoryview, dict[str, Any], int]:
    """Return the body of a tantivy file, its footer, and the number at its end."""
    size, magic = _FOOTER_END.unpack_from(data, len(data) - _FOOTER_END.size)
    end = len(data) - _FOOTER_END.size
    return memoryview(data)[: end - size], json.loads(data[end - size : end]), magic
