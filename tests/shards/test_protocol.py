"""Every decision of a shard, over all small cases."""

from __future__ import annotations

import itertools
import math

import pytest

from tracelake import batching
from tracelake.shards.model import BatchRef, LeaseRecord, Moment, Retired, ShardState
from tracelake.shards.protocol import (
    APPENDS_REMEMBERED,
    COMPACTION_FAN_OUT,
    LEASE_MARGIN_S,
    AlreadyThere,
    LostAppend,
    Swap,
    TooLate,
    UpdateFate,
    UpperMismatch,
    append,
    classify,
    collectable,
    drop_retired,
    due,
    forget,
    is_lease_expired,
    is_orphan_epoch,
    next_epoch,
    remembers,
    replace,
    rewrite,
    visible,
)


def a_batch(lower: int, id: str = "x", upper: int | None = None, weight: int = 1) -> BatchRef:
    return BatchRef(
        lower, upper or lower + 1, id, f"{id}.json", "00", rows=1, parts=1, size_bytes=1, weight=weight
    )


def a_state(batches: int, **fields: object) -> ShardState:
    refs = tuple(a_batch(lower, f"b{lower}") for lower in range(batches))
    return ShardState(upper=batches, batches=refs, **fields)  # type: ignore[arg-type]


def test_classify_is_total_and_never_waits_behind_upper() -> None:
    """Each (ts, upper, frontier) has one verdict: below upper is always dropped, never held (S1, S3)."""
    for ts, upper, frontier in itertools.product(range(5), repeat=3):
        verdict = classify(ts, upper, frontier)
        if ts < upper:
            assert verdict is UpdateFate.DROP
        elif ts == upper and ts < frontier:
            assert verdict is UpdateFate.PROCESS
        else:
            assert verdict is UpdateFate.HOLD


@pytest.mark.parametrize(
    ("upper", "frontier", "rows", "expected"),
    [
        (10, 11, (5, 7), "dd"),  # S1
        (10, 13, (5, 10, 12), "dph"),  # S2
        (10, 8, (5, 7), "dd"),  # S3, dropped early, which is also correct
        (3, 4, (0, 2, 3), "ddp"),  # S4: a peer moved upper to 3
    ],
)
def test_s1_to_s4_by_verdict(upper: int, frontier: int, rows: tuple[int, ...], expected: str) -> None:
    """The scenarios give the expected verdicts: d drop, p process, h hold (S1 to S4)."""
    letters = {UpdateFate.DROP: "d", UpdateFate.PROCESS: "p", UpdateFate.HOLD: "h"}
    assert "".join(letters[classify(ts, upper, frontier)] for ts in rows) == expected


def test_append_succeeds_iff_upper_is_lower() -> None:
    """An append swaps the state exactly if upper equals its lower; otherwise it reports a mismatch with the upper."""
    for upper, lower in itertools.product(range(4), repeat=2):
        decision = append(ShardState(upper=upper), lower, lower + 1, a_batch(lower))
        if upper == lower:
            assert decision == Swap(
                ShardState(upper=lower + 1, batches=(a_batch(lower),), recent=((lower, "x"),), seq=1)
            )
        else:
            assert decision == UpperMismatch(upper)


def test_s8_a_batch_that_is_there_is_not_appended_again() -> None:
    """After a lost reply, the id of our batch decides, even if others have appended since (S8)."""
    recent = ((0, "a"), (1, "b"), (2, "c"))
    state = ShardState(upper=3, batches=(a_batch(0, "a"), a_batch(1, "b"), a_batch(2, "c")), recent=recent)
    assert append(state, 1, 2, a_batch(1, "b")) == AlreadyThere()
    assert append(state, 1, 2, a_batch(1, "other")) == UpperMismatch(3)
    compacted = ShardState(upper=3, batches=(a_batch(0, "abc", upper=3),), recent=recent)
    assert append(compacted, 1, 2, a_batch(1, "b")) == AlreadyThere()


def test_s8_what_a_state_remembers_is_bounded_and_it_knows_so() -> None:
    """A state remembers the ids of the last APPENDS_REMEMBERED appends, and reports older ones as unknown (S8)."""
    state = ShardState()
    for t in range(APPENDS_REMEMBERED + 2):
        decision = append(state, t, t + 1, a_batch(t, f"b{t}"))
        assert isinstance(decision, Swap)
        state = decision.state
    assert len(state.recent) == APPENDS_REMEMBERED
    assert [remembers(state, t) for t in (0, 1, 2, 3)] == [False, False, True, True]
    assert append(state, 2, 3, a_batch(2, "b2")) == AlreadyThere()


