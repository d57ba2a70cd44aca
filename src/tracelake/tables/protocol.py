"""Selection of the parts that contain a table's changes between two transactions. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelake.shards.model import Batch, BatchRef, Part, ShardState


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """The parts that contain the changes of a range of transactions. They may also contain changes of other
    transactions."""

    inserted: tuple[Part, ...] = ()
    """Parts of inserted rows that exist as of the end of their batch."""
    inserted_history: tuple[Part, ...] = ()
    """Parts of rows that were inserted and retracted within the same batch."""
    retractions: tuple[Part, ...] = ()
    """Parts of retracted row ids; the rows are in parts of any batch up to these."""
    retracted_history: tuple[Part, ...] = ()
    """Parts of rows that were retracted within the batch that inserted them."""

    @property
    def has_insertions(self) -> bool:
        """Return whether rows may have been inserted."""
        return bool(self.inserted or self.inserted_history)

    @property
    def has_retractions(self) -> bool:
        """Return whether rows may have been retracted."""
        return bool(self.retractions or self.retracted_history)


def are_forgotten(state: ShardState, after: int, until: int) -> bool:
    """Return whether changes later than `after`, up to `until`, may be lost: compaction or expiry combined them.

    Changes from the table's beginning up to `since` or later are always known as one: the rows that remained.
    """
    return after < min(state.since, until) and (after >= 0 or until < state.since)


def first_end(state: ShardState, after: int) -> int:
    """Return the first transaction up to which the changes later than `after` can be read."""
    return max(after + 1, state.since) if after < 0 else after + 1


def up_to(state: ShardState, until: int) -> list[BatchRef]:
    """Return the batches that may have changes of transactions up to `until`."""
    return [ref for ref in state.batches if ref.lower <= until]


def later_than(refs: Iterable[BatchRef], after: int) -> list[BatchRef]:
    """Return the batches that may have changes of transactions later than `after`."""
    return [ref for ref in refs if ref.upper > after + 1]


def changed_parts(batches: Sequence[Batch], row_ids: range) -> ChangedParts:
    """Return the parts of these batches with the changes of a range of transactions. `row_ids` are the ids of the rows
    that these transactions inserted."""
    history = tuple(part for batch in batches for part in batch.history)
    return ChangedParts(
        inserted=tuple(part for batch in batches for part in batch.parts if _is_among(part, row_ids)),
        inserted_history=tuple(part for part in history if _is_among(part, row_ids)),
        retractions=tuple(part for batch in batches for part in batch.retractions),
        retracted_history=history,
    )


def _is_among(part: Part, row_ids: range) -> bool:
    return part.first_row_id < row_ids.stop and part.last_row_id >= row_ids.start
