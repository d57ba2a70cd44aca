"""Records that a store writes one after the other, where it has no way to write many at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tracelake.storage.ports import Version


class EachAlone(ABC):
    """The part of a `KeyValueStore` that writes many records."""

    @abstractmethod
    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """See KeyValueStore."""
        for key, value in records.items():
            self.set(partition, key, value)
