"""Traces by search query: committed and uncommitted spans, time ranges, and the limit of matching spans."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

import tracelake
from tests.datasets.conversations import ingest
from tests.lake.test_usage import hot
from tests.pipeline.spans import a_span
from tracelake import limits
from tracelake._errors import QueryError
from tracelake.lake.trace_list import TraceFilter, list_traces
from tracelake.tracking.store import TrackingStore


def listed(lake: tracelake.Lake, query: str, **filters: int) -> list[str]:
    """Return the names of the listed traces."""
    rows = list_traces(lake, TraceFilter(query=query, **filters), with_activity=True).traces  # type: ignore[arg-type]
    return sorted(row["name"] for row in rows)


def test_any_span_of_either_tier_matches(lake: tracelake.Lake, store: TrackingStore, tmp_path: Path) -> None:
    """A query finds a trace by a span that is not its root, whether it is committed or not."""
    ingest(
        lake,
        tmp_path,
        a_span(1, 0, name="first"),
        a_span(1, 1, parentSpanId=f"{1:016x}", name="refund order"),
    )
    store.write(
        [hot(a_span(2, 0, name="second")), hot(a_span(2, 1, parentSpanId=f"{1:016x}", name="refund later"))]
    )
    late = {"startTimeUnixNano": str(4 * 10**18), "endTimeUnixNano": str(4 * 10**18 + 1)}
    store.write([hot({**a_span(3, 0, name="third"), **late})])
    assert listed(lake, "refund") == ["first", "second"]
    assert listed(lake, "refund -later") == ["first"]
    assert listed(lake, "*") == ["first", "second", "third"]
    start_ns = min(row["start_ns"] for row in list_traces(lake, TraceFilter(query="third")).traces)
    assert listed(lake, "refund OR third", start_ns=start_ns) == ["third"]


def test_a_wrong_query_has_its_own_position(lake: tracelake.Lake) -> None:
    """The position of a syntax error is that of the query as the user wrote it."""
    with pytest.raises(QueryError) as wrong:
        listed(lake, "refund (", start_ns=1)
    with pytest.raises(QueryError) as plain:
        lake.search("refund (")
    assert wrong.value.character == plain.value.character


def test_a_cut_list_says_so(lake: tracelake.Lake, tmp_path: Path) -> None:
    """If more spans match than are read, the list has the newest and a note."""
    ingest(lake, tmp_path, *(a_span(trace, 0, name="refund") for trace in range(5)))
    with mock.patch.object(limits, "TRACE_QUERY_SPANS_MAX", 2):
        page = list_traces(lake, TraceFilter(query="refund"))
    assert len(page.traces) == 2
    assert "newest 2 matching spans" in str(page.not_listed)
    assert list_traces(lake, TraceFilter(query="refund")).not_listed is None
