"""Lists of sessions and of users, and the page of a user.

A filter selects traces, as in the list of traces. A session or user is listed if it has such a trace, and its numbers
count these traces only. So each number links to the traces behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Depends, Query, Request, Response

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.lake.lake import Lake
from tracelake.results import Row
from tracelake.server import render
from tracelake.server.http_policy import RequestLake
from tracelake.server.keyset import Keyset
from tracelake.server.routes import JsonRoute, Limit, Tags, Text, cut, json_response, render_page
from tracelake.server.trace_list import (
    BUCKETS,
    Activity,
    TraceFilter,
    activity_sql,
    column_values,
    conditions_of,
    list_traces,
    not_listed,
    previews_of,
    range_of,
    read_activity,
    read_overview,
    totals_sql,
    where_of,
)
from tracelake.server.trace_list_routes import (
    CHART_HEIGHT,
    CHART_WIDTH,
    ChartBar,
    Moment,
    chart,
    link,
    presets_of,
    refuse_unknown,
    trace_filter,
)
from tracelake.tables.page_tokens import name_of_search

GroupedBy: TypeAlias = Literal["session", "user"]
GroupOrder: TypeAlias = Literal["newest", "oldest", "traces", "spans", "errors", "tokens"]
_NEWEST: Final = ("(last_ns > {latest_ns})::BIGINT", "last_ns DESC")
_KEYS: Final[dict[GroupOrder, tuple[str, ...]]] = {
    "newest": _NEWEST,
    "oldest": ("last_ns",),
    "traces": ("traces DESC", "last_ns DESC"),
    "spans": ("span_count DESC", "last_ns DESC"),
    "errors": ("error_count DESC", "last_ns DESC"),
    "tokens": ("(input_tokens::HUGEINT + output_tokens) DESC", "last_ns DESC"),
}
_SUMS: Final = ("span_count", "error_count", "input_tokens", "output_tokens")
_USER_TRACES: Final = 10
"""Traces and sessions on the page of a user."""


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One page of sessions or users, each as a row with its sums."""

    groups: list[Row]
    not_listed: str | None
    next_page: str | None
    previous_page: str | None
    activity: Activity | None = None


def list_groups(
    lake: Lake,
    by: GroupedBy,
    wanted: TraceFilter,
    order: GroupOrder = "newest",
    *,
    with_activity: bool = False,
) -> GroupPage:
    """Return one page of the sessions or users of the traces of a filter. Raises QueryError."""
    filter_key = map(str, astuple(replace(wanted, limit=0, offset=0, page=None)))
    keyset = Keyset.read(_KEYS[order], "row_id", name_of_search(by, order, *filter_key), wanted.page)
    conditions, notes = conditions_of(lake, wanted, keyset.now_ns)
    column, other = ("session_id", "user_id") if by == "session" else ("user_id", "session_id")
    where = where_of([*conditions, f"{column} IS NOT NULL", f"{column} <> ''"])
    # One character more than a list shows tells that a text is cut.
    shown = limits.LIST_TEXT_MAX_CHARS + 1
    query = f"""
        WITH grouped AS (
            SELECT {column} AS id, md5({column}) AS row_id, count(*) AS traces,
                count(*) FILTER (error_count > 0) AS failed_traces, {totals_sql(_SUMS)},
                sum(cost) AS cost,
                min(start_ns) AS first_ns, max(start_ns) AS last_ns, arg_min(trace_id, start_ns) AS first_trace_id,
                count(DISTINCT {other}) AS others, arg_max({other}, start_ns) AS other
            FROM traces {where} GROUP BY {column}
        )
        SELECT * REPLACE (left(id, {shown}) AS id, left(other, {shown}) AS other), {keyset.selected}
        FROM grouped {where_of(keyset.conditions)} ORDER BY {keyset.order} LIMIT {wanted.limit + 1:d}"""
    range_ns = range_of(wanted, keyset.now_ns)
    tables = lake.select(query, *([activity_sql(where, range_ns)] if with_activity else []))
    page = keyset.page(tables[0].to_pylist(), wanted.limit)
    names = (
        {"others": "users", "other": "user_id", "id": "session_id"}
        if by == "session"
        else {"others": "sessions", "other": "session_id", "id": "user_id"}
    )
    groups = [
        {names.get(name, name): cut(value) for name, value in row.items() if name != "row_id"}
        for row in page.rows
    ]
    return GroupPage(
        groups,
        "; ".join([*notes, *not_listed(tables[0])]) or None,
        page.next_page,
        page.previous_page,
        read_activity(tables[1]) if with_activity else None,
    )


