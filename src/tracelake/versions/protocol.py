"""Decisions of a repository (PROTOCOLS §3). Pure: no I/O, no clock, no randomness.

A commit needs two conditional writes on its branch record. The first *seals* the request: its place in the history is
then fixed, and all input for building it is immutable or in the record. The second *cuts* the built requests off the
list and moves the head. Between the two any committer can build, so a killed or slow committer keeps no other waiting.

If committers race to seal, one wins. The others announce their requests, each under a separate key without contention;
while others build, newcomers announce at once. Each sealing write, and each cutting write, also seals all announced
requests. Under load, one write on the record therefore ends one sweep and begins the next. After an announcement at
most one seal can miss it, namely one that read the announcements earlier. A committer therefore loses a bounded number
of conditional writes, regardless of how many committers compete.

`next_act` returns the next action of a committer for its request, after each read of the branch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from enum import Enum, StrEnum
from itertools import islice
from math import inf
from typing import Final, TypeAlias

from msgspec.structs import replace

from tracelake.batching import has_elapsed
from tracelake.limits import ANSWER_DETAIL_MAX_BYTES, CONFLICTS_TOLD_MAX
from tracelake.versions import model

BRANCH_SWEEP_MAX_REQUESTS: Final = 128
"""Requests that are built and answered at once, because their answers share the branch record."""
ANSWERS_KEPT_EPOCHS: Final = 1_000
"""Garbage collections for which a request id stays valid; a repeated request returns the same commit."""

DAY_S: Final = 86_400.0
EPOCHS_TO_CUT: Final = 1
"""Built objects may be published in the epoch in which they were built and in this many later ones."""


class Refusal(StrEnum):
    """Reason for refusing a request."""

    NOTHING = "nothing"
    """The request changes no entry."""
    CONFLICT = "conflict"
    """Both sides changed the same entries."""
    DAMAGED = "damaged"
    """An object that the request names is unreadable."""
    UNREACHABLE = "unreachable"
    """No branch or tag leads to the commit that the request names, so it may be collected at any moment."""
    EXPIRED = "expired"
    """An object that the request names was written two epochs ago, and was collected before the commit."""
    GONE = "gone"
    """The branch was deleted in the meantime."""
    FAILED = "failed"
    """Building the commit fails, and always will."""
    DROPPED = "dropped"
    """A user removed the request from the list."""


NOT_FOR_EVER: Final = frozenset({Refusal.DAMAGED, Refusal.EXPIRED, Refusal.FAILED, Refusal.DROPPED})
"""Refusals that do not depend on the requested change: the same request may be submitted again."""


def fit_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the first texts that together fit into an answer. Answers must be small, because they share the branch
    record."""
    fitting: list[str] = []
    room_bytes = ANSWER_DETAIL_MAX_BYTES
    for text in islice(texts, CONFLICTS_TOLD_MAX):
        room_bytes -= len(json.dumps(text)) + 1
        if room_bytes < 0:
            break
        fitting.append(text)
    return tuple(fitting)


