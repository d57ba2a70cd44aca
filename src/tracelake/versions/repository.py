"""A repository: branches that accept concurrent commits, and the commits on them (PROTOCOLS §3).

Requests are validated before any committer builds them, and answers are translated into commits or errors.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypedDict, Unpack

from msgspec.structs import replace

from tracelake import _errors
from tracelake.limits import CHANGE_SET_ENTRIES_MAX, COMMIT_REQUEST_MAX_BYTES, CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import Entry, KeyValueStore, ObjectStore
from tracelake.storage.ports import check_path, encode_key
from tracelake.versions import model, protocol, tree
from tracelake.versions.branch_store import MAIN, BranchSnapshot, new_token, scope
from tracelake.versions.commits import Commits, Staging, busy, read_branch
from tracelake.versions.committer import BRANCH_ANSWERS_KEPT, COMMIT_PATIENCE_POLLS, Committer
from tracelake.versions.protocol import decide
from tracelake.versions.tree import CHANGES_INLINE_MAX, ContentStore, id_of

_REQUESTS_TOLD_MAX: Final = 10
"""Requests of a branch that an error names."""

_OF_TRANSACTIONS: Final = "transaction-"
"""Prefix of the request ids of transactions, which all replicas of a pipeline compute alike."""


class About(TypedDict, total=False):
    """Descriptive fields of a commit. `created_at` is ISO 8601 with a time zone."""

    message: str
    committer: str
    created_at: str
    metadata: Mapping[str, str]
    request_id: str
    """Idempotency key: a commit with this id is made once. Empty for a new commit."""


def make_request(operation: model.RequestKind, about: About, *, allow_empty: bool = False) -> model.Request:
    """Return a user's request. Raises UsageError for invalid fields, and LimitError for too much content."""
    request_id = about.get("request_id", "")
    if not isinstance(request_id, str) or request_id.startswith(_OF_TRANSACTIONS):
        raise _errors.UsageError(
            f"the id of a request must be a text that does not begin with {_OF_TRANSACTIONS!r}, which is "
            f"reserved for pipelines; {model.shown(request_id)} is not valid."
        )
    encode_key("the id of a request", request_id)
    metadata = about.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise _errors.UsageError(
            f"the metadata of a commit must map texts to texts; {model.shown(metadata)} does not."
        )
    for key in (model.TRANSACTION, model.AFTER):
        if key in metadata:
            raise _errors.UsageError(
                f"the metadata of a commit cannot have the key {key!r}, which pipelines set; rename it."
            )
    return _request(request_id, operation, about, allow_empty=allow_empty)


def transaction_request(transaction: int, operation: model.RequestKind, about: About) -> model.Request:
    """Return the request of a transaction; its id is the same in every replica.

    Its answer need not be recorded, because the history names its transactions.
    """
    metadata = {**about.get("metadata", {}), model.TRANSACTION: str(transaction)}
    request_id = f"{_OF_TRANSACTIONS}{transaction}"
    request = _request(request_id, operation, {**about, "metadata": metadata}, allow_empty=True)
    return replace(request, remembered=False)


def _request(
    request_id: str, operation: model.RequestKind, about: About, *, allow_empty: bool
) -> model.Request:
    request = model.Request(
        id=request_id or uuid.uuid4().hex,
        operation=operation,
        message=about.get("message", ""),
        committer=about.get("committer", ""),
        created_at=_time(about.get("created_at", "")),
        metadata=dict(about.get("metadata", {})),
        allow_empty=allow_empty,
        remembered=bool(request_id),
    )
    record = model.BranchRecord(sealed=(model.SealedRequest(request),))
    data = model.to_bytes(record)
    # The encoded request that helpers read must equal what the caller passed.
    if model.from_bytes(model.BranchRecord, data, "the commit") != record:
        raise _errors.UsageError(
            f"committer and message of a commit must be texts; {model.shown(about)} is something else."
        )
    if (size := len(data)) > COMMIT_REQUEST_MAX_BYTES:
        raise _errors.LimitError(
            f"the commit has {size} bytes of message, metadata and paths, more than COMMIT_REQUEST_MAX_BYTES = "
            f"{COMMIT_REQUEST_MAX_BYTES}; shorten them."
        )
    return request


