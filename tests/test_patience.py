"""Waits of tests end if the test hangs, not if it is slow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import patience
from tests.patience import Patience, wait_until


class Clock:
    """Clock that only pauses advance."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        patch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def test_what_moves_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change restarts the timeout, up to the total; a state that stays too long fails with its description."""
    clock = Clock(monkeypatch)
    patience = Patience(still_max_s=10, total_max_s=100)
    for number in range(11):
        patience.look(number, lambda: "never")
        clock.sleep(9)
    clock.sleep(3)
    with pytest.raises(AssertionError, match=r"no progress for 12 s: two segments wait"):
        patience.look(10, lambda: "two segments wait")
    with pytest.raises(AssertionError, match=r"moves, and is not over after 102 s: round and round"):
        patience.look(11, lambda: "round and round")


def test_a_condition_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition is checked repeatedly, and the wait fails if nothing changes."""
    clock = Clock(monkeypatch)
    wait_until(lambda: clock.now_s > 500, moving=lambda: clock.now_s // 100, poll_s=1.0)
    with pytest.raises(AssertionError, match="no segment came"):
        wait_until(lambda: False, "no segment came", poll_s=1.0)
