"""Progress of a replica, and the status of its record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tracelake.limits import REPLICA_GONE_S, REPLICA_STUCK_S
from tracelake.replicas.protocol import (
    Advance,
    Replica,
    batches_of_peers,
    oldest_age_s,
    on_failure,
    on_look,
    on_stage,
    on_success,
    status,
    transactions_behind,
)

NOW = 1_000_000.0
CALM = Replica(
    name="a", instance="1", host="h", pid=1, started_s=NOW - 900, heartbeat_s=NOW - 1, moved_s=NOW - 1
)
STILL = NOW - REPLICA_STUCK_S - 5


@pytest.mark.parametrize(
    ("record", "word", "reason"),
    [
        (CALM, "idle", ""),
        (replace(CALM, waiting_inputs=2), "running", ""),
        (replace(CALM, doing="writing transaction 3"), "running", ""),
        (replace(CALM, waiting_inputs=2, failing=True, last_error="disk full"), "stuck", "disk full"),
        (replace(CALM, waits_for="source a: away"), "waiting", "for source a: away"),
        (replace(CALM, waits_for="source a: away", failing=True, last_error="full"), "stuck", "full"),
        (replace(CALM, waits_for="source a: away", moved_s=STILL), "stuck", "no progress"),
        (replace(CALM, failures=9, last_error="an old one"), "idle", ""),
        (
            replace(CALM, moved_s=STILL, doing="writing transaction 3"),
            "stuck",
            "125 s: writing transaction 3",
        ),
        (replace(CALM, moved_s=STILL, waiting_inputs=1), "stuck", "between two looks"),
        (replace(CALM, moved_s=STILL), "stuck", "no progress"),
        (replace(CALM, heartbeat_s=NOW - REPLICA_GONE_S - 1), "gone", "13 s"),
        (replace(CALM, heartbeat_s=NOW - REPLICA_GONE_S - 1, failing=True), "gone", "killed, paused"),
    ],
)
def test_words(record: Replica, word: str, reason: str) -> None:
    """Each case has its status and reason; a hanging loop is stuck however recent its heartbeat is."""
    found = status(record, NOW)
    assert found.word == word
    assert reason in found.reason
    assert bool(found.reason) == (word in {"waiting", "stuck", "gone"})


def test_looking_again_at_the_same_input_is_no_progress() -> None:
    """Only input that is gone, a passed transaction or an empty source is progress, not another look."""
    moves, moved = on_look(Advance(), 3, "inbox/1")
    assert moved
    for frontier, oldest, expected in ((3, "inbox/1", False), (3, "inbox/2", True), (4, "inbox/2", True)):
        moves, moved = on_look(moves, frontier, oldest)
        assert moved is expected
    assert on_look(moves, 4, None)[1]
    assert on_look(moves, 4, None)[1], "an idle loop is alive at each look"


def test_a_stage_counts_once() -> None:
    """A transaction that reaches an earlier stage or the same one again has made no progress."""
    moves, moved = on_stage(Advance(), 5, 0, 1)
    assert moved
    for at, expected in (((5, 0, 1), False), ((5, 0, 2), True), ((5, 0, 1), False), ((5, 1, 0), True)):
        moves, moved = on_stage(moves, *at)
        assert moved is expected
    assert on_stage(moves, 4, 2, 9)[1] is False
    assert on_stage(moves, 6, 0, 0)[1] is True


def test_trying_again_is_no_progress_until_it_goes_further() -> None:
    """A writer that always fails at the same stage makes no progress, even while its peers do its work."""
    moves, _ = on_stage(Advance(), 5, 1, 0)
    moves = on_failure(moves)
    for transaction in range(5, 50):
        for seen, moved in (on_look(moves, transaction, f"inbox/{transaction}"), on_look(moves, 5, None)):
            assert not moved
            moves = seen
        for stage in (0, 1):
            moves, moved = on_stage(moves, transaction, stage, transaction)
            assert not moved
        moves = on_failure(moves)
    moves, moved = on_stage(moves, 50, 2, 0)
    assert moved, "it got further than ever"
    moves, moved = on_success(moves)
    assert moved
    assert not moves.failing
    assert on_success(moves)[1] is False


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3)), max_size=40),
    st.integers(0, 40),
)
def test_progress_ends(steps: list[tuple[int, int, int]], fails_at: int) -> None:
    """Repeating any steps gives no progress the second time."""
    moves = Advance()
    for number, step in enumerate(steps):
        moves, _ = on_stage(moves, *step)
        if number == fails_at:
            moves = on_failure(moves)
    for step in steps:
        moves, moved = on_stage(moves, *step)
        assert not moved


def test_figures() -> None:
    """Lag and peers' batches are never negative."""
    record = replace(CALM, frontier=4, oldest_waiting_s=NOW - 3)
    assert transactions_behind(record, 6) == 2
    assert transactions_behind(record, 3) == 0
    assert oldest_age_s(record, NOW) == 3
    assert oldest_age_s(record, NOW - 10) == 0
    assert oldest_age_s(CALM, NOW) is None
    assert batches_of_peers(first=2, frontier=10, won=9, tables=2) == 7
    assert batches_of_peers(first=2, frontier=2, won=1, tables=2) == 0
