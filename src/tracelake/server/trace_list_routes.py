"""Routes of the lists of traces, sessions and users, the overview and the page of a user: parameters, the JSON API,
pages, and charts over time. Each number links to the traces that it counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, BeforeValidator

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.hot.tier import shared_lists
from tracelake.lake.lake import Lake
from tracelake.lake.trace_details import first_inputs, previews_of, read_spans, span_values_of
from tracelake.lake.trace_list import (
    GroupedBy,
    GroupOrder,
    GroupPage,
    Order,
    SplitColumn,
    TraceFilter,
    TracePage,
    column_values,
    list_groups,
    list_traces,
    literal,
    read_overview,
)
from tracelake.results import Row
from tracelake.search.query_parser import clause_of, written
from tracelake.server import render
from tracelake.server.assessments import listed_assessments
from tracelake.server.call_graph import BOX, draw, service_graph
from tracelake.server.http_policy import RequestLake
from tracelake.server.routes import (
    JsonRoute,
    Length,
    Limit,
    Milliseconds,
    Moment,
    Offset,
    Tags,
    Text,
    json_response,
    none_if_empty,
    refuse_unknown,
    render_page,
)
from tracelake.server.trace_comparison import comparison_path
from tracelake.server.trace_page import TYPE_LABELS, shown_tags

PRESETS: Final = (("15m", "15 min"), ("1h", "1 hour"), ("24h", "24 hours"), ("7d", "7 days"), ("", "All"))
"""Time ranges that the pages offer."""
LIST: Final = "/traces"
"""Path of the list of traces."""
_USER_TRACES: Final = 10
"""Traces and sessions on the page of a user."""


class _GroupQuery(BaseModel):
    """Query parameters of lists of traces, sessions and users."""

    query: Annotated[Text, Query(description="a search query that any span of a trace matches")] = None
    last: Length = None
    start: Moment = None
    end: Moment = None
    service: Text = None
    model: Text = None
    status: Text = None
    session: Text = None
    user: Text = None
    tag: Tags = ()
    limit: Limit = limits.PAGE_ROWS_DEFAULT
    page: Text = None


class _TraceQuery(_GroupQuery):
    """Query parameters of lists of traces."""

    name: Text = None
    type: Text = None
    min_duration_ms: Milliseconds = None
    max_duration_ms: Milliseconds = None
    errors: bool = False
    order: Order = "newest"
    offset: Offset = 0


def _trace_filter(parameters: Annotated[_TraceQuery, Query()]) -> TraceFilter:
    return TraceFilter.parse(**dict(parameters))


Filter = Annotated[TraceFilter, Depends(_trace_filter)]


def _group_filter(parameters: Annotated[_GroupQuery, Query()]) -> TraceFilter:
    return TraceFilter.parse(**dict(parameters))


GroupFilter = Annotated[TraceFilter, Depends(_group_filter)]

api = APIRouter(prefix="/api/v1", route_class=JsonRoute, dependencies=[Depends(refuse_unknown)])
"""JSON API for lists of traces, sessions and users."""
pages = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])
"""Pages of lists, the overview and a user."""


@api.get("/traces")
def traces(
    lake: RequestLake,
    wanted: Filter,
    previews: Annotated[bool, Query(description="whether each trace has its input and output")] = False,
    values: Annotated[
        bool, Query(description="whether each trace has the models and types of spans")
    ] = False,
) -> Response:
    """List traces."""
    page = list_traces(lake, wanted)
    bounds = {"limit": wanted.limit, "offset": wanted.offset}
    pages = {"next_page": page.next_page, "previous_page": page.previous_page}
    spans = read_spans(lake, page.traces) if previews or values else None
    texts = previews_of(lake, page.traces, spans) if previews else {}
    of_spans = span_values_of(lake, page.traces, spans) if values else {}
    rows = [
        {**row, **texts.get(row["trace_id"], {}), **of_spans.get(row["trace_id"], {})} for row in page.traces
    ]
    return json_response(
        {"traces": rows, "more": page.more, **bounds, "not_listed": page.not_listed, **pages}
    )


@api.get("/services")
def services(lake: RequestLake) -> Response:
    """List the services of spans."""
    return json_response({"services": column_values(lake, "service")})


_SPLIT_METRICS: Final = (
    ("spans", "Spans", "count"),
    ("errors", "Errors", "count"),
    ("p95_ns", "Latency p95", "ns"),
    ("tokens", "Tokens", "count"),
    ("cost", "Cost", "cost"),
)
"""Charts of a split overview: column, title and unit."""
Split = Annotated[
    Annotated[SplitColumn | None, BeforeValidator(none_if_empty)],
    Query(description="also the spans over time by this column"),
]


@api.get("/overview")
def overview(lake: RequestLake, wanted: Filter, split: Split = None) -> Response:
    """Traffic, errors, latency, tokens and cost of traces, with the filters of the list."""
    return json_response(asdict(read_overview(lake, wanted, split)))


_COLUMNS: Final = {
    "status": "Status",
    "duration": "Duration",
    "started": "Started",
    "spans": "Spans",
    "tokens": "Tokens in / out",
    "cost": "Cost",
    "models": "Models",
    "types": "Span types",
    "service": "Service",
    "session": "Session, user",
    "tags": "Tags",
    "previews": "Input and output",
}
"""Columns of the page of traces, beside the name."""
_COLUMNS_DEFAULT: Final = tuple(name for name in _COLUMNS if name != "tags")


def _columns(
    columns: Annotated[tuple[str, ...], Query(max_length=limits.FACETS_MAX)] = (),
) -> tuple[str, ...]:
    names = tuple(name for text in columns for name in text.split(",") if name)
    for name in names:
        if name not in _COLUMNS:
            quoted = name[: limits.NAME_QUOTED_MAX_CHARS]
            raise UsageError(f"unknown column {quoted!r}; the columns are {', '.join(_COLUMNS)}")
    return names


@pages.get("/traces")
def list_page(
    lake: RequestLake,
    request: Request,
    wanted: Filter,
    columns: Annotated[tuple[str, ...], Depends(_columns)],
    compare: Text = None,
) -> Response:
    """Show a page of the list, or redirect to the trace or span with this id."""
    if wanted.query and (address := find_id(lake, wanted.query)) is not None:
        return RedirectResponse(address, 303)
    with shared_lists():
        return _show_list(lake, request, wanted, columns, compare)


def _show_list(
    lake: Lake, request: Request, wanted: TraceFilter, columns: tuple[str, ...], compare: str | None
) -> Response:
    listing = list_traces(lake, wanted, with_activity=True)
    parameters = request.query_params
    shown = columns or _COLUMNS_DEFAULT
    has_values = "models" in shown or "types" in shown
    spans = read_spans(lake, listing.traces) if has_values or "previews" in shown else None
    values = span_values_of(lake, listing.traces, spans) if has_values else {}
    if not columns:
        shown = tuple(name for name in shown if _has_content(name, listing.traces, values))
    ids = [row["trace_id"] for row in listing.traces]
    return render_page(
        request,
        "traces.html",
        "/api/v1/traces",
        traces=listing.traces,
        columns=shown,
        all_columns=_COLUMNS,
        values=values,
        types=TYPE_LABELS,
        tags=shown_tags(lake, ids) if "tags" in shown else {},
        previews=previews_of(lake, listing.traces, spans) if "previews" in shown else {},
        assessments=listed_assessments(lake, ids),
        not_listed=listing.not_listed,
        wanted=wanted,
        parameters=parameters,
        is_filtered=any(value for name, value in parameters.items() if name not in _NO_FILTERS),
        compare=compare,
        services=column_values(lake, "service"),
        models=column_values(lake, "model"),
        orders=get_args(Order),
        presets=presets_of(request),
        activity=listing.activity,
        link=lambda **changed: link(request, **changed),
        untagged=lambda tag: _without_tag(request, tag),
        previous_url=_previous_url(request, wanted, listing),
        next_url=render.with_page(request, listing.next_page) if listing.next_page else None,
    )


_NO_FILTERS: Final = ("order", "limit", "compare", "columns")
"""Parameters that do not change which traces the list has."""


def _has_content(column: str, traces: list[Row], values: Mapping[str, Mapping[str, list[str]]]) -> bool:
    """Return whether any trace has a value for a column that many lakes have no values for."""
    match column:
        case "models" | "types":
            return any(each[column] for each in values.values())
        case "cost":
            return any(row["cost"] is not None for row in traces)
        case "session":
            return any(row["session_id"] or row["user_id"] for row in traces)
    return True


def _without_tag(request: Request, tag: str) -> str:
    """Return the URL of the list without one of its tags."""
    others = [each for each in request.query_params.multi_items() if each not in (("tag", tag), ("page", ""))]
    query = urlencode([each for each in others if each[0] not in ("page", "offset")])
    return f"{request.url.path}?{query}" if query else request.url.path


@pages.get("/compare")
def choose(trace: Annotated[tuple[str, ...], Query(max_length=limits.FACETS_MAX)] = ()) -> Response:
    """Redirect to the comparison of two chosen traces."""
    chosen = tuple(dict.fromkeys(trace))
    if len(chosen) != 2:
        number = f"{len(chosen)} {'trace is' if len(chosen) == 1 else 'traces are'} chosen"
        raise UsageError(f"{number}; go back, and check the boxes of two traces")
    return RedirectResponse(comparison_path(*chosen), 303)


_TRACE_ID: Final = re.compile(r"(?:tr-)?(0x)?([0-9a-f]{1,32})", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_ID_MIN_DIGITS: Final = 12
"""Shortest text without `0x` that may be an id without its leading zeros."""


def find_id(lake: Lake, text: str) -> str | None:
    """Return the URL of the page of the trace or span with this id, which may be written in any usual form; None if
    none exists."""
    digits = text.strip().lower()
    digits = digits.replace("-", "") if _UUID.fullmatch(digits) else digits
    match = _TRACE_ID.fullmatch(digits)
    if match is None or (match[1] is None and len(match[2]) < _ID_MIN_DIGITS):
        return None
    trace_id, span_id = match[2].zfill(32), match[2].zfill(16)
    traces, spans = lake.select(
        f"SELECT trace_id FROM traces WHERE trace_id = {literal(trace_id)} LIMIT 1",
        f"SELECT trace_id, span_id, workspace, kind FROM spans WHERE span_id = {literal(span_id)} "
        "ORDER BY start_ns DESC LIMIT 1",
    )
    if traces.num_rows:
        return f"/traces/{trace_id}"
    return next((render.span_url(**row) for row in spans.to_pylist()), None)


def link(request: Request, path: str | None = None, **changed: str | float | None) -> str:
    """Return the URL of the first page of a list, with changed query parameters; None removes one. The list is the
    request's, or the one at `path`."""
    removed = {"page", "offset", *changed}
    if removed & {"last", "start", "end"}:
        removed |= {"last", "start", "end"}
    # A page has hundreds of links, so they are made without parsing the request's URL again.
    others = [each for each in request.query_params.multi_items() if each[0] not in removed]
    query = urlencode([*others, *(each for each in changed.items() if each[1] is not None)])
    path = path or request.url.path
    return f"{path}?{query}" if query else path


