"""Many concurrent committers cost each other little more than their own work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.patience import HANG_S
from tests.versions.histories import check_history
from tracelake.storage import Entry, MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.branch_store import BranchReader, BranchRecords, BranchSnapshot
from tracelake.versions.model import (
    Announcement,
    Answer,
    BranchRecord,
    Change,
    Request,
    SealedRequest,
    TableAt,
)
from tracelake.versions.protocol import patience, split_answers
from tracelake.versions.repository import Repository

ASKERS = 10


def a_request(name: str) -> Request:
    return Request(name, Change(((name, TableAt("s", 0)),)), name, "w", "2026-01-01T00:00:00+00:00")


def test_patience_ends_one_after_the_other() -> None:
    """The second request on the list helps first; a committer that is not on it waits longest."""
    branch = BranchRecord(sealed=tuple(SealedRequest(a_request(str(number))) for number in range(8)))
    assert [patience(branch, str(number)) for number in range(9)] == [0, 1, 2, 2, 3, 3, 3, 3, 4]


def test_answers_before_a_sweep_stay_with_those_of_the_sweep() -> None:
    """The last answer before a sweep always stays, so a waiting committer knows that it was not answered since."""
    answers = tuple(Answer(str(number), str(number)) for number in range(10))
    assert split_answers(answers[:4], answers[4:], 2) == (answers[2:], answers[:2])
    assert split_answers(answers[:1], answers[1:], 2) == (answers, ())


class Slow(BranchRecords):
    """Store that calls a function before each read of a record."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__(MemoryKeyValueStore())
        self.reads = 0
        self._before = before

    def read(self, branch: str, known: BranchSnapshot | None = None) -> BranchSnapshot:
        self.reads += 1
        self._before()
        return super().read(branch, known)


class Queue(threading.Condition):
    """Queue that reports the number of waiting callers."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Semaphore(0)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # type: ignore[override]
        self.came.release()
        return super().wait_for(predicate, timeout)


def test_who_asks_during_a_reading_shares_the_next_one() -> None:
    """A caller during a read shares the next one, because the running read may have begun too early."""
    askers: list[threading.Thread] = []

    def let_others_ask() -> None:
        if not askers:
            askers.extend(threading.Thread(target=lookout.read, args=("main",)) for _ in range(ASKERS))
            for thread in askers:
                thread.start()
                assert queue.came.acquire(timeout=HANG_S)

    records = Slow(let_others_ask)
    lookout, queue = BranchReader(records), Queue()
    lookout.__dict__["_reading"] = queue
    assert lookout.read("main").is_absent
    for thread in askers:
        thread.join()
    assert records.reads == 2
    lookout.read("main")
    assert records.reads == 3


class Watched(MemoryKeyValueStore):
    """Store that remembers the answers that were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[str] = []

    def get(self, partition: str, key: str) -> Entry | None:
        if partition == "answers":
            self.looked_up.append(key)
        return super().get(partition, key)


def test_who_pauses_is_woken_by_a_write_in_the_same_process() -> None:
    """A paused committer is woken by a write of the same process, even by one between its look and its pause."""
    lookout = BranchReader(BranchRecords(MemoryKeyValueStore()))
    pausing, over = threading.Event(), threading.Event()

    def wait() -> None:
        with lookout.joined():
            lookout.read("main")
            pausing.set()
            lookout.pause("main", 600)
            over.set()

    with lookout.joined():
        lookout.read("main")
        threading.Thread(target=wait, daemon=True).start()
        assert pausing.wait(HANG_S)
        assert not over.wait(0.05)
        lookout.wake("main")
        assert over.wait(HANG_S)


def test_a_write_between_look_and_pause_is_not_missed() -> None:
    """A write between look and pause is noticed; otherwise a committer would sleep through its own answer."""
    lookout = BranchReader(BranchRecords(MemoryKeyValueStore()))
    with lookout.joined(), lookout.joined():
        lookout.read("main")
        lookout.wake("main")
        lookout.pause("main", 600)
        lookout.read("other")
        lookout.pause("main", 600)


def test_a_write_of_another_branch_wakes_nobody() -> None:
    """A write to another branch wakes no committer, because too many vain looks make it build concurrently."""
    lookout, over = BranchReader(BranchRecords(MemoryKeyValueStore())), threading.Event()

    def wait() -> None:
        with lookout.joined():
            lookout.read("main")
            lookout.pause("main", 600)
            over.set()

    with lookout.joined():
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        while lookout._threads < 2:
            time.sleep(0.001)
        for _ in range(10):
            lookout.wake("other")
            assert not over.wait(0.01)
        # The committer may not have looked yet, and a write before its look does not wake it.
        for _ in range(3_000):
            lookout.wake("main")
            waiting.join(0.01)
            if not waiting.is_alive():
                break
        assert over.is_set()


def test_who_is_alone_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer alone in its process sleeps by the clock, because no other thread would wake it."""
    slept: list[float] = []
    monkeypatch.setattr("tracelake.versions.branch_store.time.sleep", slept.append)
    lookout = BranchReader(BranchRecords(MemoryKeyValueStore()))
    with lookout.joined():
        lookout.pause("main", 0.25)
    assert slept == [0.25]


def test_announced_requests_are_sealed_without_a_look_up_for_each() -> None:
    """Announced requests are sealed without a lookup for each: the branch record shows newer answers."""
    key_value, objects = Watched(), MemoryObjectStore()
    repository = Repository(key_value, objects)
    records = BranchRecords(key_value)
    first = repository.commit_entries({"first": TableAt("s", 0)}, message="first")
    for number in range(50):
        records.announce("main", Announcement(a_request(f"waiting/{number}"), first))
    last = repository.commit_entries({"last": TableAt("s", 0)}, message="last")
    assert len(check_history(repository, [("first", first), ("last", last)])) == 52
    assert key_value.looked_up == []
    assert records.announced("main") == []
