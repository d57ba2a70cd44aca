"""Pauses between retries; no test sleeps."""

from __future__ import annotations

import pytest

from tracelake import limits
from tracelake.storage.ports import tries


class Clock:
    """Clock that advances only in pauses and when a test says so."""

    def __init__(self) -> None:
        """Start at a time that is not zero."""
        self.now_s = 1_000.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        """Let so much time pass."""
        self.pauses.append(seconds)
        self.now_s += seconds

    def tries(self) -> list[int]:
        """Return all tries of an operation that never succeeds and takes no time."""
        return list(tries(self.pause, lambda: self.now_s))


def test_tries_end() -> None:
    """The number of tries equals the limit, with a pause before each but the first."""
    clock = Clock()
    assert clock.tries() == list(range(limits.STORE_TRIES_MAX))
    assert len(clock.pauses) == limits.STORE_TRIES_MAX - 1


def test_pauses_grow_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest pause doubles up to STORE_PAUSE_MAX_S; no pause is below half of its longest value."""
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 12)
    for _ in range(50):
        clock = Clock()
        clock.tries()
        for number, pause in enumerate(clock.pauses, start=1):
            longest = min(limits.STORE_PAUSE_MAX_S, limits.STORE_PAUSE_FIRST_S * 2**number)
            assert longest / 2 <= pause <= longest
    assert clock.pauses[-1] >= limits.STORE_PAUSE_MAX_S / 2


def test_pauses_differ() -> None:
    """Clients that start at the same moment do not retry at the same moment."""
    firsts = set()
    for _ in range(20):
        clock = Clock()
        clock.tries()
        firsts.add(clock.pauses[0])
    assert len(firsts) > 10


def test_no_try_begins_after_the_time_is_over() -> None:
    """No try begins after the time limit, so tries that each time out do not add up."""
    clock, begun = Clock(), []
    for _ in tries(clock.pause, lambda: clock.now_s):
        begun.append(clock.now_s - 1_000)
        clock.now_s += limits.STORE_TRIES_TIMEOUT_S * 0.4
    assert len(begun) == 3
    assert begun[-1] <= limits.STORE_TRIES_TIMEOUT_S


def test_first_try_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try happens even if no time is left."""
    monkeypatch.setattr(limits, "STORE_TRIES_TIMEOUT_S", 0.0)
    assert Clock().tries() == [0]
