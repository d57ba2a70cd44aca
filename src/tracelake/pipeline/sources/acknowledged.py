"""What inbox and outbox have in common: inputs that a server acknowledged, each with a name that is never reused.

The lake has the only copy, until a commit holds it; then it is deleted. So what is gone was taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from tracelake._errors import StorageError
from tracelake.pipeline.sources.port import Gone, Held, HeldBack, Input, Known, New, may_pass

QUARANTINE: Final = "quarantine/"
"""What was acknowledged and could not be read whole: for a person to look at, never deleted here."""


class AcknowledgedSource(ABC):
    """Inputs by their paths; see `Source`."""

    is_ours = True

    @abstractmethod
    def _size_bytes(self, path: str) -> int | None:
        """Return the size of an input, None where it is gone. Raises StorageError."""

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        with may_pass():
            return self._size_bytes(path) or 0

    def judge(self, item: Input, held: Held) -> New | Known | HeldBack | Gone:
        """See `Source`."""
        suspect = held.by_path.get((item.source, item.path))
        if suspect is not None:
            return HeldBack(suspect)
        try:
            is_gone = self._size_bytes(item.path) is None
        except StorageError:
            return New(is_there=False)  # who reads it says why it cannot be read
        return Gone() if is_gone else New()

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # no input ever has the name of another
        return self._size_bytes(path) is None