def test_an_empty_batch_advances_upper() -> None:
    """An empty batch advances upper without an entry."""
    assert append(ShardState(upper=2), 2, 3, None) == Swap(ShardState(upper=3, seq=1))


def test_visible_batches_as_of_each_time() -> None:
    """A read as of t sees the batches up to and including t; times outside the shard's range are refused."""
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


def test_late_uploads_are_refused_exactly_when_orphans_may_go() -> None:
    """In each epoch, batches that collection may delete cannot be appended or used as replacement; all others can."""
    for now, uploaded in itertools.product(range(5), repeat=2):
        state = a_state(2, epoch=now)
        late = is_orphan_epoch(state, uploaded)
        assert late == (now - uploaded >= 2)
        assert isinstance(append(state, 2, 3, a_batch(2, "n"), uploaded), TooLate if late else Swap)
        decision = replace(state, state.batches, a_batch(0, "m", 2), uploaded)
        assert isinstance(decision, TooLate if late else Swap)


def test_replace_takes_the_run_that_stands_there() -> None:
    """A replacement takes the place of any run of five batches; other batches stay, and the old ones are retired."""
    state = a_state(5, seq=9)
    for start, stop in itertools.combinations(range(6), 2):
        run = state.batches[start:stop]
        merged = a_batch(start, "m", stop)
        decision = replace(state, run, merged, 0)
        assert isinstance(decision, Swap)
        after = decision.state
        assert after.batches == (*state.batches[:start], merged, *state.batches[stop:])
        assert after.retired == (Retired(10, run),)
        assert (after.seq, after.upper, after.since) == (10, 5, 0)
        assert replace(after, run, merged, 0) == AlreadyThere()
        assert replace(after, run, a_batch(start, "peer", stop), 0) == LostAppend()


def test_replace_of_what_is_not_there_is_lost() -> None:
    """A replacement for batches that are not a run of the state is refused, whatever it shares with one."""
    state = a_state(4)
    runs = {state.batches[start:stop] for start, stop in itertools.combinations(range(5), 2)}
    for length in range(1, 5):
        for chosen in itertools.permutations(state.batches, length):
            decision = replace(state, chosen, a_batch(0, "m", 4), 0)
            assert isinstance(decision, Swap if chosen in runs else LostAppend)
    assert replace(state, [a_batch(0, "other")], a_batch(0, "m", 1), 0) == LostAppend()


def test_a_replaced_batch_of_ours_that_was_replaced_again_is_there() -> None:
    """A compaction whose reply is lost is recognized as done, even if a peer has compacted its result again (S8)."""
    merged = a_batch(0, "m", 2)
    state = ShardState(upper=2, batches=(a_batch(0, "n", 2),), retired=(Retired(4, (merged,)),))
    assert replace(state, [a_batch(0, "b0"), a_batch(1, "b1")], merged, 0) == AlreadyThere()


def test_levels_grow_with_the_logarithm() -> None:
    """After each of 5,000 appends, no size class is due for compaction; each row was rewritten once per class."""
    state, rewritten, number = ShardState(), 0, 0
    for count in range(1, 5_001):
        decision = append(state, count - 1, count, a_batch(count - 1, f"b{count}"))
        assert isinstance(decision, Swap)
        state = decision.state
        while run := due(state.batches, count):
            assert len(run) in range(COMPACTION_FAN_OUT, COMPACTION_FAN_OUT**2, COMPACTION_FAN_OUT - 1)
            rewritten += run[-1].upper - run[0].lower
            number += 1
            weight = sum(batch.weight for batch in run)
            merged = a_batch(run[0].lower, f"m{number}", run[-1].upper, weight)
            compacted = replace(state, run, merged, 0)
            assert isinstance(compacted, Swap)
            state = drop(compacted.state)
        logarithm = math.log(count, COMPACTION_FAN_OUT) + 1e-9
        assert len(state.batches) <= 7 * logarithm + 7
        weights = [ref.weight for ref in state.batches]
        assert weights == sorted(weights, reverse=True)
        assert rewritten <= count * math.floor(logarithm)
        assert [ref.lower for ref in state.batches[1:]] == [ref.upper for ref in state.batches[:-1]]


