"""Looks at branches for all threads of a process: while one reads, the others wait, and take what it read.

A thousand threads that wait for one record would otherwise read it a thousand times, and leave the store no time for
the one that writes it.
"""

from __future__ import annotations

import itertools
import threading

from tracelake.versions.branches import BranchAt, BranchRecords


class Lookout:
    """Reads branches, by one thread at a time."""

    def __init__(self, records: BranchRecords) -> None:
        """Look at the branches of these records."""
        self._records = records
        self._lock = threading.Lock()
        self._moments = itertools.count()
        self._seen: dict[str, tuple[int, BranchAt]] = {}

    def look(self, branch: str) -> BranchAt:
        """Return the branch as it was read at a moment after the call began."""
        asked = next(self._moments)
        with self._lock:
            read, at = self._seen.get(branch, (-1, None))
            if at is None or read < asked:
                # The moment before the reading: who asks while it is under way may not take it.
                self._seen[branch] = next(self._moments), (at := self._records.read(branch, at))
            return at
