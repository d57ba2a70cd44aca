"""An index that stays open: a searcher of another manifest maps what is new, and shares all else with those before it.

The parts of the newest opening are linked into one directory, and one tantivy index reads it. Opening another manifest
links the parts that come, writes `meta.json` anew, and has tantivy read that. A file that is mapped already is not
mapped again, so the price is that of the new parts, and a tenth of a millisecond for each of the others. Searchers that
were taken before keep what they have mapped, whatever becomes of the links.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import tantivy

from tracelake._errors import DamageError, StorageError
from tracelake.limits import INDEX_MARKS_KEPT, PART_COPY_IDLE_MIN_S
from tracelake.scratch import delete_directory
from tracelake.search import analyzers
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import UnpublishedPart
from tracelake.search.finalize import read_list
from tracelake.search.live_docs import Marked, RowSelection, marked, write_marks
from tracelake.search.model import Manifest, PartRef
from tracelake.search.pack import Header, IndexSegment, write_meta
from tracelake.search.part_cache import (
    TEMPORARY,
    PartCache,
    check_blocks,
    check_ceiling,
    is_exhausted,
    link,
    stumbling,
    too_many,
)
from tracelake.search.vector_index import FILE as VECTORS_FILE
from tracelake.search.vector_index import VectorBlock, check_block, read_block
from tracelake.search.vectors import VectorSettings
from tracelake.storage.ports import ObjectStore


def open_index(directory: Path, analyzer: Analyzer) -> tantivy.Index:
    """Open an assembled directory for reading. The directory may go once a searcher was taken from it.

    Raises:
        ValueError: tantivy refuses it.
    """
    index = tantivy.Index.open(str(directory))
    analyzers.register_tokenizers(index, analyzer.tokenizer())
    index.config_reader(reload_policy="manual")  # what a manifest names never changes: no watcher thread
    return index


class OpenIndex:
    """One index as a process has it open, whatever the manifest. Threads may share it."""

    def __init__(self, objects: ObjectStore, cache_dir: Path) -> None:
        """Take parts from the store by way of a cache directory, which is made when it is needed."""
        self._objects = objects
        self._cache = PartCache(objects, cache_dir)
        self._lock = threading.Lock()
        self._lists: dict[str, tuple[PartRef, ...]] = {}
        self._links: dict[str, SegmentDirectory] = {}
        """What is linked, by the name of the analyzer: parts of another one are in no index with these."""
        self._blocks: dict[str, VectorBlock] = {}
        """The vectors of parts, by checksum."""
        self.renewals = 0
        """How often all was opened anew, since copies were altered or may have been."""
        self._renewed_s = float("-inf")

    def renew(self, analyzer: Analyzer, parts: Sequence[PartRef]) -> int:
        """Let come again those of these parts whose copies were altered; return how often that was so until now.

        What was opened before has mapped what was altered, though another process may have let it come again: so it is
        opened anew where no copy differs, too, but then once in some minutes.
        """
        now_s = time.monotonic()
        if self._cache.drop_altered(parts) or now_s - self._renewed_s > PART_COPY_IDLE_MIN_S:
            self._renewed_s = now_s
            self._links.pop(analyzer.name, None)
            self._blocks = {}
            self.renewals += 1
        return self.renewals

    def searcher(
        self,
        manifest: Manifest,
        rows: RowSelection | None,
        analyzer: Analyzer,
        parts: Sequence[PartRef],
        unpublished: Sequence[UnpublishedPart] = (),
    ) -> OpenedIndex:
        """Return a searcher over these parts of a manifest, and unpublished ones beside them; there is one at least.

        With `rows`, over what all of them have live. Manifest and parts are of this analyzer.

        Raises:
            DamageError: A part or list is missing or altered; names it (F14).
            LimitError: There are more parts than this machine can map; nothing is wrong with them.
            StorageError: The cache cannot be used.
        """
        assert manifest.fingerprint == analyzer.fingerprint, (manifest.fingerprint, analyzer)
        links = self._links.get(analyzer.name)
        known = links.headers if links is not None else {}
        more = sum(part.sha256 not in known for part in parts)
        check_ceiling(len(parts) + len(unpublished), more + len(unpublished))
        try:
            try:
                with stumbling():
                    return self._open(manifest, parts, known, rows, analyzer, unpublished)
            except (OSError, ValueError) as error:
                # Somebody has swept away the links, perhaps, as those of a process that was killed, or the cache; or
                # what is in the cache was altered there: nothing of the lake is damaged then.
                self._links.pop(analyzer.name, None)
                if isinstance(error, ValueError) and not is_exhausted(error):
                    self.renew(analyzer, parts)
                with stumbling():
                    return self._open(manifest, parts, {}, rows, analyzer, unpublished)
        except (OSError, ValueError) as error:
            self._links.pop(analyzer.name, None)
            if is_exhausted(error):
                raise too_many(len(parts), error) from error
            if isinstance(error, OSError):
                raise self._unusable(error) from error
            raise DamageError(
                f"index {manifest.index} build {manifest.build} does not open: {error}; run `tracelake verify`"
            ) from error

    def blocks(self, manifest: Manifest, vectors: VectorSettings) -> list[VectorBlock]:
        """Return the vectors of all parts of a manifest that have those of these settings, mapped into memory.

        Raises:
            DamageError: A part is missing or altered, or has not what the manifest says; names it (F14).
            LimitError: There are more parts than this machine can map; nothing is wrong with them.
            StorageError: The cache cannot be used.
        """
        having = {
            part.sha256: part
            for part in self.parts(manifest)
            if part.vectors is not None and part.vectors.fingerprint == vectors.fingerprint
        }
        before = self._blocks
        new = [part for sha256, part in having.items() if sha256 not in before]
        check_blocks(len(having), len(new))
        try:
            try:
                read = self._read_blocks(new, vectors, having.values())
            except OSError:  # somebody has swept away the cache, perhaps
                read = self._read_blocks(new, vectors, having.values())
        except OSError as error:
            if is_exhausted(error):
                raise too_many(len(having), error, with_vectors=True) from error
            raise self._unusable(error) from error
        self._blocks = {sha256: before.get(sha256) or read[sha256] for sha256 in having}
        return list(self._blocks.values())

    def _read_blocks(
        self, new: Sequence[PartRef], vectors: VectorSettings, used: Iterable[PartRef]
    ) -> dict[str, VectorBlock]:
        self._cache.fetch(new, {}, used)
        return {part.sha256: self._block(part, vectors) for part in new}

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"the copies of the index in {self._cache.directory} cannot be used: {error}. Nothing of the lake is "
            "damaged: mend that directory or free space there, delete it, or have it elsewhere (XDG_CACHE_HOME)."
        )

    def _block(self, part: PartRef, vectors: VectorSettings) -> VectorBlock:
        block = read_block(self._cache.directory / part.sha256 / VECTORS_FILE, part.path)
        check_block(block, part, vectors)
        return block

    def parts(self, manifest: Manifest) -> tuple[PartRef, ...]:
        """Return all parts, in order; lists that the last manifest had too are not read again. Raises DamageError."""
        before = self._lists
        lists = {ref.path: before.get(ref.path) or read_list(self._objects, ref) for ref in manifest.lists}
        self._lists = lists
        return (*(part for ref in manifest.lists for part in lists[ref.path]), *manifest.newest)

    def _open(
        self,
        manifest: Manifest,
        parts: Sequence[PartRef],
        known: Mapping[str, Header],
        rows: RowSelection | None,
        analyzer: Analyzer,
        unpublished: Sequence[UnpublishedPart],
    ) -> OpenedIndex:
        headers = self._cache.fetch(parts, known)  # from far away, perhaps: others do not wait for it
        wanted = {part.sha256: header for part, header in zip(parts, headers, strict=True)}
        beside = {part.name: part.header for part in unpublished}
        with self._lock:
            links = self._links.get(analyzer.name)
            if links is None:
                links = self._links[analyzer.name] = SegmentDirectory(self._cache.directory, analyzer)
            self._let_go(links)
            kept = {part.sha256 for part in self.parts(manifest)}
            return links.open(wanted | beside, parts, rows, kept | beside.keys())

    def _let_go(self, links: SegmentDirectory) -> None:
        """Note that these links are used now, and let go of those of another analyzer that nobody has used for long.

        An index that was built anew with another one leaves them, with all that it was before.
        """
        now_s = links.used_s = time.monotonic()
        for name, of in list(self._links.items()):
            if now_s - of.used_s > PART_COPY_IDLE_MIN_S:
                self._links.pop(name, None)


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """A searcher, the index to parse queries with, and how many documents there are, with those that are left out."""

    index: tantivy.Index
    searcher: tantivy.Searcher
    documents: int
    marks: Marked
    """Documents that are left out."""


class SegmentDirectory:
    """A directory with links to the files of parts, and the tantivy index that reads it; goes when it is let go of."""

    def __init__(self, cache: Path, analyzer: Analyzer) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=cache))
        weakref.finalize(self, delete_directory, self.directory)
        self.used_s = time.monotonic()
        self.headers: dict[str, Header] = {}
        """The parts that are linked, by checksum."""
        self._cache = cache
        self._analyzer = analyzer
        self._index: tantivy.Index | None = None
        self._marks: dict[tuple[str, int], list[int]] = {}
        """What each file of marks says: by segment, and by the number in its name; what was used last is the last."""
        self._numbers = itertools.count(1)

    def open(
        self, wanted: dict[str, Header], parts: Sequence[PartRef], rows: RowSelection | None, kept: Set[str]
    ) -> OpenedIndex:
        """Return a searcher over these parts, in this order, and its index; links of others are kept, or go."""
        for sha256 in wanted.keys() - self.headers.keys():
            for file in wanted[sha256].segment_files:  # an unpublished part lies under its name
                link(self._cache / sha256 / file.name, self.directory / file.name)
        self.headers |= {sha256: wanted[sha256] for sha256 in wanted.keys() - self.headers.keys()}
        index, searcher = self._read(wanted, {})
        documents = searcher.num_docs
        marks: Marked = {}
        segments = [segment for header in wanted.values() for segment in header.segments]
        if rows is not None and documents:
            sizes = [segment.max_doc for segment in segments]
            marks = marked(index, searcher, sizes, parts, rows)
            if marks:
                deletes = {
                    segments[at].segment_id: (len(numbers), self._mark(segments[at], numbers))
                    for at, numbers in marks.items()
                }
                _, searcher = self._read(wanted, deletes)
        self._drop(kept)
        return OpenedIndex(index, searcher, documents, marks)

    def _read(
        self, wanted: dict[str, Header], deletes: Mapping[str, tuple[int, int]]
    ) -> tuple[tantivy.Index, tantivy.Searcher]:
        write_meta(self.directory, wanted.values(), deletes)
        if self._index is None:
            self._index = open_index(self.directory, self._analyzer)
        else:
            self._index.reload()
        return self._index, self._index.searcher()

    def _mark(self, segment: IndexSegment, documents: Sequence[int]) -> int:
        """Return the number of the file that marks these documents of a segment; it is written where there is none."""
        wanted = sorted(documents)
        for (segment_id, number), there in self._marks.items():
            if segment_id == segment.segment_id and there == wanted:
                self._marks[segment_id, number] = self._marks.pop((segment_id, number))  # it was used last
                return number
        number = next(self._numbers)
        name = self.directory / segment.segment_id.replace("-", "")
        # Files are mapped by their names, so no name is used for other content.
        write_marks(
            name.with_suffix(f".{number}.del"), segment.max_doc, wanted, like=name.with_suffix(".fieldnorm")
        )
        self._marks[segment.segment_id, number] = wanted
        return number

    def _drop(self, kept: Set[str]) -> None:
        """Take away the links of all other parts, what marks their documents, and marks that were used long ago."""
        for sha256 in self.headers.keys() - kept:
            for file in self.headers[sha256].segment_files:
                (self.directory / file.name).unlink(missing_ok=True)
        self.headers = {sha256: header for sha256, header in self.headers.items() if sha256 in kept}
        segments = {segment.segment_id for header in self.headers.values() for segment in header.segments}
        newer: Counter[str] = Counter()
        for segment_id, number in reversed(list(self._marks)):
            newer[segment_id] += 1
            if segment_id not in segments or newer[segment_id] > INDEX_MARKS_KEPT:
                del self._marks[segment_id, number]
                (self.directory / f"{segment_id.replace('-', '')}.{number}.del").unlink(missing_ok=True)