def presets_of(request: Request) -> list[tuple[str, str, bool]]:
    """Return the label and URL of each time range, and whether it is the current one."""
    current = request.query_params.get("last") or ""
    return [(label, link(request, last=last or None), current == last) for last, label in PRESETS]


def _previous_url(request: Request, wanted: TraceFilter, listing: TracePage) -> str | None:
    """Return the URL of the previous page. A page requested by offset links to a page by offset."""
    if wanted.offset:
        return render.with_query(request, offset=max(wanted.offset - wanted.limit, 0))
    return render.with_page(request, listing.previous_page) if listing.previous_page else None


@pages.get("/")
def start_page(
    lake: RequestLake,
    request: Request,
    wanted: Filter,
    columns: Annotated[tuple[str, ...], Depends(_columns)],
    compare: Text = None,
    split: Split = None,
) -> Response:
    """Show the overview. Links with filters lead to the list, which had this path."""
    if compare or columns or set(request.query_params) - {"last", "start", "end", "split"}:
        return RedirectResponse(f"{LIST}?{request.url.query}", 307)
    return overview_page(lake, request, wanted, split)


@pages.get("/overview")
def overview_page(lake: RequestLake, request: Request, wanted: Filter, split: Split = None) -> Response:
    """Show the overview of the traces of a filter."""
    shown = read_overview(lake, wanted, split)

    def in_list(**changed: str | float | None) -> str:
        return link(request, LIST, split=None, **changed)

    def with_query(*clauses: str, **changed: str | float | None) -> str:
        query = f"({wanted.query})" if wanted.query else ""
        return in_list(query=" ".join(filter(None, [query, *clauses])), **changed)

    def of_value(value: str | None, **changed: str | float | None) -> str:
        if value is None or split is None:
            return in_list(**changed)
        return (
            with_query(clause_of(split, value), **changed)
            if getattr(wanted, split)
            else in_list(**{split: value}, **changed)
        )

    graph = service_graph(shown.services, shown.calls, lambda service: in_list(service=service))
    return render_page(
        request,
        "overview.html",
        "/api/v1/overview",
        overview=shown,
        activity=shown.activity,
        split=split,
        split_metrics=[
            each for each in _SPLIT_METRICS if any(series.total[each[0]] for series in shown.split)
        ],
        of_value=of_value,
        types=TYPE_LABELS,
        services=sorted(row["service"] for row in shown.services),
        models=sorted(row["model"] for row in shown.models),
        presets=presets_of(request),
        wanted=wanted,
        parameters=request.query_params,
        is_filtered=any(request.query_params.values()),
        link=in_list,
        here=lambda **changed: link(request, **changed),
        map=graph,
        drawing=draw(graph),
        box=BOX,
        call_url=lambda row, *clauses: with_query(
            clause_of("service", row["callee"]), *clauses, service=row["caller"]
        ),
        spans_url=lambda row, *clauses: with_query(*_clauses_of(row), *clauses),
        error_url=lambda row: with_query("status:error", written(row["message"])),
    )


