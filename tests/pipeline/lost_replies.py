"""A store that loses replies, for records that users change."""

from __future__ import annotations

from typing import Any

from tracelake.storage import Indeterminate
from tracelake.storage.local import MemoryKeyValueStore


class LosesReplies(MemoryKeyValueStore):
    """A store in which each first conditional write of a record has no reply and may have succeeded."""

    def __init__(self, *, done: bool) -> None:
        super().__init__()
        self._done, self._lost, self._lost_deletions = done, 0, 0

    def set_if(self, partition: str, key: str, value: bytes, expected: Any) -> Any:
        self._lost += 1
        if self._lost % 2 == 1 and not self._done:
            return Indeterminate("1", "no reply")
        outcome = super().set_if(partition, key, value, expected)
        return Indeterminate("1", "no reply") if self._lost % 2 == 1 else outcome

    def delete_if(self, partition: str, key: str, expected: Any) -> Any:
        self._lost_deletions += 1
        if self._lost_deletions % 2 == 1 and not self._done:
            return Indeterminate("1", "no reply")
        outcome = super().delete_if(partition, key, expected)
        return Indeterminate("1", "no reply") if self._lost_deletions % 2 == 1 else outcome


class Silent:
    """A sink without content that accepts nothing."""

    def __init__(self, output_id: str) -> None:
        self.id = output_id

    def fence(self) -> int:
        return -1

    def write(self, transaction: int, messages: object) -> None:
        raise AssertionError(f"{transaction} is written: {messages}")
