"""Reading a lake: tables, SQL, search and traces, at the head and at older commits, and refused requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import (
    Lake,
    LakeExistsError,
    LakeNotFoundError,
    NotFoundError,
    QueryError,
    RefNotFoundError,
    TableNotFoundError,
    UsageError,
)
from tracelake.tables.view import CommitView
from tracelake.tasks.runners import InProcess

TWIN = "ab" * 15
"""Two traces begin with these 30 digits."""
ODD_NAMES = ["it's", "a b", 'q"q', "日本ü", "[x]", "a*b?", "100%20", "#h", "{a,b}", "semi;--", "back\\slash"]


def ingest(lake: Lake, folder: Path, *lines: bytes) -> str:
    """Write the lines to a file, ingest it, and return the commit."""
    file = folder / f"{len(lake.log())}.jsonl"
    file.write_bytes(b"\n".join(lines))
    commit = lake.ingest(file, runner=InProcess()).commit
    assert commit is not None
    return commit


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake of two commits: the second replaces one span of the first, and adds two traces."""
    folder = tmp_path_factory.mktemp("reading")
    with tracelake.init(folder / "lake") as lake:
        ingest(
            lake,
            folder,
            a_line(a_span(0, 0, end=0, note="apple still running"), a_span(0, 1, start=2, note="pear")),
            a_line(a_span(1, 0, note="pear and plum", name="other"), service="bank"),
        )
        ingest(
            lake,
            folder,
            a_line(a_span(0, 0, end=30, note="cherry done")),
            a_line(*({**a_span(9, n), "traceId": TWIN + end} for n, end in enumerate(("11", "02")))),
        )
        yield lake


@pytest.fixture
def old(lake: Lake) -> str:
    """Return the id of the first commit."""
    return lake.log()[-1].id


def test_to_arrow_selects_filters_orders_and_limits(lake: Lake) -> None:
    """Columns, condition, order and limit of `to_arrow` give the same result as SQL."""
    spans = lake.table("spans")
    assert len(spans.to_arrow()) == 5
    assert spans.to_arrow().column_names == spans.schema.names
    rows = spans.to_arrow(["span_id", "name"], where="service = 'shop'", order_by="start_ns desc", limit=1)
    assert rows.to_pylist() == [{"span_id": f"{2:016x}", "name": "work"}]
    assert len(spans.to_arrow(limit=0)) == 0
    assert len(lake.table("traces").to_arrow(where="span_count = 2")) == 1


def test_other_engines_read_the_same_rows(lake: Lake, old: str) -> None:
    """Polars and DuckDB return the same rows as Arrow, and the files are ordinary Parquet."""
    spans = lake.table("spans")
    expected = spans.to_arrow(["trace_id", "span_id", "end_ns"], order_by="all").to_pylist()
    frame = spans.to_polars(["trace_id", "span_id", "end_ns"], order_by="all")
    assert frame.to_dicts() == expected
    with duckdb.connect() as db:
        relation = spans.to_duckdb(db).select("trace_id, span_id, end_ns").order("all")
        assert relation.to_arrow_table().to_pylist() == expected
    assert spans.to_duckdb().aggregate("count(*)").fetchall() == [(5,)]
    first = lake.table("spans", at=old).files()
    assert sum(pq.read_metadata(file).num_rows for file in first) == 3
    assert set(first) < set(spans.files())


def test_an_old_commit_reads_the_old_rows(lake: Lake, old: str) -> None:
    """Tables, SQL, traces and search at the first commit show nothing of the second."""
    assert [info.rows for info in lake.tables(at=old)] == [3, 2]
    assert [info.rows for info in lake.tables()] == [5, 4]
    query = f"select end_ns from spans where trace_id = '{1:032x}' and span_id = '{1:016x}'"
    assert lake.sql(query, at=old).to_pylist() == [{"end_ns": 0}]
    assert lake.sql(query).to_pylist() == [{"end_ns": 30}]
    assert lake.sql(query, at=old[:12]).to_pylist() == [{"end_ns": 0}]
    assert lake.trace(f"{1:032x}", at=old).spans[0]["attributes"] == {"note": "apple still running"}
    assert lake.trace(f"{1:032x}").spans[0]["attributes"] == {"note": "cherry done"}
    with pytest.raises(NotFoundError, match="no trace"):
        lake.trace(TWIN + "11", at=old)


