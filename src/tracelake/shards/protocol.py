"""Decisions of a shard (PROTOCOLS §1). Pure: no I/O, no clock, no randomness."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final, TypeAlias

from msgspec.structs import replace as changed

from tracelake.batching import ONE_WINDOW, Windows, has_elapsed
from tracelake.limits import WRITES_REMEMBERED
from tracelake.shards.model import BatchRef, LeaseRecord, Moment, Retired, ShardState, Write

COMPACTION_FAN_OUT: Final = 8
"""Adjacent batches of a shard in one size class, by the logarithm of their rows to this base."""
APPENDS_REMEMBERED: Final = 64
"""Appends that a state remembers by id."""
LEASE_MARGIN_S: Final = 60.0
"""Extra time after the duration of a lease until it is expired. A reader renews in time, but its store may be slow."""

EPOCHS_TO_APPEND: Final = 1
"""Number of epochs after the start of an upload in which the writer may still append."""


class UpdateFate(Enum):
    """Result of classifying a buffered update."""

    DROP = "another writer has persisted it"
    PROCESS = "emit it now"
    HOLD = "its time has not come"


def classify(ts: int, upper: int, input_frontier: int) -> UpdateFate:
    """Classify an update at `ts`, given the shard's upper and the input frontier. Total over all integers."""
    if ts < upper:
        return UpdateFate.DROP
    if ts == upper and ts < input_frontier:
        return UpdateFate.PROCESS
    return UpdateFate.HOLD


@dataclass(frozen=True, slots=True)
class Swap:
    """Decision to publish this state by a conditional write against the state that was read."""

    state: ShardState


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """Decision that an earlier try succeeded: the state contains the batch with this id, or contained it until
    compaction replaced it."""


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """Decision that the shard's upper differs from the batch's lower, so that nothing is appended."""

    upper: int


@dataclass(frozen=True, slots=True)
class TooLate:
    """Decision that the batch was uploaded too long ago. Its objects may have been collected, so the caller must upload
    them again."""


@dataclass(frozen=True, slots=True)
class LostAppend:
    """Decision that another compaction has already replaced one of the batches."""


AppendDecision: TypeAlias = Swap | AlreadyThere | UpperMismatch | TooLate
ReplaceDecision: TypeAlias = Swap | AlreadyThere | LostAppend | TooLate


