"""Index that stays open across manifests. A searcher of another manifest maps only the new parts and shares the
others.

The files of the parts that were opened last are linked into one directory, which one tantivy index reads. To open
another manifest, the files of its new parts are linked, `meta.json` is rewritten, and tantivy reloads the directory. A
mapped file is not mapped again, so opening costs the time of the new parts, plus a tenth of a millisecond for each
other part. Earlier searchers keep their mapped files, even if the links are deleted.
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
from typing import Final

import tantivy

from tracelake._errors import DamageError, StorageError
from tracelake.limits import PART_COPY_IDLE_MIN_S
from tracelake.scratch import delete_directory
from tracelake.search import analyzers, part_cache
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import UnpublishedPart
from tracelake.search.finalize import read_list
from tracelake.search.model import Manifest, Marked, PartRef, RowSelection, marked, write_marks
from tracelake.search.vector_index import FILE as VECTORS_FILE
from tracelake.search.vector_index import VectorBlock, check_block, read_block
from tracelake.search.vectors import VectorSettings
from tracelake.storage.ports import ObjectStore

INDEX_MARKS_KEPT: Final = 4
"""Live-docs files of an open part, one per distinct set of omitted documents."""


def open_index(directory: Path, analyzer: Analyzer) -> tantivy.Index:
    """Open an assembled directory for reading. The directory may be deleted once a searcher exists.

    Raises:
        ValueError: tantivy rejects the directory.
    """
    index = tantivy.Index.open(str(directory))
    analyzers.register_tokenizers(index, analyzer.tokenizer())
    index.config_reader(reload_policy="manual")  # a manifest never changes: no watcher thread
    return index


class OpenIndex:
    """Index that a process holds open for any manifest. Threads may share it."""

    def __init__(self, objects: ObjectStore, cache_dir: Path) -> None:
        """Take parts from the store through a cache directory, which is created on first use."""
        self._objects = objects
        self._cache = part_cache.PartCache(objects, cache_dir)
        self._lock = threading.Lock()
        self._lists: dict[str, tuple[PartRef, ...]] = {}
        self._links: dict[str, SegmentDirectory] = {}
        """The linked parts, by analyzer name. An index contains only parts of one analyzer."""
        self._blocks: dict[str, VectorBlock] = {}
        """The vectors of parts, by checksum."""
        self.renewals = 0
        """Number of times that the index was reopened because cached files were altered, or may have been."""
        self._renewed_s = float("-inf")

    def renew(self, analyzer: Analyzer, parts: Sequence[PartRef]) -> int:
        """Re-fetch parts whose cached files fail their checksum, and reopen the index; return the number of renewals so
        far.

        The open index still maps the altered files, even if another process has already fetched the part again. The
        index is therefore reopened even if no file differs, but in that case at most once in some minutes.
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
        """Return a searcher over these parts of a manifest and the unpublished ones. At least one part is required.

        With `rows`, the searcher only finds documents of live rows. Manifest and parts must be of this analyzer.

        Raises:
            DamageError: A part or list is missing or altered; the message names it (F14).
            LimitError: There are more parts than this machine can map; the parts are intact.
            StorageError: The cache cannot be used.
        """
        assert manifest.fingerprint == analyzer.fingerprint, (manifest.fingerprint, analyzer)
        links = self._links.get(analyzer.name)
        cached = links.headers if links is not None else {}
        more = sum(part.sha256 not in cached for part in parts)
        part_cache.check_ceiling(len(parts) + len(unpublished), more + len(unpublished))
        try:
            try:
                with part_cache.stumbling():
                    return self._open(manifest, parts, cached, rows, analyzer, unpublished)
            except (OSError, ValueError) as error:
                # Another process may have swept the links (as those of a killed process) or the cache, or
                # files in the cache were altered. In each case the lake is intact.
                self._links.pop(analyzer.name, None)
                if isinstance(error, ValueError) and not part_cache.is_exhausted(error):
                    self.renew(analyzer, parts)
                with part_cache.stumbling():
                    return self._open(manifest, parts, {}, rows, analyzer, unpublished)
        except (OSError, ValueError) as error:
            self._links.pop(analyzer.name, None)
            if part_cache.is_exhausted(error):
                raise part_cache.too_many(len(parts), error) from error
            if isinstance(error, OSError):
                raise self._unusable(error) from error
            raise DamageError(
                f"index {manifest.index} build {manifest.build} does not open: {error}; run `tracelake verify`"
            ) from error

    def blocks(self, manifest: Manifest, vectors: VectorSettings) -> list[VectorBlock]:
        """Return the memory-mapped vectors of all parts that have vectors of these settings.

        Raises:
            DamageError: A part is missing or altered, or differs from the manifest; the message names it (F14).
            LimitError: There are more parts than this machine can map; the parts are intact.
            StorageError: The cache cannot be used.
        """
        having = {
            part.sha256: part
            for part in self.parts(manifest)
            if part.vectors is not None and part.vectors.fingerprint == vectors.fingerprint
        }
        before = self._blocks
        new = [part for sha256, part in having.items() if sha256 not in before]
        part_cache.check_blocks(len(having), len(new))
        try:
            try:
                read = self._read_blocks(new, vectors, having.values())
            except OSError:  # another process may have swept the cache
                read = self._read_blocks(new, vectors, having.values())
        except OSError as error:
            if part_cache.is_exhausted(error):
                raise part_cache.too_many(len(having), error, with_vectors=True) from error
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
            f"the copies of the index in {self._cache.directory} cannot be used: {error}. The lake is not "
            "damaged: repair that directory or free space there, delete it, or move it (XDG_CACHE_HOME)."
        )

    def _block(self, part: PartRef, vectors: VectorSettings) -> VectorBlock:
        block = read_block(self._cache.directory / part.sha256 / VECTORS_FILE, part.path)
        check_block(block, part, vectors)
        return block

    def parts(self, manifest: Manifest) -> tuple[PartRef, ...]:
        """Return all parts, in order. Lists that the previous manifest also had are not read again. Raises DamageError
        if a list is missing or altered."""
        before = self._lists
        lists = {ref.path: before.get(ref.path) or read_list(self._objects, ref) for ref in manifest.lists}
        self._lists = lists
        return (*(part for ref in manifest.lists for part in lists[ref.path]), *manifest.newest)

    def _open(
        self,
        manifest: Manifest,
        parts: Sequence[PartRef],
        cached: Mapping[str, part_cache.Header],
        rows: RowSelection | None,
        analyzer: Analyzer,
        unpublished: Sequence[UnpublishedPart],
    ) -> OpenedIndex:
        headers = self._cache.fetch(parts, cached)  # may be slow, so other threads must not wait for it
        wanted = {part.sha256: header for part, header in zip(parts, headers, strict=True)}
        unpublished_headers = {part.name: part.header for part in unpublished}
        with self._lock:
            links = self._links.get(analyzer.name)
            if links is None:
                links = self._links[analyzer.name] = SegmentDirectory(self._cache.directory, analyzer)
            self._let_go(links)
            current = {part.sha256 for part in self.parts(manifest)}
            return links.open(wanted | unpublished_headers, parts, rows, current | unpublished_headers.keys())

    def _let_go(self, links: SegmentDirectory) -> None:
        """Record that these links are in use, and delete links of other analyzers that were not used for a long
        time."""
        now_s = links.used_s = time.monotonic()
        for name, of in list(self._links.items()):
            if now_s - of.used_s > PART_COPY_IDLE_MIN_S:
                self._links.pop(name, None)


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """An opened index: a searcher, a tantivy index for parsing queries, and the number of documents including omitted
    ones."""

    index: tantivy.Index
    searcher: tantivy.Searcher
    documents: int
    marks: Marked
    """The omitted documents."""


