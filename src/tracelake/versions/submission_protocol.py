"""What a committer does next for its own request, from one look at its branch to the next (PROTOCOLS §3). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from tracelake.versions.model import Answer, BranchRecord
from tracelake.versions.protocol import RequestState, patience, state_of


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
        return replace(self, was_sealed=self.was_sealed or is_sealed)

    def not_found(self, branch: BranchRecord) -> Submission:
        """Return what is known once the history was looked through up to the head, and has no answer."""
        return replace(self, since=branch.head)

    def announced(self) -> Submission:
        """Return what is known once others are told of the request."""
        return replace(self, is_announced=True)

    def put_on_list(self, *, was_sealed: bool) -> Submission:
        """Return what is known once it was tried to seal the request."""
        return replace(self, was_sealed=was_sealed)

    def waited(self, looks: int, *, head_moved: bool) -> Submission:
        """Return what is known after so many looks; where the head moved, whoever builds is alive."""
        in_vain = 0 if head_moved else self.looks_in_vain + looks
        return replace(self, looks=self.looks + looks, looks_in_vain=in_vain)


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
