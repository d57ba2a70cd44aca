"""What commits name: the ranges of a metarange, and for some commits changes on top of those of an ancestor.

A commit that is built together with later ones is history at once, and seldom read. It says only what it changes: so
a sweep of many commits writes one small object for each, and a metarange and ranges for few. Who reads such a commit
goes back to the nearest one that has a metarange, and makes the ranges up from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tracelake.limits import CHANGES_INLINE_MAX, COMMITS_WITHOUT_METARANGE_MAX
from tracelake.versions import ranges
from tracelake.versions.model import Commit, Metarange, PathChanges, Range, RangeRef, Reference
from tracelake.versions.objects import ContentT, id_of


class ReadContent(Protocol):
    """Returns a record by kind and id."""

    def __call__(self, kind: type[ContentT], record_id: str, /) -> ContentT:
        """Return the record. Raises DamageError where it is gone, or is not what was written."""


@dataclass(frozen=True, slots=True)
class CommitTree:
    """All that a commit names."""

    refs: tuple[RangeRef, ...] = ()
    """The ranges of the nearest commit, itself or an ancestor, that has a metarange."""
    since: Mapping[str, Reference | None] = field(default_factory=dict)
    """What the commits after that one changed, by path."""
    commits: int = 0
    """How many these are."""

    def then(self, changes: PathChanges) -> CommitTree:
        """Return what a commit names that makes these changes, and has no metarange."""
        return CommitTree(self.refs, {**self.since, **dict(changes)}, self.commits + 1)

    def needs_metarange(self, changes: PathChanges) -> bool:
        """Tell whether a commit that makes these changes must have one: else reading it would take too long."""
        return self.commits + 1 > COMMITS_WITHOUT_METARANGE_MAX or len(changes) > CHANGES_INLINE_MAX


class Tree:
    """Reads what commits name; remembers the ranges that it made up."""

    def __init__(self, read: ReadContent) -> None:
        """Read records by this function."""
        self._read = read
        self._made: dict[str, Range] = {}

    def view(self, commit_id: str) -> CommitTree:
        """Return what a commit names; nothing where there is no commit."""
        changes: list[PathChanges] = []
        at = commit_id
        while at:
            commit = self._read(Commit, at)
            if commit.changes is None:
                refs = self._read(Metarange, commit.metarange).ranges
                break
            changes.append(commit.changes)
            at = commit.parents[0] if commit.parents else ""
        else:
            refs = ()
        since = dict(change for step in reversed(changes) for change in step)
        return CommitTree(refs, since, len(changes))

    def ranges(self, commit_id: str) -> tuple[RangeRef, ...]:
        """Return the ranges of all that a commit names, to be read by `range`."""
        view = self.view(commit_id)
        if not view.since:
            return view.refs
        refs, new = self.changed(view, (), self._read(Commit, commit_id).epoch)
        self._made.update({id_of(new_range): new_range for new_range in new})
        return refs

    def changed(
        self, view: CommitTree, changes: PathChanges, epoch: int
    ) -> tuple[tuple[RangeRef, ...], list[Range]]:
        """Return the ranges of a view after changes, and those of them that no metarange names yet."""
        return ranges.changed(view.refs, ranges.latest((*view.since.items(), *changes)), self.range, epoch)

    def find(self, view: CommitTree, paths: Sequence[str]) -> dict[str, Reference]:
        """Return what these paths name, those that name something; `paths` are in order."""
        references = ranges.find(view.refs, [path for path in paths if path not in view.since], self.range)
        return references | {
            path: reference for path in paths if (reference := view.since.get(path)) is not None
        }

    def range(self, range_id: str) -> Range:
        """Return a range."""
        return self._made.get(range_id) or self._read(Range, range_id)
