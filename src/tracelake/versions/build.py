"""Builds the commits of sealed requests, one on top of the other.

Everything that goes in is in the record of the branch or immutable, so that any helper builds the same bytes: to
build twice is harmless. Nothing is written here but files that were staged long ago, again, in the epoch of the branch.
(What is staged under a token that is sealed can still grow by an entry whose writer was late; it is not acknowledged
then, and may be in the commit or not.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError, StorageError
from tracelake.versions import history, ranges
from tracelake.versions.entries import Layers, Staged
from tracelake.versions.merging import their_changes
from tracelake.versions.model import (
    AFTER,
    Answer,
    BranchRecord,
    Change,
    ChangeSet,
    CherryPick,
    Commit,
    FileAt,
    IndexAt,
    MergeRequest,
    Metarange,
    PathChanges,
    Reference,
    Request,
    Revert,
    SealedRequest,
)
from tracelake.versions.objects import Content, Contents, ContentT, file_path, id_of
from tracelake.versions.protocol import (
    NOT_FOR_EVER,
    CommitDecision,
    Refusal,
    Theirs,
    decide,
    effective,
    excerpt,
    is_fresh,
    merged,
    told,
    transaction_of,
)
from tracelake.versions.tree import CommitTree, Tree

LayersOf = Callable[[str], Staged]
"""Returns what is staged under a token, in order of path, each with what it stands on."""
Reaches = Callable[[str], bool]
"""Tells whether a branch or tag leads to a commit."""


@dataclass(frozen=True, slots=True)
class Built:
    """What became of a list of requests: objects to write, then the head and the answers to publish.

    There are fewer answers than requests where one that takes what is staged was refused: it ends the sweep, so that
    what was staged can go to the token after it, before the next one is built.
    """

    head: str
    answers: tuple[Answer, ...]
    carried: str
    """The token of such a request; empty where there is none."""
    records: dict[str, Content]
    epoch: int
    """In which the oldest of what it names for the first time was written."""


class _RequestRefusedError(Exception):
    """A request gets no commit."""

    def __init__(self, why: Refusal, detail: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _BuiltCommit:
    """What a request comes to: changes of the head, and further parents."""

    changes: PathChanges
    parents: tuple[str, ...] = ()


def build(branch: BranchRecord, contents: Contents, staged: LayersOf, reaches: Reaches) -> Built:
    """Build the commits of all sealed requests on top of the head."""
    return _Building(branch, contents, staged, reaches).run()


class _Building:
    def __init__(self, branch: BranchRecord, contents: Contents, staged: LayersOf, reaches: Reaches) -> None:
        self._branch = branch
        self._contents = contents
        self._staged = staged
        self._reaches = reaches
        self._records: dict[str, Content] = {}
        self._epoch = branch.epoch
        self._tree = Tree(self._read)
        self._head = branch.head
        self._view = self._tree.view(branch.head)
        """What the head names."""

    def run(self) -> Built:
        sealed = self._branch.sealed
        answers: list[Answer] = []
        carried = ""
        for each in sealed:
            answers.append(answer := self._answer(each, is_last=each is sealed[-1]))
            if answer.token and answer.refusal in NOT_FOR_EVER:
                carried = answer.token
                break
        return Built(self._head, tuple(answers), carried, self._records, self._epoch)

    def _answer(self, sealed: SealedRequest, *, is_last: bool) -> Answer:
        """Build one request. Whatever is wrong with it is its answer: those behind it go on."""
        answer = Answer(sealed.request.id, token=sealed.token, remembered=sealed.request.remembered)
        try:
            return self._built(sealed, answer, is_last=is_last)
        except (StorageError, OSError, MemoryError):
            raise  # of the store or this machine, and not of the request: to be tried again
        except _RequestRefusedError as refused:
            why, detail = refused.why, refused.detail
        except DamageError as error:
            why, detail = Refusal.DAMAGED, (excerpt(str(error)),)
        except Exception as error:  # noqa: BLE001  else it is raised in every helper, and nobody commits any more
            why, detail = Refusal.FAILED, (excerpt(f"{type(error).__name__}: {error}"),)
        return replace(answer, commit=self._head, refusal=why, detail=detail)

    def _built(self, sealed: SealedRequest, answer: Answer, *, is_last: bool) -> Answer:
        transaction = transaction_of(sealed.request)
        if transaction is not None:
            decision = decide(transaction, history.newest_transaction(self._head, self._commit))
            if decision is CommitDecision.THERE:
                there = history.commit_of(transaction, self._head, self._commit)
                return replace(answer, commit=there)
            assert decision is CommitDecision.BUILD, f"transaction {transaction} was sealed ahead of its time"
        self._head, self._view = self._add(sealed.request, self._make(sealed), is_last=is_last)
        return replace(answer, commit=self._head)

    def _make(self, sealed: SealedRequest) -> _BuiltCommit:
        operation = sealed.request.operation
        built = (
            self._change(operation, sealed.token)
            if isinstance(operation, Change)
            else self._of_commits(operation)
        )
        if not built.changes and not built.parents and not sealed.request.allow_empty:
            raise _RequestRefusedError(Refusal.NOTHING)
        return built

    def _change(self, change: Change, token: str) -> _BuiltCommit:
        try:
            sets = [self._read(ChangeSet, object_id) for object_id in change.objects]
        except DamageError as error:
            if isinstance(error.__cause__, NotFoundError):
                raise _RequestRefusedError(Refusal.EXPIRED, (excerpt(str(error)),)) from error
            raise
        listed = [entry for listed_in in sets for entry in listed_in.entries]
        staged = dict(self._staged(token) if token else ())
        newest = ((path, layers[0]) for path, layers in staged.items())
        changes = ranges.latest((*newest, *listed, *change.entries))
        there = self._named([path for path, _ in changes])
        fresh = self._fresh(effective(change, changes, there), staged)
        return _BuiltCommit(effective(change, fresh, there))

    def _fresh(self, changes: PathChanges, staged: Mapping[str, Layers]) -> PathChanges:
        """Return changes with files that may be published: what was written too long ago is written again.

        Where a file is gone, its entry was never acknowledged: what it stands on counts, else the request is refused.
        """
        epoch = self._branch.epoch
        for _, reference in changes:
            if isinstance(reference, IndexAt) and not is_fresh(reference, epoch):
                raise _RequestRefusedError(
                    Refusal.EXPIRED, (f"{reference.manifest} may have been collected.",)
                )
        waiting = {path: (reference, *staged.get(path, ())[1:]) for path, reference in changes}
        fresh: dict[str, Reference | None] = {}
        while waiting:
            tops = [layers[0] for layers in waiting.values()]
            old = [
                reference
                for reference in tops
                if isinstance(reference, FileAt) and not is_fresh(reference, epoch)
            ]
            renewed = self._contents.renew(old, epoch)
            below: dict[str, Layers] = {}
            for path, (reference, *earlier) in waiting.items():
                standing = reference
                if isinstance(reference, FileAt) and not is_fresh(reference, epoch):
                    standing = renewed.get(file_path(reference))
                    if standing is None and path not in staged:
                        raise _RequestRefusedError(Refusal.EXPIRED, (f"{file_path(reference)} is gone.",))
                    if standing is None:
                        below |= {path: tuple(earlier)} if earlier else {}
                        continue
                if isinstance(standing, FileAt):
                    self._epoch = min(self._epoch, standing.epoch)
                fresh[path] = standing
            waiting = below
        return tuple(sorted(fresh.items(), key=lambda change: change[0]))

    def _of_commits(self, operation: MergeRequest | CherryPick | Revert) -> _BuiltCommit:
        self._commit(operation.commit)
        if not self._reaches(operation.commit):  # else what it names may be collected at any moment
            raise _RequestRefusedError(
                Refusal.UNREACHABLE, (f"no branch or tag leads to {operation.commit[:12]}",)
            )
        if isinstance(operation, MergeRequest):
            return self._merge(operation)
        sides = self._parent(operation.commit, operation.parent), operation.commit
        before, after = sides if isinstance(operation, CherryPick) else sides[::-1]
        return _BuiltCommit(self._onto_head(their_changes((before,), after, self._tree, self._commit)))

    def _merge(self, merge: MergeRequest) -> _BuiltCommit:
        bases = history.merge_bases((self._head,), (merge.commit,), self._commit)
        if merge.commit in bases:
            raise _RequestRefusedError(Refusal.NOTHING)
        changes = their_changes(bases, merge.commit, self._tree, self._commit)
        return _BuiltCommit(self._onto_head(changes, merge.prefer), (merge.commit,))

    def _parent(self, commit_id: str, number: int) -> str:
        parents = self._commit(commit_id).parents
        if not parents and number == 0:
            return ""
        if not 0 <= number < len(parents):
            raise _RequestRefusedError(Refusal.DAMAGED, (f"commit {commit_id[:12]} has no parent {number}",))
        return parents[number]

    def _onto_head(self, theirs: list[Theirs], prefer: str = "") -> PathChanges:
        """Return those changes of another side that apply to the head."""
        changes, conflicts = merged(theirs, self._named([path for path, _, _ in theirs]), prefer)
        if conflicts:
            raise _RequestRefusedError(Refusal.CONFLICT, told(conflict.path for conflict in conflicts))
        return changes

    def _add(self, request: Request, built: _BuiltCommit, *, is_last: bool) -> tuple[str, CommitTree]:
        """Return the commit, and what it names."""
        parents = (self._head, *built.parents) if self._head else built.parents
        is_whole = is_last or self._view.needs_metarange(built.changes)
        metarange = self._metarange(built.changes) if is_whole else ""
        view = (
            CommitTree(self._read(Metarange, metarange).ranges)
            if is_whole
            else self._view.then(built.changes)
        )
        last = history.newest_transaction(self._head, self._commit)
        is_other = transaction_of(request) is None and last >= 0
        commit_id = self._keep(
            Commit(
                parents=parents,
                metarange=metarange,
                message=request.message,
                committer=request.committer,
                created_at=request.created_at,
                metadata={**request.metadata, **({AFTER: str(last)} if is_other else {})},
                request=request.id,
                changes=None if is_whole else built.changes,
                epoch=self._branch.epoch,
                generation=max((self._commit(parent).generation + 1 for parent in parents), default=0),
            )
        )
        return commit_id, view

    def _metarange(self, changes: PathChanges) -> str:
        """Return the metarange of all that the head names after changes."""
        if not changes and not self._view.commits and self._head:
            return self._commit(self._head).metarange
        refs, new = self._tree.changed(self._view, changes, self._branch.epoch)
        for new_range in new:
            self._keep(new_range)
        return self._keep(Metarange(refs, self._branch.epoch))

    def _keep(self, record: Content) -> str:
        record_id = id_of(record)
        self._records[record_id] = record
        return record_id

    def _named(self, paths: Sequence[str]) -> dict[str, Reference]:
        return self._tree.find(self._view, paths)

    def _commit(self, commit_id: str) -> Commit:
        return self._read(Commit, commit_id)

    def _read(self, kind: type[ContentT], record_id: str) -> ContentT:
        record = self._records.get(record_id)
        return record if isinstance(record, kind) else self._contents.read(kind, record_id)
