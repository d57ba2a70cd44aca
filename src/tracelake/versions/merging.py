"""What stood where two sides of a merge parted.

Two commits may have several best common ancestors: where two branches were merged into each other, each as it was
before it had the other. To take one of them is wrong: what the one had changed and the other had not, and a side
changed back since, looks like no change against the other. So they are merged themselves, first, with what stood
where *they* parted, and so on. Where that is in conflict the entry is unclear, and so is a merge in which the sides
differ on it. Only entries are merged that may matter, and no commit is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracelake.limits import MERGE_ANCESTORS_MAX
from tracelake.versions import history, ranges
from tracelake.versions.history import ReadCommit
from tracelake.versions.protocol import UNCLEAR, Base, Theirs, agreed
from tracelake.versions.tree import Tree


def their_changes(bases: Sequence[str], theirs: str, tree: Tree, read: ReadCommit) -> list[Theirs]:
    """Return what a commit names otherwise than its best common ancestors with another, in order of path."""
    after = {
        change.path: change.after
        for base in bases or ("",)
        for change in ranges.differences(tree.ranges(base), tree.ranges(theirs), tree.range)
    }
    paths = sorted(after)
    before = _Ancestors(tree, read).merged(bases, paths)
    return [(path, before[path], after[path]) for path in paths]


class _Ancestors:
    """Merges commits with one another, as far as some paths go."""

    def __init__(self, tree: Tree, read: ReadCommit) -> None:
        self._tree = tree
        self._read = read
        self._searches = 0

    def merged(self, commits: Sequence[str], paths: Sequence[str]) -> dict[str, Base]:
        """Return what the paths name in all these commits together; nothing where there is no commit."""
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
        """Return what the paths named where these commits parted from another."""
        self._searches += 1
        if self._searches > MERGE_ANCESTORS_MAX:
            return dict.fromkeys(paths, UNCLEAR)
        return self.merged(history.merge_bases(commits, (other,), self._read), paths)
