"""Removal of traces from the full-text index at every commit, by rewriting the index parts with their documents.

A commit names a manifest, and the manifest names the parts. A rewritten part has another checksum and path. Every
manifest that names the old part is therefore replaced under its own path, and no commit changes. A record of each
replaced part stays until the erasure ends, so that a manifest that a slow writer publishes later is repaired as well.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tantivy
from msgspec.structs import replace

from tracelake.scratch import scratch_directory
from tracelake.search import model
from tracelake.search.analyzers import of_fingerprint
from tracelake.search.build import merge_parts, no_index
from tracelake.search.finalize import clean_staging, published, read_list
from tracelake.search.model import ListRef as ListOf
from tracelake.search.open_index import OpenIndex
from tracelake.storage import ObjectStore, delete_all
from tracelake.tables.view import INDEX

MANIFESTS = f"search/{INDEX}/manifests/"


@dataclass(slots=True)
class RedactedIndex:
    """Documents and objects that a redaction of the index removed."""

    documents: int = 0
    parts: int = 0
    size_bytes: int = 0
    """Bytes of the replaced parts."""
    manifests: int = 0
    """Manifests that name other parts now."""
    replaced: dict[str, model.PartRef | None] = field(default_factory=dict)


class IndexRedactor:
    """Removes traces from all index parts. Parts that it has found clean are not read again."""

    def __init__(self, objects: ObjectStore, epoch: int) -> None:
        self._objects = objects
        self._epoch = epoch
        self._clean: set[str] = set()

    def count(self, trace_ids: Collection[str]) -> int:
        """Count the documents of traces in all parts that a manifest names."""
        documents = 0
        for part, manifest in self._parts().values():
            if part.path not in self._clean:
                erased, _ = self._documents(part, manifest, trace_ids)
                documents += len(erased)
                if not len(erased):
                    self._clean.add(part.path)
        return documents

    def checksums(self) -> set[str]:
        """Return the checksums of all parts that a manifest names."""
        return {part.sha256 for part, _ in self._parts().values()}

    def rewrite(self, trace_ids: Collection[str]) -> RedactedIndex:
        """Rewrite the parts with documents of these traces, and replace them in all manifests."""
        result = RedactedIndex()
        for part, manifest in self._parts().values():
            if part.path in self._clean:
                continue
            erased, others = self._documents(part, manifest, trace_ids)
            if not len(erased):
                self._clean.add(part.path)
                continue
            result.replaced[part.path] = self._without(part, manifest, others)
            result.documents += len(erased)
            result.parts += 1
            result.size_bytes += part.size_bytes
        if result.replaced:
            # Parts before manifests before deletions: an interrupted run leaves a readable index.
            result.manifests = self._replace(result.replaced)
            delete_all(self._objects, list(result.replaced))
        return result

    def _manifests(self) -> Iterator[tuple[str, model.Manifest]]:
        for info in list(self._objects.list(MANIFESTS)):
            if (manifest := published(self._objects, info.path)) is not None:
                yield info.path, manifest

    def _parts(self) -> dict[str, tuple[model.PartRef, model.Manifest]]:
        """Return each part that some manifest names, with one of these manifests."""
        parts: dict[str, tuple[model.PartRef, model.Manifest]] = {}
        lists: dict[str, Sequence[model.PartRef]] = {}
        for _, manifest in self._manifests():
            for ref in manifest.lists:
                if ref.path not in lists:
                    lists[ref.path] = read_list(self._objects, ref)
                    parts |= {part.path: (part, manifest) for part in lists[ref.path]}
            parts |= {part.path: (part, manifest) for part in manifest.newest}
        return parts

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
    ) -> model.PartRef | None:
        """Write a part with the other documents; return None if there are none."""
        if not len(others):
            return None
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
        self._objects.put(path, self._objects.get(receipt.path))
        clean_staging(self._objects, INDEX, build)
        return replace(
            part,
            path=path,
            documents=receipt.documents,
            size_bytes=receipt.size_bytes,
            sha256=receipt.sha256,
            vectors=receipt.vectors,
            contents=receipt.contents,
        )

    def _replace(self, replaced: dict[str, model.PartRef | None]) -> int:
        """Replace parts in all manifests and their lists; return the number of changed manifests."""
        manifests = 0
        lists: dict[str, ListOf | None] = {}
        for path, manifest in self._manifests():
            newest = _replaced(manifest.newest, replaced)
            for ref in manifest.lists:
                if ref.path not in lists:
                    lists[ref.path] = self._list(ref, replaced)
            changed = replace(
                manifest,
                newest=newest,
                lists=tuple(new for ref in manifest.lists if (new := lists[ref.path]) is not None),
            )
            if changed != manifest:
                self._objects.put(path, changed.to_json(path))
                manifests += 1
        delete_all(self._objects, [path for path, new in lists.items() if new is None or new.path != path])
        return manifests

    def _list(self, ref: ListOf, replaced: dict[str, model.PartRef | None]) -> ListOf | None:
        before = read_list(self._objects, ref)
        parts = _replaced(before, replaced)
        if parts == before:
            return ref
        if not parts:
            return None
        together = model.PartList(parts=parts)
        build = ref.path.split("/")[-2]
        path = model.list_path(INDEX, build, together)
        self._objects.put(path, together.to_json(path))
        return ListOf(path=path, parts=len(parts), documents=sum(part.documents for part in parts))


def _replaced(
    parts: Sequence[model.PartRef], replaced: dict[str, model.PartRef | None]
) -> tuple[model.PartRef, ...]:
    others = (replaced.get(part.path, part) for part in parts)
    return tuple(part for part in others if part is not None)
