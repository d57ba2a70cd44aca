"""Long states: their first batches are rolled up into an object, read by others, and garbage collected."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError
from tracelake.shards.compaction import Collector
from tracelake.shards.model import Batch, Part
from tracelake.shards.protocol import drop_retired, next_epoch
from tracelake.shards.shard import SHARD_STATE_INLINE_MAX_BYTES, SHARDS_PARTITION, Shard, States
from tracelake.storage import (
    KeyValueStore,
    MemoryKeyValueStore,
    MemoryObjectStore,
    ObjectStore,
    open_key_value,
    open_objects,
)


def a_batch(time: int) -> Batch:
    part = Part(f"shards/s/parts/000000/p{time}.parquet", 0, 1, 100, "00" * 32, "a" * 32, "b" * 32)
    return Batch(time, time + 1, f"{time:032x}", (part,), (), {})


def grow(shard: Shard, count: int) -> None:
    """Append this number of batches."""
    upper = shard.state().upper
    for time in range(upper, upper + count):
        assert shard.compare_and_append(a_batch(time)) is None


def record_bytes(key_value: KeyValueStore) -> int:
    entry = key_value.get(SHARDS_PARTITION, "s")
    assert entry is not None
    return len(entry.value)


def rolled(key_value: KeyValueStore, objects: ObjectStore) -> str:
    """Return the path of the object that holds the first batches now."""
    found = States("s", key_value, objects).read()[0].rolled
    assert found is not None
    return found.path


def test_three_thousand_batches_in_a_small_record() -> None:
    """With 3,000 batches the record stays within its limit at every append, and readers get all batches in order."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    shard = Shard("s", key_value, objects)
    for _ in range(60):
        grow(shard, 50)
        assert record_bytes(key_value) <= SHARD_STATE_INLINE_MAX_BYTES
        assert [ref.lower for ref in shard.state().batches] == list(range(shard.state().upper))
    assert Shard("s", key_value, objects).state() == shard.state()
    written = len(list(objects.list("shards/s/states/")))
    assert written < 30  # not one for each append


def test_two_writers_and_a_state_that_gets_short_again() -> None:
    """Two writers append in turn to a rolled-up state; once compaction makes it short, it names no object."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    one, two = Shard("s", key_value, objects), Shard("s", key_value, objects)
    for _ in range(200):
        grow(one, 1)
        grow(two, 2)
    assert one.state() == two.state()
    assert one.state().rolled is not None
    batches = one.state().batches
    assert one.replace(batches[:-1], replace(a_batch(0), upper=batches[-1].lower, id="m"))
    one.change(lambda state: drop_retired(state, state.retired))
    assert two.state().rolled is None
    grow(two, 1)
    grow(one, 1)
    assert [ref.upper for ref in two.state().batches] == [599, 600, 601, 602]


def test_a_lost_beginning_is_named() -> None:
    """If the rolled-up object is absent, altered or of another format, an error names it."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    grow(Shard("s", key_value, objects), 400)
    path = rolled(key_value, objects)
    data = objects.get(path)
    objects.put(path, data.replace(b'"rows":1', b'"rows":2', 1))
    with pytest.raises(DamageError, match=r"states/.*is damaged"):
        Shard("s", key_value, objects).state()
    objects.delete(path)
    with pytest.raises(DamageError, match=r"states/.*which its state references, is missing"):
        Shard("s", key_value, objects).state()
    objects.put(path, data)
    assert Shard("s", key_value, objects).state().upper == 400


class Overtaken(MemoryObjectStore):
    """Store that calls an action just before a rolled-up object is read."""

    meanwhile: Callable[[], object] | None = None

    def get(self, path: str) -> bytes:
        if "/states/" in path and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().get(path)


def test_a_reader_that_is_overtaken_by_a_collector_reads_again() -> None:
    """A reader retries if others roll up again and collect the old object between its two reads."""
    key_value, objects = MemoryKeyValueStore(), Overtaken()
    shard = Shard("s", key_value, objects)
    grow(shard, 400)
    first = rolled(key_value, objects)

    def meanwhile() -> None:
        grow(shard, 300)
        for _ in range(3):
            Collector(shard, key_value, objects).orphans(epoch_min_s=0)

    late = Shard("s", key_value, objects)
    objects.meanwhile = meanwhile
    assert len(late.state().batches) == 700
    with pytest.raises(NotFoundError):
        objects.get(first)


def test_collection_keeps_the_beginning_that_is_named() -> None:
    """Collection keeps the rolled-up object in use, however old it is, and deletes all others."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    shard = Shard("s", key_value, objects)
    grow(shard, 700)
    for _ in range(4):
        Collector(shard, key_value, objects).orphans(epoch_min_s=0)
    assert [info.path for info in objects.list("shards/s/states/")] == [rolled(key_value, objects)]
    assert len(Shard("s", key_value, objects).state().batches) == 700


def test_an_older_beginning_is_never_named_again() -> None:
    """A thread that read an older state does not name its rolled-up object again, because it may be collected."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    grow(Shard("s", key_value, objects), 400)
    shared = States("s", key_value, objects)
    old = shared.read()[0].rolled
    grow(Shard("s", key_value, objects), 300)
    state, version = shared.read()
    assert old is not None
    assert state.rolled != old
    beginning = shared._beginning(old)
    shared._cached = old, beginning  # as the slower thread leaves it
    following = next_epoch(state, 1.0, 0.0)
    assert following is not None
    # So few batches follow, as after a compaction, that the state would be short even with the older object.
    batches = following.state.batches[: len(beginning.batches) + 5]
    assert shared.swap(replace(following.state, batches=batches), version)
    reread = shared.read()[0]
    assert reread.rolled != old
    assert len(reread.batches) == len(batches)


def test_threads_share_a_shard() -> None:
    """If eight threads change a long state through one shard object, no change is lost."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    shard = Shard("s", key_value, objects)
    grow(shard, 300)

    def change() -> None:
        for _ in range(10):
            shard.change(partial(next_epoch, now_s=1.0, epoch_min_s=0.0))

    threads = [threading.Thread(target=change) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (shard.state().epoch, len(shard.state().batches)) == (80, 300)


def upper_and_batches(folder: str) -> tuple[int, int]:
    """Read the shard in another process."""
    key_value, objects = open_key_value(f"sqlite://{folder}/kv.db"), open_objects(f"file://{folder}")
    state = Shard("s", key_value, objects).state()
    key_value.close()
    return state.upper, len(state.batches)


def test_another_process_reads_the_same_state(tmp_path: Path) -> None:
    """Another process reads the same rolled-up state from SQLite and files."""
    key_value = open_key_value(f"sqlite://{tmp_path}/kv.db")
    objects = open_objects(tmp_path.as_uri())
    grow(Shard("s", key_value, objects), 280)
    assert Shard("s", key_value, objects).state().rolled is not None
    key_value.close()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        assert processes.submit(upper_and_batches, str(tmp_path)).result() == (280, 280)
