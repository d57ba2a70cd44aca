"""Looks at branches for all threads of a process: while one reads, the others wait, and take what it read.

A thousand threads that wait for one record would otherwise read it a thousand times, and leave the store no time for
the one that writes it. Who has written it wakes those who pause: only what other processes write has to be looked for.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tracelake.versions.branches import BranchAt, BranchRecords


class Lookout:
    """Reads branches, by one thread at a time."""

    def __init__(self, records: BranchRecords) -> None:
        """Look at the branches of these records."""
        self._records = records
        self._lock = threading.Lock()
        self._moments = itertools.count()
        self._seen: dict[str, tuple[int, BranchAt]] = {}
        self._writing = threading.Condition()
        self._writes = self._threads = 0
        self._looked = threading.local()

    def look(self, branch: str) -> BranchAt:
        """Return the branch as it was read at a moment after the call began."""
        self._looked.writes = self._writes
        asked = next(self._moments)
        with self._lock:
            read, at = self._seen.get(branch, (-1, None))
            if at is None or read < asked:
                # The moment before the reading: who asks while it is under way may not take it.
                self._seen[branch] = next(self._moments), (at := self._records.read(branch, at))
            return at

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be one of the threads that may pause, or wake others."""
        with self._writing:
            self._threads += 1
        try:
            yield
        finally:
            with self._writing:
                self._threads -= 1

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until another thread has written since this one looked."""
        if self._threads < 2:
            time.sleep(seconds)  # nobody is there to wake us, and simulated time passes in sleep alone
            return
        before = getattr(self._looked, "writes", -1)  # who has not looked yet need not wait
        with self._writing:
            self._writing.wait_for(lambda: self._writes != before, seconds)

    def wake(self) -> None:
        """Let all threads look again: a branch was written."""
        with self._writing:
            self._writes += 1
            self._writing.notify_all()
