"""Unknown outcomes: which objects must not be deleted or claimed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.shards.test_append_races import LostReply
from tracelake._errors import IndeterminateError
from tracelake.shards.compaction import Collector
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part
from tracelake.shards.protocol import APPENDS_REMEMBERED, drop_retired
from tracelake.shards.shard import Shard, States
from tracelake.storage import MemoryObjectStore


class Bench:
    """Shard of empty parts, in stores that can lose a reply."""

    def __init__(self) -> None:
        self.key_value = LostReply()
        self.objects = MemoryObjectStore()
        self.shard = self.peer()

    def peer(self) -> Shard:
        """Return the shard as another process sees it."""
        return Shard("s", self.key_value, self.objects)

    def part(self, name: str, epoch: int = 0) -> Part:
        """Write a part."""
        path = f"shards/s/parts/{epoch:06d}/{name}.parquet"
        self.objects.put(path, b"rows")
        return Part(path, 0, 1, 4, "00")

    def batch(self, lower: int, upper: int, name: str, *parts: Part) -> Batch:
        """Return a batch of one new part, or of the given ones."""
        return Batch(lower, upper, name, parts or (self.part(name),), (), {})

    def append(self, count: int, shard: Shard | None = None) -> None:
        """Append this number of batches."""
        shard = shard or self.peer()
        for _ in range(count):
            upper = shard.state().upper
            assert shard.compare_and_append(self.batch(upper, upper + 1, f"b{upper}")) is None

    def merge(self, merged: Batch) -> None:
        """Replace all batches by one."""
        assert self.peer().replace(self.peer().state().batches, merged)

    def lose(self, meanwhile: Callable[[], object]) -> None:
        """Lose the reply to the next swap of the state, after the swap."""
        self.key_value.meanwhile = meanwhile

    def check(self) -> None:
        """Check that every object that the state names exists."""
        state = self.peer().state()
        for ref in (*state.batches, *(ref for entry in state.retired for ref in entry.batches)):
            for part in self.peer().batch(ref).objects():
                assert self.objects.head(part.path) is not None, f"{part.path} is gone"


@pytest.fixture
def bench() -> Bench:
    """Return an empty shard."""
    return Bench()


def test_s8_more_appends_than_are_remembered(bench: Bench) -> None:
    """If a lost reply is checked after too many other appends, an error reports doubt and nothing is deleted (S8)."""
    bench.append(1)
    bench.lose(lambda: bench.append(APPENDS_REMEMBERED))
    with pytest.raises(IndeterminateError, match="it is unknown whether the batch at 1 was appended"):
        bench.shard.compare_and_append(bench.batch(1, 2, "ours"))
    bench.check()
    bench.append(APPENDS_REMEMBERED)
    bench.lose(lambda: bench.append(APPENDS_REMEMBERED - 1))
    upper = bench.shard.state().upper
    assert bench.shard.compare_and_append(bench.batch(upper, upper + 1, "known")) is None


def test_a_batch_that_comes_again_after_more_than_is_remembered(bench: Bench) -> None:
    """If a batch is appended again after its id was forgotten, its record is not deleted as a loser's."""
    bench.append(1)
    ours = bench.batch(1, 2, "ours")
    assert bench.shard.compare_and_append(ours) is None
    bench.append(APPENDS_REMEMBERED)
    bench.shard.compare_and_append(ours)
    bench.check()


def test_s8_a_compaction_that_landed_and_was_replaced_and_collected(bench: Bench) -> None:
    """A compaction whose reply is lost keeps its part, because a peer may have reused it in another batch (S8)."""
    bench.append(2)
    kept = bench.part("kept")

    def meanwhile() -> None:
        bench.append(1)
        bench.merge(bench.batch(0, 3, "peer's", kept))
        bench.peer().change(lambda state: drop_retired(state, state.retired))

    bench.lose(meanwhile)
    run = bench.shard.state().batches
    assert not bench.shard.replace(run, bench.batch(0, 2, "ours", kept), [kept.path])
    bench.check()


def test_a_part_that_a_leased_batch_shares_with_one_that_goes(bench: Bench) -> None:
    """A part shared by a leased batch and a collected one stays while the lease lasts."""
    shared = bench.part("shared")
    assert bench.shard.compare_and_append(bench.batch(0, 1, "first", shared)) is None
    bench.append(1)
    bench.merge(bench.batch(0, 2, "second", shared))
    with Lease(bench.peer(), bench.key_value) as lease:
        bench.merge(bench.batch(0, 2, "third"))
        collector = Collector(bench.peer(), bench.key_value, bench.objects)
        for _ in range(3):
            assert collector.retired().leased == 1
            collector.orphans(epoch_min_s=0)
        (ref,) = lease.state.batches
        assert [bench.objects.head(part.path) is None for part in bench.shard.batch(ref).parts] == [False]
        bench.check()
    assert collector.retired().leased == 0
    assert bench.objects.head(shared.path) is None
    bench.check()


def test_a_beginning_that_was_never_named_is_not_named_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost swap whose rolled-up object was collected, the next swap writes another object."""
    bench.append(20)
    states = States("s", bench.key_value, bench.objects)
    state, _ = states.read()
    monkeypatch.setattr("tracelake.shards.shard.SHARD_STATE_INLINE_MAX_BYTES", 4_000)
    assert not states.swap(state, "another version")
    for info in list(bench.objects.list("shards/s/states/")):
        bench.objects.delete(info.path)
    state, version = states.read()
    assert state.rolled is None
    assert states.swap(state, version)
    assert len(bench.peer().state().batches) == 20