class SegmentDirectory:
    """Directory of links to the files of parts, and the tantivy index that reads the directory. The directory is
    deleted with the object."""

    def __init__(self, cache: Path, analyzer: Analyzer) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=part_cache.TEMPORARY, dir=cache))
        weakref.finalize(self, delete_directory, self.directory)
        self.used_s = time.monotonic()
        self.headers: dict[str, part_cache.Header] = {}
        """The linked parts, by checksum."""
        self._cache = cache
        self._analyzer = analyzer
        self._index: tantivy.Index | None = None
        self._marks: dict[tuple[str, int], list[int]] = {}
        """Contents of the files of deletes, by segment and number in the file name, least recently used first."""
        self._numbers = itertools.count(1)

    def open(
        self,
        wanted: dict[str, part_cache.Header],
        parts: Sequence[PartRef],
        rows: RowSelection | None,
        retained: Set[str],
    ) -> OpenedIndex:
        """Return a searcher over these parts in this order, with its index. Links not in `retained` are deleted."""
        for sha256 in wanted.keys() - self.headers.keys():
            for file in wanted[sha256].segment_files:  # the directory of an unpublished part has its name
                part_cache.link(self._cache / sha256 / file.name, self.directory / file.name)
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
        self._drop(retained)
        return OpenedIndex(index, searcher, documents, marks)

    def _read(
        self, wanted: dict[str, part_cache.Header], deletes: Mapping[str, tuple[int, int]]
    ) -> tuple[tantivy.Index, tantivy.Searcher]:
        part_cache.write_meta(self.directory, wanted.values(), deletes)
        if self._index is None:
            self._index = open_index(self.directory, self._analyzer)
        else:
            self._index.reload()
        return self._index, self._index.searcher()

    def _mark(self, segment: part_cache.IndexSegment, documents: Sequence[int]) -> int:
        """Return the number of the file that marks these documents of a segment; write it if necessary."""
        wanted = sorted(documents)
        for (segment_id, number), there in self._marks.items():
            if segment_id == segment.segment_id and there == wanted:
                self._marks[segment_id, number] = self._marks.pop((segment_id, number))  # most recently used
                return number
        number = next(self._numbers)
        name = self.directory / segment.segment_id.replace("-", "")
        # Files are mapped by name, so a name is never reused for other content.
        write_marks(
            name.with_suffix(f".{number}.del"), segment.max_doc, wanted, like=name.with_suffix(".fieldnorm")
        )
        self._marks[segment.segment_id, number] = wanted
        return number

    def _drop(self, retained: Set[str]) -> None:
        """Delete the links of all other parts, their files of deletes, and the least recently used files of deletes."""
        for sha256 in self.headers.keys() - retained:
            for file in self.headers[sha256].segment_files:
                (self.directory / file.name).unlink(missing_ok=True)
        self.headers = {sha256: header for sha256, header in self.headers.items() if sha256 in retained}
        segments = {segment.segment_id for header in self.headers.values() for segment in header.segments}
        newer: Counter[str] = Counter()
        for segment_id, number in reversed(list(self._marks)):
            newer[segment_id] += 1
            if segment_id not in segments or newer[segment_id] > INDEX_MARKS_KEPT:
                del self._marks[segment_id, number]
                (self.directory / f"{segment_id.replace('-', '')}.{number}.del").unlink(missing_ok=True)
