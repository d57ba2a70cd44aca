"""The process of a server's pipeline that hangs: how that is told from one that works, and its end.

Time is counted in looks of the server, about a second apart, in which the process told of no step that it made. So a
clock that jumps, a machine that was suspended and a server that was stopped make nothing hang: nobody looked meanwhile.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from threading import Event, Thread

from tracelake import limits


class NoProgressTimer:
    """For how many looks nothing has moved."""

    def __init__(self, bound_s: float) -> None:
        """Take what is still for so long for hanging."""
        self._bound_s = bound_s
        self._steps: int | None = None
        self._looks = 0

    def look(self, steps: int | None) -> bool:
        """Note how many steps were told of, None: not yet any; return whether it hangs."""
        self._looks = self._looks + 1 if steps == self._steps else 0
        self._steps = steps
        return self._looks * limits.PIPELINE_TOLD_EACH_S >= self._bound_s


class Watchdog:
    """Looks at a process from the beginning of a block to its end, and kills it where it hangs."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        steps: Callable[[], int | None],
        is_stopping: Callable[[], bool],
        bound_s: float,
    ) -> None:
        """`steps` returns what the process told last; one that is stopping has another bound."""
        self._process = process
        self._steps = steps
        self._is_stopping = is_stopping
        self._stillness = NoProgressTimer(bound_s)
        self._over = Event()
        self._thread = Thread(target=self._run, name="tracelake-pipeline-watch", daemon=True)
        self.has_killed = False

    def __enter__(self) -> Watchdog:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(limits.PIPELINE_TOLD_EACH_S):
            if self._stillness.look(self._steps()) and not self._is_stopping():
                self.has_killed = True
                self._process.kill()
                return
