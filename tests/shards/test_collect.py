"""Garbage collection: which objects are deleted and when, and the remains of a crash at any call (S9, S10)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.shards.modelled_shard import Lab
from tracelake._errors import DamageError, ExpiredError
from tracelake.shards.compaction import Collector
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch
from tracelake.shards.protocol import forget
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, MemoryKeyValueStore, MemoryObjectStore, ObjectStore
from tracelake.testing.stores import Crashed, CrashingKeyValueStore, CrashingObjectStore, CrashPoint


def a_lab(folder: Path) -> Lab:
    """Return a shard with a twice replaced run, another run, and batches that were not compacted."""
    lab = Lab(folder)
    for number in range(10):
        lab.upsert({"a": number, f"k{number % 3}": number, "b": None if number % 2 else number})
    lab.compact(0, 3)
    lab.compact(0, 4)
    lab.compact(1, 4)
    return lab


def orphans(lab: Lab) -> set[str]:
    """Upload the parts of a writer that dies before its append, and return their paths."""
    parts, retractions = lab.parts_of({"lost": 1}, 99, lab.shard.state().epoch)
    lab.ids.clear()  # this lab makes no more appends
    return {part.path for part in (*parts, *retractions)}


def test_s9_an_orphan_is_never_visible_and_goes_with_the_third_collection(tmp_path: Path) -> None:
    """No read shows an orphan; the first two collections keep it for its writer, and the third deletes it (S9)."""
    lab = a_lab(tmp_path)
    lost = orphans(lab)
    assert lost <= lab.stored()
    lab.check()
    for count in (0, len(lost)):
        assert lab.collector().orphans(epoch_min_s=0).objects == count
    assert not lost & lab.stored()
    lab.check()


def test_an_epoch_lasts(tmp_path: Path) -> None:
    """Collections within the minimum duration of an epoch do not begin another epoch."""
    lab = a_lab(tmp_path)
    lost = orphans(lab)
    for _ in range(5):
        lab.collector().orphans(epoch_min_s=3600)
    assert lost <= lab.stored()
    assert lab.shard.state().epoch == 1


def test_a_writer_that_is_too_slow_is_refused(tmp_path: Path) -> None:
    """A slow writer's append is refused, because its parts may be gone; with new parts it succeeds."""
    lab = a_lab(tmp_path)
    time = len(lab.model)
    parts, _ = lab.parts_of({"late": 1}, time, lab.shard.state().epoch)
    late = Batch(time, time + 1, "late", tuple(parts), (), {}, epoch=lab.shard.state().epoch)
    lab.collector().orphans(epoch_min_s=0)
    lab.collector().orphans(epoch_min_s=0)
    with pytest.raises(ExpiredError, match="uploaded too long ago"):
        lab.shard.compare_and_append(late)
    lab.ids.pop("late")
    assert lab.upsert({"late": 1}) is None
    lab.check()


def test_a_dry_run_deletes_nothing_and_says_what_would_go(tmp_path: Path) -> None:
    """A dry run changes neither objects nor the state, and reports what the real run then deletes."""
    lab = a_lab(tmp_path)
    orphans(lab)
    lab.collector().orphans(epoch_min_s=0)
    lab.collector().orphans(epoch_min_s=3600)
    stored, state = lab.stored(), lab.shard.state()
    collector = lab.collector()
    told = collector.retired(dry_run=True), collector.orphans(dry_run=True, epoch_min_s=0)
    assert lab.stored() == stored
    assert lab.shard.state() == state
    assert told[0] == collector.retired()
    assert told[0].objects > 0


def test_parts_that_compaction_kept_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that a compacted batch took over unchanged is deleted with the last batch that names it, not the
    first."""
    monkeypatch.setattr("tracelake.shards.compaction.COMPACTED_PART_MAX_BYTES", 1)
    lab = Lab(tmp_path, buckets=1)
    for number in range(4):
        lab.upsert({f"k{number}": number})
    before = {part.path for ref in lab.shard.state().batches for part in lab.shard.batch(ref).parts}
    lab.compact(0, 4)
    after = {part.path for ref in lab.shard.state().batches for part in lab.shard.batch(ref).parts}
    assert after == before
    lab.collector().retired()
    assert lab.stored() == lab.live()
    lab.check()
    lab.upsert(dict.fromkeys((f"k{number}" for number in range(4)), 9))
    lab.compact(0, 2)
    lab.collector().retired()
    lab.check()
    assert lab.stored() == lab.live()


def test_parts_of_a_batch_under_a_lease_stay_though_an_older_one_had_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced batch without a lease keeps the parts that it shares with a leased batch."""
    monkeypatch.setattr("tracelake.shards.compaction.COMPACTED_PART_MAX_BYTES", 1)
    lab = Lab(tmp_path, buckets=1)
    for number in range(4):
        lab.upsert({f"k{number}": number})
    lab.compact(0, 4)
    with Lease(lab.shard, lab.key_value) as lease:
        held = {part.path for ref in lease.state.batches for part in lab.shard.batch(ref).parts}
        lab.upsert(dict.fromkeys((f"k{number}" for number in range(4)), 9))
        lab.compact(0, 2)
        report = lab.collector().retired()
        assert (report.objects > 0, report.leased) == (True, 1)
        assert held <= lab.stored()
        assert not held & lab.live()
    lab.check()


