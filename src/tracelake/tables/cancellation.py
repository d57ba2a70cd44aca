"""Cancellation of one request: the server cancels it, and long reads then stop.

The server cancels a request when its client disconnects or its deadline passes. A query that can be interrupted
registers its interrupt function. Code that cannot be interrupted checks between its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Final

from tracelake._errors import BackPressureError


class Cancellation:
    """Cancellation of one request. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reason: str | None = None
        self._interrupts: list[Callable[[], None]] = []

    def cancel(self, reason: str) -> None:
        """Interrupt every running query of the request, and refuse new ones. The first reason counts."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            for interrupt in self._interrupts:
                interrupt()

    @property
    def reason(self) -> str | None:
        """The reason of the cancellation; None while the request is active."""
        return self._reason

    def check(self) -> None:
        """Raise BackPressureError if the request is cancelled."""
        if self._reason is not None:
            raise BackPressureError(self._reason)

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Call `interrupt` if the request is cancelled in this block. Raises BackPressureError if it already is."""
        with self._lock:
            self.check()
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            # Safety: `cancel` calls interrupts under the lock, so it calls no interrupt after the block has
            # ended.
            with self._lock:
                self._interrupts.remove(interrupt)


_OF_REQUEST: Final[ContextVar[Cancellation | None]] = ContextVar("tracelake_cancellation", default=None)


@contextmanager
def cancellable() -> Iterator[Cancellation]:
    """Make reads in this block, and in tasks and threads that it starts, belong to one cancellable request."""
    cancellation = Cancellation()
    token = _OF_REQUEST.set(cancellation)
    try:
        yield cancellation
    finally:
        _OF_REQUEST.reset(token)


def current_cancellation() -> Cancellation:
    """Return the cancellation of the current request; outside of a request, one that nothing cancels."""
    return _OF_REQUEST.get() or Cancellation()


def check_cancelled() -> None:
    """Raise BackPressureError if the current request is cancelled."""
    current_cancellation().check()
