"""Building of index parts: a worker indexes rows, or merges parts, and stages one part with its receipt.

Parts merge without their text: tantivy joins the postings that it has written, in a tenth of the time that indexing the
rows takes. The Python binding has no call for a merge. A writer that commits, however, merges all segments that count
as equally large, if there are enough of them.

The size of a segment is the document count in `meta.json`, and a file of deletes lists its omitted documents. Each
segment therefore gets a correct file of deletes and counts as one document. If there are too few segments, fillers of
two omitted documents each make up the number. `test_merging.py` checks this behaviour of tantivy.

Vectors of merged parts are copied, so the embedding function is not called again.

An `UnpublishedPart` indexes uncommitted rows for one process. No manifest names it, but queries, scores, facets and
sort orders treat it as any other part. Its rows have ids that no table row has. If a table row and an uncommitted row
are versions of the same span, `WithUnpublished` hides the losing document like that of a replaced row.
"""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tracelake import limits
from tracelake._errors import DamageError, StorageError
from tracelake.limits.input import MIB
from tracelake.scratch import delete_directory, scratch_directory
from tracelake.search import analyzers, model, part_cache
from tracelake.search.analyzers import ENGLISH, Analyzer
from tracelake.search.documents import COLUMNS, documents
from tracelake.search.vector_index import FILE, BlockWriter, PartVectorWriter, check_block, read_block
from tracelake.search.vectors import PartVectors, VectorSettings
from tracelake.storage.ports import ObjectStore
from tracelake.storage.wrappers import put_temporary

INDEX_HEAP_BYTES: Final = 512 * MIB
"""Memory of one index part while it is built."""
INDEX_BATCH_ROWS: Final = 8_192
"""Spans converted to documents at a time."""

_SEGMENTS_MERGED: Final = 8
"""Minimum number of segments to merge. tantivy's `LogMergePolicy` treats all segments of up to 10,000 documents as
equally large."""
_HEAP_MIN: Final = 15_000_000
"""Smallest heap that tantivy accepts. A merge does not use it."""
_PANIC: Final = "PanicException"
_MARKS: Final = 1
"""The number in the names of the files of deletes."""


def write_merged(
    directory: Path, objects: ObjectStore, parts: Sequence[model.PartRef], live: model.RowIds
) -> int:
    """Write an index of one segment with the documents of these sorted row ids; return their number.

    Raises:
        DamageError: A part is missing or altered, or was damaged before it was packed. Also if tantivy does not
            merge the parts, or they do not have exactly one document for each row.
    """
    if not len(live):
        return 0
    try:
        _write(directory, objects, parts, live)
        merged = part_cache.read_meta(directory).segments
    except DamageError:
        raise
    except BaseException as error:
        # tantivy panics on a part with wrong metadata. The panic is not an `Exception`, so it would end the
        # process.
        if isinstance(error, ValueError | TypeError | OverflowError) or type(error).__name__ == _PANIC:
            raise DamageError(f"parts of the index cannot be merged: {error}") from error
        raise
    if [segment.max_doc for segment in merged] != [len(live)]:
        raise DamageError(f"{len(live)} documents became {merged}: tantivy has not merged parts of the index")
    return len(live)


def _write(directory: Path, objects: ObjectStore, parts: Sequence[model.PartRef], live: model.RowIds) -> None:
    with scratch_directory("merge", size_bytes=unpacked_bytes(parts)) as scratch:
        cache = part_cache.PartCache(objects, scratch)
        headers = cache.fetch(parts, {})
        for part, header in zip(parts, headers, strict=True):
            for file in header.segment_files:
                part_cache.link(scratch / part.sha256 / file.name, directory / file.name)
                if not model.is_as_written(directory / file.name):
                    raise DamageError(f"index part {part.path} was packed with a damaged file {file.name}")
    first = headers[0]
    if any(
        (each.tantivy_schema, each.index_settings) != (first.tantivy_schema, first.index_settings)
        for each in headers
    ):
        raise DamageError("parts of the index have different fields")
    part_cache.write_meta(directory, headers)
    segments = [segment for header in headers for segment in header.segments]
    marks = _marks(directory, segments, live)
    marked = {segment: marks.get(at, []) for at, segment in enumerate(segments)}
    # tantivy ignores the deletes of a segment that it counts as complete. A segment with no remaining
    # documents is not needed.
    marked = {segment: numbers for segment, numbers in marked.items() if len(numbers) < segment.max_doc}
    marked |= {filler: [0, 1] for filler in _fillers(directory, _SEGMENTS_MERGED - len(marked))}
    for segment, numbers in marked.items():
        _mark(directory, segment, numbers)
    counted = {segment.segment_id: (segment.max_doc - 1, _MARKS) for segment in marked}
    part_cache.write_meta(directory, [msgspec.structs.replace(first, segments=list(marked))], counted)
    _commit(directory)


