"""Merging of index parts when it is due, without documents of replaced rows.

A merge builds a part with the live rows of some adjacent parts, and replaces these by one commit. The commit takes
effect only if the index is still the one that was read. A merge therefore never undoes a transaction, a rebuild or
another merge. After a lost race, the merger tries to put the same parts into the new index; if that fails, only its
work is lost. After a crash, the index is the old or the new one. Older commits keep the index that they reference.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import chain
from typing import Final

from msgspec.structs import replace

from tracelake._errors import ContentionError, TracelakeError
from tracelake.batching import Windows
from tracelake.indexing.build import IndexBuilder, IndexedRows, StartedBuild
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.scratch import scratch_directory
from tracelake.search.analyzers import Analyzer, of_fingerprint
from tracelake.search.finalize import (
    Redactions,
    clean_staging,
    read_list,
    read_parts,
    with_lists,
    write_marker,
)
from tracelake.search.model import Manifest, PartRef, manifest_path
from tracelake.search.protocol import (
    INDEX_FAN_OUT,
    UNDIVIDED,
    Generation,
    IndexWindows,
    LiveRows,
    counts_replaced,
    counts_replaced_since,
    due,
    due_when_idle,
    generations,
    parts_of_build,
    replaced_generations,
    to_rewrite,
    until_due,
    with_merged,
    without_vectors,
)
from tracelake.shards.leases import Lease
from tracelake.shards.lookup import has_live_rows
from tracelake.shards.model import BatchRef
from tracelake.shards.rows import ids_by_batch, retracted, sorted_ids
from tracelake.shards.shard import Shard
from tracelake.storage import LocalFiles, ObjectStore
from tracelake.tables.scan import check_parts
from tracelake.tables.view import INDEX, INDEX_ENTRY, TABLE_ENTRY, analyzer_of, base_of, index_at
from tracelake.tasks.backoff import RetrySchedule
from tracelake.tasks.runners import OnProgress, silent
from tracelake.versions.model import INDEX_MERGER, IndexAt, TableAt
from tracelake.versions.repository import Repository

COMMITTER: Final = INDEX_MERGER
"""Committer name of merges. Such a commit has no transaction, and every table and search has the same rows after it."""

logger = logging.getLogger("tracelake.maintenance")


@dataclass(frozen=True, slots=True)
class CurrentIndex:
    """Index of the head of `main`."""

    transaction: int
    path: str
    """Path of the manifest that the head references."""
    manifest: Manifest
    """Manifest that the next transaction builds on."""
    shard: str

    @property
    def analyzer(self) -> Analyzer:
        """Analyzer of the index."""
        return analyzer_of(self.manifest)

    @property
    def is_complete(self) -> bool:
        """True if it has all transactions. It is False for one commit after a transaction overwrote a rebuilt index
        of another analyzer."""
        return self.manifest.upper == self.transaction + 1


class IndexMerger:
    """Merger of index parts. Any number may run at once, along with pipelines and rebuilds."""

    fan_out = INDEX_FAN_OUT

    def __init__(self, builder: IndexBuilder, window_s: int | None = None) -> None:
        """Create a merger. Parts of different windows of `window_s` are not merged; None for no windows."""
        self._builder = builder
        self._window_s = window_s
        self._objects = builder.objects
        self._repository = Repository(builder.key_value, builder.objects)
        self._redactions = Redactions(builder.key_value, builder.objects, INDEX)
        self._again = RetrySchedule(self.fan_out)
        self._replaced_rows = 0
        """Documents of replaced rows when the generations were last checked for them."""

    def tries_again(self) -> bool:
        """Return whether something has failed and its backoff is over."""
        return self._again.is_time()

    def maintain(self, progress: OnProgress = silent, *, is_idle: bool = False) -> None:
        """Merge due parts, and more of them with `is_idle`. Rewrite parts with too many replaced rows.

        Only latency and scores depend on merges. A failure is therefore logged, and a later call retries, after a
        growing backoff or `fan_out` transactions. A damaged part prevents only merges that include it. Any other
        failure, such as a full disk, is not due to the parts and ends the call. If it repeats, other parts are merged
        first.
        """
        standing: CurrentIndex | None = None
        again, behind = self._again, _Behind(self.fan_out, is_idle=is_idle)
        not_before = 0 if is_idle or again.is_time() else again.not_before
        try:
            while (standing := current_index(self._repository, self._objects, not_before)) is not None:
                if not self._step(standing, behind, progress):
                    break
        except TracelakeError as error:
            again.ended(standing.transaction if standing is not None else -self.fan_out)
            logger.warning("the index was not merged: %s. The merge will be retried.", error)
        else:
            if standing is not None and behind.has_passed:
                again.skipped(standing.transaction)
            elif standing is not None:
                again.succeeded()

    def _step(self, standing: CurrentIndex, behind: _Behind, progress: OnProgress) -> bool:
        """Do the next piece of due work. Return True if something was done and more may be due."""
        if not standing.is_complete:
            return self._complete(standing, progress)
        all_generations = generations(read_parts(self._objects, standing.manifest))
        batches: Sequence[BatchRef] | None = None
        windows = UNDIVIDED
        if behind.due(all_generations, windows):
            batches = self._batches(standing)
            windows = self._windows(batches)
            if run := behind.due(all_generations, windows):
                return self._merge_or_pass_by(standing, run, behind, progress)
        self._again.not_before = standing.transaction + until_due(all_generations, self.fan_out, windows)
        for each in without_vectors(all_generations, standing.manifest.vectors):
            self._merge_or_pass_by(standing, [each], behind, progress)
        if batches is None:
            batches = self._batches(standing)
            if run := behind.due(all_generations, self._windows(batches)):  # a settled window
                return self._merge_or_pass_by(standing, run, behind, progress)
        live = sum(ref.rows for ref in batches if ref.lower <= standing.transaction)
        if self._rewrite_dead(
            standing, all_generations, standing.manifest.documents - live, behind, progress
        ):
            return True
        if not counts_replaced(standing.manifest.documents, live):
            return False
        for each in self._to_rewrite(standing, all_generations, progress):
            self._merge_or_pass_by(standing, [each], behind, progress)
        return False

    def _batches(self, standing: CurrentIndex) -> Sequence[BatchRef]:
        return Shard(standing.shard, self._builder.key_value, self._objects).state().batches

    def _windows(self, batches: Sequence[BatchRef]) -> IndexWindows:
        windows = Windows(self._window_s, time.time())
        return IndexWindows(windows, [ref.lower for ref in batches], [ref.ingested_s for ref in batches])

    def _merge_or_pass_by(
        self, standing: CurrentIndex, run: Sequence[Generation], behind: _Behind, progress: OnProgress
    ) -> bool:
        """Merge a run of generations. If some of it is damaged, log that and skip the run."""
        try:
            return self._merge(standing, run, progress)
        except TracelakeError as error:
            if not self._again.passes_by(error):
                raise
            logger.warning(
                "the index of transactions %d to %d was not merged: %s. The merge will be retried.",
                run[0].lower,
                run[-1].upper - 1,
                error,
            )
            behind.pass_by(run)
            return True

    def _complete(self, standing: CurrentIndex, progress: OnProgress) -> bool:
        """Index the transactions that a concurrent rebuild with another analyzer lacks."""
        lower, upper = standing.manifest.upper, standing.transaction + 1
        started, added = self._build(standing, (lower, upper), progress)
        draft = replace(standing.manifest, upper=upper, newest=(*standing.manifest.newest, *added))
        won = _commit(
            self._repository,
            self._objects,
            self._redactions,
            started,
            f"{started.build}-000",
            draft,
            standing,
            "index completed",
        )
        clean_staging(self._objects, INDEX, started.build)
        return won

    def _rewrite_dead(
        self,
        standing: CurrentIndex,
        all_generations: Sequence[Generation],
        replaced: int,
        behind: _Behind,
        progress: OnProgress,
    ) -> bool:
        """Rewrite generations with mostly removed rows, such as a window whose traces retention deleted. Drop those
        without any live row unread. Return whether there are such generations."""
        self._replaced_rows = min(self._replaced_rows, replaced)
        if not counts_replaced_since(replaced, self._replaced_rows):
            return False
        self._replaced_rows = replaced
        shard = Shard(standing.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease, scratch_directory("index") as folder:
            snapshot = shard.snapshot(standing.transaction, lease.state)
            batches = [shard.batch(ref) for ref in lease.state.batches if ref.lower <= standing.transaction]
            files = LocalFiles(self._objects, folder)
            check_parts(files, snapshot.retractions)
            ids = ids_by_batch(sorted_ids(retracted(snapshot, files.file).values()), batches)
            live = [
                LiveRows(batch.lower, batch.upper, sum(part.rows for part in batch.parts) - len(dead))
                for batch, dead in zip(batches, ids, strict=True)
            ]
            runs = replaced_generations(all_generations, live)
            for run, rows in runs:
                inside = [batch for batch in batches if run[0].lower <= batch.lower < run[-1].upper]
                parts = tuple(part for batch in inside for part in batch.parts)
                if rows > 0 or has_live_rows(self._objects, changed(snapshot, parts=parts)):
                    self._merge_or_pass_by(standing, run, behind, progress)
                else:
                    dropped = [part for each in run for part in each.parts]
                    started = StartedBuild.now(self._repository)
                    publish_merged(self._repository, self._objects, self._redactions, started, dropped, ())
        return bool(runs)

    def _to_rewrite(
        self, standing: CurrentIndex, all_generations: Sequence[Generation], progress: OnProgress
    ) -> list[Generation]:
        shard = Shard(standing.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease:
            live = self._builder.count_live(shard.snapshot(standing.transaction, lease.state), progress)
        return to_rewrite(all_generations, live)

    def _merge(self, standing: CurrentIndex, run: Sequence[Generation], progress: OnProgress) -> bool:
        parts = [part for each in run for part in each.parts]
        started, merged = self._build(standing, (run[0].lower, run[-1].upper), progress, parts)
        won = publish_merged(self._repository, self._objects, self._redactions, started, parts, merged)
        clean_staging(self._objects, INDEX, started.build)
        return won

    def _build(
        self,
        standing: CurrentIndex,
        transactions: tuple[int, int],
        progress: OnProgress,
        parts: Sequence[PartRef] = (),
    ) -> tuple[StartedBuild, list[PartRef]]:
        """Build parts of the live rows of some transactions, from `parts` if given."""
        started = StartedBuild.now(self._repository)
        shard = Shard(standing.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease:  # keeps the rows until they are read
            snapshot = shard.snapshot(standing.transaction, lease.state)
            wanted = IndexedRows(transactions, snapshot, standing.analyzer, standing.manifest.vectors)
            if parts:
                chosen = self._builder.merge(started, parts, wanted, progress)
            else:
                chosen = self._builder.build(started, wanted, progress)
        return started, parts_of_build(INDEX, chosen, *transactions, as_of=standing.transaction)


class _Behind:
    """Selects due runs of generations, and skips those that cannot be merged.

    An error does not show which of many generations is at fault, because a run is read as the rows of its transactions.
    A long run that failed is therefore retried as short runs, and only a short run is skipped.
    """

    def __init__(self, fan_out: int, *, is_idle: bool) -> None:
        self._fan_out, self._is_idle = fan_out, is_idle
        self._lower = 0
        self.has_passed = False

    def due(self, all_generations: Sequence[Generation], windows: IndexWindows) -> Sequence[Generation]:
        """Return the oldest run that is due. If there is none, return the run that is due at rest."""
        behind = [each for each in all_generations if each.lower >= self._lower]
        run = due(behind, self._fan_out, windows)
        if not run and self._is_idle:
            run = due_when_idle(behind, windows)
        return run[: self._fan_out] if self.has_passed else run

    def pass_by(self, run: Sequence[Generation]) -> None:
        """Continue with short runs, after this one if it was short."""
        self.has_passed = True
        if len(run) <= self._fan_out:
            self._lower = run[-1].upper


def current_index(repository: Repository, objects: ObjectStore, not_before: int = 0) -> CurrentIndex | None:
    """Return the index of the head of `main`. Return None if it is missing, of another version, or was reset."""
    head = repository.head()
    transaction = -1 if head is None else repository.transaction_of(head)
    if head is None or transaction < not_before:
        return None
    entries = repository.find(head, [INDEX_ENTRY, TABLE_ENTRY])
    index, table = entries.get(INDEX_ENTRY), entries.get(TABLE_ENTRY)
    if not isinstance(index, IndexAt) or not isinstance(table, TableAt):
        return None
    if (index.upper, table.as_of) != (transaction + 1, transaction):
        return None
    # Read after the entries. If the head advances in between, the commit changes nothing.
    manifest = base_of(repository, objects, transaction + 1)
    if manifest is None or of_fingerprint(manifest.fingerprint) is None:
        return None
    return CurrentIndex(transaction, index.manifest, manifest, table.shard)


def publish_merged(
    repository: Repository,
    objects: ObjectStore,
    redactions: Redactions,
    started: StartedBuild,
    run: Sequence[PartRef],
    merged: Sequence[PartRef],
) -> bool:
    """Commit an index in which merged parts replace a run. Return False if the run no longer exists.

    Raises:
        ContentionError: other commits were faster, too many times in a row.
        ExpiredError: garbage was collected twice since the merge began.
    """
    for number in range(CONDITIONAL_WRITE_TRIES_MAX):
        standing = current_index(repository, objects)
        # The name is unique to this draft. If a manifest of this name exists, an earlier attempt of ours
        # wrote it.
        build = f"{started.build}-{number:03d}"
        if standing is None or not standing.is_complete:
            return False
        draft = _draft(objects, standing, build, run, merged)
        if draft is None:
            return False
        message = f"index merged: from {len(run)} to {len(merged)} parts, {draft.part_count} in all"
        if _commit(repository, objects, redactions, started, build, draft, standing, message):
            return True
    raise ContentionError(
        f"the merged parts lost the commit race to {CONDITIONAL_WRITE_TRIES_MAX} transactions in a row; "
        "the next maintenance tries again."
    )


def _commit(
    repository: Repository,
    objects: ObjectStore,
    redactions: Redactions,
    started: StartedBuild,
    build: str,
    draft: Manifest,
    standing: CurrentIndex,
    message: str,
) -> bool:
    """Commit an index in place of the current one. Return False if the head's index has changed in the meantime."""
    path = manifest_path(INDEX, build)
    draft = replace(draft, build=build, parent=standing.path)
    manifest = write_marker(objects, path, with_lists(objects, draft))
    redactions.apply([path])  # Safety: after the manifest is written and before its commit.
    commit_id = repository.commit_entries(
        {INDEX_ENTRY: IndexAt(path, manifest.upper, started.epoch, replaces=standing.path)},
        message=message,
        committer=COMMITTER,
    )
    return index_at(repository, commit_id) == path


def _draft(
    objects: ObjectStore,
    standing: CurrentIndex,
    build: str,
    run: Sequence[PartRef],
    merged: Sequence[PartRef],
) -> Manifest | None:
    """Return the manifest with the merged parts, reusing lists that are older than the run. Return None without the
    run."""
    there = standing.manifest
    lists = [read_list(objects, ref) for ref in there.lists]
    reused = next((number for number, parts in enumerate(lists) if run[0] in parts), len(lists))
    parts = with_merged([*chain(*lists[reused:]), *there.newest], run, merged)
    if parts is None:
        return None
    return Manifest(
        index=INDEX,
        build=build,
        upper=there.upper,
        fingerprint=there.fingerprint,
        parent=standing.path,
        lists=there.lists[:reused],
        newest=parts,
        vectors=there.vectors,
    )
