"""Memory of conditions and SQL: no expression allocates more than the limit, and the error names the setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.spans import a_line, a_span
from tracelake import BackPressureError, Lake, LimitError, QueryError, limits
from tracelake.limits import MIB
from tracelake.tables import query_memory
from tracelake.tables.predicates import produces_large_values
from tracelake.tables.query_memory import QUERY_PROCESS_EXTRA_BYTES, cancellable
from tracelake.tasks.runners import InProcess

LIMIT_BYTES = 128 * MIB
OWN_PEAK_MAX_BYTES = 600 * MIB
"""A process with a lake takes 250 MiB, and a database its limit."""

VALUES = {
    "range": "len(range(100000000 + length(name))) > 0",
    "generate_series": "len(generate_series(0, 2000000000)) > 0",
    "repeat": "length(repeat(name, 300000000)) > 0",
    "repeat a list": "len(repeat([name], 300000000)) > 0",
    "lpad": "length(lpad(name, 2000000000, 'b')) > 0",
    "list_transform": "len(list_transform(range(100000000), lambda x: 'texttexttexttext')) > 0",
    "list_resize": "len(list_resize([1], 1000000000)) > 0",
    "list_concat": "len(list_concat(range(100000000), range(100000000))) > 0",
    "format": "length(format('{:2000000000}', length(name))) > 0",
    "replace": "length(replace(repeat('a', 100000000), 'a', repeat('b', 100))) > 0",
    "array": "cast(null as integer[100000][100000]) is null and false",
    "map": "cardinality(map_from_entries(list_zip(range(100000000), range(100000000)))) > 0",
}
QUERIES = {
    "list": "select len(list(a.range)) from range(100000) a, range(100000) b",
    "string_agg": "select length(string_agg(repeat('x', 1000), ',')) from range(100000000)",
    "rows": "select range, repeat('x', 1000) from range(100000000)",
    "doubled": "select length(e) from (select d||d||d||d||d||d||d||d e from (select c||c||c||c||c||c||c||c d from ("
    "select b||b||b||b||b||b||b||b c from (select repeat(name, 100000) b from spans))))",
    "median": "select median(range) from range(1000000000)",
    "cross": "select a.attributes, b.events from spans a, spans b, range(100000000)",
}
PLAIN = [
    "service = 'a' and duration_ns > 1e6",
    "attributes['k'] is null and lower(name) like '%x%' and name in ('a', 'b')",
    "name ~ 'a.*' or start_ns between 1 and 2 and coalesce(input, '') <> ''",
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake of one span."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "in.jsonl").write_bytes(a_line(a_span(1, 0, start=1_000, end=2_000)))
    with tracelake.init(folder / "lake") as lake:
        lake.ingest(folder / "in.jsonl", runner=InProcess())
        yield lake


def run(lake: Lake, kind: str, query: str, *, unlimited: bool = False) -> dict[str, Any]:
    """Run a query in a process of its own; return its error, its rows and peaks of memory."""
    program = Path(__file__).with_name("query_memory_run.py")
    command = [sys.executable, str(program), lake.url, kind, query, *["unlimited"] * unlimited]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        query_memory.SETTING: str(LIMIT_BYTES),
    }
    done = subprocess.run(command, capture_output=True, env=environment, timeout=HANG_S, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check_memory(answer: dict[str, Any]) -> None:
    """Check that a query failed with an error that names the setting, and neither process took more than it may."""
    own, of_workers = answer["peaks"]
    assert own < OWN_PEAK_MAX_BYTES, f"{own:,} bytes"
    assert of_workers < LIMIT_BYTES + QUERY_PROCESS_EXTRA_BYTES, f"{of_workers:,} bytes"
    assert answer["rows"] is not None or query_memory.SETTING in answer["error"], answer


@pytest.mark.parametrize("value", VALUES)
def test_a_condition_allocates_no_more_than_the_limit(lake: Lake, value: str) -> None:
    """A function that produces large values ends with an error, or within the limit."""
    check_memory(run(lake, "where", VALUES[value]))


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_allocates_no_more_than_the_limit(lake: Lake, name: str) -> None:
    """Aggregates, joins, results and repeated concatenation are limited, too."""
    answer = run(lake, "sql", QUERIES[name])
    check_memory(answer)
    assert answer["error"] is not None


def test_a_condition_of_a_search_allocates_no_more_than_the_limit(lake: Lake) -> None:
    """The condition of a search is limited as the condition of a table is."""
    answer = run(lake, "search", VALUES["repeat"])
    check_memory(answer)
    assert answer["error"] is not None


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_may_be_large_is_recognized(value: str) -> None:
    """Every condition of these goes to a limited process."""
    assert produces_large_values(condition=VALUES[value])
    assert produces_large_values(order=VALUES[value])


@pytest.mark.parametrize("condition", PLAIN)
def test_a_plain_condition_runs_here(condition: str) -> None:
    """Conditions that compare columns need no process."""
    assert not produces_large_values(condition=condition)
    assert not produces_large_values(
        query=f"select service, count(*) from spans where {condition} group by all"
    )


@pytest.mark.parametrize(
    "query",
    [
        "select 1 from spans a, spans b",
        "select * from (select * from spans)",
        "with a as (select 1) select * from a",
        "select * from range(3)",
        "select name from spans union all select name from spans",
        "from spans select count(*) group by cube(name, service)",
        "values (1)",
    ],
)
def test_a_query_that_multiplies_runs_in_a_process(query: str) -> None:
    """Joins, queries in queries and table functions may multiply values."""
    assert produces_large_values(query=query)


def test_a_limited_process_gives_the_same_rows(lake: Lake) -> None:
    """Rows, types and errors do not depend on where a query runs."""
    here = lake.sql("select * from spans")
    there = lake.sql("select * from (select * from spans)")
    assert there.equals(here)
    with pytest.raises(QueryError, match="nope"):
        lake.sql("select nope from (select * from spans)")
    with pytest.raises(QueryError, match="Could not convert string"):
        lake.sql("select name::int from (select * from spans)")
    with pytest.raises(QueryError, match="allow_files"):
        lake.sql("select * from read_csv('/etc/passwd'), spans")
    assert lake.table("spans").to_arrow(["name"], "repeat(name, 1) = name").num_rows == 1
    assert lake.table("spans").to_arrow(["name"], order_by="repeat(name, 2)").num_rows == 1


def test_a_cancelled_request_ends_the_process(lake: Lake) -> None:
    """A query in a limited process stops when its request is cancelled."""
    with cancellable() as cancellation:
        cancellation.cancel("the client is gone")
        with pytest.raises(BackPressureError, match="gone"):
            lake.sql("select count(*) from range(100000000000) a, spans")


def test_a_setting_below_the_least_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that no query can work with is an error that names the setting."""
    monkeypatch.setenv(query_memory.SETTING, "1000")
    with pytest.raises(tracelake.UsageError, match="query_memory_bytes"):
        query_memory.memory_bytes()


def test_rows_that_take_more_than_the_limit_are_an_error(lake: Lake) -> None:
    """A result is limited, also if no value in it is large."""
    with (
        mock.patch.object(query_memory, "memory_bytes", return_value=10),
        mock.patch.object(limits, "QUERY_MEMORY_MIN_BYTES", 10),
        pytest.raises(LimitError, match=query_memory.SETTING),
    ):
        lake.sql("select * from spans")
