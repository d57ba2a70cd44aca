"""Selection of the parts that contain the changes of a table between two times. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelake.shards.model import Batch, BatchRef, Part, ShardState


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """The parts that contain the changes of some times; they may contain changes of other times too."""

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


def are_forgotten(state: ShardState, after: int) -> bool:
    """Return whether individual changes later than `after` may be missing. From a table's beginning, they never are."""
    return after < state.since and (after >= 0 or state.since > 0)


def up_to(state: ShardState, until: int) -> list[BatchRef]:
    """Return the batches that may have changes up to a time."""
    return [ref for ref in state.batches if ref.lower <= until]


def later_than(refs: Iterable[BatchRef], after: int) -> list[BatchRef]:
    """Return the batches that may have changes later than a time."""
    return [ref for ref in refs if ref.upper > after + 1]


def changed_parts(batches: Sequence[Batch], row_ids: range) -> ChangedParts:
    """Return the parts of batches with the changes of some times; `row_ids` are the ids of the rows inserted then."""
    history = tuple(part for batch in batches for part in batch.history)
    return ChangedParts(
        inserted=tuple(part for batch in batches for part in batch.parts if _is_among(part, row_ids)),
        inserted_history=tuple(part for part in history if _is_among(part, row_ids)),
        retractions=tuple(part for batch in batches for part in batch.retractions),
        retracted_history=history,
    )


def _is_among(part: Part, row_ids: range) -> bool:
    return part.first_row_id < row_ids.stop and part.last_row_id >= row_ids.start