def excerpt(text: str) -> str:
    """Return the beginning of a text, as much as an answer may hold; invalid Unicode is replaced."""
    return text[: ANSWER_DETAIL_MAX_BYTES // 8].encode(errors="replace").decode()


class RequestState(Enum):
    """State of a request according to the branch record."""

    DONE = "built: its answer is in the record"
    SEALED = "on the list: build it, or wait for who does"
    UNKNOWN = "not on the list, or answered longer ago"


def state_of(branch: model.BranchRecord, request: str) -> RequestState:
    """Return the state of the request with this id."""
    if any(answer.request == request for answer in branch.done):
        return RequestState.DONE
    if any(sealed.request.id == request for sealed in branch.sealed):
        return RequestState.SEALED
    return RequestState.UNKNOWN


def requests_in(branch: model.BranchRecord) -> set[str]:
    """Return the ids of all requests in the record."""
    return {item.request.id for item in branch.sealed} | {answer.request for answer in branch.done}


def pending_tokens(branch: model.BranchRecord) -> set[str]:
    """Return the tokens of staged entries that are not built yet."""
    return {token for token in (branch.staging, *(sealed.token for sealed in branch.sealed)) if token}


def known_tokens(branch: model.BranchRecord) -> set[str]:
    """Return all tokens whose entries still exist. They are deleted when the record drops the token."""
    return pending_tokens(branch) | {answer.token for answer in branch.done if answer.token}


def patience(branch: model.BranchRecord, request: str) -> int:
    """Return how many units of time a committer waits for another one to build."""
    ids = [item.request.id for item in branch.sealed]
    return (ids.index(request) if request in ids else len(ids)).bit_length()


def seal(
    branch: model.BranchRecord, requests: Iterable[model.Request], token: str, epoch: int
) -> model.BranchRecord:
    """Return the record with these requests sealed, except those that it contains already.

    The first request that takes staged entries gets the current staging token. The next one gets a fresh token, which
    receives the entries that the earlier one could not commit, and so on. Fresh tokens, including the new staging
    token, begin with `token`. `epoch` is for a branch without one.
    """
    sealed = list(branch.sealed)
    staging = branch.staging
    in_record = requests_in(branch)
    for request in requests:
        if request.id in in_record:
            continue
        in_record.add(request.id)
        takes = isinstance(request.operation, model.Change) and request.operation.staged
        sealed.append(model.SealedRequest(request, staging if takes else ""))
        staging = f"{token}-{len(sealed)}" if takes else staging
    epoch = epoch if branch.epoch == model.EPOCH_UNSET else branch.epoch
    return replace(branch, sealed=tuple(sealed), staging=staging or token, epoch=epoch)


def sweep(branch: model.BranchRecord) -> model.BranchRecord:
    """Return the record with only as many sealed requests as one sweep builds, because the answers must fit into the
    record."""
    return replace(branch, sealed=branch.sealed[:BRANCH_SWEEP_MAX_REQUESTS])


def token_after(branch: model.BranchRecord, count: int) -> str:
    """Return the token that follows those of the first `count` requests on the list."""
    return next((item.token for item in branch.sealed[count:] if item.token), branch.staging)


def took(branch: model.BranchRecord, request: str) -> bool:
    """Return whether the request with this id was answered and consumed its staged entries. Such entries must not be
    staged again."""
    return any(answer.request == request and answer.refusal not in NOT_FOR_EVER for answer in branch.done)


def dropped(branch: model.BranchRecord, request: str, why: str) -> model.BranchRecord:
    """Return the record with one request removed and answered with `why`. Running builds of the list become invalid."""
    index = [item.request.id for item in branch.sealed].index(request)
    item = branch.sealed[index]
    answer = model.Answer(request, branch.head, Refusal.DROPPED, (why,), item.token, item.request.remembered)
    sealed = branch.sealed[:index] + branch.sealed[index + 1 :]
    return replace(branch, sealed=sealed, done=(*branch.done, answer))


def cut(
    branch: model.BranchRecord, built: model.BranchRecord, head: str, answers: tuple[model.Answer, ...]
) -> model.BranchRecord | None:
    """Return the record with `head` moved and the requests of `built` removed from the list.

    Returns None if another helper was first. Additional sealed requests do not matter: a build is valid as long as it
    covers the beginning of the list and has the same head. Also returns None if objects of the build's epoch may be
    collected by now, or if a request was dropped in the meantime, so that its answer is not in `answers`. Then it is
    built again.
    """
    if not may_publish(built.epoch, branch.epoch):
        return None
    if (branch.head, branch.done) != (built.head, built.done) or branch.sealed[
        : len(built.sealed)
    ] != built.sealed:
        return None
    return replace(branch, head=head, sealed=branch.sealed[len(built.sealed) :], done=answers)


def split_answers(
    answers: tuple[model.Answer, ...], new: tuple[model.Answer, ...], at_least: int
) -> tuple[tuple[model.Answer, ...], tuple[model.Answer, ...]]:
    """Return the answers that stay in the record, and those that leave it.

    All new answers stay, and the last `at_least` before them. A committer that announced its request before a sweep
    finds the head of that time among these answers. The record then shows whether its request was answered since.
    """
    leaving = max(0, len(answers) - at_least)
    return (*answers[leaving:], *new), answers[:leaving]


def next_epoch(epoch: model.Epoch, now_s: float, epoch_min_s: float) -> model.Epoch:
    """Return an epoch that begins now, or the same epoch if it has lasted less than `epoch_min_s`."""
    if not has_elapsed(epoch_min_s, epoch.began_s, now_s):
        return epoch
    return replace(epoch, number=epoch.number + 1, began_s=now_s)


def may_publish(written: int, epoch: int) -> bool:
    """Return whether an object written in an epoch may be named for the first time on a branch at `epoch`."""
    return epoch - written <= EPOCHS_TO_CUT


def is_collectable(epoch: int, newest: int) -> bool:
    """Return whether an unreachable object of an epoch is garbage if every branch is at `newest`.

    No request can name an object of such an old epoch for the first time.
    """
    return not may_publish(epoch, newest)


def is_forgotten(recorded: model.OldAnswer, newest: int, scopes: Collection[str]) -> bool:
    """Return whether a recorded answer may be deleted, given the existing branches.

    An answer to an id that the caller chose stays for many epochs. Any other answer that is not in the history is a
    refusal. A committer that slept through two epochs can ask again, because a refused request has changed nothing.
    """
    is_lasting = recorded.answer.remembered and recorded.scope in scopes
    return newest - recorded.epoch > (ANSWERS_KEPT_EPOCHS if is_lasting else EPOCHS_TO_CUT)


def is_fresh(reference: model.Reference | None, epoch: int) -> bool:
    """Return whether an entry may be published at an epoch as it is; False if its file or index may have been
    collected."""
    if isinstance(reference, model.IndexAt):
        return reference.epoch == model.EPOCH_UNSET or may_publish(reference.epoch, epoch)
    return not isinstance(reference, model.FileAt) or may_publish(reference.epoch, epoch)


class CommitDecision(Enum):
    """Decision about the commit of transaction T of a pipeline, given the head of the branch.

    All replicas of a pipeline request the same commit of T: the request id is the same, and time and message come
    from the journal.
    """

    BUILD = "T is next"
    THERE = "T is in the history of the head already"
    TOO_EARLY = "an earlier transaction has no commit yet: a mistake of the caller"


def decide(transaction: int, head_transaction: int | None) -> CommitDecision:
    """Decide on the commit of a transaction; `head_transaction` is None on an empty branch."""
    upper = 0 if head_transaction is None else head_transaction + 1
    if transaction < upper:
        return CommitDecision.THERE
    return CommitDecision.BUILD if transaction == upper else CommitDecision.TOO_EARLY


def transaction_of(request: model.Request) -> int | None:
    """Return the transaction of a request, or None."""
    number = request.metadata.get(model.TRANSACTION)
    return None if number is None else int(number)


def is_older(before: Base, after: Base) -> bool:
    """Return whether `after` goes back from `before`: the same table at an earlier transaction, or an index of fewer
    transactions."""
    if isinstance(before, model.IndexAt) and isinstance(after, model.IndexAt):
        return before.upper > after.upper
    return (
        isinstance(before, model.TableAt)
        and isinstance(after, model.TableAt)
        and before.shard == after.shard
        and before.as_of > after.as_of
    )


def effective(
    change: model.Change, changes: model.PathChanges, there: Mapping[str, model.Reference]
) -> model.PathChanges:
    """Return the changes that have an effect, given the current references of their paths.

    With `change.forward`, changes that would move a table to an earlier time are dropped. Writers of a table may commit
    in another order than they append; the head then contains the rows of the late writer already. An index with merged
    parts replaces only the index that it was made from.
    """
    return tuple(
        (path, wanted)
        for path, wanted in changes
        if wanted != there.get(path)
        and not (change.forward and is_older(there.get(path), wanted))
        and replaces(there.get(path), wanted)
    )


def replaces(before: model.Reference | None, after: model.Reference | None) -> bool:
    """Return whether `after` may replace `before`; an index with `replaces` may replace only that manifest."""
    if not isinstance(after, model.IndexAt) or not after.replaces:
        return True
    return isinstance(before, model.IndexAt) and before.manifest == after.replaces


class Unclear(Enum):
    """Placeholder for an entry of a merge base whose own merge has a conflict."""

    UNCLEAR = "unclear"


UNCLEAR: Final = Unclear.UNCLEAR
Base = model.Reference | Unclear | None
"""An entry in the merge base."""
Theirs = tuple[str, Base, model.Reference | None]
"""A path, its entry in the merge base, and its entry on their side."""


@dataclass(frozen=True, slots=True)
class EntryConflict:
    """An entry that both sides changed differently. `base` is None if it is absent or unclear."""

    path: str
    base: model.Reference | None
    ours: model.Reference | None
    theirs: model.Reference | None


def agreed(base: Base, mine: Base, theirs: Base) -> Base:
    """Return the three-way merge of one entry; UNCLEAR if both sides changed it differently.

    If only one side changed the entry, or both made the same change, that change is the result. If both sides have the
    same table at two times, neither older than the base, the later one is, because it contains all rows of the other.
    """
    if UNCLEAR in (mine, theirs):
        return UNCLEAR
    if theirs in (mine, base) or _is_later(base, theirs, mine):
        return mine
    return theirs if mine == base or _is_later(base, mine, theirs) else UNCLEAR


def merged(
    changes: Iterable[Theirs], ours: Mapping[str, model.Reference], prefer: str = ""
) -> tuple[model.PathChanges, list[EntryConflict]]:
    """Merge one side's changes into the other side; return the changes to apply to `ours`, and the conflicts.

    `changes` lead from the merge base to `theirs`. An entry is a conflict if both sides changed it differently (see
    `agreed`), unless one side is preferred: `source` is theirs, `dest` is ours.
    """
    applied: list[tuple[str, model.Reference | None]] = []
    conflicts: list[EntryConflict] = []
    for path, base, theirs in changes:
        mine = ours.get(path)
        if theirs in (mine, base):
            continue
        result = theirs if prefer == "source" else agreed(base, mine, theirs)
        if result is not UNCLEAR:
            applied += [(path, result)] if result != mine else []
        elif prefer != "dest":
            conflicts.append(EntryConflict(path, None if base is UNCLEAR else base, mine, theirs))
    return tuple(applied), conflicts


def _is_later(base: Base, first: Base, second: Base) -> bool:
    """Return whether `second` contains all rows of `first`: the same table, later, and neither side went back."""
    return (
        (base is None or isinstance(base, model.TableAt))
        and is_older(second, first)
        and not any(is_older(base, side) for side in (first, second))
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """A committer's knowledge about the state of its own request."""

    request: str
    scope: str
    """The branch name with the branch id, which distinguishes it from a later branch of the same name."""
    since: str
    """No commit up to this one contains the request, unless it was submitted before."""
    is_announced: bool = False
    was_sealed: bool = False
    """Whether it has been on the branch's list, so that it must have an answer from then on."""
    looks: int = 0
    """Number of polls while waiting for other committers."""
    looks_in_vain: int = 0
    """Number of polls since the head last moved."""

    @property
    def is_visible(self) -> bool:
        """Return whether other committers know the request, so that one may have answered it."""
        return self.is_announced or self.was_sealed

    def after_read(self, branch: model.BranchRecord) -> Submission:
        """Return the knowledge after reading the record."""
        is_sealed = state_of(branch, self.request) is RequestState.SEALED
        return replace_fields(self, was_sealed=self.was_sealed or is_sealed)

    def after_search(self, branch: model.BranchRecord) -> Submission:
        """Return the knowledge after searching the history up to the head without finding an answer."""
        return replace_fields(self, since=branch.head)

    def announced(self) -> Submission:
        """Return the knowledge after announcing the request."""
        return replace_fields(self, is_announced=True)

    def put_on_list(self, *, was_sealed: bool) -> Submission:
        """Return the knowledge after an attempt to seal the request."""
        return replace_fields(self, was_sealed=was_sealed)

    def waited(self, looks: int, *, head_moved: bool) -> Submission:
        """Return the knowledge after some polls; if the head moved, the builder is alive."""
        in_vain = 0 if head_moved else self.looks_in_vain + looks
        return replace_fields(self, looks=self.looks + looks, looks_in_vain=in_vain)


@dataclass(frozen=True, slots=True)
class Return:
    """Action: return the answer, which is in the record."""

    answer: model.Answer


@dataclass(frozen=True, slots=True)
class Leave:
    """Action: stop, because the branch was deleted in the meantime."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Action: search for an answer that has left the record, because the record does not contain the request."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Action: fail, because the request was sealed and no answer exists anywhere."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Action: poll at most this many times, because another committer is expected to build."""

    looks: int


@dataclass(frozen=True, slots=True)
class Build:
    """Action: build the list, which contains the request."""


@dataclass(frozen=True, slots=True)
class PutOnList:
    """Action: seal the request, or announce it if another committer is faster."""


Act: TypeAlias = Return | Leave | Seek | Miss | Wait | Build | PutOnList


def next_act(
    submission: Submission,
    branch: model.BranchRecord,
    scope: str,
    *,
    is_there: bool,
    has_sought: bool,
    patience_polls: int,
) -> Act:
    """Return the committer's next action.

    Args:
        submission: the knowledge about the request, including the record (`Submission.after_read`).
        branch: the record as last read.
        scope: the branch name with the branch id.
        is_there: whether the branch exists, or is one that the first commit creates.
        has_sought: whether a search for the answer since the record was read has failed.
        patience_polls: polls before helping other committers to build.
    """
    if not is_there or scope != submission.scope:
        return Leave()
    state = state_of(branch, submission.request)
    if state is RequestState.DONE:
        return Return(next(answer for answer in branch.done if answer.request == submission.request))
    if state is RequestState.UNKNOWN:
        if not has_sought:
            return Seek()
        if submission.was_sealed:
            return Miss()
    patient = patience_polls * patience(branch, submission.request)
    if submission.is_visible and submission.looks_in_vain < patient:
        return Wait(patient - submission.looks_in_vain)
    return Build() if state is RequestState.SEALED else PutOnList()


@dataclass(frozen=True, slots=True)
class HistoryRule:
    """Retention of routine commits."""

    age_s: float | None = None
    """Time for which every state can be read; None keeps all commits."""
    daily_s: float = 0.0
    """Time for which the last commit of each day can be read."""


KEEP_ALL: Final = HistoryRule()
_Reason = model.RetentionReason


@dataclass(frozen=True, slots=True)
class AncestorStep:
    """AncestorStep from a commit to a parent, across expired commits if there are any."""

    parent: str
    """The parent that the commit names."""
    to: str
    """The nearest kept ancestor on this way; the parent itself if it is retained, and empty if there is none."""
    hidden: int = 0
    """Number of expired commits between."""


@dataclass(frozen=True, slots=True)
class HistoryCommit:
    """The facts about a commit that decide whether it expires."""

    steps: tuple[AncestorStep, ...]
    created_s: float
    generation: int = 0
    is_routine: bool = False
    """Whether a program made it (`model.is_routine`)."""
    is_transaction: bool = False
    is_index_merge: bool = False
    has_entries: bool = True
    """Whether it names its entries. Otherwise they are computed from its first parent's."""


def retained_commits(
    now_s: float,
    commits: Mapping[str, HistoryCommit],
    heads: Collection[str],
    references: Collection[str],
    rule: HistoryRule,
    main: str = "",
) -> set[str]:
    """Return the commits that do not expire (see `retentions`).

    The result is closed: applied to the kept commits alone, the rule keeps all of them. So a collection that was killed
    or repeated changes nothing more.
    """
    return set(retentions(now_s, commits, heads, references, rule, main))


def retentions(
    now_s: float,
    commits: Mapping[str, HistoryCommit],
    heads: Collection[str],
    references: Collection[str],
    rule: HistoryRule,
    main: str = "",
) -> dict[str, model.Retained]:
    """Return why each commit stays, among those that the heads and references lead to. Of several reasons, the one
    that holds longest counts.

    Args:
        now_s: the time, in seconds since 1970.
        commits: the reachable commits.
        heads: commits that branches, tags and claims name.
        references: commits that datasets, holds and pending requests name.
        rule: the time that routine commits stay.
        main: the head that pipelines commit to.
    """
    reached = reachable(commits, (*heads, *references))
    if rule.age_s is None:
        return dict.fromkeys(reached, model.Retained(_Reason.ALL))
    children: dict[str, list[str]] = {}
    for commit_id in reached:
        for parent in _parents(commits, commit_id):
            children.setdefault(parent, []).append(commit_id)
    young_s = now_s - rule.age_s
    result = {each: model.Retained(_Reason.NAMED) for each in (*heads, *references) if each in commits}
    # What a request names is applied as a change against its parents.
    for each in references:
        add_reason(result, _parents(commits, each), _Reason.NAMED)
    for commit_id in reached:
        above = children.get(commit_id, ())
        if not commits[commit_id].is_routine:
            add_reason(result, (commit_id,), _Reason.PERSON)
        if len(above) > 1:  # Forks are what merges compare with.
            add_reason(result, (commit_id,), _Reason.FORK)
        # A state was current until its child was made.
        until_s = max(commits[each].created_s for each in (commit_id, *above))
        if until_s >= young_s:
            add_reason(result, (commit_id,), _Reason.AGE, until_s + rule.age_s)
    for each in [each for each in reached if not commits[each].is_routine]:
        add_reason(result, _parents(commits, each), _Reason.PARENT)
    add_reason(result, _pipeline_bases(commits, main), _Reason.PIPELINE)
    for each in last_of_days(commits, reached, heads, now_s - rule.daily_s):
        add_reason(result, (each,), _Reason.DAY, commits[each].created_s + rule.daily_s)
    add_entry_reason(commits, result)
    return result


def add_reason(
    result: dict[str, model.Retained], commits: Iterable[str], reason: _Reason, until_s: float = inf
) -> None:
    """Add a reason to commits, unless another one holds as long."""
    for each in commits:
        if each not in result or result[each].until_s < until_s:
            result[each] = model.Retained(reason, until_s)


def _parents(commits: Mapping[str, HistoryCommit], commit_id: str) -> list[str]:
    return (
        [step.to for step in commits[commit_id].steps if step.to in commits] if commit_id in commits else []
    )


def reachable(commits: Mapping[str, HistoryCommit], heads: Iterable[str]) -> set[str]:
    """Return the commits that the heads lead to."""
    todo = [head for head in heads if head in commits]
    reached = set(todo)
    while todo:
        new = [parent for parent in _parents(commits, todo.pop()) if parent not in reached]
        reached.update(new)
        todo += new
    return reached


def last_of_days(
    commits: Mapping[str, HistoryCommit], reached: Collection[str], heads: Collection[str], since_s: float
) -> set[str]:
    """Return the newest commit of each day since `since_s`, on the line of first parents of each head and merge."""
    merged = (parent for each in reached for parent in _parents(commits, each)[1:])
    last: set[str] = set()
    visited: set[str] = set()
    for start in dict.fromkeys((*sorted(heads), *sorted(merged))):
        days: set[int] = set()
        at: str | None = start
        while at is not None and at in commits and at not in visited:
            visited.add(at)
            created_s = commits[at].created_s
            if since_s <= created_s < inf and (day := int(created_s // DAY_S)) not in days:
                days.add(day)
                last.add(at)
            at = next(iter(_parents(commits, at)), None)
    return last


def _pipeline_bases(commits: Mapping[str, HistoryCommit], main: str) -> set[str]:
    """Return the commits that the next transaction may be built on: the newest transaction's, its parent, and the
    merged indexes since. A pipeline may have read each of these indexes as its base."""
    bases: set[str] = set()
    at: str | None = main
    while at is not None and at in commits:
        parents = _parents(commits, at)
        if commits[at].is_transaction:
            return {*bases, at, *parents}
        if commits[at].is_index_merge:
            bases.add(at)
        at = next(iter(parents), None)
    return set()


def add_entry_reason(commits: Mapping[str, HistoryCommit], result: dict[str, model.Retained]) -> None:
    """Add the ancestors from which the entries of kept commits are computed."""
    todo = list(result)
    while todo:
        at = todo.pop()
        if not commits[at].has_entries:
            for parent in _parents(commits, at)[:1]:
                if parent not in result or result[parent].until_s < result[at].until_s:
                    add_reason(result, (parent,), _Reason.ENTRIES, result[at].until_s)
                    todo.append(parent)


def new_gaps(
    commits: Mapping[str, HistoryCommit], retained: Collection[str], at_most: int
) -> tuple[dict[str, model.Gap], list[str]]:
    """Return the gaps to write so that walks skip the commits that are not retained, and these commits; at most
    `at_most` gaps."""
    gaps: dict[str, model.Gap] = {}
    expired: list[str] = []
    for step in (step for each in sorted(retained) for step in commits[each].steps):
        if step.to in retained or step.to not in commits or step.parent in gaps:
            continue
        if len(gaps) == at_most:
            break
        at, hidden = step.to, step.hidden
        while at in commits and at not in retained:
            expired.append(at)
            (below,) = commits[at].steps or (AncestorStep("", ""),)
            at, hidden = below.to, hidden + 1 + below.hidden
        generation = commits[at].generation if at in commits else -1
        gaps[step.parent] = model.Gap(at, generation, hidden)
    return gaps, expired


def is_wider(gap: model.Gap, there: model.Gap) -> bool:
    """Return whether a gap is a later state of the recorded one: it reaches further down."""
    return gap.generation < there.generation
