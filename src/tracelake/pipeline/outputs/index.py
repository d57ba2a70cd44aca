"""The output of the full-text index: one manifest for each transaction, over the parts that tasks have staged."""

from __future__ import annotations

from tracelake.journal.model import Aside
from tracelake.pipeline.outputs.port import Publication, SealedTransaction
from tracelake.search.finalize import finalize, finalize_nothing
from tracelake.search.model import manifest_path
from tracelake.storage import ObjectStore
from tracelake.tables.indexes import INDEX, INDEX_ENTRY, base_of, build_name
from tracelake.versions.model import IndexAt
from tracelake.versions.store import Repository


class IndexOutput:
    """Publishes the index of a transaction, on top of the one that the branch names."""

    def __init__(self, repository: Repository, objects: ObjectStore, buckets: int) -> None:
        self._repository = repository
        self._objects = objects
        self._buckets = buckets

    def holds(self, transaction: int) -> bool:
        """Whether the manifest of the transaction is there."""
        return self._objects.head(manifest_path(INDEX, build_name(transaction))) is not None

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Finalize what tasks have staged, or find it finalized."""
        t = sealed.transaction
        base = base_of(self._repository, self._objects, t)
        path, _ = finalize(self._objects, INDEX, build_name(t), t + 1, self._buckets, base)
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)

    def pass_over(self, aside: Aside, publication: Publication) -> None:
        """Publish a manifest with the same documents."""
        t = aside.transaction
        base = base_of(self._repository, self._objects, t)
        path, _ = finalize_nothing(self._objects, INDEX, build_name(t), t + 1, base)
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)
