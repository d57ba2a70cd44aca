"""Removal of traces from the full-text index at every commit, by rewriting the index parts with their documents.

A commit names a manifest, and the manifest names the parts. A rewritten part has another checksum and path. Every
manifest that names the old part is therefore replaced under its own path, and no commit changes. A record of each
replaced part stays after the erasure ends. Processes that publish a manifest late apply it (see `search.finalize`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import tantivy
from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError
from tracelake.scratch import scratch_directory
from tracelake.search import model
from tracelake.search.analyzers import of_fingerprint
from tracelake.search.build import merge_parts, no_index
from tracelake.search.finalize import Redactions, clean_staging, published, read_list
from tracelake.search.open_index import OpenIndex
from tracelake.search.protocol import replacement
from tracelake.storage import KeyValueStore, ObjectStore, read_in_parallel
from tracelake.tables.view import INDEX

MANIFESTS = f"search/{INDEX}/manifests/"
REDACTIONS_S: Final = 86_400.0
"""Time after an erasure for which processes may publish index manifests that they began before it."""


@dataclass(slots=True)
class RedactedIndex:
    """Documents and objects that a redaction of the index removed."""

    documents: int = 0
    parts: int = 0
    size_bytes: int = 0
    """Bytes of the replaced parts."""
    manifests: int = 0
    """Manifests that name other parts now."""


class IndexRedactor:
    """Removes traces from all index parts. Parts that it has found clean are not read again."""

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        epoch: int,
        erasure: str = "",
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare. `pause` is called after each part that was read or rewritten."""
        self._pause = pause
        self._objects = objects
        self._epoch = epoch
        self._clean: set[str] = set()
        self.redactions = Redactions(key_value, objects, INDEX, erasure)

    def count(self, trace_ids: Collection[str]) -> int:
        """Count the documents of traces in all parts that a manifest names, and names of replaced parts."""
        parts, documents = self._parts()
        for part, manifest in parts.values():
            if part.path in self._clean:
                continue
            with self._unless_collected(part):
                erased, _ = self._documents(part, manifest, trace_ids)
                documents += len(erased)
                if not len(erased):
                    self._clean.add(part.path)
        return documents

    def checksums(self) -> set[str]:
        """Return the checksums of all parts that a manifest names."""
        return {part.sha256 for part, _ in self._parts()[0].values()}

    def rewrite(self, trace_ids: Collection[str]) -> RedactedIndex:
        """Rewrite the parts with documents of these traces, and replace them in all manifests."""
        result, unfinished = RedactedIndex(), self.redactions.all()
        for part, manifest in self._parts()[0].values():
            if part.path in self._clean:
                continue
            with self._unless_collected(part):
                erased, others = self._documents(part, manifest, trace_ids)
                if not len(erased):
                    self._clean.add(part.path)
                    continue
                rewritten, data = self._without(part, manifest, others)
                if self.redactions.replace(part.path, rewritten, data, unfinished.get(part.path)):
                    result.documents += len(erased)
                    result.parts += 1
                    result.size_bytes += part.size_bytes
        # Safety: listed after all replacements are recorded. A manifest that is written later is not committed
        # before its writer has applied them.
        result.manifests = self.redactions.apply([path for path, _ in self._manifests()])
        return result

    def forget(self, erasures: Collection[str]) -> None:
        """Drop the records of replaced parts of erasures that ended long ago."""
        if any(each.erasure in erasures for each in self.redactions.all().values()):
            self.redactions.apply([path for path, _ in self._manifests()])
            self.redactions.forget(erasures)

    @contextmanager
    def _unless_collected(self, part: model.PartRef) -> Iterator[None]:
        """Pause after the block, and skip its rest if the part no longer exists. Its commits expired, or `tracelake
        verify` reports the damage."""
        try:
            yield
            self._pause()
        except (DamageError, NotFoundError):
            if self._objects.head(part.path) is not None:
                raise

    def _manifests(self) -> Iterator[tuple[str, model.Manifest]]:
        paths = [info.path for info in self._objects.list(MANIFESTS)]
        for path, manifest in read_in_parallel(self._objects, partial(published, self._objects), paths):
            if manifest is not None:
                yield path, manifest

    def _parts(self) -> tuple[dict[str, tuple[model.PartRef, model.Manifest]], int]:
        """Return each part that some manifest names, with one of these manifests, and the number of names of replaced
        parts and lists."""
        parts: dict[str, tuple[model.PartRef, model.Manifest]] = {}
        redactions = self.redactions.all()
        names: set[str] = set()
        for path, manifest in self._manifests():
            try:
                for ref in manifest.lists:
                    if ref.path not in names and replacement(ref.path, redactions) is None:
                        parts |= {part.path: (part, manifest) for part in read_list(self._objects, ref)}
                    names.add(ref.path)
            except DamageError:
                if published(self._objects, path) is None:
                    continue  # its commits expired
                raise
            parts |= {part.path: (part, manifest) for part in manifest.newest}
        replaced = {path for path in names | set(parts) if replacement(path, redactions) is not None}
        return {path: each for path, each in parts.items() if path not in replaced}, len(replaced)

    def _documents(
        self, part: model.PartRef, manifest: model.Manifest, trace_ids: Collection[str]
    ) -> tuple[model.RowIds, model.RowIds]:
        """Return the row ids of a part's documents: those of the traces, and the others, sorted."""
        analyzer = of_fingerprint(manifest.fingerprint)
        if analyzer is None:
            return np.array([], np.int64), np.array([], np.int64)
        alone = replace(no_index(manifest.fingerprint), newest=(part,))
        with scratch_directory("redaction") as folder:
            opened = OpenIndex(self._objects, Path(folder)).searcher(alone, None, analyzer, [part])
            query = tantivy.Query.term_set_query(opened.index.schema, "trace", sorted(trace_ids))
            hits = opened.searcher.search(query, opened.documents, count=False).hits
            rows = model.rows_of_documents(opened.searcher, 0, opened.documents)
        numbers = [address.doc for _, address in hits]
        return rows[numbers], np.sort(np.delete(rows, numbers))

    def _without(
        self, part: model.PartRef, manifest: model.Manifest, others: model.RowIds
    ) -> tuple[model.PartRef | None, bytes]:
        """Return a part with the other documents, and its bytes; None if there are none."""
        if not len(others):
            return None, b""
        analyzer = of_fingerprint(manifest.fingerprint)
        assert analyzer is not None
        kind = manifest.vectors
        has = part.vectors is not None and kind is not None and part.vectors.fingerprint == kind.fingerprint
        build = model.rebuild_name(self._epoch, uuid.uuid4().hex[:12])
        receipt = merge_parts(
            self._objects,
            INDEX,
            build,
            part.lo,
            part.hi,
            uuid.uuid4().hex,
            [part],
            others,
            analyzer=analyzer,
            vectors=kind if has else None,
        )
        assert receipt.path is not None
        assert receipt.sha256 is not None
        path = model.part_path(INDEX, part.build, receipt.sha256)
        data = self._objects.get(receipt.path)
        clean_staging(self._objects, INDEX, build)
        rewritten = replace(
            part,
            path=path,
            documents=receipt.documents,
            size_bytes=receipt.size_bytes,
            sha256=receipt.sha256,
            vectors=receipt.vectors,
            contents=receipt.contents,
        )
        return rewritten, data
