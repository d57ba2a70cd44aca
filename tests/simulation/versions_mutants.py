"""The commit protocol with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from tests.simulation.mutants import LOST, NONE, Mutant
from tests.simulation.versions import RepositoryScenario
from tracelake.formats import encode
from tracelake.storage import Done, Indeterminate, settle
from tracelake.testing import Faults
from tracelake.versions.branch_store import BRANCHES, STAGED, BranchRecords, BranchSnapshot, _StagedEntry
from tracelake.versions.commits import Staging
from tracelake.versions.committer import Committer, _Building, _RequestRefusedError, build
from tracelake.versions.model import (
    Announcement,
    Answer,
    BranchRecord,
    PathChanges,
    Range,
    RangeRef,
    Reference,
    Request,
    SealedRequest,
    from_bytes,
    to_bytes,
)
from tracelake.versions.protocol import (
    CommitDecision,
    RequestState,
    cut,
    decide,
    seal,
    split_answers,
    state_of,
)
from tracelake.versions.tree import CommitTree, Tree

Swapped = tuple[bool, BranchSnapshot]
IsMine = Callable[[BranchRecord], bool]

# The conditional write


def blind(
    self: BranchRecords, branch: str, _at: BranchSnapshot, record: BranchRecord, is_mine: IsMine
) -> Swapped:
    """The record is overwritten unconditionally."""
    del is_mine
    return True, BranchSnapshot(record, self._key_value.set(BRANCHES, branch, to_bytes(record)))


def trusting(
    self: BranchRecords, branch: str, at: BranchSnapshot, record: BranchRecord, is_mine: IsMine
) -> Swapped:
    """A lost reply counts as success."""
    del is_mine
    outcome = self._key_value.set_if(BRANCHES, branch, to_bytes(record), at.version)
    if isinstance(outcome, Done | Indeterminate):
        return True, BranchSnapshot(record, outcome.version)
    return False, self.read(branch)


def what_we_wrote(
    self: BranchRecords, branch: str, at: BranchSnapshot, record: BranchRecord, is_mine: IsMine
) -> Swapped:
    """After a lost reply, our record is taken as written, although another writer did the same in another way."""
    outcome = self._key_value.set_if(BRANCHES, branch, to_bytes(record), at.version)
    settled = settle(
        self._key_value,
        BRANCHES,
        branch,
        outcome,
        is_mine=lambda entry: is_mine(from_bytes(BranchRecord, entry.value, branch)),
    )
    return (
        (True, BranchSnapshot(record, settled.version))
        if isinstance(settled, Done)
        else (False, self.read(branch))
    )


# Building

_changed, _view = Tree.changed, Tree.view


def finish_write_last(self: Committer, branch: str, at: BranchSnapshot) -> BranchSnapshot:
    """The head moves before the commit's objects exist."""
    built = build(at.record, self._contents, self._records.layers, self._reaches, self._ancestry)
    stay, leave = split_answers(at.record.done, built.answers, self._answers_retained)
    self._let_go(branch, leave)
    record = cut(at.record, at.record, built.head, stay)
    assert record is not None
    _, at = self._records.swap(
        branch, at, record, lambda found: state_of(found, built.answers[0].request) is RequestState.DONE
    )
    self._contents.write(built.records)
    return at


def finish_again(self: Committer, branch: str, at: BranchSnapshot) -> BranchSnapshot:
    """Commits are built again after every conditional write that fails."""
    is_there = False
    while at.record.sealed and not is_there:
        built = build(at.record, self._contents, self._records.layers, self._reaches, self._ancestry)
        self._contents.write(built.records)
        stay, leave = split_answers(at.record.done, built.answers, self._answers_retained)
        self._let_go(branch, leave)
        record = cut(at.record, at.record, built.head, stay)
        assert record is not None
        is_there, at = self._records.swap(branch, at, record, is_mine=lambda _: False)
    return at


def without_those_between(
    self: Tree, view: CommitTree, changes: PathChanges, epoch: int
) -> tuple[tuple[RangeRef, ...], list[Range]]:
    """A metarange is made from the last one, without the changes of the commits in between."""
    return _changed(self, CommitTree(view.refs), changes, epoch)


def nearest_alone(self: Tree, commit_id: str) -> CommitTree:
    """Only the newest of several commits without a metarange is asked for its changes."""
    view = _view(self, commit_id)
    return CommitTree(view.refs, dict(list(view.since.items())[-1:]), view.commits)


def always_next(transaction: int, head: int | None) -> CommitDecision:
    """An existing transaction is built again."""
    decision = decide(transaction, head)
    return CommitDecision.BUILD if decision is CommitDecision.THERE else decision


