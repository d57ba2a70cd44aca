"""Several rows of one key in one write: the caller's last row wins; tasks need an order column."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tracelake
from tracelake import InputError, Lake
from tracelake.tables.spec import read_spec
from tracelake.user_tables import staging, write
from tracelake.user_tables.staging import Pieces, RowOrder, stage
from tracelake.user_tables.write import WriteId, publish

KINDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "at": pa.float64(),
    "who": pa.string(),
    "tags": pa.map_(pa.string(), pa.int64()),
}
SCHEMA = pa.schema(KINDS)
GIVEN = pa.schema([*SCHEMA, pa.field("gone", pa.bool_())])
NOTHING = RowOrder()
BY_AT = RowOrder(column="at")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with table `people`, whose key is `id`."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("people", SCHEMA, key=["id"], buckets=3)
        yield lake


def batch(*rows: tuple[int, float | None, str | None]) -> pa.RecordBatch:
    """Return rows of (id, at, who); `who` is None for a deletion."""
    columns: list[list[Any]] = [
        [key for key, _, _ in rows],
        [at for _, at, _ in rows],
        [who for _, _, who in rows],
        [[("by", None)] for _ in rows],
        [who is None for _, _, who in rows],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, GIVEN, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=GIVEN)


def tasks(lake: Lake, order: RowOrder, *given: pa.RecordBatch) -> list[Pieces]:
    """Stage each batch as a separate task."""
    spec = read_spec(lake.objects, "people")
    return [
        stage(lake.objects, spec, lake._opened.shard("people").state().epoch, [one], "gone", order)
        for one in given
    ]


def written(lake: Lake, staged: list[Pieces], write_id: str = "") -> str:
    spec = read_spec(lake.objects, "people")
    return publish(lake._opened.stores, spec, staged, WriteId(write_id) if write_id else None)


def people(lake: Lake) -> dict[int, str]:
    found = lake.table("people").to_arrow(["id", "who"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["who"] for row in found}


def objects_of(lake: Lake) -> set[str]:
    return {i.path for f in ("parts", "staged") for i in lake.objects.list(f"shards/people/{f}/")}


@pytest.mark.parametrize("block_bytes", [1, 300, staging.STAGED_ROWS_MAX_BYTES])
@pytest.mark.parametrize("small_bytes", [0, write.SMALL_PART_MAX_BYTES])
def test_the_last_row_of_the_caller_stands(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, block_bytes: int, small_bytes: int
) -> None:
    """The last row of a key wins, rows and deletions alike, in any division into batches, blocks and buckets."""
    monkeypatch.setattr("tracelake.user_tables.staging.STAGED_ROWS_MAX_BYTES", block_bytes)
    monkeypatch.setattr("tracelake.user_tables.write.SMALL_PART_MAX_BYTES", small_bytes)
    monkeypatch.setattr("tracelake.user_tables.staging.COMPARED_KEYS_MAX", 20)
    chance, expected = random.Random(block_bytes + small_bytes), dict[int, str]()
    for _ in range(3):
        batches = []
        for _ in range(12):
            rows = []
            for _ in range(chance.randint(0, 6)):
                key, who = chance.randrange(15), chance.choice([None, "ann", "bob", "eve"])
                rows.append((key, chance.random(), who))
                expected.pop(key, None)
                if who is not None:
                    expected[key] = who
            batches.append(batch(*rows))
        lake.write("people", pa.Table.from_batches(batches), tombstone="gone")
        assert people(lake) == expected
    assert lake.verify().ok


def test_the_last_row_stands_without_deletions(lake: Lake) -> None:
    """The last row wins even if it compares lower; an earlier row that is stored already changes nothing."""
    for number in range(2):
        rows = [(key, at, who) for at, who in ((1.0, "eve"), (9.0, "zoe"), (0.0, "ann")) for key in range(9)]
        lake.write("people", pa.Table.from_batches([batch(*rows)]).drop_columns(["gone"]))
        assert people(lake) == dict.fromkeys(range(9), "ann")
        assert len(lake.log()) == 2, f"write {number} changed what is there"


def test_a_write_that_is_tried_again_says_the_same(lake: Lake) -> None:
    """A retried write with its id happens once; the same rows without an id change nothing."""
    given = pa.Table.from_batches([batch((1, 0, "zoe"), (2, 0, "zoe")), batch((1, 0, "ann"), (2, 0, None))])
    first = lake.write("people", given, tombstone="gone", write_id="x")
    lake.write("people", given, tombstone="gone", write_id="x")
    assert lake.write("people", given, tombstone="gone") == lake.log()[0].id
    assert people(lake) == {1: "ann"}
    assert lake._opened.view(first).time_of("people") == 0
    assert lake.table("people").scan.snapshot.as_of == 0


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(
    "other", [(1, 5.0, "bob"), (1, 4.0, "ann"), (1, None, "ann"), (1, 5.0, None)], ids=str
)
def test_tasks_whose_rows_differ_are_refused(
    lake: Lake, blocks: int, other: tuple[int, float | None, str | None]
) -> None:
    """Different rows of one key, in one task or two, are refused: the error names the key, and nothing is written."""
    lake.write("people", pa.table({"id": [1], "who": ["old"]}))
    before, objects = lake.log()[0].id, objects_of(lake)
    rows = [(1, 5.0, "ann"), other]
    for given in (rows, rows[::-1]):
        batches = [batch(*given, (2, 0.0, "eve"))] if blocks == 1 else [batch(one) for one in given]
        staged = tasks(lake, NOTHING, *batches)
        with pytest.raises(
            InputError,
            match=r"people: one write has different rows for the same key.*\(id = 1\).*option orderBy",
        ) as refused:
            written(lake, staged, "x")
        assert "id = 2" not in str(refused.value)
    assert (lake.log()[0].id, objects_of(lake)) == (before, objects)
    assert people(lake) == {1: "old"}
    written(lake, tasks(lake, NOTHING, batch(rows[0])), "x")
    assert people(lake) == {1: "ann"}, "a write that was refused has not happened"


def test_many_tied_keys_are_told_by_a_few(lake: Lake) -> None:
    """The error names a few of many conflicting keys."""
    given = [batch(*((key, 0.0, who) for key in range(500))) for who in ("ann", "bob")]
    with pytest.raises(InputError, match=r"\(id = \d+; id = \d+; id = \d+; and more\)"):
        written(lake, tasks(lake, NOTHING, *given))


def test_rows_that_are_the_same_are_one(lake: Lake) -> None:
    """Identical rows of one key count once, as when Spark repeats a task, also with NaN, null and deletions."""
    rows = batch((1, float("nan"), "ann"), (2, None, "bob"), (3, 1.0, None), (1, float("nan"), "ann"))
    for order in (NOTHING, BY_AT):
        written(lake, tasks(lake, order, rows, rows, batch((3, 7.0, None))))
        assert people(lake) == {1: "ann", 2: "bob"}
    assert lake.table("people").scan.snapshot.as_of == 0, "the second write changed nothing"


@pytest.mark.parametrize("seed", range(4))
def test_a_column_tells_which_row_stands(lake: Lake, seed: int) -> None:
    """The greatest value of the order column wins, for rows and deletions in any tasks; ties below it do not
    matter."""
    chance = random.Random(seed)
    claims: dict[int, list[tuple[float, str | None]]] = {}
    rows = list[tuple[int, float | None, str | None]]()
    for key in range(30):
        ats = chance.sample([float("nan"), float("inf"), -1.0, 0.0, 2.5], chance.randint(1, 5))
        claims[key] = [(at, chance.choice([None, "ann", "bob"])) for at in ats]
        rows += [(key, at, who) for at, who in claims[key]]
    rows += [(99, 1.0, "ann"), (99, 1.0, "bob"), (99, 2.0, "eve"), (98, None, "one")]
    expected = {98: "one", 99: "eve"}
    for key, found in claims.items():
        who = max(found, key=lambda claim: (claim[0] != claim[0], claim[0]))[1]
        if who is not None:
            expected[key] = who
    for size in (1, 7, len(rows)):
        chance.shuffle(rows)
        given = [batch(*rows[low : low + size]) for low in range(0, len(rows), size)]
        written(lake, tasks(lake, BY_AT, *given))
        assert people(lake) == expected
    assert lake.table("people").scan.snapshot.as_of == 0, "in another order it is the same write"
    assert lake.verify().ok


@pytest.mark.parametrize(
    "others",
    [
        [(1, 5.0, "bob")],
        [(1, None, "bob")],
        [(1, 5.0, None)],
        [(1, None, None)],
        [(1, -0.0, "z"), (1, 5.0, "y")],
    ],
    ids=str,
)
def test_a_column_that_does_not_tell_is_refused(
    lake: Lake, others: list[tuple[int, float | None, str | None]]
) -> None:
    """An order column that ties for the greatest of different rows, or is null for any of them, is refused."""
    rows = [(1, 5.0, "ann"), *others]
    for given in ([batch(*rows)], [batch(one) for one in rows], [batch(one) for one in rows[::-1]]):
        with pytest.raises(InputError, match=r"'at' does not decide .* \(id = 1\). Nothing was written"):
            written(lake, tasks(lake, BY_AT, *given))
    assert people(lake) == {}
    assert objects_of(lake) == set()


@pytest.mark.parametrize("buckets", [3, 5])
def test_the_order_outlasts_a_long_wait_and_other_buckets(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    """The order of rows survives copying pieces into a newer epoch and splitting them into other buckets."""
    monkeypatch.setattr("tracelake.user_tables.staging.STAGED_ROWS_MAX_BYTES", 1)
    spec = msgspec.structs.replace(read_spec(lake.objects, "people"), buckets=buckets)
    ends = {key: ("ann", None, "bob")[key % 3] for key in range(12)}
    batches = [batch(*((key, 0.0, who) for key in ends)) for who in ("zoe", None, "eve", None)]
    batches.append(batch(*((key, 0.0, who) for key, who in ends.items())))
    staged = stage(lake.objects, spec, lake._opened.shard("people").state().epoch, batches, "gone")
    by_at = stage(
        lake.objects,
        spec,
        lake._opened.shard("people").state().epoch,
        [batch((0, 2.0, None), (0, 1.0, "x"))],
        "gone",
        BY_AT,
    )
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    written(lake, [staged])
    assert people(lake) == {key: who for key, who in ends.items() if who is not None}
    written(lake, [by_at])
    assert 0 not in people(lake)
    assert len(lake.table("people").to_arrow(where="id = 2")) == 1, "its bucket tells where it is"
    assert lake.verify().ok


def test_columns_may_have_the_names_of_our_own(lake: Lake) -> None:
    """A key may have the columns `piece`, `place` and `bucket`, like our internal ones."""
    names = ["piece", "place", "bucket", "rank", "block"]
    schema = pa.schema([*((name, pa.int64()) for name in names), ("number", pa.int64())])
    lake.create_table("odd", schema, key=names[:3], buckets=2)
    for value in (1, 2):
        for number in (value, 7):
            columns = {name: [value, 1, value] for name in names}
            lake.write("odd", pa.table({**columns, "number": [0, 0, number]}))
    found = lake.table("odd").to_arrow(order_by="piece")
    assert found["number"].to_pylist() == [0, 7]
