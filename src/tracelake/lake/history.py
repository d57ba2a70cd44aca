"""What a lake does with its history: branches, merges, tags, differences."""

from __future__ import annotations

from tracelake.lake.opened import OpenLake
from tracelake.results import BranchInfo, CommitInfo, EntryChange
from tracelake.versions import branch as branches_of
from tracelake.versions.branch import Branch
from tracelake.versions.branches import MAIN


class History:
    """Branches, tags and commits of a lake. The methods of `Lake` of the same names say what each does."""

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def branch(self, name: str = MAIN) -> Branch:
        """See `Lake.branch`."""
        self._opened.repository.branch(name)
        return Branch(name, self._opened.repository)

    def branches(self) -> list[BranchInfo]:
        """See `Lake.branches`."""
        return branches_of.branches(self._opened.repository)

    def create_branch(self, name: str, at: str = MAIN) -> Branch:
        """See `Lake.create_branch`."""
        self._opened.repository.create_branch(name, self._opened.repository.resolve(at))
        return Branch(name, self._opened.repository)

    def delete_branch(self, name: str, force: bool = False) -> None:
        """See `Lake.delete_branch`."""
        self._opened.repository.delete_branch(name, force=force)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        message: str | None = None,
        *,
        prefer: str = "",
        committer: str | None = None,
    ) -> str:
        """See `Lake.merge`."""
        return self.branch(into).merge(source, message, prefer=prefer, committer=committer)

    def log(self, ref: str = MAIN, limit: int | None = None) -> list[CommitInfo]:
        """See `Lake.log`."""
        head = self._opened.commit_of(ref)
        return [] if head is None else branches_of.log(self._opened.repository, head, limit)

    def diff(self, before: str | None, after: str = MAIN, limit: int | None = None) -> list[EntryChange]:
        """See `Lake.diff`."""
        to = self._opened.repository.resolve(after)
        parents = self._opened.repository.commit(to).parents or ("",)
        start = parents[0] if before is None else self._opened.repository.resolve(before)
        return branches_of.diff(self._opened.repository, start, to, limit)

    def tag(self, name: str, ref: str = MAIN) -> str:
        """See `Lake.tag`."""
        commit_id = self._opened.repository.resolve(ref)
        self._opened.repository.tag(name, commit_id)
        return commit_id

    def tags(self) -> dict[str, str]:
        """See `Lake.tags`."""
        return self._opened.repository.tags()

    def delete_tag(self, name: str) -> None:
        """See `Lake.delete_tag`."""
        self._opened.repository.delete_tag(name)
