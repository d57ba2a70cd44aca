"""Decisions of erasures: exhaustively, and in every order of an eraser, a slow writer and crashes."""

from __future__ import annotations

from itertools import product

import pytest

from tracelake.erasure.model import Mask, MaskEntry
from tracelake.erasure.protocol import ErasureStep, Observation, next_step, with_entry, without_entry

PLACES = ("tracking_rows", "waiting", "table_rows", "documents", "examples")


def _all() -> list[Observation]:
    return [
        Observation(*counts, is_resolved=is_resolved, is_collected=is_collected)
        for counts in product((0, 2), (0, 2), (0, 2), (0, 2), (0, 2))
        for is_resolved, is_collected in product((False, True), repeat=2)
    ]


def check_finish_only_without_data() -> None:
    """An erasure ends only if nothing is left, and after a collection."""
    for seen in _all():
        is_free = not any(getattr(seen, place) for place in PLACES) and seen.is_resolved and seen.is_collected
        assert (next_step(seen) is ErasureStep.FINISH) == is_free, seen


def check_collection_is_last() -> None:
    """Objects are collected only when no state names one with erased rows."""
    for seen in _all():
        if next_step(seen) is ErasureStep.COLLECT:
            assert not any(getattr(seen, place) for place in PLACES), seen
            assert seen.is_resolved


def check_rows_wait_for_input() -> None:
    """No part is rewritten while input from before the request is pending, because it would bring rows back."""
    for seen in _all():
        if seen.waiting or seen.tracking_rows:
            assert next_step(seen) in (ErasureStep.TRACKING, ErasureStep.WAIT), seen


def check_mask() -> None:
    """Each change has a number of its own, a repeated one changes nothing, and others stay hidden."""
    first, second, wider = MaskEntry("a", "1"), MaskEntry("b", "2"), MaskEntry("a", "3")
    mask = with_entry(with_entry(Mask(), first), second)
    assert (mask.number, mask.entries) == (2, (first, second))
    assert with_entry(mask, first) is mask
    assert with_entry(mask, wider) == Mask(3, (second, wider))
    assert without_entry(mask, "a") == Mask(3, (second,))
    assert without_entry(mask, "c") is mask


@pytest.mark.parametrize(
    "check", [check_finish_only_without_data, check_collection_is_last, check_rows_wait_for_input, check_mask]
)
def test_decisions(check: object) -> None:
    """Each rule holds for all observations."""
    assert callable(check)
    check()
