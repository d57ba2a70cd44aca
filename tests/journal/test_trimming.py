"""Trimming of the journal: records below the floor are deleted, and late writers get an error."""

from __future__ import annotations

import itertools

import pytest

from tracelake._errors import TrimmedError
from tracelake.journal.model import QuarantineRecord, Seal, Segment, Step
from tracelake.journal.protocol import beginnings_below, floor_above, totals
from tracelake.journal.store import Journal, TransactionRecord, check_transactions, record_key, trim
from tracelake.pipeline import continuous
from tracelake.pipeline.continuous import JournalTrimmer
from tracelake.storage import MemoryKeyValueStore


def step_of(t: int) -> Step:
    """Return a step with one segment."""
    taken = Segment(f"inbox/{t}", size_bytes=1, sha256="0", records=1, checksum=f"{t:032x}", spans=1)
    return Step(t, {"inbox": (taken,)}, "1")


def aside_of(t: int) -> QuarantineRecord:
    """Return the record that a transaction is quarantined."""
    return QuarantineRecord(t, reason="why", tries=3, by="pipeline", set_aside_at="2026", together=0)


@pytest.fixture(name="store")
def _store() -> MemoryKeyValueStore:
    """Return a store with the journal of twelve transactions."""
    return journal_of_twelve()


def journal_of_twelve() -> MemoryKeyValueStore:
    """Return a store with the journal of twelve transactions."""
    store = MemoryKeyValueStore()
    journal = Journal(store, "main")
    for t in range(12):
        step = step_of(t)
        journal.append_step(step)
        journal.append_seal(Seal(t, *totals(step.sources), sealed_at="2026"))
    journal.quarantine(aside_of(3))
    return store


def keys(store: MemoryKeyValueStore) -> list[int]:
    """Return the transactions that have records."""
    return sorted({int(entry.key[:16]) for entry in store.scan("journal/main", stop="a")})


@pytest.mark.parametrize("begin", ["", "0", "00", "07", "6"])
def test_beginnings_begin_all_numbers_below_and_no_other(begin: str) -> None:
    """Each lower number begins with exactly one of the prefixes, and no other number does."""
    numbers = [f"{number:03d}" for number in range(1_000)]
    for stop in (number for number in numbers[::3] if number.startswith(begin)):
        beginnings = beginnings_below(stop, begin)
        for number in numbers:
            begun = sum(number.startswith(beginning) for beginning in beginnings)
            assert begun == (number < stop and number.startswith(begin)), (stop, number)


def test_the_newest_is_always_kept() -> None:
    """The records of the newest transaction stay, because the next run releases its inputs again."""
    for upper, kept in itertools.product(range(5), range(7)):
        floor = floor_above(upper, kept)
        assert floor == max(0, min(upper - kept, upper - 1)), (upper, kept)


def test_what_is_below_the_floor_is_erased_and_told(store: MemoryKeyValueStore) -> None:
    """Records of the newest transactions stay unchanged; all others are deleted, and each answer says so."""
    journal = Journal(store, "main")
    assert trim(journal, 12, 2, dry_run=True) == 10
    assert keys(store) == list(range(12))
    assert trim(journal, 12, 2) == 10
    assert trim(journal, 12, 2) == 0
    assert trim(journal, 12, 100) == 0
    assert (keys(store), journal.floor(), store.scan("asides/main")) == ([10, 11], 10, [])
    assert journal.read(10).step == step_of(10)
    assert journal.read(12) == TransactionRecord()
    for late in (
        lambda: journal.read(9),
        lambda: journal.quarantine_record(9),
        lambda: journal.append_step(step_of(9)),
        lambda: journal.append_step(step_of(0)),
    ):
        with pytest.raises(TrimmedError):
            late()


