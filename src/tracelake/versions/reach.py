"""What names lead to, found with many reads at once, each object read once (see `collect`).

Where an object cannot be read, nobody knows what lies behind it: nothing of these kinds is garbage then. The
collection of the others goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tracelake._errors import DamageError, NotFoundError
from tracelake.versions.model import (
    ChangeSet,
    Commit,
    FileAt,
    IndexAt,
    Metarange,
    Range,
    Reference,
)
from tracelake.versions.objects import Content, Contents, file_path, folder_of, path_of

Kind: TypeAlias = type[Content | FileAt]
BEHIND: Final[dict[type[Content], tuple[Kind, ...]]] = {
    Commit: (Commit, Metarange, Range, FileAt),
    Metarange: (Range, FileAt),
    Range: (FileAt,),
    ChangeSet: (FileAt,),
}
"""What lies behind an object of a kind. Where files are unknown, so are indexes."""


@dataclass(frozen=True, slots=True)
class _ReachStep:
    """What is remembered of a commit."""

    parents: tuple[str, ...]
    metarange: str
    references: tuple[Reference, ...]
    epoch: int


@dataclass(slots=True)
class Reached:
    """Objects that something leads to."""

    contents: Contents
    paths: set[str] = field(default_factory=set)
    indexes: set[str] = field(default_factory=set)
    unknown: set[Kind] = field(default_factory=set)
    """Kinds of which more may be reached than was found."""
    damage: list[str] = field(default_factory=list)
    """Why."""
    _steps: dict[str, _ReachStep | DamageError] = field(default_factory=dict)

    def read_commits(self, commits: Iterable[str]) -> None:
        """Read commits ahead. A history is a line: who follows it would read one after the other."""
        missing = [commit_id for commit_id in commits if commit_id not in self._steps]
        for commit_id, commit in self.contents.read_each(Commit, missing):
            self._steps[commit_id] = commit if isinstance(commit, DamageError) else _step(commit)

    def epochs(self, kind: type[Content], ids: Collection[str]) -> dict[str, int]:
        """Return the epochs in which objects were written, without those that are gone or damaged."""
        if kind is Commit:
            self.read_commits(ids)
            steps = ((commit_id, self._steps[commit_id]) for commit_id in ids)
            return {commit_id: step.epoch for commit_id, step in steps if isinstance(step, _ReachStep)}
        read = self.contents.read_each(kind, ids)
        return {
            record_id: content.epoch for record_id, content in read if not isinstance(content, DamageError)
        }

    def follow(self, heads: Collection[str], *, may_be_gone: bool = False) -> None:
        """Reach commits, all that lie before them, and what these name.

        With `may_be_gone`, what is gone is no damage: no head leads to it, and whoever asked for it is refused.
        """
        metaranges: dict[str, None] = {}
        todo = {head for head in heads if path_of(Commit, head) not in self.paths}
        while todo:
            self.read_commits(sorted(todo))
            behind: set[str] = set()
            for commit_id in sorted(todo):  # the same in each process, for who repeats a run
                self.paths.add(path_of(Commit, commit_id))
                step = self._steps[commit_id]
                if isinstance(step, DamageError):
                    self.hide(Commit, step, may_be_gone=may_be_gone)
                    continue
                behind.update(step.parents)
                self.name(step.references)
                if step.metarange and path_of(Metarange, step.metarange) not in self.paths:
                    metaranges[step.metarange] = None
            todo = {commit_id for commit_id in behind if path_of(Commit, commit_id) not in self.paths}
        ranges: dict[str, None] = {}
        for metarange_id, metarange in self.contents.read_each(Metarange, metaranges):
            self.paths.add(path_of(Metarange, metarange_id))
            if isinstance(metarange, DamageError):
                self.hide(Metarange, metarange, may_be_gone=may_be_gone)
            else:
                ids = (ref.id for ref in metarange.ranges)
                ranges |= dict.fromkeys(each for each in ids if path_of(Range, each) not in self.paths)
        for range_id, content in self.contents.read_each(Range, ranges):
            self.paths.add(path_of(Range, range_id))
            if isinstance(content, DamageError):
                self.hide(Range, content, may_be_gone=may_be_gone)
            else:
                self.name(reference for _, reference in content.entries)

    def name(self, entries: Iterable[Reference | None]) -> None:
        """Reach what entries name."""
        for reference in entries:
            if isinstance(reference, FileAt):
                self.paths.add(file_path(reference))
            elif isinstance(reference, IndexAt):
                self.indexes.add(reference.manifest)

    def hide(self, kind: type[Content], error: DamageError, *, may_be_gone: bool = False) -> None:
        """Remember that something of a kind cannot be read: what lies behind it is not known."""
        if not (may_be_gone and isinstance(error.__cause__, NotFoundError)):
            self.unknown.update(BEHIND[kind])
            self.damage.append(str(error))


def _step(commit: Commit) -> _ReachStep:
    references = (reference for _, reference in commit.changes or () if reference is not None)
    return _ReachStep(commit.parents, commit.metarange, tuple(references), commit.epoch)


def ids_in(kind: type[Content], paths: Iterable[str]) -> list[str]:
    """Return the ids of the objects of a kind at these paths."""
    return [path.removeprefix(folder_of(kind)).removesuffix(".json") for path in paths]
