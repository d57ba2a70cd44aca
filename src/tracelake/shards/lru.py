"""What was read and never changes, kept by a process as long as it fits; what was used last stays."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteLRU(Generic[Key, Value]):
    """Values by keys that name their content, so that none is ever out of date. Threads may share it."""

    def __init__(self, size_of: Callable[[Value], int], max_bytes: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._size_bytes = 0
        self._size_of = size_of
        self._max_bytes = max_bytes

    def get(self, key: Key) -> Value | None:
        """Return what is kept of a key."""
        with self._lock:
            value = self._kept.get(key)
            if value is not None:
                self._kept.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, and let go of those that were not used for longest."""
        size_bytes, max_bytes = self._size_of(value), self._max_bytes()
        with self._lock:
            if key in self._kept or size_bytes > max_bytes:
                return
            self._kept[key] = value
            self._size_bytes += size_bytes
            while self._size_bytes > max_bytes:
                self._size_bytes -= self._size_of(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        """Keep nothing of all that."""
        with self._lock:
            self._kept.clear()
            self._size_bytes = 0