def test_many_collectors_at_once(tmp_path: Path) -> None:
    """A record that another collector deletes is no damage, because its parts were deleted before."""
    lab = a_lab(tmp_path)
    failed: list[BaseException] = []

    def collect() -> None:
        try:
            lab.collector().retired()
            lab.collector().orphans(epoch_min_s=0)
        except BaseException as error:  # noqa: BLE001  whatever it is, the test must see it
            failed.append(error)

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    lab.collector().retired()
    assert lab.stored() == lab.live()
    lab.check()


class Interrupted:
    """Object store that calls an action just before a path is read."""

    def __init__(self, objects: ObjectStore, path: str, meanwhile: Callable[[], object]) -> None:
        self._objects, self._path, self._meanwhile = objects, path, meanwhile

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    def get(self, path: str) -> bytes:
        if path == self._path:
            self._path = ""
            self._meanwhile()
        return self._objects.get(path)


def test_a_record_that_goes_under_a_collection_is_no_damage(tmp_path: Path) -> None:
    """A record that a peer collects between its listing and its read is no damage."""
    lab = a_lab(tmp_path)
    path = lab.shard.state().retired[0].batches[0].path
    for collect in ("retired", "orphans"):
        objects: ObjectStore = Interrupted(lab.objects, path, lab.collector().retired)  # type: ignore[assignment]
        shard = Shard("s", lab.key_value, objects)
        getattr(Collector(shard, lab.key_value, objects), collect)()
    lab.check()
    assert lab.stored() == lab.live()


def test_a_damaged_record_stops_the_collection(tmp_path: Path) -> None:
    """A damaged live record stops the collection before it deletes anything, because the parts it names are
    unknown."""
    lab = a_lab(tmp_path)
    lab.objects.put(lab.shard.state().batches[0].path, b"{}")
    stored = lab.stored()
    for collect in (lab.collector().retired, partial(lab.collector().orphans, epoch_min_s=0)):
        with pytest.raises(DamageError, match="is damaged"):
            collect()
    assert lab.stored() == stored


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_each_call_of_a_collection(tmp_path: Path, after: bool) -> None:
    """A collection killed at any call and run again leaves all live objects, and no others."""

    def collect(key_value: KeyValueStore, objects: ObjectStore) -> None:
        collector = Collector(Shard("s", key_value, objects), key_value, objects)
        for _ in range(3):
            collector.retired()
            collector.orphans(epoch_min_s=0)

    lab = a_small_lab(tmp_path)
    orphans(lab)
    records = [(name, e.key, e.value) for name in ("shards", "leases") for e in lab.key_value.scan(name)]
    objects = {path: lab.objects.get(path) for path in lab.stored()}
    for at in itertools.count(1):
        lab.key_value, lab.objects = MemoryKeyValueStore(), MemoryObjectStore()
        for record in records:
            lab.key_value.set(*record)
        for path, data in objects.items():
            lab.objects.put(path, data)
        lab.shard = Shard("s", lab.key_value, lab.objects)
        crash = CrashPoint(at, after=after)
        try:
            collect(CrashingKeyValueStore(lab.key_value, crash), CrashingObjectStore(lab.objects, crash))
        except Crashed:
            pass
        else:
            break
        assert lab.live() - retired(lab) <= lab.stored(), f"call {at}"
        kill_leases(lab.key_value)
        collect(lab.key_value, lab.objects)
        assert lab.stored() == lab.live(), f"call {at}"
        assert lab.shard.state().retired == ()
    assert at > 60


def retired(lab: Lab) -> set[str]:
    """Return the paths of the records that compaction replaced."""
    return {ref.path for entry in lab.shard.state().retired for ref in entry.batches}


def a_small_lab(folder: Path) -> Lab:
    """Return a shard with one replaced run and rows to forget."""
    lab = Lab(folder, buckets=1, key_value=MemoryKeyValueStore())
    for number in range(3):
        lab.upsert({"a": number})
    lab.compact(0, 2)
    lab.shard.change(partial(forget, since=1))
    lab.compact(0, 2)
    return lab


def kill_leases(key_value: KeyValueStore) -> None:
    """Let the leases of killed processes expire."""
    for entry in key_value.scan("leases"):
        key_value.delete_if("leases", entry.key, entry.version)


def test_a_reader_under_a_lease_reads_on(tmp_path: Path) -> None:
    """A reader with a lease reads on during compaction and collection; afterwards its replaced parts are gone."""
    lab = Lab(tmp_path)
    for number in range(4):
        lab.upsert({"a": number, "b": number})
    with Lease(lab.shard, lab.key_value) as lease:
        lab.compact(0, 4)
        for _ in range(3):
            lab.collector().retired()
            lab.collector().orphans(epoch_min_s=0)
        assert [lab.read(lease.state, t) for t in range(4)] == lab.model
    lab.collector().retired()
    assert lab.stored() == lab.live()
