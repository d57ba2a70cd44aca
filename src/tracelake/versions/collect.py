"""Garbage collection of a repository: commits that no ref reaches, what only they name, and what was never published.

It is safe beside committers, and at any crash, without trusting a clock: see `docs/internals/versions.md`. In short, an
object has the epoch in which it was written in its name or content, and a collection begins a new one on every branch
before it looks. What was written two epochs ago is not named for the first time any more (`may_publish`): it is
reached now, or is garbage. What cannot be reached once is never reached again: a name is given, and a commit is merged,
picked or reverted, only where a branch or tag leads to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from tracelake._errors import DamageError, LimitError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, KeyValueStore, ObjectInfo, ObjectStore
from tracelake.versions.branches import MAIN, BranchAt, BranchRecords, scope
from tracelake.versions.model import (
    EPOCH_UNSET,
    Branch,
    Change,
    ChangeSet,
    Commit,
    FileAt,
    IndexAt,
    Metarange,
    Range,
    Reference,
    Request,
)
from tracelake.versions.naming import Names
from tracelake.versions.objects import FILES, Contents, file_epoch, file_path, folder_of, path_of
from tracelake.versions.protocol import is_collectable, is_forgotten, known_tokens, next_epoch, pending_tokens


@dataclass(frozen=True, slots=True)
class Collected:
    """What was deleted, or would be."""

    commits: int = 0
    objects: int = 0
    """Of every kind, commits too."""
    size_bytes: int = 0
    indexes: frozenset[str] = frozenset()
    """The manifests of indexes that something names."""
    epoch: int = 0
    """The least that a branch is at."""


@dataclass(slots=True)
class _Reached:
    """Paths of objects that something leads to."""

    paths: set[str] = field(default_factory=set)
    indexes: set[str] = field(default_factory=set)

    def file(self, reference: Reference | None) -> None:
        if isinstance(reference, FileAt):
            self.paths.add(file_path(reference))
        elif isinstance(reference, IndexAt):
            self.indexes.add(reference.manifest)


class RepositoryCollector:
    """Collects the garbage of one repository. Any number may work on the same one at once."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._records = BranchRecords(key_value)
        self._objects = objects
        self._contents = Contents(objects)
        self._names_given = Names(key_value, self._records, lambda _: False)

    def collect(self, *, epoch_min_s: float, dry_run: bool = False) -> Collected:
        """Delete what nothing leads to, where it was written two epochs ago or earlier.

        An epoch lasts for `epoch_min_s` seconds at least, so that who writes has that long to be done; with 0 he may
        have to write again. Garbage goes with the second or third collection after it came to be. Raises DamageError,
        and deletes nothing, where a commit that is reached cannot be read.
        """
        newest = self._begin_epoch(epoch_min_s, dry_run=dry_run)
        if not dry_run:
            self._names_given.end_claims(newest)
            self._forget_answers(newest)
        reached = self._reached_at_once()
        doomed = [
            (kind, info)
            for kind, info in self._listed()
            if info.path not in reached.paths and self._is_garbage(kind, info, newest)
        ]
        if not dry_run:
            for _, info in doomed:
                self._objects.delete(info.path)
        commits = sum(kind is Commit for kind, _ in doomed)
        size_bytes = sum(info.size_bytes for _, info in doomed)
        return Collected(commits, len(doomed), size_bytes, frozenset(reached.indexes), newest)

    def _forget_answers(self, newest: int) -> None:
        scopes = {scope(name, at.record) for name, at in self._records.all().items()}
        self._records.forget_answers(lambda recorded: is_forgotten(recorded, newest, scopes))

    def _begin_epoch(self, epoch_min_s: float, *, dry_run: bool) -> int:
        """Begin an epoch when it is time, on every branch; return the least that a branch is at."""
        if not dry_run:
            epoch = self._records.advance(partial(next_epoch, now_s=time.time(), epoch_min_s=epoch_min_s))
            # `main` too where there is no record yet: who is about to make one has read an epoch before.
            for name, at in ({MAIN: BranchAt(Branch(), ABSENT)} | self._records.all()).items():
                self._raise(name, at, epoch.number)
        # A branch without an epoch takes one that it reads later, so not an older one.
        epochs = {at.record.epoch for at in self._records.all().values()} - {EPOCH_UNSET}
        return min([self._records.epoch().number, *epochs])

    def _raise(self, branch: str, at: BranchAt, epoch: int) -> None:
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            if (at.is_absent and branch != MAIN) or at.record.epoch >= epoch:
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

    def _is_garbage(self, kind: type, info: ObjectInfo, newest: int) -> bool:
        """Tell whether an object that nothing leads to can go."""
        try:
            written = self._written(kind, info.path)
        except DamageError:  # another collector was faster, or nobody knows when it was written
            return False
        return written is not None and is_collectable(written, newest)

    def _written(self, kind: type, path: str) -> int | None:
        """Return the epoch in which an object was written; None for what is none of ours."""
        record_id = path.rpartition("/")[2].removesuffix(".json")
        if kind is FileAt:
            return file_epoch(path)
        if kind is ChangeSet:
            return self._contents.read(ChangeSet, record_id).epoch
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
        """Follow everything that leads somewhere: what is staged and sealed, heads and tags, claims."""
        reached = _Reached()
        pending = [
            request
            for name, at in self._records.all().items()
            for request in self._reach_pending(name, at, reached)
        ]
        heads = {at.record.head for at in self._records.all().values()} | set(self._records.tags().values())
        for head in heads:
            self._follow(head, reached)
        sources = {each.operation.commit for each in pending if not isinstance(each.operation, Change)}
        for source in sources | self._records.named():
            with suppress(DamageError):  # then no head leads to it, and it is refused
                self._follow(source, reached)
        return reached

    def _follow(self, head: str, reached: _Reached) -> None:
        """Reach a commit, all that lie before it, and what they name."""
        todo = [head] if head else []
        while todo:
            commit_id = todo.pop()
            path = path_of(Commit, commit_id)
            if path in reached.paths:
                continue
            reached.paths.add(path)
            commit = self._contents.read(Commit, commit_id)
            todo.extend(commit.parents)
            self._reach_entries(commit, reached)

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

    def _reach_pending(self, name: str, at: BranchAt, reached: _Reached) -> list[Request]:
        """Reach what is staged on a branch, and what requests name; return the requests.

        Looks at the record again afterwards: while it names a token, what is staged under it is there. Else it may have
        been staged anew under another, which was looked at too early.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            tokens = pending_tokens(at.record)
            for token in sorted(tokens):
                for _, layers in self._records.layers(token):
                    for named in layers:
                        reached.file(named)
            requests = [sealed.request for sealed in at.record.sealed]
            requests += [waiting.request for waiting in self._records.announced(scope(name, at.record))]
            at = self._records.read(name)
            if tokens <= known_tokens(at.record):
                break
        else:
            raise LimitError(
                f"branch {name}: many commits came between, again and again; collect garbage later."
            )
        for request in requests:
            self._reach_request(request, reached)
        return requests

    def _reach_request(self, request: Request, reached: _Reached) -> None:
        if not isinstance(request.operation, Change):
            return
        for _, named in request.operation.entries:
            reached.file(named)
        for changes_id in request.operation.objects:
            reached.paths.add(path_of(ChangeSet, changes_id))
            with suppress(DamageError):  # then the request is refused
                for _, named in self._contents.read(ChangeSet, changes_id).entries:
                    reached.file(named)
