"""A repository: branches that anyone may commit to at once, and the commits on them (PROTOCOLS §3).

What may be asked of a branch, checked before anyone has to build it; and what is told of the answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypedDict, Unpack

from msgspec.structs import replace

from tracelake._errors import (
    ConflictError,
    DamageError,
    ExpiredError,
    LimitError,
    NothingToCommitError,
    RefNotFoundError,
    TracelakeError,
    UsageError,
)
from tracelake.limits import (
    BRANCH_ANSWERS_KEPT,
    CHANGE_SET_ENTRIES_MAX,
    CHANGES_INLINE_MAX,
    COMMIT_PATIENCE_POLLS,
    COMMIT_REQUEST_MAX_BYTES,
    CONDITIONAL_WRITE_TRIES_MAX,
    REQUESTS_TOLD_MAX,
)
from tracelake.storage import Entry, KeyValueStore, ObjectStore
from tracelake.storage.ports import check_path, encode_key
from tracelake.versions import tree
from tracelake.versions.branch_store import MAIN, BranchSnapshot, new_token, scope
from tracelake.versions.commits import Commits
from tracelake.versions.committer import Committer
from tracelake.versions.model import (
    AFTER,
    TRANSACTION,
    Answer,
    BranchRecord,
    Change,
    ChangeSet,
    CherryPick,
    MergeRequest,
    PathChanges,
    Reference,
    Request,
    RequestKind,
    Revert,
    SealedRequest,
    check_name,
    content_id,
    from_bytes,
    shown,
    to_bytes,
)
from tracelake.versions.protocol import (
    NOT_FOR_EVER,
    CommitDecision,
    Refusal,
    RequestState,
    decide,
    dropped,
    excerpt,
    known_tokens,
    state_of,
    token_after,
    took,
)
from tracelake.versions.staging import Staging, busy, read_branch
from tracelake.versions.tree import ContentStore, id_of

_OF_TRANSACTIONS: Final = "transaction-"
"""How the ids of those requests begin that every replica of a pipeline makes alike."""


class About(TypedDict, total=False):
    """What a commit says of itself. `created_at` is ISO 8601 with its time zone."""

    message: str
    committer: str
    created_at: str
    metadata: Mapping[str, str]
    request_id: str
    """A commit with this id happens once, however often it is asked for; empty for a commit of its own."""


def make_request(operation: RequestKind, about: About, *, allow_empty: bool = False) -> Request:
    """Return a request of people. Raises UsageError for what no commit can say, LimitError for too much of it."""
    request_id = about.get("request_id", "")
    if not isinstance(request_id, str) or request_id.startswith(_OF_TRANSACTIONS):
        raise UsageError(
            f"the id of a request is a text that does not begin with {_OF_TRANSACTIONS!r}, as those of pipelines do, "
            f"not {shown(request_id)}."
        )
    encode_key("the id of a request", request_id)
    metadata = about.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise UsageError(f"the metadata of a commit maps texts to texts; {shown(metadata)} does not.")
    for key in (TRANSACTION, AFTER):
        if key in metadata:
            raise UsageError(
                f"the metadata of a commit cannot have the key {key!r}, which pipelines set; rename it."
            )
    return _request(request_id, operation, about, allow_empty=allow_empty)


def transaction_request(transaction: int, operation: RequestKind, about: About) -> Request:
    """Return the request of a transaction: every replica asks by the same id.

    It need not be remembered, for the history tells its transactions.
    """
    metadata = {**about.get("metadata", {}), TRANSACTION: str(transaction)}
    request_id = f"{_OF_TRANSACTIONS}{transaction}"
    request = _request(request_id, operation, {**about, "metadata": metadata}, allow_empty=True)
    return replace(request, remembered=False)


def _request(request_id: str, operation: RequestKind, about: About, *, allow_empty: bool) -> Request:
    request = Request(
        id=request_id or uuid.uuid4().hex,
        operation=operation,
        message=about.get("message", ""),
        committer=about.get("committer", ""),
        created_at=_time(about.get("created_at", "")),
        metadata=dict(about.get("metadata", {})),
        allow_empty=allow_empty,
        remembered=bool(request_id),
    )
    record = BranchRecord(sealed=(SealedRequest(request),))
    data = to_bytes(record)
    if (
        from_bytes(BranchRecord, data, "the commit") != record
    ):  # what every helper reads must be what was asked for
        raise UsageError(f"a commit says in texts who made it and why; {shown(about)} holds something else.")
    if (size := len(data)) > COMMIT_REQUEST_MAX_BYTES:
        raise LimitError(
            f"the commit has {size} bytes of message, metadata and paths, more than COMMIT_REQUEST_MAX_BYTES = "
            f"{COMMIT_REQUEST_MAX_BYTES}; shorten them."
        )
    return request


def _time(created_at: str) -> str:
    """Return the time of a commit, now by default: references such as `main@2026-01-01` compare it with others."""
    if not created_at:
        return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    try:
        is_moment = datetime.fromisoformat(created_at).tzinfo is not None
    except (TypeError, ValueError):
        is_moment = False
    if not is_moment:
        raise UsageError(
            f"a commit cannot be made at {shown(created_at)}: write its time as 2026-01-01T00:00:00+00:00."
        )
    return created_at


def commit_of(branch: str, answer: Answer) -> str:
    """Return the commit that an answer tells of. Raises the error that a refusal stands for."""
    if answer.refusal:
        raise _refused(branch, answer)
    return answer.commit


def _refused(branch: str, answer: Answer) -> TracelakeError:
    detail = " ".join(answer.detail)
    if answer.refusal == Refusal.CONFLICT:
        return ConflictError(branch, answer.detail)
    if answer.refusal == Refusal.NOTHING:
        return NothingToCommitError(branch, answer.commit)
    if answer.refusal == Refusal.GONE:
        return RefNotFoundError(f"branch {branch} was deleted; nothing was committed.")
    others: dict[str, tuple[type[TracelakeError], str]] = {
        Refusal.EXPIRED: (
            ExpiredError,
            f"{detail} Garbage collection has been through twice since it was written: write it again, then commit.",
        ),
        Refusal.UNREACHABLE: (RefNotFoundError, f"{detail} any more."),
        Refusal.DROPPED: (UsageError, f"the request was taken off the list: {detail}."),
    }
    kind, why = others.get(answer.refusal, (DamageError, detail))
    return kind(f"branch {branch}: nothing was committed: {why}")


class Repository(Commits):
    """Named, versioned references to tables, indexes and files. Threads and processes may share its stores."""

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        *,
        patience_polls: int = COMMIT_PATIENCE_POLLS,
        answers_kept: int = BRANCH_ANSWERS_KEPT,
    ) -> None:
        """Open a repository.

        Args:
            key_value: where branches and tags are.
            objects: where commits are.
            patience_polls: see `Committer`.
            answers_kept: the same.
        """
        super().__init__(key_value, ContentStore(objects))
        self._committer = Committer(
            self._records,
            self._contents,
            self.reaches,
            patience_polls=patience_polls,
            answers_kept=answers_kept,
        )
        self._staging = Staging(self._records, self, self._contents)

    # Branches

    def branches(self) -> dict[str, BranchRecord]:
        """Return the record of each branch, by name; `main` is there from the beginning."""
        return {MAIN: BranchRecord()} | {name: at.record for name, at in self._records.all().items()}

    def branch(self, name: str = MAIN) -> BranchRecord:
        """Return the record of a branch. Raises RefNotFoundError where there is none."""
        return read_branch(self._records, name).record

    def create_branch(self, name: str, commit_id: str, request_id: str = "") -> None:
        """Make a branch that begins at a commit. With the same `request_id` again, the branch that it made is fine.

        Raises UsageError for a name that is no name, or is taken; RefNotFoundError for a commit that is not there.
        """
        check_name(name, "branch")
        encode_key("the id of a request", request_id)
        made_by = f"-{content_id(request_id.encode())[:16]}" if request_id else ""
        if made_by and self._records.read(name).record.id.endswith(made_by):
            return
        self.commit(commit_id)
        if self._tagged(name) is not None:
            raise UsageError(f"{name!r} is a tag; take another name for the branch.")
        record = BranchRecord(f"{uuid.uuid4().hex}{made_by}", commit_id, new_token())
        if not self._names.give(name, record, commit_id):
            raise UsageError(f"there is a branch {name!r} already; take another name, or delete it first.")

    def delete_branch(self, name: str, *, force: bool = False) -> None:
        """Delete a branch; its commits stay until garbage collection finds that nothing leads to them.

        Raises UsageError for `main`, a protected branch, or, unless forced, one with staged entries.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, name)
            if name == MAIN:
                raise UsageError("branch main cannot be deleted: pipelines commit to it.")
            if at.record.protected:
                raise UsageError(
                    f"branch {name} is protected; `tracelake branch protect --off {name}` first."
                )
            if at.record.sealed and not force:
                self._committer.finish(name, at)
                continue
            if not force and self._records.has_staged(at.record.staging):
                raise UsageError(f"branch {name} has staged entries; commit or discard them, or force it.")
            if self._records.delete(name, at):
                for token in known_tokens(at.record):
                    self._records.unstage(token)
                self._records.withdraw_all(scope(name, at.record))
                return
        raise busy(name)

    def protect(self, name: str, *, on: bool = True) -> None:
        """Let a branch be changed by merges, pipelines and writers of tables only; or end that."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, name)
            record = replace(at.record, protected=on)
            if self._records.swap(name, at, record, is_mine=lambda there: there.protected is on)[0]:
                return
        raise busy(name)

    # Staged entries

    def epoch(self) -> int:
        """Return the epoch of garbage collection: to be read before files are written, and to be part of their names.

        Whoever stages them or commits to them within the next epoch need not hurry; later, they are written again, or
        found to be gone.
        """
        return self._records.epoch().number

    def stage(self, entries: Mapping[str, Reference | None], branch: str = MAIN) -> None:
        """Stage entries on a branch, None for one that is to go; they are in the next commit of what is staged.

        Raises RefNotFoundError where there is no such branch, UsageError for a path that is none, ExpiredError where a
        file is gone, for it was written two epochs ago or earlier.
        """
        self.refuse_protected(branch)
        self._staging.stage(branch, entries)

    def staged(self, branch: str = MAIN) -> PathChanges:
        """Return what is staged on a branch and in no commit yet, in order of path, without what is damaged."""
        return tuple(self._staging.staged(branch)[0].items())

    def staged_or_damaged(
        self, branch: str = MAIN
    ) -> tuple[dict[str, Reference | None], dict[str, DamageError]]:
        """Return the same, and why other staged entries cannot be read, each by path."""
        return self._staging.staged(branch)

    def discard(self, branch: str = MAIN, paths: Collection[str] = ()) -> int:
        """Forget what is staged on a branch, all or under some paths; return how many entries.

        Raises NotFoundError where nothing is staged under one of the paths.
        """
        if not paths:
            return self._staging.discard(branch)
        at = read_branch(self._records, branch)
        if at.record.sealed:  # of a committer that was killed: what it cannot commit is staged anew
            self._committer.finish(branch, at)
        self._staging.discard_some(branch, set(paths))
        return len(set(paths))

    def uncommitted(
        self, branch: str = MAIN, start: str = "", stop: str | None = None
    ) -> dict[str, Reference]:
        """Return what a branch names with its staged entries, by path, in order; start <= path < stop."""
        return self._staging.scan(branch, start, stop)

    def find_uncommitted(self, branch: str, paths: Sequence[str]) -> dict[str, Reference]:
        """Return what these paths name on a branch with its staged entries, those that name something."""
        return self._staging.find(branch, paths)

    def keep_staged(self, branch: str, paths: Collection[str]) -> None:
        """Have what is staged under these paths in the next commit, even where nobody was told that it is staged.

        Raises ExpiredError where the file of one has just gone.
        """
        self._staging.keep(branch, paths)

    # Commits

    def commit_staged(self, branch: str = MAIN, *, allow_empty: bool = False, **about: Unpack[About]) -> str:
        """Commit all that is staged on a branch; return the commit.

        Raises NothingToCommitError where that changes nothing, unless `allow_empty`.
        """
        self.refuse_protected(branch)
        return self._submit(branch, Change(staged=True), about, allow_empty=allow_empty)

    def commit_entries(
        self, entries: Mapping[str, Reference | None], branch: str = MAIN, **about: Unpack[About]
    ) -> str:
        """Put a commit on the branch that names these entries anew and all others as before; return its id.

        Where the head names them already, each table at that time or a later one, its id is returned: so calling
        it again after an unknown outcome is safe.
        """
        try:
            return self._submit(branch, self._change_to(entries), about)
        except NothingToCommitError as nothing:
            return nothing.head

    def commit_transaction(
        self,
        transaction: int,
        entries: Mapping[str, Reference],
        branch: str = MAIN,
        **about: Unpack[About],
    ) -> str:
        """Put the commit of a transaction on the branch, or find it there; return its id.

        Calling it twice, or from several replicas, gives one commit.
        """
        at = self._records.read(branch)
        while at.record.sealed and self._decide(transaction, at) is CommitDecision.AHEAD:
            at = self._committer.finish(branch, at)
        decision = self._decide(transaction, at)
        if decision is CommitDecision.THERE:
            return self.commit_of(transaction, at.record.head)
        assert decision is CommitDecision.BUILD, f"transaction {transaction} is ahead of branch {branch}"
        request = transaction_request(transaction, self._change_to(entries), about)
        answer = self._committer.submit(branch, request, at)
        if answer.refusal in NOT_FOR_EVER:  # of long ago, perhaps: what could not be read then may be back
            answer = self._committer.submit(branch, replace(request, id=f"{request.id}-{new_token()}"))
        return commit_of(branch, answer)

    def merge(self, source: str, branch: str = MAIN, *, prefer: str = "", **about: Unpack[About]) -> str:
        """Bring what a commit has since it parted from the branch onto the branch; return the merge commit.

        Args:
            source: the id of a commit.
            branch: where to.
            prefer: which side stands where both changed an entry: `source` or `dest`; neither by default.
            about: what the commit says.

        Raises ConflictError where both sides changed an entry, NothingToCommitError where the branch has it all.
        """
        if not isinstance(prefer, str) or prefer not in ("", "source", "dest"):
            raise UsageError(f"a merge can prefer `source` or `dest`, not {shown(prefer)}.")
        return self._submit(branch, MergeRequest(source, prefer), about)

    def revert(self, commit_id: str, branch: str = MAIN, *, parent: int = 0, **about: Unpack[About]) -> str:
        """Take back what a commit changed against a parent of it; return the new commit.

        Raises ConflictError where an entry has changed again since, NothingToCommitError where all is back already.
        """
        self.refuse_protected(branch)
        self._check_parent(commit_id, parent)
        return self._submit(branch, Revert(commit_id, parent), about)

    def cherry_pick(
        self, commit_id: str, branch: str = MAIN, *, parent: int = 0, **about: Unpack[About]
    ) -> str:
        """Make the change of a commit against a parent of it once more, on the branch; return the new commit.

        Raises ConflictError where an entry differs from what the change began with, NothingToCommitError.
        """
        self.refuse_protected(branch)
        self._check_parent(commit_id, parent)
        return self._submit(branch, CherryPick(commit_id, parent), about)

    def committed(self, request_id: str, branch: str = MAIN) -> str | None:
        """Return the commit of an earlier request with this id, None without one; finish one that has begun.

        Raises the error that the request was refused with, unless it may be asked for again.
        """
        at = read_branch(self._records, branch)
        while state_of(at.record, request_id) is RequestState.SEALED:
            at = self._committer.finish(branch, at)
        done = (answer for answer in at.record.done if answer.request == request_id)
        answer = next(done, None) or self._records.answer(scope(branch, at.record), request_id)
        return None if answer is None or answer.refusal in NOT_FOR_EVER else commit_of(branch, answer)

    def drop_request(self, request_id: str, branch: str = MAIN, why: str = "by hand") -> None:
        """Take a request off the list of a branch that nobody can build; who waits for it is told `why`.

        What is staged for it stays staged. Raises UsageError where it is not on the list, or no more.
        """
        carried: list[list[Entry]] = []
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, branch)
            ids = [item.request.id for item in at.record.sealed]
            if request_id not in ids:
                for entries in carried if took(at.record, request_id) else ():
                    self._records.take_away(entries)
                waiting = f"these wait: {', '.join(ids[:REQUESTS_TOLD_MAX])}" if ids else "none waits there"
                raise UsageError(
                    f"branch {branch} has no request {shown(request_id)} on its list; {waiting}."
                )
            record = dropped(at.record, request_id, excerpt(str(why)))
            index = ids.index(request_id)
            if token := at.record.sealed[index].token:
                to = token_after(at.record, index + 1)
                carried.append(self._records.restage(token, to))
            if self._records.swap(
                branch, at, record, lambda there: state_of(there, request_id) is RequestState.DONE
            )[0]:
                return
        raise busy(branch)

    def _submit(self, branch: str, operation: RequestKind, about: About, *, allow_empty: bool = False) -> str:
        request = make_request(operation, about, allow_empty=allow_empty)
        return commit_of(branch, self._committer.submit(branch, request))

    def _change_to(self, entries: Mapping[str, Reference | None]) -> Change:
        """Describe a change: in the request where it is small, else in objects that the request names."""
        for path in entries:
            check_path(path)
        changes = tree.latest(entries.items())
        if len(changes) <= CHANGES_INLINE_MAX:
            return Change(changes, forward=True)
        epoch = self.epoch()
        sets = [
            ChangeSet(changes[start : start + CHANGE_SET_ENTRIES_MAX], uuid.uuid4().hex, epoch)
            for start in range(0, len(changes), CHANGE_SET_ENTRIES_MAX)
        ]
        records = {id_of(changes): changes for changes in sets}
        self._contents.write(records)
        return Change(objects=tuple(records), forward=True)

    def _check_parent(self, commit_id: str, number: int) -> None:
        """Raise UsageError where a commit has no parent of this number; the first commit of all has an empty one."""
        count = max(1, len(self.commit(commit_id).parents))
        if type(number) is not int or not 0 <= number < count:
            raise UsageError(
                f"commit {commit_id[:12]} has no parent {shown(number)}; they count from 0 to {count - 1}."
            )

    def _decide(self, transaction: int, at: BranchSnapshot) -> CommitDecision:
        head = at.record.head
        return decide(transaction, self.transaction_of(head) if head else None)

    def refuse_protected(self, branch: str) -> None:
        """Raise UsageError where a branch takes no commits of people, RefNotFoundError where there is none."""
        if read_branch(self._records, branch).record.protected:
            raise UsageError(
                f"branch {branch} is protected: it takes merges, pipelines and writers of tables only. Commit to a "
                "branch of your own and merge it."
            )