def drop(state: ShardState) -> ShardState:
    """Return the state without the replaced batches."""
    decision = drop_retired(state, state.retired)
    assert decision is not None
    return decision.state


def test_due_over_all_small_states() -> None:
    """For five batches of weights up to four and a fan-out of two, no run that reaches beyond `until` is due."""
    for weights in itertools.product(range(1, 5), repeat=5):
        refs = [a_batch(lower, f"b{lower}", weight=weight) for lower, weight in enumerate(weights)]
        for until in range(7):
            run = batching.due(weights[:until], 2)
            assert due(refs, until, 2) == tuple(refs[run.start : run.stop])


def test_forget_only_climbs_and_never_reaches_upper() -> None:
    """`since` only rises, to the greatest request, and the newest time stays readable, over all small states."""
    for upper, old, asked in itertools.product(range(5), range(5), range(-1, 7)):
        if old and old >= upper:
            continue
        decision = forget(ShardState(since=old, upper=upper), asked)
        expected = max(old, min(asked, upper - 1))
        assert (old if decision is None else decision.state.since) == expected
        assert (decision is None) == (expected == old)


def test_collectable_over_all_small_leases() -> None:
    """A retired batch is collectable exactly if no lease was taken before its retirement."""
    for seq in range(4):
        retired = tuple(Retired(number, (a_batch(0, f"b{number}"),)) for number in range(1, seq + 1))
        state = ShardState(seq=seq, retired=retired)
        for claims in itertools.product(range(-1, 4), repeat=2):
            held = [LeaseRecord(claim, 10.0) for claim in claims if claim >= 0]
            oldest = min([*(lease.seq for lease in held), seq])
            gone = collectable(state, held)
            assert gone == tuple(entry for entry in retired if entry.seq <= oldest)
            left = drop_retired(state, gone)
            assert (left is None) == (gone == ())
            if left is not None:
                assert left.state.retired == retired[len(gone) :]
                assert drop_retired(left.state, gone) is None


def test_a_lease_is_left_behind_by_one_clock_only() -> None:
    """A lease expires by one clock, the steady clock of the observing machine or the store's, never by a mix."""
    lease = LeaseRecord(0, 100.0)
    long_s = 100.0 + LEASE_MARGIN_S
    passed = (-1e6, 0.0, long_s - 1, long_s, 1e6)
    for steady_s, store_s, same in itertools.product(passed, passed, (True, False)):
        now = Moment("a" if same else "b", 50.0 + steady_s, 7.0 + store_s)
        expected = (steady_s if same else store_s) >= long_s
        assert is_lease_expired(lease, Moment("a", 50.0, 7.0), now) is expected


def test_an_epoch_begins_when_the_last_has_lasted() -> None:
    """An epoch begins only once the last one has lasted long enough; a clock that jumps delays it only a little."""
    state = ShardState(epoch=3, epoch_began_s=100.0)
    assert next_epoch(state, 109.9, 10.0) is None
    assert next_epoch(state, 90.1, 10.0) is None
    assert next_epoch(state, 90.0, 10.0) is not None
    assert next_epoch(state, 50.0, 0.0) is not None
    decision = next_epoch(state, 110.0, 10.0)
    assert decision is not None
    assert (decision.state.epoch, decision.state.epoch_began_s, decision.state.seq) == (4, 110.0, 1)
    assert next_epoch(state, 100.0, 0.0) is not None


def test_batches_are_rewritten_all_at_once() -> None:
    """A rewrite replaces or removes batches anywhere and retires the old ones, or changes nothing."""
    state = a_state(4, seq=7, epoch=3)
    new = a_batch(1, "new")
    decision = rewrite(state, {"b1": new, "b3": None}, epoch=2)
    assert isinstance(decision, Swap)
    assert decision.state.batches == (state.batches[0], new, state.batches[2])
    assert decision.state.retired == (Retired(8, (state.batches[1], state.batches[3])),)
    assert decision.state.upper == state.upper
    assert rewrite(state, {"b1": new, "b9": None}, epoch=2) == LostAppend(), "a peer replaced one of them"
    assert rewrite(state, {"b1": new}, epoch=1) == TooLate(), "its objects may be collected"
