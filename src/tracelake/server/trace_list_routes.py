"""Routes of the trace list and the overview: parameters, the JSON API, pages, and the chart over time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Annotated, Final, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.responses import RedirectResponse

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.search.query_parser import clause_of, written
from tracelake.search.query_values import nanoseconds, period
from tracelake.server import render
from tracelake.server.assessments import listed_assessments
from tracelake.server.http_policy import RequestLake
from tracelake.server.routes import (
    JsonRoute,
    Limit,
    Milliseconds,
    Offset,
    Tags,
    Text,
    json_response,
    render_page,
)
from tracelake.server.trace_list import (
    BUCKETS,
    Activity,
    Order,
    TraceFilter,
    TracePage,
    column_values,
    find_id,
    list_traces,
    previews_of,
    read_overview,
)

PRESETS: Final = (("15m", "15 min"), ("1h", "1 hour"), ("24h", "24 hours"), ("7d", "7 days"), ("", "All"))
"""Time ranges that the pages offer."""
_INT64_MAX: Final = (1 << 63) - 1


def _time(text: str | None, name: str, *, is_end: bool = False) -> int | None:
    """Return a time as nanoseconds since 1970. The end of a range includes all of its day, minute or second."""
    if text is None:
        return None
    if re.fullmatch(r"\d{1,19}", text, re.ASCII) and int(text) <= _INT64_MAX and len(text) != 4:
        return int(text)
    both = period(text)
    if both is None or not -_INT64_MAX <= both[is_end] <= _INT64_MAX:
        raise UsageError(
            f"{name}={text[: limits.NAME_QUOTED_MAX_CHARS]!r} is no time; write 2026-01-31, 2026-01-31T17:30Z, or "
            "nanoseconds since 1970"
        )
    return both[is_end]


def _length(text: str | None) -> int | None:
    if text is None:
        return None
    length = nanoseconds(text)
    if length is None or length > _INT64_MAX:
        raise UsageError(
            f"last={text[: limits.NAME_QUOTED_MAX_CHARS]!r} is no length of time; write 15m, 1h, 24h or 7d"
        )
    return int(length)


def _tag(text: str) -> tuple[str, str]:
    key, equal, value = text.partition("=")
    if not (key and equal):
        raise UsageError(f"{text[: limits.NAME_QUOTED_MAX_CHARS]!r} is no tag; write it as KEY=VALUE")
    return key, value


def _parameters(dependant: Dependant) -> list[str]:
    own = [field.alias for field in dependant.query_params]
    return [*own, *(name for each in dependant.dependencies for name in _parameters(each))]


def refuse_unknown(request: Request) -> None:
    """Raise UsageError if a request has a query parameter that the route does not have."""
    parameters = _parameters(request.scope["route"].dependant)
    for name in request.query_params:
        if name not in parameters:
            close = get_close_matches(name, parameters, 1)
            hint = f"did you mean {close[0]}?" if close else f"the parameters are {', '.join(parameters)}"
            raise UsageError(f"unknown parameter {name[: limits.NAME_QUOTED_MAX_CHARS]!r}; {hint}")


Moment = Annotated[Text, Query(description="2026-01-31, 2026-01-31T17:30Z, or nanoseconds since 1970")]


def trace_filter(
    query: Annotated[Text, Query(description="a search query that any span matches")] = None,
    last: Annotated[Text, Query(description="length of the time range that ends now: 15m, 1h, 7d")] = None,
    start: Moment = None,
    end: Moment = None,
    service: Text = None,
    model: Text = None,
    status: Text = None,
    session: Text = None,
    user: Text = None,
    name: Text = None,
    min_duration_ms: Milliseconds = None,
    max_duration_ms: Milliseconds = None,
    errors: bool = False,
    tag: Tags = (),
    order: Order = "newest",
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    page: Text = None,
) -> TraceFilter:
    """Return the filter that the parameters of a request describe. Raises UsageError."""
    if status not in (None, "ok", "error"):
        raise UsageError("status is ok or error")
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
        query,
        model,
        status,  # type: ignore[arg-type]
        max_duration_ms,
        _length(last),
        _time(start, "start"),
        _time(end, "end", is_end=True),
    )


Wanted = Annotated[TraceFilter, Depends(trace_filter)]


api = APIRouter(prefix="/api/v1", route_class=JsonRoute, dependencies=[Depends(refuse_unknown)])
"""JSON API for lists of traces."""
pages = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])
"""Pages of the trace list and the overview."""


@api.get("/traces")
def traces(
    lake: RequestLake,
    wanted: Wanted,
    previews: Annotated[bool, Query(description="whether each trace has its input and output")] = False,
) -> Response:
    """List traces."""
    page = list_traces(lake, wanted)
    bounds = {"limit": wanted.limit, "offset": wanted.offset}
    pages = {"next_page": page.next_page, "previous_page": page.previous_page}
    texts = previews_of(lake, page.traces) if previews else {}
    rows = [{**row, **texts.get(row["trace_id"], {})} for row in page.traces]
    return json_response(
        {"traces": rows, "more": page.more, **bounds, "not_listed": page.not_listed, **pages}
    )


@api.get("/services")
def services(lake: RequestLake) -> Response:
    """List the services of spans."""
    return json_response({"services": column_values(lake, "service")})


@api.get("/overview")
def overview(lake: RequestLake, wanted: Wanted) -> Response:
    """Traffic, errors, latency and tokens of traces, with the filters of the list."""
    return json_response(asdict(read_overview(lake, wanted)))


@pages.get("/")
def list_page(lake: RequestLake, request: Request, wanted: Wanted) -> Response:
    """Show a page of the list, or redirect to the trace or span with this id."""
    if wanted.query and (address := find_id(lake, wanted.query)) is not None:
        return RedirectResponse(address, 303)
    listing = list_traces(lake, wanted, with_activity=True)
    parameters = request.query_params
    return render_page(
        request,
        "traces.html",
        "/api/v1/traces",
        traces=listing.traces,
        previews=previews_of(lake, listing.traces),
        assessments=listed_assessments(lake, [row["trace_id"] for row in listing.traces]),
        not_listed=listing.not_listed,
        wanted=wanted,
        parameters=parameters,
        is_filtered=any(value for name, value in parameters.items() if name not in ("order", "limit")),
        services=column_values(lake, "service"),
        models=column_values(lake, "model"),
        orders=get_args(Order),
        presets=presets_of(request),
        chart=None if listing.activity is None else chart(request, listing.activity),
        link=lambda **changed: link(request, **changed),
        previous_url=_previous_url(request, wanted, listing),
        next_url=render.with_page(request, listing.next_page) if listing.next_page else None,
    )


def link(request: Request, path: str | None = None, **changed: str | float | None) -> str:
    """Return the URL of the first page of a list, with changed query parameters; None removes one. The list is the
    request's, or the one at `path`."""
    removed = {"page", "offset", *changed}
    if removed & {"last", "start", "end"}:
        removed |= {"last", "start", "end"}
    url = request.url.remove_query_params(list(removed)).include_query_params(
        **{name: value for name, value in changed.items() if value is not None}
    )
    path = path or url.path
    return f"{path}?{url.query}" if url.query else path


