"""Which offsets a log gave to the messages of a transaction, as it says so one by one. Pure."""

from __future__ import annotations

from tracelake.journal.receipts import PartitionOffsets
from tracelake.limits import OUTPUT_PARTITIONS_TOLD_MAX


class Offsets:
    """The offsets of one transaction."""

    def __init__(self) -> None:
        self._by_partition: dict[int, tuple[int, int, int]] = {}
        self._is_known = True

    def add(self, partition: int, offset: int | None) -> None:
        """Note the offset of a message; one that the log did not tell makes the others worth nothing."""
        if offset is None or offset < 0:
            self._is_known = False
            return
        first, last, messages = self._by_partition.get(partition, (offset, offset, 0))
        self._by_partition[partition] = min(first, offset), max(last, offset), messages + 1

    def known(self) -> tuple[PartitionOffsets, ...]:
        """Return those of the first partitions, none where some are not known."""
        if not self._is_known:
            return ()
        return tuple(
            PartitionOffsets(partition, first, last + 1, messages)
            for partition, (first, last, messages) in sorted(self._by_partition.items())
        )[:OUTPUT_PARTITIONS_TOLD_MAX]
