"""Background threads that repeat a step until they are stopped: heartbeats, pollers, schedulers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Self


class PeriodicThread:
    """Thread that runs a step, pauses, and repeats; also a context manager.

    A step returns the seconds until the next one, or None to end the thread. The thread is a daemon, so a step that
    hangs does not block the end of the process.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        first_pause_s: float = 0.0,
        stopping: Event | None = None,
    ) -> None:
        """Prepare the thread. `stop` sets `stopping`; a long step may check it."""
        self._stopping = stopping or Event()
        self._step = step
        self._pause_s: float | None = first_pause_s
        self._is_waiting = False
        self._wake = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread after the current step."""
        self.stop()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the current pause, or skip the next one."""
        self._wake.set()

    def stop(self, wait_s: float | None = None) -> bool:
        """Begin no more steps, and wait for the current one; return whether it ended in time."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:  # A failed start of its owner may never have started it.
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def stopping(self) -> bool:
        """Return whether a stop was requested."""
        return self._stopping.is_set()

    def is_waiting(self) -> bool:
        """Return whether the thread pauses."""
        return self._is_waiting

    def has_died(self) -> bool:
        """Return whether the thread ended although nothing stopped it."""
        # The flag is checked last, because a stop sets it before the thread ends.
        return self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def _run(self) -> None:
        while self._pause_s is not None:
            self._is_waiting = True
            self._wake.wait(self._pause_s)
            self._is_waiting = False
            # Clear before the check: `stop` sets `stopping` first, so no stop is lost in between.
            self._wake.clear()
            if self._stopping.is_set():
                return
            self._pause_s = self._step()
