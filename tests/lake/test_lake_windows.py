"""Windows of ingest time in a lake: old data is not rewritten, and a time range reads only its windows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.batching import DAY_S
from tracelake.location import open_location
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.shards.model import BatchRef
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.local import FileObjectStore
from tracelake.tables.view import index_at
from tracelake.tasks.runners import InProcess
from tracelake.versions.repository import Repository

FIRST_DAY = 20_000
DAYS = 12
PER_DAY = 3
"""Transactions of a day."""


class Clock:
    """Time of day of this process, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "time", lambda: self.now_s)
        monkeypatch.setattr(time, "time_ns", lambda: int(self.now_s * 10**9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock."""
    return Clock(monkeypatch)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return an empty lake of two buckets."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


def fill(lake: Lake, clock: Clock, folder: Path, days: range, per_day: int = PER_DAY) -> None:
    """Ingest some transactions of one span on each day."""
    for day in days:
        for number in range(per_day):
            clock.now_s = (FIRST_DAY + day) * DAY_S + (number + 1) * DAY_S / (per_day + 1)
            start = int(clock.now_s) * 10**9
            trace = day * per_day + number
            span = a_span(trace, 0, start=start, end=start + 10, note=f"day{day} work")
            path = folder / f"{day}-{number}.jsonl"
            path.write_bytes(a_line(span))
            lake.ingest(path, runner=InProcess())


def stores_of(lake: Lake) -> tuple[KeyValueStore, ObjectStore]:
    """Return the stores of a lake."""
    return open_location(lake.url, None).open_records(), lake.objects


def batches_of(lake: Lake, table: str) -> tuple[BatchRef, ...]:
    """Return the batches of a table."""
    return Shard(table, *stores_of(lake)).state().batches


def table_days(lake: Lake, table: str) -> list[set[int]]:
    """Return the days of each batch of a table, by its transactions."""
    return [{t // PER_DAY for t in range(ref.lower, ref.upper)} for ref in batches_of(lake, table)]


def index_parts(lake: Lake) -> list[Any]:
    """Return the index parts of the head."""
    repository = Repository(*stores_of(lake))
    path = index_at(repository, repository.head())
    assert path is not None
    return list(read_parts(lake.objects, read_manifest(lake.objects, path)))


def test_tables_and_index_keep_windows_apart(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    """Each settled day is one batch and one index part, which later days and `compact` leave as they are."""
    fill(lake, clock, tmp_path, range(5))
    before = {table: batches_of(lake, table)[:4] for table in ("spans", "traces")}
    parts = index_parts(lake)[:4]
    fill(lake, clock, tmp_path, range(5, DAYS))
    for table, batches in before.items():
        assert [ref.level for ref in batches] == [1] * 4
        assert table_days(lake, table)[: DAYS - 1] == [{day} for day in range(DAYS - 1)]
        assert batches_of(lake, table)[:4] == batches
    assert [(each.lower, each.upper) for each in parts] == [(3 * day, 3 * day + 3) for day in range(4)]
    assert index_parts(lake)[:4] == parts
    lake.maintenance.compact(runner=InProcess())
    assert table_days(lake, "spans") == [{day} for day in range(DAYS)]
    assert batches_of(lake, "spans")[:4] == before["spans"]
    assert [hit.trace_id for hit in lake.search("day3", limit=10, sort="newest")] == [
        f"{3 * 3 + number + 1:032x}" for number in (2, 1, 0)
    ]
    assert lake.verify().findings == ()


def test_a_lake_moves_to_windows_by_itself(
    lake: Lake, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches without a time, of earlier releases, are one old window; later days are separate."""
    with monkeypatch.context() as patch:
        patch.setattr("tracelake.pipeline.outputs.builtin.now", lambda: datetime.fromtimestamp(0, UTC))
        fill(lake, clock, tmp_path, range(3))
    fill(lake, clock, tmp_path, range(3, 6))
    spans = batches_of(lake, "spans")
    assert {ref.ingested_s for ref in spans if ref.lower < 3 * PER_DAY} == {0}
    assert table_days(lake, "spans")[-PER_DAY - 2 :] == [{3}, {4}, *[{5}] * PER_DAY]
    assert lake.sql("select count(*) as n from spans").to_pylist() == [{"n": 18}]


def test_without_windows_merges_have_no_bounds(
    lake: Lake, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting `none` merges all days."""
    monkeypatch.setenv("TRACELAKE_WINDOW", "none")
    fill(lake, clock, tmp_path, range(4))
    lake.maintenance.compact(runner=InProcess())
    assert table_days(lake, "spans") == [set(range(4))]


class Opened:
    """Counts the objects of a lake that are read as files or as bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: set[str] = set()
        local_path, get = FileObjectStore.local_path, FileObjectStore.get

        def as_file(store: FileObjectStore, path: str) -> str | None:
            self.paths.add(path)
            return local_path(store, path)

        def as_bytes(store: FileObjectStore, path: str) -> bytes:
            self.paths.add(path)
            return get(store, path)

        monkeypatch.setattr(FileObjectStore, "local_path", as_file)
        monkeypatch.setattr(FileObjectStore, "get", as_bytes)

    def of(self, folder: str) -> set[str]:
        """Return the objects that were read since the last call."""
        found = {path for path in self.paths if path.startswith(folder)}
        self.paths -= found
        return found


def test_one_day_reads_its_windows_only(
    lake: Lake, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time range opens the parts of its day, by a condition, by SQL and by search, in a lake of 400 days."""
    folder = tmp_path / "input"
    folder.mkdir()
    with closing(lake.pipeline(watch=[f"{folder}/*.jsonl"], runner=InProcess())) as pipeline:
        for number in range(400):
            clock.now_s = (FIRST_DAY + number + 0.5) * DAY_S
            start = int(clock.now_s) * 10**9
            span = a_span(number, 0, start=start, end=start + 10, note=f"day{number} work")
            (folder / f"{number}.jsonl").write_bytes(a_line(span))
            pipeline.run_once()
    assert len(batches_of(lake, "spans")) == len(index_parts(lake)) == 400
    day = FIRST_DAY + 30
    first_ns, last_ns = day * DAY_S * 10**9, (day + 1) * DAY_S * 10**9 - 1
    where = f"start_ns between {first_ns} and {last_ns}"
    lake.table("spans").to_arrow(["trace_id"], "start_ns < 0")  # opens the view
    opened = Opened(monkeypatch)
    assert len(lake.table("spans").to_arrow(["trace_id"], where)) == 1
    assert len(opened.of("shards/spans/parts")) == 1
    assert len(lake.table("traces").to_arrow(["trace_id"], where)) == 1
    assert len(opened.of("shards/traces/parts")) == 1
    assert lake.sql(f"select count(*) as n from spans where {where}").to_pylist() == [{"n": 1}]
    sql = opened.of("shards/spans/parts")
    shown = datetime.fromtimestamp(day * DAY_S, UTC).strftime("%Y-%m-%d")
    found = lake.search(f"start:{shown}", sort="newest")
    assert [hit.trace_id for hit in found] == [f"{31:032x}"]
    assert len(opened.of("search/spans/parts")) == 1
    assert len(sql) == 1
    twice = f"select (select count(*) from spans) - (select count(*) from spans where {where}) as n"
    assert lake.sql(twice).to_pylist() == [{"n": 399}]
