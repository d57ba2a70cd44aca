"""Every decision of a shard (PROTOCOLS §1). Pure: no I/O, no clock, no randomness."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tracelake.shards.model import BatchRef, ShardState


class Verdict(Enum):
    """What becomes of a buffered update."""

    DROP = "another writer has persisted it"
    PROCESS = "emit it now"
    HOLD = "its time has not come"


def classify(ts: int, upper: int, input_frontier: int) -> Verdict:
    """Decide on an update at `ts`, given the shard's upper and the input frontier; total over all integers."""
    if ts < upper:
        return Verdict.DROP
    if ts == upper and ts < input_frontier:
        return Verdict.PROCESS
    return Verdict.HOLD


@dataclass(frozen=True, slots=True)
class Swap:
    """Publish this state by a conditional write on the one that was read."""

    state: ShardState


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """The batch with our id is in the state: an earlier try of ours succeeded."""


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The shard's upper is not the batch's lower; nothing was appended."""

    upper: int


AppendDecision: TypeAlias = Swap | AlreadyThere | UpperMismatch


def append(state: ShardState, lower: int, upper: int, batch: BatchRef | None) -> AppendDecision:
    """Decide on compare-and-append of [lower, upper); `batch` is None where no row changes.

    The same function decides the first try and every try after a conflict or an unknown outcome, always on a
    state that was read after it.
    """
    assert lower < upper, "a batch covers at least one time"
    if batch is not None and any(known.id == batch.id for known in state.batches):
        return AlreadyThere()
    if state.upper != lower:
        return UpperMismatch(state.upper)
    batches = state.batches if batch is None else (*state.batches, batch)
    return Swap(ShardState(since=state.since, upper=upper, batches=batches))


def visible(state: ShardState, as_of: int) -> tuple[BatchRef, ...]:
    """Return the batches that make up the rows as of time `as_of` (inclusive); -1 means before all.

    Raises ValueError unless since - 1 <= as_of < upper.
    """
    if not state.since - 1 <= as_of < state.upper:
        raise ValueError(f"as of {as_of} is outside of [{state.since - 1}, {state.upper})")
    return tuple(batch for batch in state.batches if batch.upper <= as_of + 1)
