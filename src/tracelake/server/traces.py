"""Traces on pages and in the JSON API `/api/v1`: search, the templates, and the waterfall of a trace.

Each page has a JSON twin. All times in JSON are integers: nanoseconds since 1970 UTC. Reads use the newest commit of
`main`. An empty query parameter means no filter, because forms send empty fields as empty text. Templates escape all
text that comes from traces.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BeforeValidator, Field

from tracelake import limits
from tracelake._errors import NotFoundError, QueryError, UsageError
from tracelake.lake.lake import Lake
from tracelake.limits import QUERY_MAX_CHARS, SEARCH_HITS_DEFAULT, TRACE_API_SPANS_MAX
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.otlp.encode import encode, resource_spans
from tracelake.results import Row, Trace
from tracelake.search.results import SearchResults
from tracelake.search.searcher import Sort
from tracelake.search.semantic_search import Mode
from tracelake.server import render
from tracelake.server.http_policy import RequestLake, may_open
from tracelake.server.key_ring import ACTOR, KeyHolder
from tracelake.server.message_view import span_json
from tracelake.server.render import document, duration, in_pieces, span_query
from tracelake.tables.builtin import IN_ORDER
from tracelake.tables.table import ReadGate, to_rows

_BY_MEANING: Final = ReadGate(
    limits.SEMANTIC_SEARCHES_AT_ONCE_MAX,
    "other searches by meaning wait for the embedding function; search again later, or by words",
)
_HIT_TEXTS: Final = ("name", "service", "model", "status", "session_id", "user_id", "workspace")


def cut(value: Any) -> Any:
    """Return a value for a list: of a long text its beginning, with an ellipsis."""
    if isinstance(value, str) and len(value) > limits.LIST_TEXT_MAX_CHARS:
        return value[: limits.LIST_TEXT_MAX_CHARS - 1] + "…"
    return value


def search(
    lake: Lake,
    query: str,
    *,
    mode: Mode | None = None,
    vector: Sequence[float] | None = None,
    **options: Any,
) -> SearchResults:
    """Return one page of `Lake.search`, which describes the options, with short texts. Raises BackPressureError."""
    with _turn(mode, vector):
        results = lake.search(query, mode=mode, vector=vector, **options)
    results[:] = [replace(hit, **{name: cut(getattr(hit, name)) for name in _HIT_TEXTS}) for hit in results]
    results.facets = {
        name: replace(facet, values=tuple(replace(value, value=cut(value.value)) for value in facet.values))
        for name, facet in results.facets.items()
    }
    return results


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

    Raises NotFoundError, and UsageError if several spans are left.
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
    """Return the pieces of a trace as OTLP/JSON, spans by start time. Raises NotFoundError.

    A large trace repeats a resource in each piece that has spans of it.
    """
    rows = lake.hot.spans_of(trace_id).sort_by(IN_ORDER)
    return document({}, "resourceSpans", rows, lambda some: resource_spans(encode(some)))


def read_page(lake: Lake, trace_id: str, limit: int, page: str | None, *, tiers: bool) -> Iterator[bytes]:
    """Return the pieces of a page of a trace as JSON. Raises NotFoundError, UsageError."""
    part = lake.hot.page(trace_id, limit, page, tiers=tiers)
    head = {"trace_id": part.trace_id, "summary": part.summary}
    return document(head, "spans", part.rows, part.spans_of, {"next_page": part.next_page})


def literal(text: str) -> str:
    """Quote text as an SQL string. Raises UsageError for a NUL character, which SQL text cannot contain."""
    if "\0" in text:
        raise UsageError("a filter contains a NUL character; remove it")
    return "'" + text.replace("'", "''") + "'"


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


Text = Annotated[
    Annotated[str, Field(max_length=limits.PARAMETER_MAX_CHARS)] | None,
    BeforeValidator(_none_if_empty),
    Query(),
]
Name = Annotated[str, Query(min_length=1, max_length=limits.PARAMETER_MAX_CHARS)]
Milliseconds = Annotated[
    Annotated[float, Field(ge=0, le=limits.PARAMETER_MAX_MS)] | None, BeforeValidator(_none_if_empty), Query()
]
Limit = Annotated[int, Query(ge=1, le=limits.PAGE_ROWS_MAX)]
Offset = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET_MAX)]
Facets = Annotated[tuple[str, ...], Query(max_length=limits.FACETS_MAX)]
VectorText = Annotated[
    Annotated[str, Field(max_length=limits.VECTOR_PARAMETER_MAX_CHARS)] | None,
    BeforeValidator(_none_if_empty),
    Query(description="Numbers with commas between."),
]
Tags = Annotated[
    tuple[str, ...],
    Query(max_length=limits.FACETS_MAX, description="KEY=VALUE, of a tag that a trace has"),
]
Hits = Annotated[int, Query(ge=1, le=limits.SEARCH_HITS_MAX)]


def numbers_of(vector: str) -> list[float]:
    """Parse a vector. Raises QueryError."""
    try:
        return [float(number) for number in vector.split(",")]
    except ValueError as error:
        raise QueryError(
            "the vector contains a non-numeric value; give numbers with commas between, such as 0.1,-0.25."
        ) from error


def api_routes() -> APIRouter:
    """Return the routes of the JSON API over `lake`."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/traces/{trace_id}", summary="One trace with its spans by pages; format=otlp for OTLP/JSON")
    def trace(
        lake: RequestLake,
        trace_id: str,
        format: Annotated[str, Query(pattern="^(rows|otlp)$")] = "rows",
        tiers: Annotated[bool, Query(description="whether each span says its tier, hot or lake")] = False,
        limit: Annotated[int, Query(ge=1, le=TRACE_API_SPANS_MAX)] = TRACE_API_SPANS_MAX,
        page: Annotated[Text, Query(description="next_page of the previous response")] = None,
    ) -> Response:
        if format == "otlp":
            return in_pieces(trace_as_otlp(lake, trace_id))
        return in_pieces(read_page(lake, trace_id, limit, page, tiers=tiers))

    @router.get(
        "/hot-tier",
        summary=("Report whether the lake has a tracking store, and the pending rows of its outbox"),
    )
    def hot_tier(lake: RequestLake) -> Response:
        return json_response(lake.hot.describe())

    @router.get("/traces/{trace_id}/spans/{span_id}", summary="One span")
    def span(
        lake: RequestLake, trace_id: str, span_id: str, workspace: Text = None, kind: Text = None
    ) -> Response:
        return json_response(span_json(find_span(lake, trace_id, span_id, workspace, kind)))

    @router.get("/search", summary="Search spans by words or meaning, with total, facets and pages")
    def search_spans(
        lake: RequestLake,
        q: Annotated[str, Query(min_length=1)],
        service: Text = None,
        limit: Hits = SEARCH_HITS_DEFAULT,
        sort: Sort = "score",
        facet: Facets = (),
        page: Text = None,
        mode: Mode | None = None,
        vector: VectorText = None,
    ) -> Response:
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
        )
        return json_response({"query": q, **results.to_dict()})

    @router.get("/search/completions", summary="Suggest completions of a query")
    def complete(lake: RequestLake, q: Annotated[str, Query(max_length=QUERY_MAX_CHARS)]) -> Response:
        return json_response({"query": q, "completions": lake.completions(q)})

    return router


