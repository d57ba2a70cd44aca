"""Single traces and searches in the JSON API `/api/v1`, and the waterfall of a trace.

Each page has a JSON twin. All times in JSON are integers: nanoseconds since 1970 UTC. Reads use the newest commit of
`main`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from fastapi import APIRouter, Depends, Query, Response

from tracelake import limits
from tracelake._errors import NotFoundError, QueryError, StorageError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import TraceFilter, cut
from tracelake.limits import QUERY_MAX_CHARS, SEARCH_HITS_DEFAULT, TRACE_API_SPANS_MAX
from tracelake.otlp.encode import encode, resource_spans
from tracelake.results import Row, Trace
from tracelake.search.query_parser import add_clause
from tracelake.search.results import SearchResults
from tracelake.search.searcher import Sort
from tracelake.search.semantic_search import Mode
from tracelake.server import routes
from tracelake.server.http_policy import RequestLake
from tracelake.server.message_view import span_json
from tracelake.server.render import document, duration, in_pieces, span_query
from tracelake.tables.builtin import IN_ORDER
from tracelake.tables.table import ReadGate, to_rows

_BY_MEANING: Final = ReadGate(
    limits.SEMANTIC_SEARCHES_AT_ONCE_MAX,
    "other searches by meaning wait for the embedding function; search again later, or by words",
)
_HIT_TEXTS: Final = ("name", "service", "model", "status", "session_id", "user_id", "workspace")


def search(
    lake: Lake,
    query: str,
    *,
    mode: Mode | None = None,
    vector: Sequence[float] | None = None,
    time_range: TraceFilter | None = None,
    **options: Any,
) -> SearchResults:
    """Return one page of `Lake.search`, which describes the options, with short texts. Spans start in the time range of
    `time_range`. Raises BackPressureError if too many searches with an embedding function run."""
    query = query if time_range is None else in_time(query, time_range)
    with _turn(mode, vector):
        results = lake.search(query, mode=mode, vector=vector, **options)
    results[:] = [replace(hit, **{name: cut(getattr(hit, name)) for name in _HIT_TEXTS}) for hit in results]
    results.facets = {
        name: replace(facet, values=tuple(replace(value, value=cut(value.value)) for value in facet.values))
        for name, facet in results.facets.items()
    }
    return results


def _time_range(
    last: routes.Length = None, start: routes.Moment = None, end: routes.Moment = None
) -> TraceFilter:
    return TraceFilter.parse(last=last, start=start, end=end, tag=(), status=None)


TimeRange: TypeAlias = Annotated[TraceFilter, Depends(_time_range)]
"""Time range of the query parameters `last`, `start` and `end`."""


def in_time(query: str, wanted: TraceFilter) -> str:
    """Return a query with the time range of a filter. Spans that start in the range match."""
    ranges = (("start>=", wanted.start_ns), ("start<=", wanted.end_ns))
    clauses = [
        f"{operator}{np.datetime64(time_ns, 'ns')}Z" for operator, time_ns in ranges if time_ns is not None
    ]
    if wanted.last_ns is not None:
        clauses.append(f"last {wanted.last_ns}ns")
    return add_clause(query, clauses)


@contextmanager
def _turn(mode: Mode | None, vector: Sequence[float] | None) -> Iterator[None]:
    """Limit concurrent searches that call the user's embedding function, because its run time is unbounded."""
    if mode in (None, "text") or vector is not None:
        yield
        return
    _BY_MEANING.begin()
    try:
        yield
    finally:
        _BY_MEANING.end()


def find_span(
    lake: Lake, trace_id: str, span_id: str, workspace: str | None = None, kind: str | None = None
) -> Row:
    """Return one span of a trace; `workspace` and `kind` choose one of several spans with the same id.

    Raises NotFoundError if there is no such span, and UsageError if several spans match.
    """
    spans = to_rows(lake.hot.span_rows(trace_id, span_id))
    its = [span for span in spans if workspace in (None, span["workspace"]) and kind in (None, span["kind"])]
    if not its:
        raise NotFoundError(f"trace {trace_id} has no span {span_id}")
    workspaces = {span["workspace"] for span in its}
    if len(its) > 1 and len(workspaces) < len(its):
        kinds = ", ".join(repr(each) for each in sorted({span["kind"] for span in its}))
        raise UsageError(
            f"a client and a server span of this trace share the id {span_id}; add kind=, one of {kinds}"
        )
    if len(its) > 1:
        names = ", ".join(repr(span["workspace"][: limits.NAME_QUOTED_MAX_CHARS]) for span in its[:10])
        raise UsageError(
            f"several workspaces have span {span_id} of this trace; add workspace=, one of {names}"
        )
    return its[0]


def trace_as_otlp(lake: Lake, trace_id: str) -> Iterator[bytes]:
    """Return the pieces of a trace as OTLP/JSON, spans by start time. Raises NotFoundError if no trace, or more than
    one, matches the id.

    A large trace repeats a resource in each piece that has spans of it.
    """
    rows = lake.hot.spans_of(trace_id).sort_by(IN_ORDER)
    return document({}, "resourceSpans", rows, lambda some: resource_spans(encode(some)))


def experiment_of(lake: Lake, trace_id: str) -> str | None:
    """Return the name of a trace's experiment, if it can be read."""
    try:
        return lake.annotations.experiment_of(trace_id) if lake.hot.is_there else None
    except StorageError:
        return None


def read_page(lake: Lake, trace_id: str, limit: int, page: str | None, *, tiers: bool) -> Iterator[bytes]:
    """Return the pieces of a page of a trace as JSON. Raises NotFoundError if no trace matches the id, and UsageError
    for an invalid page token."""
    part = lake.hot.page(trace_id, limit, page, tiers=tiers)
    experiment = experiment_of(lake, part.trace_id)
    head = {"trace_id": part.trace_id, "experiment": experiment, "summary": part.summary}
    return document(head, "spans", part.rows, part.spans_of, {"next_page": part.next_page})


