"""Branches in the key-value store; commits, metaranges and ranges in the object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from tracelake._errors import DamageError, LimitError, NotFoundError, RefNotFoundError, UsageError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, ObjectStore, Version, settle
from tracelake.versions.model import (
    Branch,
    Commit,
    Metarange,
    Range,
    RecordT,
    Reference,
    content_id,
    from_bytes,
    to_bytes,
)
from tracelake.versions.protocol import CommitDecision, carried, decide
from tracelake.versions.refs import COMMIT_ID, NAME, parse

_PARTITION: Final = "branches"
_TAGS: Final = "tags"
COMMITS: Final = "versions/commits/"
"""Where commits are, each as `<id>.json`."""
TRANSACTION: Final = "transaction"
"""The key of a commit's metadata under which its transaction number stands."""
_AFTER: Final = "after_transaction"
"""The same for a commit of another kind: the last transaction before it, none where there was none."""


class Repository:
    """Named, versioned references to tables and indexes."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._key_value = key_value
        self._objects = objects

    def head(self, branch: str = "main") -> str | None:
        """Return the id of the branch's newest commit, or None on an empty branch."""
        return self._read_branch(branch)[0]

    def resolve(self, ref: str) -> str:
        """Return the commit id of a reference (see `refs`). Raises RefNotFoundError where there is none."""
        wanted = parse(ref)
        commit_id = self._resolve_name(wanted.name)
        if not wanted.back and wanted.transaction is None and wanted.time is None:
            return commit_id
        for steps, (found, commit) in enumerate(self.log(commit_id)):
            if wanted.transaction is not None:
                matches = commit.metadata.get(TRANSACTION) == str(wanted.transaction)
            elif wanted.time is not None:
                matches = datetime.fromisoformat(commit.created_at) <= wanted.time
            else:
                matches = steps == wanted.back
            if matches:
                return found
        raise RefNotFoundError(f"no commit {ref!r}: the history of {wanted.name} does not hold it.")

    def _resolve_name(self, name: str) -> str:
        if (head := self.head(name)) is not None:
            return head
        if (tagged := self._tagged(name)) is not None:
            return tagged
        if COMMIT_ID.fullmatch(name):
            found = [info.path for info in self._objects.list(COMMITS + name)]
            if len(found) == 1:
                return found[0].removeprefix(COMMITS).removesuffix(".json")
            if found:
                raise RefNotFoundError(f"{len(found)} commits begin with {name}; give more digits.")
        hint = "the lake is still empty; ingest something first" if name == "main" else "see `tracelake log`"
        raise RefNotFoundError(f"no branch, tag or commit {name!r}: {hint}.")

    def tags(self) -> dict[str, str]:
        """Return the commit id of each tag, by name."""
        return {entry.key: _tagged_by(entry) for entry in self._key_value.scan(_TAGS)}

    def _tagged(self, name: str) -> str | None:
        entry = self._key_value.get(_TAGS, name)
        return None if entry is None else _tagged_by(entry)

    def tag(self, name: str, commit_id: str) -> None:
        """Give a commit a name that never moves. Fine where the tag names it already.

        Raises UsageError for a name that is no name, or that a branch or another commit has.
        """
        if not NAME.fullmatch(name) or COMMIT_ID.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be a tag: take letters, digits, and . _ / - between, and no commit's id."
            )
        if self.head(name) is not None:
            raise UsageError(f"{name!r} is a branch; take another name for the tag.")
        outcome = self._key_value.set_if(_TAGS, name, to_bytes(Branch(commit_id)), ABSENT)
        settle(self._key_value, _TAGS, name, outcome, is_mine=lambda _: False)
        if self._tagged(name) != commit_id:
            raise UsageError(f"tag {name!r} is taken by another commit; delete it first.")

    def delete_tag(self, name: str) -> None:
        """Take a tag away; its commit stays. Raises RefNotFoundError where there is none."""
        entry = self._key_value.get(_TAGS, name)
        if entry is None:
            raise RefNotFoundError(f"no tag {name!r}.")
        outcome = self._key_value.delete_if(_TAGS, name, entry.version)
        settle(self._key_value, _TAGS, name, outcome, is_mine=lambda _: False)

    def commit(self, commit_id: str) -> Commit:
        """Read one commit."""
        return self._read(Commit, "commits", commit_id)

    def entries(self, commit_id: str) -> dict[str, Reference]:
        """Return what a commit names, by name."""
        metarange = self._read(Metarange, "metaranges", self.commit(commit_id).metarange)
        return {
            name: reference
            for range_id in metarange.ranges
            for name, reference in self._read(Range, "ranges", range_id).entries
        }

    def log(self, commit_id: str) -> Iterator[tuple[str, Commit]]:
        """Yield (id, commit) from this commit back to the first."""
        following: str | None = commit_id
        while following is not None:
            commit = self.commit(following)
            yield following, commit
            following = commit.parents[0] if commit.parents else None

    def commit_transaction(
        self,
        transaction: int,
        entries: Mapping[str, Reference],
        *,
        message: str,
        committer: str,
        created_at: str,
        metadata: Mapping[str, str],
        branch: str = "main",
    ) -> str:
        """Put the commit of a transaction on the branch, or find it there; return its id.

        Calling it twice, or from several replicas, gives one commit.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            head, version = self._read_branch(branch)
            decision = decide(transaction, self.transaction_of(head) if head else None)
            if decision is CommitDecision.THERE:
                assert head is not None
                return self.find(head, transaction)
            assert decision is CommitDecision.BUILD, f"transaction {transaction} is ahead of branch {branch}"
            named = carried(self.entries(head) if head else {}, entries)
            about = {**metadata, TRANSACTION: str(transaction)}
            commit_id = self._build(head, named, message, committer, created_at, about)
            if self._move(branch, commit_id, version):
                return commit_id
        raise _lost(branch)

    def commit_entries(
        self,
        entries: Mapping[str, Reference],
        *,
        message: str,
        committer: str,
        created_at: str,
        metadata: Mapping[str, str],
        branch: str = "main",
    ) -> str:
        """Put a commit on the branch that names these entries anew and all others as before; return its id.

        Where the head names them already, each table at that time or a later one, its id is returned: so calling
        it again after an unknown outcome is safe.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            head, version = self._read_branch(branch)
            before = self.entries(head) if head else {}
            named = carried(before, entries)
            if head is not None and named == before:
                return head
            last = self.transaction_of(head) if head else -1
            about = {**metadata, **({_AFTER: str(last)} if last >= 0 else {})}
            commit_id = self._build(head, named, message, committer, created_at, about)
            if self._move(branch, commit_id, version):
                return commit_id
        raise _lost(branch)

    def _build(
        self,
        head: str | None,
        entries: Mapping[str, Reference],
        message: str,
        committer: str,
        created_at: str,
        metadata: Mapping[str, str],
    ) -> str:
        entry_range = self._write("ranges", Range(tuple(sorted(entries.items()))))
        commit = Commit(
            parents=(head,) if head else (),
            metarange=self._write("metaranges", Metarange((entry_range,))),
            message=message,
            committer=committer,
            created_at=created_at,
            metadata=dict(metadata),
        )
        return self._write("commits", commit)

    def transaction_of(self, commit_id: str) -> int:
        """Return the newest transaction that a commit holds, -1 where it holds none."""
        metadata = self.commit(commit_id).metadata
        return int(metadata.get(TRANSACTION, metadata.get(_AFTER, "-1")))

    def find(self, head: str, transaction: int) -> str:
        """Return the commit of a transaction in the history of a commit. Raises DamageError where there is none."""
        for commit_id, commit in self.log(head):
            if commit.metadata.get(TRANSACTION) == str(transaction):
                return commit_id
        raise DamageError(f"no commit of transaction {transaction} in the history of {head[:12]}.")

    def _move(self, branch: str, commit_id: str, expected: Version | None) -> bool:
        value = to_bytes(Branch(commit_id))
        outcome = self._key_value.set_if(
            _PARTITION, branch, value, expected if expected is not None else ABSENT
        )
        # A head is never set back to an older commit, so the same bytes mean that somebody built our commit.
        settled = settle(
            self._key_value, _PARTITION, branch, outcome, is_mine=lambda entry: entry.value == value
        )
        return isinstance(settled, Done)

    def _read_branch(self, branch: str) -> tuple[str | None, Version | None]:
        entry = self._key_value.get(_PARTITION, branch)
        if entry is None:
            return None, None
        return from_bytes(Branch, entry.value, f"branch {branch}").head, entry.version

    def _write(self, kind: str, record: Range | Metarange | Commit) -> str:
        data = to_bytes(record)
        record_id = content_id(data)
        self._objects.create(f"versions/{kind}/{record_id}.json", data)
        return record_id

    def _read(self, record_type: type[RecordT], kind: str, record_id: str) -> RecordT:
        path = f"versions/{kind}/{record_id}.json"
        try:
            data = self._objects.get(path)
        except NotFoundError as error:
            raise DamageError(f"{path} is gone; restore it from a backup.") from error
        if content_id(data) != record_id:
            raise DamageError(f"{path} is not what was written: its content has another id.")
        return from_bytes(record_type, data, path)


def _tagged_by(entry: Entry) -> str:
    return from_bytes(Branch, entry.value, f"tag {entry.key}").head


def _lost(branch: str) -> LimitError:
    return LimitError(
        f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
    )