def json_response(content: object, status_code: int = 200) -> Response:
    """Return a JSON response; bytes are encoded in base64."""
    return Response(msgspec.json.encode(content), status_code, media_type="application/json")


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
        """Return the query string that selects this row on the page."""
        return span_query(self.span["span_id"], self.workspace, self.kind)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Waterfall of a trace: rows with parents first, a color per service, and the axis labels from left to right."""

    bars: list[Bar]
    services: dict[str, int]
    ticks: list[str]

    def first_of_page(
        self, span_id: str, page_size: int, workspace: str | None = None, kind: str | None = None
    ) -> int:
        """Return the index of the first row of the page that contains this span; 0 if no row does."""
        rows = [index for index, bar in enumerate(self.bars) if bar.span["span_id"] == span_id]
        rows = [index for index in rows if self.bars[index].kind == kind] or rows
        own = [index for index in rows if self.bars[index].workspace == (workspace or WORKSPACE_DEFAULT)]
        return next(iter(own or rows), 0) // page_size * page_size


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
    return Waterfall(bars, {name: colour for name, colour in services.items() if name}, ticks)


HERE = Path(__file__).parent
STATIC = HERE / "static"
ROOMS = (
    ("/", "Traces"),
    ("/overview", "Overview"),
    ("/versions", "Versions"),
    ("/datasets", "Datasets"),
    ("/pipeline", "Pipeline"),
    ("/archive", "Archive"),
)


def page_templates() -> Jinja2Templates:
    """Return the templates, with the formatting filters of `render`."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": render.duration,
        "timestamp": render.timestamp,
        "ago": lambda nanoseconds: render.ago(nanoseconds, time.time_ns()),
        "count": render.count,
        "short": render.short,
        "size": render.size,
        "outcome": render.outcome,
        "span_url": render.span_url,
        "tokens": render.tokens,
        "reference": render.reference,
        "cut": cut,
        "highlighted": render.highlighted,
    }
    return Jinja2Templates(env=environment, context_processors=[_rooms])


def _rooms(request: Request) -> dict[str, Any]:
    """Return the navigation links that the caller may open. Without a caller, return all links."""
    actor: KeyHolder | None = request.scope.get(ACTOR)
    return {
        "rooms": [
            (path, label)
            for path, label in ROOMS
            if actor is None or may_open(path, actor.role, actor.workspace)
        ]
    }


def page_maker(templates: Jinja2Templates) -> Callable[..., Response]:
    """Return a function that renders a template for a request, given the path of its JSON twin and the context."""

    def page(request: Request, name: str, twin: str, status_code: int = 200, **context: Any) -> Response:
        json_url = f"{twin}?{request.url.query}" if request.url.query else twin
        context |= {"json_url": json_url, "lake_url": request.app.state.lake.url}
        return templates.TemplateResponse(request, name, context, status_code=status_code)

    return page


def page_routes() -> APIRouter:
    """Return the routes that all pages share."""
    router = APIRouter(include_in_schema=False)

    @router.get("/favicon.ico")
    def icon() -> Response:
        return FileResponse(STATIC / "icon.svg")

    return router
