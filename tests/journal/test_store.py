"""Journal records in a store: created once despite races; damage raises errors."""

from __future__ import annotations

import pytest

from tracelake._errors import DamageError
from tracelake.journal.model import Seal, Step, WholeFile, to_bytes
from tracelake.journal.protocol import merge_steps, totals
from tracelake.journal.store import Journal, TransactionRecord, record_key
from tracelake.storage import MemoryKeyValueStore


def a_step(transaction: int = 0, path: str = "a", number: int = 0) -> Step:
    return Step(
        transaction,
        {"files": (WholeFile(path, size_bytes=1, sha256="00", records=1, checksum="01", spans=1),)},
        "1",
        number,
    )


def a_seal(step: Step) -> Seal:
    return Seal(step.transaction, *totals(step.sources), sealed_at="2026-01-01T00:00:00+00:00")


def test_the_loser_adopts_the_winners_record() -> None:
    """Two pipelines with one name race to create a record, and both get the first one."""
    store = MemoryKeyValueStore()
    first, second = Journal(store, "main"), Journal(store, "main")
    assert first.append_step(a_step(path="a")) == (a_step(path="a"), True)
    assert second.append_step(a_step(path="b")) == (a_step(path="a"), False)
    seal = a_seal(a_step())
    assert first.append_seal(seal) == seal
    assert second.append_seal(Seal(0, seal.records, seal.checksum, "later")) == seal
    assert second.read(0) == TransactionRecord((a_step(path="a"),), seal)
    assert second.read(1) == TransactionRecord()


def test_pipelines_of_other_names_do_not_meet() -> None:
    """Pipelines with different names have separate journals."""
    store = MemoryKeyValueStore()
    Journal(store, "main").append_step(a_step())
    assert Journal(store, "other").read(0) == TransactionRecord()


def test_who_adds_a_step_and_who_seals_race_for_one_record() -> None:
    """Adding a step and sealing race for one record: the step belongs to the transaction, or the seal precedes it."""
    store = MemoryKeyValueStore()
    first, second = Journal(store, "main"), Journal(store, "main")
    step, more = a_step(), a_step(path="b", number=1)
    first.append_step(step)
    assert first.append_step(more) == (more, True)
    assert second.append_seal(a_seal(step), 1) == more
    seal = a_seal(merge_steps([step, more]))
    assert second.append_seal(seal, 2) == seal
    assert first.append_step(a_step(path="c", number=2)) == (seal, False)
    assert first.read(0) == TransactionRecord((step, more), seal)


def test_j12_a_step_in_the_middle_that_is_gone_is_loud() -> None:
    """An absent record in the middle, a foreign one, or one after the seal is damage (J12)."""
    steps = [a_step(path=str(number), number=number) for number in range(4)]
    for gone in range(4):
        journal = Journal(store := MemoryKeyValueStore(), "main")
        for step in steps:
            journal.append_step(step)
        journal.append_seal(a_seal(merge_steps(steps)), 4)
        store.erase("journal/main", record_key(0, gone))
        with pytest.raises(DamageError, match=f"no step {gone} of transaction 0"):
            journal.read(0)
    journal = Journal(store := MemoryKeyValueStore(), "main")
    journal.append_step(steps[0])
    store.set("journal/main", record_key(0, 1), to_bytes(steps[2]))
    with pytest.raises(DamageError, match="no step 1 of transaction 0"):
        journal.read(0)
    journal = Journal(store := MemoryKeyValueStore(), "main")
    for step in steps[:2]:
        journal.append_step(step)
    journal.append_seal(a_seal(merge_steps(steps[:2])), 2)
    store.set("journal/main", record_key(0, 3), to_bytes(steps[3]))
    with pytest.raises(DamageError, match="after its seal"):
        journal.read(0)


def test_j12_a_torn_record_is_loud() -> None:
    """A record that does not parse, a seal without its step, or a seal with other totals is damage (J12)."""
    for key, value, message in [
        (record_key(0, 0), to_bytes(a_step())[:-4], "cannot be read"),
        (record_key(0, 1), to_bytes(a_seal(a_step())), "no step 0 of transaction 0"),
        (record_key(0, 0), to_bytes(a_seal(a_step())), "no step 0 of transaction 0"),
        (record_key(0, 0), to_bytes(a_step(transaction=4)), "no step 0 of transaction 0"),
    ]:
        store = MemoryKeyValueStore()
        store.set("journal/main", key, value)
        with pytest.raises(DamageError, match=message):
            Journal(store, "main").read(0)
    store = MemoryKeyValueStore()
    store.set("journal/main", record_key(0, 0), to_bytes(a_step()))
    store.set("journal/main", record_key(0, 1), to_bytes(Seal(0, 99, "02", "now")))
    with pytest.raises(DamageError, match="totals"):
        Journal(store, "main").read(0)
