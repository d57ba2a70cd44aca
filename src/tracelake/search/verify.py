"""Index checks of `tracelake verify`: reads every manifest that a commit names, with its lists and parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tracelake._errors import DamageError, ExpiredError, NotFoundError, TracelakeError
from tracelake.results import Finding
from tracelake.scratch import scratch_directory
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import read_list, read_manifest
from tracelake.search.model import Manifest, PartProblem, PartRef, spans_outside
from tracelake.search.open_index import open_index
from tracelake.search.part_cache import unpack, write_meta
from tracelake.search.protocol import Generation, generations
from tracelake.search.vector_index import FILE as VECTORS_FILE
from tracelake.search.vector_index import check_block, read_block
from tracelake.storage.ports import ObjectStore


def verify_lists(
    objects: ObjectStore, manifest: Manifest, intact: dict[str, tuple[PartRef, ...]]
) -> Iterator[PartProblem]:
    """Yield the problems of a manifest's lists. Lists in `intact` are skipped; intact ones are added to it.

    Raises:
        StorageError: The store failed, so the check has no result.
    """
    for ref in manifest.lists:
        if ref.path not in intact:
            try:
                intact[ref.path] = read_list(objects, ref)
            except DamageError as error:
                is_missing = objects.head(ref.path) is None
                yield PartProblem("missing" if is_missing else "damaged", ref.path, str(error))


def verify_parts(objects: ObjectStore, parts: Iterable[PartRef]) -> Iterator[PartProblem]:
    """Yield the problems of parts. Each part is read, checked against its checksum, and opened.

    Raises:
        StorageError: The store failed, so the check has no result.
    """
    for part in parts:
        try:
            data = objects.get(part.path)
        except NotFoundError:
            yield PartProblem(
                "missing", part.path, f"the part of build {part.build} [{part.lo}, {part.hi}) is missing"
            )
            continue
        except DamageError as error:
            yield PartProblem("damaged", part.path, str(error))
            continue
        detail = _what_is_wrong(data, part)
        if detail is not None:
            yield PartProblem("damaged", part.path, detail)


def _what_is_wrong(data: bytes, part: PartRef) -> str | None:
    if len(data) != part.size_bytes:
        return f"it has {len(data)} bytes, not {part.size_bytes}"
    with scratch_directory("verify") as directory:
        try:
            write_meta(directory, [unpack(data, part.sha256, part.path, directory)])
            searcher = open_index(directory, ENGLISH).searcher()  # any analyzer works here
            if part.vectors is not None:
                check_block(read_block(directory / VECTORS_FILE, part.path), part)
        except (DamageError, ValueError) as error:
            return str(error)
    if searcher.num_docs != part.documents:
        return f"it has {searcher.num_docs} documents, not {part.documents}"
    outside = 0 if part.contents is None else spans_outside(searcher, part.contents)
    return f"{outside} of its spans are outside of its contents" if outside else None


RowsOf = Callable[[int, range | None], int | None]
"""Function that returns how many rows a transaction inserted, in these buckets or in all; None if unknown."""
LiveAt = Callable[[int, range | None], Mapping[int, int] | None]
"""Function that returns how many rows of each transaction were live as of one, in these buckets or in all; None if
unknown."""


@dataclass
class IndexCheck:
    """Check of all manifests of a lake, in order of commits, newest first."""

    objects: ObjectStore
    committed_rows: RowsOf
    live: LiveAt
    newest: Manifest | None = None
    bytes_read: int = 0
    _manifests: set[str] = field(default_factory=set)
    _lists: dict[str, tuple[PartRef, ...]] = field(default_factory=dict)
    _parts: dict[str, PartRef] = field(default_factory=dict)
    _newest_path: str = ""

    def manifest(self, path: str) -> Iterator[Finding]:
        """Check the manifest that a commit names, and its lists. Those that were already checked are skipped."""
        if path in self._manifests:
            return
        self._manifests.add(path)
        try:
            manifest = read_manifest(self.objects, path)
        except TracelakeError as error:
            is_missing = self.objects.head(path) is None
            yield Finding("missing" if is_missing else "damaged", "manifest", path, str(error))
            return
        for problem in verify_lists(self.objects, manifest, self._lists):
            yield Finding(problem.kind, "index list", problem.path, problem.detail)
        for part in self._index_parts(manifest):
            self._parts[part.path] = part
        if self.newest is None:
            self.newest, self._newest_path = manifest, path

    def _index_parts(self, manifest: Manifest) -> list[PartRef]:
        older = [part for ref in manifest.lists for part in self._lists.get(ref.path, ())]
        return [*older, *manifest.newest]

    def parts(self) -> Iterator[Finding]:
        """Check every part that a manifest names against its checksum and the number of its rows."""
        for problem in verify_parts(self.objects, self._parts.values()):
            yield Finding(problem.kind, "index part", problem.path, problem.detail)
        expected: Mapping[str, int | None] = {
            path: self._rows(part, range(part.lo, part.hi)) for path, part in self._parts.items()
        }
        for path, part in self._parts.items():
            self.bytes_read += part.size_bytes
            rows = expected[path]
            if rows not in (None, part.documents):
                which = f"of transaction {part.lower}" if part.as_of == part.lower else "that were live"
                yield Finding(
                    "mismatch",
                    "index part",
                    path,
                    f"it has {part.documents} documents for {rows} rows {which}",
                )
        if self.newest is not None:
            yield from self._check_rows(self.newest)

    def _rows(self, part: PartRef | Generation, buckets: range | None) -> int | None:
        """Return the expected number of documents of a part or generation; None if unknown."""
        if part.as_of == part.lower:
            return self.committed_rows(part.lower, buckets)
        live = self._live(part.as_of, buckets)
        return None if live is None else sum(rows for t, rows in live.items() if part.lower <= t < part.upper)

    def _live(self, as_of: int, buckets: range | None) -> Mapping[int, int] | None:
        with suppress(ExpiredError):  # the snapshot has expired, as its retention demands
            return self.live(as_of, buckets)
        return None

    def _check_rows(self, manifest: Manifest) -> Iterator[Finding]:
        """Check that some part has the rows of every transaction and bucket."""
        every = generations(self._index_parts(manifest))
        covered = {t for each in every for t in range(each.lower, each.upper)}
        rows = [self._rows(each, None) for each in every]
        live = self._live(manifest.upper - 1, None) if len(covered) < manifest.upper else {}
        if live is None or None in rows:
            return
        expected = sum(count for count in rows if count is not None)
        expected += sum(count for t, count in live.items() if t not in covered and t < manifest.upper)
        if manifest.documents != expected:
            detail = f"{manifest.documents} documents for {expected} rows"
            yield Finding("mismatch", "manifest", self._newest_path, detail)