def test_what_was_recorded_late_goes_with_the_next_collection(store: MemoryKeyValueStore) -> None:
    """A late step, seal or quarantine record below the floor has no effect, and the next collection deletes it."""
    journal = Journal(store, "main")
    trim(journal, 12, 2)
    with pytest.raises(TrimmedError):
        journal.append_step(step_of(4))
    journal.append_seal(Seal(5, 1, "0", sealed_at="2026"))
    journal.quarantine(aside_of(6))
    assert check_transactions(journal, 12, ()) == ({10: step_of(10), 11: step_of(11)}, [])
    assert trim(journal, 12, 2) == 0
    assert (keys(store), store.scan("asides/main")) == ([10, 11], [])


def lost_floor(store: MemoryKeyValueStore) -> None:
    """Lose the record of the floor and another step, and check the findings."""
    journal = Journal(store, "main")
    trim(journal, 12, 5)
    for key in ("floor", record_key(9, 0), record_key(9, 1)):
        store.erase("journal/main", key)
    steps, findings = check_transactions(journal, 12, ())
    assert sorted(steps) == [7, 8, 10, 11]
    assert [finding.path for finding in findings] == ["transactions 0 to 6", "transaction 9"]
    assert "gc" in findings[0].detail
    trim(journal, 12, 5)
    assert [each.path for each in check_transactions(journal, 12, ())[1]] == ["transaction 9"]


def test_a_floor_that_is_lost_is_one_finding_and_raised_anew(store: MemoryKeyValueStore) -> None:
    """A lost floor is one finding instead of thousands that would hide others, and it is restored."""
    lost_floor(store)


@pytest.mark.parametrize("floor", [1, 499, 500, 501, 1_000, 1_234, 2_499])
def test_long_journals_are_erased_a_thousand_records_at_a_time(floor: int) -> None:
    """All records below a floor and none above are deleted, at most a thousand transactions per call."""
    erased: list[str] = []

    class Store(MemoryKeyValueStore):
        def erase(self, partition: str, beginning: str) -> None:
            erased.append(beginning)
            super().erase(partition, beginning)

    store = Store()
    for number in range(0, 5_000, 3):
        store.set("journal/main", record_key(number // 2, number % 2), b"")
    for t in range(0, 2_500, 7):
        store.set("asides/main", f"{t:016d}", b"")
    Journal(store, "main").erase_below(floor)
    assert [entry.key for entry in store.scan("journal/main")] == [
        record_key(number // 2, number % 2) for number in range(0, 5_000, 3) if number >= 2 * floor
    ]
    assert [int(entry.key) for entry in store.scan("asides/main")] == [
        t for t in range(0, 2_500, 7) if t >= floor
    ]
    assert all(len(beginning) >= 13 for beginning in erased)


def test_the_floor_is_never_lowered(store: MemoryKeyValueStore) -> None:
    """If two processes trim concurrently, the slower one does not lower the floor."""
    journal = Journal(store, "main")
    journal.raise_floor(7)
    journal.raise_floor(3)
    assert journal.floor() == 7


def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a continuous pipeline trims transactions beyond the retained ones, a few at a time, at intervals."""
    monkeypatch.setattr(continuous, "JOURNAL_TRIM_EACH", 2)
    monkeypatch.setattr(continuous, "JOURNAL_TRIM_MAX", 3)
    store = journal_of_twelve()
    journal = Journal(store, "main")
    JournalTrimmer(store, None).after(12)
    assert journal.floor() == 0
    own = JournalTrimmer(store, 4)
    own.after(10)
    assert (journal.floor(), keys(store)[0]) == (3, 3)
    own.after(11)  # too soon
    assert journal.floor() == 3
    own.after(12)
    assert journal.floor() == 6
    JournalTrimmer(store, 4).after(12)
    assert journal.floor() == 8
    JournalTrimmer(store, 4).after(12)
    assert (journal.floor(), keys(store)) == (8, [8, 9, 10, 11])


def test_a_pipeline_trims_its_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline trims its journal."""
    forgets(monkeypatch)