def cut_by_head(
    branch: BranchRecord, built: BranchRecord, head: str, done: tuple[Answer, ...]
) -> BranchRecord | None:
    """A cut checks the head alone."""
    seen = replace(built, sealed=branch.sealed[: len(built.sealed)], done=branch.done)
    return cut(branch, seen, head, done)


def seal_keeping_token(
    branch: BranchRecord, requests: tuple[Request, ...], token: str, epoch: int
) -> BranchRecord:
    """The token is unchanged after a seal."""
    return replace(seal(branch, requests, token, epoch), staging=branch.staging or token)


def escaping(self: _Building, sealed: SealedRequest, *, is_last: bool) -> Answer:
    """An error in building one request is raised in its builder, and the requests behind it wait."""
    answer = Answer(sealed.request.id, token=sealed.token)
    try:
        return self._built(sealed, answer, is_last=is_last)
    except _RequestRefusedError as refused:
        return replace(answer, commit=self._head, refusal=refused.why, detail=refused.detail)


def not_restaged(self: BranchRecords, token: str, to: str) -> None:
    """Entries staged for a refused request are lost with it."""
    del self, token, to


def cut_past_a_drop(
    branch: BranchRecord, built: BranchRecord, head: str, done: tuple[Answer, ...]
) -> BranchRecord | None:
    """A cut does not check whether a request was dropped during the build, and removes its answer."""
    return cut(branch, replace(built, done=branch.done), head, done)


# Answers


def forgetful(self: Committer, branch: str, leave: tuple[Answer, ...]) -> None:
    """Answers leave the record without being kept elsewhere."""
    del branch
    for answer in leave:
        self._records.unstage(answer.token)


_finish = Committer.finish


def unstaging(self: Committer, branch: str, at: BranchSnapshot) -> BranchSnapshot:
    """Staged entries are deleted as soon as they are committed."""
    at = _finish(self, branch, at)
    for answer in at.record.done:
        self._records.unstage(answer.token)
    return at


def kept_few(
    done: tuple[Answer, ...], new: tuple[Answer, ...], at_least: int
) -> tuple[tuple[Answer, ...], tuple[Answer, ...]]:
    """New answers may leave the record with the write that adds them."""
    answers = (*done, *new)
    leaving = max(0, len(answers) - at_least)
    return answers[leaving:], answers[:leaving]


_submit = Committer.submit


def unremembered(self: Committer, branch: str, request: Request, at: BranchSnapshot | None = None) -> Answer:
    """A second attempt does not check whether the first one succeeded."""
    return _submit(self, branch, replace(request, remembered=False), at)


def looked_up_first(
    self: Committer, branch: str, request: Request, at: BranchSnapshot | None = None
) -> Answer:
    """The answer to an earlier attempt is looked up before the branch is read, and may leave the record in between."""
    early = self._records.answer(branch, request.id)
    asked = self._records.answer
    vars(self._records)["answer"] = lambda of, asking: early if asking == request.id else asked(of, asking)
    try:
        return _submit(self, branch, request, at)
    finally:
        del vars(self._records)["answer"]


# Announcements

_announce = BranchRecords.announce


def announce_since_now(self: BranchRecords, branch: str, announcement: Announcement) -> None:
    """An announcement names the current head, not the one before which no committer can have sealed the request."""
    _announce(self, branch, replace(announcement, since=self.read(branch).record.head))


def announce_briefly(self: BranchRecords, branch: str, announcement: Announcement) -> None:
    """An announcement is withdrawn before any committer has sealed it."""
    _announce(self, branch, announcement)
    self.withdraw(branch, [announcement.request.id])


def deaf(self: BranchRecords, branch: str) -> list[Announcement]:
    """A committer seals no other requests with its own."""
    del self, branch
    return []


# Staging


def stage_once(self: Staging, branch: str, entries: Mapping[str, Reference | None]) -> None:
    """A writer does not check the token again."""
    token = self._with_token(branch).record.staging
    for path, named in entries.items():
        self._records.stage(token, path, named)


def stage_blindly(self: BranchRecords, token: str, path: str, named: Reference | None) -> None:
    """An entry is staged unconditionally, and may arrive late."""
    self._key_value.set(STAGED, f"{token}/{path}", encode(_StagedEntry((named,))))


def read_once(self: Staging, branch: str, start: str = "", stop: str | None = None) -> dict[str, Reference]:
    """A reader does not check the record again."""
    return self._through(self._records.read(branch).record, start, stop)


