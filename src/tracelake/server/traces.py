"""Traces on pages and in the JSON API `/api/v1`: queries, filters, lists, search, and the waterfall of a trace.

Each page has a JSON twin. All times in JSON are integers: nanoseconds since 1970 UTC. Reads use the newest commit of
`main`. An empty query parameter means no filter, because forms send empty fields as empty text. Templates escape all
text that comes from traces.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BeforeValidator, Field

from tracelake import limits
from tracelake._errors import NotFoundError, QueryError, StorageError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.reads import NOT_LISTED
from tracelake.limits import QUERY_MAX_CHARS, SEARCH_HITS_DEFAULT, TRACE_API_SPANS_MAX
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.otlp.encode import encode, resource_spans
from tracelake.results import Row, Trace
from tracelake.search.prefilter import latest_start
from tracelake.search.results import SearchResults
from tracelake.search.searcher import Sort
from tracelake.search.semantic_search import Mode
from tracelake.server import render
from tracelake.server.http_policy import RequestLake, may_open
from tracelake.server.key_ring import ACTOR, KeyHolder
from tracelake.server.render import document, duration, in_pieces, span_query
from tracelake.tables.builtin import IN_ORDER
from tracelake.tables.page_tokens import ListToken, name_of_search, read_list_token
from tracelake.tables.table import ReadGate, to_rows

_BY_MEANING: Final = ReadGate(
    limits.SEMANTIC_SEARCHES_AT_ONCE_MAX,
    "other searches by meaning wait for the embedding function; search again later, or by words",
)
Order: TypeAlias = Literal["newest", "oldest", "longest", "errors", "tokens"]
_HIT_TEXTS: Final = ("name", "service", "model", "status", "session_id", "user_id", "workspace")
ORDERS: tuple[Order, ...] = get_args(Order)
# Clients choose both numbers, and the sum may overflow 64 bits.
TOKENS: Final = "(coalesce(input_tokens, 0)::HUGEINT + coalesce(output_tokens, 0))"
KEYS: dict[Order, tuple[str, ...]] = {
    # Otherwise a trace that starts far in the future would lead the list permanently.
    "newest": ("(start_ns > {latest_ns})::BIGINT", "start_ns DESC"),
    "oldest": ("start_ns",),
    "longest": ("duration_ns DESC",),
    "errors": ("error_count DESC", "start_ns DESC"),
    "tokens": (f"{TOKENS} DESC", "start_ns DESC"),
}
"""Sort keys of each order; trace ids break ties."""
TRACE_COLUMNS = (
    "trace_id, workspace, name, service, start_ns, end_ns, duration_ns, span_count, error_count, "
    "input_tokens, output_tokens, session_id, user_id"
)


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Filter for traces. Text matches whole values, except `name`, which matches a substring in any case."""

    service: str | None = None
    session: str | None = None
    user: str | None = None
    name: str | None = None
    min_duration_ms: float | None = None
    errors: bool = False
    tags: tuple[tuple[str, str], ...] = ()
    order: Order = "newest"
    limit: int = limits.PAGE_ROWS_DEFAULT
    offset: int = 0
    page: str | None = None
    """`next_page` or `previous_page` of the same list."""


@dataclass(frozen=True, slots=True)
class TracePage:
    """One page of the trace list."""

    traces: list[Row]
    more: bool
    not_listed: str | None
    """Note about uncommitted spans that the list does not include."""
    next_page: str | None = None
    """Token of the next page, or None."""
    previous_page: str | None = None
    """Token of the previous page; None for the first page, and for a page requested by offset."""


