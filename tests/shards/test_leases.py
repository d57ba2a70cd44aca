"""Leases: order of write and read, renewal, end, and leases of killed readers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec import structs

from tests.shards.modelled_shard import Lab
from tracelake._errors import ExpiredError, StorageError
from tracelake.limits import LEASE_S
from tracelake.shards.leases import Lease, Leases, drop_expired_leases, expired_leases, leases, moment
from tracelake.shards.model import Moment
from tracelake.shards.protocol import LEASE_MARGIN_S
from tracelake.shards.shard import Shard
from tracelake.storage import Entry, MemoryKeyValueStore, MemoryObjectStore, Version


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the steady clock of this machine."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock.time)
    return clock


class Recorded(MemoryKeyValueStore):
    """Store that records what is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def get(self, partition: str, key: str) -> Entry | None:
        self.calls.append(("get", partition))
        return super().get(partition, key)

    def set(self, partition: str, key: str, value: bytes) -> Version:
        self.calls.append(("set", partition))
        return super().set(partition, key, value)


def a_shard(key_value: MemoryKeyValueStore) -> Shard:
    return Shard("s", key_value, MemoryObjectStore())


def test_the_lease_is_there_before_the_state_is_read() -> None:
    """A reader reads the state only after its lease is in the store."""
    store = Recorded()
    Lease(a_shard(store), store)
    assert store.calls[-2:] == [("set", "leases"), ("get", "shards")]


def test_a_lease_names_a_state_that_is_not_newer_than_what_is_read(tmp_path: Path) -> None:
    """A state swapped in after the lease was taken is protected too, because the lease claims the older number."""
    lab = Lab(tmp_path)
    lab.upsert({"a": 1})
    with Lease(lab.shard, lab.key_value) as lease:
        (record,) = leases("s", lab.key_value).values()
        assert record.seq <= lease.state.seq
    assert leases("s", lab.key_value) == {}


def forget(store: MemoryKeyValueStore, machine: str = "here") -> int:
    """Look for expired leases, as a collector on another machine does."""
    objects = MemoryObjectStore()
    return drop_expired_leases("s", store, lambda: moment("s", objects, machine))


def test_renewal_once_half_of_the_time_is_over(clock: Clock) -> None:
    """A lease is renewed once half of its time is over; the new record has another version and the same claim."""
    store = MemoryKeyValueStore()
    lease = Lease(a_shard(store), store, seconds=100)
    (first,) = store.scan("leases")
    clock.now += 50
    lease.renew()
    assert store.scan("leases") == [first]
    clock.now += 1
    lease.renew()
    (second,) = store.scan("leases")
    assert second.version != first.version
    assert second.value == first.value
    clock.now += 1
    lease.renew()
    assert store.scan("leases") == [second]
    lease.renew(now=True)
    assert store.scan("leases") != [second]


def test_a_lease_ends_by_being_looked_at_and_never_alone(clock: Clock) -> None:
    """A lease expires only if a collector watched it for its whole duration, however long the reader sleeps."""
    store = MemoryKeyValueStore()
    lease = Lease(a_shard(store), store, seconds=100)
    clock.now += 1_000_000
    lease.renew()
    assert forget(store) == 0
    clock.now += 100 + LEASE_MARGIN_S - 1
    assert forget(store) == 0
    clock.now += 1
    assert forget(store) == 1
    assert (leases("s", store), store.scan("sightings")) == ({}, [])
    with pytest.raises(ExpiredError, match="table s has ended"):
        lease.renew()
    assert leases("s", store) == {}, "it is not taken back"


def test_a_lease_that_is_renewed_is_watched_anew(clock: Clock) -> None:
    """Each renewal restarts the watch of the collectors, however many machines they run on."""
    store = MemoryKeyValueStore()
    lease = Lease(a_shard(store), store, seconds=100)
    for _ in range(10):
        assert forget(store) == forget(store, "there") == 0
        clock.now += 100 + LEASE_MARGIN_S - 1
        lease.renew()
    assert len(leases("s", store)) == 1
    lease.close()
    assert forget(store) == 0
    assert store.scan("sightings") == []


@pytest.mark.parametrize("ahead_s", [3 * 3600.0, -3 * 3600.0])
def test_a_clock_that_is_wrong_or_jumps_ends_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """A wrong or jumping clock ends no lease, because collectors never use the time of day."""
    lab = Lab(tmp_path)
    for number in range(3):
        lab.upsert({"a": number})
    lease = Lease(lab.shard, lab.key_value)
    lab.compact(0, 3)
    now = time.time
    for number in range(5):
        monkeypatch.setattr("time.time", lambda number=number: now() + ahead_s * number)
        assert lab.collector().retired().leased == 1
        lab.collector().orphans(epoch_min_s=3600)
    assert lab.read(lease.state, 1) == {"a": 1}
    lease.renew(now=True)
    lease.close()
    assert lab.collector().retired().leased == 0
    lab.check()


