"""Decisions of a repository (PROTOCOLS §3). Pure: no I/O, no clock, no randomness.

A commit takes two conditional writes on the record of its branch. The first *seals* the request: from then on its
place in the history is settled, and everything that it takes to build it is in the record or immutable. The second
*cuts* what was built off the list and moves the head. Between the two anyone may build: a committer that was killed,
or is slow, keeps nobody waiting.

Where committers race to seal, one wins. The others announce their requests, each under a key of its own, where nobody
races; who comes while others build announces at once. Who seals takes all that is announced with it, and so does the
write that cuts: under load, one write on the record ends one sweep and begins the next. After an announcement at most
one seal can pass it by, one that looked before: so a committer loses a bounded number of conditional writes, however
many there are.

What a committer does next for its own request, from one look at its branch to the next (PROTOCOLS §3). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from enum import Enum, StrEnum
from itertools import islice
from typing import Final, TypeAlias

from msgspec.structs import replace

from tracelake.limits import (
    ANSWER_DETAIL_MAX_BYTES,
    ANSWERS_KEPT_EPOCHS,
    BRANCH_SWEEP_MAX_REQUESTS,
    CONFLICTS_TOLD_MAX,
)
from tracelake.versions.model import (
    EPOCH_UNSET,
    TRANSACTION,
    Answer,
    BranchRecord,
    Change,
    Epoch,
    FileAt,
    IndexAt,
    OldAnswer,
    PathChanges,
    Reference,
    Request,
    SealedRequest,
    TableAt,
)

EPOCHS_TO_CUT: Final = 1
"""What was built may be published in the epoch in which it was built, and in so many after it."""


class Refusal(StrEnum):
    """Why a request gets no commit."""

    NOTHING = "nothing"
    """It changes no entry."""
    CONFLICT = "conflict"
    """Both sides changed the same entries."""
    DAMAGED = "damaged"
    """What it names cannot be read."""
    UNREACHABLE = "unreachable"
    """No branch or tag leads to the commit that it names: it may be collected at any moment."""
    EXPIRED = "expired"
    """What it names was written two epochs ago, and has been collected before it was committed."""
    GONE = "gone"
    """The branch was deleted meanwhile."""
    FAILED = "failed"
    """Building its commit fails, and always will."""
    DROPPED = "dropped"
    """Somebody took it off the list."""


NOT_FOR_EVER: Final = frozenset({Refusal.DAMAGED, Refusal.EXPIRED, Refusal.FAILED, Refusal.DROPPED})
"""Refusals that say nothing of what was asked for: it is right to ask for the same again."""


def told(texts: Iterable[str]) -> tuple[str, ...]:
    """Return as many of these texts as an answer may hold, for all answers share the record of the branch."""
    kept: list[str] = []
    left = ANSWER_DETAIL_MAX_BYTES
    for text in islice(texts, CONFLICTS_TOLD_MAX):
        left -= len(json.dumps(text)) + 1
        if left < 0:
            break
        kept.append(text)
    return tuple(kept)


def excerpt(text: str) -> str:
    """Return the beginning of a text, as long as an answer may hold it; what is no Unicode is replaced."""
    return text[: ANSWER_DETAIL_MAX_BYTES // 8].encode(errors="replace").decode()


class RequestState(Enum):
    """Where a request stands, as the record of the branch says."""

    DONE = "built: its answer is in the record"
    SEALED = "on the list: build it, or wait for who does"
    UNKNOWN = "not on the list, or answered longer ago"


def state_of(branch: BranchRecord, request: str) -> RequestState:
    """Tell where the request of this id stands."""
    if any(answer.request == request for answer in branch.done):
        return RequestState.DONE
    if any(sealed.request.id == request for sealed in branch.sealed):
        return RequestState.SEALED
    return RequestState.UNKNOWN


def requests_in(branch: BranchRecord) -> set[str]:
    """Return the ids of all requests that the record knows."""
    return {item.request.id for item in branch.sealed} | {answer.request for answer in branch.done}


def pending_tokens(branch: BranchRecord) -> set[str]:
    """Return the tokens of what is staged and not built yet."""
    return {token for token in (branch.staging, *(sealed.token for sealed in branch.sealed)) if token}


def known_tokens(branch: BranchRecord) -> set[str]:
    """Return all tokens whose entries are there still: they go when the record has let go of the token."""
    return pending_tokens(branch) | {answer.token for answer in branch.done if answer.token}


def patience(branch: BranchRecord, request: str) -> int:
    """Return for how many times the usual patience a committer waits for another to build what is sealed.

    A rule of courtesy, on which nothing rests: it keeps committers from building the same all at once. The first on
    the list builds at once. The second helps after one time, the next two after two, the next four after three: where
    building is slow, as on a busy disk, not all who wait make it slower still.
    """
    ids = [item.request.id for item in branch.sealed]
    return (ids.index(request) if request in ids else len(ids)).bit_length()


def seal(branch: BranchRecord, requests: Iterable[Request], token: str, epoch: int) -> BranchRecord:
    """Return the record with these requests on the list, those that it knows already left out.

    The first that takes what is staged gets the token under which entries were staged, the next one a fresh token,
    where it finds what an earlier one could not commit, and so on: all of them begin with `token`, as does the one
    that is there from then on. `epoch` is for a branch that has none yet.
    """
    sealed = list(branch.sealed)
    staging = branch.staging
    known = requests_in(branch)
    for request in requests:
        if request.id in known:
            continue
        known.add(request.id)
        takes = isinstance(request.operation, Change) and request.operation.staged
        sealed.append(SealedRequest(request, staging if takes else ""))
        staging = f"{token}-{len(sealed)}" if takes else staging
    epoch = epoch if branch.epoch == EPOCH_UNSET else branch.epoch
    return replace(branch, sealed=tuple(sealed), staging=staging or token, epoch=epoch)


def sweep(branch: BranchRecord) -> BranchRecord:
    """Return the record with as much of its list as is built at once: the answers must have room in the record."""
    return replace(branch, sealed=branch.sealed[:BRANCH_SWEEP_MAX_REQUESTS])


def token_after(branch: BranchRecord, count: int) -> str:
    """Return the token that came after those of the first `count` requests on the list."""
    return next((item.token for item in branch.sealed[count:] if item.token), branch.staging)


def took(branch: BranchRecord, request: str) -> bool:
    """Tell whether a request was answered, and has taken what was staged for it: that must not be staged anew."""
    return any(answer.request == request and answer.refusal not in NOT_FOR_EVER for answer in branch.done)


def dropped(branch: BranchRecord, request: str, why: str) -> BranchRecord:
    """Return the record with one request off the list, and answered so. What is being built is built again."""
    index = [item.request.id for item in branch.sealed].index(request)
    item = branch.sealed[index]
    answer = Answer(request, branch.head, Refusal.DROPPED, (why,), item.token, item.request.remembered)
    sealed = branch.sealed[:index] + branch.sealed[index + 1 :]
    return replace(branch, sealed=sealed, done=(*branch.done, answer))


def cut(
    branch: BranchRecord, built: BranchRecord, head: str, done: tuple[Answer, ...]
) -> BranchRecord | None:
    """Return the record with `head` moved and the requests cut off that were built from the record `built`.

    None where another helper was first. More requests on the list do not matter: what was built stays right as
    long as it is the beginning of the list and stands on the same head. None, too, where objects of the epoch in
    which it was built may be collected by now, and where a request was answered meanwhile that is not in `done`,
    because it was dropped: then it is built again.
    """
    if not may_publish(built.epoch, branch.epoch):
        return None
    if (branch.head, branch.done) != (built.head, built.done) or branch.sealed[
        : len(built.sealed)
    ] != built.sealed:
        return None
    return replace(branch, head=head, sealed=branch.sealed[len(built.sealed) :], done=done)


def kept(
    done: tuple[Answer, ...], new: tuple[Answer, ...], at_least: int
) -> tuple[tuple[Answer, ...], tuple[Answer, ...]]:
    """Return the answers that stay in the record, and those that leave it.

    All new ones stay, as do the last before them, `at_least` so many: who announced its request before a sweep finds
    the head of that time among them, and sees in the record that it was not answered since.
    """
    leaving = max(0, len(done) - at_least)
    return (*done[leaving:], *new), done[:leaving]


def next_epoch(epoch: Epoch, now_s: float, epoch_min_s: float) -> Epoch:
    """Return the epoch that begins now, or the same one where it has lasted for less than `epoch_min_s`.

    One that began so long after now was begun by a clock that was ahead, and would last until then: it ends.
    """
    if abs(now_s - epoch.began_s) < epoch_min_s:
        return epoch
    return replace(epoch, number=epoch.number + 1, began_s=now_s)


def may_publish(written: int, epoch: int) -> bool:
    """Tell whether what was written in an epoch may be named for the first time on a branch that is at `epoch`."""
    return epoch - written <= EPOCHS_TO_CUT


def is_collectable(epoch: int, newest: int) -> bool:
    """Tell whether an object of an epoch is garbage where nothing leads to it and every branch is at `newest`.

    What was written in that epoch and is not named now never will be.
    """
    return not may_publish(epoch, newest)


def is_forgotten(recorded: OldAnswer, newest: int, scopes: Collection[str]) -> bool:
    """Tell whether a recorded answer may go, given the branches that are there.

    An id that the caller chose is good for many epochs. Any other answer that is not in the history is a refusal:
    whoever slept for two epochs before it was told of it may ask again, for it has changed nothing.
    """
    is_lasting = recorded.answer.remembered and recorded.scope in scopes
    return newest - recorded.epoch > (ANSWERS_KEPT_EPOCHS if is_lasting else EPOCHS_TO_CUT)


def is_fresh(reference: Reference | None, epoch: int) -> bool:
    """Tell whether an entry may be published at an epoch as it is: not what was written earlier and may be gone."""
    if isinstance(reference, IndexAt):
        return reference.epoch == EPOCH_UNSET or may_publish(reference.epoch, epoch)
    return not isinstance(reference, FileAt) or may_publish(reference.epoch, epoch)


class CommitDecision(Enum):
    """What to do about transaction T of a pipeline, given the head of the branch.

    Every replica of a pipeline asks for the same commit of T: its request has the same id, and time and message
    come from the journal.
    """

    BUILD = "T is next"
    THERE = "T is in the history of the head already"
    AHEAD = "an earlier transaction has no commit yet: a mistake of the caller"


def decide(transaction: int, head_transaction: int | None) -> CommitDecision:
    """Decide on the commit of a transaction; `head_transaction` is None on an empty branch."""
    upper = 0 if head_transaction is None else head_transaction + 1
    if transaction < upper:
        return CommitDecision.THERE
    return CommitDecision.BUILD if transaction == upper else CommitDecision.AHEAD


def transaction_of(request: Request) -> int | None:
    """Return the transaction whose commit a request asks for."""
    number = request.metadata.get(TRANSACTION)
    return None if number is None else int(number)


def is_older(before: Base, after: Base) -> bool:
    """Tell whether `after` is the table that `before` is, at an older time, or an index of fewer transactions."""
    if isinstance(before, IndexAt) and isinstance(after, IndexAt):
        return before.upper > after.upper
    return (
        isinstance(before, TableAt)
        and isinstance(after, TableAt)
        and before.shard == after.shard
        and before.as_of > after.as_of
    )


def effective(change: Change, changes: PathChanges, there: Mapping[str, Reference]) -> PathChanges:
    """Return those of the changes that change something, given what their paths name now.

    With `forward`, no table is taken to an older time: writers of one table append one after the other, and may
    commit in another order. Who comes late finds that the head names its rows already. An index whose parts were
    merged takes the place of the one that it was made of, and of no other.
    """
    return tuple(
        (path, wanted)
        for path, wanted in changes
        if wanted != there.get(path)
        and not (change.forward and is_older(there.get(path), wanted))
        and replaces(there.get(path), wanted)
    )


def replaces(before: Reference | None, after: Reference | None) -> bool:
    """Tell whether `after` may take the place of `before`: an index that says which one it replaces only of that."""
    if not isinstance(after, IndexAt) or not after.replaces:
        return True
    return isinstance(before, IndexAt) and before.manifest == after.replaces


class Unclear(Enum):
    """What stands in the place of an entry in which commits are in conflict that were to be merged."""

    UNCLEAR = "unclear"


UNCLEAR: Final = Unclear.UNCLEAR
Base = Reference | Unclear | None
"""What an entry was where two sides parted."""
Theirs = tuple[str, Base, Reference | None]
"""A path, what it named where the sides parted, and what it names on their side."""


@dataclass(frozen=True, slots=True)
class EntryConflict:
    """An entry that both sides changed, each in its own way. `base` is None, too, where it is unclear."""

    path: str
    base: Reference | None
    ours: Reference | None
    theirs: Reference | None


def agreed(base: Base, mine: Base, theirs: Base) -> Base:
    """Return what a three-way merge of one entry comes to; UNCLEAR where each side changed it in its own way.

    What only one side changed stands; what both made the same needs no change. Of one table at two times, neither
    of which is older than the base, the later holds all rows of the other.
    """
    if UNCLEAR in (mine, theirs):
        return UNCLEAR
    if theirs in (mine, base) or _is_later(base, theirs, mine):
        return mine
    return theirs if mine == base or _is_later(base, mine, theirs) else UNCLEAR


def merged(
    changes: Iterable[Theirs], ours: Mapping[str, Reference], prefer: str = ""
) -> tuple[PathChanges, list[EntryConflict]]:
    """Decide on a three-way merge: `changes` lead from the base to their side, `ours` is what our side names.

    What both changed in their own ways (see `agreed`) is in conflict, unless one side is preferred: `source` is
    theirs, `dest` is ours.
    """
    taken: list[tuple[str, Reference | None]] = []
    conflicts: list[EntryConflict] = []
    for path, base, theirs in changes:
        mine = ours.get(path)
        if theirs in (mine, base):
            continue
        result = theirs if prefer == "source" else agreed(base, mine, theirs)
        if result is not UNCLEAR:
            taken += [(path, result)] if result != mine else []
        elif prefer != "dest":
            conflicts.append(EntryConflict(path, None if base is UNCLEAR else base, mine, theirs))
    return tuple(taken), conflicts


def _is_later(base: Base, first: Base, second: Base) -> bool:
    """Tell whether `second` holds all rows that `first` holds: one table, later, and neither went back."""
    return (
        (base is None or isinstance(base, TableAt))
        and is_older(second, first)
        and not any(is_older(base, side) for side in (first, second))
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """What a committer knows of its request."""

    request: str
    scope: str
    """The branch, with its id: one of the same name that was made since is another."""
    since: str
    """No commit up to this one carries the request, unless it was submitted before."""
    is_announced: bool = False
    was_sealed: bool = False
    """It has been on the list of the branch: from then on there is an answer to it."""
    looks: int = 0
    """While it waited for others."""
    looks_in_vain: int = 0
    """Of these, since the head moved last."""

    @property
    def is_known(self) -> bool:
        """Whether others know of the request, so that one of them may have answered it."""
        return self.is_announced or self.was_sealed

    def seen(self, branch: BranchRecord) -> Submission:
        """Return what is known once the record was looked at."""
        is_sealed = state_of(branch, self.request) is RequestState.SEALED
        return replace_fields(self, was_sealed=self.was_sealed or is_sealed)

    def not_found(self, branch: BranchRecord) -> Submission:
        """Return what is known once the history was looked through up to the head, and has no answer."""
        return replace_fields(self, since=branch.head)

    def announced(self) -> Submission:
        """Return what is known once others are told of the request."""
        return replace_fields(self, is_announced=True)

    def put_on_list(self, *, was_sealed: bool) -> Submission:
        """Return what is known once it was tried to seal the request."""
        return replace_fields(self, was_sealed=was_sealed)

    def waited(self, looks: int, *, head_moved: bool) -> Submission:
        """Return what is known after so many looks; where the head moved, whoever builds is alive."""
        in_vain = 0 if head_moved else self.looks_in_vain + looks
        return replace_fields(self, looks=self.looks + looks, looks_in_vain=in_vain)


@dataclass(frozen=True, slots=True)
class Return:
    """The record has the answer."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Leave:
    """The branch was deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Seek:
    """The record does not know the request: look for an answer that has left it."""


@dataclass(frozen=True, slots=True)
class Miss:
    """It was sealed, and there is no answer anywhere."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another is about to build: look again, so many times at most."""

    looks: int


