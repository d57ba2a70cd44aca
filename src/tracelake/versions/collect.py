"""Garbage collection of a repository: commits that no ref reaches, what only they name, and what was never published.

It is safe beside committers, and at any crash, without trusting a clock:

- A name is never written again. The epoch of the branch is part of what a commit, metarange or range is made of,
  and a collection begins a new one on every branch before it looks. What was built two epochs ago is not published
  any more (`protocol.cut`), and is garbage, or is reached.
- What cannot be reached once is never reached again: a name is given, and a merge is built, only where a branch or
  tag leads to the commit. Who gives a name pins the commit first and looks then; a merge on the list of a branch is
  seen here as a pin. So either we see the pin, or they see what we saw.

Files are named by their content alone. One that is written again is new again, so that here, and only here, its age
counts: what a committer writes has the grace time to be staged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from tracelake._errors import DamageError, LimitError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import KeyValueStore, ObjectInfo, ObjectStore
from tracelake.versions.branches import BranchAt, BranchRecords, scope
from tracelake.versions.model import (
    EPOCH_UNSET,
    Branch,
    Change,
    ChangeSet,
    Commit,
    FileAt,
    Metarange,
    Range,
    Reference,
    Request,
)
from tracelake.versions.objects import FILES, Contents, folder_of, path_of
from tracelake.versions.protocol import is_collectable, next_epoch


@dataclass(frozen=True, slots=True)
class Collected:
    """What was deleted, or would be."""

    commits: int = 0
    objects: int = 0
    """Of every kind, commits too."""
    size_bytes: int = 0


@dataclass(slots=True)
class _Reached:
    """Paths of objects that something leads to."""

    paths: set[str] = field(default_factory=set)

    def file(self, reference: Reference | None) -> None:
        if isinstance(reference, FileAt):
            self.paths.add(FILES + reference.sha256)


class RepositoryCollector:
    """Collects the garbage of one repository. Any number may work on the same one at once."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._records = BranchRecords(key_value)
        self._objects = objects
        self._contents = Contents(objects)

    def collect(self, *, grace_s: float, dry_run: bool = False) -> Collected:
        """Delete what nothing leads to, where it was written two epochs ago or earlier.

        An epoch lasts for `grace_s` seconds at least: garbage goes with the second or third collection after it
        came to be. Raises DamageError, and deletes nothing, where a commit that is reached cannot be read.
        """
        newest = self._begin_epoch(grace_s, dry_run=dry_run)
        # Before the look at what leads where: what comes later is no concern of ours.
        listed = list(self._listed())
        reached = self._reached_at_once()
        now = time.time()
        doomed = [
            (kind, info)
            for kind, info in listed
            if info.path not in reached.paths and self._is_garbage(kind, info, newest, now - grace_s)
        ]
        if not dry_run:
            for _, info in doomed:
                self._objects.delete(info.path)
        commits = sum(kind is Commit for kind, _ in doomed)
        return Collected(commits, len(doomed), sum(info.size_bytes for _, info in doomed))

    def _begin_epoch(self, epoch_min_s: float, *, dry_run: bool) -> int:
        """Begin an epoch when it is time, on every branch; return the least that a branch is at."""
        if not dry_run:
            epoch = self._records.advance(partial(next_epoch, now_s=time.time(), epoch_min_s=epoch_min_s))
            for name, at in self._records.all().items():
                self._raise(name, at, epoch.number)
        # A branch without an epoch takes one that it reads later, so not an older one.
        epochs = {at.record.epoch for at in self._records.all().values()} - {EPOCH_UNSET}
        return min([self._records.epoch().number, *epochs])

    def _raise(self, branch: str, at: BranchAt, epoch: int) -> None:
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            if at.is_absent or at.record.epoch >= epoch:
                return
            wanted = replace(at.record, epoch=epoch)
            raised, at = self._records.swap(branch, at, wanted, is_mine=lambda found: found.epoch >= epoch)
            if raised:
                return
        raise LimitError(f"branch {branch}: others were faster, again and again; collect garbage later.")

    def _listed(self) -> Iterator[tuple[type, ObjectInfo]]:
        for kind in (Commit, Metarange, Range, ChangeSet):
            for info in self._objects.list(folder_of(kind)):
                yield kind, info
        for info in self._objects.list(FILES):
            yield FileAt, info

    def _is_garbage(self, kind: type, info: ObjectInfo, newest: int, before_s: float) -> bool:
        """Tell whether an object that nothing leads to can go."""
        if kind in (FileAt, ChangeSet):
            return info.modified_s < before_s
        record_id = info.path.rpartition("/")[2].removesuffix(".json")
        try:
            written = self._written(kind, record_id)
        except DamageError:
            if self._objects.head(info.path) is None:
                return False  # another collector was faster
            raise
        return is_collectable(written, newest)

    def _written(self, kind: type, record_id: str) -> int:
        """Return the epoch in which a record was written first."""
        if kind is Commit:
            return self._contents.read(Commit, record_id).epoch
        if kind is Metarange:
            return self._contents.read(Metarange, record_id).epoch
        return self._contents.read(Range, record_id).epoch

    def _reached_at_once(self) -> _Reached:
        """Return what was reached at one moment.

        A name may be given to what another name leads to, and that one be deleted, while we look at the one and
        then at the other. So where a name went meanwhile, we look again.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            names = self._names()
            reached = self._reached()
            if names <= self._names():
                return reached
        raise LimitError("branches and tags were deleted all the time; collect garbage later.")

    def _names(self) -> set[tuple[str, str]]:
        branches = {(f"branch {name}", at.record.id) for name, at in self._records.all().items()}
        return branches | {(f"tag {name}", commit) for name, commit in self._records.tags().items()}

    def _reached(self) -> _Reached:
        """Follow everything that leads somewhere: branches with what is sealed and staged, tags, pins."""
        reached = _Reached()
        branches = self._records.all()
        for name, at in branches.items():
            self._reach_pending(name, at.record, reached)
        heads = {at.record.head for at in branches.values()}
        heads |= set(self._records.tags().values()) | self._records.pinned()
        heads |= {source for name, at in branches.items() for source in self._sources(name, at.record)}
        todo = [head for head in heads if head]
        while todo:
            commit_id = todo.pop()
            path = path_of(Commit, commit_id)
            if path in reached.paths:
                continue
            reached.paths.add(path)
            commit = self._contents.read(Commit, commit_id)
            todo.extend(commit.parents)
            self._reach_entries(commit, reached)
        return reached

    def _reach_entries(self, commit: Commit, reached: _Reached) -> None:
        if commit.changes is not None:  # what else it names, its parent does
            for _, named in commit.changes:
                reached.file(named)
            return
        metarange = path_of(Metarange, commit.metarange)
        if metarange in reached.paths:
            return
        reached.paths.add(metarange)
        for ref in self._contents.read(Metarange, commit.metarange).ranges:
            path = path_of(Range, ref.id)
            if path not in reached.paths:
                reached.paths.add(path)
                for _, named in self._contents.read(Range, ref.id).entries:
                    reached.file(named)

    def _reach_pending(self, name: str, record: Branch, reached: _Reached) -> None:
        for request in self._pending(name, record):
            if isinstance(request.operation, Change):
                entries = list(request.operation.entries)
                for changes_id in request.operation.objects:
                    reached.paths.add(path_of(ChangeSet, changes_id))
                    entries += self._contents.read(ChangeSet, changes_id).entries
                for _, named in entries:
                    reached.file(named)
        for token in (record.staging, *(sealed.token for sealed in record.sealed)):
            for _, named in self._records.staged(token):
                reached.file(named)

    def _sources(self, name: str, record: Branch) -> Iterator[str]:
        for request in self._pending(name, record):
            operation = request.operation
            if not isinstance(operation, Change):
                yield operation.commit

    def _pending(self, name: str, record: Branch) -> Iterator[Request]:
        yield from (sealed.request for sealed in record.sealed)
        yield from (waiting.request for waiting in self._records.announced(scope(name, record)))
