"""Criss-cross merges: two branches merge each other's earlier heads, and go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake._errors import ConflictError, NothingToCommitError
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.branch import Branch
from tracelake.versions.model import FileAt, Reference, TableAt
from tracelake.versions.repository import Repository

Values = Mapping[str, Reference]
PATHS = ("p/a", "p/b", "t/a", "t/b")
BRANCHES = ("main", "one", "two")


def value(path: str, number: int) -> Reference | None:
    """Draw one of few values, so that they recur; sometimes tables."""
    if not number:
        return None
    return TableAt("shard", number) if path.startswith("t/") else FileAt("0" * 64, number)


@dataclass
class PlainCommit:
    """Commit, with the commit that made each entry what it is."""

    values: Values
    parents: tuple[str, ...]
    origins: Mapping[str, frozenset[str]]


class _Unclear:
    pass


UNCLEAR = _Unclear()
Known = Reference | _Unclear | None


def one(base: Known, mine: Known, theirs: Known) -> Known:
    """Merge one entry by the documented rules."""
    if isinstance(mine, _Unclear) or isinstance(theirs, _Unclear):
        return UNCLEAR
    if mine == theirs:
        return mine
    if base == theirs:
        return mine
    if base == mine:
        return theirs
    if (
        isinstance(mine, TableAt)
        and isinstance(theirs, TableAt)
        and (base is None or isinstance(base, TableAt))
    ):
        least = -1 if base is None else base.as_of
        if min(mine.as_of, theirs.as_of) >= least:
            return max(mine, theirs, key=lambda table: table.as_of)
    return UNCLEAR


@dataclass
class Plain:
    """Repository as dictionaries, without any optimization."""

    commits: dict[str, PlainCommit] = field(default_factory=dict)

    def ancestors(self, tips: Collection[str]) -> set[str]:
        """Return all ancestors of these commits."""
        parents = (self.ancestors(self.commits[tip].parents) for tip in tips)
        return set(tips).union(*parents)

    def best(self, left: Collection[str], right: Collection[str]) -> list[str]:
        """Return the best common ancestors, those farthest from the first commit first."""
        common = self.ancestors(left) & self.ancestors(right)
        behind = set[str]().union(*(self.ancestors([at]) - {at} for at in common))
        return sorted(common - behind, key=lambda at: (-self.generation(at), at))

    def generation(self, at: str) -> int:
        """Return the length of the longest path to the first commit."""
        return max((self.generation(parent) + 1 for parent in self.commits[at].parents), default=0)

    def base(self, left: Collection[str], right: Collection[str]) -> dict[str, Known]:
        """Merge the best common ancestors completely."""
        done: list[str] = []
        result: dict[str, Known] = dict.fromkeys(PATHS)
        for at in self.best(left, right):
            named = self.commits[at].values
            below = self.base(done, [at]) if done else {}
            result = {p: one(below[p], result[p], named.get(p)) if done else named.get(p) for p in PATHS}
            done.append(at)
        return result


class World:
    """Repository with its model."""

    def __init__(self) -> None:
        self.repository = Repository(MemoryKeyValueStore(), MemoryObjectStore())
        self.plain = Plain()
        base = self.repository.commit_entries({"other": FileAt("1" * 64, 1)})
        for name in BRANCHES[1:]:
            self.repository.create_branch(name, base)
        self.plain.commits[base] = PlainCommit({}, (), dict.fromkeys(PATHS, frozenset({base})))
        self.history: dict[str, list[str]] = {name: [base] for name in BRANCHES}

    def head(self, branch: str) -> str:
        return self.history[branch][-1]

    def made(self, branch: str, commit_id: str, origins: Mapping[str, frozenset[str]]) -> None:
        """Record an existing commit in the model."""
        commit = self.repository.commit(commit_id)
        values = self.repository.entries(commit_id)
        del values["other"]
        self.plain.commits[commit_id] = PlainCommit(values, commit.parents, origins)
        self.history[branch].append(commit_id)

    def write(self, branch: str, path: str, number: int) -> None:
        """Change one entry in a commit of staged entries, which may take a table back."""
        head = self.head(branch)
        if value(path, number) == self.plain.commits[head].values.get(path):
            return
        self.repository.stage({path: value(path, number)}, branch)
        made = self.repository.commit_staged(branch)
        self.made(branch, made, {**self.plain.commits[head].origins, path: frozenset({made})})

    def merge(self, branch: str, source: str, prefer: str) -> None:
        """Merge, and compare with the model."""
        ours = self.head(branch)
        mine, theirs = self.plain.commits[ours].values, self.plain.commits[source].values
        base = self.plain.base([ours], [source])
        merged = {path: one(base[path], mine.get(path), theirs.get(path)) for path in PATHS}
        if prefer:
            merged = {path: self._preferred(path, base, ours, source, prefer, merged) for path in PATHS}
        conflicts = [path for path in PATHS if isinstance(merged[path], _Unclear)]
        assert [
            found.path for found in Branch(branch, self.repository).conflicts(source)
        ] == conflicts or prefer
        try:
            made = self.repository.merge(source, branch, prefer=prefer)
        except NothingToCommitError:
            assert source in self.plain.ancestors([ours])
            return
        except ConflictError as conflict:
            told = list(conflict.paths)
        else:
            told = []
        assert told == conflicts
        if conflicts:
            return
        self.made(branch, made, self._origins(ours, source, merged))
        now = self.plain.commits[made]
        assert {path: now.values.get(path) for path in PATHS} == merged
        assert now.parents == (ours, source)
        if not prefer:
            for side, other in ((ours, source), (source, ours)):
                self._expect_nothing_lost(side, other, made)

    def _preferred(
        self,
        path: str,
        base: Mapping[str, Known],
        ours: str,
        source: str,
        prefer: str,
        merged: Mapping[str, Known],
    ) -> Known:
        mine, theirs = (self.plain.commits[at].values.get(path) for at in (ours, source))
        both = base[path] not in (mine, theirs) and mine != theirs
        if prefer == "source" and both:
            return theirs
        return mine if isinstance(merged[path], _Unclear) else merged[path]

    def _origins(self, ours: str, source: str, merged: Mapping[str, Known]) -> dict[str, frozenset[str]]:
        origins = {}
        for path in PATHS:
            sides = [self.plain.commits[at] for at in (ours, source)]
            same = [side.origins[path] for side in sides if side.values.get(path) == merged[path]]
            origins[path] = frozenset().union(*same)
        return origins

    def _expect_nothing_lost(self, side: str, other: str, made: str) -> None:
        """Check that an entry changed by one side since the other saw it stays, or was a conflict."""
        unseen = self.plain.ancestors([side]) - self.plain.ancestors([other])
        for path in PATHS:
            mine, now = (self.plain.commits[at].values.get(path) for at in (side, made))
            writes = {at for at in unseen if self.plain.commits[at].origins[path] == {at}}
            is_mine = writes == self.plain.commits[side].origins[path]
            if not path.startswith("t/"):  # the later time of a table has the rows of the earlier one
                assert mine == now or len(writes) != 1 or not is_mine, f"{path} was changed, and is lost"


def crossed(world: World, first: tuple[str, int], second: tuple[str, int]) -> None:
    """Change an entry on each of two branches, and merge them into each other."""
    for branch, (path, number) in zip(BRANCHES, (first, second), strict=False):
        world.write(branch, path, number)
    heads = world.head("main"), world.head("one")
    world.merge("main", heads[1], "")
    world.merge("one", heads[0], "")


@pytest.mark.parametrize("back_on", ["main", "one"])
def test_a_change_back_after_merges_that_crossed_stands(back_on: str) -> None:
    """A change back after crossing merges is kept; one of the best common ancestors alone would hide it."""
    world = World()
    crossed(world, ("p/a", 1), ("p/b", 1))
    world.write(back_on, "p/a", 0)
    world.write(back_on, "p/b", 0)
    other = "main" if back_on == "one" else "one"
    world.merge(other, world.head(back_on), "")
    assert not world.plain.commits[world.head(other)].values


def test_deeper_than_anyone_looks_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the depth limit, sides that differ are in conflict if ancestors disagree; no change is lost."""
    world = World()
    crossed(world, ("p/a", 1), ("p/b", 1))
    world.write("one", "p/a", 0)
    monkeypatch.setattr("tracelake.versions.tree.MERGE_ANCESTORS_MAX", 0)
    with pytest.raises(ConflictError) as conflict:
        world.repository.merge(world.head("one"))
    assert conflict.value.paths == ("p/a",)
    monkeypatch.undo()
    world.merge("main", world.head("one"), "")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(BRANCHES), st.sampled_from(PATHS), st.integers(0, 3)),
        st.tuples(
            st.just("merge"),
            st.sampled_from(BRANCHES),
            st.sampled_from(BRANCHES),
            st.tuples(st.sampled_from([0, 0, 1, 1, 2, 3]), st.sampled_from(["", "", "source", "dest"])),
        ),
        st.tuples(st.just("cross"), st.sampled_from(BRANCHES), st.sampled_from(BRANCHES), st.just(0)),
    ),
    min_size=4,
    max_size=24,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_merges_are_those_of_a_plain_model(steps: list[tuple[str, str, str, object]]) -> None:
    """Merges equal those of a plain model for any history: same entries, same conflicts, no change lost silently."""
    world = World()
    for kind, branch, other, more in steps:
        if kind == "write":
            assert isinstance(more, int)
            world.write(branch, other, more)
        elif kind == "merge" and branch != other:
            assert isinstance(more, tuple)
            back, prefer = more
            world.merge(branch, world.history[other][-1 - min(back, len(world.history[other]) - 1)], prefer)
        elif branch != other:
            heads = world.head(branch), world.head(other)
            world.merge(branch, heads[1], "")
            world.merge(other, heads[0], "")
