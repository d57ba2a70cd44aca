"""Read-only walks through commits: to the first commit, to a common ancestor, to the commit of a transaction.

Two commits can have several best common ancestors after criss-cross merges. Using only one of them is wrong: a change
that it has and the others lack, and that one side reverted, would look like no change. The ancestors are therefore
merged with one another first, using their own common ancestors as base, and so on recursively. If that merge has a
conflict in an entry, the base of the entry is unclear, and the outer merge has a conflict if its sides differ. Only
entries that the outer merge needs are merged, and no commit is made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from tracelake._errors import DamageError
from tracelake.limits import MERGE_ANCESTORS_MAX
from tracelake.versions import tree as ranges
from tracelake.versions.model import AFTER, TRANSACTION, Commit
from tracelake.versions.protocol import UNCLEAR, Base, Theirs, agreed
from tracelake.versions.tree import Tree

ReadCommit = Callable[[str], Commit]
_LEFT: Final = 1
_RIGHT: Final = 2
_BEHIND: Final = 4
"""Bit flags of a commit: reached from the left side, from the right side, or from a common ancestor."""


def log(commit_id: str, read: ReadCommit) -> Iterator[tuple[str, Commit]]:
    """Yield (id, commit) from this commit back to the first along first parents, which are the branch's history."""
    following: str | None = commit_id or None
    while following is not None:
        commit = read(following)
        yield following, commit
        following = commit.parents[0] if commit.parents else None


def newest_transaction(commit_id: str, read: ReadCommit) -> int:
    """Return the newest transaction that a commit contains; -1 if it contains none, or if there is no commit."""
    if not commit_id:
        return -1
    metadata = read(commit_id).metadata
    return int(metadata.get(TRANSACTION, metadata.get(AFTER, "-1")))


def commit_of(transaction: int, head: str, read: ReadCommit) -> str:
    """Return the commit of a transaction, searching back from the commit `head`. Raises DamageError if the history has
    no such commit."""
    for commit_id, commit in log(head, read):
        if commit.metadata.get(TRANSACTION) == str(transaction):
            return commit_id
    raise DamageError(f"no commit of transaction {transaction} in the history of {head[:12]}.")


def merge_bases(ours: Collection[str], theirs: Collection[str], read: ReadCommit) -> tuple[str, ...]:
    """Return the best common ancestors of two sides: common ancestors that no other common ancestor descends from.

    Each side is everything that its commits reach. After criss-cross merges there are several. The order depends only
    on the commits.

    The walk goes back from both sides in order of decreasing generation, so it meets a commit after all its
    descendants. A common ancestor that was not reached through another is a best one; its ancestors are not. When
    only those remain, the walk ends.
    """
    reached: dict[str, int] = {}
    queue: list[tuple[int, str]] = []
    open_ones: set[str] = set()
    best: list[str] = []

    def reach(commit_id: str, marks: int) -> None:
        if commit_id not in reached:
            heapq.heappush(queue, (-read(commit_id).generation, commit_id))
        reached[commit_id] = now = reached.get(commit_id, 0) | marks
        (open_ones.discard if now & _BEHIND else open_ones.add)(commit_id)

    for commit_id in filter(None, ours):
        reach(commit_id, _LEFT)
    for commit_id in filter(None, theirs):
        reach(commit_id, _RIGHT)
    while open_ones:
        _, commit_id = heapq.heappop(queue)
        open_ones.discard(commit_id)
        marks = reached[commit_id]
        if marks == _LEFT | _RIGHT:
            best.append(commit_id)
            marks |= _BEHIND
        for parent in read(commit_id).parents:
            reach(parent, marks)
    return tuple(best)


def contains(head: str, commit_id: str, read: ReadCommit) -> bool:
    """Return whether a commit is `head` or an ancestor of it, by any parent.

    Ancestors have a lower generation, so the walk stops at the commit's generation.
    """
    if not head or not commit_id:
        return False
    generation = read(commit_id).generation
    todo, visited = [head], {head}
    while todo:
        at = todo.pop()
        if at == commit_id:
            return True
        commit = read(at)
        if commit.generation > generation:
            todo.extend(parent for parent in commit.parents if parent not in visited)
            visited.update(commit.parents)
    return False


def their_changes(bases: Sequence[str], theirs: str, tree: Tree, read: ReadCommit) -> list[Theirs]:
    """Return the changes that lead from the merged `bases`, the best common ancestors, to commit `theirs`, in order of
    path."""
    after = {
        change.path: change.after
        for base in bases or ("",)
        for change in ranges.differences(tree.ranges(base), tree.ranges(theirs), tree.range)
    }
    paths = sorted(after)
    before = _Ancestors(tree, read).merged(bases, paths)
    return [(path, before[path], after[path]) for path in paths]


class _Ancestors:
    """Merges common ancestors with one another, limited to some paths."""

    def __init__(self, tree: Tree, read: ReadCommit) -> None:
        self._tree = tree
        self._read = read
        self._searches = 0

    def merged(self, commits: Sequence[str], paths: Sequence[str]) -> dict[str, Base]:
        """Return the merged entries of these commits at the paths; None per path without a commit."""
        result: dict[str, Base] = dict.fromkeys(paths)
        for count, commit_id in enumerate(commits):
            standing = self._tree.find(self._tree.view(commit_id), paths)
            differing = [path for path in paths if count and result[path] != standing.get(path)]
            before = self._parted(commits[:count], commit_id, differing) if differing else {}
            for path in differing:
                result[path] = agreed(before[path], result[path], standing.get(path))
            if not count:
                result |= standing
        return result

    def _parted(self, commits: Sequence[str], other: str, paths: Sequence[str]) -> dict[str, Base]:
        """Return the entries at the paths in the merge base of these commits and another."""
        self._searches += 1
        if self._searches > MERGE_ANCESTORS_MAX:
            return dict.fromkeys(paths, UNCLEAR)
        return self.merged(merge_bases(commits, (other,), self._read), paths)
