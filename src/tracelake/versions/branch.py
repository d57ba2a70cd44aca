"""The public view of a branch: staged entries, commits, merges, reverts and cherry-picks."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Collection
from contextlib import suppress
from itertools import islice

import msgspec

from tracelake import results
from tracelake._errors import StorageError, UsageError
from tracelake._settings import find_committer
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import Commit, Reference, shown
from tracelake.versions.protocol import Unclear, merged
from tracelake.versions.repository import Repository

_SHOWN = 12
"""Digits of a commit id in a message."""


class Branch:
    """One branch, by name. Each call reads the branch again, so the object never becomes stale.

    Every commit records its committer: `committer`, otherwise the setting of that name, otherwise the user of this
    process. The calls raise RefNotFoundError if the branch or commit does not exist.

    A call that makes a commit raises IndeterminateError if the store failed after the commit had begun. The message
    names the request id. Repeat the call with that `request_id` to make the commit, or find it if it was made.
    """

    def __init__(self, name: str, repository: Repository) -> None:
        self.name = name
        self._repository = repository

    @property
    def head(self) -> str | None:
        """Return the id of the newest commit; None for `main` of an empty lake."""
        return self._repository.branch(self.name).head or None

    @property
    def protected(self) -> bool:
        """Return whether the branch accepts only merges, pipelines and table writers."""
        return self._repository.branch(self.name).protected

    def protect(self, on: bool = True) -> None:
        """Protect the branch, so that it accepts only merges, pipelines and table writers. With `on=False`, end the
        protection."""
        self._repository.protect(self.name, on=on)

    def log(self, limit: int | None = None) -> list[results.CommitInfo]:
        """Return the commits, newest first."""
        head = self.head
        return [] if head is None else log(self._repository, head, limit)

    def expired(self) -> results.ExpiredCommits | None:
        """Return how many commits of the lake have expired, and the oldest that can be read; None if none has."""
        return self._repository.expired()

    def diff(self, other: str, limit: int | None = None) -> list[results.EntryChange]:
        """Return the entries that differ between commit `other` (`before`) and this branch (`after`), in order of path;
        at most `limit` entries."""
        return diff(self._repository, self._repository.resolve(other), self.head or "", limit)

    def staged(self) -> list[results.EntryChange]:
        """Return the staged, uncommitted changes against the newest commit, in order of path.

        An unreadable entry has a `problem`. It blocks every commit of staged entries until it is staged again or
        discarded.
        """
        staged, damaged = self._repository.staged_or_damaged(self.name)
        head = self.head
        committed = self._repository.find(head, [*staged, *damaged]) if head else {}
        changes = [
            results.EntryChange(path, _plain(committed.get(path)), _plain(after))
            for path, after in staged.items()
            if committed.get(path) != after
        ]
        changes += [
            results.EntryChange(path, _plain(committed.get(path)), None, str(why))
            for path, why in damaged.items()
        ]
        return sorted(changes, key=lambda change: change.path)

    def commit(
        self,
        message: str,
        *,
        allow_empty: bool = False,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Commit all staged entries; return the commit's id.

        If a staged entry is unreadable, everything stays staged.

        Raises:
            NothingToCommitError: the staged entries change nothing, unless `allow_empty`.
            UsageError: the branch is protected, or `request_id` already made a commit with another message.
            DamageError: a staged entry is unreadable; the message names it.
        """
        commit_id = self._repository.commit_staged(
            self.name,
            allow_empty=allow_empty,
            message=message,
            committer=find_committer(committer),
            request_id=_request_id(request_id),
        )
        if request_id:
            # The commit already exists, so a store failure must not fail the call.
            with suppress(StorageError):
                self._check_same(request_id, commit_id, message)
        return commit_id

    def _check_same(self, request_id: str, commit_id: str, message: str) -> None:
        """Raise UsageError if a request id already made a commit with another message."""
        commit = self._repository.commit(commit_id)
        if commit.message != message:
            raise UsageError(
                f"request {shown(request_id)} has already made commit {_title(commit_id, commit)!r} on branch "
                f"{self.name}; nothing was committed. Choose another request id for another commit."
            )

    def discard(self, paths: Collection[str] = ()) -> int:
        """Discard staged entries, all or those at some paths; return their number.

        Raises NotFoundError and discards nothing if nothing is staged at one of the paths.
        """
        return self._repository.discard(self.name, paths)

    def requests(self) -> list[results.RequestInfo]:
        """Return the commit requests that have begun and are not yet committed, oldest first; usually none."""
        return [
            results.RequestInfo(
                request.id,
                str(type(request.operation).__struct_config__.tag),
                request.message,
                request.committer,
                request.created_at,
            )
            for request in (sealed.request for sealed in self._repository.branch(self.name).sealed)
        ]

    def drop_request(self, request_id: str, why: str | None = None) -> None:
        """Cancel a commit request that cannot be built, for example because building it takes too much memory.

        The request's client receives `why`. The entries that it would have committed stay staged. Raises UsageError if
        the request is not pending.
        """
        self._repository.drop_request(request_id, self.name, why=why or f"dropped by {find_committer()}")

    def merge(
        self,
        source: str,
        message: str | None = None,
        *,
        prefer: str = "",
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Merge a commit into the branch: apply its changes since their common ancestor; return the merge commit.

        Args:
            source: a reference to the commit: a branch, tag, commit id, or a form such as `main~3`.
            message: `merge … into …` by default.
            prefer: the side that wins if both changed an entry differently: `source`, or `dest` for this branch. By
                default neither wins, and the merge fails.
            committer: the person or program that the commit records.
            request_id: repeating it returns the same commit; random by default.

        Raises:
            ConflictError: both sides changed an entry differently, and `prefer` is empty; see `conflicts`.
            NothingToCommitError: the branch already contains the commit.
        """
        return self._repository.merge(
            self._repository.resolve(source),
            self.name,
            prefer=prefer,
            message=message or f"merge {source} into {self.name}",
            committer=find_committer(committer),
            request_id=_request_id(request_id),
        )

    def conflicts(self, source: str) -> list[results.MergeConflict]:
        """Return the conflicts that a merge of `source` would have, in order of path: entries that both sides changed
        differently since their common ancestor. If both have the same table at two times, the later one is no conflict.
        """
        return self.preview(source)[1]

    def incoming(self, source: str) -> list[results.EntryChange]:
        """Return the changes of `source` since the common ancestor, in order of path: those that a merge would apply,
        and those that conflict."""
        return self.preview(source)[0]

    def preview(self, source: str) -> tuple[list[results.EntryChange], list[results.MergeConflict]]:
        """Return `incoming` and `conflicts` of a merge, by one walk through the history."""
        repository = self._repository
        ours, theirs = self.head or "", repository.resolve(source)
        changes = repository.parted(ours, theirs)
        standing = repository.find(ours, [path for path, _, _ in changes]) if ours else {}
        _, conflicts = merged(changes, standing)
        return [
            results.EntryChange(path, None if isinstance(base, Unclear) else _plain(base), _plain(after))
            for path, base, after in changes
        ], [
            results.MergeConflict(c.path, _plain(c.base), _plain(c.ours), _plain(c.theirs)) for c in conflicts
        ]

    def revert(
        self,
        ref: str,
        message: str | None = None,
        *,
        parent: int = 0,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Make a commit that undoes a commit's changes against one of its parents, by default the first; return its id.

        Raises ConflictError if another commit has since changed one of these entries differently, NothingToCommitError
        if everything is undone already, and UsageError if the branch is protected.
        """
        commit_id, commit = self._find(ref)
        return self._repository.revert(
            commit_id,
            self.name,
            parent=parent,
            message=message or f"revert {_title(commit_id, commit)}",
            committer=find_committer(committer),
            request_id=_request_id(request_id),
        )

    def cherry_pick(
        self,
        ref: str,
        message: str | None = None,
        *,
        parent: int = 0,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Commit to this branch the changes that a commit made against its parent number `parent`; return the new
        commit.

        Raises ConflictError if this branch changed one of the entries differently since that parent,
        NothingToCommitError if it has all changes already, and UsageError if it is protected.
        """
        commit_id, commit = self._find(ref)
        return self._repository.cherry_pick(
            commit_id,
            self.name,
            parent=parent,
            message=message or commit.message or _title(commit_id, commit),
            committer=find_committer(committer),
            request_id=_request_id(request_id),
        )

    def _find(self, ref: str) -> tuple[str, Commit]:
        commit_id = self._repository.resolve(ref)
        return commit_id, self._repository.commit(commit_id)


def branches(repository: Repository) -> list[results.BranchInfo]:
    """Return all branches: `main` first, then the others by name."""
    return [
        results.BranchInfo(
            name,
            record.head or None,
            record.protected,
            sum(len(changes) for changes in repository.staged_or_damaged(name)),
        )
        for name, record in sorted(repository.branches().items(), key=lambda item: (item[0] != MAIN, item[0]))
    ]


def log(repository: Repository, head: str, limit: int | None) -> list[results.CommitInfo]:
    """Return a commit and its ancestors, newest first."""
    return [
        results.CommitInfo(
            commit_id, commit.parents, commit.message, commit.committer, commit.created_at, commit.metadata
        )
        for commit_id, commit in islice(repository.log(head), _at_most(limit))
    ]


def diff(repository: Repository, before: str, after: str, limit: int | None) -> list[results.EntryChange]:
    """Return the entries that differ between two commits, in order of path; at most `limit`."""
    return [
        results.EntryChange(change.path, _plain(change.before), _plain(change.after))
        for change in islice(repository.diff(before, after), _at_most(limit))
    ]


def _at_most(limit: int | None) -> int | None:
    """Return the limit. Raises UsageError unless it is None or a number from 0."""
    if limit is not None and (type(limit) is not int or not 0 <= limit <= sys.maxsize):
        raise UsageError(f"a listing cannot end after {shown(limit)} rows; give a number, or None for all.")
    return limit


def _plain(reference: Reference | None) -> results.Row | None:
    plain: results.Row | None = msgspec.to_builtins(reference)
    return plain


def _request_id(request_id: str | None) -> str:
    """Return the given request id, or a random one. The answer to a request is kept, so a repeated call with its id
    returns the same result."""
    return request_id or uuid.uuid4().hex


def _title(commit_id: str, commit: Commit) -> str:
    return f"{commit_id[:_SHOWN]} {commit.message}".rstrip()