def test_damaged_records_hold_and_end_like_others(tmp_path: Path, clock: Clock) -> None:
    """An unreadable lease claims everything, and an unreadable sighting nothing; collection continues despite both."""
    lab = Lab(tmp_path)
    for number in range(3):
        lab.upsert({"a": number})
    Lease(lab.shard, lab.key_value)
    (entry,) = lab.key_value.scan("leases")
    lab.key_value.set("leases", entry.key, b"torn")
    lab.key_value.set("sightings", entry.key, b"torn")
    lab.compact(0, 3)
    assert lab.collector().retired().leased == 1
    clock.now += LEASE_S + LEASE_MARGIN_S
    assert lab.collector().retired().leased == 0
    assert lab.key_value.scan("leases") == lab.key_value.scan("sightings") == []


def test_another_machine_goes_by_the_clock_of_the_store() -> None:
    """Another machine goes by the store's clock, because steady clocks of two machines are unrelated."""
    store, objects = MemoryKeyValueStore(), MemoryObjectStore()
    Lease(a_shard(store), store, seconds=100)
    assert forget(store) == 0
    here = moment("s", objects, "here")
    there = Moment("there", here.steady_s + 10**9, here.store_s + 100 + LEASE_MARGIN_S - 2)
    assert drop_expired_leases("s", store, lambda: there) == 0
    there = structs.replace(there, store_s=there.store_s + 4)
    assert expired_leases("s", store, lambda: there) == set(leases("s", store))
    assert drop_expired_leases("s", store, lambda: there) == 1


def test_a_lease_that_is_renewed_meanwhile_is_not_forgotten(clock: Clock) -> None:
    """A lease renewed between the collector's look and its delete stays."""
    store = RenewedMeanwhile()
    lease = Lease(a_shard(store), store, seconds=100)
    forget(store)
    clock.now += 1_000
    store.meanwhile = lease
    forget(store)
    assert len(leases("s", store)) == 1


class RenewedMeanwhile(MemoryKeyValueStore):
    """Store in which a lease is renewed just after a scan."""

    meanwhile: Lease | None = None

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        found = super().scan(partition, start, stop, limit)
        if self.meanwhile is not None:
            lease, self.meanwhile = self.meanwhile, None
            lease.renew()
        return found


def test_only_the_leases_of_the_shard_count() -> None:
    """Leases of shards whose names share a prefix do not count."""
    store = MemoryKeyValueStore()
    objects = MemoryObjectStore()
    kept = [Lease(Shard(name, store, objects), store) for name in ("s", "s2", "s-old")]
    assert len(leases("s", store)) == 1
    assert len(kept) == 3


def test_closing_twice_and_together() -> None:
    """Leases that end together are released once, when their holder closes."""
    store = MemoryKeyValueStore()
    shard, together = a_shard(store), Leases()
    together.take(shard, store)
    together.take(shard, store)
    together.renew()
    assert len(leases("s", store)) == 2
    together.close()
    together.close()
    assert leases("s", store) == {}
    together = Leases()
    together.take(shard, store).close()
    together.take(shard, store)
    del together
    assert leases("s", store) == {}


class LosesState(MemoryKeyValueStore):
    """Store that cannot read the state a second time."""

    reads = 0

    def get(self, partition: str, key: str) -> Entry | None:
        self.reads += partition == "shards"
        if partition == "shards" and self.reads > 1:
            raise StorageError("gone away")
        return super().get(partition, key)


def test_a_lease_that_is_of_no_use_is_given_back() -> None:
    """If the state cannot be read, its lease is released at once, because no reader exists that could close it."""
    store = LosesState()
    with pytest.raises(StorageError, match="gone away"):
        Lease(a_shard(store), store)
    assert leases("s", store) == {}


def test_held_until_the_reader_is_done_or_its_lease_has_ended(tmp_path: Path, clock: Clock) -> None:
    """Batches that compaction replaced stay until the reader ends or its lease expires, and are then deleted (S10)."""
    lab = Lab(tmp_path)
    for number in range(3):
        lab.upsert({"a": number})
    lease = Lease(lab.shard, lab.key_value, seconds=100)
    lab.compact(0, 3)
    assert lab.collector().retired().leased == 1
    clock.now += 100 + LEASE_MARGIN_S - 1
    assert lab.collector().retired().leased == 1
    assert lab.read(lease.state, 1) == {"a": 1}
    clock.now += 1
    stored = lab.stored()
    assert lab.collector().retired(dry_run=True).objects > 0
    assert lab.stored() == stored
    lease.renew(now=True)
    assert lab.collector().retired().leased == 1
    clock.now += 100 + LEASE_MARGIN_S
    assert lab.collector().retired().leased == 0
    assert lab.stored() == lab.live()
    with pytest.raises(ExpiredError):
        lease.renew()
    lab.check()
