"""Journal records in a store: created once, whoever races; damage is loud."""

from __future__ import annotations

import pytest

from tracelake._errors import DamageError
from tracelake.journal.model import Seal, Step, WholeFile, to_bytes
from tracelake.journal.protocol import totals
from tracelake.journal.store import Journal, TransactionRecord
from tracelake.storage import MemoryKeyValueStore


def a_step(transaction: int = 0, path: str = "a") -> Step:
    return Step(
        transaction,
        {"files": (WholeFile(path, size_bytes=1, sha256="00", records=1, checksum="01", spans=1),)},
        "1",
    )


def a_seal(step: Step) -> Seal:
    return Seal(step.transaction, *totals(step.sources), sealed_at="2026-01-01T00:00:00+00:00")


def test_the_loser_adopts_the_winners_record() -> None:
    """Two pipelines of one name race to create a record: both end up with the first one."""
    store = MemoryKeyValueStore()
    first, second = Journal(store, "main"), Journal(store, "main")
    assert first.append_step(a_step(path="a")) == (a_step(path="a"), True)
    assert second.append_step(a_step(path="b")) == (a_step(path="a"), False)
    seal = a_seal(a_step())
    assert first.append_seal(seal) == seal
    assert second.append_seal(Seal(0, seal.records, seal.checksum, "later")) == seal
    assert second.read(0) == TransactionRecord(a_step(path="a"), seal)
    assert second.read(1) == TransactionRecord(None, None)


def test_pipelines_of_other_names_do_not_meet() -> None:
    """Each pipeline has a journal of its own."""
    store = MemoryKeyValueStore()
    Journal(store, "main").append_step(a_step())
    assert Journal(store, "other").read(0) == TransactionRecord(None, None)


def test_j12_a_torn_record_is_loud() -> None:
    """J12: a record that does not parse, a seal without its step, and a seal with other totals are damage."""
    for key, value, message in [
        ("0000000000000000", to_bytes(a_step())[:-4], "cannot be read"),
        ("0000000000000001", to_bytes(a_seal(a_step())), "no step for transaction 0"),
        ("0000000000000000", to_bytes(a_seal(a_step())), "no step for transaction 0"),
        ("0000000000000000", to_bytes(a_step(transaction=4)), "no step for transaction 0"),
    ]:
        store = MemoryKeyValueStore()
        store.set("journal/main", key, value)
        with pytest.raises(DamageError, match=message):
            Journal(store, "main").read(0)
    store = MemoryKeyValueStore()
    store.set("journal/main", "0000000000000000", to_bytes(a_step()))
    store.set("journal/main", "0000000000000001", to_bytes(Seal(0, 99, "02", "now")))
    with pytest.raises(DamageError, match="totals"):
        Journal(store, "main").read(0)