def first_inputs(lake: Lake, groups: Sequence[Row]) -> dict[str, str | None]:
    """Return the beginning of the input of the first trace of each session, by trace id."""
    firsts = [
        {"trace_id": row["first_trace_id"], "start_ns": row["first_ns"], "end_ns": row["first_ns"]}
        for row in groups
    ]
    return {trace_id: texts["input"] for trace_id, texts in previews_of(lake, firsts).items()}


def _group_filter(
    query: Annotated[Text, Query(description="a search query that any span of a trace matches")] = None,
    last: Annotated[Text, Query(description="length of the time range that ends now: 15m, 1h, 7d")] = None,
    start: Moment = None,
    end: Moment = None,
    service: Text = None,
    model: Text = None,
    status: Text = None,
    session: Text = None,
    user: Text = None,
    tag: Tags = (),
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    page: Text = None,
) -> TraceFilter:
    return trace_filter(
        query, last, start, end, service, model, status, session, user, tag=tag, limit=limit, page=page
    )


GroupFilter = Annotated[TraceFilter, Depends(_group_filter)]


api = APIRouter(prefix="/api/v1", route_class=JsonRoute, dependencies=[Depends(refuse_unknown)])
"""JSON API for lists of sessions and users."""
pages = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])
"""Pages that list sessions and users, and the page of a user."""


@api.get("/trace-sessions")
def sessions(lake: RequestLake, wanted: GroupFilter, order: GroupOrder = "newest") -> Response:
    """List the sessions of traces with their sums."""
    return _to_json(list_groups(lake, "session", wanted, order), "sessions")


@api.get("/users")
def users(lake: RequestLake, wanted: GroupFilter, order: GroupOrder = "newest") -> Response:
    """List the users of traces with their sums."""
    return _to_json(list_groups(lake, "user", wanted, order), "users")


def _to_json(page: GroupPage, name: str) -> Response:
    next_and_previous = {"next_page": page.next_page, "previous_page": page.previous_page}
    return json_response({name: page.groups, "not_listed": page.not_listed, **next_and_previous})


@pages.get("/sessions")
def sessions_page(
    lake: RequestLake, request: Request, wanted: GroupFilter, order: GroupOrder = "newest"
) -> Response:
    """Show a page of the list of sessions."""
    return _show(lake, request, "session", wanted, order)


@pages.get("/users")
def users_page(
    lake: RequestLake, request: Request, wanted: GroupFilter, order: GroupOrder = "newest"
) -> Response:
    """Show a page of the list of users."""
    return _show(lake, request, "user", wanted, order)


@pages.get("/user")
def user_page(lake: RequestLake, request: Request, wanted: GroupFilter) -> Response:
    """Show a user."""
    if not wanted.user:
        raise UsageError("name the user: /user?user=ID; /users lists them")
    return render_page(request, "user.html", "/api/v1/trace-sessions", **_user_context(lake, request, wanted))


def _show(lake: Lake, request: Request, by: GroupedBy, wanted: TraceFilter, order: GroupOrder) -> Response:
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
        chart=None if listing.activity is None else chart(request, listing.activity),
        link=lambda **changed: link(request, **changed),
        traces_url=lambda **changed: link(request, "/", **{"order": None, "limit": None, **changed}),
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
        "chart": None if overview.activity is None else chart(request, overview.activity),
        "token_bars": [] if overview.activity is None else token_bars(request, overview.activity),
        "sessions": sessions,
        "inputs": first_inputs(lake, sessions.groups),
        "traces": traces,
        "previews": previews_of(lake, traces.traces),
        "presets": presets_of(request),
        "link": lambda **changed: link(request, **changed),
        "in_list": lambda path="/", **changed: link(request, path, **changed),
    }


def token_bars(request: Request, activity: Activity) -> list[ChartBar]:
    """Lay out tokens over time: the height is all tokens of an interval, of which `error_height` is output."""
    sums = {bucket: (row["input_tokens"], row["output_tokens"]) for bucket, row in activity.buckets.items()}
    most = max(map(sum, sums.values()), default=0)
    bars = []
    for bucket, (received, returned) in sorted(sums.items()):
        if received + returned <= 0 or most <= 0:
            continue
        first, last = activity.bounds(bucket)
        bars.append(
            ChartBar(
                bucket * CHART_WIDTH / BUCKETS,
                round(max(CHART_HEIGHT * (received + returned) / most, 2), 2),
                round(CHART_HEIGHT * max(returned, 0) / most, 2),
                f"{render.timestamp(first)[:19]} UTC: {received:,} tokens in, {returned:,} out",
                link(request, start=first, end=last),
            )
        )
    return bars