_COMMITTER: Final = "tracelake.versions.committer."
_BUILD: Final = "tracelake.versions.committer._Building."
_RECORDS: Final = "tracelake.versions.branch_store.BranchRecords."
_STAGING: Final = "tracelake.versions.commits.Staging."
_TREE: Final = "tracelake.versions.tree.Tree."
FINISH: Final = _COMMITTER + "Committer.finish"
_SUBMIT: Final = _COMMITTER + "Committer.submit"
_DECIDE: Final = "tracelake.versions.repository.decide tracelake.versions.committer.decide"


def _mutant(
    what: str,
    where: str,
    wrong: Any,
    faults: Faults = NONE,
    random_max: int = 100,
    exhaustive_max: int | None = None,
    also: Mapping[str, object] | None = None,
    answers_kept: int = 0,
    patience_polls: int = 1,
    rounds: int = 1,
    **actors: int,
) -> Mutant:
    def scenario() -> RepositoryScenario:
        made = RepositoryScenario(rounds=rounds, **actors)
        made.answers_kept, made.patience_polls = answers_kept, patience_polls
        return made

    return Mutant(
        f"versions: {what}",
        scenario,
        faults,
        exhaustive_max,
        random_max,
        {**(also or {}), **dict.fromkeys(where.split(), wrong)},
    )


KILLED: Final = Faults(kills=2)
MANY_LOST: Final = Faults(lost=4)

_TRIES: Final = {"tracelake.versions.commits.STAGING_READ_TRIES_MAX": 1}
"""A reader with a single look detects every object deleted during its read."""

VERSIONS_MUTANTS = [
    _mutant("blind head", _RECORDS + "swap", blind, exhaustive_max=5, committers=2),
    _mutant("moved, on a lost reply", _RECORDS + "swap", trusting, LOST, 400, exhaustive_max=5, committers=2),
    _mutant(
        "what we wrote is there",
        _RECORDS + "swap",
        what_we_wrote,
        Faults(lost=6),
        300,
        answers_kept=1,
        patience_polls=0,
        rounds=2,
        replicas=2,
        committers=2,
        mergers=1,
    ),
    _mutant("head before the objects", FINISH, finish_write_last, exhaustive_max=1, committers=2),
    _mutant("changes between forgotten", _TREE + "changed", without_those_between, NONE, 300, committers=3),
    _mutant("the nearest change alone", _TREE + "view", nearest_alone, committers=3, sweepers=1),
    _mutant("a transaction built again", _DECIDE, always_next, exhaustive_max=1, rounds=2, replicas=2),
    _mutant(
        "cut by the head", _COMMITTER + "cut", cut_by_head, NONE, 300, sweepers=1, committers=2, mergers=1
    ),
    _mutant("a failure escapes", _BUILD + "_answer", escaping, poisoners=1, committers=1),
    _mutant("not restaged", _RECORDS + "restage", not_restaged, poisoners=1, stagers=1, sweepers=1),
    _mutant(
        "cut past a drop",
        _COMMITTER + "cut",
        cut_past_a_drop,
        NONE,
        300,
        rounds=2,
        droppers=2,
        committers=2,
    ),
    _mutant(
        "the token stays", _COMMITTER + "seal", seal_keeping_token, exhaustive_max=1, stagers=1, sweepers=1
    ),
    _mutant("answers forgotten", _COMMITTER + "Committer._let_go", forgetful, KILLED, rounds=2, committers=2),
    _mutant(
        "new answers may leave",
        _COMMITTER + "split_answers",
        kept_few,
        KILLED,
        100,
        1000,
        sweepers=2,
        committers=2,
    ),
    _mutant("a second try", _SUBMIT, unremembered, KILLED, rounds=2, committers=2),
    _mutant(
        "looked up first",
        _SUBMIT,
        looked_up_first,
        Faults(lost=6),
        400,
        patience_polls=0,
        rounds=2,
        committers=2,
    ),
    _mutant(
        "since now", _RECORDS + "announce", announce_since_now, MANY_LOST, rounds=2, replicas=2, committers=1
    ),
    _mutant("token not read again", _STAGING + "stage", stage_once, NONE, 400, 5, stagers=1, sweepers=1),
    _mutant("staged blindly", _RECORDS + "stage", stage_blindly, Faults(late=2), stagers=1, sweepers=1),
    _mutant(
        "record not read again",
        _STAGING + "scan",
        read_once,
        NONE,
        1_000,
        rounds=2,
        stagers=1,
        sweepers=1,
        readers=3,
    ),
    _mutant(
        "unstaged at once",
        FINISH,
        unstaging,
        NONE,
        300,
        also=_TRIES,
        answers_kept=32,
        rounds=2,
        stagers=1,
        sweepers=1,
        readers=3,
    ),
]
