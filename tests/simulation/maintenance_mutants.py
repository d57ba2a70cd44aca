"""One rule of compaction, leases or collection broken at a time: the simulator must find each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.maintenance import FilledScenario, MaintenanceScenario, Stores, WindowsScenario
from tests.simulation.mutants import Mutant
from tracelake.batching import Windows
from tracelake.shards.compaction import CollectedParts, Collector
from tracelake.shards.leases import Lease, leases
from tracelake.shards.model import Batch, BatchRef, Moment, Retired, ShardState, Write
from tracelake.shards.protocol import (
    Swap,
    UpperMismatch,
    append,
    collectable,
    drop_retired,
    next_state,
)
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore
from tracelake.testing import Actor, Faults


class _LateLease(Lease):
    """The parts are listed before the lease exists."""

    def __post_init__(self) -> None:
        state = self.shard.state()
        super().__post_init__()
        self.state = state


class LeaseAfterListing(FilledScenario):
    """A reader lists its parts before it takes its lease."""

    orphans = rests = False
    lease = _LateLease


class _Deaf(Collector):
    """A collector that asks no reader."""

    def retired(self, *, dry_run: bool = False) -> CollectedParts:
        del dry_run
        state = self._shard.state()
        return _delete(self, state, state.retired)


class LeasesIgnored(FilledScenario):
    """A collector deletes replaced objects that have readers."""

    collector = _Deaf


class _EarlyLook(Collector):
    """Reads leases before the state."""

    def retired(self, *, dry_run: bool = False) -> CollectedParts:
        del dry_run
        seen = list(leases(self._shard.name, self._key_value).values())
        state = self._shard.state()
        return _delete(self, state, collectable(state, seen))


class LeasesBeforeState(FilledScenario):
    """A collector reads leases before it reads the state."""

    orphans = rests = False
    collector = _EarlyLook


class _SharedDeleted(Collector):
    """Deletes all parts of replaced batches, including those that the new batch reuses."""

    def retired(self, *, dry_run: bool = False) -> CollectedParts:
        del dry_run
        with Lease(self._shard, self._key_value) as own:
            state = own.state
            gone = collectable(state, leases(self._shard.name, self._key_value).values())
            return _delete(self, state, gone, needed=False)


class SharedPartsDeleted(FilledScenario):
    """A part that compaction left unchanged is deleted with its first batch."""

    collector = _SharedDeleted


def _delete(
    collector: Collector, state: ShardState, gone: Sequence[Retired], needed: bool = True
) -> CollectedParts:
    live = {part.path for part in collector._live(state.batches)} if needed else set()
    for part in collector._passing(gone):
        if part.path not in live:
            collector._objects.delete(part.path)
    if gone:
        collector._shard.change(partial(drop_retired, deleted=gone))
    return CollectedParts()


class _NoEpochs(Collector):
    """Deletes every object that no state names."""

    def orphans(self, *, epoch_min_s: float = 0, dry_run: bool = False) -> CollectedParts:
        del epoch_min_s, dry_run
        state = self._shard.state()
        named = {part.path for part in (*self._live(state.batches), *self._passing(state.retired))}
        for path, _, _ in list(self._written()):
            if "/parts/" in path and path not in named:
                self._objects.delete(path)
        return CollectedParts()


class OrphansAtOnce(MaintenanceScenario):
    """A collector takes an unpublished part for an orphan."""

    collector = _NoEpochs


class _NeverLate(Shard):
    """Appends a batch at any age of its upload."""

    def compare_and_append(self, batch: Batch, write: Write | None = None) -> UpperMismatch | None:
        ref = None if batch.is_empty else self._write_record(batch, 0)
        self._change(lambda state: append(state, batch.lower, batch.upper, ref, state.epoch, write))
        return None


class EpochIgnored(MaintenanceScenario):
    """A writer that slept through two epochs publishes collected objects."""

    shard = _NeverLate
    collects_every_s = 1.0


class _Splice(Shard):
    """Puts a compaction in its batches' place, even if the state has changed."""

    def replace(self, run: Sequence[BatchRef], merged: Batch, written: Iterable[str] = ()) -> bool:  # noqa: ARG002
        ref = self._write_record(merged, run[0].level + 1)

        def decide(state: ShardState) -> Swap | None:
            if any(known.id == ref.id for known in state.batches):
                return None
            start = sum(known.upper <= ref.lower for known in state.batches)
            batches = (*state.batches[:start], ref, *state.batches[start + len(run) :])
            return next_state(
                state, batches=batches, retired=(*state.retired, Retired(state.seq + 1, tuple(run)))
            )

        self.change(decide)
        return True


