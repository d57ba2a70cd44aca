"""Watchdog for the pipeline's process: it detects a hang and kills the process.

The server polls about once a second and counts polls in which the process reported no new step. Polls, not clock
time, are counted. Therefore a clock jump, a suspended machine or a stopped server never looks like a hang.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from threading import Event, Thread

from tracelake import limits


class NoProgressTimer:
    """Counter of successive polls without progress."""

    def __init__(self, bound_s: float) -> None:
        """Set the time without progress that counts as a hang."""
        self._bound_s = bound_s
        self._steps: int | None = None
        self._looks = 0

    def look(self, steps: int | None) -> bool:
        """Record the reported number of steps (None before the first report); return whether the process hangs."""
        self._looks = self._looks + 1 if steps == self._steps else 0
        self._steps = steps
        return self._looks * limits.PIPELINE_TOLD_EACH_S >= self._bound_s


class Watchdog:
    """Context manager that polls a process and kills it if it hangs."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        steps: Callable[[], int | None],
        is_stopping: Callable[[], bool],
        bound_s: float,
    ) -> None:
        """Watch `process`. `steps` returns its last report. A process that is stopping is not killed here, because
        stopping has its own timeout."""
        self._process = process
        self._steps = steps
        self._is_stopping = is_stopping
        self._stillness = NoProgressTimer(bound_s)
        self._over = Event()
        self._thread = Thread(target=self._run, name="tracelake-pipeline-watch", daemon=True)
        self.has_killed = False

    def __enter__(self) -> Watchdog:
        """Start the watchdog thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the watchdog thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(limits.PIPELINE_TOLD_EACH_S):
            if self._stillness.look(self._steps()) and not self._is_stopping():
                self.has_killed = True
                self._process.kill()
                return
