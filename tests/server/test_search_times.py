"""The time range of a search: the query that it makes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.client import Client
from tracelake.lake.trace_list import TraceFilter
from tracelake.search.query_parser import parse
from tracelake.server.traces import in_time

DAY_NS = 1_760_000_000_000_000_000  # 2025-10-09T08:53:20Z


@pytest.mark.parametrize(
    ("query", "times", "expected"),
    [
        ("refund", {}, "refund"),
        ("refund", {"last_ns": 10**9}, "refund last 1000000000ns"),
        ("a OR b", {"start_ns": DAY_NS}, "a OR b start>=2025-10-09T08:53:20.000000000Z"),
        ("", {"end_ns": DAY_NS + 1}, "start<=2025-10-09T08:53:20.000000001Z"),
        ("*", {"start_ns": 0, "last_ns": 5}, "start>=1970-01-01T00:00:00.000000000Z last 5ns"),
        ("a OR", {"last_ns": 5}, "a OR"),
        ('"open', {"last_ns": 5}, '"open'),
    ],
)
def test_the_query_of_a_time_range(query: str, times: dict[str, Any], expected: str) -> None:
    """Conditions follow the query, so that positions of errors stay; a query with an error is unchanged."""
    assert in_time(query, TraceFilter(**times)) == expected
    if expected != query:
        parse(expected)


def test_times_that_are_none(client: Client) -> None:
    """A wrong time gets a 400 on the page and in the API."""
    for path in ("/search", "/api/v1/search"):
        for times in ("last=soon", "start=yesterday", "end=2025-13-01"):
            assert client.get(f"{path}?q=refund&{times}").status_code == 400
        assert client.get(f"{path}?q=refund&last=&start=&end=").status_code == 200
    assert "did you mean start?" in client.get("/search?q=refund&stat=1h").text
