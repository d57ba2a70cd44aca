"""Garbage collection of one shard: replaced batches that no lease holds, and orphans of crashed writers.

Both are safe with concurrent readers and writers, and at any crash. Objects are deleted before the records that name
them, so an interrupted collection is resumed. Deleting twice is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tracelake.limits import EPOCH_MIN_S, STAGED_ROWS_AGE_MAX_S
from tracelake.shards.leases import Lease, drop_expired_leases, expired_leases, leases, moment, this_machine
from tracelake.shards.model import BatchRef, Moment, Part, Retired
from tracelake.shards.parts import PARTS, STAGED
from tracelake.shards.protocol import collectable, drop_retired, is_orphan_epoch, next_epoch
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore, delete_all

FOLDERS: Final = (PARTS, STAGED, "batches", "states")


@dataclass(frozen=True, slots=True)
class CollectedParts:
    """Number and size of the deleted objects, or in a dry run of the objects to delete."""

    objects: int = 0
    size_bytes: int = 0
    held: int = 0
    """Replaced batches that stay because a reader's lease holds them."""


class Collector:
    """Garbage collector of one shard. Any number may work on the same shard at once."""

    def __init__(
        self, shard: Shard, key_value: KeyValueStore, objects: ObjectStore, machine: str | None = None
    ) -> None:
        """Create a collector; `machine` identifies the steady clock of `time.monotonic`, by default that of this
        machine."""
        self._shard = shard
        self._key_value = key_value
        self._objects = objects
        self._machine = machine or this_machine()

    def retired(self, *, dry_run: bool = False) -> CollectedParts:
        """Delete the objects of batches that compaction replaced and that no reader can name any more."""
        name, ended = self._shard.name, set[str]()
        if dry_run:
            ended = expired_leases(name, self._key_value, self._now)
        else:
            drop_expired_leases(name, self._key_value, self._now)
        with Lease(self._shard, self._key_value) as own:  # so that live objects stay during the collection
            state = own.state
            # Safety: the leases of others are read after the state, never before (see `leases`).
            held = leases(name, self._key_value)
            gone = collectable(state, [held[key] for key in held if key not in ended])
            if not gone:  # before reading any record, because a long lease may hold many batches
                return CollectedParts(held=len(state.retired))
            left = [retired for retired in state.retired if retired not in gone]
            needed = {part.path for part in (*self._live(state.batches), *self._passing(left))}
            doomed = {part.path: part.size_bytes for part in self._passing(gone) if part.path not in needed}
            records = [ref.path for retired in gone for ref in retired.batches]
            if not dry_run:
                delete_all(self._objects, doomed)
                delete_all(self._objects, records)  # last, because they lead to the parts
                self._shard.change(partial(drop_retired, gone=gone))
        return CollectedParts(len(doomed) + len(records), sum(doomed.values()), held=len(left))

    def orphans(self, *, epoch_min_s: float = EPOCH_MIN_S, dry_run: bool = False) -> CollectedParts:
        """Delete objects that no state names and that were written two epochs ago or earlier; begin an epoch if it is
        due.

        So an orphan is deleted by the second or third collection after it was written, if these are `epoch_min_s`
        apart.
        """
        if not dry_run:
            self._shard.change(partial(next_epoch, now_s=time.time(), epoch_min_s=epoch_min_s))
        with Lease(self._shard, self._key_value) as own:
            state = own.state
            paths = {ref.path for ref in state.batches}
            paths |= {ref.path for retired in state.retired for ref in retired.batches}
            paths |= {part.path for part in (*self._live(state.batches), *self._passing(state.retired))}
            if state.rolled is not None:
                paths.add(state.rolled.path)
            orphans = [
                (path, size)
                for path, size, epoch in self._written()
                if is_orphan_epoch(state, epoch) and path not in paths
            ]
            if not dry_run:
                delete_all(self._objects, [path for path, _ in orphans])
        return CollectedParts(len(orphans), sum(size for _, size in orphans))

    def _now(self) -> Moment:
        return moment(self._shard.name, self._objects, self._machine)

    def _written(self) -> Iterator[tuple[str, int, int]]:
        """Yield (path, bytes, epoch) of each object of the shard, without staged ones that a writer may still use."""
        waiting_since = self._now().store_s - STAGED_ROWS_AGE_MAX_S
        for folder in FOLDERS:
            prefix = f"shards/{self._shard.name}/{folder}/"
            for info in list(self._objects.list(prefix)):
                if folder == STAGED and info.modified_s > waiting_since:
                    continue
                epoch = info.path.removeprefix(prefix).partition("/")[0]
                if epoch.isdecimal():
                    yield info.path, info.size_bytes, int(epoch)

    def _live(self, refs: Iterable[BatchRef]) -> Iterator[Part]:
        for ref in refs:
            yield from self._shard.batch(ref).objects()

    def _passing(self, retired: Iterable[Retired]) -> Iterator[Part]:
        """Yield the parts of retired batches. Batches whose record is gone are skipped: their parts were deleted
        before it."""
        for entry in retired:
            for ref in entry.batches:
                if (batch := self._shard.batch_if_there(ref)) is not None:
                    yield from batch.objects()