@dataclass(frozen=True, slots=True)
class Build:
    """It is on the list: build what is there."""


@dataclass(frozen=True, slots=True)
class PutOnList:
    """Seal it, or where another is faster, announce it."""


Act: TypeAlias = Return | Leave | Seek | Miss | Wait | Build | PutOnList


def next_act(
    known: Submission,
    branch: BranchRecord,
    scope: str,
    *,
    is_there: bool,
    has_sought: bool,
    patience_polls: int,
) -> Act:
    """Return what to do.

    Args:
        known: what is known, the record included (`Submission.seen`).
        branch: the record as it was read last.
        scope: its branch, with its id.
        is_there: whether there is such a branch, or it is one that the first commit makes.
        has_sought: whether the answer was sought since the record was read, and not found.
        patience_polls: looks at a branch before others are helped that build.
    """
    if not is_there or scope != known.scope:
        return Leave()
    state = state_of(branch, known.request)
    if state is RequestState.DONE:
        return Return(next(answer for answer in branch.done if answer.request == known.request))
    if state is RequestState.UNKNOWN:
        if not has_sought:
            return Seek()
        if known.was_sealed:
            return Miss()
    patient = patience_polls * patience(branch, known.request)
    if known.is_known and known.looks_in_vain < patient:
        return Wait(patient - known.looks_in_vain)
    return Build() if state is RequestState.SEALED else PutOnList()