def list_traces(lake: Lake, wanted: TraceFilter) -> TracePage:
    """Return one page of traces. Raises QueryError for a token of another list."""
    if wanted.page is not None and wanted.offset:
        raise UsageError("a list accepts a page or an offset, not both; leave one out")
    keys = KEYS[wanted.order]
    name = name_of_search(*map(str, astuple(replace(wanted, limit=0, offset=0, page=None))))
    token = None if wanted.page is None else read_list_token(wanted.page, name, len(keys))
    now_ns = time.time_ns() if token is None else token.now_ns
    latest_ns = latest_start(now_ns)
    columns = [key.removesuffix(" DESC").format(latest_ns=latest_ns) for key in keys]
    is_before = token is not None and token.is_before
    conditions = _equal_conditions(service=wanted.service, session_id=wanted.session, user_id=wanted.user)
    if wanted.name:
        conditions.append(f"contains(lower(name), lower({literal(wanted.name)}))")
    if wanted.min_duration_ms is not None:
        conditions.append(f"duration_ns >= {int(wanted.min_duration_ms * 1_000_000)}")
    if wanted.errors:
        conditions.append("error_count > 0")
    if wanted.tags:
        tagged = ", ".join(map(literal, lake.annotations.traces_with(dict(wanted.tags))))
        conditions.append(f"trace_id IN ({tagged})" if tagged else "false")
    descending = [key.endswith(" DESC") != is_before for key in (*keys, "trace_id")]
    if token is not None:
        values = (*map(str, token.keys), literal(token.row_id))
        conditions.append(_behind([*zip((*columns, "trace_id"), values, descending, strict=True)]))
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    order = ", ".join(
        f"{column} {'DESC' if down else 'ASC'}"
        for column, down in zip((*columns, "trace_id"), descending, strict=True)
    )
    selected = ", ".join(f"({column})::VARCHAR AS key_{number}" for number, column in enumerate(columns))
    query = (
        f"SELECT {TRACE_COLUMNS}, {selected} FROM traces {where} ORDER BY {order} "
        f"LIMIT {wanted.limit + 1:d} OFFSET {wanted.offset:d}"
    )
    table = lake.sql(query, uncommitted=True)
    told = (table.schema.metadata or {}).get(NOT_LISTED)
    rows: list[Row] = table.to_pylist()
    goes_on = len(rows) > wanted.limit
    rows = rows[: wanted.limit][:: -1 if is_before else 1]
    keys_of_rows = [tuple(int(row.pop(f"key_{n}")) for n in range(len(keys))) for row in rows]

    def page_at(number: int, *, before: bool) -> str:
        return str(ListToken(name, now_ns, keys_of_rows[number], rows[number]["trace_id"], before))

    has_next, has_previous = (
        (bool(rows), goes_on) if is_before else (goes_on, token is not None and bool(rows))
    )
    return TracePage(
        [{key: cut(value) for key, value in row.items()} for row in rows],
        more=has_next,
        not_listed=None if told is None else told.decode(),
        next_page=page_at(-1, before=False) if has_next else None,
        previous_page=page_at(0, before=True) if has_previous else None,
    )


def _behind(keys: Sequence[tuple[str, str, bool]]) -> str:
    """Return the SQL condition for rows after a key. `keys` has each column in order, its value, and whether it is
    descending."""
    column, value, falls = keys[0]
    behind = f"{column} {'<' if falls else '>'} {value}"
    return behind if len(keys) == 1 else f"({behind} OR ({column} = {value} AND {_behind(keys[1:])}))"


def list_services(lake: Lake) -> list[str]:
    """Return the services in which traces start, sorted by name."""
    table = lake.sql(
        f"SELECT DISTINCT service FROM traces WHERE service IS NOT NULL ORDER BY service LIMIT {limits.PAGE_ROWS_MAX}",
        uncommitted=True,
    )
    return [cut(str(service)) for service in table.column("service").to_pylist()]


def cut(value: Any) -> Any:
    """Return a value for a list: of a long text its beginning, with an ellipsis."""
    if isinstance(value, str) and len(value) > limits.LIST_TEXT_MAX_CHARS:
        return value[: limits.LIST_TEXT_MAX_CHARS - 1] + "…"
    return value


def search(
    lake: Lake,
    query: str,
    service: str | None,
    limit: int,
    sort: Sort = "score",
    facets: Sequence[str] = (),
    page: str | None = None,
    mode: Mode | None = None,
    vector: Sequence[float] | None = None,
) -> SearchResults:
    """Return one page of search results, of one service or all. Raises BackPressureError."""
    with _turn(mode, vector):
        results = lake.search(
            query,
            service=service or None,
            limit=limit,
            mode=mode,
            vector=vector,
            sort=sort,
            facets=facets,
            page=page,
        )
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


def _equal_conditions(**values: str | None) -> list[str]:
    return [f"{column} = {literal(value)}" for column, value in values.items() if value]


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


