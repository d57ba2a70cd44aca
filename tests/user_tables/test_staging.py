"""Staged pieces become parts unchanged, unless they lose rows, are small, or have waited too long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelake
from tests.strategies import int64s, texts
from tracelake import ExpiredError, Lake, UsageError
from tracelake.shards.model import Part
from tracelake.shards.parts import bucket_of, buckets_of
from tracelake.shards.rows import ROW_ID
from tracelake.tables.predicates import key_text
from tracelake.tables.scan import connection
from tracelake.tables.spec import TableSpec, make_spec, read_spec
from tracelake.user_tables import staging
from tracelake.user_tables.staging import Pieces, stage
from tracelake.user_tables.write import publish

KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "x": pa.float64(), "text": pa.string()}
SCHEMA = pa.schema(KINDS)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a lake with table `t`, whose key is `id`, and in which no piece counts as small."""
    monkeypatch.setattr("tracelake.user_tables.write.SMALL_PART_MAX_BYTES", 0)
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("t", SCHEMA, key=["id"], buckets=2)
        yield lake


def rows(low: int, high: int, text: str = "a") -> pa.Table:
    """Return a row for each id."""
    ids = range(low, high)
    return pa.table({"id": ids, "x": [i / 2 for i in ids], "text": [text] * len(ids)}, SCHEMA)


def staged(lake: Lake, given: pa.Table) -> Pieces:
    """Stage rows as one task."""
    return stage(
        lake.objects, read_spec(lake.objects, "t"), lake._opened.shard("t").state().epoch, given.to_batches()
    )


def written(lake: Lake, *tasks: Pieces) -> list[Part]:
    """Publish the staged tasks; return the resulting parts."""
    before = {part.path for part in lake.table("t").scan.snapshot.parts}
    publish(lake._opened.stores, read_spec(lake.objects, "t"), tasks)
    return [part for part in lake.table("t").scan.snapshot.parts if part.path not in before]


def objects_of(lake: Lake) -> set[str]:
    """Return all objects of the table except batch records."""
    return {i.path for f in ("parts", "staged") for i in lake.objects.list(f"shards/t/{f}/")}


def test_pieces_become_parts_without_being_written_again(lake: Lake) -> None:
    """A piece that lost no row is used as a part unchanged; the batch gives its row ids, unique in the table."""
    for number in range(2):
        tasks = [staged(lake, rows(n, n + 50)) for n in range(number * 200, number * 200 + 200, 50)]
        parts = written(lake, *tasks)
        assert {part.path for part in parts} == {path for task in tasks for path in task.paths()}
        assert sum(part.rows for part in parts) == 200
    scan = lake.table("t").scan
    with connection() as db:
        ids = db.sql(scan.sql(scan.open_files(), [ROW_ID.name])).to_arrow_table()[ROW_ID.name].to_numpy()
    assert np.array_equal(np.sort(ids), np.r_[0:200, (1 << 32) : (1 << 32) + 200])
    assert lake.verify().ok


def test_only_pieces_that_lose_rows_are_written_again(lake: Lake) -> None:
    """Only a piece with an already stored row is rewritten, or dropped if it has no others; other pieces stay."""
    lake.write("t", rows(0, 10))
    kept = staged(lake, rows(10, 50))
    touched = staged(lake, pa.concat_tables([rows(9, 10), rows(50, 90)]))
    repeated = staged(lake, rows(0, 5))
    parts = written(lake, kept, touched, repeated)
    paths = {part.path for part in parts}
    assert set(kept.paths()) < paths
    assert paths & set(touched.paths()) == {p.path for p in touched.rows if p.bucket != bucket_of("[9]", 2)}
    assert not paths & set(repeated.paths())
    assert sum(part.rows for part in parts) == 80
    named = {part.path for part in lake.table("t").scan.snapshot.parts}
    assert objects_of(lake) == named, "nothing is left over"
    assert len(lake.table("t").to_arrow()) == 90
    assert lake.verify().ok


