"""Keeps the index small: parts are merged when that is due, without documents of rows that were replaced.

A merge makes a part of the transactions of some adjacent parts, with the rows that are live now, and puts it in
the place of the old ones by one commit. That commit changes the index only where it is still the one that was read: so
nothing that a transaction, a rebuild or another merge has done meanwhile is undone, and whoever loses the race tries
to put the same parts into the new one, or has only wasted its work. Killed anywhere, the index is the old one or
the new one. Older commits keep the index that they name.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from msgspec.structs import replace

from tracelake._errors import ContentionError, TracelakeError
from tracelake.indexing.build import IndexBuilder, IndexedRows, StartedBuild
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, INDEX_FAN_OUT
from tracelake.search.analyzers import Analyzer, of_fingerprint
from tracelake.search.finalize import clean_staging, read_list, read_parts, with_lists, write_marker
from tracelake.search.model import Manifest, PartRef, manifest_path
from tracelake.search.protocol import (
    Generation,
    counts_replaced,
    due,
    due_at_rest,
    generations,
    parts_of_build,
    to_rewrite,
    until_due,
    with_merged,
    without_vectors,
)
from tracelake.shards.leases import Lease
from tracelake.shards.shard import Shard
from tracelake.storage import ObjectStore
from tracelake.tables.view import INDEX, INDEX_ENTRY, TABLE_ENTRY, analyzer_of, base_of, index_at
from tracelake.tasks.backoff import RetrySchedule
from tracelake.tasks.runners import OnProgress, silent
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.repository import Repository

COMMITTER: Final = "index merge"
"""Who commits merges: commits of no transaction, after which every table and search has the same rows."""

logger = logging.getLogger("tracelake.maintenance")


@dataclass(frozen=True, slots=True)
class CurrentIndex:
    """The index of the head of `main`."""

    transaction: int
    named: str
    """The path of the manifest that the head names."""
    manifest: Manifest
    """What the next transaction will be built on."""
    shard: str

    @property
    def analyzer(self) -> Analyzer:
        """What made words of its texts."""
        return analyzer_of(self.manifest)

    @property
    def is_complete(self) -> bool:
        """Whether it has all transactions: not where one put an index of another analyzer back, for one commit."""
        return self.manifest.upper == self.transaction + 1


class IndexMerger:
    """Merges parts of the index. Any number may do so at once, beside pipelines and rebuilds."""

    fan_out = INDEX_FAN_OUT

    def __init__(self, builder: IndexBuilder) -> None:
        self._builder = builder
        self._objects = builder.objects
        self._repository = Repository(builder.key_value, builder.objects)
        self._again = RetrySchedule(self.fan_out)

    def tries_again(self) -> bool:
        """Whether something has failed, and its pause is over."""
        return self._again.is_time()

    def maintain(self, progress: OnProgress = silent, *, at_rest: bool = False) -> None:
        """Merge what is due, more of it where nothing comes, and rewrite parts with too many rows that were replaced.

        A failure is logged, and left to a later call: after a pause, which grows, or `fan_out` transactions; nothing
        but time and scores depend on this. What is damaged keeps itself from being merged, and those that are merged
        with it, and no others. Whatever else fails, as a disk that is full, is no fault of what was to be merged and
        ends the call; where that is so again and again, others are merged first.
        """
        standing: CurrentIndex | None = None
        again, behind = self._again, _Behind(self.fan_out, at_rest=at_rest)
        not_before = 0 if at_rest or again.is_time() else again.not_before
        try:
            while (standing := current_index(self._repository, self._objects, not_before)) is not None:
                if not self._step(standing, behind, progress):
                    break
        except TracelakeError as error:
            again.ended(standing.transaction if standing is not None else -self.fan_out)
            logger.warning("the index was not merged: %s. It will be tried again.", error)
        else:
            if standing is not None and behind.has_passed:
                again.left(standing.transaction)
            elif standing is not None:
                again.went_well()

    def _step(self, standing: CurrentIndex, behind: _Behind, progress: OnProgress) -> bool:
        """Do what is due; return whether something was done, and more may be due."""
        if not standing.is_complete:
            return self._complete(standing, progress)
        all_generations = generations(read_parts(self._objects, standing.manifest))
        run = behind.due(all_generations)
        if run:
            return self._merge_or_pass_by(standing, run, behind, progress)
        self._again.not_before = standing.transaction + until_due(all_generations, self.fan_out)
        for each in without_vectors(all_generations, standing.manifest.vectors):
            self._merge_or_pass_by(standing, [each], behind, progress)
        batches = Shard(standing.shard, self._builder.key_value, self._objects).state().batches
        live = sum(ref.rows for ref in batches if ref.lower <= standing.transaction)
        if not counts_replaced(standing.manifest.documents, live):
            return False
        for each in self._to_rewrite(standing, all_generations, progress):
            self._merge_or_pass_by(standing, [each], behind, progress)
        return False

    def _merge_or_pass_by(
        self, standing: CurrentIndex, run: Sequence[Generation], behind: _Behind, progress: OnProgress
    ) -> bool:
        """Merge a run; where something of it is damaged, say so, and go on without it."""
        try:
            return self._merge(standing, run, progress)
        except TracelakeError as error:
            if not self._again.passes_by(error):
                raise
            logger.warning(
                "the index was not merged of transactions %d to %d: %s. It will be tried again.",
                run[0].lower,
                run[-1].upper - 1,
                error,
            )
            behind.pass_by(run)
            return True

    def _complete(self, standing: CurrentIndex, progress: OnProgress) -> bool:
        """Index the transactions that an index lacks which was built anew with another analyzer meanwhile."""
        lower, upper = standing.manifest.upper, standing.transaction + 1
        begun, added = self._build(standing, (lower, upper), progress)
        draft = replace(standing.manifest, upper=upper, newest=(*standing.manifest.newest, *added))
        won = _commit(
            self._repository, self._objects, begun, f"{begun.build}-000", draft, standing, "index completed"
        )
        clean_staging(self._objects, INDEX, begun.build)
        return won

    def _to_rewrite(
        self, standing: CurrentIndex, all_generations: Sequence[Generation], progress: OnProgress
    ) -> list[Generation]:
        shard = Shard(standing.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease:
            live = self._builder.count_live(shard.snapshot(standing.transaction, lease.state), progress)
        return to_rewrite(all_generations, live)

    def _merge(self, standing: CurrentIndex, run: Sequence[Generation], progress: OnProgress) -> bool:
        parts = [part for each in run for part in each.parts]
        begun, merged = self._build(standing, (run[0].lower, run[-1].upper), progress, parts)
        won = publish_merged(self._repository, self._objects, begun, parts, merged)
        clean_staging(self._objects, INDEX, begun.build)
        return won

    def _build(
        self,
        standing: CurrentIndex,
        transactions: tuple[int, int],
        progress: OnProgress,
        parts: Sequence[PartRef] = (),
    ) -> tuple[StartedBuild, list[PartRef]]:
        """Build parts of the rows of some transactions that are live now, out of those that have them, if there are."""
        begun = StartedBuild.now(self._repository)
        shard = Shard(standing.shard, self._builder.key_value, self._objects)
        with Lease(shard, self._builder.key_value) as lease:  # the rows stay until they are read
            snapshot = shard.snapshot(standing.transaction, lease.state)
            wanted = IndexedRows(transactions, snapshot, standing.analyzer, standing.manifest.vectors)
            if parts:
                chosen = self._builder.merge(begun, parts, wanted, progress)
            else:
                chosen = self._builder.build(begun, wanted, progress)
        return begun, parts_of_build(INDEX, chosen, *transactions, as_of=standing.transaction)


class _Behind:
    """What is due behind runs that cannot be merged.

    Nobody can tell by an error which of many generations is at fault: what is read of a run is rows of its
    transactions. So a long run is tried again in short ones, and only a short one is passed by.
    """

    def __init__(self, fan_out: int, *, at_rest: bool) -> None:
        self._fan_out, self._at_rest = fan_out, at_rest
        self._lower = 0
        self.has_passed = False

    def due(self, all_generations: Sequence[Generation]) -> Sequence[Generation]:
        """Return what is due, the oldest first, and else what is due at rest."""
        behind = [each for each in all_generations if each.lower >= self._lower]
        run = due(behind, self._fan_out) or (due_at_rest(behind) if self._at_rest else ())
        return run[: self._fan_out] if self.has_passed else run

    def pass_by(self, run: Sequence[Generation]) -> None:
        """Go on in short runs, behind this one if it was short."""
        self.has_passed = True
        if len(run) <= self._fan_out:
            self._lower = run[-1].upper


def current_index(repository: Repository, objects: ObjectStore, not_before: int = 0) -> CurrentIndex | None:
    """Return the index of the head of `main`; None where there is none of this version, or it was taken back."""
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
    # After the look at what is named: should the head go on in between, the commit will not change anything.
    manifest = base_of(repository, objects, transaction + 1)
    if manifest is None or of_fingerprint(manifest.fingerprint) is None:
        return None
    return CurrentIndex(transaction, index.manifest, manifest, table.shard)


def publish_merged(
    repository: Repository,
    objects: ObjectStore,
    begun: StartedBuild,
    run: Sequence[PartRef],
    merged: Sequence[PartRef],
) -> bool:
    """Commit an index with merged parts in the place of a run; return False where the run is not there any more.

    Raises:
        ContentionError: others were faster, again and again.
        ExpiredError: garbage was collected twice since the merge began.
    """
    for number in range(CONDITIONAL_WRITE_TRIES_MAX):
        standing = current_index(repository, objects)
        # No other draft has this name: what stands there is ours, whatever became of an earlier try.
        build = f"{begun.build}-{number:03d}"
        if standing is None or not standing.is_complete:
            return False
        draft = _draft(objects, standing, build, run, merged)
        if draft is None:
            return False
        message = f"index merged: {len(run)} parts are {len(merged)}, of {draft.part_count}"
        if _commit(repository, objects, begun, build, draft, standing, message):
            return True
    raise ContentionError(
        f"{CONDITIONAL_WRITE_TRIES_MAX} transactions in a row were faster than the commit of merged parts."
    )


def _commit(
    repository: Repository,
    objects: ObjectStore,
    begun: StartedBuild,
    build: str,
    draft: Manifest,
    standing: CurrentIndex,
    message: str,
) -> bool:
    """Commit an index in the place of the one that stands; return False where that is another by now."""
    path = manifest_path(INDEX, build)
    draft = replace(draft, build=build, parent=standing.named)
    manifest = write_marker(objects, path, with_lists(objects, draft))
    commit_id = repository.commit_entries(
        {INDEX_ENTRY: IndexAt(path, manifest.upper, begun.epoch, replaces=standing.named)},
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
    """Return the manifest with the merged parts, and the lists that are older than the run; None without the run."""
    there = standing.manifest
    lists = [read_list(objects, ref) for ref in there.lists]
    kept = next((number for number, parts in enumerate(lists) if run[0] in parts), len(lists))
    parts = with_merged([*chain(*lists[kept:]), *there.newest], run, merged)
    if parts is None:
        return None
    return Manifest(
        index=INDEX,
        build=build,
        upper=there.upper,
        fingerprint=there.fingerprint,
        parent=standing.named,
        lists=there.lists[:kept],
        newest=parts,
        vectors=there.vectors,
    )
