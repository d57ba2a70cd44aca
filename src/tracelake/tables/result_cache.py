"""Reuse of statistics that take long to compute.

Statistics of a large lake read all of its rows, and each transaction changes them. So a server that ingests would
compute them again for each viewer. Here a result is reused while it is young compared with the time that it took. An
older result is still returned once, and computed again in the background, so that only the first reader waits.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeVar

ResultT = TypeVar("ResultT")
_ENTRIES_MAX: Final = 200
"""Results that are kept. Beyond: the one that was not read for the longest time is dropped."""
_REUSED_FOR: Final = 10
"""A result is young for this many times the time that it took."""
_AGE_MAX_S: Final = 60.0
"""Age of a returned result. Beyond: the caller waits for a new one."""


@dataclass(slots=True)
class _Entry:
    result: Any
    made_s: float
    took_s: float
    is_renewing: bool = False


class ResultCache:
    """Results by key, up to a minute old. Threads may share it."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(1, "tracelake-statistics")

    def get(self, key: Hashable, read: Callable[[], ResultT]) -> ResultT:
        """Return a young result, or an older one that is then renewed in the background, or a new one."""
        now_s = time.monotonic()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or now_s - entry.made_s > _AGE_MAX_S:
                entry = None
            else:
                self._entries.move_to_end(key)
                if now_s - entry.made_s > _REUSED_FOR * entry.took_s and not entry.is_renewing:
                    entry.is_renewing = True
                    # Not in the context of this request, whose end cancels its reads.
                    self._threads.submit(self._renew, key, read, entry)
        result: ResultT = self._make(key, read) if entry is None else entry.result
        return result

    def clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._entries.clear()

    def close(self) -> None:
        """Wait for a renewal that runs, and start no other."""
        self._threads.shutdown(cancel_futures=True)

    def _make(self, key: Hashable, read: Callable[[], ResultT]) -> ResultT:
        began_s = time.monotonic()
        result = read()
        with self._lock:
            self._entries[key] = _Entry(result, began_s, time.monotonic() - began_s)
            self._entries.move_to_end(key)
            while len(self._entries) > _ENTRIES_MAX:
                self._entries.popitem(last=False)
        return result

    def _renew(self, key: Hashable, read: Callable[[], ResultT], entry: _Entry) -> None:
        try:
            self._make(key, read)
        finally:
            entry.is_renewing = False  # after an error, the next caller tries again
