"""Columns that a table got later: parts of the earlier schema stay, and every reader finds null there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from tracelake.shards.compaction import CompactTask, run_compact_task
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.shards.rows import RETRACTIONS, rows_sql, with_row_ids
from tracelake.shards.shard import Snapshot
from tracelake.storage import ObjectStore, open_objects
from tracelake.tables.predicates import Layout
from tracelake.tables.scan import Changed, Scan

SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("cost", pa.float64()),
        ("n", pa.int64()),
    ]
)
ADDED: Final = {"tags": 2, "cost": 3}
VERSIONS: Final = {
    version: [name for name in SCHEMA.names if ADDED.get(name, 1) <= version] for version in (1, 2, 3)
}


def parts_of(objects: ObjectStore, versions: list[int]) -> tuple[list[Part], list[dict[str, Any]]]:
    """Write a part for each version; return the parts and their rows as readers must find them."""
    parts, expected = [], []
    for time, version in enumerate(versions):
        rows = [
            {"key": f"k{number}", "tags": [("a", str(time))], "cost": number / 4, "n": time}
            for number in range(3)
        ]
        table = pa.Table.from_pylist(rows, SCHEMA).select(VERSIONS[version])
        numbered = with_row_ids(table, time, 0, 1)
        parts.append(write_part(objects, "s", 0, 0, numbered, "key", looked_up=True, schema_version=version))
        empty = dict.fromkeys(ADDED)
        expected += [empty | {name: row[name] for name in VERSIONS[version]} for row in rows]
    return parts, expected


def listed(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows in a comparable order."""
    return sorted(str({name: row[name] for name in SCHEMA.names}) for row in rows)


def check_readers(folder: Path) -> None:
    """Check all readers of parts of random versions: queries, lookups, scans, changes, and compaction."""
    chance = random.Random(5)
    objects = open_objects(folder.as_uri())
    layout = Layout(SCHEMA, ("key",), 1, ADDED)
    for _ in range(6):
        versions = [chance.choice([1, 2, 3]) for _ in range(chance.randint(1, 5))]
        parts, expected = parts_of(objects, versions)
        gone = pa.table({"row_id": [1], "time": [len(parts)]}, schema=RETRACTIONS)
        retraction = write_part(objects, "s", 0, 0, gone, None)
        live = expected[:1] + expected[2:]
        for snapshot, rows in (
            (Snapshot(len(parts) - 1, tuple(parts), (), ()), expected),
            (Snapshot(len(parts), tuple(parts), (retraction,), ()), live),
        ):
            check_reads(objects, folder, layout, snapshot, rows)
        task = CompactTask(
            folder.as_uri(), "s", 0, 0, 0, len(parts) + 1, 0, ("key", "n"), tuple(parts), (retraction,), ()
        )
        receipt = run_compact_task(task)
        assert {part.schema_version for part in receipt.parts} == {max(versions)}
        compacted = Snapshot(len(parts), tuple(receipt.parts), (), tuple(receipt.history))
        check_reads(objects, folder, layout, compacted, live)
        past = Snapshot(len(parts) - 1, tuple(receipt.parts), (), tuple(receipt.history))
        check_reads(objects, folder, layout, past, expected)


def check_reads(
    objects: ObjectStore, folder: Path, layout: Layout, snapshot: Snapshot, rows: list[dict[str, Any]]
) -> None:
    """Check the readers of one snapshot."""
    with duckdb.connect() as db:
        query = rows_sql(snapshot, lambda path: str(objects.local_path(path)), SCHEMA.names, SCHEMA, ADDED)
        table = db.sql(query).to_arrow_table()
    assert table.schema.field("cost").type == pa.float64()
    assert listed(table.to_pylist()) == listed(rows)
    looked_up = Lookup(objects, snapshot, "key", schema=SCHEMA, added=ADDED)
    tables = list(looked_up.rows(["k0", "k1", "k2"], SCHEMA.names))
    assert listed([row for each in tables for row in each.to_pylist()]) == listed(rows)
    scan = Scan(folder.as_uri(), str(folder), layout, snapshot)
    costly = scan.select(scan.open_files(), where="cost > 0.1").to_pylist()
    assert listed(costly) == listed([row for row in rows if row["cost"] is not None and row["cost"] > 0.1])
    change = Changed(-1, snapshot.as_of, inserted=True, has_change_columns=False)
    changed = Scan(folder.as_uri(), str(folder), layout, snapshot, change)
    inserted = changed.select(changed.open_files())
    assert inserted.schema.names == SCHEMA.names
    assert len(inserted) >= len(rows)


def test_all_readers_of_parts_of_several_versions(tmp_path: Path) -> None:
    """See `check_readers`."""
    check_readers(tmp_path)
