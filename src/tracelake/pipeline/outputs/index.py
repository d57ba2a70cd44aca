"""The output of the full-text index: one manifest for each transaction, over the parts that tasks have staged.

While the index is built anew with another analyzer, a transaction may be staged with the old one, or the one before it
may have put the old index back. Then the rows that the new index lacks are indexed here, from the table.
"""

from __future__ import annotations

from functools import partial

from tracelake.journal.model import Aside
from tracelake.pipeline.index_build import Builder, IndexedRows
from tracelake.pipeline.outputs.port import Publication, SealedTransaction
from tracelake.search.analyzers import Analyzer, named
from tracelake.search.finalize import finalize, finalize_nothing
from tracelake.search.model import Manifest, manifest_path
from tracelake.search.protocol import first_missing
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

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, text: str) -> None:
        """`text` is the analyzer of a lake that has no index yet."""
        self._key_value = key_value
        self._repository = Repository(key_value, objects)
        self._objects = objects
        self._buckets = buckets
        self._first = named(text)

    def holds(self, transaction: int) -> bool:
        """Whether the manifest of the transaction is there."""
        return self._objects.head(manifest_path(INDEX, build_name(transaction))) is not None

    def analyzer(self) -> Analyzer:
        """Return the analyzer of the index that stands now, for tasks that stage parts for the next one."""
        standing = standing_manifest(self._repository, self._objects)
        return self._first if standing is None else analyzer_of(standing)

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
            settings = self._analyzer(base).fingerprint
            path, _ = finalize_nothing(self._objects, INDEX, build_name(t), t + 1, base, settings)
        else:
            self._stage(t, base)
            path = self._finalize(t, base)
        publication.entries[INDEX_ENTRY] = IndexAt(path, t + 1)

    def _analyzer(self, base: Manifest | None) -> Analyzer:
        return self._first if base is None else analyzer_of(base)

    def _finalize(self, t: int, base: Manifest | None) -> str:
        settings, restage = self._analyzer(base).fingerprint, partial(self._stage, t, base)
        path, _ = finalize(self._objects, INDEX, build_name(t), t + 1, self._buckets, base, settings, restage)
        return path

    def _stage(self, t: int, base: Manifest | None) -> None:
        """Stage parts of all transactions that an index lacks, in this process: the tables hold them already."""
        shard = Shard(TABLE_SPANS.name, self._key_value, self._objects)
        builder = Builder(self._key_value, self._objects, self._buckets, InProcess())
        with Lease(shard, self._key_value) as lease:  # the rows stay until they are read
            first = first_missing(t + 1, base)
            wanted = IndexedRows(
                (t if first is None else first, t + 1),
                shard.snapshot(t, lease.state),
                self._analyzer(base),
                None if base is None else base.vectors,
                receipt_lower=first,
            )
            builder.stage(build_name(t), wanted)
