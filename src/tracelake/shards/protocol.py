"""Every decision of a shard (PROTOCOLS §1). Pure: no I/O, no clock, no randomness."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final, TypeAlias

from msgspec.structs import replace as changed

from tracelake import tiers
from tracelake.limits import APPENDS_REMEMBERED, COMPACTION_FAN_OUT, LEASE_MARGIN_S, WRITES_REMEMBERED
from tracelake.shards.model import BatchRef, LeaseRecord, Moment, Retired, ShardState, Write

EPOCHS_TO_APPEND: Final = 1
"""A writer may append in the epoch in which it began to upload, and in so many after it."""


class UpdateFate(Enum):
    """What becomes of a buffered update."""

    DROP = "another writer has persisted it"
    PROCESS = "emit it now"
    HOLD = "its time has not come"


def classify(ts: int, upper: int, input_frontier: int) -> UpdateFate:
    """Decide on an update at `ts`, given the shard's upper and the input frontier; total over all integers."""
    if ts < upper:
        return UpdateFate.DROP
    if ts == upper and ts < input_frontier:
        return UpdateFate.PROCESS
    return UpdateFate.HOLD


@dataclass(frozen=True, slots=True)
class Swap:
    """Publish this state by a conditional write on the one that was read."""

    state: ShardState


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """The batch with our id is in the state, or was and is replaced: an earlier try of ours succeeded."""


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The shard's upper is not the batch's lower; nothing was appended."""

    upper: int


@dataclass(frozen=True, slots=True)
class TooLate:
    """The batch was uploaded so long ago that its objects may have been collected: upload it again."""


@dataclass(frozen=True, slots=True)
class LostAppend:
    """Another compaction replaced one of the batches first."""


AppendDecision: TypeAlias = Swap | AlreadyThere | UpperMismatch | TooLate
ReplaceDecision: TypeAlias = Swap | AlreadyThere | LostAppend | TooLate


def next_state(state: ShardState, **changes: object) -> Swap:
    """Return the state that follows, with these changes."""
    return Swap(changed(state, seq=state.seq + 1, **changes))


def append(
    state: ShardState,
    lower: int,
    upper: int,
    batch: BatchRef | None,
    epoch: int = 0,
    write: Write | None = None,
    away: Collection[Write] = (),
) -> AppendDecision:
    """Decide on compare-and-append of [lower, upper); `batch` is None where no row changes.

    The same function decides the first try and every try after a conflict or an unknown outcome, always on a
    state that was read after it. That our batch is there is told by its id among the recent ones, not among the
    batches: compaction may have replaced it by then. `epoch` is the one in which the batch's first object was written.

    `write` is remembered by the very state that has the batch, or, where it changed no row, the time of it; so
    who looks for it in a state whose upper is `lower` misses none. `away` have records of their own by now.
    """
    assert lower < upper, "a batch covers at least one time"
    if batch is not None and (lower, batch.id) in state.recent:
        return AlreadyThere()
    if state.upper != lower:
        return UpperMismatch(state.upper)
    written = state.written if write is None else _with_write(state.written, write, away)
    if batch is None:
        return next_state(state, upper=upper, written=written)
    if not may_append(state, epoch):
        return TooLate()
    recent = (*state.recent, (lower, batch.id))[-APPENDS_REMEMBERED:]
    batches = (*state.batches, batch)
    return next_state(state, upper=upper, batches=batches, recent=recent, written=written)


def is_written(there: Write, name: str, number: int) -> bool:
    """Whether a write that is there is the one of this id, or a later one of its series."""
    return there.name == name and there.number >= number


def batches_to_roll(written: Sequence[Write], most: int = WRITES_REMEMBERED) -> tuple[Write, ...]:
    """Return the writes that need records of their own before another one is remembered: the older half, if many."""
    return tuple(written[: most // 2]) if len(written) >= most else ()


def _with_write(written: Iterable[Write], write: Write, away: Collection[Write]) -> tuple[Write, ...]:
    return (*(old for old in written if old not in away and old.name != write.name), write)


def remembers(state: ShardState, lower: int) -> bool:
    """Whether the state tells of a batch at `lower` that it was, or was not, appended."""
    return len(state.recent) < APPENDS_REMEMBERED or state.recent[0][0] <= lower


def _was_there(state: ShardState, id: str) -> bool:
    replaced = (batch for retired in reversed(state.retired) for batch in retired.batches)
    return any(batch.id == id for batch in chain(reversed(state.batches), replaced))


def may_append(state: ShardState, epoch: int) -> bool:
    """Whether objects written in `epoch` are safe from collection, which begins where this ends."""
    return state.epoch - epoch <= EPOCHS_TO_APPEND


def visible(state: ShardState, as_of: int) -> tuple[BatchRef, ...]:
    """Return the batches that hold changes up to time `as_of` (inclusive); -1 means before all.

    The last may reach beyond `as_of`, where compaction made it; its rows tell their times.

    Raises ValueError unless since <= as_of < upper.
    """
    if as_of == -1 and state.since == 0:
        return ()
    if not state.since <= as_of < state.upper:
        raise ValueError(f"as of {as_of} is outside of [{state.since}, {state.upper})")
    return tuple(batch for batch in state.batches if batch.lower <= as_of)


def settle_append(batches: Sequence[BatchRef], committed: int) -> tuple[BatchRef, ...]:
    """Return the batches that may be compacted: those of times before `committed`, which commits name.

    The record of any other is what its commit will be made of, so it stays as its writer made it.
    """
    return tuple(batch for batch in batches if batch.upper <= committed)


def due(batches: Sequence[BatchRef], until: int, fan_out: int = COMPACTION_FAN_OUT) -> tuple[BatchRef, ...]:
    """Return adjacent batches to compact now, the oldest that are due; none where nothing is.

    Batches that reach beyond `until` are left alone.
    """
    there = settle_append(batches, until)
    run = tiers.due([batch.weight for batch in there], fan_out)
    return there[run.start : run.stop]


def replace(state: ShardState, run: Sequence[BatchRef], batch: BatchRef, epoch: int) -> ReplaceDecision:
    """Decide on putting `batch`, which holds the same rows, in the place of a run of adjacent batches."""
    if _was_there(state, batch.id):
        return AlreadyThere()
    ids = [known.id for known in state.batches]
    try:
        start = ids.index(run[0].id)
    except ValueError:
        return LostAppend()
    stop = start + len(run)
    if ids[start:stop] != [known.id for known in run]:
        return LostAppend()
    if not may_append(state, epoch):
        return TooLate()
    return next_state(
        state,
        batches=(*state.batches[:start], batch, *state.batches[stop:]),
        retired=(*state.retired, Retired(state.seq + 1, tuple(run))),
    )


def forget(state: ShardState, since: int) -> Swap | None:
    """Decide that times before `since` need not be readable any more; None where that is so already."""
    since = min(since, state.upper - 1)
    return next_state(state, since=since) if since > state.since else None


def is_lease_expired(lease: LeaseRecord, seen: Moment, now: Moment) -> bool:
    """Whether nobody has renewed a lease for longer than it lasts: it was seen so then, and is just so now.

    Only clocks that are the same one are compared: the steady clock of a machine, or the store's.
    """
    is_same = now.machine == seen.machine
    passed_s = now.steady_s - seen.steady_s if is_same else now.store_s - seen.store_s
    return passed_s >= lease.seconds + LEASE_MARGIN_S


def collectable(state: ShardState, leases: Iterable[LeaseRecord]) -> tuple[Retired, ...]:
    """Return what was retired before every lease was taken: no reader can name it.

    A reader takes its lease first and reads the state then, so it names only what a state numbered `seq` or
    later names. Leases must have been read *after* the state was.
    """
    oldest = min((lease.seq for lease in leases), default=state.seq)
    return tuple(retired for retired in state.retired if retired.seq <= oldest)


def drop_retired(state: ShardState, gone: Sequence[Retired]) -> Swap | None:
    """Decide to forget retired batches whose objects are deleted; None where that is done already."""
    seqs = {retired.seq for retired in gone}
    left = tuple(retired for retired in state.retired if retired.seq not in seqs)
    return next_state(state, retired=left) if left != state.retired else None


def next_epoch(state: ShardState, now_s: float, epoch_min_s: float) -> Swap | None:
    """Decide to begin an epoch; None where the present one has not lasted so long yet.

    One that began so long after now was begun by a clock that was ahead, and would last until then: it ends.
    """
    if abs(now_s - state.epoch_began_s) < epoch_min_s:
        return None
    return next_state(state, epoch=state.epoch + 1, epoch_began_s=now_s)


def is_orphan_epoch(state: ShardState, epoch: int) -> bool:
    """Whether an object written in `epoch`, which no state names, never can be named any more.

    Its writer's append is refused from here on, so neither a clock nor a paused writer can make this wrong.
    """
    return not may_append(state, epoch)
