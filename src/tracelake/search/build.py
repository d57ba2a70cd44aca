"""What a worker does: one part of the index out of rows of its buckets, or of other parts, staged with its receipt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import tantivy

from tracelake import limits
from tracelake.scratch import scratch_directory
from tracelake.search import fields
from tracelake.search.analyzers import ENGLISH, Analyzer
from tracelake.search.contents import ContentsOf, PartContents, together
from tracelake.search.documents import COLUMNS, documents
from tracelake.search.embedding import PartVectorWriter
from tracelake.search.joining import write_joined
from tracelake.search.live import RowIds
from tracelake.search.merging import write_merged
from tracelake.search.model import PartRef, Receipt, staged_path
from tracelake.search.pack import pack
from tracelake.search.vectors import PartVectors, VectorSettings
from tracelake.storage.ports import ObjectStore


@dataclass(frozen=True, slots=True)
class _Written:
    """What there is in a directory that was written: how many documents, within what, with which vectors."""

    documents: int
    contents: PartContents | None
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
) -> Receipt:
    """Index rows of table `spans` (at least `documents.COLUMNS`) and stage the part for buckets [lo, hi).

    The receipt is returned, and lies beside the part, so that any finalizer can continue. `attempt` must
    differ between tasks that may run at once. Without rows there is a receipt only. `lower` is the first transaction,
    where a build of one transaction has rows of others before it. With `vectors`, the part has those of its rows, too.

    Raises:
        StorageError: The part could not be staged; nothing is visible, run it again.
    """
    write = partial(_write_part, rows=rows, analyzer=analyzer, vectors=vectors)
    return _stage(objects, index, build, (lo, hi), attempt, write, analyzer, lower)


def merge_parts(
    objects: ObjectStore,
    index: str,
    build: str,
    lo: int,
    hi: int,
    attempt: str,
    parts: Sequence[PartRef],
    live: RowIds,
    *,
    analyzer: Analyzer = ENGLISH,
    vectors: VectorSettings | None = None,
) -> Receipt:
    """Make one part of others, of which only documents of these rows are left, and stage it as `build_part` does.

    All parts are of this analyzer. With `vectors`, all of them have those, and so has what becomes of them.

    Raises:
        DamageError: A part is missing or altered, or they have not one document for each of the rows.
        StorageError: The part could not be staged; nothing is visible, run it again.
    """

    def write(directory: Path) -> _Written:
        count = write_merged(directory, objects, parts, live)
        if not count:
            return _NOTHING
        joined = None if vectors is None else write_joined(directory, objects, parts, live, vectors)
        return _Written(count, together(part.contents for part in parts), joined)

    return _stage(objects, index, build, (lo, hi), attempt, write, analyzer, None)


def _stage(
    objects: ObjectStore,
    index: str,
    build: str,
    buckets: tuple[int, int],
    attempt: str,
    write: Callable[[Path], _Written],
    analyzer: Analyzer,
    lower: int | None,
) -> Receipt:
    """Have an index written into a directory, and stage it."""
    lo, hi = buckets
    with scratch_directory("part") as directory:
        written = write(directory)
        data = b""
        if written.documents:
            header, data = pack(directory)
            assert header.documents == written.documents, (header.documents, written)
    path = staged_path(index, build, lo=lo, hi=hi, attempt=attempt, suffix="pack")
    receipt = Receipt(
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
        objects.put(path, data)
    # The receipt comes last: where there is one, its part is durable (F7, F8).
    told = staged_path(index, build, lo=lo, hi=hi, attempt=attempt, suffix="receipt")
    objects.put(told, receipt.to_json(told))
    return receipt


def _write_part(
    directory: Path,
    rows: pa.Table | Iterable[pa.RecordBatch],
    analyzer: Analyzer,
    vectors: VectorSettings | None,
) -> _Written:
    """Write text and vectors of the rows."""
    with nullcontext() if vectors is None else PartVectorWriter(directory, vectors) as writer:
        contents = ContentsOf()
        batches = map(contents.add, _small_batches(rows))
        count = _write_batches(directory, batches if writer is None else map(writer.add, batches), analyzer)
        return _Written(count, contents.finish(), None if writer is None else writer.finish())


def write_index(directory: Path, rows: pa.Table, analyzer: Analyzer) -> int:
    """Write a tantivy index of rows that have `documents.COLUMNS`, and return how many there are."""
    return _write_batches(directory, _small_batches(rows), analyzer)


def _write_batches(directory: Path, batches: Iterable[pa.RecordBatch], analyzer: Analyzer) -> int:
    """Write a tantivy index of the rows, and return how many there are."""
    index = tantivy.Index(fields.schema(), path=str(directory))
    fields.register_tokenizers(index, analyzer.tokenizer())
    # One thread and ample heap make one segment; the pack takes several, should a part outgrow the heap.
    writer = index.writer(heap_size=limits.INDEX_HEAP_BYTES, num_threads=1)
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
        for start in range(0, narrow.num_rows, limits.INDEX_BATCH_ROWS):
            yield from _bounded(narrow.slice(start, limits.INDEX_BATCH_ROWS))


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows of not too many bytes together, or one: their texts become one column, and that several more."""
    if batch.num_rows <= 1 or batch.nbytes <= limits.INDEX_BATCH_MAX_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))
