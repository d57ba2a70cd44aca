"""Rebuild of the index from table `spans`, concurrent with readers and pipelines (see docs/internals/index.md).

The new parts have one document for each live row, so that scores ignore replaced rows. One commit publishes them.
Transactions that were committed in the meantime have separate parts, which are taken over unchanged. If their parts
were merged with older ones, or have another analyzer, these transactions are built too. The next transaction
reconciles one that is committed at the same moment (see `base_of`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from tracelake._errors import ContentionError, DamageError, UsageError
from tracelake.indexing.build import IndexBuilder, IndexedRows, StartedBuild
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.results import IndexReport
from tracelake.search.analyzers import Analyzer, analyzer_named, current, of_fingerprint
from tracelake.search.finalize import clean_staging, read_manifest, read_parts, with_lists, write_marker
from tracelake.search.model import Manifest, PartRef, manifest_path
from tracelake.search.protocol import parts_of_build
from tracelake.search.vectors import PLAIN, IndexSettings, VectorSettings
from tracelake.shards.leases import Lease
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.view import INDEX, INDEX_ENTRY, TABLE_ENTRY, base_of, index_at, vectors_at
from tracelake.tasks.runners import OnProgress, TaskRunner
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.repository import Repository

_INDEX_COMMITS_BACK_MAX: Final = 100
"""Ancestors of a commit with a damaged index that are searched for its vector settings."""


AS_BEFORE: Final = "as before"
Vectors: TypeAlias = VectorSettings | Literal["as before"] | None
"""Vectors of a rebuilt index: the present ones, others, or none."""


def rebuild(
    key_value: KeyValueStore,
    objects: ObjectStore,
    buckets: int,
    runner: TaskRunner,
    progress: OnProgress,
    text: str | None = None,
    first: IndexSettings = PLAIN,
    vectors: Vectors = AS_BEFORE,
) -> IndexReport:
    """Rebuild the index, and publish it on `main`.

    Args:
        text: the analyzer. Default: that of the present index, or that of `first` if the index is unreadable.
        vectors: the vector settings. Default: those of the present index.

    Raises:
        UsageError: the lake is empty, or the analyzer does not exist.
        ContentionError: other commits were faster, too many times in a row.
        ExpiredError: garbage was collected twice in the meantime; run it again.
    """
    return IndexRebuild(
        IndexBuilder(key_value, objects, buckets, runner), progress, text, first, vectors
    ).run()


class IndexRebuild:
    """A rebuild, and the parts that it has built so far."""

    def __init__(
        self,
        builder: IndexBuilder,
        progress: OnProgress,
        text: str | None = None,
        first: IndexSettings = PLAIN,
        vectors: Vectors = AS_BEFORE,
    ) -> None:
        self._chosen = None if text is None else analyzer_named(text)
        self._builder = builder
        self._progress = progress
        self._objects = builder.objects
        self._repository = Repository(builder.key_value, builder.objects)
        self._first = first
        self._told = vectors
        self._vectors = self._wanted_vectors()
        self._builds: list[str] = []
        self._begin(self._chosen or self._standing_analyzer() or analyzer_named(first.text))

    def _begin(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._begun = StartedBuild.now(self._repository)
        self._parts: list[PartRef] = []
        self._upper = 0
        """The transaction after the last one that is built."""

    def run(self) -> IndexReport:
        """Build and publish the index. See `rebuild`."""
        self._extend(None)
        for number in range(CONDITIONAL_WRITE_TRIES_MAX):
            replaced, later, now = self._later()
            # Read after the manifest to replace, because the commit replaces nothing else.
            standing = self._standing_analyzer() if self._chosen is None else None
            vectors = self._wanted_vectors()
            if standing not in (None, self._analyzer) or vectors != self._vectors:
                self._vectors = vectors  # a user changed them during the rebuild
                self._begin(standing or self._analyzer)
                self._extend(None)
                continue
            if (end := max((part.upper for part in later if part.lower < self._upper), default=0)) > 0:
                self._extend(end)
                continue  # settings are read after each manifest, because they belong to the index that is replaced
            report = self._publish(number, replaced, later, now)
            if report is not None:
                for build in self._builds:
                    clean_staging(self._objects, INDEX, build)
                return report
        raise _outrun()

    def _standing_analyzer(self) -> Analyzer | None:
        """Return the analyzer of the index that the next transaction builds on, None if it is unreadable."""
        standing = self._standing()
        analyzer = None if standing is None else of_fingerprint(standing.fingerprint)
        return None if analyzer is None else current(analyzer)

    def _standing(self) -> Manifest | None:
        """Return the index that the next transaction builds on, None if it is unreadable."""
        head = self._repository.head()
        if head is None:
            return None
        with suppress(DamageError):
            return base_of(self._repository, self._objects, self._repository.transaction_of(head) + 1)
        return None

    def _extend(self, end: int | None) -> None:
        """Build the missing transactions, up to `end`, by default up to the head."""
        head = self._repository.head()
        reference = self._repository.find(head, [TABLE_ENTRY]).get(TABLE_ENTRY) if head else None
        if not isinstance(reference, TableAt):
            raise UsageError("the lake is empty, so there is nothing to index. Ingest traces first.")
        lower, upper = self._upper, end or reference.as_of + 1
        if lower:
            # The name has the previous build's name as a prefix. Garbage collection finds the manifests of a
            # build's parts by the prefix of their names.
            self._begun = replace(self._begun, build=f"{self._begun.build}-{lower:010d}")
        shard = Shard(reference.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease:  # keeps the rows until they are read
            snapshot = shard.snapshot(reference.as_of, lease.state)
            wanted = IndexedRows((lower, upper), snapshot, self._analyzer, self._vectors)
            chosen = self._builder.build(self._begun, wanted, self._progress)
        self._builds.append(self._begun.build)
        self._parts += parts_of_build(INDEX, chosen, lower, upper, as_of=reference.as_of)
        self._upper = upper

    def _publish(
        self, number: int, replaced: str | None, later: list[PartRef], now: int
    ) -> IndexReport | None:
        """Commit the parts, with those of later transactions, as the index. Return None if another was faster."""
        manifest = Manifest(
            index=INDEX,
            build=f"{self._begun.build}-{now:010d}-{number:03d}",  # unique for each attempt
            upper=now,
            fingerprint=self._analyzer.fingerprint,
            parent=replaced,
            lists=(),
            newest=(*self._parts, *later),
            vectors=self._vectors,
        )
        path = manifest_path(INDEX, manifest.build)
        manifest = write_marker(self._objects, path, with_lists(self._objects, manifest))
        # A commit never moves an index back to fewer transactions, and replaces only the index that it has
        # read. If another commit is faster, this one changes nothing.
        commit_id = self._repository.commit_entries(
            {INDEX_ENTRY: IndexAt(path, now, self._begun.epoch, replaces=replaced or "")},
            message=f"index rebuilt: {manifest.documents} documents in {manifest.part_count} parts",
            committer="index rebuild",
        )
        if index_at(self._repository, commit_id) != path:
            return None
        counted = [part.vectors for part in self._parts if part.vectors is not None]
        return IndexReport(
            commit_id,
            manifest.upper,
            manifest.documents,
            manifest.part_count,
            self._analyzer.name,
            sum(each.vectors for each in counted),
            sum(each.failed for each in counted),
        )

    def _wanted_vectors(self) -> VectorSettings | None:
        """Return the vector settings of the rebuilt index."""
        return self._standing_vectors() if self._told == AS_BEFORE else self._told

    def _standing_vectors(self) -> VectorSettings | None:
        """Return the vector settings of the next transaction. For a damaged index, return its earlier or its first
        ones."""
        standing = self._standing()
        if standing is not None:
            return standing.vectors
        commit_id = self._repository.head()
        for _ in range(_INDEX_COMMITS_BACK_MAX):
            if commit_id is None:
                break
            with suppress(DamageError):
                return vectors_at(self._repository, self._objects, commit_id)
            parents = self._repository.commit(commit_id).parents
            commit_id = parents[0] if parents else None
        return self._first.vectors

    def _later(self) -> tuple[str | None, list[PartRef], int]:
        """Return the manifest to replace, its parts of transactions that are not built, and its upper."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            head = self._repository.head()
            assert head is not None, "a branch that has a commit keeps one"
            replaced = index_at(self._repository, head)
            transaction = self._repository.transaction_of(head)
            if replaced is None or transaction < self._upper:  # not needed, so it may be damaged
                return replaced, [], self._upper
            manifest = read_manifest(self._objects, replaced)
            if manifest.fingerprint == self._analyzer.fingerprint:
                later = [part for part in read_parts(self._objects, manifest) if part.upper > self._upper]
                return replaced, later, max(self._upper, manifest.upper)
            self._extend(None)  # parts of another analyzer are not taken over
        raise _outrun()


def _outrun() -> ContentionError:
    return ContentionError(
        f"the rebuilt index lost the commit race to {CONDITIONAL_WRITE_TRIES_MAX} transactions in a row; try "
        "again when fewer arrive."
    )