def _tag(text: str) -> tuple[str, str]:
    key, equal, value = text.partition("=")
    if not (key and equal):
        raise UsageError(f"{text[: limits.NAME_QUOTED_MAX_CHARS]!r} is not a tag; write it as KEY=VALUE")
    return key, value


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


def _trace_filter(
    service: Text = None,
    session: Text = None,
    user: Text = None,
    name: Text = None,
    min_duration_ms: Milliseconds = None,
    errors: bool = False,
    tag: Tags = (),
    order: Order = "newest",
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    page: Text = None,
) -> TraceFilter:
    return TraceFilter(
        service,
        session,
        user,
        name,
        min_duration_ms,
        errors,
        tuple(map(_tag, tag)),
        order,
        limit,
        offset,
        page,
    )


Wanted = Annotated[TraceFilter, Depends(_trace_filter)]


def api_routes() -> APIRouter:
    """Return the routes of the JSON API over `lake`."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/traces", summary="List traces")
    def traces(lake: RequestLake, wanted: Wanted) -> Response:
        page = list_traces(lake, wanted)
        bounds = {"limit": wanted.limit, "offset": wanted.offset}
        pages = {"next_page": page.next_page, "previous_page": page.previous_page}
        return json_response(
            {"traces": page.traces, "more": page.more, **bounds, "not_listed": page.not_listed, **pages}
        )

    @router.get("/services", summary="List the services of root spans")
    def services(lake: RequestLake) -> Response:
        return json_response({"services": list_services(lake)})

    @router.get(
        "/traces/{trace_id}", summary=("Return one trace with its spans by pages; format=otlp for OTLP/JSON")
    )
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
        return json_response(find_span(lake, trace_id, span_id, workspace, kind))

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
        numbers = None if vector is None else numbers_of(vector)
        results = search(lake, q, service, limit, sort, facet, page, mode, numbers)
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


def page_routes(templates: Jinja2Templates) -> APIRouter:
    """Return the routes of the pages over `lake`."""
    router = APIRouter(include_in_schema=False)

    page = page_maker(templates)

    @router.get("/")
    def traces(lake: RequestLake, request: Request, wanted: Wanted) -> Response:
        listing = list_traces(lake, wanted)
        return page(
            request,
            "traces.html",
            "/api/v1/traces",
            traces=listing.traces,
            not_listed=listing.not_listed,
            wanted=wanted,
            services=list_services(lake),
            orders=ORDERS,
            previous_url=_previous_url(request, wanted, listing),
            next_url=render.with_page(request, listing.next_page) if listing.next_page else None,
        )

    @router.get("/favicon.ico")
    def icon() -> Response:
        return FileResponse(STATIC / "icon.svg")

    @router.get("/traces/{trace_id}")
    def trace_page(
        lake: RequestLake,
        request: Request,
        trace_id: str,
        first: Offset = 0,
        span: Text = None,
        workspace: Text = None,
        kind: Text = None,
    ) -> Response:
        trace = lake.hot.outline(trace_id)
        waterfall = lay_out(trace)
        size = limits.TRACE_PAGE_SPANS_MAX
        if span:
            first = waterfall.first_of_page(span, size, workspace, kind)
        return page(
            request,
            "trace.html",
            f"/api/v1/traces/{trace.trace_id}",
            trace=trace,
            tags=_shown_tags(lake, trace.trace_id),
            waterfall=waterfall,
            bars=waterfall.bars[first : first + size],
            first=first,
            total=len(waterfall.bars),
            previous_first=max(first - size, 0) if first else None,
            next_first=first + size if first + size < len(waterfall.bars) else None,
        )

    return router


def _previous_url(request: Request, wanted: TraceFilter, listing: TracePage) -> str | None:
    """Return the URL of the previous page. A page requested by offset links to a page by offset."""
    if wanted.offset:
        return render.with_query(request, offset=max(wanted.offset - wanted.limit, 0))
    return render.with_page(request, listing.previous_page) if listing.previous_page else None


def _shown_tags(lake: Lake, trace_id: str) -> dict[str, str]:
    """Return the tags of a trace. If tags do not exist or cannot be read, return none, because the trace itself is
    readable."""
    try:
        return {} if not lake.hot.is_there else lake.annotations.shown_tags([trace_id]).get(trace_id, {})
    except StorageError:
        return {}
