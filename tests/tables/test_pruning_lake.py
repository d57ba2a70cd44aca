"""Random conditions over real tables with many parts and all types: every way to read equals a full scan."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tracelake
from tests.tables.test_pruning import SCHEMA, condition, some_rows
from tracelake.tables.table import Table
from tracelake.tasks.runners import InProcess

NUMBERED = pa.schema([pa.field("n", pa.int32()), *SCHEMA])
WRITES = 7


def filled(folder: Path, chance: random.Random, key: list[str], compacted: bool) -> Table:
    """Return a table with many parts, some of whose rows were deleted or replaced."""
    lake = tracelake.init(folder / "lake")
    lake.create_table("some", NUMBERED, key=key, buckets=3)
    count = 0
    for _ in range(WRITES):
        rows = some_rows(chance)
        whole = [None not in values.values() for values in rows.select(key).to_pylist()] if key else None
        kept = rows.filter(pa.array(whole, pa.bool_())) if whole is not None else rows
        numbers = pa.array(range(count, count + len(kept)), pa.int32())
        count += len(kept)
        latest = (
            {tuple(values.values()): n for n, values in enumerate(kept.select(key).to_pylist())}
            if key
            else None
        )
        numbered = kept.add_column(0, "n", numbers).cast(NUMBERED)
        lake.write(
            "some",
            numbered.take(pa.array(sorted(latest.values()), pa.int64())) if latest is not None else numbered,
        )
    if compacted:
        lake.maintenance.compact(runner=InProcess())
    return lake.table("some")


def compare(table: Table, seed: int, conditions: int) -> tuple[int, int]:
    """Compare conditions with a query of all rows; return how many were answered, and the pruned parts."""
    chance = random.Random(seed)
    answered = left_out = 0
    with duckdb.connect() as db:
        db.register("arrow", table.to_arrow())
        db.execute("create table plain as select * from arrow")
        for where in [condition(chance) for _ in range(conditions)]:
            try:
                wanted = [n for (n,) in db.sql(f"select n from plain where {where} order by n").fetchall()]
            except duckdb.Error:
                continue
            found: list[Any] = table.to_arrow(["n"], where, "n desc", 5)["n"].to_pylist()
            assert found == wanted[::-1][:5], (seed, where)
            kept = table.splits(where)
            split: list[Any] = []
            for scan in kept:
                for batch in scan.batches(["n"], where):
                    split += batch["n"].to_pylist()
            assert sorted(split) == wanted, (seed, where)
            answered += 1
            left_out += len(table.scan.snapshot.parts) - sum(len(scan.snapshot.parts) for scan in kept)
    return answered, left_out


@pytest.mark.parametrize("key", [[], ["k", "id"]], ids=["no key", "a key"])
def test_conditions_find_what_a_full_look_finds(tmp_path: Path, key: list[str]) -> None:
    """Parts pruned by bucket and by range have no wanted row, with and without a key and compaction."""
    chance = random.Random(f"{key}")
    table = filled(tmp_path, chance, key, compacted=bool(key))
    answered, left_out = compare(table, chance.randrange(1 << 32), 20)
    assert answered > 5, (answered, left_out)
    assert left_out > 0 or key, (answered, left_out)
