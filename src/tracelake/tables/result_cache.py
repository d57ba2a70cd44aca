"""Reuse of statistics that take long to compute.

Statistics of a large lake read all of its rows, and each transaction changes them. So a server that ingests would
compute them again for each viewer. Here a result is reused while it is young compared with the time that it took. After
that, readers still get it, and it is computed again in the background. A result that is older than a minute is not
returned: its reader waits for a new one.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, TypeVar

from tracelake.tables.query_memory import Cancellation, cancellable

ResultT = TypeVar("ResultT")
_log = logging.getLogger("tracelake.statistics")
_ENTRIES_MAX: Final = 200
"""Results that are kept. Beyond: the one that was not read for the longest time is dropped."""
_YOUNG_FACTOR: Final = 10
"""A result is young for this many times the time that it took."""
_YOUNG_MAX_S: Final = 30.0
"""Longest time for which a result is young."""
_AGE_MAX_S: Final = 60.0
"""Age of a returned result. Beyond: the reader waits for a new one."""


@dataclass(slots=True, eq=False)
class _Entry:
    result: Future[Any] = field(default_factory=Future)
    finished_s: float = 0.0
    took_s: float = 0.0
    is_renewing: bool = False


class ResultCache:
    """Results by key, up to a minute old. Threads may share it."""

    def __init__(self) -> None:
        self._version: Hashable = None
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(1, "tracelake-statistics")
        self._renewal: Cancellation | None = None
        self._is_closed = False

    def get(
        self,
        version: Hashable,
        key: Hashable,
        read: Callable[[], ResultT],
        now: Callable[[], ResultT] | None = None,
    ) -> ResultT:
        """Return a result by its key: a young one, or an older one that is then renewed in the background, or a new
        one. All callers that wait for one share it.

        Args:
            version: Another version than before drops all results.
            key: The key of the result.
            read: Computes the result.
            now: Replaces `read` if this caller waits.
        """
        with self._lock:
            if version != self._version:
                self._version = version
                self._entries.clear()
            entry, is_mine = self._entries.get(key), False
            if entry is None or self.is_too_old(entry):
                self._entries[key] = entry = _Entry()
                is_mine = True
                while len(self._entries) > _ENTRIES_MAX:
                    self._entries.popitem(last=False)
            elif self.is_due(entry):
                entry.is_renewing = True
                self._threads.submit(self.renew, key, read, entry)
            self._entries.move_to_end(key)
        if is_mine:
            return self._make(key, now or read, entry)
        try:
            result: ResultT = entry.result.result()
        except Exception:  # noqa: BLE001  of another request, which may have been cancelled
            return (now or read)()
        return result

    def clear(self) -> None:
        """Forget all results, also those that are being computed."""
        with self._lock:
            self._entries.clear()

    def close(self) -> None:
        """Cancel a renewal, and start no other."""
        with self._lock:
            self._is_closed = True
            if self._renewal is not None:
                self._renewal.cancel("the lake is closed")
        self._threads.shutdown(cancel_futures=True)

    @staticmethod
    def is_too_old(entry: _Entry) -> bool:
        """Return whether an entry is not returned any more."""
        return entry.result.done() and time.monotonic() > entry.finished_s + _AGE_MAX_S

    def is_due(self, entry: _Entry) -> bool:
        """Return whether to begin the renewal of an entry."""
        young_s = min(_YOUNG_FACTOR * entry.took_s, _YOUNG_MAX_S)
        is_young = not entry.result.done() or time.monotonic() <= entry.finished_s + young_s
        return not (is_young or entry.is_renewing or self._is_closed)

    def _make(self, key: Hashable, read: Callable[[], ResultT], entry: _Entry) -> ResultT:
        """Return a new result, and give it to all that wait for the entry."""
        began_s = time.monotonic()
        try:
            result = read()
        except BaseException as error:
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            entry.result.set_exception(error)
            raise
        entry.finished_s = time.monotonic()
        entry.took_s = entry.finished_s - began_s
        entry.result.set_result(result)
        return result

    def renew(self, key: Hashable, read: Callable[[], ResultT], entry: _Entry) -> None:
        """Replace an entry by a newer one, unless it was dropped meanwhile."""
        new = _Entry()
        try:
            with cancellable() as cancellation:
                self._renewal = cancellation
                self._make(key, read, new)
            with self._lock:
                if self._entries.get(key) is entry:
                    self._entries[key] = new
        except Exception:  # noqa: BLE001  no thread would see it
            entry.is_renewing = False  # the next reader tries again
            if not self._is_closed:
                _log.exception("statistics were not renewed; pages show the earlier ones")
