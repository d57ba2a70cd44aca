"""Waits of tests end with what hangs, and not with what is slow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import patience
from tests.patience import Patience, wait_until


class Clock:
    """Time that only a pause moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        patch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def test_what_moves_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change starts the clock anew, up to the total; a state that stays for so long fails, and says which."""
    clock = Clock(monkeypatch)
    patience = Patience(still_max_s=10, total_max_s=100)
    for number in range(11):
        patience.look(number, lambda: "never")
        clock.sleep(9)
    clock.sleep(3)
    with pytest.raises(AssertionError, match=r"nothing has moved for 12 s: two segments wait"):
        patience.look(10, lambda: "two segments wait")
    with pytest.raises(AssertionError, match=r"moves, and is not over after 102 s: round and round"):
        patience.look(11, lambda: "round and round")


def test_a_condition_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again and again, and given up where nothing changes."""
    clock = Clock(monkeypatch)
    wait_until(lambda: clock.now_s > 500, moving=lambda: clock.now_s // 100, poll_s=1.0)
    with pytest.raises(AssertionError, match="no segment came"):
        wait_until(lambda: False, "no segment came", poll_s=1.0)