def test_search_shows_no_replaced_span(lake: Lake, old: str) -> None:
    """A replaced span is found by its old text only at the old commit, and by its new text only at the new one."""
    found = [
        [hit.span_id for hit in lake.search(word, at=at)]
        for word in ("apple", "cherry")
        for at in (old, "main")
    ]
    assert found == [[f"{1:016x}"], [], [], [f"{1:016x}"]]
    assert "[[cherry]]" in lake.search("cherry")[0].highlight


def test_search_conditions_and_limits(lake: Lake) -> None:
    """`where` filters hits by any column, even if it excludes the best hits; `limit` cuts them."""
    assert {hit.service for hit in lake.search("pear")} == {"shop", "bank"}
    assert [hit.service for hit in lake.search("pear", where="service = 'bank'")] == ["bank"]
    assert lake.search("pear", where="attributes['note'] like '%plum'")[0].name == "other"
    assert lake.search("pear", where="duration_ns > 1e9") == []
    assert len(lake.search("*")) == 5
    assert len(lake.search("*", limit=2)) == 2
    assert lake.search("nosuchword") == []


def test_a_condition_reaches_beyond_the_first_hits(tmp_path: Path) -> None:
    """The one span that meets the condition is found, though a thousand others score higher."""
    with tracelake.init(tmp_path / "lake") as lake:
        spans = [a_span(n, 0, note="needle needle") for n in range(1_200)]
        ingest(
            lake,
            tmp_path,
            a_line(*spans),
            a_line(a_span(5_000, 0, note="needle in much hay"), service="barn"),
        )
        assert [hit.service for hit in lake.search("needle", where="service = 'barn'", limit=3)] == ["barn"]


def test_trace_by_id_by_prefix_and_not_at_all(lake: Lake) -> None:
    """A trace is found by its id or a unique prefix, in any case; otherwise the error suggests a solution."""
    trace = lake.trace((TWIN + "11").upper())
    assert (trace.trace_id, trace.summary["span_count"]) == (TWIN + "11", 1)
    assert lake.trace(f"{1:032x}").summary["end_ns"] == 30
    assert [depth for depth, _ in lake.trace(f"{1:032x}").walk()] == [0, 0]
    with pytest.raises(NotFoundError, match=r"several traces begin with .*; give more digits"):
        lake.trace(TWIN)
    assert lake.trace(TWIN + "0").trace_id == TWIN + "02"
    for wrong in ("", "abc", "no hex digits", "0" * 33, "é" * 32, "'; drop table spans --"):
        with pytest.raises(NotFoundError, match="is not a trace id"):
            lake.trace(wrong)
    with pytest.raises(NotFoundError, match="no trace 'ffffff' in this lake"):
        lake.trace("ffffff")


def full_id(lake: Lake, workspace: str) -> str:
    """Return the full id for the common prefix of all ids in a workspace."""
    asked = partial(CommitView.full_id, trace_id="0" * 29, workspace=workspace)
    told: str = lake._opened.read("main", asked)
    return told


def test_log_is_newest_first_and_links_up(lake: Lake) -> None:
    """Each commit has the previous one as its parent, and describes its transaction."""
    second, first = lake.log()
    assert (second.parents, first.parents) == ((first.id,), ())
    assert [commit.metadata["transaction"] for commit in (first, second)] == ["0", "1"]
    assert [commit.metadata["spans_new"] for commit in (first, second)] == ["3", "2"]
    assert second.metadata["spans_replaced"] == "1"
    assert lake.log(limit=1) == [second]
    assert lake.log(first.id) == [first]


@pytest.mark.parametrize(
    "call",
    [
        lambda lake: lake.table("spans").to_arrow(where="nosuch = 1"),
        lambda lake: lake.table("spans").to_arrow(where="service = "),
        lambda lake: lake.table("spans").to_arrow(where="true; select 42 as x"),
        lambda lake: lake.table("spans").to_arrow(["nosuch"]),
        lambda lake: lake.table("spans").to_arrow([]),
        lambda lake: lake.table("spans").to_arrow(order_by="x x x"),
        lambda lake: lake.table("spans").to_arrow(limit=-1),
        lambda lake: lake.table("spans").to_polars(where="name + 1 = 2"),
        lambda lake: lake.sql("selec 1"),
        lambda lake: lake.sql("select * from nosuch"),
        lambda lake: lake.sql(""),
        lambda lake: lake.sql("select cast(name as int) from spans"),
        lambda lake: lake.search('"no end'),
        lambda lake: lake.search("  "),
        lambda lake: lake.search("nofield:x"),
        lambda lake: lake.search("pear", where="nosuch = 1"),
        lambda lake: lake.search("pear", where="true; select 1"),
        lambda lake: lake.search("pear", limit=0),
        lambda lake: lake.search("pear", limit=1_001),
    ],
)
def test_what_does_not_parse_is_a_query_error(lake: Lake, call: Callable[[Lake], Any]) -> None:
    """A wrong query, condition, column or limit is a QueryError with a message, and no other error."""
    with pytest.raises(QueryError) as caught:
        call(lake)
    assert "Traceback" not in str(caught.value)
    assert len(lake.sql("select * from spans")) == 5


