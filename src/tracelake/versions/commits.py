"""Read access to commits: history, entries, differences, and the branches and tags that name commits.

`RefClaims` gives names to commits in three steps: write a claim, check that the commit is reachable, write the name.

A claim is the future record of the name plus the epoch of the claim. Only garbage collection treats it as a name.
Either a collector sees the claim, or the collector read the names earlier and the claimant sees the same state. If no
name leads to the commit then, none ever will. A conditional write turns the claim into the name. A process that finds
a claim in its way deletes it, as a collector does two epochs later. So a killed claimant leaves nothing, and a slow
one claims again.

A collector reads names one by one, so a commit could move from one name to another unseen. Each name is therefore
announced in the epoch record before it is given, and a collector that sees a change reads all names again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, RefNotFoundError, UsageError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, settle
from tracelake.versions import history
from tracelake.versions import tree as ranges
from tracelake.versions.branch_store import BRANCHES, MAIN, TAGS, BranchRecords
from tracelake.versions.history import their_changes
from tracelake.versions.model import (
    CERTAIN,
    COMMIT_ID,
    TRANSACTION,
    BranchRecord,
    Commit,
    Reference,
    Tag,
    check_name,
    from_bytes,
    is_name,
    parse,
    shown,
    to_bytes,
)
from tracelake.versions.protocol import Theirs, is_collectable
from tracelake.versions.tree import ContentStore, Difference, Tree

NameT = TypeVar("NameT", BranchRecord, Tag)


class RefClaims:
    """Gives names to commits, and deletes expired claims."""

    def __init__(
        self, key_value: KeyValueStore, records: BranchRecords, reaches: Callable[[str], bool]
    ) -> None:
        """Give names in these stores to commits that a branch or tag reaches, as `reaches` reports."""
        self._key_value = key_value
        self._records = records
        self._reaches = reaches

    def give(self, name: str, record: NameT, commit: str) -> bool:
        """Name a commit by the record of a branch or tag; return False if a branch or tag has the name already.

        Raises RefNotFoundError if no branch or tag leads to the commit.
        """
        partition, other = (BRANCHES, TAGS) if isinstance(record, BranchRecord) else (TAGS, BRANCHES)
        value = to_bytes(record)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            claim = replace(record, claimed=self._records.epoch().number)
            if not self._clear(partition, name):
                there = self._key_value.get(partition, name)
                return there is not None and there.value == value  # Our own write, which arrived late.
            outcome = self._key_value.set_if(partition, name, to_bytes(claim), ABSENT)
            claimed = settle(self._key_value, partition, name, outcome, is_mine=lambda _: False)
            if not isinstance(claimed, Done):
                continue
            is_free = self._clear(other, name)
            if not is_free or not self._reaches(commit):
                self._key_value.delete_if(partition, name, claimed.version)
                if not is_free:
                    return False
                raise RefNotFoundError(
                    f"no branch or tag leads to commit {commit[:12]} any more: garbage collection may take it."
                )
            self._records.tell_of_name()
            outcome = self._key_value.set_if(partition, name, value, claimed.version)
            is_mine = _is(value)
            if isinstance(settle(self._key_value, partition, name, outcome, is_mine=is_mine), Done):
                return True
        raise ContentionError(
            f"{name!r}: others were giving this name, again and again. Nothing was changed; try again."
        )

    def end_claims(self, newest: int) -> None:
        """Delete claims from two epochs ago. Their claimants were killed, or will claim again."""
        for partition in (BRANCHES, TAGS):
            for entry in self._key_value.scan(partition):
                claimed = _claimed(partition, entry)
                if claimed != CERTAIN and is_collectable(claimed, newest):
                    self._key_value.delete_if(partition, entry.key, entry.version)

    def _clear(self, partition: str, name: str) -> bool:
        """Delete a claim; return whether the name is free now."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(partition, name)
            if entry is None:
                return True
            if _claimed(partition, entry) == CERTAIN:
                return False
            outcome = self._key_value.delete_if(partition, name, entry.version)
            settle(self._key_value, partition, name, outcome, is_mine=lambda _: False)
        raise ContentionError(
            f"{name!r}: others were giving this name, again and again. Nothing was changed; try again."
        )


def _is(value: bytes) -> Callable[[Entry], bool]:
    return lambda entry: entry.value == value


def _claimed(partition: str, entry: Entry) -> int:
    if partition == TAGS:
        return from_bytes(Tag, entry.value, f"tag {entry.key}").claimed
    return from_bytes(BranchRecord, entry.value, f"branch {entry.key}").claimed


