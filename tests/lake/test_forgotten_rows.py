"""Rows without a readable commit: whole windows are dropped unread, others are rewritten without them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tracelake
from tests.lake.test_lake_windows import FIRST_DAY, Clock, Opened, batches_of, index_parts, stores_of
from tests.pipeline.spans import a_line, a_span
from tracelake import ExpiredError, Lake
from tracelake._errors import CommitExpiredError
from tracelake.batching import DAY_S
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.shards.shard import Shard
from tracelake.tables.view import index_at
from tracelake.tasks.runners import InProcess
from tracelake.versions.repository import Repository

DAYS = 6
TRACES = 40
"""Traces of a day."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the time of day of this process."""
    return Clock(monkeypatch)


@pytest.fixture
def lake(tmp_path: Path, clock: Clock) -> Iterator[Lake]:
    """Return a lake with a settled window for each of some days, of which the last is today."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for day in range(DAYS):
            for half in range(2):
                clock.now_s = (FIRST_DAY + day) * DAY_S + (half + 1) * DAY_S / 3
                ingest(lake, clock, tmp_path, day, half)
        yield lake


def ingest(lake: Lake, clock: Clock, folder: Path, day: int, half: int) -> None:
    """Ingest half of the traces of a day. A quarter of them are errors."""
    start = int(clock.now_s) * 10**9
    spans = [
        a_span(
            1 + day * TRACES + number,
            0,
            start=start,
            end=start + 10,
            note=f"day{day} " + "word " * 200,
            **({"status": {"code": 2}} if number % 4 == 0 else {}),
        )
        for number in range(half, TRACES, 2)
    ]
    path = folder / f"{day}-{half}.jsonl"
    path.write_bytes(a_line(*spans))
    lake.ingest(path, runner=InProcess())


def stored(lake: Lake, table: str) -> list[set[str]]:
    """Return the paths of the parts of each batch of a table."""
    shard = Shard(table, *stores_of(lake))
    return [{part.path for part in shard.batch(ref).parts} for ref in batches_of(lake, table)]


def later(clock: Clock, days: float) -> datetime:
    """Move the clock, and return its time."""
    clock.now_s += days * DAY_S
    return datetime.fromtimestamp(clock.now_s, UTC)


def collect(lake: Lake) -> None:
    """Collect garbage with a history of an hour."""
    lake.maintenance.gc(epoch_min_s=0, history_age="1h", history_daily="none")


def test_expired_windows_are_dropped_unread(
    lake: Lake, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the commits expire, the parts of deleted days go without being read but for row ids; others stay."""
    lake.retention.set("rest", "84h")
    before = {table: stored(lake, table) for table in ("spans", "traces")}
    first, first_time = lake.log(limit=1)[0].id, 2 * DAYS - 1
    report = lake.retention.apply(later(clock, 1))
    assert report.traces == 3 * TRACES
    assert stored(lake, "spans")[:3] == before["spans"][:3], "an earlier commit still reads them"
    assert lake.sql("select count(*) as n from spans", at=first).to_pylist() == [{"n": DAYS * TRACES}]
    later(clock, 1)
    ingest(lake, clock, tmp_path, DAYS, 0)
    opened = Opened(monkeypatch)
    collect(lake)
    for table, batches in before.items():
        assert not opened.of(f"shards/{table}/parts") & set().union(*batches), table
        assert stored(lake, table)[: DAYS - 4] == batches[3 : DAYS - 1]
    oldest = lake.log()[-1].id
    with pytest.raises(CommitExpiredError, match=f"oldest commit that can be read is {oldest[:12]}"):
        lake.sql("select count(*) from spans", at=first)
    with pytest.raises(ExpiredError, match="history begins at 12"):
        Shard("spans", *stores_of(lake)).snapshot(first_time)
    assert lake.sql("select count(*) as n from spans").to_pylist() == [{"n": 3 * TRACES + TRACES // 2}]
    assert lake.table("spans").info().rows == 3 * TRACES + TRACES // 2
    assert lake.search("*").total == 3 * TRACES + TRACES // 2
    collect(lake)  # no view has a lease on the old parts now
    old = [path for batches in before.values() for parts in batches[:3] for path in parts]
    assert not any((tmp_path / "lake" / path).exists() for path in old)
    assert lake.verify().findings == ()


def test_windows_with_other_rows_are_rewritten_once_half_is_dead(
    lake: Lake, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window that keeps its errors is rewritten without the other rows, in tables and index."""
    monkeypatch.setattr("tracelake.search.protocol.INDEX_REPLACED_MIN", 1)
    lake.retention.set("errors", "1y", query="status:error")
    lake.retention.set("rest", "84h")
    lake.retention.apply(later(clock, 1))
    later(clock, 1)
    ingest(lake, clock, tmp_path, DAYS, 0)
    batches = stored(lake, "spans")
    collect(lake)
    assert [ref.rows for ref in batches_of(lake, "spans")[:3]] == [TRACES // 4] * 3
    assert stored(lake, "spans")[3 : DAYS - 1] == batches[3 : DAYS - 1]
    assert [each.documents for each in index_parts(lake)[:3]] == [TRACES // 4] * 3
    assert not any(paths & new for paths, new in zip(batches[:3], stored(lake, "spans")[:3], strict=True))
    assert lake.sql("select count(*) as n from spans").to_pylist() == [
        {"n": (DAYS - 3) * TRACES + TRACES // 2 + 30}
    ]
    assert lake.search("status:error").total == DAYS * TRACES // 4 + TRACES // 4
    assert lake.verify().findings == ()


def test_index_parts_of_deleted_windows_are_dropped_unread(
    lake: Lake, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once retention deletes all rows of an index part, the next index does not name it, and reads no row of it."""
    monkeypatch.setattr("tracelake.search.protocol.INDEX_REPLACED_MIN", 1)
    first, parts = lake.log(limit=1)[0].id, index_parts(lake)
    lake.retention.set("rest", "84h")
    opened = Opened(monkeypatch)
    lake.retention.apply(later(clock, 1))
    later(clock, 0.01)
    ingest(lake, clock, tmp_path, DAYS, 0)
    assert opened.of("search/spans/parts").isdisjoint(part.path for part in parts[: DAYS - 1])
    assert [each.documents for each in index_parts(lake)] == [TRACES, TRACES, TRACES, TRACES // 2]
    assert index_parts(lake)[: DAYS - 4] == parts[3 : DAYS - 1]
    assert lake.search("*").total == lake.sql("select span_id from spans").num_rows
    assert lake.search("*", at=first).total == DAYS * TRACES
    assert lake.verify().findings == ()


def test_windows_that_lost_few_rows_are_not_rewritten(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    """As long as less than half of a window is deleted, its parts and the retractions stay."""
    lake.retention.set("errors", "84h", query="status:error")
    before = stored(lake, "spans")
    lake.retention.apply(later(clock, 1))
    later(clock, 1)
    ingest(lake, clock, tmp_path, DAYS, 0)
    collect(lake)
    assert stored(lake, "spans")[: DAYS - 1] == before[: DAYS - 1]
    rows = DAYS * TRACES - 3 * TRACES // 4 + TRACES // 2
    assert lake.sql("select count(*) as n from spans").to_pylist() == [{"n": rows}]
    assert lake.table("spans").info().rows == lake.search("*").total == rows


def test_rows_that_a_tag_reads_stay(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    """A tag's commit does not expire, and shows deleted traces by table and search."""
    lake.tag("release", "main")
    lake.retention.set("rest", "84h")
    lake.retention.apply(later(clock, 1))
    later(clock, 1)
    ingest(lake, clock, tmp_path, DAYS, 0)
    for _ in range(3):
        collect(lake)
        assert lake.sql("select count(*) as n from spans", at="release").to_pylist() == [{"n": DAYS * TRACES}]
        assert lake.search("*", at="release").total == DAYS * TRACES
    assert lake.search("*").total == 3 * TRACES + TRACES // 2


def test_no_index_part_outlives_its_commits(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    """The collector deletes a part with the last commit that names it."""
    for number in range(12):
        later(clock, 0.02)
        ingest(lake, clock, tmp_path, DAYS + number, 0)
        collect(lake)
    later(clock, 1)
    for _ in range(3):
        collect(lake)
    repository = Repository(*stores_of(lake))
    manifests = {index_at(repository, commit.id) for commit in lake.log()} - {None}
    named = {
        part.path
        for path in manifests
        if path is not None
        for part in read_parts(lake.objects, read_manifest(lake.objects, path))
    }
    assert {info.path for info in lake.objects.list("search/spans/parts/")} == named
