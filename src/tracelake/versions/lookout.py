"""Looks at branches for all threads of a process: while one reads, the others wait, and take what it read.

A thousand threads that wait for one record would otherwise read it a thousand times, and leave the store no time for
the one that writes it. Who has written it wakes those who pause: only what other processes write has to be looked for.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tracelake.versions.branches import BranchAt, BranchRecords


@dataclass(slots=True)
class _Rounds:
    """Readings of one branch, one at a time. Nobody waits for more than the rest of one and the next."""

    begun: int = 0
    ended: int = 0
    """The newest one that succeeded."""
    is_reading: bool = False
    at: BranchAt | None = None


class Lookout:
    """Reads branches, by one thread at a time."""

    def __init__(self, records: BranchRecords) -> None:
        """Look at the branches of these records."""
        self._records = records
        self._reading = threading.Condition()
        self._rounds: dict[str, _Rounds] = {}
        self._writing = threading.Condition()
        self._writes: Counter[str] = Counter()
        self._threads = 0
        self._looked = threading.local()
        """Per thread: the branch that it looked at last, and how often that had been written by then."""

    def look(self, branch: str) -> BranchAt:
        """Return the branch as it was read at a moment after the call began."""
        self._looked.at = branch, self._writes[branch]
        with self._reading:
            rounds = self._rounds.setdefault(branch, _Rounds())
            asked = rounds.begun + 1  # who asks while a reading is under way may not take it
            self._reading.wait_for(lambda: rounds.ended >= asked or not rounds.is_reading)
            if rounds.ended >= asked:
                assert rounds.at is not None, "a round that ended has read something"
                return rounds.at
            rounds.is_reading = True
            rounds.begun += 1
        try:
            at = self._records.read(branch, rounds.at)
            rounds.at, rounds.ended = at, rounds.begun
            return at
        finally:
            with self._reading:
                rounds.is_reading = False
                self._reading.notify_all()

    def arrive(self, branch: str) -> BranchAt:
        """Return the branch as it is now, by a reading of one's own.

        Who comes first is served first, as by the connections of a database. Were newcomers let go all at once, as
        after a common look, the last of those who waited for a server that stood still could be the first.
        """
        rounds = self._rounds.get(branch)
        return self._records.read(branch, rounds.at if rounds else None)

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

    def pause(self, branch: str, seconds: float) -> None:
        """Wait for so long, or until another thread has written the branch since this one looked at it."""
        if self._threads < 2:
            time.sleep(seconds)  # nobody is there to wake us, and simulated time passes in sleep alone
            return
        looked, before = getattr(self._looked, "at", ("", 0))
        if looked != branch:
            return  # who has not looked yet need not wait
        with self._writing:
            self._writing.wait_for(lambda: self._writes[branch] != before, seconds)

    def wake(self, branch: str) -> None:
        """Let all threads look at a branch again: it was written."""
        with self._writing:
            self._writes[branch] += 1
            self._writing.notify_all()
