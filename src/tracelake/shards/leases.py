"""Leases: a reader's claim on the parts that it has listed (PROTOCOLS §1).

A lease is a separate record, not a part of the shard's state, so readers never conflict with writers. Two orders of
operations make this safe. A reader writes its lease first and then reads the state. Garbage collection reads the state
first and then lists the leases. A lease that it misses was written after it read the state. Its reader therefore sees
this state or a later one, which names nothing that was retired before.

A lease is valid as long as its record exists. Neither readers nor garbage collection use a clock for that.

A reader renews its lease, which changes the version of the record. Garbage collection records a sighting: the version,
and the time at which it first saw that version. If it finds the same version after the duration of the lease, the lease
is expired. It then deletes the lease conditionally, so that a reader that renews it in that moment keeps it.

Elapsed time is measured by the steady clock of one machine. If another machine looks, it is measured by the clock with
which the store dates objects. No machine's time of day is used and no two clocks are compared. A clock that is hours
ahead, or jumps, therefore ends no lease.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
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
    """Lease on all parts that `state`, or any later state, of one shard names. Call `close` after use.

    The lease of a killed process remains until garbage collectors find that it is not renewed.
    """

    shard: Shard
    key_value: KeyValueStore
    seconds: float = LEASE_S
    state: ShardState = field(init=False)
    """The shard's state, read after the lease was written."""

    def __post_init__(self) -> None:
        """Write the lease, then read the state."""
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
        """Extend the lease if half of its time has passed, or, with `now`, in any case.

        Raises ExpiredError if the lease has expired. Its parts may be deleted, so the caller must list the table's
        parts again under a new lease.
        """
        started_s = time.monotonic()
        if not self._is_written:
            # Parts that this state names stay until a later state replaces them.
            if now and self.shard.state().seq != self.state.seq:
                raise ExpiredError(f"table {self.shard.name} has changed. Open the table again.")
            return
        if not now and started_s <= self._renewed_s + self.seconds / 2:
            return
        if not self._rewrite():
            raise ExpiredError(
                f"the lease on table {self.shard.name} has ended, and its parts may have been collected. "
                "Open the table again."
            )
        self._renewed_s = started_s

    def close(self) -> None:
        """Release the lease."""
        if not self._is_written:
            return
        with contextlib.suppress(StorageError):  # the lease expires anyway
            if (entry := self.key_value.get(LEASES_PARTITION, self.key)) is not None:
                self.key_value.delete_if(LEASES_PARTITION, self.key, entry.version)

    def __enter__(self) -> Lease:
        """Return the lease."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease. If a part was missing, raise ExpiredError if the lease has expired, because the missing
        part is then no damage (S10)."""
        try:
            if isinstance(error, DamageError | NotFoundError):
                self.renew(now=True)
        finally:
            self.close()

    def _write(self) -> bool:
        """Write the lease. Return False if the store is read-only or full; the reader then continues without a
        lease."""
        try:
            self.key_value.set(LEASES_PARTITION, self.key, self._record)
        except StorageError as error:
            if not error.is_unwritable:
                raise
            return False
        return True

    def _rewrite(self) -> bool:
        """Change the version of the record. Return False if a garbage collector has deleted the record, which
        must not be recreated."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):  # another thread may renew it at the same time
            entry = self.key_value.get(LEASES_PARTITION, self.key)
            if entry is None:
                return False
            outcome = self.key_value.set_if(LEASES_PARTITION, self.key, self._record, entry.version)
            settled = settle(self.key_value, LEASES_PARTITION, self.key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return True
        return False


def leases(shard: str, key_value: KeyValueStore) -> dict[str, LeaseRecord]:
    """Return all leases on a shard, by key. Each is valid as long as its record exists."""
    return {entry.key: lease_of(entry) for entry in entries(LEASES_PARTITION, shard, key_value)}


def entries(partition: str, shard: str, key_value: KeyValueStore) -> list[Entry]:
    """Return the records of one shard in a partition."""
    return key_value.scan(partition, f"{shard}/", f"{shard}0")  # "0" follows "/"


def lease_of(entry: Entry) -> LeaseRecord:
    """Decode a lease. A damaged record counts as a lease on all parts until it expires; `verify` reports it."""
    try:
        return from_bytes(LeaseRecord, entry.value, f"lease {entry.key}")
    except DamageError:
        return LeaseRecord(0, LEASE_S)


class Leases:
    """A reader's leases on several tables, such as those of one commit. They are released by `close`, or when this
    object is garbage-collected; objects that read under the leases keep a reference to it."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._close = weakref.finalize(self, _close_all, self._leases)
        self._close.atexit = False  # the stores may already be closed at exit; the leases expire anyway

    def take(self, shard: Shard, key_value: KeyValueStore) -> Lease:
        """Take a lease on one more shard, and add it to the group."""
        lease = Lease(shard, key_value)
        self._leases.append(lease)
        return lease

    def renew(self, *, now: bool = False) -> None:
        """Renew all leases, as `Lease.renew` does. Raises ExpiredError if one has expired."""
        for lease in self._leases:
            lease.renew(now=now)

    @contextlib.contextmanager
    def reading(self, *, now: bool = False) -> Iterator[None]:
        """Keep the leases while the `with` block reads parts. If one expired before, a missing part is not reported as
        damage (S10). With `now`, renew them at once."""
        self.renew(now=now)
        try:
            yield
        except (DamageError, NotFoundError):
            self.renew(now=True)
            raise

    def close(self) -> None:
        """Release all leases."""
        self._close()


