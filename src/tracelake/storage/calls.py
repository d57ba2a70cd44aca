"""Calls that are under way, for which waits who closes what they use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tracelake._errors import UsageError


class Calls:
    """The calls of one store. A call within another of the same thread is a part of that."""

    def __init__(self, what: str) -> None:
        """Name the store, for errors."""
        self._what = what
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._over = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be under way. Raises UsageError where the store is closed."""
        thread = threading.current_thread()
        with self._changed:
            if self._over and thread not in self._threads:
                raise UsageError(f"the store {self._what} is closed; open it again")
            self._threads.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(thread)
                self._changed.notify_all()

    def end(self, timeout_s: float) -> set[threading.Thread]:
        """Let no other begin, wait for those that have, and return the threads of those that did not end in time."""
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._threads, timeout_s)
            return set(self._threads)
