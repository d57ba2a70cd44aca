"""Staged parts that form an index: every bucket exactly once, one fingerprint, one attempt a range."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.altered import altered
from tracelake._errors import DamageError, UsageError
from tracelake.search import protocol
from tracelake.search.model import Manifest, PartRef, Receipt, Redaction, manifest_path, part_path
from tracelake.search.protocol import (
    INDEX_NEWEST_PARTS_MAX,
    assemble,
    choose,
    lists_to_join,
    parts_of_build,
)

OURS = "settings-1"


def receipt(
    lo: int,
    hi: int,
    attempt: str = "a",
    fingerprint: str = OURS,
    documents: int = 1,
    sha256: str | None = None,
) -> Receipt:
    """Return a receipt; by default its checksum comes from its range."""
    return Receipt(
        build="b",
        lo=lo,
        hi=hi,
        attempt=attempt,
        documents=documents,
        fingerprint=fingerprint,
        size_bytes=10 * documents,
        sha256=(sha256 or f"{lo:032x}{hi:032x}") if documents else None,
        path=f"staged {lo}-{hi} {attempt}" if documents else None,
    )


def ranges(receipts: list[Receipt]) -> list[tuple[int, int]]:
    """Return the ranges alone."""
    return [(one.lo, one.hi) for one in receipts]


def test_f7_one_attempt_of_speculative_twins_is_used() -> None:
    """F7: one of two attempts at a range is chosen, in any order of the listing."""
    twins = [receipt(0, 2, "b"), receipt(2, 4, "a"), receipt(0, 2, "a"), receipt(2, 4, "c")]
    for order in itertools.permutations(twins):
        assert [one.attempt for one in choose("b", order, 4, OURS)] == ["a", "a"]


@pytest.mark.parametrize(
    ("have", "missing"),
    [([], "[0, 8)"), ([(0, 4)], "[4, 8)"), ([(4, 8)], "[0, 4)"), ([(0, 2), (5, 8)], "[2, 5)")],
)
def test_f9_a_missing_range_is_named(have: list[tuple[int, int]], missing: str) -> None:
    """F9: the error names the first buckets without a receipt."""
    with pytest.raises(DamageError, match="no receipt for buckets") as caught:
        choose("b", [receipt(lo, hi) for lo, hi in have], 8, OURS)
    assert f"buckets {missing} of [0, 8)" in str(caught.value)


def test_ranges_that_only_overlap_are_refused_by_name() -> None:
    """Ranges that reach every bucket but only overlap are named."""
    with pytest.raises(DamageError, match=r"\[0, 5\), \[3, 8\) overlap"):
        choose("b", [receipt(0, 5), receipt(3, 8)], 8, OURS)


def test_a_cover_is_found_among_the_leftovers_of_another_layout() -> None:
    """J10: a run with 2 workers died, a run with 5 finished; leftovers that fit nowhere are ignored."""
    first_run = [receipt(0, 4)]
    second_run = [receipt(0, 2), receipt(2, 3), receipt(3, 6), receipt(6, 7), receipt(7, 8)]
    chosen = choose("b", first_run + second_run, 8, OURS)
    assert ranges(chosen) == [(0, 2), (2, 3), (3, 6), (6, 7), (7, 8)]


def test_f12_parts_with_other_settings_are_not_mixed_in() -> None:
    """F12: if only mixed settings cover the input, it is refused and the other part named."""
    mixed = [receipt(0, 4), receipt(4, 8, "z", "settings-2")]
    with pytest.raises(UsageError, match=r"\[4, 8\) attempt z was built with the settings settings-2"):
        choose("b", mixed, 8, OURS)


def test_leftovers_with_other_settings_do_no_harm() -> None:
    """Staged parts of another version are ignored if parts with our settings cover the input."""
    chosen = choose("b", [receipt(0, 8, "a", "settings-2"), receipt(0, 4), receipt(4, 8)], 8, OURS)
    assert {one.fingerprint for one in chosen} == {OURS}


@given(st.data())
def test_a_cover_is_found_if_and_only_if_there_is_one(data: st.DataObject) -> None:
    """Compared with all subsets, chosen ranges cover exactly, and no coverable input is refused."""
    size = data.draw(st.integers(1, 6))
    possible = [(lo, hi) for lo in range(size) for hi in range(lo + 1, size + 1)]
    have = data.draw(st.lists(st.sampled_from(possible), unique=True, max_size=7))

    def covers(some: tuple[tuple[int, int], ...]) -> bool:
        return sorted(bucket for lo, hi in some for bucket in range(lo, hi)) == list(range(size))

    exists = any(covers(some) for n in range(len(have) + 1) for some in itertools.combinations(have, n))
    try:
        chosen = ranges(choose("b", [receipt(lo, hi) for lo, hi in have], size, OURS))
    except DamageError:
        assert not exists
    else:
        assert covers(tuple(chosen))
        assert chosen == sorted(chosen)


def test_parts_of_the_parent_come_first_and_empty_ranges_have_none() -> None:
    """The parent's parts come first, then the new ones in order of range, and none for no documents."""
    parent = assemble("spans", "b", 1, [receipt(0, 4), receipt(4, 8)], None, OURS)
    child = assemble(
        "spans", "c", 2, [receipt(0, 1), receipt(1, 7, documents=0), receipt(7, 8)], parent, OURS
    )
    assert child.newest[:2] == parent.newest
    assert [(part.lo, part.hi, part.lower, part.upper) for part in child.newest[2:]] == [
        (0, 1, 1, 2),
        (7, 8, 1, 2),
    ]
    assert child.parent == manifest_path("spans", "b")
    assert child.documents == 4
    assert all(part.path == part_path("spans", "b", part.sha256) for part in child.newest)
    assert (child.part_count, child.lists) == (4, ())