def presets_of(request: Request) -> list[tuple[str, str, bool]]:
    """Return the label and URL of each time range, and whether it is the current one."""
    current = request.query_params.get("last") or ""
    return [(label, link(request, last=last or None), current == last) for last, label in PRESETS]


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One interval of a chart."""

    x: float
    height: float
    error_height: float
    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart of traces and errors over time, with statistics."""

    bars: list[ChartBar]
    low_ns: int
    high_ns: int
    labels: list[str]
    """Times at the left, in the middle and at the right."""
    most: int
    """Traces of the fullest interval."""
    total: Mapping[str, int]


CHART_WIDTH: Final = 600
CHART_HEIGHT: Final = 100


def chart(request: Request, activity: Activity) -> Chart:
    """Lay out the chart of the activity of a list."""
    most = max(row["traces"] for row in activity.buckets.values())
    bars = []
    for bucket, row in sorted(activity.buckets.items()):
        first, last = activity.bounds(bucket)
        text = f"{render.timestamp(first)[:19]} UTC: {_number(row['traces'], 'trace')}"
        if row["errors"]:
            text += f", {row['errors']:,} with errors"
        bars.append(
            ChartBar(
                bucket * CHART_WIDTH / BUCKETS,
                round(max(CHART_HEIGHT * row["traces"] / most, 2), 2),
                round(max(CHART_HEIGHT * row["errors"] / most, 2) if row["errors"] else 0, 2),
                text,
                link(request, start=first, end=last),
            )
        )
    middle_ns = (activity.low_ns + activity.high_ns) // 2
    labels = [render.timestamp(time_ns)[:16] for time_ns in (activity.low_ns, middle_ns, activity.high_ns)]
    return Chart(bars, activity.low_ns, activity.high_ns, labels, most, activity.total)


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _previous_url(request: Request, wanted: TraceFilter, listing: TracePage) -> str | None:
    """Return the URL of the previous page. A page requested by offset links to a page by offset."""
    if wanted.offset:
        return render.with_query(request, offset=max(wanted.offset - wanted.limit, 0))
    return render.with_page(request, listing.previous_page) if listing.previous_page else None


@pages.get("/overview")
def overview_page(lake: RequestLake, request: Request, wanted: Wanted) -> Response:
    """Show the overview."""
    shown = read_overview(lake, wanted)

    def in_list(**changed: str | float | None) -> str:
        return link(request, "/", **changed)

    def with_query(*clauses: str) -> str:
        query = f"({wanted.query})" if wanted.query else ""
        return in_list(query=" ".join(filter(None, [query, *clauses])))

    return render_page(
        request,
        "overview.html",
        "/api/v1/overview",
        overview=shown,
        chart=None if shown.activity is None else chart(request, shown.activity),
        presets=presets_of(request),
        link=in_list,
        operation_url=lambda row: with_query(
            *(clause_of(name, row[name]) for name in ("service", "name") if row[name])
        ),
        error_url=lambda row: with_query("status:error", written(row["message"])),
    )
