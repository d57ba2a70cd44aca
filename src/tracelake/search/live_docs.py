"""Filter for documents of live rows. Other documents are excluded from hits, counts and sort orders.

No part is rewritten when rows are replaced. Each document has the id of its row, and the table knows the ids of
removed rows. For each commit, documents of removed rows are marked as deleted in tantivy's file format, next to the
links to the parts. So totals and facets are exact at every commit. Scores still count the words of marked documents
until their part is merged.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import tantivy

from tracelake.search.model import PartRef

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

    def gone(self, parts: Sequence[PartRef]) -> RowIds:
        """Return ids of removed rows: at least all that are in these parts, as far as the table remembers them."""

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

    The table lists the removed rows, which takes time proportional to their number. It may have forgotten some, or
    the index may be of another transaction than the table. Then the counts differ, and each document is checked.
    `sizes` are the document counts of the segments.
    """
    gone = rows.gone(parts)
    marks: Marked = defaultdict(list)
    if len(gone):
        query = tantivy.Query.term_set_query(index.schema, "row", gone.tolist())
        for _, address in searcher.search(query, len(gone), count=False).hits:
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