def _clauses_of(row: Row) -> list[str]:
    """Return the clauses that find the spans that a row of the overview counts."""
    return [clause_of(name, row[name]) for name in ("service", "name", "model", "type") if row.get(name)]


@api.get("/trace-sessions")
def sessions(lake: RequestLake, wanted: GroupFilter, order: GroupOrder = "newest") -> Response:
    """List the sessions of traces with their sums."""
    return _groups_json(list_groups(lake, "session", wanted, order), "sessions")


@api.get("/users")
def users(lake: RequestLake, wanted: GroupFilter, order: GroupOrder = "newest") -> Response:
    """List the users of traces with their sums."""
    return _groups_json(list_groups(lake, "user", wanted, order), "users")


def _groups_json(page: GroupPage, name: str) -> Response:
    next_and_previous = {"next_page": page.next_page, "previous_page": page.previous_page}
    return json_response({name: page.groups, "not_listed": page.not_listed, **next_and_previous})


@pages.get("/sessions")
def sessions_page(
    lake: RequestLake, request: Request, wanted: GroupFilter, order: GroupOrder = "newest"
) -> Response:
    """Show a page of the list of sessions."""
    with shared_lists():
        return _show_groups(lake, request, "session", wanted, order)


@pages.get("/users")
def users_page(
    lake: RequestLake, request: Request, wanted: GroupFilter, order: GroupOrder = "newest"
) -> Response:
    """Show a page of the list of users."""
    with shared_lists():
        return _show_groups(lake, request, "user", wanted, order)


