"""What is committed, for reading: histories, entries, differences, and the names that lead to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from tracelake._errors import DamageError, RefNotFoundError, UsageError
from tracelake.storage import KeyValueStore, settle
from tracelake.versions import history, ranges
from tracelake.versions.branches import MAIN, TAGS, BranchRecords
from tracelake.versions.merging import their_changes
from tracelake.versions.model import CERTAIN, TRANSACTION, Commit, Reference, Tag, from_bytes
from tracelake.versions.naming import Names
from tracelake.versions.objects import Contents
from tracelake.versions.protocol import Theirs
from tracelake.versions.ranges import Difference
from tracelake.versions.refs import COMMIT_ID, check_name, is_name, parse, shown
from tracelake.versions.tree import Tree


class Commits:
    """Commits by id and by name."""

    def __init__(self, key_value: KeyValueStore, contents: Contents) -> None:
        self._key_value = key_value
        self._contents = contents
        self._records = BranchRecords(key_value, contents.has_commits)
        self._names = Names(key_value, self._records, self.reaches)

    # By id

    def commit(self, commit_id: str) -> Commit:
        """Read one commit."""
        return self._contents.read(Commit, commit_id)

    def log(self, commit_id: str) -> Iterator[tuple[str, Commit]]:
        """Yield (id, commit) from this commit back to the first, by first parents."""
        return history.log(commit_id, self.commit)

    def entries(self, commit_id: str, start: str = "", stop: str | None = None) -> dict[str, Reference]:
        """Return what a commit names, by path, in order; only the paths with start <= path < stop."""
        return dict(self.scan(commit_id, start, stop))

    def scan(
        self, commit_id: str, start: str = "", stop: str | None = None
    ) -> Iterator[tuple[str, Reference]]:
        """Yield what `entries` returns, a range at a time: for more than fits into memory."""
        tree = Tree(self._contents.read)
        return ranges.scan(tree.ranges(commit_id), tree.range, start, stop)

    def count(self, commit_id: str, start: str, stop: str) -> int:
        """Return how many entries of a commit have start <= path < stop, without reading most of them."""
        tree = Tree(self._contents.read)
        return ranges.count(tree.ranges(commit_id), tree.range, start, stop)

    def find(self, commit_id: str, paths: Sequence[str]) -> dict[str, Reference]:
        """Return what these paths name in a commit, those that name something."""
        tree = Tree(self._contents.read)
        return tree.find(tree.view(commit_id), sorted(paths))

    def diff(self, before: str, after: str) -> Iterator[Difference]:
        """Yield the entries that differ between two commits, in order; takes time in proportion to them."""
        tree = Tree(self._contents.read)
        return ranges.differences(tree.ranges(before), tree.ranges(after), tree.range)

    def merge_bases(self, left: str, right: str) -> tuple[str, ...]:
        """Return the best common ancestors of two commits: none, one, or several after merges that crossed."""
        return history.merge_bases((left,), (right,), self.commit)

    def parted(self, ours: str, theirs: str) -> list[Theirs]:
        """Return what their commit changed since both parted, in order of path, with what stood there then."""
        tree = Tree(self._contents.read)
        return their_changes(self.merge_bases(ours, theirs), theirs, tree, self.commit)

    def transaction_of(self, commit_id: str) -> int:
        """Return the newest transaction that a commit holds, -1 where it holds none."""
        return history.newest_transaction(commit_id, self.commit)

    def commit_of(self, transaction: int, head: str) -> str:
        """Return the commit of a transaction in the history of a commit. Raises DamageError where there is none."""
        return history.commit_of(transaction, head, self.commit)

    # By name

    def head(self, branch: str = MAIN) -> str | None:
        """Return the id of the branch's newest commit, or None on an empty branch, or where there is none."""
        return self._records.read(branch).record.head or None

    def resolve(self, ref: str) -> str:
        """Return the commit id of a reference (see `refs`). Raises RefNotFoundError where there is none."""
        wanted = parse(ref)
        commit_id = self._resolve_name(wanted.name)
        if not wanted.back and wanted.transaction is None and wanted.time is None:
            return commit_id
        for steps, (ancestor, commit) in enumerate(self.log(commit_id)):
            if wanted.transaction is not None:
                matches = commit.metadata.get(TRANSACTION) == str(wanted.transaction)
            elif wanted.time is not None:
                matches = datetime.fromisoformat(commit.created_at) <= wanted.time
            else:
                matches = steps == wanted.back
            if matches:
                return ancestor
        raise RefNotFoundError(f"no commit {ref!r}: the history of {wanted.name} does not hold it.")

    def _resolve_name(self, name: str) -> str:
        if (head := self.head(name)) is not None:
            return head
        if (tagged := self._tagged(name)) is not None:
            return tagged
        if COMMIT_ID.fullmatch(name):
            ids = self._contents.find(name, at_most=2)
            if len(ids) == 1:
                return ids[0]
            if ids:
                raise RefNotFoundError(f"more than one commit begins with {name}; give more digits.")
        hint = "the lake is still empty; ingest something first" if name == MAIN else "see `tracelake log`"
        raise RefNotFoundError(f"no branch, tag or commit {name!r}: {hint}.")

    def tags(self) -> dict[str, str]:
        """Return the commit id of each tag, by name."""
        return self._records.tags()

    def tag(self, name: str, commit_id: str) -> None:
        """Give a commit a name that never moves. Fine where the tag names it already.

        Raises UsageError for a name that is no name, or that a branch or another commit has; RefNotFoundError for
        a commit that no branch or tag leads to.
        """
        check_name(name, "tag")
        if not self._records.read(name).is_absent or name == MAIN:
            raise UsageError(f"{name!r} is a branch; take another name for the tag.")
        if not self._names.give(name, Tag(commit_id), commit_id) and self._tagged(name) != commit_id:
            raise UsageError(f"tag {name!r} is taken by another commit or a branch; delete that first.")

    def reaches(self, commit_id: str) -> bool:
        """Tell whether a branch or tag leads to a commit. Once none does, none ever will again.

        Raises DamageError where none is found, and a history cannot be read: that may be the one.
        """
        branches = (at.record.head for at in self._records.all().values())
        heads = dict.fromkeys([*branches, *self._records.tags().values()])
        if commit_id in heads:
            return True
        damage: DamageError | None = None
        for head in heads:
            try:
                if history.contains(head, commit_id, self.commit):
                    return True
            except DamageError as error:
                damage = error
        if damage is not None:
            raise damage
        return False

    def delete_tag(self, name: str) -> None:
        """Take a tag away; its commit stays. Raises RefNotFoundError where there is none."""
        entry = self._key_value.get(TAGS, name) if is_name(name) else None
        if entry is None or self._tagged(name) is None:
            raise RefNotFoundError(f"no tag {shown(name)}.")
        outcome = self._key_value.delete_if(TAGS, name, entry.version)
        settle(self._key_value, TAGS, name, outcome, is_mine=lambda _: False)

    def _tagged(self, name: str) -> str | None:
        entry = self._key_value.get(TAGS, name)
        tag = None if entry is None else from_bytes(Tag, entry.value, f"tag {entry.key}")
        return None if tag is None or tag.claimed != CERTAIN else tag.commit
