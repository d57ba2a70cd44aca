"""Leases: a reader's claim on the parts that it has listed (PROTOCOLS §1).

A lease is a record of its own, not a part of the shard's state, so readers never get in the way of writers.
Two orders make it safe: a reader writes its lease and reads the state *then*; garbage collection reads the state
and looks for leases *then*. Whatever a collector misses was taken after its look at the state, so that reader
sees this state or a later one, which names nothing that was retired before.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import weakref
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from tracelake._errors import ExpiredError, StorageError, TracelakeError
from tracelake.limits import CLOCK_DIFFERENCE_MAX_S, LEASE_S
from tracelake.shards.model import LeaseRecord, ShardState, from_bytes, to_bytes
from tracelake.shards.store import Shard
from tracelake.storage import Done, Entry, KeyValueStore, settle

_PARTITION: Final = "leases"


@dataclass
class Lease:
    """A claim on all parts that `state`, or any later state, of one shard names. `close` it when done.

    A process that is killed leaves its lease behind until it ends by itself.
    """

    shard: Shard
    key_value: KeyValueStore
    seconds: float = LEASE_S
    state: ShardState = field(init=False)
    """The shard's state, read when the lease was there already."""
    expires_s: float = field(init=False)
    """When it ends, in seconds since 1970."""

    def __post_init__(self) -> None:
        """Take the lease, then read the state."""
        self._key = f"{self.shard.name}/{uuid.uuid4().hex}"
        self._seq = self.shard.state().seq
        record, expires_s = self._record()
        self.key_value.set(_PARTITION, self._key, to_bytes(record))
        self.expires_s = expires_s
        try:
            self.state = self.shard.state()
        except TracelakeError:
            self.close()
            raise

    def renew(self) -> None:
        """Make it hold on, once half of its time is over.

        Raises ExpiredError where it has ended: parts may be gone, so list them again under a new lease.
        """
        now = time.time()
        if now > self.expires_s - self.seconds / 2 and not (now < self.expires_s and self._extend()):
            raise ExpiredError(
                f"the lease on table {self.shard.name} has ended, and its parts may have been collected. "
                "Open the table again."
            )

    def close(self) -> None:
        """Give the lease back."""
        with contextlib.suppress(StorageError):  # it ends by itself
            if (entry := self.key_value.get(_PARTITION, self._key)) is not None:
                self.key_value.delete_if(_PARTITION, self._key, entry.version)

    def __enter__(self) -> Lease:
        """Return the lease."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the lease."""
        self.close()

    def _record(self) -> tuple[LeaseRecord, float]:
        """Return a record that holds longer than its reader may believe, and what the reader may believe."""
        expires_s = time.time() + self.seconds
        return LeaseRecord(self._seq, expires_s + CLOCK_DIFFERENCE_MAX_S), expires_s

    def _extend(self) -> bool:
        """Write the lease anew; False where it was forgotten meanwhile, and must never come back."""
        record, expires_s = self._record()
        while (
            entry := self.key_value.get(_PARTITION, self._key)
        ) is not None:  # another thread may renew it too
            outcome = self.key_value.set_if(_PARTITION, self._key, to_bytes(record), entry.version)
            settled = settle(self.key_value, _PARTITION, self._key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                self.expires_s = expires_s  # and not before
                return True
        return False


def leases(shard: str, key_value: KeyValueStore) -> dict[str, LeaseRecord]:
    """Return all leases on a shard, ended ones too, by their keys."""
    return {entry.key: _lease_of(entry) for entry in _entries(shard, key_value)}


def forget_ended(shard: str, key_value: KeyValueStore, now_s: float) -> int:
    """Remove leases that have ended and nobody gave back; return how many."""
    entries = _entries(shard, key_value)
    ended = [entry for entry in entries if _lease_of(entry).expires_s <= now_s]
    for entry in ended:
        key_value.delete_if(_PARTITION, entry.key, entry.version)  # unless its reader has just extended it
    return len(ended)


def _entries(shard: str, key_value: KeyValueStore) -> list[Entry]:
    return key_value.scan(_PARTITION, f"{shard}/", f"{shard}0")  # "0" follows "/"


def _lease_of(entry: Entry) -> LeaseRecord:
    return from_bytes(LeaseRecord, entry.value, f"lease {entry.key}")


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

    def renew(self) -> None:
        """Renew all. Raises ExpiredError where one has ended."""
        for lease in self._leases:
            lease.renew()

    def close(self) -> None:
        """Give all back."""
        self._close()


def _close_all(leases: list[Lease]) -> None:
    for lease in leases:
        with contextlib.suppress(TracelakeError):
            lease.close()