def next_state(state: ShardState, **changes: object) -> Swap:
    """Return the next state, with these changes."""
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
    """Decide on compare-and-append of [lower, upper); `batch` is None if no row changes.

    The same function decides the first try and every retry after a conflict or an unknown outcome. Each retry uses a
    state that was read after it. An earlier success is detected by the batch's id in `recent`, not in `batches`,
    because compaction may have replaced the batch.

    Args:
        epoch: The epoch in which the batch's first object was written.
        write: The write to remember. The state that contains the batch, or its time if no row changes, also contains
            the write. A search in a state whose upper is `lower` therefore misses no write.
        away: Writes that already have separate records.
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
    """Whether the recorded write `there` is the write of this name and number, or a later one of its series."""
    return there.name == name and there.number >= number


def batches_to_roll(written: Sequence[Write], most: int = WRITES_REMEMBERED) -> tuple[Write, ...]:
    """Return the writes to move to separate records before another is remembered: the older half, if there are many."""
    return tuple(written[: most // 2]) if len(written) >= most else ()


def _with_write(written: Iterable[Write], write: Write, away: Collection[Write]) -> tuple[Write, ...]:
    return (*(old for old in written if old not in away and old.name != write.name), write)


def remembers(state: ShardState, lower: int) -> bool:
    """Whether the state still shows if a batch at `lower` was appended."""
    return len(state.recent) < APPENDS_REMEMBERED or state.recent[0][0] <= lower


def _was_there(state: ShardState, id: str) -> bool:
    replaced = (batch for retired in reversed(state.retired) for batch in retired.batches)
    return any(batch.id == id for batch in chain(reversed(state.batches), replaced))


def may_append(state: ShardState, epoch: int) -> bool:
    """Whether objects written in `epoch` cannot have been collected yet. Collection begins exactly where this is
    False."""
    return state.epoch - epoch <= EPOCHS_TO_APPEND


def visible(state: ShardState, as_of: int) -> tuple[BatchRef, ...]:
    """Return the batches with changes up to time `as_of` (inclusive); -1 means before all.

    The last batch may extend beyond `as_of` after compaction. Its rows contain their times.

    Raises ValueError unless since <= as_of < upper.
    """
    if as_of == -1 and state.since == 0:
        return ()
    if not state.since <= as_of < state.upper:
        raise ValueError(f"as of {as_of} is outside of [{state.since}, {state.upper})")
    return tuple(batch for batch in state.batches if batch.lower <= as_of)


def settle_append(batches: Sequence[BatchRef], committed: int) -> tuple[BatchRef, ...]:
    """Return the batches that may be compacted: those of times before `committed`, which commits contain already.

    The records of later batches must stay unchanged, because their commits will be made from them.
    """
    return tuple(batch for batch in batches if batch.upper <= committed)


def due(
    batches: Sequence[BatchRef], until: int, fan_out: int = COMPACTION_FAN_OUT, windows: Windows = ONE_WINDOW
) -> tuple[BatchRef, ...]:
    """Return adjacent batches of one window to compact now, the oldest that are due; empty if nothing is due.

    Batches that extend beyond `until` are skipped.
    """
    there = settle_append(batches, until)
    times_s, weights = [batch.ingested_s for batch in there], [batch.weight for batch in there]
    run = windows.due(times_s, weights, fan_out)
    return there[run.start : run.stop]


def of_one_window(batches: Sequence[BatchRef], lower: int, windows: Windows) -> tuple[BatchRef, ...]:
    """Return the batches of the oldest window that has none before `lower`; empty if there is none."""
    for _, items in windows.groups([batch.ingested_s for batch in batches]):
        if batches[items.start].lower >= lower:
            return tuple(batches[items.start : items.stop])
    return ()


def replace(state: ShardState, run: Sequence[BatchRef], batch: BatchRef, epoch: int) -> ReplaceDecision:
    """Decide whether to replace a run of adjacent batches by `batch`, which holds the same rows."""
    if _was_there(state, batch.id):
        return AlreadyThere()
    ids = [ref.id for ref in state.batches]
    try:
        start = ids.index(run[0].id)
    except ValueError:
        return LostAppend()
    stop = start + len(run)
    if ids[start:stop] != [ref.id for ref in run]:
        return LostAppend()
    if not may_append(state, epoch):
        return TooLate()
    return next_state(
        state,
        batches=(*state.batches[:start], batch, *state.batches[stop:]),
        retired=(*state.retired, Retired(state.seq + 1, tuple(run))),
    )


def rewrite(
    state: ShardState, rewritten: Mapping[str, BatchRef | None], epoch: int
) -> Swap | LostAppend | TooLate:
    """Decide whether to replace batches, by their ids, by batches of the same range of transactions.

    All are replaced in one state. The rows of a table are the inserted minus the retracted ones. If a row disappeared
    without its retraction, their number would be wrong.

    Args:
        rewritten: The new batch for each old one; None if it has no content left.
        epoch: The epoch in which the new objects were written.

    Returns:
        The next state. `LostAppend` if the state no longer contains one of the old batches. `TooLate` if garbage
        collection may already have deleted the new objects, because their epoch is too old.
    """
    old = tuple(ref for ref in state.batches if ref.id in rewritten)
    if len(old) < len(rewritten):
        return LostAppend()
    if not may_append(state, epoch):
        return TooLate()
    batches = tuple(new for ref in state.batches if (new := rewritten.get(ref.id, ref)) is not None)
    return next_state(state, batches=batches, retired=(*state.retired, Retired(state.seq + 1, old)))


def forget(state: ShardState, since: int) -> Swap | None:
    """Decide to forget times before `since`, which can then no longer be read; None if they are already forgotten.

    The newest time is never forgotten.
    """
    since = min(since, state.upper - 1)
    return next_state(state, since=since) if since > state.since else None


def is_lease_expired(lease: LeaseRecord, sighted_at: Moment, now: Moment) -> bool:
    """Whether a lease was not renewed for longer than its duration. Its version must not have
    changed from `sighted_at` to `now`.

    Only equal clocks are compared: the steady clock of one machine, or the store's clock.
    """
    is_same = now.machine == sighted_at.machine
    passed_s = now.steady_s - sighted_at.steady_s if is_same else now.store_s - sighted_at.store_s
    return passed_s >= lease.seconds + LEASE_MARGIN_S


def collectable(state: ShardState, leases: Iterable[LeaseRecord]) -> tuple[Retired, ...]:
    """Return the retired batches that no reader can name any more, because each lease was taken after they were
    retired."""
    oldest = min((lease.seq for lease in leases), default=state.seq)
    return tuple(retired for retired in state.retired if retired.seq <= oldest)


def drop_retired(state: ShardState, deleted: Sequence[Retired]) -> Swap | None:
    """Decide to drop retired batches whose objects are deleted; None if they are already dropped."""
    seqs = {retired.seq for retired in deleted}
    remaining = tuple(retired for retired in state.retired if retired.seq not in seqs)
    return next_state(state, retired=remaining) if remaining != state.retired else None


def next_epoch(state: ShardState, now_s: float, epoch_min_s: float) -> Swap | None:
    """Decide to begin an epoch; None if the current one has lasted less than `epoch_min_s`."""
    if not has_elapsed(epoch_min_s, state.epoch_began_s, now_s):
        return None
    return next_state(state, epoch=state.epoch + 1, epoch_began_s=now_s)


def is_orphan_epoch(state: ShardState, epoch: int) -> bool:
    """Whether an object written in `epoch` that no state names can never be named any more.

    From this epoch distance on, an append of the object is rejected, so neither a wrong clock nor a paused writer
    matters.
    """
    return not may_append(state, epoch)
