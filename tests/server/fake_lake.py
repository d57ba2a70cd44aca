"""A lake in memory for tests of pages and API without a pipeline: it stores rows and implements the lake's reads."""

# ruff: noqa: ARG002  the methods are those of a lake

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import NotFoundError, QueryError
from tracelake.hot.tier import HotTier, SpanPage
from tracelake.lake.lake import Lake
from tracelake.lake.reads import LakeReads, MatchingTraces
from tracelake.location import create_lake, open_location
from tracelake.otlp.schema import SPANS_ADDED, SPANS_TABLE
from tracelake.results import InboxInfo, IndexInfo, ReplicaInfo, Row, TableInfo, Trace
from tracelake.search.results import Hit, SearchResults
from tracelake.search.searcher import Sort
from tracelake.search.semantic_search import Mode
from tracelake.tables.builtin import TRACES, TRACES_ADDED, TRACKED
from tracelake.tables.uncommitted import FirstRows

OTLP_NUMBERS = (
    "flags",
    "dropped_attributes_count",
    "dropped_events_count",
    "dropped_links_count",
    "resource_dropped_attributes_count",
)


def span_row(trace: int = 1, span: int = 1, parent: int | None = None, **changed: Any) -> Row:
    """Return a row of table `spans`, 1 s long, starting `span` seconds after its trace."""
    start_ns = 1_760_000_000_000_000_000 + trace * 60_000_000_000 + span * 1_000_000_000
    row: Row = {
        "trace_id": f"{trace:032x}",
        "span_id": f"{span:016x}",
        "parent_span_id": None if parent is None else f"{parent:016x}",
        "workspace": "default",
        "service": "shop",
        "name": f"step {span}",
        "kind": "INTERNAL",
        "status": None,
        "status_message": None,
        "start_ns": start_ns,
        "end_ns": start_ns + 1_000_000_000,
        "duration_ns": 1_000_000_000,
        "session_id": None,
        "user_id": None,
        "model": None,
        "input_tokens": None,
        "output_tokens": None,
        **dict.fromkeys(SPANS_ADDED),
        "input": None,
        "output": None,
        "attributes": {},
        "resource": {"service.name": "shop"},
        "scope": None,
        "events": [],
        "links": [],
        "otlp": dict.fromkeys(OTLP_NUMBERS, 0),
        "transaction": 0,
    }
    return row | changed


class FakeReads(LakeReads):
    """Reads of lists from a fake lake."""

    def __init__(self, lake: FakeLake) -> None:
        super().__init__(lake._opened, lake.hot)
        self.lake = lake

    def first_rows(self, rows: FirstRows) -> pa.Table:
        """Return the first rows of a query."""
        return self.lake.select(str(rows))[0]

    def spans_of(self, trace_ids: Sequence[str], columns: Sequence[str]) -> pa.Table | None:
        """Return columns of the spans of traces."""
        (rows,) = self.lake.select(f"SELECT {', '.join(columns)} FROM spans")
        return (
            rows.filter(pc.is_in(rows["trace_id"], pa.array(trace_ids, pa.string())))
            if self.lake.looks_up
            else None
        )