def _time(created_at: str) -> str:
    """Return the commit's time, by default now. References such as `main@2026-01-01` compare it with others."""
    if not created_at:
        return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    try:
        is_moment = datetime.fromisoformat(created_at).tzinfo is not None
    except (TypeError, ValueError):
        is_moment = False
    if not is_moment:
        raise _errors.UsageError(
            f"a commit cannot have the time {model.shown(created_at)}: write it as 2026-01-01T00:00:00+00:00."
        )
    return created_at


def commit_of(branch: str, answer: model.Answer) -> str:
    """Return the commit of an answer. Raises the error that describes the refusal if the request was refused."""
    if answer.refusal:
        raise _refused(branch, answer)
    return answer.commit


def _refused(branch: str, answer: model.Answer) -> _errors.TracelakeError:
    detail = " ".join(answer.detail)
    if answer.refusal == protocol.Refusal.CONFLICT:
        return _errors.ConflictError(branch, answer.detail)
    if answer.refusal == protocol.Refusal.NOTHING:
        return _errors.NothingToCommitError(branch, answer.commit)
    if answer.refusal == protocol.Refusal.GONE:
        return _errors.RefNotFoundError(f"branch {branch} was deleted; nothing was committed.")
    others: dict[str, tuple[type[_errors.TracelakeError], str]] = {
        protocol.Refusal.EXPIRED: (
            _errors.ExpiredError,
            f"{detail} Garbage collection ran twice since it was written: write it again, then commit.",
        ),
        protocol.Refusal.UNREACHABLE: (_errors.RefNotFoundError, f"{detail} any more."),
        protocol.Refusal.DROPPED: (_errors.UsageError, f"the request was taken off the list: {detail}."),
    }
    kind, why = others.get(answer.refusal, (_errors.DamageError, detail))
    return kind(f"branch {branch}: nothing was committed: {why}")


