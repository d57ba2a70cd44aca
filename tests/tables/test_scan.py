"""Reading parts: parts without a wanted row are not opened, and the splits of a scan can be sent to any task."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pytest

import tracelake
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import AGENTS, a_line, a_span
from tracelake import Lake
from tracelake._errors import DamageError, ExpiredError, QueryError
from tracelake.pipeline import merge_task
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part
from tracelake.shards.rows import GIVEN_UP, ROW_ID
from tracelake.tables import predicates
from tracelake.tables.changes import Retractions
from tracelake.tables.scan import connection
from tracelake.tasks.runners import InProcess

FIRST, SECOND = 1_000, 2_000
"""Start times of the spans of two transactions."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake of two transactions with 40 traces each; the second replaces a span of the first."""
    folder = tmp_path_factory.mktemp("scan")
    lines = (
        [a_line(a_span(n, 0, start=FIRST, end=FIRST + n), service="early") for n in range(40)],
        [a_line(a_span(n, 0, start=SECOND, end=SECOND + n), service="late") for n in range(40, 80)]
        + [a_line(a_span(3, 0, start=FIRST, end=FIRST + 500), service="early")],
    )
    with tracelake.init(folder / "lake", buckets=4) as lake:
        with mock.patch("tracelake.pipeline.merge_task.WRITTEN_TOGETHER_MAX_BYTES", 0):  # one part per bucket
            for number, of_transaction in enumerate(lines):
                (folder / f"{number}.jsonl").write_bytes(b"\n".join(of_transaction))
                lake.ingest(folder / f"{number}.jsonl", runner=InProcess())
        yield lake


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """Return a function that returns the parts opened since its last call."""
    seen = set[str]()

    def note(file: str, part: Part) -> None:
        seen.add(part.path)
        check_part(file, part)

    def told() -> set[str]:
        found = set(seen)
        seen.clear()
        return found

    monkeypatch.setattr("tracelake.tables.scan.check_part", note)
    monkeypatch.setattr("tracelake.tables.scan.is_checked", lambda *_: False)
    return told


def test_parts_without_wanted_rows_are_not_opened(lake: Lake, opened: Callable[[], set[str]]) -> None:
    """A key selects one bucket, time or service one transaction, and both one part."""
    spans = lake.table("spans")
    parts = {part.path: part for part in spans.scan.snapshot.parts}
    retractions = {part.path for part in spans.scan.snapshot.retractions}
    trace_id = f"{61:032x}"

    def read(where: str) -> tuple[int, list[Part]]:
        rows = len(spans.to_arrow(["trace_id"], where))
        return rows, [parts[path] for path in opened() - retractions]

    everything = read("true")
    assert everything[0] == 80
    assert len(everything[1]) == len(parts) == 8
    rows, found = read(f"trace_id = '{trace_id}'")
    assert rows == 1
    assert len({part.bucket for part in found}) == 1
    rows, found = read(f"start_ns >= {SECOND}")
    assert rows == 40
    assert len(found) == 4
    assert [len(read(f"service = '{service}'")[1]) for service in ("early", "late", "none")] == [5, 4, 0]
    rows, found = read(f"trace_id in ('{trace_id}') and start_ns between {SECOND} and {SECOND + 50}")
    assert (rows, len(found)) == (1, 1)
    assert read(f"start_ns < {FIRST}") == (0, [])
    assert len(read(f"start_ns < {FIRST} or duration_ns > 30")[1]) == 8
    assert len(spans.lookup([trace_id])) == 1
    assert len(opened() - retractions) == 1


