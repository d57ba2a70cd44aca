"""Carries out commit requests: seal, build, cut, and help other committers (see `protocol`).

`build` makes the commits of sealed requests, one on top of the other. All input is immutable or in the branch record,
so every helper builds the same bytes and building twice is harmless. The only other writes are copies of files that
were staged in expired epochs; the copies are in the branch's epoch. A late writer can still add an entry under a sealed
token. Such an entry is not acknowledged to its writer, so the commit may omit it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tracelake._errors import DamageError, ExpiredError, IndeterminateError, NotFoundError, StorageError
from tracelake.limits.input import MIB
from tracelake.storage import Entry
from tracelake.tasks.backoff import backoff_s
from tracelake.versions import branch_store, model, protocol, tree
from tracelake.versions.expiry import Ancestry
from tracelake.versions.protocol import cut, decide, is_fresh, seal, split_answers
from tracelake.versions.tree import (
    CommitTree,
    Content,
    ContentStore,
    ContentT,
    ReadCommit,
    Tree,
    file_path,
    id_of,
    their_changes,
)

_COMMIT_POLL_FIRST_S: Final = 0.0005
"""First pause of a committer whose request another committer builds."""
_COMMIT_POLL_MAX_S: Final = 0.05
"""Longest of these pauses if a poll is quick."""
_COMMIT_POLL_CROWDED_MAX_S: Final = 0.25
"""Longest pause on a crowded store; it is the duration of a poll times the number of commits being built."""
COMMIT_PATIENCE_POLLS: Final = 24
"""Polls without progress, about a second in all, some seconds on a crowded store."""
_BRANCH_SEALED_MAX_BYTES: Final = 2 * MIB
"""Record of a branch."""
BRANCH_ANSWERS_KEPT: Final = 32
"""Minimum number of answers that stay in a branch record."""

LayersOf = Callable[[str], branch_store.Staged]
"""Function that returns the entries staged under a token, in order of path, each with its layers."""
AncestryOf = Callable[[ReadCommit], Ancestry]
"""Function that returns the commits for a walk, given a function that reads commits."""
Reaches = Callable[[str], bool]
"""Function that returns whether a branch or tag leads to a commit."""


@dataclass(frozen=True, slots=True)
class Built:
    """Result of building requests: objects to write, then the head and the answers to publish.

    A refused request that commits staged entries ends the sweep, so there may be fewer answers than requests. Its
    staged entries must move to the next token before the next request is built.
    """

    head: str
    answers: tuple[model.Answer, ...]
    carried: str
    """The token of the refused request that ended the sweep; otherwise empty."""
    records: dict[str, Content]
    epoch: int
    """Epoch of the oldest object that these commits name for the first time."""


class _RequestRefusedError(Exception):
    """Raised if a request is refused."""

    def __init__(self, why: protocol.Refusal, detail: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _BuiltCommit:
    """The changes of a request against the head, and further parents of its commit."""

    changes: model.PathChanges
    parents: tuple[str, ...] = ()


def build(
    branch: model.BranchRecord,
    contents: ContentStore,
    staged: LayersOf,
    reaches: Reaches,
    ancestry: AncestryOf,
) -> Built:
    """Build the commits of all sealed requests on top of the head."""
    return _Building(branch, contents, staged, reaches, ancestry).run()


class _Building:
    def __init__(
        self,
        branch: model.BranchRecord,
        contents: ContentStore,
        staged: LayersOf,
        reaches: Reaches,
        ancestry: AncestryOf,
    ) -> None:
        self._branch = branch
        self._contents = contents
        self._staged = staged
        self._reaches = reaches
        self._ancestry = ancestry
        self._records: dict[str, Content] = {}
        self._epoch = branch.epoch
        self._tree = Tree(self._read)
        self._head = branch.head
        self._view = self._tree.view(branch.head)
        """The entries of the head."""

    def run(self) -> Built:
        sealed = self._branch.sealed
        answers: list[model.Answer] = []
        carried = ""
        for each in sealed:
            answers.append(answer := self._answer(each, is_last=each is sealed[-1]))
            if answer.token and answer.refusal in protocol.NOT_FOR_EVER:
                carried = answer.token
                break
        return Built(self._head, tuple(answers), carried, self._records, self._epoch)

    def _answer(self, sealed: model.SealedRequest, *, is_last: bool) -> model.Answer:
        """Build the commit of one request, and return the answer. An error in the request becomes its answer, so that
        later requests proceed."""
        answer = model.Answer(sealed.request.id, token=sealed.token, remembered=sealed.request.remembered)
        try:
            return self._built(sealed, answer, is_last=is_last)
        except (StorageError, OSError, MemoryError):
            raise  # A failure of the store or of this machine, not of the request: retried.
        except _RequestRefusedError as refused:
            why, detail = refused.why, refused.detail
        except DamageError as error:
            why, detail = protocol.Refusal.DAMAGED, (protocol.excerpt(str(error)),)
        except Exception as error:  # noqa: BLE001  otherwise every helper fails, and no commit succeeds any more
            why, detail = protocol.Refusal.FAILED, (protocol.excerpt(f"{type(error).__name__}: {error}"),)
        return replace(answer, commit=self._head, refusal=why, detail=detail)

    def _built(self, sealed: model.SealedRequest, answer: model.Answer, *, is_last: bool) -> model.Answer:
        transaction = protocol.transaction_of(sealed.request)
        if transaction is not None:
            decision = decide(transaction, tree.newest_transaction(self._head, self._commit))
            if decision is protocol.CommitDecision.THERE:
                return replace(answer, commit=self._commit_of(transaction))
            assert decision is protocol.CommitDecision.BUILD, (
                f"transaction {transaction} was sealed ahead of its time"
            )
        self._head, self._view = self._add(sealed.request, self._make(sealed), is_last=is_last)
        return replace(answer, commit=self._head)

    def _commit_of(self, transaction: int) -> str:
        try:
            return self._ancestry(self._commit).commit_of(transaction, self._head)
        except ExpiredError as error:
            raise _RequestRefusedError(protocol.Refusal.EXPIRED, (str(error),)) from error

    def _make(self, sealed: model.SealedRequest) -> _BuiltCommit:
        operation = sealed.request.operation
        built = (
            self._change(operation, sealed.token)
            if isinstance(operation, model.Change)
            else self._of_commits(operation)
        )
        if not built.changes and not built.parents and not sealed.request.allow_empty:
            raise _RequestRefusedError(protocol.Refusal.NOTHING)
        return built

    def _change(self, change: model.Change, token: str) -> _BuiltCommit:
        try:
            sets = [self._read(model.ChangeSet, object_id) for object_id in change.objects]
        except DamageError as error:
            if isinstance(error.__cause__, NotFoundError):
                raise _RequestRefusedError(
                    protocol.Refusal.EXPIRED, (protocol.excerpt(str(error)),)
                ) from error
            raise
        listed = [entry for listed_in in sets for entry in listed_in.entries]
        staged = dict(self._staged(token) if token else ())
        newest = ((path, layers[0]) for path, layers in staged.items())
        changes = tree.latest((*newest, *listed, *change.entries))
        there = self._find([path for path, _ in changes])
        fresh = self._fresh(protocol.effective(change, changes, there), staged)
        return _BuiltCommit(protocol.effective(change, fresh, there))

    def _fresh(
        self, changes: model.PathChanges, staged: Mapping[str, branch_store.Layers]
    ) -> model.PathChanges:
        """Return changes whose files may be published: files from expired epochs are copied into the current one.

        If a staged file is gone, its entry was never acknowledged, and the layer below applies. Any other request
        whose file is gone is refused.
        """
        epoch = self._branch.epoch
        for _, reference in changes:
            if isinstance(reference, model.IndexAt) and not is_fresh(reference, epoch):
                raise _RequestRefusedError(
                    protocol.Refusal.EXPIRED, (f"{reference.manifest} may have been collected.",)
                )
        waiting = {path: (reference, *staged.get(path, ())[1:]) for path, reference in changes}
        fresh: dict[str, model.Reference | None] = {}
        while waiting:
            tops = [layers[0] for layers in waiting.values()]
            old = [
                reference
                for reference in tops
                if isinstance(reference, model.FileAt) and not is_fresh(reference, epoch)
            ]
            renewed = self._contents.renew(old, epoch)
            below: dict[str, branch_store.Layers] = {}
            for path, (reference, *earlier) in waiting.items():
                standing = reference
                if isinstance(reference, model.FileAt) and not is_fresh(reference, epoch):
                    standing = renewed.get(file_path(reference))
                    if standing is None and path not in staged:
                        raise _RequestRefusedError(
                            protocol.Refusal.EXPIRED, (f"{file_path(reference)} is gone.",)
                        )
                    if standing is None:
                        below |= {path: tuple(earlier)} if earlier else {}
                        continue
                if isinstance(standing, model.FileAt):
                    self._epoch = min(self._epoch, standing.epoch)
                fresh[path] = standing
            waiting = below
        return tuple(sorted(fresh.items(), key=lambda change: change[0]))

    def _of_commits(self, operation: model.MergeRequest | model.CherryPick | model.Revert) -> _BuiltCommit:
        self._commit(operation.commit)
        if not self._reaches(operation.commit):  # Its objects may be collected at any moment.
            raise _RequestRefusedError(
                protocol.Refusal.UNREACHABLE, (f"no branch or tag reaches {operation.commit[:12]}",)
            )
        if isinstance(operation, model.MergeRequest):
            return self._merge(operation)
        sides = self._parent(operation.commit, operation.parent), operation.commit
        before, after = sides if isinstance(operation, model.CherryPick) else sides[::-1]
        read = self._ancestry(self._commit).commit
        return _BuiltCommit(self._onto_head(their_changes((before,), after, self._tree, read)))

    def _merge(self, merge: model.MergeRequest) -> _BuiltCommit:
        read = self._ancestry(self._commit).commit
        bases = tree.merge_bases((self._head,), (merge.commit,), read)
        if merge.commit in bases:
            raise _RequestRefusedError(protocol.Refusal.NOTHING)
        changes = their_changes(bases, merge.commit, self._tree, read)
        return _BuiltCommit(self._onto_head(changes, merge.prefer), (merge.commit,))

    def _parent(self, commit_id: str, number: int) -> str:
        parents = self._commit(commit_id).parents
        if not parents and number == 0:
            return ""
        if not 0 <= number < len(parents):
            raise _RequestRefusedError(
                protocol.Refusal.DAMAGED, (f"commit {commit_id[:12]} has no parent {number}",)
            )
        if self._ancestry(self._commit).nearest(parents[number]) != parents[number]:
            raise _RequestRefusedError(
                protocol.Refusal.UNREACHABLE,
                (f"the commit before {commit_id[:12]} has expired, so its change cannot be read",),
            )
        return parents[number]

    def _onto_head(self, theirs: list[protocol.Theirs], prefer: str = "") -> model.PathChanges:
        """Return the changes of the other side that apply to the head."""
        changes, conflicts = protocol.merged(theirs, self._find([path for path, _, _ in theirs]), prefer)
        if conflicts:
            raise _RequestRefusedError(
                protocol.Refusal.CONFLICT, protocol.fit_texts(conflict.path for conflict in conflicts)
            )
        return changes

    def _add(self, request: model.Request, built: _BuiltCommit, *, is_last: bool) -> tuple[str, CommitTree]:
        """Build the commit and its objects; return the id and the tree."""
        parents = (self._head, *built.parents) if self._head else built.parents
        has_metarange = is_last or self._view.needs_metarange(built.changes)
        metarange = self._metarange(built.changes) if has_metarange else ""
        view = (
            CommitTree(self._read(model.Metarange, metarange).ranges)
            if has_metarange
            else self._view.then(built.changes)
        )
        last = tree.newest_transaction(self._head, self._commit)
        is_other = protocol.transaction_of(request) is None and last >= 0
        commit_id = self._keep(
            model.Commit(
                parents=parents,
                metarange=metarange,
                message=request.message,
                committer=request.committer,
                created_at=request.created_at,
                metadata={**request.metadata, **({model.AFTER: str(last)} if is_other else {})},
                request=request.id,
                changes=None if has_metarange else built.changes,
                epoch=self._branch.epoch,
                generation=max((self._commit(parent).generation + 1 for parent in parents), default=0),
            )
        )
        return commit_id, view

    def _metarange(self, changes: model.PathChanges) -> str:
        """Return the id of a metarange with the head's entries after these changes; add its objects to those to
        write."""
        if not changes and not self._view.commits and self._head:
            return self._commit(self._head).metarange
        refs, new = self._tree.changed(self._view, changes, self._branch.epoch)
        for new_range in new:
            self._keep(new_range)
        return self._keep(model.Metarange(refs, self._branch.epoch))

    def _keep(self, record: Content) -> str:
        record_id = id_of(record)
        self._records[record_id] = record
        return record_id

    def _find(self, paths: Sequence[str]) -> dict[str, model.Reference]:
        return self._tree.find(self._view, paths)

    def _commit(self, commit_id: str) -> model.Commit:
        return self._read(model.Commit, commit_id)

    def _read(self, kind: type[ContentT], record_id: str) -> ContentT:
        record = self._records.get(record_id)
        return record if isinstance(record, kind) else self._contents.read(kind, record_id)


class Committer:
    """Commits requests to branches. Holds no lock that another process would have to wait for."""

    def __init__(
        self,
        records: branch_store.BranchRecords,
        contents: ContentStore,
        reaches: Reaches,
        ancestry: AncestryOf,
        *,
        patience_polls: int = COMMIT_PATIENCE_POLLS,
        answers_retained: int = BRANCH_ANSWERS_KEPT,
    ) -> None:
        """Use these stores.

        Args:
            records: the branch records.
            contents: the objects of commits.
            reaches: announces a claim of a commit, then returns whether a branch or tag reaches it.
            ancestry: returns the commits for a walk, which skips expired ones.
            patience_polls: polls for another committer to build the sealed requests, before this one helps.
            answers_retained: answers that the branch record keeps at least.
        """
        self._records = records
        self._contents = contents
        self._reaches = reaches
        self._ancestry = ancestry
        self._patience_polls = patience_polls
        self._branch_reader = branch_store.BranchReader(records)
        self._look_s = 0.0
        """Moving average of the time that a read of the branch takes."""
        self._sealing = threading.Lock()
        self._answers_retained = answers_retained

    def submit(
        self, branch: str, request: model.Request, at: branch_store.BranchSnapshot | None = None
    ) -> model.Answer:
        """Commit a request, or find that another committer has; return the answer."""
        with self._branch_reader.joined():
            return self._carry_out(branch, request, at)

    def _carry_out(
        self, branch: str, request: model.Request, at: branch_store.BranchSnapshot | None
    ) -> model.Answer:
        at = at or self._branch_reader.queue(branch)
        here = branch_store.scope(branch, at.record)
        submission = protocol.Submission(request.id, here, since=at.record.head)
        has_sought = False
        try:
            while True:
                submission = submission.after_read(at.record)
                act = protocol.next_act(
                    submission,
                    at.record,
                    branch_store.scope(branch, at.record),
                    is_there=not at.is_absent or branch == branch_store.MAIN,
                    has_sought=has_sought,
                    patience_polls=self._patience_polls,
                )
                has_sought = isinstance(act, protocol.Seek)
                match act:
                    case protocol.Return(answer):
                        return answer
                    case protocol.Leave():
                        self._records.withdraw(here, [request.id])  # It may be later than the deletion.
                        return model.Answer(request.id, refusal=protocol.Refusal.GONE)
                    case protocol.Miss():
                        raise _lost(branch, request)
                    case protocol.Seek():
                        answered = self._find_answer(
                            branch, at, request, submission.since if submission.is_visible else None
                        )
                        if answered is not None:
                            return answered
                        submission = submission.after_search(at.record)
                    case protocol.Wait(looks):
                        head = at.record.head
                        looked, at = self._wait(branch, at, submission.looks, looks)
                        submission = submission.waited(looked, head_moved=at.record.head != head)
                    case protocol.Build():
                        at = self.finish(branch, at)
                    case protocol.PutOnList():
                        was_sealed, at = self._seal(branch, at, request, is_announced=submission.is_announced)
                        if not was_sealed and not submission.is_announced:
                            submission = submission.announced()
                            self._records.announce(here, model.Announcement(request, submission.since))
                        submission = submission.put_on_list(was_sealed=was_sealed)
        except BaseException as error:
            self._end_in_error(branch, request, submission, error)
            raise

    def _end_in_error(
        self, branch: str, request: model.Request, submission: protocol.Submission, error: BaseException
    ) -> None:
        """Handle an error of `submit`: withdraw the announcement, and raise IndeterminateError if a helper may still
        commit the request."""
        if submission.is_announced:
            self._records.withdraw(submission.scope, [request.id])
        if isinstance(error, StorageError) and may_be_committed(submission, error):
            raise _unknown(branch, request, error) from error

    def finish(self, branch: str, at: branch_store.BranchSnapshot) -> branch_store.BranchSnapshot:
        """Build the sealed requests and publish them, or find that another committer has; return the branch
        afterwards.

        The write that removes the built requests from the list also seals the announced ones.
        """
        try:
            built = build(
                protocol.sweep(at.record), self._contents, self._records.layers, self._reaches, self._ancestry
            )
        except DamageError:
            now = self._branch_reader.read(branch)
            if now.record.head == at.record.head:
                raise
            return now  # Another helper was faster, and the head that this one read has expired since.
        self._contents.write(built.records)
        count = len(built.answers)
        began = replace(at.record, sealed=at.record.sealed[:count])
        stay, leave = split_answers(began.done, built.answers, self._answers_retained)
        self._let_go(branch_store.scope(branch, began), leave)
        carried: list[list[Entry]] = []
        while (record := cut(at.record, replace(began, epoch=built.epoch), built.head, stay)) is not None:
            if built.carried:
                to = protocol.token_after(at.record, count)
                carried.append(self._records.restage(built.carried, to))
            announced, stale = self._announced(branch, at)
            record = self._with(record, announced, at_least=0)
            published, at = self._records.swap(
                branch,
                at,
                record,
                is_mine=lambda there: (
                    protocol.state_of(there, built.answers[0].request) is protocol.RequestState.DONE
                ),
            )
            if published:
                self._branch_reader.wake(branch)
                self._forget(branch, stale, announced, at.record)
                # Not earlier, because readers of staged entries trust that a token in the record is complete.
                for answer in leave:
                    self._records.unstage(answer.token)
                break  # If the swap failed, more requests were sealed; the built commits stay valid.
        if protocol.took(at.record, built.answers[-1].request):  # Another helper did, and saw more entries.
            for entries in carried:
                self._records.take_away(entries)
        return at

    def _seal(
        self, branch: str, at: branch_store.BranchSnapshot, request: model.Request, *, is_announced: bool
    ) -> tuple[bool, branch_store.BranchSnapshot]:
        """Write a record that seals a request and all announced ones; return whether it was stored, and the current
        branch."""
        if at.record.sealed and not is_announced:
            return False, at  # Another committer builds; its cut seals announced requests without a race.
        if not is_announced:
            return self._seal_now(branch, at, request)
        with self._sealing:  # One of the waiting threads seals the requests of all.
            now = self._branch_reader.read(branch)
            return self._seal_now(branch, at, request) if now.version == at.version else (False, now)

    def _seal_now(
        self, branch: str, at: branch_store.BranchSnapshot, request: model.Request
    ) -> tuple[bool, branch_store.BranchSnapshot]:
        announced, stale = self._announced(branch, at)
        waiting = [request, *(other for other in announced if other.id != request.id)]
        record = self._with(at.record, waiting)
        if len(model.to_bytes(record)) > _BRANCH_SEALED_MAX_BYTES and at.record.sealed:
            return False, self.finish(branch, at)
        sealed, now = self._records.swap(
            branch,
            at,
            record,
            is_mine=lambda there: protocol.state_of(there, request.id) is not protocol.RequestState.UNKNOWN,
        )
        if sealed:
            self._branch_reader.wake(branch)
            self._forget(branch, stale, announced, now.record)
        return sealed, now

    def _with(
        self, before: model.BranchRecord, waiting: list[model.Request], at_least: int = 1
    ) -> model.BranchRecord:
        """Return a record with as many requests sealed as fit, but at least the first `at_least`."""
        token = branch_store.new_token()
        # Read after the branch: a process that begins an epoch later finds the record and changes it.
        epoch = self._records.epoch().number if before.epoch == model.EPOCH_UNSET else before.epoch
        record = seal(before, waiting, token, epoch)
        while len(model.to_bytes(record)) > _BRANCH_SEALED_MAX_BYTES and len(waiting) > at_least:
            waiting = waiting[: len(waiting) // 2]
            record = seal(before, waiting, token, epoch)
        return record

    def _forget(
        self, branch: str, stale: list[str], announced: list[model.Request], record: model.BranchRecord
    ) -> None:
        """Delete announcements that the current record makes unnecessary."""
        in_record = protocol.requests_in(record)
        over = [*stale, *(request.id for request in announced if request.id in in_record)]
        if over:
            self._records.withdraw(branch_store.scope(branch, record), over)

    def _announced(
        self, branch: str, at: branch_store.BranchSnapshot
    ) -> tuple[list[model.Request], list[str]]:
        """Return the announced requests to seal, and the ids of stale announcements.

        An announcement is stale if its committer was killed, if a committer that was killed sealed the request, or if
        it was written after the request was answered.
        """
        in_record = protocol.requests_in(at.record)
        wanted: list[model.Request] = []
        stale: list[str] = []
        for announcement in self._records.announced(branch_store.scope(branch, at.record)):
            other = announcement.request
            try:
                is_wanted = (
                    other.id not in in_record
                    and self._answered(branch, at, other, announcement.since) is None
                )
            except DamageError:
                continue  # Its committer gets the error; the other requests proceed.
            (wanted.append(other) if is_wanted else stale.append(other.id))
        return wanted, stale

    def _find_answer(
        self, branch: str, at: branch_store.BranchSnapshot, request: model.Request, since: str | None
    ) -> model.Answer | None:
        """Return the answer to our own request. Without `since`, the request was not yet submitted by this call, so
        only an earlier call can have left an answer."""
        if since is not None:
            return self._answered(branch, at, request, since)
        return (
            self._records.answer(branch_store.scope(branch, at.record), request.id)
            if request.remembered
            else None
        )

    def _answered(
        self, branch: str, at: branch_store.BranchSnapshot, request: model.Request, since: str
    ) -> model.Answer | None:
        """Return the answer to a request that was in the record and has left it.

        A commit after `since` with the request's id is the answer. Refusals, and answers to requests that may be
        repeated, are recorded before they leave the record, and are looked up after the branch was read. The lookup
        is skipped if the record still holds all answers after `since`. Otherwise N sealing committers would look up N
        requests each.
        """
        head, answers = at.record.head, at.record.done
        is_covered = any(answer.commit == since and not answer.refusal for answer in answers)
        if is_covered or (since == head and not answers):
            return None
        if since != head:
            ancestry = self._ancestry(self._commit)
            for commit_id, commit in tree.log(head, ancestry.commit):
                if commit_id == since:
                    break
                if commit.request == request.id:
                    return model.Answer(request.id, commit_id)
            else:
                # The branch was deleted and created again, unless `since` has expired.
                if since and not ancestry.may_be_expired(since):
                    return model.Answer(request.id, refusal=protocol.Refusal.GONE)
        return self._records.answer(branch_store.scope(branch, at.record), request.id)

    def _let_go(self, here: str, leave: tuple[model.Answer, ...]) -> None:
        """Record the answers that leave the branch record, if the history does not contain them or a repeated request
        may look them up."""
        for answer in leave:
            if answer.refusal or answer.remembered:
                self._records.record_answer(here, answer)

    def _wait(
        self, branch: str, at: branch_store.BranchSnapshot, looks: int, most: int
    ) -> tuple[int, branch_store.BranchSnapshot]:
        """Poll with growing pauses until the record changes, at most `most` times; return the number of polls and the
        branch.

        If a read is slow, because the store is far or has many readers, the pauses grow with it. All waiting committers
        together then read about once per duration of a read, and leave the store to the builder.
        """
        now = at
        for looked in range(1, most + 1):
            crowded_s = min(_COMMIT_POLL_CROWDED_MAX_S, self._look_s * len(at.record.sealed))
            pause_s = backoff_s(_COMMIT_POLL_FIRST_S, looks + looked, _COMMIT_POLL_MAX_S)
            self._branch_reader.pause(branch, max(pause_s, crowded_s))
            began_s = time.monotonic()
            now = self._branch_reader.read(branch)
            self._look_s += (time.monotonic() - began_s - self._look_s) / 4
            if now.version != at.version:
                return looked, now
        return most, now

    def _commit(self, commit_id: str) -> model.Commit:
        return self._contents.read(model.Commit, commit_id)


def may_be_committed(submission: protocol.Submission, error: StorageError) -> bool:
    """Return whether a request may be committed although the call fails, because helpers finish listed requests."""
    if isinstance(error, ExpiredError):
        return False  # The request was sealed, and has been refused since.
    return submission.is_visible or isinstance(error, IndeterminateError)


def _lost(branch: str, request: model.Request) -> ExpiredError:
    return ExpiredError(
        f"branch {branch}: request {request.id} was sealed, but has neither a commit nor an answer. If this "
        "process was paused during two garbage collections, the request was refused: submit it again. "
        "Otherwise, restore the metadata from a backup."
    )


def _unknown(branch: str, request: model.Request, error: StorageError) -> IndeterminateError:
    """Return the error for a request with an unknown outcome, which the caller must query."""
    again = (
        f"Submit it again with the same request id, {request.id} (`--request-id`, `request_id=`, or the "
        "header Idempotency-Key): that returns the commit or creates it, but never twice. A request without "
        "this id may commit twice."
        if request.remembered
        else "Run it again: it finds the commit or creates it."
    )
    return IndeterminateError(
        f"branch {branch}: it is unknown whether the commit was created, because the store failed after it "
        f"had begun ({error}). {again}"
    )
