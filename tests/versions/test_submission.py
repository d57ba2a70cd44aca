"""The committer's next act, for every state of its request and its branch."""

from __future__ import annotations

from itertools import product

from tracelake.versions.model import Answer, BranchRecord, Change, Request, SealedRequest
from tracelake.versions.protocol import (
    Act,
    Build,
    Leave,
    Miss,
    PutOnList,
    Return,
    Seek,
    Submission,
    Wait,
    next_act,
)

PATIENCE = 3
ANSWER = Answer("mine", "a-commit")


def sealed(request: str) -> SealedRequest:
    """Return a request that is on the list."""
    return SealedRequest(Request(request, Change(()), "message", "committer", "2026-01-01T00:00:00+00:00"))


RECORDS = {
    "answered": BranchRecord(done=(Answer("other", "b-commit"), ANSWER)),
    "first": BranchRecord(sealed=(sealed("mine"), sealed("other"))),
    "second": BranchRecord(sealed=(sealed("other"), sealed("mine"))),
    "others": BranchRecord(sealed=(sealed("other"),)),
    "none": BranchRecord(),
}


def act_of(record: str, known: Submission, *, is_there: bool = True, has_sought: bool = False) -> Act:
    """Return the act of a committer that has read a record."""
    branch = RECORDS[record]
    return next_act(
        known.after_read(branch),
        branch,
        "main",
        is_there=is_there,
        has_sought=has_sought,
        patience_polls=PATIENCE,
    )


def test_every_state_has_its_act() -> None:
    """Each state has its act; on a deleted branch the only act is to leave."""
    either = (False, True)
    for record, announced, was_sealed, sought in product(RECORDS, either, either, either):
        known = Submission("mine", "main", "", announced, was_sealed)
        act = act_of(record, known, has_sought=sought)
        if record == "answered":
            assert act == Return(ANSWER)
        elif record == "first":
            assert act == Build()
        elif record == "second":
            assert act == Wait(PATIENCE)
        elif not sought:
            assert act == Seek()
        elif was_sealed:
            assert act == Miss()
        else:
            assert act == (Wait(PATIENCE) if announced and record == "others" else PutOnList())
        assert act_of(record, known, is_there=False) == Leave()
        assert act_of(record, Submission("mine", "main of old", "", announced, was_sealed)) == Leave()


def test_patience_has_an_end_unless_the_head_moves() -> None:
    """A committer helps after its wait; a moving head shows progress and restarts the wait."""
    known = Submission("mine", "main", "")
    assert act_of("second", known) == Wait(3)
    assert act_of("second", known.waited(2, head_moved=False)) == Wait(1)
    assert act_of("second", known.waited(2, head_moved=False).waited(1, head_moved=False)) == Build()
    assert act_of("second", known.waited(2, head_moved=False).waited(1, head_moved=True)) == Wait(3)
    assert known.waited(2, head_moved=True).looks == 2  # pauses grow nevertheless


def test_what_is_known_only_grows() -> None:
    """Knowledge only grows: a sealed or announced request stays known, and is not looked up again."""
    known = Submission("mine", "main", "")
    assert not known.is_visible
    assert known.after_read(RECORDS["second"]).after_read(RECORDS["none"]).was_sealed
    assert known.announced().is_visible
    assert known.after_search(BranchRecord(head="newer")).since == "newer"
