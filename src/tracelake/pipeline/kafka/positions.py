"""What is taken of each partition: written once a commit holds it, before the next transaction opens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tracelake._errors import ContentionError
from tracelake.formats import decode, encode
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.pipeline.kafka.model import FORMAT_VERSION, PartitionName, Position
from tracelake.pipeline.kafka.protocol import Offsets, mean_after, united
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore

PARTITION: Final = "kafka"


class Positions:
    """The partitions of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"{PARTITION}/{pipeline}"

    def find(self, name: PartitionName) -> Position | None:
        """Return what is taken of a partition, None where it was never looked at."""
        entry = self._store.get(self._partition, name.key())
        return None if entry is None else self._decode(entry)

    def begin(self, name: PartitionName, low: int) -> Position:
        """Note, at the first look at a partition, what it has: what comes after is lost only by name."""
        return self._change(name, lambda standing: standing or Position(united([(0, low)])))

    def take(self, name: PartitionName, taken: Iterable[Offsets], size_bytes: int = 0) -> None:
        """Note that ranges are taken; again, and in any order, is fine."""
        new = united(taken)
        messages = sum(stop - start for start, stop in new)

        def decide(standing: Position | None) -> Position:
            before = standing or Position(())
            mean = mean_after(before.mean_bytes, size_bytes, messages) if size_bytes else before.mean_bytes
            return Position(united([*before.taken, *new]), mean)

        self._change(name, decide)

    def _change(self, name: PartitionName, decide: Callable[[Position | None], Position]) -> Position:
        """Carry out a decision; one that was carried out, and whose reply was lost, changes little the second time."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._store.get(self._partition, name.key())
            standing = None if entry is None else self._decode(entry)
            wanted = decide(standing)
            if wanted == standing:
                return wanted
            expected = ABSENT if entry is None else entry.version
            if isinstance(self._store.set_if(self._partition, name.key(), encode(wanted), expected), Done):
                return wanted
        raise ContentionError(
            f"{self._partition}/{name.key()}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def _decode(self, entry: Entry) -> Position:
        return decode(Position, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)
