"""Several parts become one without their text: tantivy joins the postings that it has written.

That takes a tenth of what it takes to make them again of their rows. The binding has no call for it, but a writer that
commits looks for segments to merge, and takes at once all that count as equally large, if there are enough of them.
How large a segment counts is what `meta.json` says of its documents; which are left out is what a file of deletes says.
So each segment gets a file of deletes that is true, and counts as one document; and where segments are too few, others
of two documents, which are left out, make up the number. `test_merging.py` holds tantivy to this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import tantivy

from tracelake._errors import DamageError
from tracelake.scratch import scratch_directory
from tracelake.search import fields
from tracelake.search.analyzers import ENGLISH
from tracelake.search.cache import PartCache, link
from tracelake.search.live import Marked, RowIds, is_as_written, rows_of_documents, write_marks
from tracelake.search.model import PartRef
from tracelake.search.pack import IndexSegment, read_meta, write_meta
from tracelake.storage.ports import ObjectStore

_SEGMENTS_MERGED: Final = 8
"""tantivy's `LogMergePolicy` merges no fewer, and counts all of up to 10,000 documents as equally large."""
_HEAP_MIN: Final = 15_000_000
"""The least that tantivy takes: a merge does not use it."""
_PANIC: Final = "PanicException"
_MARKS: Final = 1
"""The number in the name of the files of deletes."""


def write_merged(directory: Path, objects: ObjectStore, parts: Sequence[PartRef], live: RowIds) -> int:
    """Write an index of one segment with the documents of these rows, sorted, and return how many there are.

    Raises:
        DamageError: A part is missing or altered, or was before it was packed, tantivy does not merge them, or they
            have not one document for each of the rows.
    """
    if not len(live):
        return 0
    try:
        _write(directory, objects, parts, live)
        merged = read_meta(directory).segments
    except DamageError:
        raise
    except BaseException as error:
        # tantivy panics where a part says of itself what is not so: no `Exception`, so that it would end the process.
        if isinstance(error, ValueError | TypeError | OverflowError) or type(error).__name__ == _PANIC:
            raise DamageError(f"parts of the index cannot be merged: {error}") from error
        raise
    if [segment.max_doc for segment in merged] != [len(live)]:
        raise DamageError(f"{len(live)} documents became {merged}: tantivy has not merged parts of the index")
    return len(live)


def _write(directory: Path, objects: ObjectStore, parts: Sequence[PartRef], live: RowIds) -> None:
    with scratch_directory("merge") as scratch:
        cache = PartCache(objects, scratch)
        headers = cache.fetch(parts, {})
        for part, header in zip(parts, headers, strict=True):
            for file in header.segment_files:
                link(scratch / part.sha256 / file.name, directory / file.name)
                if not is_as_written(directory / file.name):
                    raise DamageError(f"index part {part.path} was packed with a damaged file {file.name}")
    first = headers[0]
    if any(
        (each.tantivy_schema, each.index_settings) != (first.tantivy_schema, first.index_settings)
        for each in headers
    ):
        raise DamageError("parts of the index have different fields")
    write_meta(directory, headers)
    segments = [segment for header in headers for segment in header.segments]
    marks = _marks(directory, segments, live)
    marked = {segment: marks.get(at, []) for at, segment in enumerate(segments)}
    # tantivy reads no deletes of a segment that counts as whole; one that has nothing left is not needed.
    marked = {segment: numbers for segment, numbers in marked.items() if len(numbers) < segment.max_doc}
    marked |= {filler: [0, 1] for filler in _fillers(directory, _SEGMENTS_MERGED - len(marked))}
    for segment, numbers in marked.items():
        _mark(directory, segment, numbers)
    counted = {segment.segment_id: (segment.max_doc - 1, _MARKS) for segment in marked}
    write_meta(directory, [msgspec.structs.replace(first, segments=list(marked))], counted)
    _commit(directory)


def _marks(directory: Path, segments: Sequence[IndexSegment], live: RowIds) -> Marked:
    """Return the documents to leave out."""
    searcher = tantivy.Index.open(str(directory)).searcher()
    marks: Marked = {}
    several = [live[:0]]
    for at, segment in enumerate(segments):
        ids = rows_of_documents(searcher, at, segment.max_doc)
        is_live = np.isin(ids, live)
        marks[at] = np.flatnonzero(~is_live).tolist()
        several.append(ids[is_live])
    left = np.sort(np.concatenate(several))
    if not np.array_equal(left, live):
        raise DamageError(
            f"parts of the index have {len(left)} documents for {len(live)} rows, of {len(np.unique(left))} of them; "
            "build it anew"
        )
    return marks


def _mark(directory: Path, segment: IndexSegment, documents: Sequence[int]) -> None:
    name = directory / segment.segment_id.replace("-", "")
    write_marks(
        name.with_suffix(f".{_MARKS}.del"), segment.max_doc, documents, like=name.with_suffix(".fieldnorm")
    )


def _fillers(directory: Path, count: int) -> Iterator[IndexSegment]:
    """Write segments of two empty documents each."""
    for _ in range(count):
        with scratch_directory("merge") as scratch:
            index = tantivy.Index(fields.schema(), path=str(scratch))
            fields.register_tokenizers(index, ENGLISH.tokenizer())  # there is no word in them
            writer = index.writer(heap_size=_HEAP_MIN, num_threads=1)
            writer.add_document(tantivy.Document())
            writer.add_document(tantivy.Document())
            writer.commit()
            writer.wait_merging_threads()
            header = read_meta(scratch)
            for file in header.files:
                link(scratch / file.name, directory / file.name)
            yield from header.segments


def _commit(directory: Path) -> None:
    writer = tantivy.Index.open(str(directory)).writer(heap_size=_HEAP_MIN, num_threads=1)
    writer.commit()
    writer.wait_merging_threads()
