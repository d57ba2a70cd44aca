"""Decisions of erasures: exhaustively, and in every order of an eraser, a slow writer and crashes."""

from __future__ import annotations

from itertools import product

import pytest

from tracelake.erasure.protocol import (
    ErasureStep,
    Mask,
    MaskEntry,
    Observation,
    next_step,
    with_entry,
    with_late_spans,
    without_entry,
    without_expired,
)

PLACES = ("tracking_rows", "waiting", "requests", "table_rows", "documents", "examples")


def _all() -> list[Observation]:
    return [
        Observation(*counts, is_resolved=is_resolved, is_collected=is_collected, damaged_packs=damaged)
        for counts in product((0, 2), (0, 2), (0, 2), (0, 2), (0, 2), (0, 2))
        for is_resolved, is_collected in product((False, True), repeat=2)
        for damaged in (0, 2)
    ]


def check_finish_only_without_data() -> None:
    """An erasure ends only if nothing is left, and after a collection."""
    for seen in _all():
        is_free = not any(getattr(seen, place) for place in (*PLACES, "damaged_packs"))
        is_free = is_free and seen.is_resolved and seen.is_collected
        assert (next_step(seen) is ErasureStep.FINISH) == is_free, seen


def check_collection_is_last() -> None:
    """Objects are collected only when no state names one with erased rows."""
    for seen in _all():
        if next_step(seen) is ErasureStep.COLLECT:
            assert not any(getattr(seen, place) for place in PLACES), seen
            assert seen.is_resolved
        if next_step(seen) is ErasureStep.PACKS:
            assert seen.is_collected, "everything else comes first"


def check_rows_wait_for_input() -> None:
    """No part is rewritten while input from before the request is pending, because it would bring rows back."""
    for seen in _all():
        if seen.waiting or seen.tracking_rows:
            assert next_step(seen) in (ErasureStep.TRACKING, ErasureStep.WAIT), seen
        elif seen.requests:
            assert next_step(seen) is ErasureStep.REQUESTS, seen


def check_mask() -> None:
    """Each change has a new number, a repeated one changes nothing, and others stay hidden."""
    first, second, wider = MaskEntry("a", "1"), MaskEntry("b", "2"), MaskEntry("a", "3")
    mask = with_entry(with_entry(Mask(), first), second)
    assert (mask.number, mask.entries) == (2, (first, second))
    assert with_entry(mask, first) is mask
    assert with_entry(mask, wider) == Mask(3, (second, wider))
    assert without_entry(mask, "a", 0) == Mask(3, (second,), (first,))
    assert without_entry(mask, "c", 0) is mask


def check_late_spans() -> None:
    """An erasure with late spans in transaction 4, open or finished, hides them until it has looked at the
    transaction."""
    open_one = with_entry(Mask(), MaskEntry("a", "1"))
    for mask in (open_one, without_entry(open_one, "a", 3)):
        late = with_late_spans(mask, ["a", "unknown"], 4)
        assert (late.entries, late.finished) == ((MaskEntry("a", "1", 4),), ())
        assert late.number == mask.number + 1
        assert with_late_spans(late, ["a"], 3) is late
        assert without_entry(late, "a", 4) is late
        wider = with_entry(late, MaskEntry("a", "2"))
        assert wider.entries == (MaskEntry("a", "2", 4),)
        ended = without_entry(late, "a", 5)
        assert (ended.entries, ended.finished) == ((), (MaskEntry("a", "1", 4),))
        assert without_expired(ended, ["a"]) == Mask(ended.number)
        assert without_expired(late, ["a"]) is late


@pytest.mark.parametrize(
    "check",
    [
        check_finish_only_without_data,
        check_collection_is_last,
        check_rows_wait_for_input,
        check_mask,
        check_late_spans,
    ],
)
def test_decisions(check: object) -> None:
    """Each rule holds for all observations."""
    assert callable(check)
    check()
