"""Parts of all buckets with parts of one, in a lake that is written, compacted, collected and reindexed."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import tracelake
from tests.lake.test_lake_search import ingest
from tests.pipeline.spans import a_span
from tracelake import Lake
from tracelake.pipeline import merge_task
from tracelake.tasks.runners import InProcess

Model = dict[tuple[int, int], int]
"""The end of each span, by trace and span: the version with the latest end wins."""


def ends(spans: pa.Table) -> list[int]:
    """Return the ends of spans, sorted."""
    return sorted(int(str(end)) for end in spans["end_ns"])


def agrees(lake: Lake, model: Model) -> None:
    """Compare the tables, the tasks' reads of them, and the index with a model."""
    spans = lake.table("spans")
    assert ends(spans.to_arrow(columns=["end_ns"])) == sorted(model.values())
    assert sum(batch.num_rows for split in spans.splits() for batch in split.batches()) == len(model)
    traces = lake.table("traces").to_arrow(columns=["trace_id", "span_count"]).to_pylist()
    assert {int(row["trace_id"], 16) for row in traces} == {trace + 1 for trace, _ in model}
    assert sum(row["span_count"] for row in traces) == len(model)
    assert len(traces) == len({trace for trace, _ in model})
    assert len(lake.search("*", limit=1_000)) == len(model)
    info = lake.index()
    assert info is not None
    assert info.documents >= len(model)


def mixed(folder: Path, seed: int, transactions: int = 12) -> None:
    """Write a lake at random, and check it after each step and at each commit."""
    chance = random.Random(seed)
    model: Model = {}
    history: list[Model] = []
    buckets = 1 + seed % 4
    with pytest.MonkeyPatch.context() as patch, tracelake.init(folder / "lake", buckets=buckets) as lake:
        for number in range(transactions):
            patch.setattr(merge_task, "WRITTEN_TOGETHER_MAX_BYTES", chance.choice((0, 2**24, 2**24)))
            patch.setattr("tracelake.shards.compaction.COMPACTED_AT_HAND_ROWS", chance.choice((0, 9, 10**5)))
            patch.setattr("tracelake.shards.compaction.COMPACTED_PART_MAX_BYTES", chance.choice((1, 10**9)))
            claims = [
                ((chance.randrange(9), chance.randrange(3)), chance.randrange(20, 60))
                for _ in range(chance.randrange(1, 12))
            ]
            ingest(lake, folder, number, *(a_span(*key, end=end) for key, end in claims))
            for key, end in claims:
                model[key] = max(end, model.get(key, end))
            history.append(dict(model))
            if number % 4 == 3:
                lake.maintenance.compact(runner=InProcess())
                lake.maintenance.gc(epoch_min_s=0)
            agrees(lake, model)
        for number, before in enumerate(history):
            shown = lake.table("spans", at=f"main@{number}").to_arrow(columns=["end_ns"])
            assert ends(shown) == sorted(before.values())
        changes = [
            row for each in lake.listen("spans", since=-1, timeout_s=0) for row in each.rows["_change"]
        ]
        assert sum(change.as_py() for change in changes) == len(model)
        patch.setattr("tracelake.limits.INDEX_REBUILT_PART_ROWS", 3)
        report = lake.maintenance.rebuild_index(runner=InProcess())
        assert report.documents == len(model), "each row once, however many tasks read a part of all buckets"
        agrees(lake, model)
        assert lake.verify().findings == ()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lake_of_mixed_parts_has_each_row_once(tmp_path: Path, seed: int) -> None:
    """The rows agree in tables, in splits, in changes, as of each transaction, and in the index."""
    mixed(tmp_path, seed)
