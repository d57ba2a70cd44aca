"""Compaction and collection of user tables while commits still name their parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tracelake
from tracelake import ExpiredError, Lake
from tracelake.tasks.runners import InProcess

TEXTS = pa.schema([("name", pa.string()), ("text", pa.string())])
_KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "part": pa.int32(), "text": pa.string()}
NUMBERS = pa.schema(_KINDS)
PLAIN = pa.schema([("text", pa.string())])


def write_twenty(lake: Lake, name: str, schema: pa.Schema) -> list[str]:
    """Write some rows twenty times, half of them with existing keys each time."""
    commits = []
    for number in range(20):
        ids = list(range(number * 5, number * 5 + 10))
        columns: dict[str, list[object]] = {
            "name": [f"n{i:03d}" for i in ids],
            "id": list(ids),
            "part": [i % 3 for i in ids],
            "text": [f"{i} in write {number}" for i in ids],
        }
        rows = pa.table({column: columns[column] for column in schema.names}, schema)
        commits.append(lake.write(name, rows))
    return commits


@pytest.mark.parametrize(
    ("schema", "key"),
    [(TEXTS, ["name"]), (NUMBERS, ["id", "part"]), (PLAIN, [])],
    ids=["text key", "key of two integers", "no key"],
)
def test_a_table_of_the_user_stays_small_and_readable(
    tmp_path: Path, schema: pa.Schema, key: list[str]
) -> None:
    """Writers compact as they go; compact and gc keep the rows of each commit until it is forgotten."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("mine", schema, key=key, buckets=2)
        commits = write_twenty(lake, "mine", schema)
        shard = next(shard for shard, _ in lake.maintenance._maintained() if shard.name == "mine")
        assert [ref.level for ref in shard.state().batches] == [1, 1, 0, 0, 0, 0]
        before = {commit: lake.table("mine", at=commit).content_hash() for commit in commits}
        assert len(set(before.values())) == 20
        reports = {report.table: report for report in lake.maintenance.compact(runner=InProcess())}
        assert reports["mine"].batches == 6
        assert {report.table: report.held for report in lake.maintenance.gc(epoch_min_s=0)}["mine"] == 0
        assert {commit: lake.table("mine", at=commit).content_hash() for commit in commits} == before
        assert lake.table("mine").info().parts == (2 if key else 1)
        lake.maintenance.compact(forget_before=commits[-2], runner=InProcess())
        assert {c: lake.table("mine", at=c).content_hash() for c in commits[-2:]} == {
            c: before[c] for c in commits[-2:]
        }
        with pytest.raises(ExpiredError, match="its history begins at"):
            lake.table("mine", at=commits[3])
        state = shard.state()
        history = [part for ref in state.batches for part in shard.batch(ref).history]
        assert sum(part.rows for part in history) == (5 if key else 0)  # retracted by the last write
        assert lake.verify().findings == ()
