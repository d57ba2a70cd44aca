"""Leases: a reader's claim on the parts that it has listed (PROTOCOLS §1).

A lease is a record of its own, not a part of the shard's state, so readers never get in the way of writers.
Two orders make it safe: a reader writes its lease and reads the state *then*; garbage collection reads the state
and looks for leases *then*. Whatever a collector misses was taken after its look at the state, so that reader
sees this state or a later one, which names nothing that was retired before.

A lease holds while its record is there, and no clock is asked for that: neither by the reader nor by a collector.
What becomes of those that nobody gives back: see `shards.sightings`.

How collectors tell the lease of a reader that was killed: nobody has renewed it while they looked on.

A reader renews its lease, which gives the record another version. A collector notes which version it saw, and when
*it* saw it; a collector that finds the same version once the lease's time has passed since forgets the lease, by a
conditional delete, so that a reader who renews it in that moment keeps it. What has passed is told by the steady
clock of one machine, or, where another machine looks now, by the clock by which the store dates objects. The time
of day of no machine is asked, and no two clocks are compared: a clock that is hours ahead, or jumps, ends no lease.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final

from tracelake._errors import DamageError, ExpiredError, NotFoundError, StorageError, TracelakeError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, LEASE_S
from tracelake.shards.model import LeaseRecord, Moment, ShardState, Sighting, from_bytes, to_bytes
from tracelake.shards.protocol import is_lease_expired
from tracelake.shards.shard import Shard
from tracelake.storage import Done, Entry, KeyValueStore, ObjectStore, settle

LEASES_PARTITION: Final = "leases"


@dataclass
class Lease:
    """A claim on all parts that `state`, or any later state, of one shard names. `close` it when done.

    A process that is killed leaves its lease behind until collectors find that nobody renews it.
    """

    shard: Shard
    key_value: KeyValueStore
    seconds: float = LEASE_S
    state: ShardState = field(init=False)
    """The shard's state, read when the lease was there already."""

    def __post_init__(self) -> None:
        """Take the lease, then read the state."""
        self.key = f"{self.shard.name}/{uuid.uuid4().hex}"
        self._record = to_bytes(LeaseRecord(self.shard.state().seq, self.seconds))
        self._renewed_s = time.monotonic()
        self._is_written = self._write()
        try:
            self.state = self.shard.state()
        except TracelakeError:
            self.close()
            raise

    def renew(self, *, now: bool = False) -> None:
        """Show that its reader lives, once half of its time is over, or `now`.

        Raises ExpiredError where it was taken for left behind: parts may be gone, so list them again under a new lease.
        """
        started_s = time.monotonic()
        if not self._is_written:
            # Parts that this state names stay, unless a later state has replaced them.
            if now and self.shard.state().seq != self.state.seq:
                raise ExpiredError(f"table {self.shard.name} has changed. Open the table again.")
            return
        if not now and started_s <= self._renewed_s + self.seconds / 2:
            return
        if not self._write_anew():
            raise ExpiredError(
                f"the lease on table {self.shard.name} has ended, and its parts may have been collected. "
                "Open the table again."
            )
        self._renewed_s = started_s

    def close(self) -> None:
        """Give the lease back."""
        if not self._is_written:
            return
        with contextlib.suppress(StorageError):  # it ends by itself
            if (entry := self.key_value.get(LEASES_PARTITION, self.key)) is not None:
                self.key_value.delete_if(LEASES_PARTITION, self.key, entry.version)

    def __enter__(self) -> Lease:
        """Return the lease."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the lease. Where a part was gone because it had ended, say so: that is no damage (S10)."""
        try:
            if isinstance(error, DamageError | NotFoundError):
                self.renew(now=True)
        finally:
            self.close()

    def _write(self) -> bool:
        """Write the lease. False if the store is read-only or full: a reader goes on without a lease then."""
        try:
            self.key_value.set(LEASES_PARTITION, self.key, self._record)
        except StorageError as error:
            if not error.is_unwritable:
                raise
            return False
        return True

    def _write_anew(self) -> bool:
        """Give the record another version; False where it was forgotten meanwhile, and must never come back."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):  # another thread may renew it too
            entry = self.key_value.get(LEASES_PARTITION, self.key)
            if entry is None:
                return False
            outcome = self.key_value.set_if(LEASES_PARTITION, self.key, self._record, entry.version)
            settled = settle(self.key_value, LEASES_PARTITION, self.key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return True
        return False


def leases(shard: str, key_value: KeyValueStore) -> dict[str, LeaseRecord]:
    """Return all leases on a shard, by their keys: each of them holds."""
    return {entry.key: lease_of(entry) for entry in entries(LEASES_PARTITION, shard, key_value)}


def entries(partition: str, shard: str, key_value: KeyValueStore) -> list[Entry]:
    """Return the records of a partition that are of one shard."""
    return key_value.scan(partition, f"{shard}/", f"{shard}0")  # "0" follows "/"


def lease_of(entry: Entry) -> LeaseRecord:
    """Read a record; one that is damaged claims everything, until it is left behind. `verify` names it."""
    try:
        return from_bytes(LeaseRecord, entry.value, f"lease {entry.key}")
    except DamageError:
        return LeaseRecord(0, LEASE_S)


class Leases:
    """Several leases that end together: given back when the last object that uses them is gone."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._close = weakref.finalize(self, _close_all, self._leases)
        self._close.atexit = False  # the stores may be closed by then; leases end by themselves

    def take(self, shard: Shard, key_value: KeyValueStore) -> Lease:
        """Take one more."""
        lease = Lease(shard, key_value)
        self._leases.append(lease)
        return lease

    def renew(self, *, now: bool = False) -> None:
        """Renew all. Raises ExpiredError where one has ended."""
        for lease in self._leases:
            lease.renew(now=now)

    def close(self) -> None:
        """Give all back."""
        self._close()


