"""A shard in its stores: races, retries, lost replies, damage."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracelake._errors import DamageError
from tracelake.shards.model import Batch, Part
from tracelake.shards.protocol import UpperMismatch
from tracelake.shards.shard import Shard
from tracelake.storage import Done, Expected, Indeterminate, MemoryKeyValueStore, MemoryObjectStore, Outcome


def a_part(path: str, rows: int = 5, bucket: int = 0) -> Part:
    return Part(path, bucket, rows, 100, "00", "a", "b")


def a_batch(lower: int, id: str, *parts: Part, retractions: tuple[Part, ...] = ()) -> Batch:
    return Batch(lower, lower + 1, id, parts, retractions, {"new": 5})


class LostReplies(MemoryKeyValueStore):
    """Store that does every conditional write, and reports its outcome as unknown."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        outcome = super().set_if(partition, key, value, expected)
        return Indeterminate(outcome.version, "lost") if isinstance(outcome, Done) else outcome


def test_appends_make_snapshots_by_time() -> None:
    """Each append has one time; a snapshot has all appends up to its time, and row counts include retractions."""
    shard = Shard("s", MemoryKeyValueStore(), MemoryObjectStore())
    assert shard.compare_and_append(a_batch(0, "a", a_part("p0"))) is None
    assert shard.compare_and_append(a_batch(1, "b", a_part("p1", 2), retractions=(a_part("r1", 1),))) is None
    assert shard.compare_and_append(a_batch(2, "c")) is None
    assert shard.state().upper == 3
    assert [len(shard.snapshot(t).parts) for t in (-1, 0, 1, 2)] == [0, 1, 2, 2]
    assert [shard.snapshot(t).rows for t in (-1, 0, 1, 2)] == [0, 5, 6, 6]
    assert shard.batch_at(2) is None
    assert shard.snapshot(1).for_buckets({7}).parts == ()


def test_one_of_many_racing_writers_wins_each_time() -> None:
    """Eight writers race for ten times: each time gets one batch, and losers leave no record."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()

    def race(writer: int) -> int:
        shard, won = Shard("s", key_value, objects), 0
        for t in range(10):
            outcome = shard.compare_and_append(a_batch(t, f"{writer}-{t}", a_part(f"{writer}-{t}")))
            assert outcome is None or (isinstance(outcome, UpperMismatch) and outcome.upper > t)
            won += outcome is None
        return won

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(race, range(8))) == 10
    state = Shard("s", key_value, objects).state()
    assert [batch.lower for batch in state.batches] == list(range(10))
    assert len(list(objects.list("shards/s/batches/"))) == 10


def test_s8_lost_replies_append_once() -> None:
    """If every conditional write succeeds and its reply is lost, each batch still exists once (S8)."""
    shard = Shard("s", LostReplies(), MemoryObjectStore())
    for t in range(3):
        assert shard.compare_and_append(a_batch(t, f"b{t}", a_part(f"p{t}"))) is None
        assert shard.compare_and_append(a_batch(t, f"b{t}", a_part(f"p{t}"))) is None
    assert [batch.id for batch in shard.state().batches] == ["b0", "b1", "b2"]


class CompactedMeanwhile(LostReplies):
    """Store that loses replies, and compacts everything before a writer can read back."""

    def __init__(self, objects: MemoryObjectStore) -> None:
        super().__init__()
        self._objects = objects

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        outcome = super().set_if(partition, key, value, expected)
        if partition == "shards" and isinstance(outcome, Indeterminate):
            kv = MemoryKeyValueStore()  # a view of the same record that does not compact again
            vars(kv).update(vars(self))
            shard = Shard(key, kv, self._objects)
            run = shard.state().batches
            if run and run[-1].level == 0:
                parts = tuple(part for ref in run for part in shard.batch(ref).parts)
                shard.replace(run, Batch(0, run[-1].upper, f"merged-{len(parts)}", parts, (), {}))
        return outcome


def test_s8_a_batch_that_was_compacted_before_its_reply_was_read_back_is_ours() -> None:
    """The state remembers the id of a compacted batch, so its writer does not delete parts of a live batch (S8)."""
    objects = MemoryObjectStore()
    shard = Shard("s", CompactedMeanwhile(objects), objects)
    for t in range(3):
        assert shard.compare_and_append(a_batch(t, f"b{t}", a_part(f"p{t}"))) is None
    assert [(ref.lower, ref.upper, ref.level) for ref in shard.state().batches] == [(0, 3, 3)]


def test_a_damaged_batch_record_is_named() -> None:
    """An altered or absent batch record is an error that names it, and never fewer rows."""
    objects = MemoryObjectStore()
    shard = Shard("s", MemoryKeyValueStore(), objects)
    shard.compare_and_append(a_batch(0, "a", a_part("p0")))
    path = shard.state().batches[0].path
    objects.put(path, objects.get(path).replace(b'"rows":5', b'"rows":6'))
    with pytest.raises(DamageError, match=f"{re.escape(path)} is damaged"):
        shard.snapshot(0)
    objects.delete(path)
    with pytest.raises(DamageError, match=f"{re.escape(path)} is missing"):
        shard.snapshot(0)