def test_small_pieces_are_put_together(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small tasks give one sorted part per bucket, or more if it would be too large."""
    monkeypatch.undo()
    tasks = [staged(lake, rows(n, n + 3)) for n in reversed(range(0, 60, 3))]
    parts = written(lake, *tasks)
    assert [part.bucket for part in parts] == [0, 1]
    scan = lake.table("t").scan
    for part in parts:
        ids = scan.of_parts([part]).select(scan.open_files(), ["id"])["id"].to_numpy()
        assert np.all(np.diff(ids) > 0)
    monkeypatch.setattr("tracelake.user_tables.write.SMALL_PARTS_MAX_BYTES", tasks[0].rows[0].size_bytes * 3)
    more = written(lake, *(staged(lake, rows(n, n + 3)) for n in range(100, 160, 3)))
    assert 4 < len(more) < 20
    assert len(lake.table("t").to_arrow()) == 120


def test_parts_whose_keys_no_row_can_have_are_not_opened(lake: Lake) -> None:
    """Parts whose key range excludes all new rows are not opened, so a write succeeds even if they are unreadable."""
    lake.write("t", rows(0, 100))
    for part in lake.table("t").scan.snapshot.parts:
        lake.objects.delete(part.path)
    lake.write("t", rows(100, 200))
    with pytest.raises(tracelake.DamageError, match="is missing"):
        lake.write("t", rows(50, 60))


@pytest.mark.parametrize("keys_at_once", [1, 1_000_000])
def test_what_is_stored_just_so_is_found_in_every_kind_of_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys_at_once: int
) -> None:
    """An identical stored row is found for null, NaN, lists and maps; a difference in any column counts (S6)."""
    monkeypatch.setattr("tracelake.user_tables.staging.COMPARED_KEYS_MAX", keys_at_once)
    columns = {
        "id": pa.array(range(4), pa.int64()),
        "x": pa.array([1.0, None, float("nan"), -0.5]),
        "day": pa.array([1, None, 3, 4], pa.date32()),
        "yes": pa.array([True, None, False, True]),
        "text": pa.array(["a", None, "", "ü"]),
        "list": pa.array([[1], None, [], [None, 2]], pa.list_(pa.int64())),
        "map": pa.array([[("k", "v")], None, [], [("a", None)]], pa.map_(pa.string(), pa.string())),
    }
    given = pa.table(columns)
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("t", given.schema, key=["id"], buckets=3)
        first = lake.write("t", given)
        assert lake.write("t", given) == first
        assert lake.write("t", given.slice(1, 2)) == first
        for number, name in enumerate(given.column_names[1:]):
            values = given[name].to_pylist()
            values[number % 4] = None if number % 4 != 1 else values[0]
            other = given.set_column(number + 1, given.schema.field(name), pa.array(values, given[name].type))
            lake.write("t", other)
            (change,) = lake.listen("t", since=number * 2, timeout_s=0)
            assert np.sort(change.rows["_change"].to_numpy()).tolist() == [-1, 1], name
            lake.write("t", given)


def test_a_job_that_takes_long_is_published_all_the_same(lake: Lake) -> None:
    """A long job is published: collection keeps pieces for a day, and those of an old epoch are copied."""
    task = staged(lake, rows(0, 20))
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    assert objects_of(lake) == set(task.paths())
    assert {part.path.split("/")[3] for part in written(lake, task)} == {"000003"}
    assert len(lake.table("t").to_arrow()) == 20
    assert not objects_of(lake) & set(task.paths())
    assert lake.verify().ok


def test_pieces_of_a_killed_writer_go_after_a_day(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a killed writer are deleted after a day; publishing them is then an error with a remedy."""
    task = staged(lake, rows(0, 20))
    monkeypatch.setattr("tracelake.shards.compaction.STAGED_ROWS_AGE_MAX_S", -60.0)
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    assert objects_of(lake) == set()
    with pytest.raises(ExpiredError, match="write again"):
        written(lake, task)
    assert len(lake.table("t").to_arrow()) == 0


def test_a_table_that_has_a_reserved_column_already_is_read_only(lake: Lake) -> None:
    """A table that already has a reserved column is read-only, because its rows have no positions in a file."""
    spec = read_spec(lake.objects, "t")
    old = TableSpec("old", pa.schema([("File_Index", pa.int64())]).serialize().to_pybytes(), (), 1)
    with pytest.raises(UsageError, match="'File_Index'"):
        stage(lake.objects, old, 0, [])
    with pytest.raises(UsageError, match="'file_index'"):
        make_spec("new", spec.schema.append(pa.field("file_index", pa.int8())), (), 1)


@given(st.lists(st.tuples(texts, int64s, texts), min_size=1, max_size=20))
def test_keys_are_hashed_as_one_by_one(values: list[tuple[str, int, str]]) -> None:
    """The bucket of each row is that of its `key_text`, with key columns of all types."""
    rows = pa.table(dict(zip("aib", map(list, zip(*values, strict=True)), strict=True)))
    for key in ("a", "i", "ai", "ia", "aib"):
        found = staging._key_texts(rows, list(key))
        expected = [key_text(tuple(row[column] for column in key)) for row in rows.to_pylist()]
        assert found.to_pylist() == expected
        assert buckets_of(found, 7).tolist() == [bucket_of(text, 7) for text in expected]
