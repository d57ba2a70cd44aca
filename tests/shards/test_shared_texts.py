"""Texts that a part stores once: the file has each text of a row in one place, and every reader finds all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake import DamageError, FormatError
from tracelake.formats import decode
from tracelake.shards.compaction import CompactTask, run_compact_task
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Batch, Part, from_bytes, to_bytes
from tracelake.shards.parts import write_part
from tracelake.shards.rows import (
    RETRACTIONS,
    SHARED,
    read_group,
    restore_texts,
    rows_sql,
    share_texts,
    with_row_ids,
)
from tracelake.shards.shard import Snapshot
from tracelake.storage import ObjectStore, open_objects
from tracelake.tables.predicates import Layout
from tracelake.tables.scan import Changed, Scan

SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("input", pa.string()),
        ("output", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("later", pa.string()),
        ("n", pa.int64()),
    ]
)
ADDED: Final = {"later": 2, SHARED.name: 3}
PROMPT, ANSWER = "What is a trace? " * 9, "Spans with one id. " * 9
EDGE: Final = "é" * 32
"""A text of 64 bytes."""
TEXTS: Final = (
    None,
    "",
    "short",
    EDGE,
    EDGE[:-1] + "e",
    EDGE[1:],
    PROMPT,
    ANSWER,
    PROMPT[:-1] + "!",
    "x" * 2**20,
)
KEYS: Final = ("gen_ai.input.messages", "input.value", "output.value", "_shared", "i", "o")

values = st.sampled_from(TEXTS)
attributes_of_row = st.none() | st.dictionaries(st.sampled_from(KEYS), values, max_size=len(KEYS))
rows_of_part = st.lists(st.tuples(values, values, attributes_of_row), min_size=1, max_size=6)


def table_of(rows: Sequence[tuple[Any, Any, Any]]) -> pa.Table:
    """Return rows with these inputs, outputs and attributes."""
    return pa.Table.from_pylist(
        [
            {
                "key": f"k{number}",
                "input": received,
                "output": returned,
                "attributes": None if attributes is None else [*attributes.items()],
                "later": "yes",
                "n": number,
            }
            for number, (received, returned, attributes) in enumerate(rows)
        ],
        SCHEMA,
    )


def listed(rows: pa.Table) -> list[str]:
    """Return rows in a comparable order."""
    return sorted(str({name: row[name] for name in SCHEMA.names}) for row in rows.to_pylist())


def check_kept(rows: pa.Table) -> None:
    """Check that rows, and any selection of them, are restored exactly, and that long texts are in one place."""
    stored = share_texts(rows)
    restored = restore_texts(stored)
    restored.validate(full=True)
    assert restored.equals(rows)
    selected = [len(rows) - 1, 0]
    assert restore_texts(stored.take(selected)).equals(rows.take(selected))
    assert restore_texts(stored.slice(1)).equals(rows.slice(1))
    for before, row in zip(rows.to_pylist(), stored.to_pylist(), strict=True):
        columns = (row["input"], row["output"])
        for (_, text), (_, kept) in zip(before["attributes"] or (), row["attributes"] or (), strict=True):
            is_shared = text is not None and len(text.encode()) >= 64 and text in columns
            assert kept == (None if is_shared else text)


@given(rows_of_part)
def test_restored_rows_equal_the_rows(rows: list[tuple[Any, Any, Any]]) -> None:
    """Rows with odd texts are restored exactly, whatever repeats in them."""
    check_kept(table_of(rows))
    check_kept(pa.concat_tables([table_of(rows), table_of(rows[:1])]))


def test_texts_that_differ_little() -> None:
    """Values of the same length as an input stay, as do nulls, short texts and repeats of both columns."""
    check_kept(
        table_of(
            [
                (PROMPT, ANSWER, {"input.value": PROMPT, "output.value": ANSWER, "i": PROMPT[:-1] + "!"}),
                (PROMPT, PROMPT, {"input.value": PROMPT, "output.value": PROMPT, "o": None}),
                (None, ANSWER, {"output.value": ANSWER, "_shared": ANSWER, "i": ""}),
                ("", None, {"input.value": "", "o": None}),
                (PROMPT, None, None),
                (PROMPT, None, {}),
                (EDGE, EDGE[1:], {"input.value": EDGE, "output.value": EDGE[1:]}),
            ]
        )
    )


def parts_of(
    objects: ObjectStore, rows: Sequence[Sequence[tuple[Any, Any, Any]]]
) -> tuple[list[Part], pa.Table]:
    """Write a part of each schema version in turn; return the parts and the rows as readers must find them."""
    parts, expected = [], []
    for time, each in enumerate(rows):
        version, table = 3 - time % 3, table_of(each)
        if version == 1:
            table = table.set_column(
                SCHEMA.get_field_index("later"), "later", pa.nulls(len(table), pa.string())
            )
        expected.append(table)
        stored = with_row_ids(table.drop_columns(["later"]) if version == 1 else table, time, 0, 1)
        if version == 3:
            stored = share_texts(stored)
        parts.append(write_part(objects, "s", 0, 0, stored, "key", looked_up=True, schema_version=version))
    return parts, pa.concat_tables(expected)


def check_readers(folder: Path, rows: Sequence[Sequence[tuple[Any, Any, Any]]]) -> None:
    """Check all readers of parts with and without shared texts: queries, lookups, scans, changes, and compaction."""
    objects = open_objects(folder.as_uri())
    parts, expected = parts_of(objects, rows)
    last = len(parts) - 1
    check_reads(objects, folder, Snapshot(last, tuple(parts), (), ()), expected)
    gone = pa.table({"row_id": [0], "time": [last + 1]}, schema=RETRACTIONS)
    retraction = write_part(objects, "s", 0, 0, gone, None)
    task = CompactTask(
        folder.as_uri(), "s", 0, 0, 0, last + 2, 0, ("key", "n"), tuple(parts), (retraction,), ()
    )
    receipt = run_compact_task(task)
    for time, live in ((last, expected), (last + 1, expected.slice(1))):
        snapshot = Snapshot(time, tuple(receipt.parts), (), tuple(receipt.history))
        check_reads(objects, folder, snapshot, live)


def check_reads(objects: ObjectStore, folder: Path, snapshot: Snapshot, expected: pa.Table) -> None:
    """Check the readers of one snapshot."""
    with duckdb.connect() as db:
        query = rows_sql(snapshot, lambda path: str(objects.local_path(path)), SCHEMA.names, SCHEMA, ADDED)
        assert listed(db.sql(query).to_arrow_table()) == listed(expected)
    keys = sorted(map(str, set(expected["key"].to_pylist())))
    for names in (SCHEMA.names, ["key", "attributes"], ["input"]):
        found = [*Lookup(objects, snapshot, "key", schema=SCHEMA, added=ADDED).rows(keys, names)]
        assert all(each.schema.names == [*names, "_row_id"] for each in found)
        columns = [str(row) for row in expected.select(names).to_pylist()]
        assert sorted(str(row) for each in found for row in each.select(names).to_pylist()) == sorted(columns)
    scan = Scan(folder.as_uri(), str(folder), Layout(SCHEMA, ("key",), 1, ADDED), snapshot)
    where = "attributes['input.value'] = input"
    assert len(scan.select(scan.open_files(), ["n", "attributes"], where)) == sum(
        row["input"] is not None and dict(row["attributes"] or ()).get("input.value") == row["input"]
        for row in expected.to_pylist()
    )
    changed = Scan(
        folder.as_uri(), str(folder), scan.layout, snapshot, Changed(-1, snapshot.as_of, True, False)
    )
    assert set(listed(changed.select(changed.open_files()))) >= set(listed(expected))
    if not snapshot.history:
        read = []
        for part in snapshot.parts:
            with pq.ParquetFile(str(objects.local_path(part.path))) as opened:
                read += [read_group(opened, group, SCHEMA) for group in range(opened.num_row_groups)]
        assert listed(pa.concat_tables(read)) == listed(expected)


REPEATED: Final = (PROMPT, ANSWER, {"input.value": PROMPT, "note": "mine", "output.value": ANSWER})


def test_all_readers_restore_shared_texts(tmp_path: Path) -> None:
    """Parts with shared texts, without, and of an earlier schema are one table, also after a compaction."""
    plain = (None, None, {"http.route": "/"})
    check_readers(tmp_path, [[REPEATED, plain], [plain, REPEATED], [REPEATED], [plain]])


@settings(max_examples=settings().max_examples // 4)  # each takes a second
@given(st.lists(rows_of_part, min_size=1, max_size=4))
def test_all_readers_of_odd_texts(rows: list[list[tuple[Any, Any, Any]]]) -> None:
    """See `check_readers`."""
    with tempfile.TemporaryDirectory() as folder:
        check_readers(Path(folder), rows)


def test_another_engine_reads_texts_in_their_columns(tmp_path: Path) -> None:
    """A reader of the bare file finds `input` and `output`, and null for the attributes that repeat them."""
    objects = open_objects(tmp_path.as_uri())
    (part,), _ = parts_of(objects, [[REPEATED]])
    row = pq.read_table(str(objects.local_path(part.path))).to_pylist()[0]
    assert (row["input"], row["output"]) == (PROMPT, ANSWER)
    assert row["attributes"] == [("input.value", None), ("note", "mine"), ("output.value", None)]
    assert row[SHARED.name] == "i.o"
    assert SHARED.name not in part.ranges


def test_rows_that_repeat_nothing_stay_as_they_are() -> None:
    """Their column `_shared` is null. All parts have it, so that other engines scan them together."""
    for rows in (
        table_of([(None, None, {"http.route": "/" * 99}), (PROMPT, None, {"o": ANSWER})]),
        table_of([(None, None, {"input.value": PROMPT})]),
        table_of([(PROMPT, None, None)]).slice(1),
    ):
        stored = share_texts(rows)
        assert stored.drop_columns([SHARED.name]).equals(rows)
        assert stored[SHARED.name].null_count == len(rows)


def test_columns_that_disagree_are_damage() -> None:
    """If the characters of a row are fewer than its attributes, no value is invented."""
    stored = share_texts(table_of([REPEATED]))
    short = stored.set_column(stored.schema.get_field_index(SHARED.name), SHARED, pa.array(["i."]))
    with pytest.raises(DamageError, match="does not match attributes"):
        restore_texts(short)


def test_an_earlier_release_refuses_a_batch_with_shared_texts(tmp_path: Path) -> None:
    """It reads batches of format 1 only. A batch without shared texts keeps that format."""
    parts, _ = parts_of(open_objects(tmp_path.as_uri()), [[REPEATED], [REPEATED]])
    plain, shared = (Batch(0, 1, "b", (part,), (), {}) for part in reversed(parts))
    assert decode(Batch, to_bytes(plain), "a batch", 1) == plain
    with pytest.raises(FormatError, match=r"has format 2; this release reads 1.*not damaged"):
        decode(Batch, to_bytes(shared), "a batch", 1)
    assert from_bytes(Batch, to_bytes(shared), "a batch").parts == shared.parts
    again = from_bytes(Batch, to_bytes(shared), "a batch")
    assert to_bytes(again) == to_bytes(shared)
