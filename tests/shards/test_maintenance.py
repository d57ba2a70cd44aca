"""The maintainer: due work, tolerated failures, and compaction of everything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.shards.modelled_shard import ORDER, Lab
from tracelake._errors import DamageError
from tracelake.shards.leases import leases
from tracelake.shards.model import Part
from tracelake.shards.protocol import forget
from tracelake.storage import Entry, MemoryKeyValueStore, Version
from tracelake.tasks.runners import InProcess


class CountsLeases(MemoryKeyValueStore):
    """Store that counts leases."""

    leases = 0

    def set(self, partition: str, key: str, value: bytes) -> Version:
        self.leases += partition == "leases"
        return super().set(partition, key, value)

    def get(self, partition: str, key: str) -> Entry | None:
        return super().get(partition, key)


def test_maintenance_when_it_is_due_and_only_then(tmp_path: Path) -> None:
    """Seven batches cost one read of the state; with the eighth, they are compacted and the old ones collected."""
    store = CountsLeases()
    lab = Lab(tmp_path, key_value=store)
    maintainer = lab.maintainer()
    for number in range(8):
        assert maintainer.maintain(lab.shard, ORDER) == []
        assert store.leases == 0
        lab.upsert({"a": number, f"k{number}": number})
    (report,) = maintainer.maintain(lab.shard, ORDER)
    assert report.batches == 8
    assert [ref.level for ref in lab.shard.state().batches] == [1]
    assert lab.stored() == lab.live()
    assert leases("s", store) == {}
    lab.check()


def test_what_reaches_beyond_the_last_commit_waits(tmp_path: Path) -> None:
    """Pipelines compact committed batches only; an uncommitted one keeps its own transaction."""
    lab = Lab(tmp_path)
    for number in range(9):
        lab.upsert({"a": number})
    assert lab.maintainer(committed=7).maintain(lab.shard, ORDER) == []
    (report,) = lab.maintainer(committed=8).maintain(lab.shard, ORDER)
    assert report.batches == 8
    assert [(ref.lower, ref.upper) for ref in lab.shard.state().batches] == [(0, 8), (8, 9)]
    assert lab.maintainer(committed=8).compact_all(lab.shard, ORDER).batches == 0
    assert lab.maintainer(committed=9).compact_all(lab.shard, ORDER).batches == 2
    lab.check()


def test_a_failed_compaction_is_told_and_left_to_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed compaction, because of damage or collection, is reported and never fails a committed transaction."""
    lab = Lab(tmp_path)
    for number in range(8):
        lab.upsert({"a": number})
    part = lab.shard.batch(lab.shard.state().batches[3]).parts[0]
    data = lab.objects.get(part.path)
    lab.objects.put(part.path, data[:-9] + b"!" + data[-8:])
    assert lab.maintainer().maintain(lab.shard, ORDER) == []
    assert "table s was not compacted" in caplog.text
    assert part.path in caplog.text
    lab.objects.put(part.path, data)
    assert len(lab.maintainer().maintain(lab.shard, ORDER)) == 1
    lab.check()


def test_a_compaction_that_lost_leaves_nothing_behind(tmp_path: Path) -> None:
    """If a peer compacts the same batches first, the loser's output is deleted, except for shared parts."""
    lab = Lab(tmp_path)
    for number in range(4):
        lab.upsert({f"k{number}": number})

    class Beaten(InProcess):
        """Runner that lets a peer compact once our tasks are done."""

        def run(self, function, tasks, on_done):  # type: ignore[no-untyped-def]
            receipts = super().run(function, tasks, on_done)
            lab.compact(0, 3)
            return receipts

    maintainer = lab.maintainer(Beaten())
    report = maintainer._compact(lab.shard, ORDER, lambda batches: batches[:3])
    assert report is not None
    assert report.batches == 0
    lab.collector().retired()
    assert lab.stored() == lab.live()
    lab.check()


def test_compaction_of_all_is_done_once(tmp_path: Path) -> None:
    """Compacting all keeps a single batch; to forget, it is rewritten, also after a killed run began to forget."""
    lab = Lab(tmp_path)
    for number in range(5):
        lab.upsert({"a": number})
    maintainer = lab.maintainer()
    assert maintainer.compact_all(lab.shard, ORDER).batches == 5
    assert maintainer.compact_all(lab.shard, ORDER).batches == 0
    assert history(lab) != ()
    lab.check()
    lab.shard.change(partial(forget, since=4))  # killed here
    report = maintainer.compact_all(lab.shard, ORDER, since=4)
    assert (report.batches, report.since) == (1, 4)
    assert history(lab) == ()
    lab.check()
    assert maintainer.compact_all(lab.shard, ORDER, since=4).batches == 0


def history(lab: Lab) -> tuple[Part, ...]:
    """Return the parts with rows that were inserted and retracted within the one batch."""
    (ref,) = lab.shard.state().batches
    return lab.shard.batch(ref).history


@pytest.mark.parametrize("name", ["_gone", "k=v", "it's [1]"])
def test_any_name_of_a_folder(tmp_path: Path, name: str) -> None:
    """The path of a lake may contain column names, globs or `key=value` directories without any effect."""
    lab = Lab(tmp_path, name=name)
    for number in range(3):
        lab.upsert({"a": number, "b": None if number % 2 else number})
    lab.compact(0, 2)
    lab.compact(0, 2)
    lab.check()


def test_a_lost_part_is_named(tmp_path: Path) -> None:
    """Compaction of everything raises an error for a lost part, because a user requested it."""
    lab = Lab(tmp_path)
    for number in range(2):
        lab.upsert({"a": number})
    part = lab.shard.batch(lab.shard.state().batches[1]).parts[0]
    lab.objects.delete(part.path)
    with pytest.raises(DamageError, match="is missing"):
        lab.maintainer().compact_all(lab.shard, ORDER)