def test_splits_are_the_table_in_pieces(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the splits, after serialization they are together the rows of the table."""
    spans = lake.table("spans")
    whole = spans.to_arrow(order_by="trace_id")
    assert len(spans.splits()) == 1
    monkeypatch.setattr("tracelake.tables.scan.SPLIT_MIN_BYTES", 1)
    splits = [pickle.loads(pickle.dumps(split)) for split in spans.splits()]
    assert len(splits) == 8
    batches = [batch for split in splits for batch in split.batches()]
    assert pa.Table.from_batches(batches).sort_by("trace_id") == whole
    late = spans.splits("service = 'late'")
    assert sum(len(batch) for split in late for batch in split.batches(["span_id"], "end_ns > 2050")) == 29
    assert lake.table("spans").splits("service = 'none'") == []


def test_listen_yields_each_transaction_once(tmp_path: Path) -> None:
    """A listener gets committed changes with +1 and -1; one that begins later gets only later ones."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        assert list(lake.listen("spans", timeout_s=0)) == []
        listener = lake.listen("spans", timeout_s=HANG_S)
        inputs = [[a_span(0, 0), a_span(0, 1)], [a_span(0, 0)], [a_span(0, 1, end=99), a_span(1, 0)]]
        for number, spans in enumerate(inputs):
            (tmp_path / f"{number}.jsonl").write_bytes(a_line(*spans))
            lake.ingest(tmp_path / f"{number}.jsonl", runner=InProcess())
        first, last = next(listener), next(listener)
        assert (first.transaction, last.transaction) == (0, 2), "transaction 1 changed nothing"
        assert first.rows.column_names == [*lake.table("spans").schema.names, "_change", "_transaction"]

        def told(rows: pa.Table) -> list[tuple[str, int, int]]:
            return sorted((row["span_id"][-1], row["end_ns"], row["_change"]) for row in rows.to_pylist())

        assert told(first.rows) == [("1", 10, 1), ("2", 10, 1)]
        assert told(last.rows) == [("1", 10, 1), ("2", 10, -1), ("2", 99, 1)]
        assert [changes.transaction for changes in lake.listen("spans", 0, timeout_s=0)] == [2]
        with mock.patch(
            "tracelake.tables.changes.retracted", side_effect=AssertionError("left out, and read")
        ):
            plain = list(lake.listen("spans", 0, timeout_s=0, insertions_only=True))
        assert [len(changes.rows) for changes in plain] == [2]
        with pytest.raises(
            tracelake.UsageError, match="table spans: rows were replaced or deleted later than"
        ):
            list(lake._opened.change_log("spans").scans(0, 2, Retractions.REFUSE))
        traces = list(lake.listen("traces", -1, timeout_s=0))
        assert [changes.rows["_change"].to_pylist().count(-1) for changes in traces] == [0, 1]
        with pytest.raises(tracelake.TableNotFoundError):
            lake.listen("nothing")

        def changes() -> list[tuple[int, list[tuple[str, int, int]]]]:
            return [(each.transaction, told(each.rows)) for each in lake.listen("spans", -1, timeout_s=0)]

        before = changes()
        lake.maintenance.compact(runner=InProcess())
        assert len(lake.table("spans").scan.snapshot.parts) < 3
        assert changes() == before, "compaction forgets no change"
        lake.maintenance.compact(forget_before="main~1", runner=InProcess())
        assert changes() == [(1, before[0][1]), *before[1:]], "up to transaction 1, they come as one"
        with pytest.raises(
            ExpiredError, match="individual changes up to transaction 1 are no longer recorded"
        ):
            list(lake.listen("spans", 0, timeout_s=0))
        assert [each.transaction for each in lake.listen("spans", 1, timeout_s=0)] == [2]


def test_a_listener_stops_when_told(lake: Lake) -> None:
    """A listener ends at its time limit, and soon after its event is set."""
    stop = threading.Event()
    found = list[int]()
    changes = lake.listen("spans", 0, stop=stop)
    listener = threading.Thread(target=lambda: found.extend(each.transaction for each in changes))
    listener.start()
    wait_until(lambda: found)
    listener.join(timeout=0.2)
    assert listener.is_alive()
    stop.set()
    listener.join(timeout=HANG_S)
    assert not listener.is_alive()
    assert found == [1]


def test_ranges_of_real_data_lead_to_the_same_rows(tmp_path: Path) -> None:
    """On real data, conditions that prune parts return the same rows as a scan of all rows."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess())
        spans = lake.table("spans")
        everything = spans.to_arrow(["span_id", "service", "name", "duration_ns", "model", "input_tokens"])
        assert len(everything) == 4931
        for where in (
            "service = 'beeai'",
            "model > 'gpt' and input_tokens > 5000",
            "duration_ns = 0",
            "name < 'B'",
        ):
            with connection() as db:
                db.register("everything", everything)
                ((expected,),) = db.sql(f"select count(*) from everything where {where}").fetchall()
            assert len(spans.to_arrow(["span_id"], where)) == expected, where


@pytest.mark.parametrize("error", GIVEN_UP)
@pytest.mark.parametrize("opened", [connection, lambda: connection(()), merge_task._connect])
def test_a_database_that_was_given_up_is_not_used_again(opened: Any, error: type[duckdb.Error]) -> None:
    """After a fatal DuckDB error, the next query gets another database and succeeds."""

    def marks() -> int:
        with opened() as db:
            ((count,),) = db.sql(
                "select count(*) from duckdb_tables() where table_name = 'marked'"
            ).fetchall()
            return int(count)

    with opened() as db:
        db.execute("create table marked as select 1")
    assert marks() == 1, "one database is shared"
    with pytest.raises((QueryError, error)), opened():
        raise error("a bug of DuckDB")
    assert marks() == 0


@pytest.mark.parametrize("error", GIVEN_UP)
def test_a_parser_that_was_given_up_is_not_used_again(
    error: type[duckdb.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query with a fatal parser error is refused, and the next one is parsed."""
    broken = mock.Mock()
    broken.cursor.return_value.execute.side_effect = error("a bug of DuckDB")
    predicates._parser.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(duckdb, "connect", lambda **_: broken)
        with pytest.raises(QueryError, match="a bug of DuckDB"):
            predicates.reading("select 1")
    assert predicates.reading("select 1") == "select 1"


def test_a_lookup_says_what_a_query_says(lake: Lake) -> None:
    """A lookup equals a query for all or few columns, at each commit, for present, repeated and absent traces."""
    ids = [f"{number:032x}" for number in range(0, 100, 7)]
    commits = [commit.id for commit in lake.log()]
    for at in (*commits, *commits):
        spans = lake.table("spans", at=at)
        for columns in (None, ["duration_ns", "span_id"], [ROW_ID.name, "trace_id"], ["trace_id"]):
            for wanted in (ids, ids[:1], [ids[0], ids[0]], ["", "none"]):
                assert spans._are_looked_up(wanted, columns or spans.schema.names)
                told = ", ".join(f"'{each}'" for each in wanted)
                asked = spans.to_arrow(columns or spans.schema.names, f"trace_id in ({told})")
                found = spans.lookup(wanted, columns)
                assert found.schema.names == asked.schema.names
                assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, asked.to_pylist()))


