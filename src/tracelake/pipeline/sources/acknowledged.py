"""What inbox and outbox have in common: inputs that a server acknowledged, each with a name that is never reused.

The lake has the only copy, until a commit holds it; then it is deleted. So what is gone was taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Final

from tracelake._errors import StorageError
from tracelake.pipeline.sources.port import Gone, Held, HeldBack, Input, New, Verdict, may_pass

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

    @abstractmethod
    def _there(self, paths: Collection[str]) -> Set[str]:
        """Return those of the inputs that are there. Raises StorageError."""

    def judge(self, item: Input, held: Held) -> Verdict:
        """See `Source`."""
        return next(self.judge_all([item], held))

    def judge_all(self, items: Sequence[Input], held: Held) -> Iterator[Verdict]:
        """See `Source`."""
        there: Set[str] | None
        try:
            there = self._there([item.path for item in items])
        except StorageError:
            there = None  # who reads them says why they cannot be read
        for item in items:
            suspect = held.by_path.get((item.source, item.path))
            if suspect is not None:
                yield HeldBack(suspect)
            elif there is None:
                yield New(is_there=False)
            else:
                yield New() if item.path in there else Gone()

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # no input ever has the name of another
        return self._size_bytes(path) is None