class SplicedByPlace(FilledScenario):
    """Two compactors; the slower one replaces by position what the faster one has replaced."""

    shard = _Splice

    def actors(self) -> list[Actor]:
        """Add a second compactor."""
        return [*super().actors(), Actor("compactor-2", self._compact)]


class HistoryForgotten(FilledScenario):
    """Compaction drops rows deleted within its run although they can still be read."""

    def remembered(self, gone: int, since: int) -> bool:
        del gone, since
        return False


class RetractionsDropped(FilledScenario):
    """Compaction drops the retractions of older rows."""

    def merge(self, stores: Stores, batches: Sequence[Batch], since: int, epoch: int) -> Batch:
        return replace(super().merge(stores, batches, since, epoch), retractions=())


class CompactedBeforeCommit(MaintenanceScenario):
    """Compaction takes uncommitted batches."""

    def committed(self, key_value: KeyValueStore, shard: Shard) -> int:
        del key_value
        return shard.state().upper


class AbortDeletes(MaintenanceScenario):
    """A writer whose append raised deletes its objects."""

    def abort(self, stores: Stores, batch: Batch) -> None:
        for part in batch.objects():
            stores.objects.delete(part.path)


class _ByTheClock(Collector):
    """Judges a lease as abandoned by wall-clock time: of its machine now, of another at the last look."""

    def _now(self) -> Moment:
        return Moment("", time.time(), time.time())


class LeasesByTheClock(FilledScenario):
    """Collectors compare wall-clock times of two machines, or of one whose clock was set."""

    collector = _ByTheClock
    collects_every_s = 1.0


_SLOW: Final = Faults(delays=4)

MAINTENANCE_MUTANTS: Final = [
    Mutant(
        "maintenance: a window merged with another",
        WindowsScenario,
        exhaustive_max=None,
        words=[Mutation("windows", Windows.numbers, rewrite("list(_(_1, max))", "[1 for a in _1]"))],
    ),
    Mutant(
        "maintenance: a settled window rewritten",
        WindowsScenario,
        exhaustive_max=None,
        words=[Mutation("one item stays", Windows.due, rewrite("len(_1) > 1", "len(_1) > 0"))],
    ),
    Mutant("maintenance: lease after listing", partial(LeaseAfterListing, 2, 4), exhaustive_max=None),
    Mutant("maintenance: leases ignored", partial(LeasesIgnored, 2, 4), exhaustive_max=None),
    Mutant(
        "maintenance: leases before state",
        partial(LeasesBeforeState, 2, 3),
        _SLOW,
        exhaustive_max=None,
        random_max=1_000,
        first_seed=500,
    ),
    Mutant("maintenance: shared parts deleted", SharedPartsDeleted, exhaustive_max=None),
    Mutant("maintenance: orphans at once", OrphansAtOnce, exhaustive_max=None),
    Mutant(
        "maintenance: epoch ignored",
        partial(EpochIgnored, 2, 3, 3),
        _SLOW,
        exhaustive_max=None,
        random_max=400,
        first_seed=320,
    ),
    Mutant("maintenance: spliced by place", partial(SplicedByPlace, 0, 3), _SLOW, exhaustive_max=None),
    Mutant("maintenance: history forgotten", HistoryForgotten, exhaustive_max=None),
    Mutant("maintenance: retractions dropped", partial(RetractionsDropped, 1, 3), exhaustive_max=None),
    Mutant(
        "maintenance: compacted before its commit",
        partial(CompactedBeforeCommit, 1, 4, 6),
        _SLOW,
        exhaustive_max=None,
        random_max=400,
        first_seed=70,
    ),
    Mutant("maintenance: abort deletes", AbortDeletes, Faults(lost=6), exhaustive_max=None, random_max=400),
    Mutant(
        "maintenance: leases by the clock",
        partial(LeasesByTheClock, 2, 4),
        _SLOW,
        exhaustive_max=None,
        random_max=1_000,
    ),
]
