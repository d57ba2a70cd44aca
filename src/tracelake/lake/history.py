"""What a lake does with its history: branches, merges, tags, differences."""

from __future__ import annotations

from tracelake.results import BranchInfo, CommitInfo, EntryChange
from tracelake.versions import branch as branches_of
from tracelake.versions.branch import Branch
from tracelake.versions.branches import MAIN
from tracelake.versions.store import Repository


class LakeBranches:
    """The part of `Lake` that knows of branches, tags and commits."""

    _repository: Repository

    def branch(self, name: str = MAIN) -> Branch:
        """Return a branch: what is staged on it, its commits, merges. Raises RefNotFoundError where there is none."""
        self._repository.branch(name)
        return Branch(name, self._repository)

    def branches(self) -> list[BranchInfo]:
        """Return all branches: `main` first, the others by name."""
        return branches_of.branches(self._repository)

    def create_branch(self, name: str, at: str = MAIN) -> Branch:
        """Make a branch that begins at a commit.

        Raises UsageError for a name that is no name, or is taken; RefNotFoundError for a commit that is not there.
        """
        self._repository.create_branch(name, self._repository.resolve(at))
        return Branch(name, self._repository)

    def delete_branch(self, name: str, force: bool = False) -> None:
        """Delete a branch; its commits stay as long as another branch or a tag leads to them.

        Raises UsageError for `main`, a protected branch, or, unless forced, one with staged entries;
        RefNotFoundError where there is none.
        """
        self._repository.delete_branch(name, force=force)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        message: str | None = None,
        *,
        prefer: str = "",
        committer: str | None = None,
    ) -> str:
        """Bring onto a branch what a commit has since both parted; see `Branch.merge`."""
        return self.branch(into).merge(source, message, prefer=prefer, committer=committer)

    def log(self, ref: str = MAIN, limit: int | None = None) -> list[CommitInfo]:
        """Return commits, newest first."""
        head = self._commit_of(ref)
        return [] if head is None else branches_of.log(self._repository, head, limit)

    def diff(self, before: str | None, after: str = MAIN, limit: int | None = None) -> list[EntryChange]:
        """Return the entries that differ between two commits, in order of path; at most `limit` of them.

        Without `before`, from the first parent of `after`. Takes time in proportion to what differs. Raises
        RefNotFoundError.
        """
        to = self._repository.resolve(after)
        parents = self._repository.commit(to).parents or ("",)
        start = parents[0] if before is None else self._repository.resolve(before)
        return branches_of.diff(self._repository, start, to, limit)

    def tag(self, name: str, ref: str = MAIN) -> str:
        """Give a commit a name that never moves; return its id.

        Raises UsageError for a name that is taken or no name, RefNotFoundError for a commit that is not there.
        """
        commit_id = self._repository.resolve(ref)
        self._repository.tag(name, commit_id)
        return commit_id

    def tags(self) -> dict[str, str]:
        """Return the commit id of each tag, by name."""
        return self._repository.tags()

    def delete_tag(self, name: str) -> None:
        """Take a tag away; its commit stays. Raises RefNotFoundError where there is none."""
        self._repository.delete_tag(name)

    def _commit_of(self, ref: str) -> str | None:
        """Return the commit that a reference names; None for `main` of an empty lake. Raises RefNotFoundError."""
        return self._repository.head() if ref == MAIN else self._repository.resolve(ref)