@pages.get("/user")
def user_page(lake: RequestLake, request: Request, wanted: GroupFilter) -> Response:
    """Show a user."""
    if not wanted.user:
        raise UsageError("name the user: /user?user=ID; /users lists them")
    with shared_lists():
        context = _user_context(lake, request, wanted)
    return render_page(request, "user.html", "/api/v1/trace-sessions", **context)


def _show_groups(
    lake: Lake, request: Request, by: GroupedBy, wanted: TraceFilter, order: GroupOrder
) -> Response:
    listing = list_groups(lake, by, wanted, order, with_activity=True)
    parameters = request.query_params
    return render_page(
        request,
        "session_list.html",
        "/api/v1/trace-sessions" if by == "session" else "/api/v1/users",
        by=by,
        listing=listing,
        inputs=first_inputs(lake, listing.groups) if by == "session" else {},
        wanted=wanted,
        order=order,
        parameters=parameters,
        is_filtered=any(value for name, value in parameters.items() if name not in ("order", "limit")),
        services=column_values(lake, "service"),
        presets=presets_of(request),
        activity=listing.activity,
        link=lambda **changed: link(request, **changed),
        traces_url=lambda **changed: link(request, LIST, **{"order": None, "limit": None, **changed}),
        previous_url=render.with_page(request, listing.previous_page) if listing.previous_page else None,
        next_url=render.with_page(request, listing.next_page) if listing.next_page else None,
    )


def _user_context(lake: Lake, request: Request, wanted: TraceFilter) -> dict[str, Any]:
    """Return the context of the page of a user: sums, usage over time, sessions, traces and errors."""
    overview = read_overview(lake, wanted)
    few = replace(wanted, limit=_USER_TRACES, page=None)
    sessions = list_groups(lake, "session", few)
    total = list_groups(lake, "user", few).groups
    traces = list_traces(lake, few)
    return {
        "user": wanted.user,
        "total": total[0] if total else None,
        "overview": overview,
        "activity": overview.activity,
        "sessions": sessions,
        "inputs": first_inputs(lake, sessions.groups),
        "traces": traces,
        "previews": previews_of(lake, traces.traces, read_spans(lake, traces.traces)),
        "presets": presets_of(request),
        "wanted": wanted,
        "parameters": request.query_params,
        "link": lambda **changed: link(request, **changed),
        "in_list": lambda path=LIST, **changed: link(request, path, **changed),
    }
