"""What a lake is kept in: records, objects, and copies of objects on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracelake.storage.ports import KeyValueStore, ObjectStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one lake, as everybody who reads or writes it needs them."""

    key_value: KeyValueStore
    objects: ObjectStore
    cache: Path
    """A directory of this machine for copies of what is far away; whatever is in it may go."""

    @property
    def copies(self) -> str:
        """The directory of copies of parts."""
        return str(self.cache / "parts")