@pytest.mark.parametrize(("index", "upper"), [("other", 2), ("spans", 1), ("spans", 0)])
def test_a_parent_of_another_index_or_a_later_time_is_refused(index: str, upper: int) -> None:
    """A manifest extends only an earlier one of the same index."""
    parent = assemble("spans", "b", 1, [receipt(0, 8)], None, OURS)
    with pytest.raises(UsageError, match="cannot follow"):
        assemble(index, "c", upper, [receipt(0, 7)], parent, OURS)


def test_records_read_back_as_they_were_written() -> None:
    """Receipts and manifests survive their JSON, with and without parts."""
    for one in (receipt(0, 8), receipt(0, 8, documents=0)):
        assert Receipt.from_json(one.to_json("r"), "r") == one
    manifest = assemble("spans", "b", 1, [receipt(0, 4), receipt(4, 8)], None, OURS)
    assert Manifest.from_json(manifest.to_json("m"), "m") == manifest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format_version":1', b'"format_version":2'),
        (b'"documents":1', b'"documents":0'),
        (b'"upper":1', b'"upper":-1'),
        (b'"upper":1', b'"upper":1,"surprise":0'),
        (b'"lo":0', b'"lo":"0"'),
        (b"parts/b/0", b"parts/b/1"),
        (b"{", b"["),
    ],
)
def test_an_altered_manifest_is_refused_by_name(old: bytes, new: bytes) -> None:
    """A malformed manifest is damage, and the error names the object."""
    manifest = assemble("spans", "b", 1, [receipt(0, 4), receipt(4, 8)], None, OURS)
    with pytest.raises(DamageError, match=r"manifest some/path (cannot be read|has format 2)"):
        Manifest.from_json(altered(manifest.to_json("some/path"), old, new, "some/path"), "some/path")


def test_a_receipt_that_contradicts_itself_is_refused() -> None:
    """A receipt is consistent in every field, and its range is not empty."""
    data = receipt(0, 8).to_json("r")
    for old, new in ((b'"documents":1', b'"documents":0'), (b'"hi":8', b'"hi":0')):
        with pytest.raises(DamageError, match="receipt r cannot be read"):
            Receipt.from_json(altered(data, old, new, "r"), "r")


def test_lists_stay_few_and_parts_are_seldom_written_again() -> None:
    """Over thousands of parts, a manifest names few, and all lists together hold each part about log2(n) times."""
    lists: list[int] = []
    newest = written = longest = 0
    for parts in [1, 4, 1, 1, 60] * 800:
        newest += parts
        joined = lists_to_join(lists, newest)
        if joined is not None:
            kept = len(lists) - joined
            lists, newest = [*lists[:kept], sum(lists[kept:]) + newest], 0
            written += lists[-1]
        longest = max(longest, len(lists))
        assert newest <= INDEX_NEWEST_PARTS_MAX
        assert all(one > 2 * other for one, other in itertools.pairwise(lists))
    total = sum(lists) + newest
    assert total == 800 * 67
    assert longest <= 16
    assert written <= total * 16


def test_redacted_parts_are_replaced() -> None:
    """The last replacement counts, a part without documents disappears, and an unwritten replacement does not count."""
    first, empty, pending, other, second, third = _parts(6)
    redactions = [
        Redaction(path=first.path, erasure="x", part=second, is_written=True),
        Redaction(path=second.path, erasure="y", part=third, is_written=True),
        Redaction(path=empty.path, erasure="x", is_written=True),
        Redaction(path=pending.path, erasure="x", part=second),
    ]
    by_path = {each.path: each for each in redactions}
    assert protocol.redacted([first, empty, pending, other], by_path) == (third, pending, other)


def _parts(count: int) -> list[PartRef]:
    return parts_of_build("i", [receipt(number, number + 1) for number in range(count)], 0, 1, as_of=0)


def test_few_parts_need_no_list() -> None:
    """Up to the limit a manifest names all parts itself, and with one more it uses a list."""
    assert lists_to_join([], INDEX_NEWEST_PARTS_MAX) is None
    assert lists_to_join([], INDEX_NEWEST_PARTS_MAX + 1) == 0
    assert lists_to_join([100, 18, 9], 9) == 2
    assert lists_to_join([100, 40], 9) == 0