def _marks(directory: Path, segments: Sequence[part_cache.IndexSegment], live: model.RowIds) -> model.Marked:
    """Return the documents to omit."""
    searcher = tantivy.Index.open(str(directory)).searcher()
    marks: model.Marked = {}
    several = [live[:0]]
    for at, segment in enumerate(segments):
        ids = model.rows_of_documents(searcher, at, segment.max_doc)
        is_live = np.isin(ids, live)
        marks[at] = np.flatnonzero(~is_live).tolist()
        several.append(ids[is_live])
    remaining = np.sort(np.concatenate(several))
    if not np.array_equal(remaining, live):
        raise DamageError(
            f"parts of the index have {len(remaining)} documents for {len(live)} rows, of "
            f"{len(np.unique(remaining))} of them; build it anew"
        )
    return marks


def _mark(directory: Path, segment: part_cache.IndexSegment, documents: Sequence[int]) -> None:
    name = directory / segment.segment_id.replace("-", "")
    model.write_marks(
        name.with_suffix(f".{_MARKS}.del"), segment.max_doc, documents, like=name.with_suffix(".fieldnorm")
    )


def _fillers(directory: Path, count: int) -> Iterator[part_cache.IndexSegment]:
    """Write segments of two omitted documents each, so that tantivy has enough segments to merge."""
    for _ in range(count):
        with scratch_directory("merge", size_bytes=0) as scratch:
            index = tantivy.Index(analyzers.schema(), path=str(scratch))
            analyzers.register_tokenizers(index, ENGLISH.tokenizer())  # the documents have no words
            writer = index.writer(heap_size=_HEAP_MIN, num_threads=1)
            writer.add_document(tantivy.Document())
            writer.add_document(tantivy.Document())
            writer.commit()
            writer.wait_merging_threads()
            header = part_cache.read_meta(scratch)
            for file in header.files:
                part_cache.link(scratch / file.name, directory / file.name)
            yield from header.segments


def _commit(directory: Path) -> None:
    writer = tantivy.Index.open(str(directory)).writer(heap_size=_HEAP_MIN, num_threads=1)
    writer.commit()
    writer.wait_merging_threads()


