"""Pruning of parts by ranges and buckets never loses a wanted row, whatever the types."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import tracelake
from tracelake import UsageError
from tracelake.shards.model import Part
from tracelake.shards.parts import bucket_of, ranges_of
from tracelake.tables.predicates import Layout, key_text

SINGLES: Final = [0.1, 0.3, 1 / 3, 16777216.0, 3.4e38, 1e-45, 1e-30, -0.0, 0.0, 5e8]
DOUBLES: Final = [0.1, 0.1 + 0.2, 1e308, 5e-324, 2.0**53, 2.0**63, 2.0**64, -0.0, 1e18]
BIG: Final = [2**63 - 1, 2**63 - 2, -(2**63), 2**53 + 1, 2**53, 10**18 + 1]
HUGE: Final = [2**64 - 1, 2**64 - 2, 2**63, 2**53 + 1]
TEXTS: Final = [
    "",
    "a",
    "A",
    "ab",
    "ü",
    "ｱ",
    "\U0001f600",
    "\uffff",
    "\x00",
    "a" * 41,
    "a" * 5_000,
    "1",
    "0.1",
    "nan",
]
Draw = Callable[[random.Random], Any]


def around(numbers: list[Any], least: int = -9) -> Draw:
    """Return a strategy for small numbers and the neighbours of special ones."""
    return lambda chance: chance.choice([chance.randint(least, 9), chance.choice(numbers)])


def moment(chance: random.Random) -> dt.datetime:
    """Draw a time on one of a few days."""
    return dt.datetime(2026, 1, chance.randint(1, 3), chance.randint(0, 23), tzinfo=dt.UTC)


COLUMNS: Final[dict[str, tuple[pa.DataType, Draw]]] = {
    "id": (pa.int64(), around(BIG)),
    "k": (pa.string(), lambda chance: chance.choice(TEXTS)),
    "f": (pa.float32(), lambda chance: chance.choice([chance.uniform(-1, 1), *SINGLES, -(2.0**20)])),
    "x": (pa.float64(), lambda chance: chance.choice([chance.uniform(-1, 1), *DOUBLES])),
    "odd": (
        pa.float32(),
        lambda chance: chance.choice([1.0, 0.1, float("nan"), float("inf"), -float("inf")]),
    ),
    "u": (pa.uint64(), around(HUGE, 0)),
    "i": (pa.int8(), lambda chance: chance.randint(-128, 127)),
    "w": (pa.uint32(), lambda chance: chance.choice([chance.randint(0, 9), 2**32 - 1])),
    "d": (pa.decimal128(20, 3), lambda chance: Decimal(chance.randint(-99, 99)) / 8),
    "b": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "raw": (pa.binary(), lambda chance: chance.choice([b"", b"a", b"\xff", b"a\x00"])),
    "day": (pa.date32(), lambda chance: moment(chance).date()),
    "t": (pa.timestamp("us"), lambda chance: moment(chance).replace(tzinfo=None)),
    "tz": (pa.timestamp("ms", "Europe/Berlin"), moment),
    "ns": (pa.timestamp("ns", "UTC"), moment),
}
SCHEMA: Final = pa.schema({name: kind for name, (kind, _) in COLUMNS.items()})
CONSTANTS: Final[list[Draw]] = [
    lambda chance: str(chance.choice([*BIG, *HUGE, chance.randint(-9, 9), 16777217, 2**31, 10**30, 10**40, 10**400])),
    lambda chance: repr(chance.choice([*SINGLES, *DOUBLES, chance.uniform(-1, 1), 0.30000001, 9007199254740993.5])),
    lambda chance: chance.choice(["0.10000000149011612", "0.1000000000000000000000001", "1e400", ".5", "1_0", "1e-50"]),
    lambda chance: chance.choice(["null", "true", "0.1::float", "'nan'::float", "'-inf'::double", "1::ubigint"]),
    lambda chance: "'" + chance.choice([text for text in TEXTS if "\0" not in text]) + "'",
    lambda chance: f"'{moment(chance):%Y-%m-%d}'",
    lambda chance: f"timestamptz '{moment(chance).isoformat()}'",
    lambda chance: chance.choice(["date '2026-01-02'", "timestamp '2026-01-02 03:00'", "'\\xFF'::blob", "id", "0.125"]),
]  # fmt: skip
OPERATORS: Final = ["=", "<", "<=", ">", ">=", "<>", "is distinct from"]


def one(chance: random.Random) -> str:
    """Draw one comparison."""
    column, negation = chance.choice(list(COLUMNS)), chance.choice(["", "", "", "not "])
    fitting = CONSTANTS[4:5] if column == "k" else CONSTANTS[6:7] if "t" in column else CONSTANTS[:2]
    drawn = CONSTANTS if chance.random() < 0.15 else fitting
    constant = [chance.choice(drawn)(chance) for _ in range(3)]
    match chance.randint(0, 5):
        case 0:
            return f"{column} {negation}in ({', '.join(constant)})"
        case 1:
            return f"{column} {negation}between {constant[0]} and {constant[1]}"
        case 2:
            return f"{constant[0]} {chance.choice(OPERATORS)} {column}"
        case 3:
            return f"{column} is {negation}null"
        case _:
            return f"{column} {chance.choice(OPERATORS)} {constant[0]}"


def condition(chance: random.Random) -> str:
    """Draw comparisons joined with `and`, `or` and `not`."""
    text = one(chance)
    while chance.random() < 0.4:
        text = chance.choice(["{} and {}", "{} and {}", "({} or {})", "not ({} and {})"]).format(
            text, one(chance)
        )
    return text


def some_rows(chance: random.Random) -> pa.Table:
    """Draw a few rows; some columns have only one value, or only nulls."""
    size = chance.randint(1, 4)
    columns = {}
    for name, (kind, draw) in COLUMNS.items():
        first, nulls = draw(chance), chance.choice([0.0, 0.0, 0.3, 1.0])
        other = chance.random() < 0.3
        drawn = [draw(chance) if other else first for _ in range(size)]
        columns[name] = pa.array([None if chance.random() < nulls else value for value in drawn], kind)
    return pa.table(columns)


def parts_of(tables: list[pa.Table], key: tuple[str, ...], buckets: int) -> list[tuple[Part, pa.Table]]:
    """Return rows as parts of a table with this key: each part has one bucket, and no null in the key."""
    found: list[tuple[Part, pa.Table]] = []
    for table in tables:
        by_bucket: dict[int, list[int]] = {}
        for number, values in enumerate(table.select(list(key)).to_pylist() if key else [{}] * len(table)):
            if None not in values.values():
                bucket = bucket_of(key_text(tuple(values.values())), buckets) if key else 0
                by_bucket.setdefault(bucket, []).append(number)
        for bucket, numbers in by_bucket.items():
            rows = table.take(numbers)
            found.append((Part(f"{len(found)}", bucket, len(rows), 1, "", ranges=ranges_of(rows)), rows))
    return found


def check(seed: int, conditions: int) -> tuple[int, int]:
    """Compare conditions with a full scan; return how many DuckDB could answer, and the pruned parts."""
    chance = random.Random(seed)
    key = chance.choice([(), ("id",), ("k",), ("k", "id"), ("u",)])
    layout = Layout(SCHEMA, key, chance.choice([1, 3, 64]))
    parts = parts_of([some_rows(chance) for _ in range(12)], key, layout.buckets)
    answered = left_out = 0
    with duckdb.connect() as db:
        for part, rows in parts:
            numbered = rows.append_column("part", pa.array([part.path] * len(rows)))
            db.register("numbered", numbered)
            db.execute(f"{'insert into' if part.path != '0' else 'create table'} stored "
                       f"{'' if part.path != '0' else 'as '}select * from numbered")  # fmt: skip
        for text in [condition(chance) for _ in range(conditions if parts else 0)]:
            kept = {part.path for part in layout.matching([part for part, _ in parts], text)}
            try:
                found = {name for (name,) in db.sql(f"select part from stored where {text}").fetchall()}
            except duckdb.Error:
                continue  # these types cannot be compared
            assert found <= kept, (seed, key, text)
            answered, left_out = answered + 1, left_out + len(parts) - len(kept)
    return answered, left_out


def test_no_part_with_a_wanted_row_is_left_out_whatever_the_types() -> None:
    """No part with a wanted row is pruned, for columns and constants of all types, including their bounds."""
    told = [check(seed, 25) for seed in range(20)]
    answered, left_out = (sum(numbers) for numbers in zip(*told, strict=True))
    assert answered > 150
    assert left_out > 200


def test_what_float32_rounds_is_found(tmp_path: Path) -> None:
    """A constant is rounded to the column's type, as in the comparison, so the row of the rounded value is found."""
    with tracelake.init(tmp_path / "lake") as lake:
        for number, f in enumerate([0.1, 0.3, 16777216.0]):
            columns = {
                "id": [number],
                "f": pa.array([f], pa.float32()),
                "u": pa.array([2**64 - 1 - number], pa.uint64()),
            }
            if not number:
                lake.create_table("some", pa.table(columns).schema, key=["id"])
            lake.write("some", pa.table(columns))
        found = lake.table("some")
        for where in ("f = 0.1", "f in (0.1, 5)", "f <= 0.1", "f between 0.1 and 0.1", "0.1 >= f"):
            assert found.to_arrow(["id"], where).to_pylist() == [{"id": 0}], where
        assert found.to_arrow(["id"], "f >= 0.3", "id").to_pylist() == [{"id": 1}, {"id": 2}]
        assert found.to_arrow(["id"], "f = 16777217").to_pylist() == [{"id": 2}]
        assert len(found.to_arrow(["id"], "u between 18446744073709551615 and 1e30")) == 3
        assert len(found.scan.where("f < 0.2").snapshot.parts) == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([np.float16(0.5)], pa.float16()),
        pa.array([[np.float16(0.5)]], pa.list_(pa.float16())),
        pa.array([Decimal("1.5")], pa.decimal256(50, 2)),
        pa.array(["a"], pa.string_view()),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
    ],
)
def test_a_type_that_cannot_be_kept_is_refused_by_name(tmp_path: Path, values: pa.Array[Any]) -> None:
    """A type that Parquet or DuckDB cannot hold is refused when the table is made, with the column to convert."""
    schema = pa.schema([("id", pa.int64()), ("c", values.type)])
    with tracelake.init(tmp_path / "lake") as lake:
        with pytest.raises(UsageError, match=r"table some: column 'c' is .*; convert it"):
            lake.create_table("some", schema, key=["id"])
        assert [info.name for info in lake.tables()] == ["spans", "traces"]
