"""In-process LRU cache, bounded by bytes, for immutable values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteLRU(Generic[Key, Value]):
    """LRU cache whose keys identify the content, so that no value becomes stale. Threads may share it."""

    def __init__(self, size_of: Callable[[Value], int], max_bytes: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._size_bytes = 0
        self._size_of = size_of
        self._max_bytes = max_bytes

    def get(self, key: Key) -> Value | None:
        """Return the cached value of a key, or None."""
        with self._lock:
            value = self._kept.get(key)
            if value is not None:
                self._kept.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Cache a value and evict the least recently used ones. A value beyond the limit is not cached."""
        size_bytes, max_bytes = self._size_of(value), self._max_bytes()
        with self._lock:
            if key in self._kept or size_bytes > max_bytes:
                return
            self._kept[key] = value
            self._size_bytes += size_bytes
            while self._size_bytes > max_bytes:
                self._size_bytes -= self._size_of(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._kept.clear()
            self._size_bytes = 0
