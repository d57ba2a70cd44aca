"""Every decision of a shard, over all small cases."""

from __future__ import annotations

import itertools

import pytest

from tracelake.shards.model import BatchRef, ShardState
from tracelake.shards.protocol import (
    RECENT_MAX,
    AlreadyThere,
    Swap,
    UpperMismatch,
    Verdict,
    append,
    classify,
    remembers,
    visible,
)


def a_batch(lower: int, id: str = "x", upper: int | None = None) -> BatchRef:
    return BatchRef(lower, upper or lower + 1, id, f"{id}.json", "00", rows=1, parts=1, size_bytes=1)


def test_classify_is_total_and_never_waits_behind_upper() -> None:
    """Each (ts, upper, frontier) has one verdict: below upper is always dropped, never held (S1, S3)."""
    for ts, upper, frontier in itertools.product(range(5), repeat=3):
        verdict = classify(ts, upper, frontier)
        if ts < upper:
            assert verdict is Verdict.DROP
        elif ts == upper and ts < frontier:
            assert verdict is Verdict.PROCESS
        else:
            assert verdict is Verdict.HOLD


@pytest.mark.parametrize(
    ("upper", "frontier", "rows", "expected"),
    [
        (10, 11, (5, 7), "dd"),  # S1
        (10, 13, (5, 10, 12), "dph"),  # S2
        (10, 8, (5, 7), "dd"),  # S3, dropped early, which is legal too
        (3, 4, (0, 2, 3), "ddp"),  # S4: a peer moved U to 3
    ],
)
def test_s1_to_s4_by_verdict(upper: int, frontier: int, rows: tuple[int, ...], expected: str) -> None:
    """The scenarios as verdicts: d drop, p process, h hold."""
    letters = {Verdict.DROP: "d", Verdict.PROCESS: "p", Verdict.HOLD: "h"}
    assert "".join(letters[classify(ts, upper, frontier)] for ts in rows) == expected


def test_append_succeeds_iff_upper_is_lower() -> None:
    """Over all uppers and lowers: a swap where they meet, a mismatch with the upper elsewhere."""
    for upper, lower in itertools.product(range(4), repeat=2):
        decision = append(ShardState(upper=upper), lower, lower + 1, a_batch(lower))
        if upper == lower:
            assert decision == Swap(
                ShardState(upper=lower + 1, batches=(a_batch(lower),), recent=((lower, "x"),), seq=1)
            )
        else:
            assert decision == UpperMismatch(upper)


def test_s8_a_batch_that_is_there_is_not_appended_again() -> None:
    """S8: after a lost reply the id of our batch decides, even when others have appended since."""
    recent = ((0, "a"), (1, "b"), (2, "c"))
    state = ShardState(upper=3, batches=(a_batch(0, "a"), a_batch(1, "b"), a_batch(2, "c")), recent=recent)
    assert append(state, 1, 2, a_batch(1, "b")) == AlreadyThere()
    assert append(state, 1, 2, a_batch(1, "other")) == UpperMismatch(3)
    compacted = ShardState(upper=3, batches=(a_batch(0, "abc", upper=3),), recent=recent)
    assert append(compacted, 1, 2, a_batch(1, "b")) == AlreadyThere()


def test_s8_what_a_state_remembers_is_bounded_and_it_knows_so() -> None:
    """S8: the ids of the last RECENT_MAX appends are kept; for an older one the state says that it cannot tell."""
    state = ShardState()
    for t in range(RECENT_MAX + 2):
        decision = append(state, t, t + 1, a_batch(t, f"b{t}"))
        assert isinstance(decision, Swap)
        state = decision.state
    assert len(state.recent) == RECENT_MAX
    assert [remembers(state, t) for t in (0, 1, 2, 3)] == [False, False, True, True]
    assert append(state, 2, 3, a_batch(2, "b2")) == AlreadyThere()


def test_an_empty_batch_advances_upper() -> None:
    """No rows, no entry, but the time has passed."""
    assert append(ShardState(upper=2), 2, 3, None) == Swap(ShardState(upper=3, seq=1))


def test_visible_batches_as_of_each_time() -> None:
    """Reading as of t sees the batches up to and with t; outside of the shard's times it is refused."""
    state = ShardState(upper=4, batches=(a_batch(0, "a"), a_batch(2, "c")))
    assert [[batch.id for batch in visible(state, t)] for t in (-1, 0, 1, 2, 3)] == [
        [],
        ["a"],
        ["a"],
        ["a", "c"],
        ["a", "c"],
    ]
    for t in (-2, 4):
        with pytest.raises(ValueError, match="outside"):
            visible(state, t)