def test_what_cannot_be_looked_up_is_asked_as_before(lake: Lake) -> None:
    """No columns, a repeated or absent column, or more traces than a lookup accepts, fall back to a query."""
    spans = lake.table("spans")
    trace_id = f"{61:032x}"
    with pytest.raises(QueryError, match="no_such"):
        spans.lookup([trace_id], ["trace_id", "no_such"])
    assert len(spans.lookup([trace_id], ["SPAN_ID"])) == 1
    many = [f"{number:032x}" for number in range(200)]
    assert len(spans.lookup(many, ["trace_id"])) == 80


def test_a_part_that_went_is_damage_although_its_columns_are_kept(lake: Lake) -> None:
    """An absent or replaced part is damage even if its columns are cached."""
    spans = lake.table("spans")
    trace_id = f"{61:032x}"
    assert len(spans.lookup([trace_id])) == 1
    parts = spans.scan.layout.with_keys(spans.scan.snapshot.parts, [trace_id])
    (file,) = [Path(spans._files.file(part.path)) for part in parts]
    whole = file.read_bytes()
    try:
        file.unlink()
        with pytest.raises(DamageError):
            spans.lookup([trace_id])
        file.write_bytes(whole + b"x")  # of another size, whatever the clock of the file system returns
        with pytest.raises(DamageError):
            spans.lookup([trace_id])
    finally:
        file.write_bytes(whole)
    assert len(spans.lookup([trace_id])) == 1
