"""Commits built together: most store only their changes, and all read as if each were whole."""

from __future__ import annotations

import itertools

import pytest

from tracelake._errors import ConflictError, DamageError
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.branch_store import MAIN
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import Change, Commit, FileAt, Reference, Request
from tracelake.versions.protocol import seal
from tracelake.versions.repository import Repository
from tracelake.versions.tree import (
    CHANGES_INLINE_MAX,
    COMMITS_WITHOUT_METARANGE_MAX,
    VERSIONS,
    file_path,
    path_of,
)

Changes = dict[str, Reference | None]


def a_file(number: int) -> FileAt:
    return FileAt(f"{number:064x}", number)


class World:
    """Repository whose commits are built many at a time."""

    def __init__(self) -> None:
        self.key_value, self.objects = MemoryKeyValueStore(), MemoryObjectStore()
        self.repository = Repository(self.key_value, self.objects)
        self._numbers = itertools.count()

    def sweep(self, *changes: Changes) -> list[str]:
        """Seal requests for these changes at once, build them, and return the commits of the branch."""
        records = self.repository._records
        at = records.read(MAIN)
        requests = [
            Request(
                f"r{next(self._numbers)}", Change(tuple(sorted(change.items()))), "", "", "2026-01-01", {}
            )
            for change in changes
        ]
        sealed, at = records.swap(MAIN, at, seal(at.record, requests, "t", 0), is_mine=lambda _: False)
        assert sealed
        head = self.repository._committer.finish(MAIN, at).record.head
        return [commit_id for commit_id, _ in self.fresh().log(head)][::-1]

    def fresh(self) -> Repository:
        """Return the repository as another process sees it, with empty caches."""
        return Repository(self.key_value, self.objects)

    def count(self, prefix: str) -> int:
        return sum(1 for _ in self.objects.list(VERSIONS + prefix))


def test_a_sweep_of_many_commits_reads_as_if_each_were_whole() -> None:
    """Entries, single paths, counts and differences of fifty commits are right, although few have a metarange."""
    world = World()
    steps: list[Changes] = [{f"p/{number}": a_file(number), "last": a_file(number)} for number in range(50)]
    steps[20] |= {"p/3": None, "p/4": None}
    commits = world.sweep(*steps)
    whole = [world.repository.commit(commit).changes is None for commit in commits]
    assert [position for position, is_whole in enumerate(whole) if is_whole] == [15, 31, 47, 49]
    assert world.count("commits/") == 50
    assert world.count("metaranges/") == 4
    model: dict[str, Reference] = {}
    before = ""
    for commit, step in zip(commits, steps, strict=True):
        changed = {path: (model.get(path), named) for path, named in step.items()}
        model = {path: named for path, named in {**model, **step}.items() if named is not None}
        repository = world.fresh()
        assert repository.entries(commit) == dict(sorted(model.items()))
        assert repository.find(commit, ["p/3", "p/30"]) == {
            path: model[path] for path in ("p/3", "p/30") if path in model
        }
        assert repository.count(commit, "p/", "p0") == len(model) - 1
        differences = {found.path: (found.before, found.after) for found in repository.diff(before, commit)}
        assert differences == changed
        before = commit


def test_a_commit_by_itself_has_a_metarange() -> None:
    """A commit built alone, or with many changes, has a metarange."""
    world = World()
    many: Changes = {f"m/{number}": a_file(number) for number in range(CHANGES_INLINE_MAX + 1)}
    assert [world.repository.commit(commit).changes is None for commit in world.sweep({"a": a_file(1)})] == [
        True
    ]
    commits = world.sweep({"b": a_file(1)}, many, {"c": a_file(1)}, {"d": a_file(1)})
    whole = [world.repository.commit(commit).changes is None for commit in commits]
    assert whole == [True, False, True, False, True]
    assert world.fresh().entries(commits[-1]).keys() == {"a", "b", "c", "d", *many}


def test_nobody_goes_back_further_than_stated() -> None:
    """The distance to a whole commit is bounded, even if sweeps end with requests that give no commit."""
    world = World()
    repeated: Changes = {"same": a_file(0)}
    head = world.repository.commit_entries(repeated)
    for turn in range(COMMITS_WITHOUT_METARANGE_MAX):
        head = world.sweep({f"p/{turn}/a": a_file(turn)}, {f"p/{turn}/b": a_file(turn)}, repeated)[-1]
    whole = [commit.changes is None for _, commit in world.repository.log(head)]
    runs = [len(list(run)) for is_whole, run in itertools.groupby(whole) if not is_whole]
    assert max(runs) == COMMITS_WITHOUT_METARANGE_MAX
    assert len(world.fresh().entries(head)) == 2 * COMMITS_WITHOUT_METARANGE_MAX + 1


def test_such_commits_are_reverted_picked_merged_and_tagged() -> None:
    """Such commits can be reverted, picked, merged and tagged like others."""
    world = World()
    base = world.repository.commit_entries({"a": a_file(1)})
    world.repository.create_branch("side", base)
    _, first, second, _ = world.sweep({"b": a_file(1)}, {"a": a_file(2), "b": None}, {"c": a_file(1)})
    repository = world.fresh()
    repository.tag("v1", first)
    repository.create_branch("other", first)
    assert repository.entries(repository.cherry_pick(second, "side")) == {"a": a_file(2)}
    reverted = repository.entries(repository.revert(second))
    assert reverted == {"a": a_file(1), "b": a_file(1), "c": a_file(1)}
    repository.commit_entries({"b": a_file(2)})
    with pytest.raises(ConflictError, match="b"):
        repository.revert(first)
    assert repository.merge_bases(repository.resolve("other"), second) == (first,)
    assert repository.entries(repository.merge(second, "other")) == {"a": a_file(2)}


def test_collection_keeps_what_only_such_a_commit_names() -> None:
    """Collection keeps a file that was added and removed within one sweep, because a commit in the history has it."""
    world = World()
    named, lost = a_file(7), a_file(8)
    for made in (named, lost):
        world.objects.put(file_path(made), b"content")
    commits = world.sweep({"a": named}, {"a": None}, {"b": a_file(1)})
    for _ in range(2):
        RepositoryCollector(world.key_value, world.objects).collect(epoch_min_s=0)
    assert world.objects.head(file_path(named)) is not None
    assert world.objects.head(file_path(lost)) is None
    assert world.fresh().entries(commits[0]) == {"a": named}


def test_a_commit_whose_ancestor_is_damaged_is_told() -> None:
    """If the ancestor of such a commit is damaged, the error names it; the next whole commit is readable."""
    world = World()
    first, second, third = world.sweep({"a": a_file(1)}, {"b": a_file(1)}, {"c": a_file(1)})
    world.objects.delete(path_of(Commit, first))
    with pytest.raises(DamageError, match=first):
        world.fresh().entries(second)
    assert world.fresh().entries(third).keys() == {"a", "b", "c"}