def numbers_of(vector: str) -> list[float]:
    """Parse the text of a vector. Raises QueryError if it is no list of numbers."""
    try:
        return [float(number) for number in vector.split(",")]
    except ValueError as error:
        raise QueryError(
            "the vector contains a non-numeric value; give numbers with commas between, such as 0.1,-0.25."
        ) from error


api = APIRouter(prefix="/api/v1", route_class=routes.JsonRoute)
"""JSON API for single traces and for searches."""


@api.get("/traces/{trace_id}")
def trace(
    lake: RequestLake,
    trace_id: str,
    format: Annotated[str, Query(pattern="^(rows|otlp)$")] = "rows",
    tiers: Annotated[bool, Query(description="whether each span says its tier, hot or lake")] = False,
    limit: Annotated[int, Query(ge=1, le=TRACE_API_SPANS_MAX)] = TRACE_API_SPANS_MAX,
    page: Annotated[routes.Text, Query(description="next_page of the previous response")] = None,
) -> Response:
    """One trace with its spans by pages; format=otlp for OTLP/JSON."""
    if format == "otlp":
        return in_pieces(trace_as_otlp(lake, trace_id))
    return in_pieces(read_page(lake, trace_id, limit, page, tiers=tiers))


@api.get("/hot-tier")
def hot_tier(lake: RequestLake) -> Response:
    """Report whether the lake has a tracking store, and the pending rows of its outbox."""
    return routes.json_response(lake.hot.describe())


@api.get("/traces/{trace_id}/spans/{span_id}")
def span(
    lake: RequestLake, trace_id: str, span_id: str, workspace: routes.Text = None, kind: routes.Text = None
) -> Response:
    """One span."""
    return routes.json_response(span_json(find_span(lake, trace_id, span_id, workspace, kind)))


@api.get("/search")
def search_spans(
    lake: RequestLake,
    q: Annotated[str, Query(min_length=1)],
    time_range: TimeRange,
    service: routes.Text = None,
    limit: routes.Hits = SEARCH_HITS_DEFAULT,
    sort: Sort = "score",
    facet: routes.Facets = (),
    page: routes.Text = None,
    mode: Mode | None = None,
    vector: routes.VectorText = None,
) -> Response:
    """Search spans by words or meaning, with total, facets and pages."""
    results = search(
        lake,
        q,
        service=service or None,
        limit=limit,
        sort=sort,
        facets=facet,
        page=page,
        mode=mode,
        vector=None if vector is None else numbers_of(vector),
        time_range=time_range,
    )
    return routes.json_response({"query": q, **results.to_dict()})


@api.get("/search/completions")
def complete(lake: RequestLake, q: Annotated[str, Query(max_length=QUERY_MAX_CHARS)]) -> Response:
    """Suggest completions of a query."""
    return routes.json_response({"query": q, "completions": lake.completions(q)})


SCALE = 1_000
"""Length of the waterfall's axis."""
COLOURS = 8
DEPTH_SHOWN_MAX = 24
"""Largest depth that still adds indentation."""
TICKS = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One waterfall row: a span, its depth, and the position and length of its bar on the axis."""

    span: Row
    depth: int
    parent: bool
    x: float
    width: float
    colour: int
    workspace: str | None = None
    """Workspace of the span, if several workspaces of the trace have a span with its id."""
    kind: str | None = None
    """Of the span, if a client and a server span of one workspace share its id."""

    @property
    def indent(self) -> int:
        """Return the number of indentation steps."""
        return min(self.depth, DEPTH_SHOWN_MAX)

    @property
    def address(self) -> str:
        """Return the query string that selects this span on the page."""
        return span_query(self.span["span_id"], self.workspace, self.kind)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Waterfall of a trace: rows with parents first, a color per service, and the axis labels from left to right."""

    bars: list[Bar]
    services: dict[str, int]
    ticks: list[str]
    length_ns: int
    """Time from the first start to the last end."""


def lay_out(trace: Trace) -> Waterfall:
    """Compute the waterfall of a trace. A span that still runs extends to the end of the axis."""
    start_ns = min((span["start_ns"] for span in trace.spans), default=0)
    end_ns = max((max(span["start_ns"], span["end_ns"]) for span in trace.spans), default=0)
    length_ns = max(end_ns - start_ns, 1)
    rows = list(trace.walk())
    parents = [below > depth for (depth, _), (below, _) in pairwise(rows)] + [False]
    services: dict[str, int] = {}
    times = Counter(span["span_id"] for span in trace.spans)
    sides = Counter((span["span_id"], span.get("workspace")) for span in trace.spans)
    bars = []
    for (depth, span), parent in zip(rows, parents, strict=False):
        colour = services.setdefault(span["service"] or "", len(services) % COLOURS)
        x = (span["start_ns"] - start_ns) * SCALE / length_ns
        stop_ns = span["end_ns"] or end_ns
        width = (max(stop_ns, span["start_ns"]) - span["start_ns"]) * SCALE / length_ns
        here = sides[span["span_id"], span.get("workspace")]
        workspace = span.get("workspace") if times[span["span_id"]] > here else None
        kind = span.get("kind") if here > 1 else None
        bars.append(Bar(span, depth, parent, round(x, 2), round(width, 2), colour, workspace, kind))
    ticks = ["0", *(duration(length_ns * tick // TICKS) for tick in range(1, TICKS + 1))]
    return Waterfall(bars, {name: colour for name, colour in services.items() if name}, ticks, length_ns)