class Commits:
    """Commits by id and by name."""

    def __init__(self, key_value: KeyValueStore, contents: ContentStore) -> None:
        self._key_value = key_value
        self._contents = contents
        self._records = BranchRecords(key_value, contents.has_commits)
        self._names = RefClaims(key_value, self._records, self.reaches)

    # By id

    def commit(self, commit_id: str) -> Commit:
        """Return one commit."""
        return self._contents.read(Commit, commit_id)

    def log(self, commit_id: str) -> Iterator[tuple[str, Commit]]:
        """Yield (id, commit) from this commit back to the first, along first parents."""
        return history.log(commit_id, self.commit)

    def entries(self, commit_id: str, start: str = "", stop: str | None = None) -> dict[str, Reference]:
        """Return the entries of a commit by path, in order; only paths with start <= path < stop."""
        return dict(self.scan(commit_id, start, stop))

    def scan(
        self, commit_id: str, start: str = "", stop: str | None = None
    ) -> Iterator[tuple[str, Reference]]:
        """Yield the result of `entries` range by range, for commits that do not fit into memory."""
        tree = Tree(self._contents.read)
        return ranges.scan(tree.ranges(commit_id), tree.range, start, stop)

    def count(self, commit_id: str, start: str, stop: str) -> int:
        """Return the number of entries with start <= path < stop, without reading most of them."""
        tree = Tree(self._contents.read)
        return ranges.count(tree.ranges(commit_id), tree.range, start, stop)

    def find(self, commit_id: str, paths: Sequence[str]) -> dict[str, Reference]:
        """Return the references at these paths in a commit; paths without one are omitted."""
        tree = Tree(self._contents.read)
        return tree.find(tree.view(commit_id), sorted(paths))

    def diff(self, before: str, after: str) -> Iterator[Difference]:
        """Yield the entries that differ between two commits, in order. The time is proportional to their number."""
        tree = Tree(self._contents.read)
        return ranges.differences(tree.ranges(before), tree.ranges(after), tree.range)

    def merge_bases(self, left: str, right: str) -> tuple[str, ...]:
        """Return the best common ancestors of two commits: none, one, or several after criss-cross merges."""
        return history.merge_bases((left,), (right,), self.commit)

    def parted(self, ours: str, theirs: str) -> list[Theirs]:
        """Return the changes of `theirs` since the merge base, in order of path, each with the base's entry."""
        tree = Tree(self._contents.read)
        return their_changes(self.merge_bases(ours, theirs), theirs, tree, self.commit)

    def transaction_of(self, commit_id: str) -> int:
        """Return the newest transaction that a commit contains, or -1."""
        return history.newest_transaction(commit_id, self.commit)

    def commit_of(self, transaction: int, head: str) -> str:
        """Return the commit of a transaction in the history of a commit. Raises DamageError if it is missing."""
        return history.commit_of(transaction, head, self.commit)

    # By name

    def head(self, branch: str = MAIN) -> str | None:
        """Return the id of the branch's newest commit; None if the branch is empty or does not exist."""
        return self._records.read(branch).record.head or None

    def resolve(self, ref: str) -> str:
        """Return the commit id of a reference (see `model`). Raises RefNotFoundError if no commit matches."""
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
        """Give a commit a permanent name. Repeating the call is harmless.

        Raises UsageError if the name is invalid or names a branch or another commit, and RefNotFoundError if no
        branch or tag leads to the commit.
        """
        check_name(name, "tag")
        if not self._records.read(name).is_absent or name == MAIN:
            raise UsageError(f"{name!r} is a branch; take another name for the tag.")
        if not self._names.give(name, Tag(commit_id), commit_id) and self._tagged(name) != commit_id:
            raise UsageError(f"tag {name!r} is taken by another commit or a branch; delete that first.")

    def reaches(self, commit_id: str) -> bool:
        """Return whether a branch or tag leads to a commit. If none does, none ever will again.

        Raises DamageError if none was found and a history is unreadable, because that history may contain the commit.
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
        """Delete a tag; its commit stays. Raises RefNotFoundError if the tag does not exist."""
        entry = self._key_value.get(TAGS, name) if is_name(name) else None
        if entry is None or self._tagged(name) is None:
            raise RefNotFoundError(f"no tag {shown(name)}.")
        outcome = self._key_value.delete_if(TAGS, name, entry.version)
        settle(self._key_value, TAGS, name, outcome, is_mine=lambda _: False)

    def _tagged(self, name: str) -> str | None:
        entry = self._key_value.get(TAGS, name)
        tag = None if entry is None else from_bytes(Tag, entry.value, f"tag {entry.key}")
        return None if tag is None or tag.claimed != CERTAIN else tag.commit