def _close_all(leases: list[Lease]) -> None:
    for lease in leases:
        with contextlib.suppress(TracelakeError):
            lease.close()


SIGHTINGS_PARTITION: Final = "sightings"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def this_machine() -> str:
    """Return what all processes share that have the same steady clock: Linux tells; elsewhere it is this process."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return uuid.uuid4().hex


def moment(shard: str, objects: ObjectStore, machine: str) -> Moment:
    """Return now, by the steady clock of this machine and by the store's clock, which dates what is written now."""
    path = f"shards/{shard}/clock"
    objects.put(path, b"")
    info = objects.head(path)
    if info is None:
        raise StorageError(f"{path} is not there after it was written: check the store, then collect again.")
    return Moment(machine, time.monotonic(), info.modified_s)


def expired_leases(shard: str, key_value: KeyValueStore, now: Callable[[], Moment]) -> set[str]:
    """Return the keys of leases that nobody has renewed for as long as they last; nothing is changed."""
    leases = entries(LEASES_PARTITION, shard, key_value)
    seen = _sightings(shard, key_value)
    if not seen:
        return set()
    moment = now()
    return {entry.key for entry in leases if _is_left_behind(entry, seen.get(entry.key), moment)}


def drop_expired_leases(shard: str, key_value: KeyValueStore, now: Callable[[], Moment]) -> int:
    """Remove leases that nobody has renewed for as long as they last, and note which others are there.

    Returns how many were removed.
    """
    leases = entries(LEASES_PARTITION, shard, key_value)
    seen = _sightings(shard, key_value)
    if not leases and not seen:
        return 0
    moment = now()  # after the look: what was seen was there by then
    left = {entry.key for entry in leases}
    for entry in leases:
        sighting = seen.get(entry.key)
        if _is_left_behind(entry, sighting, moment):
            key_value.delete_if(
                LEASES_PARTITION, entry.key, entry.version
            )  # unless its reader has just renewed it
            left.discard(entry.key)
        elif sighting is None or sighting.lease != entry.version:
            key_value.set(SIGHTINGS_PARTITION, entry.key, to_bytes(Sighting(entry.version, moment)))
    for entry in entries(SIGHTINGS_PARTITION, shard, key_value):
        if entry.key in seen and entry.key not in left:
            key_value.delete_if(SIGHTINGS_PARTITION, entry.key, entry.version)
    return len(leases) - len(left)


def _is_left_behind(entry: Entry, sighting: Sighting | None, now: Moment) -> bool:
    if sighting is None or sighting.lease != entry.version:
        return False
    return is_lease_expired(lease_of(entry), sighting.at, now)


def _sightings(shard: str, key_value: KeyValueStore) -> dict[str, Sighting]:
    """Return what was seen; a record that is damaged tells nothing, and is written anew."""
    sightings = {}
    for entry in entries(SIGHTINGS_PARTITION, shard, key_value):
        with suppress(DamageError):
            sightings[entry.key] = from_bytes(Sighting, entry.value, f"sighting {entry.key}")
    return sightings
