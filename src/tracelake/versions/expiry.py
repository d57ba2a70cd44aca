"""Expiry of history: routine commits end after some time, as `protocol.retained_commits` decides.

A commit is immutable and names its parents, so a commit above expired ones still names the newest of them. Expired
commits are routine commits, which have one parent, so they form lines. The record of such a gap, under the id of its
newest commit, names the next older commit that is retained. Walks read the history through `Ancestry`, which skips
gaps.

A collection reads the epoch's record, then all names, and computes the gaps. It proposes them in a separate record, and
decides with one conditional write on the epoch's record. That write fails if a name was given since the record was
read: a writer claims a name, changes the record, and only then checks that the commit is reachable. So either the
collection sees the claim, or its write fails, or the writer finds that the commit has expired.

From the decision on, walks skip the expired commits. Carrying it out writes the gaps, deletes the commits, and clears
the decision. Any collection continues the work of a killed one. Objects that only expired commits named are unreachable
from then on, and the epochs of `gc` delete them.

A proposal is durable before the decision names it, and it stays until the decision is carried out or can no longer be
made. Otherwise walks would find neither the expired commits nor the gaps that replace them.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from typing import Final, Protocol

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, ExpiredError, NotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import Entry, KeyValueStore, ObjectStore, delete_all
from tracelake.storage.ports import change_record, create_record
from tracelake.versions import model, protocol, tree
from tracelake.versions.branch_store import COLLECTOR, BranchRecords
from tracelake.versions.model import is_routine
from tracelake.versions.protocol import retained_commits
from tracelake.versions.tree import ContentStore, ReadCommit, path_of

GAPS: Final = "gaps"
EXPIRY: Final = "expiry-"
"""Beginning of the key of an expiry, before its epoch."""


class GapRecords:
    """Reads and writes the records of gaps and of decided expiries."""

    def __init__(self, key_value: KeyValueStore) -> None:
        self._key_value = key_value

    def gap(self, commit_id: str) -> model.Gap | None:
        """Return the gap that begins at a commit; None if there is none."""
        entry = self._key_value.get(GAPS, commit_id)
        return None if entry is None else _gap(entry)

    def all(self) -> dict[str, model.Gap]:
        """Return all gaps by their newest commit."""
        return {entry.key: _gap(entry) for entry in self._key_value.scan(GAPS)}

    def expiry(self, key: str) -> model.Expiry:
        """Return a decided expiry; an empty one if another garbage collector has carried it out."""
        entry = self._key_value.get(COLLECTOR, key) if key else None
        return (
            model.Expiry({})
            if entry is None
            else model.from_bytes(model.Expiry, entry.value, f"the expiry {key}")
        )

    def propose(self, key: str, expiry: model.Expiry) -> None:
        """Write an expiry under a new key; it exists on return. It takes effect when the epoch's record names the
        key."""
        create_record(self._key_value, COLLECTOR, key, model.to_bytes(expiry))

    def proposals(self) -> list[str]:
        """Return the keys of all expiries, also of those that were never decided."""
        return [entry.key for entry in self._key_value.scan(COLLECTOR, EXPIRY, f"{EXPIRY}~")]

    def withdraw(self, key: str) -> None:
        """Delete an expiry that is carried out, or that never took effect."""
        self._key_value.erase(COLLECTOR, key)

    def widen(self, commit_id: str, gap: model.Gap) -> None:
        """Write a gap, unless its record has the same or a later state already. A slow garbage collector may write
        late."""
        self._change(
            commit_id, lambda there: gap if there is None or protocol.is_wider(gap, there) else there
        )

    def set_unused(self, commit_id: str, epoch: int) -> None:
        """Record the epoch in which no kept commit led to the gap any more; EPOCH_UNSET if one does."""
        self._change(commit_id, lambda there: None if there is None else replace(there, unused_since=epoch))

    def forget(self, commit_id: str) -> None:
        """Delete the record of a gap that no walk can meet any more."""
        entry = self._key_value.get(GAPS, commit_id)
        if entry is not None:
            self._key_value.delete_if(GAPS, commit_id, entry.version)

    def _change(self, commit_id: str, change: Callable[[model.Gap | None], model.Gap | None]) -> None:
        change_record(self._key_value, GAPS, commit_id, _gap, model.to_bytes, change)


def _gap(entry: Entry) -> model.Gap:
    return model.from_bytes(model.Gap, entry.value, f"the gap {entry.key}")


class Ancestry:
    """Commits as a walk meets them: each with its nearest kept ancestors as parents. Use a new object for each walk.

    A lake without expired commits pays one read of the epoch's record for it. Only commits that are missing, or not
    newer than the newest expired one, cost a lookup of their gap.
    """

    def __init__(self, read: ReadCommit, records: BranchRecords, gaps: GapRecords) -> None:
        """Read commits with `read`."""
        self._read = read
        self._records = records
        self.gaps = gaps
        self._child_of: dict[str, str] = {}
        """The commit from which the walk came to another."""

    def commit(self, commit_id: str) -> model.Commit:
        """Return a commit, with expired parents replaced."""
        commit = self._read(commit_id)
        parents = tuple(self.nearest(parent, commit_id, commit.generation) for parent in commit.parents)
        self._child_of.update(dict.fromkeys(parents, commit_id))
        while len(self._child_of) > _STEPS_REMEMBERED:
            del self._child_of[next(iter(self._child_of))]
        return commit if parents == commit.parents else replace(commit, parents=tuple(filter(None, parents)))

    def nearest(self, commit_id: str, child: str = "", generation: int = 0) -> str:
        """Return the commit itself, or the next older one that is kept if it has expired; empty if there is none.

        `child` is the commit, of this generation, from which a walk came.
        """
        while commit_id:
            is_missing = False
            try:
                if model.seconds_of(self._read(commit_id).created_at) > self.epoch.horizon_s:
                    break
            except DamageError:
                is_missing = True
            gap = self.find_gap(commit_id)
            if gap is None and is_missing:
                self._look_again()  # It may have expired since the walk began.
                gap = self.find_gap(commit_id) or self._gap_around(child, generation)
            if gap is None:
                break  # If the commit is missing, reading it reports the damage.
            commit_id = gap.below
        return commit_id

    @cached_property
    def epoch(self) -> model.Epoch:
        """The newest epoch when the walk began."""
        return self._records.epoch()

    @cached_property
    def _pending(self) -> model.Expiry:
        return self.gaps.expiry(self.epoch.expiring)

    def commit_of(self, transaction: int, head: str) -> str:
        """Return the commit of a transaction, searching back from the commit `head`.

        Raises ExpiredError if it has expired, and DamageError if the history has no such commit.
        """
        try:
            return tree.commit_of(transaction, head, self.commit)
        except DamageError as error:
            is_missing = error.__cause__ is None or isinstance(error.__cause__, NotFoundError)
            self._look_again()
            if is_missing and self.epoch.expired:
                raise ExpiredError(f"the commit of transaction {transaction} has expired.") from error
            raise

    def may_be_expired(self, commit_id: str) -> bool:
        """Return whether a commit that the walk did not meet may have expired, rather than be in another history."""
        self._look_again()
        if not self.epoch.expired:
            return False
        try:
            return model.seconds_of(self._read(commit_id).created_at) <= self.epoch.horizon_s
        except DamageError:
            return True

    def find_gap(self, commit_id: str) -> model.Gap | None:
        """Return the gap that begins at a commit, or None."""
        # A gap that a collection has just decided may have no record yet.
        return self._pending.gaps.get(commit_id) or self.gaps.gap(commit_id)

    def _gap_around(self, commit_id: str, generation: int) -> model.Gap | None:
        """Return the gap that the walk is in, if the commit has expired since the walk read it. The gap begins at the
        commit, or at one from which the walk came here."""
        gaps = self.gaps.all() | self._pending.gaps if commit_id else {}
        while commit_id:
            if commit_id in gaps and gaps[commit_id].generation < generation:
                return gaps[commit_id]
            commit_id = self._child_of.get(commit_id, "")
        return None

    def _look_again(self) -> None:
        self.__dict__.pop("epoch", None)
        self.__dict__.pop("_pending", None)


_STEPS_REMEMBERED: Final = 100_000
"""Steps of a walk back to which a gap is found that another process makes during the walk."""

GAPS_AT_ONCE: Final = 512
"""Gaps that one decision creates or extends. A collection makes as many decisions as it needs."""


@dataclass(frozen=True, slots=True)
class CommitNames:
    """The commits that must stay, as read at one moment."""

    heads: frozenset[str]
    """Heads of branches, and commits of tags and of claims."""
    references: frozenset[str]
    """Commits that pending requests name."""
    pinned: frozenset[str]
    """Commits that datasets name; some may not exist."""
    main: str
    """The head of `main`; empty if it has none."""


class ReadSteps(Protocol):
    """Source of commits, which reads many at once."""

    def read_commits(self, commits: Collection[str]) -> None:
        """Prefetch commits."""

    def commit_facts(self, commit_id: str) -> CommitFacts | DamageError:
        """Return the facts about a prefetched commit."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """The facts about a commit, apart from the gaps below it."""

    parents: tuple[str, ...]
    commit: protocol.HistoryCommit
    """Without its steps, which depend on the gaps."""

    @classmethod
    def of(cls, commit: model.Commit) -> CommitFacts:
        """Return the facts about a commit."""
        return cls(
            commit.parents,
            protocol.HistoryCommit(
                (),
                model.seconds_of(commit.created_at),
                commit.generation,
                is_routine(commit),
                model.TRANSACTION in commit.metadata,
                commit.committer == model.INDEX_MERGER,
                commit.changes is None,
            ),
        )


@dataclass(slots=True)
class ExpiredHistory:
    """The result of one run."""

    gaps: dict[str, model.Gap] = field(default_factory=dict)
    """All gaps, by their newest commit."""
    commits: list[str] = field(default_factory=list)
    """The commits that expired in this run, or would in a dry run."""


class HistoryExpirer:
    """Lets routine commits of one repository expire. Several may run at once."""

    def __init__(
        self,
        records: BranchRecords,
        gaps: GapRecords,
        contents: ContentStore,
        objects: ObjectStore,
        names: Callable[[], CommitNames],
    ) -> None:
        """Use these stores. `names` reads all names of commits."""
        self.records = records
        self.gaps = gaps
        self._contents = contents
        self._objects = objects
        self.read_names = names

    def run(
        self, rule: protocol.HistoryRule, commits: ReadSteps, newest: int, *, dry_run: bool
    ) -> ExpiredHistory:
        """Expire the commits that the rule does not keep; with `dry_run`, only find them.

        Raises DamageError, and expires no more, if a reachable commit is unreadable.
        """
        result = ExpiredHistory()
        lost = 0
        while lost < CONDITIONAL_WRITE_TRIES_MAX:
            epoch = self.records.epoch()
            if epoch.expiring and not dry_run:
                self._carry_out(epoch.expiring)
                continue
            result.gaps = self.gaps.all() | self.gaps.expiry(epoch.expiring).gaps
            if rule.age_s is None and not result.gaps:
                return result
            try:
                names, graph = self._graph(commits, result.gaps)
            except DamageError as error:
                if isinstance(error.__cause__, NotFoundError) and self.records.epoch() != epoch:
                    lost += 1  # Another collection expired it in the meantime.
                    continue
                raise
            retained = retained_commits(
                time.time(), graph, names.heads | names.pinned, names.references, rule, names.main
            )
            gaps_to_write, expired = protocol.new_gaps(graph, retained, GAPS_AT_ONCE)
            if not gaps_to_write:
                if not dry_run:
                    self._age_unused(graph, result.gaps, newest)
                return result
            if dry_run:
                result.gaps |= gaps_to_write
                result.commits += expired
                return result
            if self._decide(epoch, gaps_to_write, expired, graph, retained, names.main):
                result.commits += expired
                lost = 0
            else:
                lost += 1
        raise ContentionError(
            "branches and tags were created too often while history expired; collect garbage later."
        )

    def _decide(
        self,
        epoch: model.Epoch,
        gaps_to_write: dict[str, model.Gap],
        expired: Collection[str],
        graph: Mapping[str, protocol.HistoryCommit],
        retained: Collection[str],
        head: str,
    ) -> bool:
        """Put the gaps into effect and carry them out, unless a name was given since the epoch was read."""
        key = f"{EXPIRY}{epoch.number:06d}-{uuid.uuid4().hex}"
        self.gaps.propose(key, model.Expiry(gaps_to_write))
        oldest = oldest_on_line(graph, retained, head)
        horizon_s = max((graph[each].created_s for each in expired), default=0.0)
        after = replace(
            epoch,
            expired=epoch.expired + len(expired),
            horizon_s=max(epoch.horizon_s, horizon_s),
            oldest=oldest,
            oldest_at=_moment(graph[oldest].created_s) if oldest else "",
            expiring=key,
        )
        if not self.records.swap_epoch(epoch, after):
            # Safety: the proposal stays, because a write without a reply may still take effect. `_age_unused`
            # deletes it in an epoch in which it cannot.
            return False
        self._carry_out(key, expired)
        return True

    def _carry_out(self, key: str, expired: Collection[str] | None = None) -> None:
        """Write decided gaps, delete the commits in them, and clear the decision. Each step may be repeated."""
        gaps = self.gaps.expiry(key).gaps
        for commit_id, gap in gaps.items():
            self.gaps.widen(commit_id, gap)
        if not gaps:
            expired = ()  # Another garbage collector has carried it out.
        elif expired is None:
            expired = [each for commit_id, gap in gaps.items() for each in self._inside(commit_id, gap)]
        delete_all(self._objects, [path_of(model.Commit, commit_id) for commit_id in expired])
        self.records.advance(lambda epoch: replace(epoch, expiring="") if epoch.expiring == key else epoch)
        self.gaps.withdraw(key)

    def _inside(self, commit_id: str, gap: model.Gap) -> list[str]:
        """Return the commits in a gap whose objects still exist."""
        inside: list[str] = []
        at = commit_id
        while at and at != gap.below:
            try:
                commit = self._contents.read(model.Commit, at)
                if commit.generation <= gap.generation:
                    break  # Below the gap: another garbage collector has widened a gap on the way.
                inside.append(at)
                at = commit.parents[0] if commit.parents else ""
            except DamageError:
                there = self.gaps.gap(at) if at != commit_id else None
                at = "" if there is None else there.below
        return inside

    def explain(
        self, rule: protocol.HistoryRule, commits: ReadSteps, lowest: int
    ) -> tuple[CommitNames, dict[str, model.Retained]]:
        """Return the names, and why each commit of at least this generation stays.

        Only descendants of a commit, and names, decide about it. Raises DamageError if one is unreadable.
        """
        gaps = self.gaps.all() | self.gaps.expiry(self.records.epoch().expiring).gaps
        names, graph = self._graph(commits, gaps, lowest)
        heads = names.heads | names.pinned
        return names, protocol.retentions(time.time(), graph, heads, names.references, rule, names.main)

    def _graph(
        self, commits: ReadSteps, gaps: Mapping[str, model.Gap], lowest: int = 0
    ) -> tuple[CommitNames, dict[str, protocol.HistoryCommit]]:
        """Return the names, and all commits that they lead to, down to a generation. Raises DamageError if one is
        unreadable."""
        names = self.read_names()
        graph: dict[str, protocol.HistoryCommit] = {}
        optional = names.references | names.pinned
        todo = set(names.heads | optional) - {""}
        while todo:
            commits.read_commits(sorted(todo))
            behind: set[str] = set()
            for commit_id in sorted(todo):
                facts = commits.commit_facts(commit_id)
                if isinstance(facts, DamageError):
                    if isinstance(facts.__cause__, NotFoundError) and commit_id in optional:
                        continue  # The request will be refused; an example names a commit of another lake.
                    raise facts
                steps = tuple(step_over(parent, gaps) for parent in facts.parents)
                graph[commit_id] = dataclasses.replace(facts.commit, steps=steps)
                if facts.commit.generation > lowest:
                    behind.update(step.to for step in steps if step.to)
            todo = behind - graph.keys()
        return names, graph

    def _age_unused(
        self, graph: Mapping[str, protocol.HistoryCommit], gaps: Mapping[str, model.Gap], newest: int
    ) -> None:
        """Delete gaps that no kept commit has led to for two epochs, and expiries that never took effect."""
        used: set[str] = set()
        for commit in graph.values():
            for step in commit.steps:
                at = step.parent
                while at in gaps and at not in used:
                    used.add(at)
                    at = gaps[at].below
        for commit_id, gap in gaps.items():
            if commit_id in used:
                if gap.unused_since >= 0:  # A name moved while an earlier collection read the names.
                    self.gaps.set_unused(commit_id, model.EPOCH_UNSET)
                continue
            if gap.unused_since < 0:
                self.gaps.set_unused(commit_id, newest)
            elif protocol.is_collectable(gap.unused_since, newest):
                self.gaps.forget(commit_id)
        for key in self.gaps.proposals():
            number = key.removeprefix(EXPIRY).partition("-")[0]
            if number.isdecimal() and protocol.is_collectable(int(number), newest):
                self.gaps.withdraw(key)


def step_over(parent: str, gaps: Mapping[str, model.Gap]) -> protocol.AncestorStep:
    """Return the step to a parent, or across the gap that begins there."""
    at, hidden = parent, 0
    while at in gaps:
        at, hidden = gaps[at].below, hidden + gaps[at].commits
    return protocol.AncestorStep(parent, at, hidden)


def oldest_on_line(graph: Mapping[str, protocol.HistoryCommit], retained: Collection[str], head: str) -> str:
    """Return the last kept commit on the line of first parents of a head; empty without one."""
    at, oldest = head, ""
    while at in graph:
        oldest = at if at in retained else oldest
        steps = graph[at].steps
        at = steps[0].to if steps else ""
    return oldest


def _moment(created_s: float) -> str:
    return "" if created_s == inf else datetime.fromtimestamp(created_s, UTC).isoformat(timespec="seconds")
