"""Heartbeat of a replica: independent of its work, never blocking it, and aware of others with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.torn import lake_in_bucket, tear
from tracelake import limits
from tracelake._errors import StorageError
from tracelake.replicas import replica as heartbeats
from tracelake.replicas.protocol import status
from tracelake.replicas.replica import (
    PARTITION,
    BacklogEntry,
    BatchCounts,
    Heartbeat,
    ReplicaProgress,
    replicas,
)
from tracelake.storage import MemoryKeyValueStore
from tracelake.storage.ports import Expected, Indeterminate, Outcome


class FailingStore(MemoryKeyValueStore):
    """Records whose writes fail, or whose replies are lost, while enabled."""

    failing = False
    losing = False
    tries = 0

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write, fail, or write and lose the reply."""
        self.tries += 1
        if self.failing:
            raise StorageError("no store")
        outcome = super().set_if(partition, key, value, expected)
        return Indeterminate("lost", "no reply") if self.losing else outcome


def account(name: str = "a") -> ReplicaProgress:
    """Return a new account."""
    return ReplicaProgress(name, BatchCounts(), tables=2)


def test_the_record_says_what_the_account_says() -> None:
    """The record has frontier, pending input, won and dropped batches, and the last error of the account."""
    store, tally = MemoryKeyValueStore(), BatchCounts()
    own = ReplicaProgress("a", tally, tables=2)
    own.look(3, [BacklogEntry("inbox/1", 10, 5.0), BacklogEntry("inbox/2", 20, 6.0)])
    own.reach(None, 0, 1, "reading new input")
    tally.won, tally.rows_dropped = 1, 7
    own.committed(4)
    own.failed(OSError("no space left"))
    Heartbeat(store, own).beat()
    (record,) = replicas(store)
    assert (record.name, record.instance, record.frontier) == ("a", own.instance, 5)
    assert (record.waiting_inputs, record.waiting_bytes, record.oldest_waiting_s) == (2, 30, 5.0)
    assert (record.batches_won, record.batches_of_peers, record.rows_dropped) == (1, 3, 7)
    assert (record.failing, record.failures, record.last_error) == (True, 1, "no space left")
    own.succeeded()
    assert own.record().failing is False
    assert own.record().last_error == "no space left", "kept, to be looked at later"


def test_the_heartbeat_reports_no_progress_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the main loop hangs, heartbeats continue and the time of its last progress stays."""
    monkeypatch.setattr(heartbeats, "REPLICA_HEARTBEAT_S", 0.01)
    store, own = MemoryKeyValueStore(), account()
    own.begin("reading new input")
    moved_s = own.record().moved_s
    beating = Heartbeat(store, own)
    beating.start()
    wait_until(lambda: replicas(store) and replicas(store)[0].heartbeat_s > moved_s + 0.1)
    (record,) = replicas(store)
    assert record.moved_s == moved_s
    assert status(record, record.heartbeat_s).word == "running"
    hung = record.heartbeat_s + limits.REPLICA_STUCK_S
    assert status(record, record.heartbeat_s + 0.01).word == "running"
    assert own.record().moved_s + limits.REPLICA_STUCK_S < hung
    beating.stop()
    assert replicas(store) == [], "one that ended in order is not missed"


def test_a_store_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed heartbeats, and those with a lost reply, are followed by others, and report no false duplicate."""
    monkeypatch.setattr(heartbeats, "REPLICA_HEARTBEAT_S", 0.01)
    store, own, met = FailingStore(), account(), list[str]()
    store.failing = True
    beating = Heartbeat(store, own)
    beating.start(met.append)
    wait_until(lambda: store.tries > 2)
    store.failing, store.losing = False, True
    wait_until(lambda: replicas(store))
    tries = store.tries
    wait_until(lambda: store.tries > tries + 2)
    store.losing = False
    seen = replicas(store)[0].heartbeat_s
    wait_until(lambda: replicas(store)[0].heartbeat_s > seen)
    beating.stop()
    assert met == []


def test_two_of_one_name_notice_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas with one name both report it once, in their records too; the successor of a killed one does not."""
    store, met = MemoryKeyValueStore(), list[str]()
    killed, successor = Heartbeat(store, account()), Heartbeat(store, account())
    for one in (killed, successor):
        monkeypatch.setattr(one, "_on_namesake", met.append)
    killed.beat()
    for _ in range(3):
        successor.beat()
    assert met == []
    assert replicas(store)[0].namesake is None
    killed.beat()  # it was only paused
    assert len(met) == 1
    successor.beat()
    assert len(met) == 2
    assert "process" in str(replicas(store)[0].namesake)
    for _ in range(3):
        killed.beat()
        successor.beat()
    assert len(met) == 2


def test_records_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A starting replica deletes the records of those gone for long; unknown formats are skipped."""
    store = MemoryKeyValueStore()
    Heartbeat(store, account("old")).beat()
    store.set(PARTITION, "strange", b'{"format_version": 99}')
    monkeypatch.setattr(heartbeats, "REPLICA_FORGOTTEN_S", -1.0)
    beating = Heartbeat(store, account("new"))
    beating.start()
    wait_until(lambda: [record.name for record in replicas(store)] == ["new"])
    beating.stop()
    assert store.get(PARTITION, "strange") is not None


def test_a_torn_record_hides_no_other_replica(tmp_path: Path) -> None:
    """A torn record is skipped until its replica writes it again."""
    with lake_in_bucket(tmp_path) as lake:
        for name in ("good", "torn"):
            Heartbeat(lake._opened.key_value, ReplicaProgress(name, BatchCounts(), 1)).beat()
        tear(tmp_path, '"torn"')
        assert [replica.name for replica in replicas(lake._opened.key_value)] == ["good"]