class Repository(Commits):
    """Named, versioned references to tables, indexes and files. Threads and processes may share its stores."""

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        *,
        patience_polls: int = COMMIT_PATIENCE_POLLS,
        answers_retained: int = BRANCH_ANSWERS_KEPT,
    ) -> None:
        """Open a repository.

        Args:
            key_value: the store of branches and tags.
            objects: the store of commits.
            patience_polls: see `Committer`.
            answers_retained: see `Committer`.
        """
        super().__init__(key_value, ContentStore(objects))
        self._committer = Committer(
            self._records,
            self._contents,
            self.is_claimable,
            self.ancestry,
            patience_polls=patience_polls,
            answers_retained=answers_retained,
        )
        self._staging = Staging(self._records, self, self._contents)

    # Branches

    def branches(self) -> dict[str, model.BranchRecord]:
        """Return the record of each branch by name; `main` always exists."""
        return {MAIN: model.BranchRecord()} | {name: at.record for name, at in self._records.all().items()}

    def branch(self, name: str = MAIN) -> model.BranchRecord:
        """Return the record of a branch. Raises RefNotFoundError if it does not exist."""
        return read_branch(self._records, name).record

    def create_branch(self, name: str, commit_id: str, request_id: str = "") -> None:
        """Create a branch at a commit. Repeating the call with the same `request_id` accepts the branch that it
        created.

        Raises UsageError if the name is invalid or in use, and RefNotFoundError if the commit does not exist.
        """
        model.check_name(name, "branch")
        encode_key("the id of a request", request_id)
        made_by = f"-{model.content_id(request_id.encode())[:16]}" if request_id else ""
        if made_by and self._records.read(name).record.id.endswith(made_by):
            return
        self.commit(commit_id)
        if self._tagged(name) is not None:
            raise _errors.UsageError(f"{name!r} is a tag; choose another name for the branch.")
        record = model.BranchRecord(f"{uuid.uuid4().hex}{made_by}", commit_id, new_token())
        if not self._names.give(name, record, commit_id):
            raise _errors.UsageError(
                f"branch {name!r} already exists; choose another name, or delete it first."
            )

    def delete_branch(self, name: str, *, force: bool = False) -> None:
        """Delete a branch; its commits stay until garbage collection finds them unreachable.

        Raises UsageError for `main`, a protected branch, or, unless forced, one with staged entries.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, name)
            if name == MAIN:
                raise _errors.UsageError("branch main cannot be deleted: pipelines commit to it.")
            if at.record.protected:
                raise _errors.UsageError(
                    f"branch {name} is protected; run `tracelake branch protect --off {name}` first."
                )
            if at.record.sealed and not force:
                self._committer.finish(name, at)
                continue
            if not force and self._records.has_staged(at.record.staging):
                raise _errors.UsageError(
                    f"branch {name} has staged entries; commit or discard them, or force it."
                )
            if self._records.delete(name, at):
                for token in protocol.known_tokens(at.record):
                    self._records.unstage(token)
                self._records.withdraw_all(scope(name, at.record))
                return
        raise busy(name)

    def protect(self, name: str, *, on: bool = True) -> None:
        """Protect a branch, so that it accepts only merges, pipelines and table writers; or end the protection."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, name)
            record = replace(at.record, protected=on)
            if self._records.swap(name, at, record, is_mine=lambda there: there.protected is on)[0]:
                return
        raise busy(name)

    # Staged entries

    def epoch(self) -> int:
        """Return the current epoch of garbage collection. Call it before writing files, and put the epoch into their
        names.

        Files can be staged or committed safely in this and the next epoch. Later, files are copied when they are
        staged, or found missing.
        """
        return self._records.epoch().number

    def stage(self, entries: Mapping[str, model.Reference | None], branch: str = MAIN) -> None:
        """Stage entries on a branch for the next commit of staged entries; None stages a removal.

        Raises RefNotFoundError if the branch does not exist, UsageError for an invalid path, and ExpiredError if a
        file is gone because it was written two or more epochs ago.
        """
        self.refuse_protected(branch)
        self._staging.stage(branch, entries)

    def staged(self, branch: str = MAIN) -> model.PathChanges:
        """Return the staged, uncommitted entries of a branch in order of path, without damaged ones."""
        return tuple(self._staging.staged(branch)[0].items())

    def staged_or_damaged(
        self, branch: str = MAIN
    ) -> tuple[dict[str, model.Reference | None], dict[str, _errors.DamageError]]:
        """Return the staged, uncommitted entries of a branch, and the errors of damaged ones, each by path."""
        return self._staging.staged(branch)

    def discard(self, branch: str = MAIN, paths: Collection[str] = ()) -> int:
        """Discard staged entries of a branch, all or those at some paths; return their number.

        Raises NotFoundError if nothing is staged at one of the paths.
        """
        if not paths:
            return self._staging.discard(branch)
        at = read_branch(self._records, branch)
        if at.record.sealed:  # Killed committers' requests; uncommitted entries are staged again.
            self._committer.finish(branch, at)
        self._staging.discard_some(branch, set(paths))
        return len(set(paths))

    def uncommitted(
        self, branch: str = MAIN, start: str = "", stop: str | None = None
    ) -> dict[str, model.Reference]:
        """Return the entries of a branch including staged ones, by path, in order; start <= path < stop."""
        return self._staging.scan(branch, start, stop)

    def find_uncommitted(self, branch: str, paths: Sequence[str]) -> dict[str, model.Reference]:
        """Return the references at these paths on a branch, including staged ones; omit paths without one."""
        return self._staging.find(branch, paths)

    def keep_staged(self, branch: str, paths: Collection[str]) -> None:
        """Ensure that the entries staged at these paths are in the next commit, even if staging them was never
        acknowledged.

        Raises ExpiredError if a file has just disappeared.
        """
        self._staging.keep(branch, paths)

    # Commits

    def commit_staged(self, branch: str = MAIN, *, allow_empty: bool = False, **about: Unpack[About]) -> str:
        """Commit all staged entries of a branch; return the commit.

        Raises NothingToCommitError if they change nothing, unless `allow_empty`.
        """
        self.refuse_protected(branch)
        return self._submit(branch, model.Change(staged=True), about, allow_empty=allow_empty)

    def commit_entries(
        self, entries: Mapping[str, model.Reference | None], branch: str = MAIN, **about: Unpack[About]
    ) -> str:
        """Commit changes to these entries; return the commit's id.

        If the head already contains the changes, with each table at that time or later, return the head's id. Repeating
        the call after an unknown outcome is therefore safe.
        """
        try:
            return self._submit(branch, self._change_to(entries), about)
        except _errors.NothingToCommitError as nothing:
            return nothing.head

    def commit_transaction(
        self,
        transaction: int,
        entries: Mapping[str, model.Reference],
        branch: str = MAIN,
        **about: Unpack[About],
    ) -> str:
        """Commit a transaction on the branch, or find its commit; return its id.

        Repeated calls, also from several replicas, give one commit.
        """
        at, decision = self._read_and_decide(transaction, branch)
        if decision is protocol.CommitDecision.THERE:
            return self.commit_of(transaction, at.record.head)
        assert decision is protocol.CommitDecision.BUILD, (
            f"transaction {transaction} is ahead of branch {branch}"
        )
        request = transaction_request(transaction, self._change_to(entries), about)
        answer = self._committer.submit(branch, request, at)
        if answer.refusal in protocol.NOT_FOR_EVER:  # It may be old, and the object readable again.
            answer = self._committer.submit(branch, replace(request, id=f"{request.id}-{new_token()}"))
        if answer.refusal == protocol.Refusal.EXPIRED:
            at, decision = self._read_and_decide(transaction, branch)
            if decision is protocol.CommitDecision.THERE:  # Another replica's commit, which may have expired.
                return self.commit_of(transaction, at.record.head)
        return commit_of(branch, answer)

    def merge(self, source: str, branch: str = MAIN, *, prefer: str = "", **about: Unpack[About]) -> str:
        """Merge a commit into the branch: apply its changes since the merge base; return the merge commit.

        Args:
            source: the id of a commit.
            branch: the target.
            prefer: the side that wins if both changed an entry differently: `source` or `dest`; neither by default.
            about: descriptive fields of the commit.

        Raises ConflictError if both sides changed an entry differently and neither is preferred, and
        NothingToCommitError if the branch already contains the commit.
        """
        if not isinstance(prefer, str) or prefer not in ("", "source", "dest"):
            raise _errors.UsageError(f"a merge can prefer `source` or `dest`, not {model.shown(prefer)}.")
        return self._submit(branch, model.MergeRequest(source, prefer), about)

    def revert(self, commit_id: str, branch: str = MAIN, *, parent: int = 0, **about: Unpack[About]) -> str:
        """Make a commit that undoes a commit's changes against one of its parents; return its id.

        Raises ConflictError if an entry was changed differently since, and NothingToCommitError if everything is undone
        already.
        """
        self.refuse_protected(branch)
        self._check_parent(commit_id, parent)
        return self._submit(branch, model.Revert(commit_id, parent), about)

    def cherry_pick(
        self, commit_id: str, branch: str = MAIN, *, parent: int = 0, **about: Unpack[About]
    ) -> str:
        """Commit to the branch the changes that a commit made against one of its parents; return the new commit.

        Raises ConflictError if the branch changed one of the entries differently since that parent, and
        NothingToCommitError if the branch has all changes already.
        """
        self.refuse_protected(branch)
        self._check_parent(commit_id, parent)
        return self._submit(branch, model.CherryPick(commit_id, parent), about)

    def committed(self, request_id: str, branch: str = MAIN) -> str | None:
        """Return the commit of an earlier request with this id, or None. If the commit has begun, finish it first.

        Raises the error of a refused request, unless the request may be submitted again.
        """
        at = read_branch(self._records, branch)
        while protocol.state_of(at.record, request_id) is protocol.RequestState.SEALED:
            at = self._committer.finish(branch, at)
        answers = (answer for answer in at.record.done if answer.request == request_id)
        answer = next(answers, None) or self._records.answer(scope(branch, at.record), request_id)
        return (
            None if answer is None or answer.refusal in protocol.NOT_FOR_EVER else commit_of(branch, answer)
        )

    def drop_request(self, request_id: str, branch: str = MAIN, why: str = "by hand") -> None:
        """Cancel a pending commit request that cannot be built; its client receives `why`.

        The request's staged entries stay staged. Raises UsageError if the request is not pending.
        """
        carried: list[list[Entry]] = []
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, branch)
            ids = [item.request.id for item in at.record.sealed]
            if request_id not in ids:
                for entries in carried if protocol.took(at.record, request_id) else ():
                    self._records.take_away(entries)
                waiting = f"these wait: {', '.join(ids[:_REQUESTS_TOLD_MAX])}" if ids else "none waits there"
                raise _errors.UsageError(
                    f"branch {branch} has no request {model.shown(request_id)} on its list; {waiting}."
                )
            record = protocol.dropped(at.record, request_id, protocol.excerpt(str(why)))
            index = ids.index(request_id)
            if token := at.record.sealed[index].token:
                to = protocol.token_after(at.record, index + 1)
                carried.append(self._records.restage(token, to))
            if self._records.swap(
                branch,
                at,
                record,
                lambda there: protocol.state_of(there, request_id) is protocol.RequestState.DONE,
            )[0]:
                return
        raise busy(branch)

    def _submit(
        self, branch: str, operation: model.RequestKind, about: About, *, allow_empty: bool = False
    ) -> str:
        request = make_request(operation, about, allow_empty=allow_empty)
        return commit_of(branch, self._committer.submit(branch, request))

    def _change_to(self, entries: Mapping[str, model.Reference | None]) -> model.Change:
        """Return a change to these entries. Many entries are written as objects, which the change names."""
        for path in entries:
            check_path(path)
        changes = tree.latest(entries.items())
        if len(changes) <= CHANGES_INLINE_MAX:
            return model.Change(changes, forward=True)
        epoch = self.epoch()
        sets = [
            model.ChangeSet(changes[start : start + CHANGE_SET_ENTRIES_MAX], uuid.uuid4().hex, epoch)
            for start in range(0, len(changes), CHANGE_SET_ENTRIES_MAX)
        ]
        records = {id_of(changes): changes for changes in sets}
        self._contents.write(records)
        return model.Change(objects=tuple(records), forward=True)

    def _check_parent(self, commit_id: str, number: int) -> None:
        """Raise UsageError if a commit has no parent of this number. The first commit has an empty parent, number 0."""
        parents = self.commit(commit_id).parents
        count = max(1, len(parents))
        if type(number) is not int or not 0 <= number < count:
            raise _errors.UsageError(
                f"commit {commit_id[:12]} has no parent {model.shown(number)}; they count from 0 to {count - 1}."
            )
        self.check_readable(parents[number] if parents else "")

    def _read_and_decide(
        self, transaction: int, branch: str
    ) -> tuple[BranchSnapshot, protocol.CommitDecision]:
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = self._records.read(branch)
            try:
                while at.record.sealed and self._decide(transaction, at) is protocol.CommitDecision.TOO_EARLY:
                    at = self._committer.finish(branch, at)
                return at, self._decide(transaction, at)
            except _errors.CommitExpiredError:
                continue  # The head has moved since it was read, and the commit has expired.
        raise busy(branch)

    def _decide(self, transaction: int, at: BranchSnapshot) -> protocol.CommitDecision:
        head = at.record.head
        return decide(transaction, self.transaction_of(head) if head else None)

    def refuse_protected(self, branch: str) -> None:
        """Raise UsageError if a branch accepts no direct commits, and RefNotFoundError if it does not exist."""
        if read_branch(self._records, branch).record.protected:
            raise _errors.UsageError(
                f"branch {branch} is protected: it accepts only merges, pipelines and table writers. Commit "
                "to another branch and merge it."
            )