def write_joined(
    directory: Path,
    objects: ObjectStore,
    parts: Sequence[model.PartRef],
    live: model.RowIds,
    settings: VectorSettings,
) -> PartVectors:
    """Write the vectors of these sorted row ids from parts that have vectors; return their description.

    Raises DamageError if a part is missing or altered, or does not match its manifest.
    """
    with scratch_directory("join") as scratch:
        part_cache.PartCache(objects, scratch).fetch(parts, {})
        writer = BlockWriter(directory, settings)
        try:
            for part in parts:
                block = read_block(scratch / part.sha256 / FILE, part.path)
                check_block(block, part, settings)
                writer.join(block, np.flatnonzero(np.isin(block.rows, live)))
            vectors = writer.finish()
        finally:
            writer.close()
    # The failed rows are not recorded individually: some of them may be among the removed rows.
    failed = sum(part.vectors.failed for part in parts if part.vectors is not None)
    return PartVectors(
        fingerprint=settings.fingerprint, vectors=vectors, failed=min(failed, len(live) - vectors)
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """Description of an index that was written to a directory: number of documents, bounds of the rows, and vectors."""

    documents: int
    contents: model.PartContents | None
    vectors: PartVectors | None


_NOTHING: Final = _Written(0, None, None)


def build_part(
    objects: ObjectStore,
    index: str,
    build: str,
    lo: int,
    hi: int,
    attempt: str,
    rows: pa.Table | Iterable[pa.RecordBatch],
    *,
    analyzer: Analyzer = ENGLISH,
    lower: int | None = None,
    vectors: VectorSettings | None = None,
    size_bytes: int | None = None,
) -> model.Receipt:
    """Index rows of table `spans` (at least `documents.COLUMNS`) and stage the part for buckets [lo, hi).

    The receipt is returned and also stored next to the part, so that any finalizer can continue. If there are no
    rows, only a receipt is staged.

    Args:
        attempt: Must differ between tasks that may run at the same time.
        lower: The first transaction, if a build of one transaction also has rows of earlier ones.
        vectors: Settings for the vectors that the part gets.
        size_bytes: Arrow bytes of the rows, if known. Small parts are built in memory.

    Raises:
        StorageError: The part could not be staged. Nothing is visible; run it again.
    """
    write = partial(_write_part, rows=rows, analyzer=analyzer, vectors=vectors)
    return _stage(objects, index, build, (lo, hi), attempt, write, analyzer, lower, size_bytes)


def merge_parts(
    objects: ObjectStore,
    index: str,
    build: str,
    lo: int,
    hi: int,
    attempt: str,
    parts: Sequence[model.PartRef],
    live: model.RowIds,
    *,
    analyzer: Analyzer = ENGLISH,
    vectors: VectorSettings | None = None,
) -> model.Receipt:
    """Merge parts into one that has only documents of these rows, and stage it as `build_part` does.

    All parts were built with this analyzer. With `vectors`, all parts have vectors, and so has the result.

    Raises:
        DamageError: A part is missing or altered, or the parts do not have exactly one document for each row.
        StorageError: The part could not be staged. Nothing is visible; run it again.
    """

    def write(directory: Path) -> _Written:
        count = write_merged(directory, objects, parts, live)
        if not count:
            return _NOTHING
        joined = None if vectors is None else write_joined(directory, objects, parts, live, vectors)
        return _Written(count, model.together(part.contents for part in parts), joined)

    return _stage(objects, index, build, (lo, hi), attempt, write, analyzer, None, unpacked_bytes(parts))


def unpacked_bytes(parts: Iterable[model.PartRef]) -> int:
    """Return the approximate size of the files of parts."""
    return 2 * sum(part.size_bytes for part in parts)


def _stage(
    objects: ObjectStore,
    index: str,
    build: str,
    buckets: tuple[int, int],
    attempt: str,
    write: Callable[[Path], _Written],
    analyzer: Analyzer,
    lower: int | None,
    size_bytes: int | None,
) -> model.Receipt:
    """Let `write` write an index into a scratch directory, then stage the index."""
    lo, hi = buckets
    with scratch_directory("part", size_bytes=size_bytes) as directory:
        written = write(directory)
        data = b""
        if written.documents:
            header, data = part_cache.pack(directory)
            assert header.documents == written.documents, (header.documents, written)
    path = model.staged_path(index, build, lo=lo, hi=hi, attempt=attempt, suffix="pack")
    receipt = model.Receipt(
        build=build,
        lo=lo,
        hi=hi,
        attempt=attempt,
        documents=written.documents,
        fingerprint=analyzer.fingerprint,
        lower=lower,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest() if data else None,
        path=path if data else None,
        vectors=written.vectors if data else None,
        contents=written.contents,
    )
    if data:
        put_temporary(objects, path, data)
    # The receipt is written last: if it exists, its part was written (F7). A power failure may lose or damage either;
    # then the part is built again (F8).
    receipt_path = model.staged_path(index, build, lo=lo, hi=hi, attempt=attempt, suffix="receipt")
    put_temporary(objects, receipt_path, receipt.to_json(receipt_path))
    return receipt


def _write_part(
    directory: Path,
    rows: pa.Table | Iterable[pa.RecordBatch],
    analyzer: Analyzer,
    vectors: VectorSettings | None,
) -> _Written:
    """Write the text index and the vectors of the rows."""
    with nullcontext() if vectors is None else PartVectorWriter(directory, vectors) as writer:
        contents = model.ContentsOf()
        batches = map(contents.add, _small_batches(rows))
        count = _write_batches(directory, batches if writer is None else map(writer.add, batches), analyzer)
        return _Written(count, contents.finish(), None if writer is None else writer.finish())


def write_index(directory: Path, rows: pa.Table, analyzer: Analyzer) -> int:
    """Write a tantivy index of rows that have `documents.COLUMNS`; return the number of rows."""
    return _write_batches(directory, _small_batches(rows), analyzer)


def _write_batches(directory: Path, batches: Iterable[pa.RecordBatch], analyzer: Analyzer) -> int:
    """Write a tantivy index of the batches; return the number of rows."""
    index = tantivy.Index(analyzers.schema(), path=str(directory))
    analyzers.register_tokenizers(index, analyzer.tokenizer())
    # One thread and ample heap produce one segment. The pack supports several, in case a part outgrows the
    # heap.
    writer = index.writer(heap_size=INDEX_HEAP_BYTES, num_threads=1)
    count = 0
    for batch in batches:
        for document in documents(batch, analyzer):
            writer.add_document(document)
        count += batch.num_rows
    writer.commit()
    writer.wait_merging_threads()
    return count


def _small_batches(rows: pa.Table | Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
    for batch in batches:
        narrow = batch.select(list(COLUMNS))
        for start in range(0, narrow.num_rows, INDEX_BATCH_ROWS):
            yield from _bounded(narrow.slice(start, INDEX_BATCH_ROWS))


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of bounded bytes, or of a single row, because the texts of a slice become one column and then
    several."""
    if batch.num_rows <= 1 or batch.nbytes <= limits.INDEX_BATCH_MAX_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))


FIRST_UNPUBLISHED: Final = 1 << 62
"""Smallest id of uncommitted rows. It belongs to a transaction that no lake will reach."""


@dataclass(frozen=True, eq=False)
class UnpublishedPart:
    """Index of uncommitted rows, in a directory that is deleted when the last reference to the part is gone."""

    directory: Path
    header: part_cache.Header
    analyzer: Analyzer
    rows: pa.Table
    """Versions of spans with their `_row_id`. A span may have several versions."""

    @cached_property
    def last_ns(self) -> int:
        """The start time of its latest span."""
        return int(pc.max(self.rows["start_ns"]).as_py())

    @property
    def name(self) -> str:
        """Unique name of the part. It serves where published parts have their checksums."""
        return self.directory.name


def write_unpublished(rows: pa.Table, analyzer: Analyzer, cache: Path) -> UnpublishedPart:
    """Index one or more rows that have `_row_id` and the columns of documents, in a directory of the part cache.

    Raises StorageError if the directory cannot be written to.
    """
    assert len(rows), "a part has documents"
    try:
        with part_cache.stumbling():  # on a full disk, tantivy raises ValueError or panics
            return _written(rows, analyzer, cache)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{cache} cannot be used for indexing: {error}; repair it, or free space there"
        ) from error


def _written(rows: pa.Table, analyzer: Analyzer, cache: Path) -> UnpublishedPart:
    rows = rows.combine_chunks()  # because rows are taken from it repeatedly
    cache.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=part_cache.TEMPORARY, dir=cache))
    try:
        with scratch_directory("index", size_bytes=rows.nbytes) as built:
            write_index(built, rows, analyzer)
            header = part_cache.read_meta(built)
            for file in header.segment_files:
                part_cache.link(built / file.name, directory / file.name)
        part = UnpublishedPart(directory, header, analyzer, rows)
    except BaseException:
        delete_directory(directory)
        raise
    weakref.finalize(part, delete_directory, directory)
    return part


def no_index(fingerprint: str) -> model.Manifest:
    """Return an empty manifest for a lake that has no index yet."""
    return model.Manifest(
        index="none", build="none", upper=0, fingerprint=fingerprint, parent=None, lists=(), newest=()
    )


@dataclass(frozen=True, slots=True)
class WithUnpublished:
    """`live_docs.RowSelection` of a table (or no table) together with unpublished parts."""

    table: model.RowSelection | None
    parts: Sequence[UnpublishedPart]
    hidden: model.RowIds
    """Rows of the table or the parts that lost against another version of their span."""

    @property
    def as_of(self) -> int:
        """The last transaction of the table's snapshot."""
        return -1 if self.table is None else self.table.as_of

    @property
    def count(self) -> int | None:
        """The number of live rows; None if only reading can determine it."""
        of_table = 0 if self.table is None else self.table.count
        return (
            None
            if of_table is None
            else of_table + sum(len(part.rows) for part in self.parts) - len(self.hidden)
        )

    def removed_rows(self, parts: Sequence[model.PartRef]) -> model.RowIds:
        """Return ids of removed rows: those that the table knows of these parts, and the hidden ones."""
        return np.concatenate(
            [model.NOBODY if self.table is None else self.table.removed_rows(parts), self.hidden]
        )

    def live(self) -> model.RowIds:
        """Return the ids of all live rows, sorted."""
        ours = [part.rows["_row_id"].to_numpy() for part in self.parts]
        every = np.concatenate([model.NOBODY if self.table is None else self.table.live(), *ours])
        return np.setdiff1d(every, self.hidden)
