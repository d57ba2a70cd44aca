"""Which parts tell of the changes of a table between two times: pure decisions, of records that were read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelake.shards.model import Batch, BatchRef, Part, ShardState


@dataclass(frozen=True, slots=True)
class ChangedParts:
    """The parts in which changes of some times are, among others of other times."""

    inserted: tuple[Part, ...] = ()
    """Of rows that were inserted, and are there as of the end of their batch."""
    inserted_history: tuple[Part, ...] = ()
    """Of rows that were inserted, and retracted within their batch."""
    retractions: tuple[Part, ...] = ()
    """The row ids that were retracted, out of parts of any batch up to these."""
    retracted_history: tuple[Part, ...] = ()
    """Of rows that were retracted within the batch that inserted them."""

    @property
    def has_insertions(self) -> bool:
        """Whether rows may have been inserted."""
        return bool(self.inserted or self.inserted_history)

    @property
    def has_retractions(self) -> bool:
        """Whether rows may have been retracted."""
        return bool(self.retractions or self.retracted_history)


def are_forgotten(state: ShardState, after: int) -> bool:
    """Whether single changes later than `after` may be missing; those of a table from its beginning never are."""
    return after < state.since and (after >= 0 or state.since > 0)


def up_to(state: ShardState, until: int) -> list[BatchRef]:
    """Return the batches that may have changes up to a time."""
    return [ref for ref in state.batches if ref.lower <= until]


def later_than(refs: Iterable[BatchRef], after: int) -> list[BatchRef]:
    """Return the batches that may have changes later than a time."""
    return [ref for ref in refs if ref.upper > after + 1]


def changed_parts(batches: Sequence[Batch], row_ids: range) -> ChangedParts:
    """Return the parts of batches with the changes of some times, of which `row_ids` are the ids of rows inserted."""
    history = tuple(part for batch in batches for part in batch.history)
    return ChangedParts(
        inserted=tuple(part for batch in batches for part in batch.parts if _is_among(part, row_ids)),
        inserted_history=tuple(part for part in history if _is_among(part, row_ids)),
        retractions=tuple(part for batch in batches for part in batch.retractions),
        retracted_history=history,
    )


def _is_among(part: Part, row_ids: range) -> bool:
    return part.first_row_id < row_ids.stop and part.last_row_id >= row_ids.start
