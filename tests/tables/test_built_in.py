"""A third built-in table needs only one entry and its rows; all code for tables then handles it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pyarrow as pa
import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import DamageError, Lake
from tracelake.journal.model import QuarantineRecord
from tracelake.otlp.schema import TRANSACTION_FIELD
from tracelake.pipeline import merge_task
from tracelake.pipeline.outputs.builtin import CommitOutput
from tracelake.pipeline.publish import Outputs
from tracelake.server.metrics import _LakeCollector
from tracelake.shards.shard import SHARDS_PARTITION
from tracelake.tables.builtin import BUILT_IN, TABLE_TRACES, BuiltInTable
from tracelake.tasks.runners import InProcess
from tracelake.versions.model import TableAt

COLUMNS: Final = ("trace_id", "span_count", TRANSACTION_FIELD.name)
SIZES: Final = BuiltInTable(
    name="sizes",
    schema=pa.schema([TABLE_TRACES.schema.field(name) for name in COLUMNS]),
    key=("trace_id",),
    sorted_by=("span_count", "trace_id"),
    bucketed_by="trace_id",
)


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a new lake with a third table: the number of spans of each trace."""
    monkeypatch.setitem(BUILT_IN, SIZES.name, SIZES)
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def fill(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Make tasks write each row of the third table this many times."""
    write_rows = merge_task._MergeRun._write_rows

    def also(self: Any, table: BuiltInTable, several: Sequence[pa.Table]) -> None:
        write_rows(self, table, several)
        if SIZES.name in BUILT_IN:
            write_rows(self, SIZES, [rows.select(COLUMNS) for rows in several for _ in range(times)])

    monkeypatch.setattr(merge_task._MergeRun, "_write_rows", also)


def ingest(lake: Lake, tmp_path: Path, traces: int = 3) -> None:
    """Ingest one span of each trace, each in a separate transaction."""
    for number in range(traces):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(a_line(a_span(number, 0)))
        lake.ingest(path, runner=InProcess())


def test_transactions_append_to_it_and_the_view_reads_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit names the table, and its rows can be read, looked up and queried."""
    assert lake.table("sizes").schema == SIZES.schema, "of an empty lake as well"
    fill(monkeypatch)
    ingest(lake, tmp_path)
    assert lake._opened.entries_at("main")["tables/sizes"] == TableAt("sizes", 2)
    assert [info.name for info in lake.tables()] == ["spans", "traces", "sizes"]
    assert lake.sql("select count(*), sum(span_count) from sizes").to_pylist() == [
        {"count_star()": 3, "sum(span_count)": 3}
    ]
    assert len(lake.table("sizes").lookup([f"{1:032x}"])) == 1


def test_one_that_nothing_fills_is_empty(lake: Lake, tmp_path: Path) -> None:
    """A table without rows is valid: every transaction appends an empty batch."""
    ingest(lake, tmp_path)
    assert len(lake.table("sizes").to_arrow()) == 0
    assert lake._opened.shard("sizes").state().upper == 3
    assert lake.verify().findings == ()


def test_it_is_maintained(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction sorts the table by its order, and collection visits it, also if no commit names it."""
    assert [report.table for report in lake.maintenance.gc()][:3] == ["spans", "traces", "sizes"]
    fill(monkeypatch)
    ingest(lake, tmp_path)
    compacted = {report.table: report.batches for report in lake.maintenance.compact(runner=InProcess())}
    assert compacted == {"spans": 3, "traces": 3, "sizes": 3}
    assert len(lake.table("sizes").to_arrow()) == 3
    assert lake.verify().findings == ()


def test_verify_reads_it_and_knows_its_key(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` reads its parts like all others, and reports two rows of one key."""
    fill(monkeypatch, times=2)
    ingest(lake, tmp_path, 1)
    assert [(finding.path, finding.kind) for finding in lake.verify().findings] == [
        (f"sizes: trace {1:032x}", "mismatch")
    ]
    (part,) = lake._opened.shard("sizes").snapshot(0).parts[:1]
    lake.objects.delete(part.path)
    assert part.path in [finding.path for finding in lake.verify().findings]


def test_metrics_tell_of_it(lake: Lake, tmp_path: Path) -> None:
    """It has its own metric series, and replicas count its batches, whether won or made by peers."""
    path = tmp_path / "a.jsonl"
    first, second = (
        lake.pipeline(replica=replica, watch=[str(path)], runner=InProcess()) for replica in "ab"
    )
    first.run_once()
    path.write_bytes(a_line(a_span(0, 0)))
    os.utime(path, (1, 1))
    for pipeline in (second, first):
        pipeline.run_once()
    assert (first.replica().batches_of_peers, second.replica().batches_won) == (3, 3)
    samples = {
        sample.labels["table"]: sample.value
        for family in _LakeCollector(lake, None).collect()
        for sample in family.samples
        if sample.name == "tracelake_table_upper"
    }
    assert samples == {"spans": 1, "traces": 1, "sizes": 1}


def test_its_name_is_taken(lake: Lake) -> None:
    """A user's table cannot have its name."""
    with pytest.raises(tracelake.UsageError, match="the pipeline writes table sizes"):
        lake.create_table("sizes", pa.schema([("a", pa.int64())]))


# A lake that is older than the table


def an_older_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Make a lake of two transactions, and then a third table."""
    lake = tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2)
    ingest(lake, tmp_path, 2)
    monkeypatch.setitem(BUILT_IN, SIZES.name, SIZES)
    return tracelake.open(lake.url)


def test_an_older_lake_reads_it_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older lake reads the table as empty, and can be maintained and verified without its first transaction."""
    with an_older_lake(tmp_path, monkeypatch) as lake:
        assert len(lake.table("sizes").to_arrow()) == 0
        assert list(lake.listen("sizes", -1, timeout_s=0)) == []
        assert len(lake.maintenance.gc()) >= 3
        lake.maintenance.compact(runner=InProcess())
        assert lake.verify().findings == ()


def test_it_begins_with_the_next_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table begins with the next transaction, at the upper of the others; only later commits name it."""
    fill(monkeypatch)
    with an_older_lake(tmp_path, monkeypatch) as lake:
        ingest(lake, tmp_path, 4)
        assert {name: lake._opened.shard(name).state().upper for name in BUILT_IN} == dict.fromkeys(
            BUILT_IN, 4
        )
        assert lake._opened.entries_at("main")["tables/sizes"] == TableAt("sizes", 3)
        rows = lake.sql("select trace_id, transaction from sizes order by all").to_pylist()
        assert [row["transaction"] for row in rows] == [2, 3]
        assert len(lake.table("sizes", "main~2").to_arrow()) == 0
        assert [changes.transaction for changes in lake.listen("sizes", -1, timeout_s=0)] == [2, 3]
        lake.maintenance.compact(runner=InProcess())
        assert lake.verify().findings == ()


def test_it_begins_with_a_transaction_that_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table also begins if the next transaction is quarantined, because skipping one is an append."""
    with an_older_lake(tmp_path, monkeypatch) as lake:
        outputs = Outputs(lake._opened.key_value, lake.objects, 2)
        outputs.publish_nothing(QuarantineRecord(2, "no", 3, "pipeline", "2026-01-01T00:00:00+00:00", 0, ()))
        assert lake._opened.shard("sizes").state().upper == 3
        assert lake._opened.entries_at("main")["tables/sizes"] == TableAt("sizes", 2)


def test_a_transaction_that_was_begun_without_it_is_finished_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction begun without the table, and killed after its appends, is finished with the new table's rows."""
    fill(monkeypatch)
    with an_older_lake(tmp_path, monkeypatch) as lake:
        with monkeypatch.context() as older:
            older.delitem(BUILT_IN, SIZES.name)
            older.setattr(CommitOutput, "publish", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                ingest(lake, tmp_path, 3)
        ingest(lake, tmp_path, 3)
        assert [row["transaction"] for row in lake.table("sizes").to_arrow().to_pylist()] == [2]
        assert lake.verify().findings == ()


def test_a_table_whose_state_is_gone_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with a lost state is not created again: commits name it, so appends fail until the record is
    restored."""
    with an_older_lake(tmp_path, monkeypatch) as lake:
        key_value = lake._opened.key_value
        entry = key_value.get(SHARDS_PARTITION, "traces")
        assert entry is not None
        key_value.delete_if(SHARDS_PARTITION, "traces", entry.version)
        with pytest.raises(DamageError, match="shard traces: its state"):
            ingest(lake, tmp_path, 3)
        assert lake._opened.shard("traces").state().upper == 0
        assert ("missing", "table", "traces") in [
            (it.kind, it.what, it.path) for it in lake.verify().findings
        ]
