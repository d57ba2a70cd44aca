"""Inputs that stay where they are after the commit: what was taken is known by its content, under any name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tracelake.journal.known import KnownInputs
from tracelake.journal.model import RecordedInput, SegmentOfRun
from tracelake.pipeline.sources.port import Gone, Held, HeldBack, Input, Known, New, Verdict


class ByContent:
    """What files and objects of buckets have in common; see `Source`."""

    is_ours = False

    def __init__(self, known: KnownInputs, sha256: Callable[[str, int], str]) -> None:
        """Take what the pipeline knows, and how the first bytes of an input are hashed: it may raise OSError."""
        self._known = known
        self._sha256 = sha256

    def judge(self, item: Input, held: Held) -> New | Known | HeldBack | Gone:
        """See `Source`."""
        if item.size_bytes in held.sizes:
            suspect = held.by_content.get((item.size_bytes, self._sha256_of(item)))
            if suspect is not None:
                return HeldBack(suspect)
        before = self._known.find(item.size_bytes, lambda: self._sha256_of(item))
        return New() if before is None else Known(before)

    def judge_all(self, items: Sequence[Input], held: Held) -> Iterator[Verdict]:
        """See `Source`."""
        return (self.judge(item, held) for item in items)

    def let_go(self, taken: Sequence[RecordedInput]) -> None:
        """Remember what is taken; inputs are their owner's, and stay."""
        self._known.remember(each for each in taken if not isinstance(each, SegmentOfRun))

    def give_up(self, path: str, *, unread: bool) -> None:
        """Leave it: it is its owner's."""

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del path  # it may have another name by now
        return self._known.find(size_bytes, lambda: sha256) is not None

    def _sha256_of(self, item: Input) -> str:
        """Return its checksum, that of no known one where it cannot be read: who reads all of it says why."""
        try:
            return self._sha256(item.path, item.size_bytes)
        except OSError:
            return ""