class FakeLake(Lake):
    """A fake lake with these spans, and branches without tables."""

    def __init__(self, spans: list[Row]) -> None:
        """Group the spans in traces."""
        place = f"memory://{uuid.uuid4().hex}"
        create_lake(place, None, 1)
        super().__init__(open_location(place, None))
        self.hot = FakeHotTier(self)
        self.reads = FakeReads(self)
        self.looks_up = True
        """Whether the spans of traces are looked up."""
        self._traces: dict[str, Trace] = {}
        self.add(spans)

    def add(self, spans: list[Row]) -> None:
        """Add spans of new traces."""
        grouped: dict[str, list[Row]] = {}
        for span in sorted(spans, key=lambda span: int(span["start_ns"])):
            grouped.setdefault(span["trace_id"], []).append(span)
        self._traces |= {
            trace_id: Trace(trace_id, _summary(rows), tuple(rows)) for trace_id, rows in grouped.items()
        }

    def clear(self) -> None:
        """Remove all rows."""
        self._traces.clear()

    def sql(
        self, query: str, at: str = "main", *, allow_files: bool = False, uncommitted: bool = False
    ) -> pa.Table:
        """Run a query over table `traces`."""
        traces = pa.Table.from_pylist([trace.summary for trace in self._traces.values()], schema=TRACES)
        with duckdb.connect() as connection:
            connection.register("traces", traces)
            found: pa.Table = connection.sql(query).to_arrow_table()
            return found

    def select(self, *queries: str, traces: Collection[str] = ()) -> list[pa.Table]:
        """Run queries over both tables."""
        of_traces = pa.Table.from_pylist([trace.summary for trace in self._traces.values()], schema=TRACES)
        spans = [span for trace in self._traces.values() for span in trace.spans]
        maps = ("resource", "scope", "links", "otlp")
        columns = [each for each in SPANS_TABLE if each.name not in maps]
        spans = [
            span | {"attributes": list(span["attributes"].items()), "events": _events(span)} for span in spans
        ]
        with duckdb.connect() as connection:
            connection.register("traces", of_traces)
            connection.register("spans", pa.Table.from_pylist(spans, schema=pa.schema(columns)))
            for name, schema in TRACKED.items():
                connection.register(name, pa.Table.from_batches([], schema))
            return [connection.sql(query).to_arrow_table() for query in queries]

    def traces_matching(self, query: str, limit: int) -> MatchingTraces:
        """Return the traces that a search finds."""
        hits = self.search(query, limit=limit)
        return MatchingTraces(tuple(dict.fromkeys(hit.trace_id for hit in hits)), False, None)

    def search(
        self,
        query: str = "*",
        where: str | None = None,
        at: str = "main",
        limit: int = 20,
        service: str | None = None,
        *,
        mode: Mode | None = None,
        vector: Sequence[float] | None = None,
        sort: Sort = "score",
        facets: Sequence[str] = (),
        page: str | None = None,
        now: datetime | None = None,
    ) -> SearchResults:
        """Return the spans whose output contains the query, of one service or of all."""
        if '"' in query:
            raise QueryError("a quotation mark is open; close it", query.index('"') + 1)
        hits = [
            Hit(
                span["trace_id"],
                span["span_id"],
                1.5,
                span["service"],
                span["name"],
                span["start_ns"],
                marked,
                type=span.get("type"),
            )
            for trace in self._traces.values()
            for span in trace.spans
            if (marked := (span["output"] or "").replace(query, f"[[{query}]]")) != (span["output"] or "")
            and service in (None, span["service"])
        ]
        return SearchResults(hits[:limit], len(hits))

    def completions(self, typed: str, at: str = "main") -> list[str]:
        """Return one completion."""
        return [f"{typed}shop"]

    def trace(self, trace_id: str, at: str = "main", *, tiers: bool = False) -> Trace:
        """Return a trace by its full id."""
        if trace_id not in self._traces:
            raise NotFoundError(f"no trace {trace_id}")
        return self._traces[trace_id]

    def tables(self, at: str = "main") -> list[TableInfo]:
        """Return totals of both tables."""
        spans = sum(len(trace.spans) for trace in self._traces.values())
        return [TableInfo("spans", spans, 1, 100, 7), TableInfo("traces", len(self._traces), 1, 10, 7)]

    def index(self, at: str = "main") -> IndexInfo | None:
        """Return an index of four parts."""
        return IndexInfo("search/spans/manifests/spans-7.json", 7, 1_200, 4, 10_000)

    def inbox(self) -> InboxInfo:
        """Return an inbox with one segment."""
        return InboxInfo(segments=1, bytes=1_000, oldest_s=2.5)

    def replicas(self) -> list[ReplicaInfo]:
        """Return no replicas."""
        return []


class FakeHotTier(HotTier):
    """Hot rows of traces for OTLP."""

    def __init__(self, lake: FakeLake) -> None:
        """Set the lake to read."""
        super().__init__(lake._opened)
        self._lake = lake

    def outline(self, trace_id: str, workspace: str | None = None) -> Trace:
        """Return a trace."""
        return self._lake.trace(trace_id)

    def page(
        self,
        trace_id: str,
        limit: int,
        page: str | None = None,
        *,
        tiers: bool = False,
        workspace: str | None = None,
    ) -> SpanPage:
        """Return all spans of a trace."""
        trace = self._lake.trace(trace_id)
        return SpanPage(trace_id, trace.summary, self.spans_of(trace_id), None, None)

    def span_rows(self, trace_id: str, span_id: str, workspace: str | None = None) -> pa.Table:
        """Return the spans of a trace with an id."""
        rows = self.spans_of(trace_id)
        return rows.filter(pc.equal(rows["span_id"], pa.scalar(span_id)))

    def spans_of(self, trace_id: str, workspace: str | None = None) -> pa.Table:
        """Return the rows of a trace, with maps in Arrow's form."""
        maps = ("attributes", "resource")
        spans = self._lake.trace(trace_id).spans
        rows = [span | {name: list(span[name].items()) for name in maps} for span in spans]
        return pa.Table.from_pylist(rows, schema=SPANS_TABLE)


def _events(span: Row) -> list[Row]:
    return [event | {"attributes": list((event["attributes"] or {}).items())} for event in span["events"]]


def _summary(spans: list[Row]) -> Row:
    root = next((span for span in spans if span["parent_span_id"] is None), spans[0])
    copied = ("trace_id", "workspace", "name", "service", "session_id", "user_id", "transaction")
    start_ns, end_ns = min(span["start_ns"] for span in spans), max(span["end_ns"] for span in spans)
    return {name: root[name] for name in copied} | {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "duration_ns": max(end_ns - start_ns, 0),
        "span_count": len(spans),
        "error_count": sum(span["status"] == "ERROR" for span in spans),
        "input_tokens": _total(spans, "input_tokens"),
        "output_tokens": _total(spans, "output_tokens"),
        **{name: _total(spans, name) for name in TRACES_ADDED},
    }


def _total(spans: list[Row], column: str) -> int | None:
    numbers = [span[column] for span in spans if span[column] is not None]
    return sum(numbers) if numbers else None
