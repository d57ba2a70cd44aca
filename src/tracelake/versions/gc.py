"""Garbage collection of a repository: unreachable commits, objects that only they name, and unpublished objects.

It is safe beside committers and at any crash, without trusting a clock: see `docs/internals/versions.md`. Each object
carries the epoch in which it was written in its name or content. A collection begins a new epoch on every branch before
it reads. Objects written two epochs ago cannot be named for the first time any more (`may_publish`), so they are
reachable now or garbage. An unreachable object stays unreachable. This holds because a commit can be named, merged,
cherry-picked or reverted only if a branch or tag reaches it.

Reachable objects are found with many parallel reads, and each object is read once. If an object is unreadable, its
references are unknown. Objects of the kinds that it may name are then kept, and other kinds are still collected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, NotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, KeyValueStore, ObjectInfo, ObjectStore, delete_all
from tracelake.versions import model, protocol
from tracelake.versions.branch_store import MAIN, BranchRecords, BranchSnapshot, damage_of, scope
from tracelake.versions.commits import RefClaims
from tracelake.versions.expiry import CommitFacts, CommitNames, GapRecords, HistoryExpirer, step_over
from tracelake.versions.protocol import is_collectable
from tracelake.versions.tree import FILES, Content, ContentStore, file_epoch, file_path, folder_of, path_of

Kind: TypeAlias = type[Content | model.FileAt]
BEHIND: Final[dict[type[Content], tuple[Kind, ...]]] = {
    model.Commit: (model.Commit, model.Metarange, model.Range, model.FileAt),
    model.Metarange: (model.Range, model.FileAt),
    model.Range: (model.FileAt,),
    model.ChangeSet: (model.FileAt,),
}
"""Kinds of objects that an object of each kind leads to. Indexes are treated like files."""


@dataclass(frozen=True, slots=True)
class _ReachStep:
    """The parts of a commit that garbage collection keeps in memory."""

    facts: CommitFacts
    metarange: str
    references: tuple[model.Reference, ...]
    epoch: int


@dataclass(slots=True)
class Reached:
    """The reachable objects that a collection has found so far."""

    contents: ContentStore
    paths: set[str] = field(default_factory=set)
    indexes: set[str] = field(default_factory=set)
    tables: dict[str, int] = field(default_factory=dict)
    """The earliest time of each table."""
    gaps: dict[str, model.Gap] = field(default_factory=dict)
    """Gaps that expired commits left."""
    find_gap: Callable[[str], model.Gap | None] = lambda _: None
    """Reads a gap that another collection has made since."""
    unknown: set[Kind] = field(default_factory=set)
    """Kinds that may have more reachable objects than were found."""
    damage: list[str] = field(default_factory=list)
    """The errors that caused this."""
    _steps: dict[str, _ReachStep | DamageError] = field(default_factory=dict)

    def read_commits(self, commits: Iterable[str]) -> None:
        """Prefetch commits in parallel. Following the history, which is a line, would read them one by one."""
        missing = [commit_id for commit_id in commits if commit_id not in self._steps]
        for commit_id, commit in self.contents.read_each(model.Commit, missing):
            self._steps[commit_id] = commit if isinstance(commit, DamageError) else _step(commit)

    def commit_facts(self, commit_id: str) -> CommitFacts | DamageError:
        """Return the facts about a prefetched commit."""
        step = self._steps[commit_id]
        return step if isinstance(step, DamageError) else step.facts

    def epochs(self, kind: type[Content], ids: Collection[str]) -> dict[str, int]:
        """Return the epochs in which objects were written, without missing or damaged objects."""
        if kind is model.Commit:
            self.read_commits(ids)
            steps = ((commit_id, self._steps[commit_id]) for commit_id in ids)
            return {commit_id: step.epoch for commit_id, step in steps if isinstance(step, _ReachStep)}
        read = self.contents.read_each(kind, ids)
        return {
            record_id: content.epoch for record_id, content in read if not isinstance(content, DamageError)
        }

    def follow(self, heads: Collection[str], *, may_be_missing: bool = False) -> None:
        """Mark commits, all their ancestors, and the objects that these name as reachable.

        With `may_be_missing`, a missing object is no damage: no head leads to it, and the request that names it is
        refused.
        """
        metaranges: dict[str, None] = {}
        todo = {head for head in heads if path_of(model.Commit, head) not in self.paths}
        while todo:
            self.read_commits(sorted(todo))
            behind: set[str] = set()
            for commit_id in sorted(todo):  # Sorted, so that every process repeats a run in the same order.
                self.paths.add(path_of(model.Commit, commit_id))
                step = self._steps[commit_id]
                if isinstance(step, DamageError):
                    behind.update(self._below(commit_id, step, may_be_missing=may_be_missing))
                    continue
                behind.update(step_over(parent, self.gaps).to for parent in step.facts.parents)
                self.name(step.references)
                if step.metarange and path_of(model.Metarange, step.metarange) not in self.paths:
                    metaranges[step.metarange] = None
            todo = {each for each in behind - {""} if path_of(model.Commit, each) not in self.paths}
        ranges: dict[str, None] = {}
        for metarange_id, metarange in self.contents.read_each(model.Metarange, metaranges):
            self.paths.add(path_of(model.Metarange, metarange_id))
            if isinstance(metarange, DamageError):
                self.hide(model.Metarange, metarange, may_be_missing=may_be_missing)
            else:
                ids = (ref.id for ref in metarange.ranges)
                ranges |= dict.fromkeys(each for each in ids if path_of(model.Range, each) not in self.paths)
        for range_id, content in self.contents.read_each(model.Range, ranges):
            self.paths.add(path_of(model.Range, range_id))
            if isinstance(content, DamageError):
                self.hide(model.Range, content, may_be_missing=may_be_missing)
            else:
                self.name(reference for _, reference in content.entries)

    def _below(self, commit_id: str, error: DamageError, *, may_be_missing: bool) -> tuple[str, ...]:
        """Return the commit below one that another collection has just let expire; otherwise hide its kind."""
        if (gap := self.find_gap(commit_id)) is not None:
            return (gap.below,)
        self.hide(model.Commit, error, may_be_missing=may_be_missing)
        return ()

    def name(self, entries: Iterable[model.Reference | None]) -> None:
        """Mark the files and indexes of entries as reachable."""
        for reference in entries:
            if isinstance(reference, model.FileAt):
                self.paths.add(file_path(reference))
            elif isinstance(reference, model.IndexAt):
                self.indexes.add(reference.manifest)
            elif isinstance(reference, model.TableAt):
                earliest = self.tables.get(reference.shard, reference.as_of)
                self.tables[reference.shard] = min(earliest, reference.as_of)

    def hide(self, kind: type[Content], error: DamageError, *, may_be_missing: bool = False) -> None:
        """Record that an object of a kind is unreadable, so the objects that it leads to are unknown."""
        if not (may_be_missing and isinstance(error.__cause__, NotFoundError)):
            self.unknown.update(BEHIND[kind])
            self.damage.append(str(error))


def _step(commit: model.Commit) -> _ReachStep:
    references = (reference for _, reference in commit.changes or () if reference is not None)
    return _ReachStep(CommitFacts.of(commit), commit.metarange, tuple(references), commit.epoch)


def ids_in(kind: type[Content], paths: Iterable[str]) -> list[str]:
    """Return the ids of the objects of a kind at these paths."""
    return [path.removeprefix(folder_of(kind)).removesuffix(".json") for path in paths]


@dataclass(frozen=True, slots=True)
class CollectedCommits:
    """The result of a collection; with `dry_run`, the garbage found."""

    commits: int = 0
    objects: int = 0
    """All kinds of objects, including commits."""
    size_bytes: int = 0
    indexes: frozenset[str] | None = frozenset()
    """Manifests of the indexes that are in use; None if that is unknown."""
    epoch: int = 0
    """The lowest epoch of any branch."""
    damage: tuple[str, ...] = ()
    """Unreadable objects. Nothing that they may lead to was deleted."""
    expired: int = 0
    """Commits that expired."""
    tables: Mapping[str, int] | None = None
    """The earliest time of each table that a commit names; None if that is unknown."""


class RepositoryCollector:
    """Garbage collector of one repository. Several can run at the same time."""

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        pinned: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Use these stores. `pinned` returns further commits that must not expire."""
        self._pinned = pinned
        self._objects = objects
        self._contents = ContentStore(objects)
        self._records = BranchRecords(key_value, self._contents.has_commits)
        self._ref_claims = RefClaims(key_value, self._records, lambda _: False)
        self._gaps = GapRecords(key_value)
        self.expirer = HistoryExpirer(self._records, self._gaps, self._contents, objects, self.read_names)

    def collect(
        self, *, epoch_min_s: float, dry_run: bool = False, rule: protocol.HistoryRule = protocol.KEEP_ALL
    ) -> CollectedCommits:
        """Expire the commits that the rule does not keep, then delete unreachable objects that were written two or more
        epochs ago. With `dry_run`, only find both.

        An epoch lasts at least `epoch_min_s` seconds, which gives writers that long to finish; with 0 they may have to
        write again. Garbage is deleted by the second or third collection after it arose. If a reachable object is
        unreadable, objects of the kinds that it may name are kept (`BEHIND`). Raises DamageError if a branch, a tag or
        the epoch is unreadable, because then nothing is known to be garbage.
        """
        newest = self._begin_epoch(epoch_min_s, dry_run=dry_run)
        if not dry_run:
            self._ref_claims.end_claims(newest)
            self._forget_answers(newest)
        listed = {kind: list(self._objects.list(folder_of(kind))) for kind in BEHIND}
        reached = Reached(self._contents, find_gap=self._gaps.gap)
        reached.read_commits(ids_in(model.Commit, (info.path for info in listed[model.Commit])))
        expired = self._expire(reached, rule, newest, dry_run=dry_run)
        old_commits = [info for info in listed[model.Commit] if info.path in expired]
        listed[model.Commit] = [info for info in listed[model.Commit] if info.path not in expired]
        reached = self._reached_at_once(reached)
        doomed: list[tuple[Kind, ObjectInfo]] = [
            (kind, info)
            for kind, infos in listed.items()
            if kind not in reached.unknown
            for info in self._garbage(kind, infos, reached, newest)
        ]
        if model.FileAt not in reached.unknown:
            doomed += [(model.FileAt, info) for info in self._files_over(reached, newest)]
        if not dry_run:
            delete_all(self._objects, [info.path for _, info in doomed])
            self._erase_entries()
            self._records.forget_requests(self._scopes)
        return CollectedCommits(
            commits=sum(kind is model.Commit for kind, _ in doomed) + len(old_commits),
            objects=len(doomed) + len(old_commits),
            size_bytes=sum(info.size_bytes for info in (*old_commits, *(info for _, info in doomed))),
            indexes=None if model.FileAt in reached.unknown else frozenset(reached.indexes),
            epoch=newest,
            damage=tuple(dict.fromkeys(reached.damage)),
            expired=len(expired),
            tables=None if reached.unknown else reached.tables,
        )

    def _expire(
        self, reached: Reached, rule: protocol.HistoryRule, newest: int, *, dry_run: bool
    ) -> set[str]:
        """Expire commits; return their paths. If a commit is unreadable, none expires, because it may be the base of a
        later merge."""
        try:
            result = self.expirer.run(rule, reached, newest, dry_run=dry_run)
        except DamageError as error:
            reached.damage.append(str(error))
            reached.gaps = self._gaps.all()
            return set()
        reached.gaps = result.gaps
        return {path_of(model.Commit, commit_id) for commit_id in result.commits}

    def explain(
        self, commits: Collection[str], rule: protocol.HistoryRule
    ) -> tuple[CommitNames, dict[str, model.Retained]]:
        """Return the names of commits, and why each of these commits stays; none if a commit above them is unreadable,
        or has just expired."""
        reached = Reached(self._contents)
        reached.read_commits(commits)
        facts = [each for each in map(reached.commit_facts, commits) if not isinstance(each, DamageError)]
        try:
            return self.expirer.explain(
                rule, reached, min((each.commit.generation for each in facts), default=0)
            )
        except DamageError:
            return CommitNames(frozenset(), frozenset(), frozenset(), ""), {}

    def read_names(self) -> CommitNames:
        """Read all names of commits. A request that is missed, because it was just sealed, makes the decision fail (see
        `BranchRecords.tell_of_name`)."""
        branches = self._records.all()
        references = {
            operation.commit
            for name, at in branches.items()
            for request in self._requests(name, at)
            if not isinstance(operation := request.operation, model.Change)
        }
        heads = {at.record.head for at in branches.values()} | self._records.referenced_commits()
        # Last, so that no transaction among the commits is newer: its base would not be known for one.
        main = self._records.read(MAIN).record.head
        return CommitNames(
            frozenset((heads | {main}) - {""}), frozenset(references - {""}), frozenset(self._pinned()), main
        )

    def _requests(self, name: str, at: BranchSnapshot) -> list[model.Request]:
        requests = [sealed.request for sealed in at.record.sealed]
        return requests + [waiting.request for waiting in self._records.announced(scope(name, at.record))]

    def _forget_answers(self, newest: int) -> None:
        scopes = self._scopes()
        self._records.forget_answers(lambda recorded: protocol.is_forgotten(recorded, newest, scopes))

    def _scopes(self) -> set[str]:
        """Return the scopes of all branches, including `main` if it has no record yet."""
        branches = {MAIN: BranchSnapshot(model.BranchRecord(), ABSENT)} | self._records.all()
        return {scope(name, at.record) for name, at in branches.items()}

    def _erase_entries(self) -> None:
        """Delete staged entries whose token no branch names any more: their process was killed, or they were written
        late.

        Entries are read before branches. A token with entries was named by a branch before; once no branch names it,
        none will again.
        """
        tokens = self._records.tokens()
        live_tokens = {
            token for at in self._records.all().values() for token in protocol.known_tokens(at.record)
        }
        for token in sorted(tokens - live_tokens):
            self._records.unstage(token)

    def _begin_epoch(self, epoch_min_s: float, *, dry_run: bool) -> int:
        """Begin an epoch on every branch if it is due; return the lowest epoch of any branch."""
        if not dry_run:
            epoch = self._records.advance(
                partial(protocol.next_epoch, now_s=time.time(), epoch_min_s=epoch_min_s)
            )
            # `main` too, even without a record: a process that is about to create it has read an earlier
            # epoch.
            for name, at in (
                {MAIN: BranchSnapshot(model.BranchRecord(), ABSENT)} | self._records.all()
            ).items():
                self._raise(name, at, epoch.number)
        # A branch without an epoch reads one later, so it cannot get an older one.
        epochs = {at.record.epoch for at in self._records.all().values()} - {model.EPOCH_UNSET}
        return min([self._records.epoch().number, *epochs])

    def _raise(self, branch: str, at: BranchSnapshot, epoch: int) -> None:
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            if (at.is_absent and branch != MAIN) or at.record.epoch >= epoch:
                return
            wanted = replace(at.record, epoch=epoch)
            raised, at = self._records.swap(branch, at, wanted, is_mine=lambda there: there.epoch >= epoch)
            if raised:
                return
        raise ContentionError(
            f"branch {branch}: it changed too often during garbage collection; collect garbage later."
        )

    def _garbage(
        self, kind: type[Content], listed: list[ObjectInfo], reached: Reached, newest: int
    ) -> Iterator[ObjectInfo]:
        """Yield collectable unreachable objects. Missing objects were deleted by another garbage collector;
        damaged ones are kept."""
        unreached = [info for info in listed if info.path not in reached.paths]
        ids = ids_in(kind, (info.path for info in unreached))
        epochs = reached.epochs(kind, ids)
        for record_id, info in zip(ids, unreached, strict=True):
            if record_id in epochs and is_collectable(epochs[record_id], newest):
                yield info

    def _files_over(self, reached: Reached, newest: int) -> Iterator[ObjectInfo]:
        for info in self._objects.list(FILES):
            written = file_epoch(info.path)
            if info.path not in reached.paths and written is not None and is_collectable(written, newest):
                yield info

    def _reached_at_once(self, reached: Reached) -> Reached:
        """Mark the objects that were reachable at one moment; return them.

        A commit may get a new name, and lose its old one, while we read one name after the other. So if a name was
        given in the meantime, we read all names again (`BranchRecords.tell_of_name`).
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            epoch = self._records.epoch()
            self._reach(reached)
            if self._records.epoch() == epoch:
                return reached
        raise ContentionError(
            "branches and tags were created too often during garbage collection; collect garbage later."
        )

    def _reach(self, reached: Reached) -> None:
        """Follow all roots: staged entries, sealed requests, heads, tags and claims."""
        pending = [
            request
            for name, at in self._records.all().items()
            for request in self._reach_pending(name, at, reached)
        ]
        heads = {at.record.head for at in self._records.all().values()} | set(self._records.tags().values())
        reached.follow(heads - {""})
        sources = {each.operation.commit for each in pending if not isinstance(each.operation, model.Change)}
        reached.follow(sources | self._records.referenced_commits(), may_be_missing=True)

    def _reach_pending(self, name: str, at: BranchSnapshot, reached: Reached) -> list[model.Request]:
        """Mark a branch's staged entries, and everything its requests name, as reachable; return the requests.

        The record is read again afterwards: while it names a token, all entries under the token are present.
        Otherwise they may have been staged again under another token, which was read too early.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            tokens = protocol.pending_tokens(at.record)
            for token in sorted(tokens):
                under = self._records.under(token)
                for layers in under.readable.values():
                    reached.name(layers)
                if under.damaged:
                    reached.hide(model.ChangeSet, damage_of(under.damaged))
            requests = self._requests(name, at)
            at = self._records.read(name)
            if tokens <= protocol.known_tokens(at.record):
                break
        else:
            raise ContentionError(
                f"branch {name}: too many commits during garbage collection; collect garbage later."
            )
        for request in requests:
            self._reach_request(request, reached)
        return requests

    def _reach_request(self, request: model.Request, reached: Reached) -> None:
        if not isinstance(request.operation, model.Change):
            return
        reached.name(reference for _, reference in request.operation.entries)
        for changes_id, changes in self._contents.read_each(model.ChangeSet, request.operation.objects):
            reached.paths.add(path_of(model.ChangeSet, changes_id))
            if isinstance(changes, DamageError):  # The request will be refused.
                continue
            reached.name(reference for _, reference in changes.entries)
