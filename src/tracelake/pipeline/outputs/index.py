"""The output of the full-text index: one manifest for each transaction, over the parts that tasks have staged.

While the index is built anew with another analyzer, a transaction may be staged with the old one, or the one before it
may have put the old index back. Then the rows that the new index lacks are indexed here, from the table.
"""

from __future__ import annotations

from functools import partial

from tracelake.journal.model import Aside
from tracelake.pipeline.index_build import Builder, IndexedRows
from tracelake.pipeline.outputs.port import Publication, SealedTransaction
from tracelake.search.analyzers import named
from tracelake.search.finalize import finalize, finalize_nothing, published
from tracelake.search.model import Manifest, manifest_path
from tracelake.search.protocol import first_missing
from tracelake.search.vectors import IndexSettings
from tracelake.shards.leases import Lease
from tracelake.shards.store import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.built_in import TABLE_SPANS
from tracelake.tables.indexes import INDEX, INDEX_ENTRY, analyzer_of, base_of, build_name, standing_manifest
from tracelake.tasks.runners import InProcess
from tracelake.versions.model import IndexAt
from tracelake.versions.store import Repository


class IndexOutput:
    """Publishes the index of a transaction, on top of the one that the branch names."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, first: IndexSettings
    ) -> None:
        """`first` is what an index has that follows none."""
        self._key_value = key_value
        self._repository = Repository(key_value, objects)
        self._objects = objects
        self._buckets = buckets
        self._first = first

    def holds(self, transaction: int) -> bool:
        """Whether the manifest of the transaction is there; an empty or torn one is not: it is built again."""
        return published(self._objects, manifest_path(INDEX, build_name(transaction))) is not None

    def settings(self) -> IndexSettings:
        """Return the settings of the index that stands now, for tasks that stage parts for the next one.

        Where they change before the parts are published, these are staged again, or their vectors do not count.
        """
        return self._settings(standing_manifest(self._repository, self._objects))

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Finalize what tasks have staged, or find it finalized."""
        t = sealed.transaction
        path = self._finalize(t, base_of(self._repository, self._objects, t))
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)

    def pass_over(self, aside: Aside, publication: Publication) -> None:
        """Publish a manifest with the same documents."""
        t = aside.transaction
        base = base_of(self._repository, self._objects, t)
        if first_missing(t + 1, base) is None:
            settings = self._settings(base)
            fingerprint = named(settings.text).fingerprint
            path, _ = finalize_nothing(
                self._objects, INDEX, build_name(t), t + 1, base, fingerprint, settings.vectors
            )
        else:
            self._stage(t, base)
            path = self._finalize(t, base)
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)

    def _settings(self, base: Manifest | None) -> IndexSettings:
        return (
            self._first if base is None else IndexSettings(text=analyzer_of(base).name, vectors=base.vectors)
        )

    def _finalize(self, t: int, base: Manifest | None) -> str:
        settings = self._settings(base)
        path, _ = finalize(
            self._objects,
            INDEX,
            build_name(t),
            t + 1,
            self._buckets,
            base,
            named(settings.text).fingerprint,
            partial(self._stage, t, base),
            settings.vectors,
        )
        return path

    def _stage(self, t: int, base: Manifest | None) -> None:
        """Stage parts of all transactions that an index lacks, in this process: the tables hold them already."""
        shard = Shard(TABLE_SPANS.name, self._key_value, self._objects)
        builder = Builder(self._key_value, self._objects, self._buckets, InProcess())
        with Lease(shard, self._key_value) as lease:  # the rows stay until they are read
            first, settings = first_missing(t + 1, base), self._settings(base)
            wanted = IndexedRows(
                (t if first is None else first, t + 1),
                shard.snapshot(t, lease.state),
                named(settings.text),
                settings.vectors,
                receipt_lower=first,
            )
            builder.stage(build_name(t), wanted)
