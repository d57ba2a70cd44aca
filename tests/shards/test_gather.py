"""Large rows: compaction moves them one part at a time, and key summaries forget no key."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake import limits
from tracelake._errors import DamageError
from tracelake.shards.compaction import CompactTask, MergeSources, run_compact_task
from tracelake.shards.model import Part
from tracelake.shards.parts import KEY_FILTER, cut, hashes_of, key_filter, may_hold, write_part
from tracelake.shards.rows import with_row_ids
from tracelake.storage import ObjectStore, open_objects

KIB = 1024


def write(objects: ObjectStore, time: int, rows: pa.Table, *, looked_up: bool = True) -> Part:
    return write_part(objects, "s", 0, 0, with_row_ids(rows, time, 0, 1), "key", looked_up=looked_up)


def file_of(objects: ObjectStore, part: Part) -> str:
    file = objects.local_path(part.path)
    assert file is not None
    return file


def test_large_rows_of_one_key_are_compacted_into_parts_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one trace with 1 to 20 KiB each become sorted parts of 32 KiB, with one part in memory at a time."""
    objects = open_objects(tmp_path.as_uri())
    chance = random.Random(1)
    monkeypatch.setattr(limits, "ROW_GROUP_MAX_BYTES", 16 * KIB)
    parts, texts = [], {}
    for time in range(8):
        numbers = sorted(chance.sample(range(1_000), 30))
        rows = [(number, chance.choice("ab") * chance.choice([1, 20]) * KIB) for number in numbers]
        texts.update({(number, time): text for number, text in rows})
        columns = {"key": ["k"] * 30, "number": numbers, "text": [text for _, text in rows]}
        parts.append(write(objects, time, pa.table(columns)))
    monkeypatch.setattr("tracelake.shards.compaction.COMPACTED_PART_MAX_BYTES", 32 * KIB)
    monkeypatch.setattr("tracelake.shards.compaction._is_large", lambda _: False)
    receipt = run_compact_task(
        CompactTask(tmp_path.as_uri(), "s", 0, 0, 0, 8, 0, ("key", "number"), tuple(parts), (), ())
    )
    assert len(receipt.parts) > 10
    found = []
    for part in receipt.parts:
        file = pq.ParquetFile(file_of(objects, part))
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        assert all(group.nbytes <= 16 * KIB or len(group) == 1 for group in groups)
        assert sum(group.nbytes for group in groups) < 64 * KIB  # rows of a group differ in size
        assert KEY_FILTER in (file.metadata.metadata or {})
        found += [row for group in groups for row in group.to_pylist()]
    found.sort(key=lambda row: (row["number"], row["_row_id"]))
    assert {(row["number"], row["_row_id"] >> 32): row["text"] for row in found} == texts
    in_order = [
        row["number"] for part in receipt.parts for row in pq.read_table(file_of(objects, part)).to_pylist()
    ]
    assert in_order == sorted(in_order)


def test_rows_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """Rows of several parts, some with relative ids, come in the requested order with their retraction times."""
    objects = open_objects(tmp_path.as_uri())
    one = write(objects, 3, pa.table({"key": ["a", "b", "c"]}), looked_up=False)
    two = write(objects, 0, pa.table({"key": ["d", "e"]}), looked_up=False)
    two = Part(
        **{name: getattr(two, name) for name in two.__struct_fields__}
        | {"relative": True, "first_row_id": 100}
    )
    first = 3 << 32
    ids = np.array([101, first + 2, 100, first], np.int64)
    for kept_bytes in (limits.ROW_GROUP_MAX_BYTES, 0):  # keep the rows of few parts, or of none
        sources = MergeSources([one, two], lambda path: str(objects.local_path(path)), kept_bytes)
        (rows,) = sources.gather(ids, np.array([9, 8, 7, 6]), KIB)
        assert rows.to_pydict() == {
            "key": ["e", "c", "d", "a"],
            "_row_id": ids.tolist(),
            "_gone": [9, 8, 7, 6],
        }
        assert not sources.looked_up


def test_large_rows_among_small_ones_come_together(tmp_path: Path) -> None:
    """Large rows of many parts that are adjacent in the order are not read as one table."""
    objects = open_objects(tmp_path.as_uri())
    parts = []
    for time in range(40):
        texts = [str(time) + "x" * (100 * KIB if number == 70 else 1) for number in range(100)]
        parts.append(write(objects, time, pa.table({"key": ["k"] * 100, "text": texts}), looked_up=False))
    sources = MergeSources(parts, lambda path: str(objects.local_path(path)), 500 * KIB)
    ids = np.array([(time << 32) + number for number in range(100) for time in range(40)], np.int64)
    tables = list(sources.gather(ids, None, 500 * KIB))
    assert all(table.nbytes <= 1_000 * KIB for table in tables)
    assert len(tables) < 30
    rows = pa.concat_tables(tables)
    assert rows["_row_id"].to_pylist() == ids.tolist()
    assert [str(text).rstrip("x") for text in rows["text"].to_pylist()] == [str(row >> 32) for row in ids]


def test_a_part_of_somebody_else_is_named(tmp_path: Path) -> None:
    """A file without the sizes of its row groups is refused by name."""
    objects = open_objects(tmp_path.as_uri())
    part = write(objects, 0, pa.table({"key": ["a"]}))
    pq.write_table(pa.table({"key": ["a"], "_row_id": [0]}), file_of(objects, part))
    with pytest.raises(DamageError, match=part.path):
        MergeSources([part], lambda path: str(objects.local_path(path)), KIB)


@given(
    st.lists(st.integers(0, 100), max_size=50), st.integers(1, 300), st.one_of(st.none(), st.integers(1, 9))
)
def test_cut_keeps_rows_and_limits(sizes: list[int], max_bytes: int, max_rows: int | None) -> None:
    """Slicing keeps all rows in order; each slice is within both limits or is one row."""
    check_cut(sizes, max_bytes, max_rows)


def check_cut(sizes: list[int], max_bytes: int, max_rows: int | None) -> None:
    rows = pa.table({"text": pa.array(["x" * size for size in sizes], pa.string())})
    slices = list(cut(rows, max_bytes, max_rows))
    assert [text for few in slices for text in few["text"].to_pylist()] == rows["text"].to_pylist()
    for few in slices:
        assert len(few) == 1 or few.nbytes <= max_bytes
        assert 0 < len(few) <= (max_rows or len(rows))


@given(st.sets(st.text(max_size=5), max_size=200))
def test_a_summary_has_every_key(keys: set[str]) -> None:
    """A summary never reports an inserted key as absent."""
    hashes = hashes_of(pa.array(sorted(keys), pa.string()))
    assert may_hold(key_filter(hashes), hashes).all()


def test_a_summary_rules_out_nearly_all_others() -> None:
    """Fewer than one of 5,000 absent keys passes a summary, also for keys of one bucket."""
    present, absent = (hashes_of(pa.array([f"{kind}{number}" for number in range(80_000)])) for kind in "pa")
    present, absent = present[present % 8 == 3], absent[absent % 8 == 3]
    assert may_hold(key_filter(present), absent).mean() < 1 / 5_000
    assert not may_hold(key_filter(present[:0]), absent).any()


def check_compacted(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        test_large_rows_of_one_key_are_compacted_into_parts_of_bounded_size(folder, patched)
