"""Timeouts of tests: progress may be slow on a slow machine; without progress, a test has hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

HANG_S: Final = 300.0
"""Timeout without progress, longer than any step on any machine. Beyond: the test has hung."""
TOTAL_MAX_S: Final = 900.0
"""Timeout for a wait with progress. Beyond: it never ends. The `timeout` of pytest is longer."""


class Patience:
    """Ends a wait without progress, however long the whole takes."""

    def __init__(self, still_max_s: float = HANG_S, total_max_s: float = TOTAL_MAX_S) -> None:
        self._still_max_s = still_max_s
        self._total_max_s = total_max_s
        self._began_s = self._moved_s = time.monotonic()
        self._state: object = None

    def look(self, state: object, told: Callable[[], str]) -> None:
        """Record the current state. Fails with the text of `told` without progress, or after the total timeout."""
        now_s = time.monotonic()
        if state != self._state:
            self._state, self._moved_s = state, now_s
        still_s, total_s = now_s - self._moved_s, now_s - self._began_s
        assert still_s < self._still_max_s, f"no progress for {still_s:.0f} s: {told()}"
        assert total_s < self._total_max_s, f"it moves, and is not over after {total_s:.0f} s: {told()}"


def wait_until(
    holds: Callable[[], object],
    what: str = "waited in vain",
    *,
    moving: Callable[[], object] = lambda: None,
    poll_s: float = 0.01,
) -> None:
    """Wait until a condition holds, as long as the value of `moving` still changes from time to time."""
    patience = Patience()
    while not holds():
        patience.look(moving(), lambda: what)
        time.sleep(poll_s)
