"""Appends with lost replies during compaction and collection by peers: an appended batch is never deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.shards.modelled_shard import Lab
from tracelake.shards.model import Batch
from tracelake.shards.protocol import UpperMismatch
from tracelake.shards.shard import Shard
from tracelake.storage import Done, Expected, Indeterminate, KeyValueStore, MemoryKeyValueStore, Outcome


class LostReply(MemoryKeyValueStore):
    """Store that loses the reply to the next conditional write on the state, after peers acted."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        outcome = super().set_if(partition, key, value, expected)
        if partition == "shards" and self.meanwhile is not None and isinstance(outcome, Done):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            return Indeterminate(outcome.version, "lost")
        return outcome


def test_s8_a_lost_reply_and_a_compaction_meanwhile(tmp_path: Path) -> None:
    """An append whose reply is lost and that a peer has compacted is found, and nothing is deleted (S8)."""
    store = LostReply()
    lab = Lab(tmp_path, key_value=store)
    lab.upsert({"a": 1})
    store.meanwhile = lambda: lab.compact(0, 2)
    assert lab.upsert({"b": 2}) is None
    lab.check()


def test_s8_a_lost_reply_a_compaction_and_a_collection_meanwhile(tmp_path: Path) -> None:
    """An append is recognized even if its batch was compacted and then collected (S8)."""
    store = LostReply()
    lab = Lab(tmp_path, key_value=store)
    lab.upsert({"a": 1})

    def meanwhile() -> None:
        lab.compact(0, 2)
        lab.collector().retired()

    store.meanwhile = meanwhile
    before = lab.stored()
    outcome = lab.upsert({"b": 2})
    assert outcome is None
    assert lab.stored() & before == set()  # replaced and collected
    lab.check()


def test_a_mismatch_is_certain(tmp_path: Path) -> None:
    """A mismatch is certain: our record is deleted, and the caller may delete its parts."""
    lab = Lab(tmp_path)
    lab.upsert({"a": 1})
    store: KeyValueStore = lab.key_value
    outcome = Shard("s", store, lab.objects).compare_and_append(Batch(0, 1, "peer", *lab_parts(lab), {}))
    assert outcome == UpperMismatch(1)
    lab.check()


def lab_parts(lab: Lab) -> tuple[tuple, tuple]:  # type: ignore[type-arg]
    """Upload the parts of a transaction that is never appended."""
    parts, retractions = lab.parts_of({"z": 9}, 0, 0)
    return tuple(parts), tuple(retractions)
