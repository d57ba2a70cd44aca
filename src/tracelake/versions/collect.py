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
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, KeyValueStore, ObjectInfo, ObjectStore, delete_all
from tracelake.versions.branches import MAIN, BranchAt, BranchRecords, scope
from tracelake.versions.entries import damage_of
from tracelake.versions.model import EPOCH_UNSET, BranchRecord, Change, ChangeSet, Commit, FileAt, Request
from tracelake.versions.naming import Names
from tracelake.versions.objects import FILES, Content, Contents, file_epoch, folder_of, path_of
from tracelake.versions.protocol import is_collectable, is_forgotten, known_tokens, next_epoch, pending_tokens
from tracelake.versions.reach import BEHIND, Kind, Reached, ids_in


@dataclass(frozen=True, slots=True)
class CollectedCommits:
    """What was deleted, or would be."""

    commits: int = 0
    objects: int = 0
    """Of every kind, commits too."""
    size_bytes: int = 0
    indexes: frozenset[str] | None = frozenset()
    """The manifests of indexes that something names; None where that is not known."""
    epoch: int = 0
    """The least that a branch is at."""
    damage: tuple[str, ...] = ()
    """What cannot be read: of what may lie behind it nothing was deleted."""


class RepositoryCollector:
    """Collects the garbage of one repository. Any number may work on the same one at once."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._objects = objects
        self._contents = Contents(objects)
        self._records = BranchRecords(key_value, self._contents.has_commits)
        self._names_given = Names(key_value, self._records, lambda _: False)

    def collect(self, *, epoch_min_s: float, dry_run: bool = False) -> CollectedCommits:
        """Delete what nothing leads to, where it was written two epochs ago or earlier.

        An epoch lasts for `epoch_min_s` seconds at least, so that who writes has that long to be done; with 0 it may
        have to write again. Garbage goes with the second or third collection after it came to be. Where something that
        is reached cannot be read, nothing of the kinds that lie behind it goes (`reach`). Raises DamageError where a
        branch, a tag or the epoch cannot: then nothing is known.
        """
        newest = self._begin_epoch(epoch_min_s, dry_run=dry_run)
        if not dry_run:
            self._names_given.end_claims(newest)
            self._forget_answers(newest)
        listed = {kind: list(self._objects.list(folder_of(kind))) for kind in BEHIND}
        reached = self._reached_at_once(listed[Commit])
        doomed: list[tuple[Kind, ObjectInfo]] = [
            (kind, info)
            for kind, infos in listed.items()
            if kind not in reached.unknown
            for info in self._garbage(kind, infos, reached, newest)
        ]
        if FileAt not in reached.unknown:
            doomed += [(FileAt, info) for info in self._files_over(reached, newest)]
        if not dry_run:
            delete_all(self._objects, [info.path for _, info in doomed])
            self._erase_entries()
            self._records.forget_requests(self._scopes)
        return CollectedCommits(
            commits=sum(kind is Commit for kind, _ in doomed),
            objects=len(doomed),
            size_bytes=sum(info.size_bytes for _, info in doomed),
            indexes=None if FileAt in reached.unknown else frozenset(reached.indexes),
            epoch=newest,
            damage=tuple(dict.fromkeys(reached.damage)),
        )

    def _forget_answers(self, newest: int) -> None:
        scopes = self._scopes()
        self._records.forget_answers(lambda recorded: is_forgotten(recorded, newest, scopes))

    def _scopes(self) -> set[str]:
        """Return the scopes of all branches; that of `main` too where there is no record yet."""
        branches = {MAIN: BranchAt(BranchRecord(), ABSENT)} | self._records.all()
        return {scope(name, at.record) for name, at in branches.items()}

    def _erase_entries(self) -> None:
        """Erase staged entries whose token no branch knows any more: whoever let go of it was killed, or a writer late.

        Entries are looked at first: under a token that was found so, nothing is staged before a branch names it, and
        once no branch knows it, none ever will again.
        """
        tokens = self._records.tokens()
        known = {token for at in self._records.all().values() for token in known_tokens(at.record)}
        for token in sorted(tokens - known):
            self._records.unstage(token)

    def _begin_epoch(self, epoch_min_s: float, *, dry_run: bool) -> int:
        """Begin an epoch when it is time, on every branch; return the least that a branch is at."""
        if not dry_run:
            epoch = self._records.advance(partial(next_epoch, now_s=time.time(), epoch_min_s=epoch_min_s))
            # `main` too where there is no record yet: who is about to make one has read an epoch before.
            for name, at in ({MAIN: BranchAt(BranchRecord(), ABSENT)} | self._records.all()).items():
                self._raise(name, at, epoch.number)
        # A branch without an epoch takes one that it reads later, so not an older one.
        epochs = {at.record.epoch for at in self._records.all().values()} - {EPOCH_UNSET}
        return min([self._records.epoch().number, *epochs])

    def _raise(self, branch: str, at: BranchAt, epoch: int) -> None:
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            if (at.is_absent and branch != MAIN) or at.record.epoch >= epoch:
                return
            wanted = replace(at.record, epoch=epoch)
            raised, at = self._records.swap(branch, at, wanted, is_mine=lambda there: there.epoch >= epoch)
            if raised:
                return
        raise ContentionError(f"branch {branch}: others were faster, again and again; collect garbage later.")

    def _garbage(
        self, kind: type[Content], listed: list[ObjectInfo], reached: Reached, newest: int
    ) -> Iterator[ObjectInfo]:
        """Yield what nothing leads to and can go. What is gone went with another collector; what is damaged stays."""
        left = [info for info in listed if info.path not in reached.paths]
        ids = ids_in(kind, (info.path for info in left))
        epochs = reached.epochs(kind, ids)
        for record_id, info in zip(ids, left, strict=True):
            if record_id in epochs and is_collectable(epochs[record_id], newest):
                yield info

    def _files_over(self, reached: Reached, newest: int) -> Iterator[ObjectInfo]:
        for info in self._objects.list(FILES):
            written = file_epoch(info.path)
            if info.path not in reached.paths and written is not None and is_collectable(written, newest):
                yield info

    def _reached_at_once(self, commits: list[ObjectInfo]) -> Reached:
        """Return what was reached at one moment; `commits` are read ahead.

        A name may be given to what another name leads to, and that one be deleted, while we look at the one and
        then at the other. So where one was given meanwhile, we look again (`BranchRecords.tell_of_name`).
        """
        reached = Reached(self._contents)
        reached.read_commits(ids_in(Commit, (info.path for info in commits)))
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            epoch = self._records.epoch()
            self._reach(reached)
            if self._records.epoch() == epoch:
                return reached
        raise ContentionError("branches and tags were created all the time; collect garbage later.")

    def _reach(self, reached: Reached) -> None:
        """Follow everything that leads somewhere: what is staged and sealed, heads and tags, claims."""
        pending = [
            request
            for name, at in self._records.all().items()
            for request in self._reach_pending(name, at, reached)
        ]
        heads = {at.record.head for at in self._records.all().values()} | set(self._records.tags().values())
        reached.follow(heads - {""})
        sources = {each.operation.commit for each in pending if not isinstance(each.operation, Change)}
        reached.follow(sources | self._records.named(), may_be_gone=True)

    def _reach_pending(self, name: str, at: BranchAt, reached: Reached) -> list[Request]:
        """Reach what is staged on a branch, and what requests name; return the requests.

        Looks at the record again afterwards: while it names a token, what is staged under it is there. Else it may have
        been staged anew under another, which was looked at too early.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            tokens = pending_tokens(at.record)
            for token in sorted(tokens):
                under = self._records.under(token)
                for layers in under.whole.values():
                    reached.name(layers)
                if under.damaged:
                    reached.hide(ChangeSet, damage_of(under.damaged))
            requests = [sealed.request for sealed in at.record.sealed]
            requests += [waiting.request for waiting in self._records.announced(scope(name, at.record))]
            at = self._records.read(name)
            if tokens <= known_tokens(at.record):
                break
        else:
            raise ContentionError(
                f"branch {name}: many commits came between, again and again; collect garbage later."
            )
        for request in requests:
            self._reach_request(request, reached)
        return requests

    def _reach_request(self, request: Request, reached: Reached) -> None:
        if not isinstance(request.operation, Change):
            return
        reached.name(reference for _, reference in request.operation.entries)
        for changes_id, changes in self._contents.read_each(ChangeSet, request.operation.objects):
            reached.paths.add(path_of(ChangeSet, changes_id))
            if isinstance(changes, DamageError):  # then the request is refused
                continue
            reached.name(reference for _, reference in changes.entries)
