"""Decisions about branches, over all small cases."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from tracelake.versions.model import (
    EPOCH_UNSET,
    Answer,
    BranchRecord,
    Change,
    FileAt,
    Reference,
    Request,
    Revert,
    SealedRequest,
    TableAt,
)
from tracelake.versions.protocol import (
    UNCLEAR,
    Base,
    EntryConflict,
    RequestState,
    agreed,
    cut,
    effective,
    is_older,
    merged,
    patience,
    requests_in,
    seal,
    split_answers,
    state_of,
)

FILES: list[Reference | None] = [None, FileAt("a", 1), FileAt("b", 2), FileAt("c", 3)]
TABLES: list[Reference | None] = [None, *(TableAt("t", as_of) for as_of in range(3)), TableAt("other", 1)]


def a_request(name: str, *, staged: bool = False) -> Request:
    return Request(name, Change(staged=staged), "", "", "", {})


def sealed(*names: str) -> tuple[SealedRequest, ...]:
    return tuple(SealedRequest(a_request(name)) for name in names)


def answers(*names: str) -> tuple[Answer, ...]:
    return tuple(Answer(name, f"commit of {name}") for name in names)


def test_place_of_a_request() -> None:
    """A request is done, on the list, or unknown; a recorded answer takes precedence."""
    branch = BranchRecord(sealed=sealed("a", "b"), done=answers("c", "d"))
    places = {name: state_of(branch, name) for name in "abcde"}
    assert places == {
        "a": RequestState.SEALED,
        "b": RequestState.SEALED,
        "c": RequestState.DONE,
        "d": RequestState.DONE,
        "e": RequestState.UNKNOWN,
    }
    assert requests_in(branch) == set("abcd")
    assert [patience(branch, name) > 0 for name in "abx"] == [False, True, True]
    assert patience(BranchRecord(done=answers("c")), "x") == 0
    assert [patience(replace(branch, sealed=sealed(*"abcde")), name) for name in "abcdex"] == [
        0,
        1,
        2,
        2,
        3,
        3,
    ]


@pytest.mark.parametrize("there", list(itertools.permutations("abc", 2)))
@pytest.mark.parametrize("new", [p for n in range(4) for p in itertools.product("abcd", repeat=n)])
def test_seal_takes_each_request_once(there: tuple[str, str], new: tuple[str, ...]) -> None:
    """Sealing skips known requests and duplicates, and appends the others in order."""
    branch = BranchRecord("", "head", "old", sealed(there[0]), answers(there[1]), epoch=3)
    made = seal(branch, [a_request(name) for name in new], "new", 9)
    expected = [there[0], *dict.fromkeys(name for name in new if name not in there)]
    assert [item.request.id for item in made.sealed] == expected
    assert replace(made, sealed=branch.sealed) == branch


@pytest.mark.parametrize("staged", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("token", ["", "old"])
def test_seal_gives_the_token_to_the_first_that_takes_what_is_staged(
    staged: tuple[bool, ...], token: str
) -> None:
    """The first request that takes the staged entries gets the token; others and the branch get fresh ones."""
    requests = [a_request(str(number), staged=takes) for number, takes in enumerate(staged)]
    made = seal(BranchRecord(staging=token), requests, "new", 4)
    given = [item.token for item, takes in zip(made.sealed, staged, strict=True) if takes]
    assert [item.token for item, takes in zip(made.sealed, staged, strict=True) if not takes] == [""] * (
        3 - len(given)
    )
    assert given[:1] == [token][: len(given)]
    fresh = [*given[1:], made.staging] if given or not token else []
    assert all(name.startswith("new") for name in fresh)
    assert len({*fresh}) == len(fresh)
    assert fresh or made.staging == "old"
    assert made.epoch == 4


def test_seal_leaves_an_epoch_that_is_set() -> None:
    """Sealing sets the epoch only of a branch that has none."""
    assert BranchRecord().epoch == EPOCH_UNSET
    assert seal(BranchRecord(epoch=0), [a_request("a")], "t", 7).epoch == 0
    assert (
        not seal(BranchRecord(staging="s"), [Request("r", Revert("c"), "", "", "", {})], "t", 0)
        .sealed[0]
        .token
    )


@pytest.mark.parametrize("began", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("now", ["", "a", "ab", "abc", "b", "ba", "bc", "abcd"])
@pytest.mark.parametrize("head", ["head", "other"])
@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_cut(began: str, now: str, head: str, epochs: int) -> None:
    """A build is cut if it is still the beginning of the list, on the same head, and not too old."""
    built = BranchRecord("id", "head", "old", sealed(*began), answers("x"), epoch=5)
    branch = BranchRecord("id", head, "new", sealed(*now), answers("x"), True, 5 + epochs)
    made = cut(branch, built, "next", answers("y"))
    if now.startswith(began) and head == "head" and epochs < 2:
        assert made == BranchRecord(
            "id", "next", "new", sealed(*now[len(began) :]), answers("y"), True, 5 + epochs
        )
    else:
        assert made is None


@pytest.mark.parametrize(("old", "new", "at_least"), list(itertools.product(range(4), range(1, 4), range(5))))
def test_kept(old: int, new: int, at_least: int) -> None:
    """All new answers and a limited number of older ones are kept, in order."""
    before = answers(*(f"old {number}" for number in range(old)))
    after = answers(*(f"new {number}" for number in range(new)))
    stay, leave = split_answers(before, after, at_least)
    assert (*leave, *stay) == (*before, *after)
    assert len(stay) == new + min(old, at_least)


@pytest.mark.parametrize(("before", "after"), list(itertools.product([*FILES[:2], *TABLES], repeat=2)))
def test_is_older(before: Reference | None, after: Reference | None) -> None:
    """Only one table at two times is older or newer."""
    same = isinstance(before, TableAt) and isinstance(after, TableAt) and before.shard == after.shard
    expected = (
        same and isinstance(before, TableAt) and isinstance(after, TableAt) and before.as_of > after.as_of
    )
    assert is_older(before, after) == expected


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize(("there", "wanted"), list(itertools.product([*FILES[:3], *TABLES[1:]], repeat=2)))
def test_effective(forward: bool, there: Reference | None, wanted: Reference | None) -> None:
    """A change without effect is dropped; so is one that takes a table back, if only forward changes are allowed."""
    found = effective(Change(forward=forward), (("p", wanted),), {} if there is None else {"p": there})
    left_out = there == wanted or (forward and is_older(there, wanted))
    assert found == (() if left_out else (("p", wanted),))


@pytest.mark.parametrize("prefer", ["", "source", "dest"])
@pytest.mark.parametrize(("base", "mine", "theirs"), list(itertools.product(FILES, repeat=3)))
def test_merged_files(
    prefer: str, base: Reference | None, mine: Reference | None, theirs: Reference | None
) -> None:
    """A merge takes their entry if ours is unchanged; different changes are a conflict unless a side is preferred."""
    if base == theirs:
        return  # no difference
    taken, conflicts = merged([("p", base, theirs)], {} if mine is None else {"p": mine}, prefer)
    both = mine not in (base, theirs)
    assert bool(taken) == (mine == base or (both and prefer == "source"))
    assert taken in ((), (("p", theirs),))
    assert conflicts == ([EntryConflict("p", base, mine, theirs)] if both and not prefer else [])


@pytest.mark.parametrize(("base", "side"), list(itertools.product([UNCLEAR, *FILES, *TABLES], FILES)))
def test_what_is_unclear_stays_unclear(base: Base, side: Reference | None) -> None:
    """An ambiguous ancestor equals no entry, so no entry counts as unchanged from it."""
    assert agreed(base, UNCLEAR, side) is agreed(base, side, UNCLEAR) is UNCLEAR
    mine = FileAt("2" * 64, 9)
    assert agreed(UNCLEAR, mine, side) is UNCLEAR
    assert merged([("p", UNCLEAR, side)], {"p": mine}) == ((), [EntryConflict("p", None, mine, side)])
    assert agreed(UNCLEAR, mine, mine) == mine


@pytest.mark.parametrize(("base", "mine", "theirs"), list(itertools.product(TABLES, repeat=3)))
def test_merged_tables(base: Reference | None, mine: Reference | None, theirs: Reference | None) -> None:
    """If both sides advanced one table, the merge takes the later time, which has all rows; this is no conflict."""
    if base == theirs:
        return  # no difference
    taken, conflicts = merged([("p", base, theirs)], {} if mine is None else {"p": mine})
    is_one = len({side.shard for side in (mine, theirs) if isinstance(side, TableAt)}) == 1
    went_on = (
        mine is not None and theirs is not None and not is_older(base, mine) and not is_older(base, theirs)
    )
    if mine == theirs:
        assert (taken, conflicts) == ((), [])
    elif mine == base:
        assert (taken, conflicts) == ((("p", theirs),), [])
    elif is_one and went_on:
        assert (taken, conflicts) == ((("p", theirs),) if is_older(theirs, mine) else (), [])
    else:
        assert (taken, conflicts) == ((), [EntryConflict("p", base, mine, theirs)])
