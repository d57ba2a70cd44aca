"""A user's text cannot end or extend the query that contains it, or read anything outside the lake."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake, QueryError
from tracelake.tables.predicates import condition, order, parsed, words
from tracelake.tables.scan import connection
from tracelake.tables.table import Table
from tracelake.tasks.runners import InProcess

CONDITIONS = [
    "true -- x",
    "true /* x */",
    "name = 'a -- b; select'",
    "name in ('a', 'b') and not (start_ns > 3)",
    "list_filter([1], lambda y: y > 1) = []",
    "attributes['x'] is null",
    """name = '"class":"SUBQUERY"'""",
]
NO_CONDITIONS = [
    "", " ", "-- x", "true; select 1", "true) order by (name", "true) limit (1", "true) union all (select 1", "/* x",
    "name in (select name from spans)", "exists (from read_csv('/etc/passwd'))", "1 = (select 1)", "(from spans) = 1",
    "case when true then (select 1) end = 1", "name = any(select 'a')", "bad ((", "'", "\ud800", "(" * 2_000,
    "true) group by (name", "true) qualify (true",
]  # fmt: skip
NO_ORDERS = [
    "", "name limit 1", "name; select 1", "name offset 1", "(select 1)", "name) union (select 1", "name -- \n limit 1",
    "1 fetch first 1 rows only", "name using sample 1",
]  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake with six traces."""
    folder = tmp_path_factory.mktemp("conditions")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        (folder / "spans.jsonl").write_bytes(a_line(*(a_span(trace, 0, note="apple") for trace in range(6))))
        lake.ingest(folder / "spans.jsonl", runner=InProcess())
        yield lake


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_takes_nothing_of_the_query_away(lake: Lake, text: str) -> None:
    """An order and a limit hold however the condition ends, in every way to read."""
    assert condition(text)
    spans = lake.table("spans")
    for where in (text, f"{text}\n"):
        found = spans.to_arrow(["trace_id"], where, "trace_id desc", 2)["trace_id"].to_pylist()
        assert found in ([], [f"{6:032x}", f"{5:032x}"])
        assert len(lake.search("apple", where=where, limit=3)) <= 3
        for split in spans.splits(where):
            list(split.batches(["trace_id"], where))


@pytest.mark.parametrize("text", NO_CONDITIONS)
def test_what_is_no_condition_is_refused(lake: Lake, text: str) -> None:
    """A condition that ends or extends the query, or has another query, is refused before anything is read."""
    with pytest.raises(QueryError, match="is no condition"):
        condition(text)
    if text:
        with pytest.raises(QueryError, match="is no condition"):
            lake.table("spans").to_arrow(["trace_id"], text)
        with pytest.raises(QueryError, match="is no condition"):
            lake.search("apple", where=text)


@pytest.mark.parametrize("text", NO_ORDERS)
def test_what_is_no_order_is_refused(lake: Lake, text: str) -> None:
    """An invalid order is refused: it cannot remove a limit or add one."""
    with pytest.raises(QueryError, match="is no order"):
        order(text)
    if text:
        with pytest.raises(QueryError, match="is no order"):
            lake.table("spans").to_arrow(["trace_id"], order_by=text)


def test_an_order_may_end_in_a_comment(lake: Lake) -> None:
    """A limit holds after an order that ends in a comment."""
    assert (
        len(lake.table("spans").to_arrow(["trace_id"], order_by="start_ns desc, trace_id -- x", limit=2)) == 2
    )
    assert order("all")
    assert parsed("true")["class"] == "CONSTANT"


@pytest.mark.parametrize(
    "query",
    [
        "select * from '{file}'",
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from glob('{folder}/*')",
        "select count(*) from spans where name in (select a from read_csv('{file}'))",
        "with spans as (select * from read_csv('{file}')) select * from spans",
        "from (select * from read_csv('{file}'))",
        "select * from read_text('{lake}/lake.json')",
        "select * from lake",
        "select * from query",
        "select * from 'https://127.0.0.1:1/x.parquet'",
    ],
)
def test_a_query_reads_no_files(lake: Lake, tmp_path: Path, query: str) -> None:
    """Files, variables of the program and other sources are refused; with `allow_files`, files are readable."""
    (tmp_path / "some.csv").write_text("a,b\nx,2\n")
    text = query.format(file=tmp_path / "some.csv", folder=tmp_path, lake=lake.url.removeprefix("file://"))
    with pytest.raises(QueryError, match=r"DuckDB refuses the query|one SELECT"):
        lake.sql(text)
    if "some.csv" in text:
        assert lake.sql(text, allow_files=True).num_rows == 1