def _close_all(leases: list[Lease]) -> None:
    for lease in leases:
        with contextlib.suppress(TracelakeError):
            lease.close()


SIGHTINGS_PARTITION: Final = "sightings"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def this_machine() -> str:
    """Return an id shared by all processes with the same steady clock: Linux's boot id, or elsewhere an id of this
    process."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return uuid.uuid4().hex


def moment(shard: str, objects: ObjectStore, machine: str) -> Moment:
    """Return the current time by this machine's steady clock and by the store's clock, which dates an object."""
    path = f"shards/{shard}/clock"
    objects.put(path, b"")
    info = objects.head(path)
    if info is None:
        raise StorageError(
            f"{path} is missing right after it was written: check the store, then collect again."
        )
    return Moment(machine, time.monotonic(), info.modified_s)


def expired_leases(shard: str, key_value: KeyValueStore, now: Callable[[], Moment]) -> set[str]:
    """Return the keys of expired leases, without changing anything."""
    leases = entries(LEASES_PARTITION, shard, key_value)
    sightings = _sightings(shard, key_value)
    if not sightings:
        return set()
    moment = now()
    return {entry.key for entry in leases if _is_left_behind(entry, sightings.get(entry.key), moment)}


def drop_expired_leases(shard: str, key_value: KeyValueStore, now: Callable[[], Moment]) -> int:
    """Delete expired leases and record sightings of the others. Returns the number of deleted leases."""
    leases = entries(LEASES_PARTITION, shard, key_value)
    sightings = _sightings(shard, key_value)
    if not leases and not sightings:
        return 0
    moment = now()  # after the listing, so that every listed version is older than this moment
    remaining = {entry.key for entry in leases}
    for entry in leases:
        sighting = sightings.get(entry.key)
        if _is_left_behind(entry, sighting, moment):
            # unless its reader has just renewed it
            key_value.delete_if(LEASES_PARTITION, entry.key, entry.version)
            remaining.discard(entry.key)
        elif sighting is None or sighting.lease != entry.version:
            key_value.set(SIGHTINGS_PARTITION, entry.key, to_bytes(Sighting(entry.version, moment)))
    for entry in entries(SIGHTINGS_PARTITION, shard, key_value):
        if entry.key in sightings and entry.key not in remaining:
            key_value.delete_if(SIGHTINGS_PARTITION, entry.key, entry.version)
    return len(leases) - len(remaining)


def _is_left_behind(entry: Entry, sighting: Sighting | None, now: Moment) -> bool:
    if sighting is None or sighting.lease != entry.version:
        return False
    return is_lease_expired(lease_of(entry), sighting.at, now)


def _sightings(shard: str, key_value: KeyValueStore) -> dict[str, Sighting]:
    """Return all sightings. A damaged record is ignored and later rewritten."""
    sightings = {}
    for entry in entries(SIGHTINGS_PARTITION, shard, key_value):
        with suppress(DamageError):
            sightings[entry.key] = from_bytes(Sighting, entry.value, f"sighting {entry.key}")
    return sightings
