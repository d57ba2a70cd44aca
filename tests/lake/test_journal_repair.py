"""Damaged journal records of a committed transaction: `verify` names the repair, and ingestion continues after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import DamageError, UsageError
from tracelake.journal.store import Journal, record_key
from tracelake.otlp.framing import write_segment
from tracelake.tasks.runners import InProcess

JOURNAL = "journal/main"


def arrive(lake: Lake, number: int) -> None:
    lake.objects.put(
        f"inbox/0-{number:04d}.segment", write_segment([("json", a_line(a_span(number, number)))])
    )


def run(lake: Lake) -> None:
    pipeline = lake.pipeline(runner=InProcess())
    while pipeline.run_once() is not None:
        pass
    pipeline.close()


def tear(lake: Lake, t: int, number: int) -> None:
    store = lake._opened.key_value
    entry = store.get(JOURNAL, record_key(t, number))
    assert entry is not None
    store.set(JOURNAL, record_key(t, number), entry.value[: len(entry.value) // 2])


def remove(lake: Lake, t: int, number: int) -> None:
    store = lake._opened.key_value
    entry = store.get(JOURNAL, record_key(t, number))
    assert entry is not None
    store.delete_if(JOURNAL, record_key(t, number), entry.version)


def repair_last(folder: Path, number: int, damage: Callable[[Lake, int, int], None]) -> None:
    """Damage a record of the last transaction: no input is committed before its repair, and all of it afterwards."""
    with tracelake.init(folder / "lake", buckets=1) as lake:
        for t in (0, 1):
            arrive(lake, t)
            run(lake)
        seal = Journal(lake._opened.key_value, "main").read(1).seal
        damage(lake, 1, number)
        arrive(lake, 1)  # as if the pipeline was killed before it deleted committed input
        arrive(lake, 2)
        if damage is tear or number == 0:  # without a seal, only `verify` notices
            with pytest.raises(DamageError, match="`tracelake pipeline repair 1`"):
                run(lake)
        (finding,) = [each for each in lake.verify().findings if each.what == "journal"]
        assert "`tracelake pipeline repair 1`" in finding.detail
        lake.journal.repair(1)
        if number == 1:
            assert Journal(lake._opened.key_value, "main").read(1).seal == seal
        else:
            assert lake.journal.transactions()[0].trimmed
        run(lake)
        assert lake.table("spans").info().rows == 3
        assert lake.inbox().segments == 0
        assert lake.verify().findings == ()
        with pytest.raises(UsageError, match="are intact"):
            lake.journal.repair(1)


@pytest.mark.parametrize("damage", [tear, remove])
@pytest.mark.parametrize("number", [0, 1], ids=["step", "seal"])
def test_the_last_transaction_is_repaired(
    tmp_path: Path, number: int, damage: Callable[[Lake, int, int], None]
) -> None:
    """A seal is restored byte for byte; without its step the transaction is dropped, and its spans stay."""
    repair_last(tmp_path, number, damage)


def refuse_uncommitted(folder: Path) -> None:
    """Check the refusal: nothing proves the lost content of an open transaction's records (J12)."""
    with tracelake.init(folder / "lake", buckets=1) as lake:
        arrive(lake, 0)
        run(lake)
        lake.transactions.begin(id="open")
        arrive(lake, 1)
        run(lake)
        tear(lake, 1, 0)
        for t in (1, 7, -1):
            with pytest.raises(DamageError, match="has no commit"):
                lake.journal.repair(t)
        with pytest.raises(DamageError, match="journal record"):
            run(lake)
        with pytest.raises(UsageError, match="are intact"):
            lake.journal.repair(0)


def test_a_transaction_without_a_commit_is_not_repaired(tmp_path: Path) -> None:
    """A transaction without a commit is not repaired, and stays an explicit error."""
    refuse_uncommitted(tmp_path)


def test_a_repair_beside_a_pipeline_that_is_under_way(tmp_path: Path) -> None:
    """A repair between any two records of a pipeline's next transaction does not change that transaction."""
    with tracelake.init(tmp_path / "lake", buckets=1) as lake, pytest.MonkeyPatch.context() as patch:
        for t in (0, 1):
            arrive(lake, t)
            run(lake)
        arrive(lake, 2)
        append = Journal.append_step

        def damage_and_repair(journal: Journal, step: object) -> object:
            patch.setattr(Journal, "append_step", append)
            tear(lake, 1, 0)
            lake.journal.repair(1)
            return append(journal, step)  # type: ignore[arg-type]

        patch.setattr(Journal, "append_step", damage_and_repair)
        run(lake)
        assert lake.table("spans").info().rows == 3
        assert lake.verify().findings == ()
