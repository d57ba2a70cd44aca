"""How collectors tell the lease of a reader that was killed: nobody has renewed it while they looked on.

A reader renews its lease, which gives the record another version. A collector notes which version it saw, and when
*it* saw it; a collector that finds the same version once the lease's time has passed since forgets the lease, by a
conditional delete, so that a reader who renews it in that moment keeps it. What has passed is told by the steady
clock of one machine, or, where another machine looks now, by the clock by which the store dates objects. The time
of day of no machine is asked, and no two clocks are compared: a clock that is hours ahead, or jumps, ends no lease.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from tracelake._errors import DamageError, StorageError
from tracelake.shards.leases import PARTITION as LEASES
from tracelake.shards.leases import entries, lease_of
from tracelake.shards.model import Moment, Sighting, from_bytes, to_bytes
from tracelake.shards.protocol import is_left_behind
from tracelake.storage import Entry, KeyValueStore, ObjectStore

PARTITION: Final = "sightings"
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


def left_behind(shard: str, key_value: KeyValueStore, now: Callable[[], Moment]) -> set[str]:
    """Return the keys of leases that nobody has renewed for as long as they last; nothing is changed."""
    leases = entries(LEASES, shard, key_value)
    seen = _sightings(shard, key_value)
    if not seen:
        return set()
    moment = now()
    return {entry.key for entry in leases if _is_left_behind(entry, seen.get(entry.key), moment)}


def forget_left_behind(shard: str, key_value: KeyValueStore, now: Callable[[], Moment]) -> int:
    """Remove leases that nobody has renewed for as long as they last, and note which others are there.

    Returns how many were removed.
    """
    leases = entries(LEASES, shard, key_value)
    seen = _sightings(shard, key_value)
    if not leases and not seen:
        return 0
    moment = now()  # after the look: what was seen was there by then
    left = {entry.key for entry in leases}
    for entry in leases:
        sighting = seen.get(entry.key)
        if _is_left_behind(entry, sighting, moment):
            key_value.delete_if(LEASES, entry.key, entry.version)  # unless its reader has just renewed it
            left.discard(entry.key)
        elif sighting is None or sighting.lease != entry.version:
            key_value.set(PARTITION, entry.key, to_bytes(Sighting(entry.version, moment)))
    for entry in entries(PARTITION, shard, key_value):
        if entry.key in seen and entry.key not in left:
            key_value.delete_if(PARTITION, entry.key, entry.version)
    return len(leases) - len(left)


def _is_left_behind(entry: Entry, sighting: Sighting | None, now: Moment) -> bool:
    if sighting is None or sighting.lease != entry.version:
        return False
    return is_left_behind(lease_of(entry), sighting.at, now)


def _sightings(shard: str, key_value: KeyValueStore) -> dict[str, Sighting]:
    """Return what was seen; a record that is damaged tells nothing, and is written anew."""
    sightings = {}
    for entry in entries(PARTITION, shard, key_value):
        with suppress(DamageError):
            sightings[entry.key] = from_bytes(Sighting, entry.value, f"sighting {entry.key}")
    return sightings