@pytest.mark.parametrize(
    "statement",
    [
        "create table t as select 1",
        "copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/other.db' as other",
        "drop view spans",
        "set threads = 1",
        "select 1; select 2",
        "install httpfs",
    ],
)
def test_sql_only_reads(lake: Lake, statement: str, tmp_path: Path) -> None:
    """Statements that write, or would outlive the query, are refused before anything happens."""
    with pytest.raises(QueryError, match="one SELECT"):
        lake.sql(statement.format(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_not_there(lake: Lake, tmp_path: Path) -> None:
    """Unknown tables, commits and lakes have separate error classes, which are all usage errors."""
    with pytest.raises(TableNotFoundError, match="the tables are spans, traces"):
        lake.table("nosuch")
    for ref in ("nosuch", "", "00000000", "../x", "0" * 64):
        with pytest.raises(RefNotFoundError, match=r"is not a commit reference|no branch, tag or commit"):
            lake.table("spans", at=ref)
    with pytest.raises(RefNotFoundError):
        lake.log("nosuch")
    with pytest.raises(LakeNotFoundError, match="tracelake init"):
        tracelake.open(tmp_path)
    with pytest.raises(UsageError, match="is not the URL of an object store"):
        tracelake.open("ftp://host/lake")


def test_an_empty_lake_has_empty_tables(tmp_path: Path) -> None:
    """Before the first ingest, tables have their columns and no row, and a search finds nothing."""
    with tracelake.init(tmp_path / "lake") as empty:
        assert [(info.name, info.rows, info.parts) for info in empty.tables()] == [
            ("spans", 0, 0),
            ("traces", 0, 0),
        ]
        for name in ("spans", "traces"):
            table = empty.table(name)
            assert table.to_arrow().schema.types == table.schema.types
            assert (len(table.to_polars()), table.files(), table.to_duckdb().fetchall()) == (0, [], [])
        joined = empty.sql("select count(*) as n from spans join traces using (trace_id)")
        assert joined.to_pylist() == [{"n": 0}]
        assert (empty.search("anything"), empty.log()) == ([], [])
        with pytest.raises(NotFoundError, match="no trace"):
            empty.trace("0" * 32)
        report = empty.verify()
        assert (report.ok, report.commits) == (True, 0)


def test_init_takes_empty_places_only(tmp_path: Path) -> None:
    """A lake is created in a missing or empty directory, never over existing files."""
    (tmp_path / "empty").mkdir()
    tracelake.init(tmp_path / "empty").close()
    tracelake.init(tmp_path / "a" / "b" / "c").close()
    with pytest.raises(LakeExistsError, match="a lake already exists"):
        tracelake.init(tmp_path / "empty")
    for place in (tmp_path, Path(__file__)):
        with pytest.raises(UsageError, match="not an empty directory"):
            tracelake.init(place)
    for buckets in (0, -1, 4_097):
        with pytest.raises(UsageError, match="buckets must be from 1 to 4096"):
            tracelake.init(tmp_path / "wrong", buckets=buckets)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_lake_lives_at_any_path(tmp_path: Path, name: str) -> None:
    """Quotes, spaces, patterns and percent signs in paths of lakes and files are plain characters."""
    place = tmp_path / name
    place.mkdir()
    with tracelake.init(place / "lake") as lake:
        ingest(lake, place, a_line(a_span(0, 0, end=0), a_span(1, 0, note="apple")))
        ingest(lake, place, a_line(a_span(0, 0, end=9, note="pear")))
        url = lake.url
    with tracelake.open(url) as lake:
        assert [info.rows for info in lake.tables()] == [2, 2]
        assert len(lake.search("pear")) == len(lake.search("apple")) == 1
        assert lake.verify().ok
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    assert sorted(path.name for path in place.iterdir()) == ["0.jsonl", "1.jsonl", "lake"]