@pytest.mark.parametrize(
    "query",
    [
        "set threads = 1",
        "install httpfs",
        "load httpfs",
        "attach 'x.db'",
        "pragma threads = 1",
        "copy spans to 'x'",
    ],
)
def test_a_query_changes_nothing(lake: Lake, query: str) -> None:
    """Statements other than SELECT are refused, with and without files."""
    for allow_files in (False, True):
        with pytest.raises(QueryError):
            lake.sql(query, allow_files=allow_files)


@pytest.mark.parametrize(
    "query",
    [
        "with w as ({copy}) from w, spans",
        "with recursive w as ({copy}) from w, spans",
        "with a as (select 1), w as materialized ({copy}) select * from spans, w where exists (from a)",
        "select * from spans where 1 = (with w as ({copy}) from w)",
        "with w as (insert into spans default values returning *) from w",
        "with w as (update spans set name = 'x' returning *) from w",
        "with w as (delete from spans returning *) from w",
        "from spans, json_execute_serialized_sql(json_serialize_sql($$with w as ({copy}) from w$$))",
        "from spans, JSON_Execute_Serialized_SQL(json_serialize_sql($$with w as ({copy}) from w$$))",
        "from spans, query('from json_execute_serialized_sql(json_serialize_sql($$with w as ({copy}) from w$$))')",
        "from spans, system.main.query('select 1')",
    ],
)
def test_a_query_writes_no_file(lake: Lake, tmp_path: Path, query: str) -> None:
    """A `with` that writes is refused, so neither a part of the lake nor a new file is written."""
    part = Path(lake.table("spans").files()[0])
    for file in (part, tmp_path / "new"):
        copy = (
            f"copy (select 1 as a) to '{file}' (format parquet, use_tmp_file false, overwrite_or_ignore true)"
        )
        before = part.read_bytes()
        for allow_files in (False, True):
            with pytest.raises(QueryError, match="refuses the query"):
                lake.sql(query.format(copy=copy), allow_files=allow_files)
        assert part.read_bytes() == before
        assert not (tmp_path / "new").exists()


def test_a_query_that_reads_may_be_of_any_kind(lake: Lake) -> None:
    """Any statement that only reads is accepted: DuckDB's SELECTs, and words that merely look like others."""
    for query in (
        "with recursive n(a) as (select 1 union all select a + 1 from n where a < 3) select a from n",
        "select 'COPY_QUERY_NODE', '\"type\":\"COPY_QUERY_NODE\"' as query from spans",
        "from spans union select * from spans",
        "describe spans",
        "summarize select name from spans",
        "values (1)",
        "select " + "1 + " * 400 + "1 as a",
        "with n as materialized (select 1 as query) select query from n",
    ):
        assert len(lake.sql(query)) >= 1, query


def test_a_query_opens_the_tables_that_it_reads(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tables that the query reads are checked and opened, not table names within its text."""
    opened: list[str] = []
    check = Table.check

    def noted(table: Table) -> None:
        opened.append(table.name)
        check(table)

    monkeypatch.setattr(Table, "check", noted)
    assert lake.sql("select count(*) as n from traces where service = 'spans' -- spans").to_pylist() == [
        {"n": 0}
    ]
    assert opened == ["traces"]
    assert lake.sql('select count(*) as n from "SPANS" join Traces using (trace_id)')["n"].to_pylist() == [6]
    assert opened[1:] == ["spans", "traces"]
    assert lake.sql("select 'spans' as text")["text"].to_pylist() == ["spans"]
    assert words('from spans, b."C" -- traces') >= {"spans", "c"}
    assert "traces" not in words("from spans, 'traces', $$traces$$ /* traces */")


def test_a_condition_loads_no_extension(lake: Lake) -> None:
    """A function of a DuckDB extension is unknown: no extension is fetched, installed or loaded."""
    for text in ("stem(name, 'porter') = 'x'", "name = '1.2.3.4'::inet"):
        for read in (lake.table("spans").to_arrow, partial(lake.search, "apple")):
            with pytest.raises(QueryError, match="exists in the"):
                read(where=text)
    with pytest.raises(QueryError, match="exists in the"):
        lake.table("spans").to_arrow(order_by="stem(name, 'porter')")
    with connection() as db:
        on = "select count(*) from duckdb_settings() where name like 'auto%_known_extensions' and value = 'true'"
        assert db.sql(on).fetchall() == [(0,)]


def test_a_query_with_files_leaves_nothing_behind(lake: Lake) -> None:
    """A query with files uses a separate database, so its settings do not affect other queries."""
    assert lake.sql("from enable_logging()", allow_files=True).num_rows >= 0
    with connection() as db:
        assert db.sql("select value from duckdb_settings() where name = 'enable_logging'").fetchall() in (
            [("0",)],
            [("false",)],
        )
