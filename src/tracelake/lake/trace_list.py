"""Lists of traces, sessions and users, and the overview: filters, orders, pages, and activity over time.

A filter by query, service or model finds a trace if any of its spans matches. A session or user is listed if it has
such a trace, and its numbers count these traces only. A list and its activity come from one commit and the same
uncommitted rows, except in a large lake, where statistics are reused for up to a minute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa

from tracelake import limits
from tracelake._errors import QueryError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.reads import NOT_LISTED
from tracelake.results import Row
from tracelake.search.query_values import nanoseconds, period
from tracelake.tables.page_tokens import Keyset, name_of_search
from tracelake.tables.uncommitted import FirstRows

Order: TypeAlias = Literal["newest", "oldest", "longest", "errors", "tokens", "spans", "cost"]
# Clients choose both numbers, and the sum may overflow 64 bits.
TOKENS: Final = "(coalesce(input_tokens, 0)::HUGEINT + coalesce(output_tokens, 0))"
KEYS: dict[Order, tuple[str, ...]] = {
    # Otherwise a trace that starts far in the future would lead the list permanently.
    "newest": ("(start_ns > {latest_ns})::BIGINT", "start_ns DESC"),
    "oldest": ("start_ns",),
    "longest": ("duration_ns DESC",),
    "errors": ("error_count DESC", "start_ns DESC"),
    "tokens": (f"{TOKENS} DESC", "start_ns DESC"),
    "spans": ("span_count DESC", "start_ns DESC"),
    # In billionths of a dollar, within 64 bits; NaN counts as the largest cost.
    "cost": ("(least(greatest(coalesce(cost, 0), 0), 9e9) * 1e9)::BIGINT DESC", "start_ns DESC"),
}
"""Sort keys of each order; trace ids break ties."""
TRACE_COLUMNS = (
    "trace_id, workspace, name, service, start_ns, end_ns, duration_ns, span_count, error_count, "
    "input_tokens, output_tokens, cost, session_id, user_id"
)
BUCKETS: Final = 60
"""Intervals of a chart."""
_INT64_MAX: Final = (1 << 63) - 1
_SHOWN_AGE_NS: Final = 3_000_000_000
"""Age from which on a page names the time of its statistics."""
_ROUNDED_MAX_NS: Final = 60_000_000_000
"""Longest time by which a range that ends now begins early."""


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Filter for traces. Text matches whole values, except `name`, which matches a substring in any case."""

    service: str | None = None
    """A service of any span."""
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
    query: str | None = None
    """A search query that any span matches."""
    model: str | None = None
    """A model of any span."""
    type: str | None = None
    """A type of any span, such as `tool`."""
    status: Literal["ok", "error"] | None = None
    max_duration_ms: float | None = None
    last_ns: int | None = None
    """Length of the time range that ends now."""
    start_ns: int | None = None
    end_ns: int | None = None
    """The last nanosecond of the time range."""

    @classmethod
    def parse(
        cls, *, last: str | None, start: str | None, end: str | None, tag: Iterable[str], **fields: Any
    ) -> Self:
        """Return the filter with a time range and tags as users write them. Raises UsageError.

        Args:
            last: Length of the time range that ends now, such as `15m`.
            start: First time of the range, as `2026-01-31`, `2026-01-31T17:30Z` or nanoseconds since 1970.
            end: Last time of the range.
            tag: Tags, each as `KEY=VALUE`.
            fields: The other fields of the filter.
        """
        if fields["status"] not in (None, "ok", "error"):
            raise UsageError("status is ok or error")
        return cls(
            last_ns=_length(last),
            start_ns=_time(start, "start"),
            end_ns=_time(end, "end", is_end=True),
            tags=tuple(_tag(each) for each in tag if each),
            **fields,
        )


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


@dataclass(frozen=True, slots=True)
class Activity:
    """Traces over time: their number, errors, latency, tokens and cost, in intervals of equal length."""

    low_ns: int
    high_ns: int
    total: Row
    """Counts and percentiles of all traces of the filter."""
    buckets: dict[int, Row]
    """The same for each interval that has traces, by its number."""
    as_of_ns: int
    """The time at which they were counted."""

    @property
    def is_stale(self) -> bool:
        """Return whether they were counted before the page that shows them was requested."""
        return time.time_ns() > self.as_of_ns + _SHOWN_AGE_NS

    @property
    def bucket_count(self) -> int:
        """Return the number of intervals, with those that have no trace."""
        return BUCKETS

    def bounds(self, bucket: int) -> tuple[int, int]:
        """Return the first and last nanosecond of an interval."""
        length = self.high_ns - self.low_ns + 1
        # The smallest start time whose bucket this is; the SQL rounds down.
        first, after = (self.low_ns - (-number * length // BUCKETS) for number in (bucket, bucket + 1))
        return first, after - 1


@dataclass(frozen=True, slots=True)
class TracePage:
    """One page of the trace list."""

    traces: list[Row]
    more: bool
    not_listed: str | None
    """Note about traces that the list does not include."""
    next_page: str | None = None
    """Token of the next page, or None."""
    previous_page: str | None = None
    """Token of the previous page; None for the first page, and for a page requested by offset."""
    activity: Activity | None = None


def cut(value: Any) -> Any:
    """Return a value shortened for a list: long texts are cut and end with an ellipsis."""
    if isinstance(value, str) and len(value) > limits.LIST_TEXT_MAX_CHARS:
        return value[: limits.LIST_TEXT_MAX_CHARS - 1] + "…"
    return value


def literal(text: str) -> str:
    """Quote text as an SQL string. Raises UsageError for a NUL character, which SQL text cannot contain."""
    if "\0" in text:
        raise UsageError("a filter contains a NUL character; remove it")
    return "'" + text.replace("'", "''") + "'"


def list_traces(lake: Lake, wanted: TraceFilter, *, with_activity: bool = False) -> TracePage:
    """Return one page of traces. Raises QueryError for a token of another list."""
    if wanted.page is not None and wanted.offset:
        raise UsageError("a list accepts a page or an offset, not both; leave one out")
    name = name_of_search(*map(str, astuple(replace(wanted, limit=0, offset=0, page=None))))
    keyset = Keyset.read(KEYS[wanted.order], "trace_id", name, wanted.page)
    conditions, notes = conditions_of(lake, wanted, keyset.now_ns)
    query = (
        f"SELECT {TRACE_COLUMNS}, {keyset.selected} FROM traces {where_of([*conditions, *keyset.conditions])}"
    )
    range_ns = range_of(wanted, keyset.now_ns)
    counting = activity_sql(where_of(conditions), range_ns) if with_activity else None
    rows = FirstRows(query, keyset.order, wanted.limit + 1, wanted.offset)
    table, activity = _with_activity(lake, rows, counting, ("traces", _filter_key(wanted)))
    page = keyset.page(table.to_pylist(), wanted.limit)
    return TracePage(
        [{key: cut(value) for key, value in row.items()} for row in page.rows],
        more=page.next_page is not None,
        not_listed="; ".join([*notes, *not_listed(table)]) or None,
        next_page=page.next_page,
        previous_page=page.previous_page,
        activity=activity,
    )


def _filter_key(wanted: TraceFilter) -> TraceFilter:
    """Return the part of a filter that chooses traces, without order and page."""
    return replace(wanted, order="newest", limit=0, offset=0, page=None)


def _with_activity(
    lake: Lake, query: FirstRows, counting: str | None, key: Hashable
) -> tuple[pa.Table, Activity | None]:
    """Return the rows of a query and the activity by the SQL `counting`, both of one commit. In a large lake, the
    activity may be an earlier one with this key."""
    rows = None

    def with_rows() -> Activity | None:
        nonlocal rows
        rows, counted = lake.select(str(query), counting or "")
        return read_activity(counted)

    activity = None
    if counting is not None:
        activity = lake.statistics(key, lambda: read_activity(*lake.select(counting)), with_rows)
    return lake.reads.first_rows(query) if rows is None else rows, activity


def not_listed(table: pa.Table) -> list[str]:
    """Return the note about uncommitted spans that a table lacks, if it has one."""
    note = (table.schema.metadata or {}).get(NOT_LISTED)
    return [] if note is None else [note.decode()]


def range_of(wanted: TraceFilter, now_ns: int) -> tuple[int | None, int | None]:
    """Return the first and last nanosecond of a filter's time range; None for an open end.

    A length of time begins up to a minute, and a sixtieth of it, early, so that lists of the same minute share cached
    results.
    """
    start_ns, end_ns = wanted.start_ns, wanted.end_ns
    if wanted.last_ns is not None:
        first_ns = now_ns - wanted.last_ns
        early_ns = first_ns % max(1, min(wanted.last_ns // 60, _ROUNDED_MAX_NS))
        start_ns = max(first_ns - early_ns, start_ns or 0)
    return start_ns, end_ns


def conditions_of(lake: Lake, wanted: TraceFilter, now_ns: int) -> tuple[list[str], list[str]]:
    """Return SQL conditions on table `traces` for a filter, and notes on traces that they may miss."""
    start_ns, end_ns = range_of(wanted, now_ns)
    equal = {"session_id": wanted.session, "user_id": wanted.user}
    conditions = [f"{column} = {literal(value)}" for column, value in equal.items() if value]
    for column, value in (("service", wanted.service), ("model", wanted.model), ("type", wanted.type)):
        if value:
            conditions.append(f"trace_id IN (SELECT trace_id FROM spans WHERE {column} = {literal(value)})")
    if wanted.name:
        conditions.append(f"contains(lower(name), lower({literal(wanted.name)}))")
    if wanted.min_duration_ms is not None:
        conditions.append(f"duration_ns >= {int(wanted.min_duration_ms * 1_000_000)}")
    if wanted.max_duration_ms is not None:
        conditions.append(f"duration_ns <= {int(wanted.max_duration_ms * 1_000_000)}")
    if wanted.errors or wanted.status == "error":
        conditions.append("error_count > 0")
    if wanted.status == "ok":
        conditions.append("error_count = 0")
    if start_ns is not None:
        conditions.append(f"start_ns >= {start_ns}")
    if end_ns is not None:
        conditions.append(f"start_ns <= {end_ns}")
    if wanted.tags:
        conditions.append(among(lake.annotations.traces_with(dict(wanted.tags))))
    if not wanted.query or wanted.query.strip() in ("", "*"):
        return conditions, []
    ids, notes = _matching(lake, wanted.query, start_ns)
    return [*conditions, among(ids)], notes


def where_of(conditions: Sequence[str]) -> str:
    """Return the WHERE clause of conditions."""
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def among(trace_ids: Sequence[str]) -> str:
    """Return the SQL condition for rows of these traces."""
    ids = ", ".join(map(literal, trace_ids))
    return f"trace_id IN ({ids})" if ids else "false"


def _matching(lake: Lake, query: str, start_ns: int | None) -> tuple[Sequence[str], list[str]]:
    """Return the traces with a span that matches a query, and notes on those that are missing."""
    ranged = query
    if start_ns is not None and start_ns >= 0:
        # No span starts before its trace, so this leaves out no trace of the time range.
        ranged = f"({query}) start>={np.datetime64(start_ns, 'ns')}Z"
    most = limits.TRACE_QUERY_SPANS_MAX
    try:
        matching = lake.traces_matching(ranged, most)
    except QueryError:
        lake.traces_matching(query, 1)  # its message has positions in the query of the user
        raise
    notes = [f"the list has the traces of the newest {most:,} matching spans; narrow the query or the time"]
    not_searched = [] if matching.not_searched is None else [matching.not_searched]
    return matching.trace_ids, [*(notes if matching.is_cut else []), *not_searched]


def totals_sql(columns: Iterable[str]) -> str:
    """Return the SQL of the sums of columns. Senders choose the values, so a sum stays within 64 bits."""
    return ", ".join(
        f"least(coalesce(sum({name}::HUGEINT), 0), {_INT64_MAX})::BIGINT AS {name}" for name in columns
    )


_TOKEN_SUMS: Final = totals_sql(("input_tokens", "output_tokens"))
# The sum of doubles depends on their order, and pages of a list compare it.
_COST_SUM: Final = (
    "sum((least(greatest(cost, 0), 9e9) * 1e12)::HUGEINT) FILTER (cost IS NOT NULL)::DOUBLE / 1e12 AS cost"
)
_LATENCY: Final = "quantile_disc(duration_ns, 0.5) AS p50_ns, quantile_disc(duration_ns, 0.95) AS p95_ns"
STATISTICS_SQL: Final = f"""
    count(*) AS traces, count(*) FILTER (error_count > 0) AS errors,
    {_LATENCY}, quantile_disc(duration_ns, 0.99) AS p99_ns, {_TOKEN_SUMS}, {_COST_SUM}"""
"""Columns of statistics over rows of table `traces`."""


_BUCKET: Final = f"(({BUCKETS} * (chosen.start_ns - low)) // (high - low + 1))::INTEGER AS bucket"


def _intervals_sql(columns: str, where: str, range_ns: tuple[int | None, int | None]) -> str:
    """Return the tables `chosen`, columns of the traces that a WHERE clause selects, and `bounds`, the ends of their
    intervals."""
    low, high = (
        f"{each}({'start_ns' if bound is None else bound})::HUGEINT"
        for each, bound in zip(("min", "max"), range_ns, strict=True)
    )
    return f"""
        WITH chosen AS (SELECT start_ns, {columns} FROM traces {where}),
        bounds AS (SELECT {low} AS low, greatest({high}, {low}) AS high FROM chosen)"""


def activity_sql(where: str, range_ns: tuple[int | None, int | None]) -> str:
    """Return the SQL of the activity of the traces that a WHERE clause selects."""
    columns = "duration_ns, error_count, input_tokens, output_tokens, cost"
    return f"""{_intervals_sql(columns, where, range_ns)}
        SELECT {_BUCKET}, any_value(low)::BIGINT AS low, any_value(high)::BIGINT AS high, {STATISTICS_SQL}
        FROM chosen, bounds GROUP BY GROUPING SETS ((bucket), ())"""


def read_activity(table: pa.Table) -> Activity | None:
    """Return the activity from the result of `activity_sql`; None without traces."""
    rows = {row.pop("bucket"): row for row in table.to_pylist()}
    total = rows.pop(None)
    if not total["traces"]:
        return None
    for row in (total, *rows.values()):
        low_ns, high_ns = row.pop("low"), row.pop("high")
    return Activity(low_ns, high_ns, total, rows, time.time_ns())


def column_values(lake: Lake, column: str) -> list[str]:
    """Return the values of a column of spans, sorted."""
    query = f"SELECT DISTINCT {column} FROM spans WHERE {column} IS NOT NULL ORDER BY 1 LIMIT {limits.PAGE_ROWS_MAX}"

    def read() -> list[str]:
        (table,) = lake.select(query)
        return [cut(str(value)) for value in table.column(0).to_pylist()]

    return lake.statistics(query, read)


_ROWS: Final = 10
"""Rows of each table of the overview."""
_MAP_ROWS: Final = 40
"""Services of the overview, and pairs of services of which one calls the other."""
_ERRORS: Final = "count(*) FILTER (status = 'ERROR') AS errors"
_IS_CALL: Final = "coalesce(type, '') NOT IN ('agent', 'chain')"
"""Condition on spans that do not repeat the usage of spans below them."""


def _call_sum(name: str) -> str:
    return (
        f"least(coalesce(sum({name}::HUGEINT) FILTER ({_IS_CALL}), sum({name}::HUGEINT), 0), {_INT64_MAX})::BIGINT "
        f"AS {name}"
    )


_CALL_SUMS: Final = f"{_call_sum('input_tokens')}, {_call_sum('output_tokens')}"
_CALL_COST: Final = f"coalesce(sum(cost) FILTER ({_IS_CALL}), sum(cost)) AS cost"


SplitColumn: TypeAlias = Literal["service", "model", "type"]
_SPLIT_VALUES: Final = 5


@dataclass(frozen=True, slots=True)
class SpanSeries:
    """Spans with one value of a column, or with one of its less frequent values: their number, errors, latency, tokens
    and cost."""

    value: str | None
    """The value; None for the less frequent ones."""
    total: Row
    buckets: dict[int, Row]
    """The same for each interval of the activity that has such spans, by its number."""


def _split_sql(column: SplitColumn, where: str, range_ns: tuple[int | None, int | None]) -> str:
    """Return the SQL of the series of a column. A span counts in the interval in which its trace starts."""
    first = "sum(cost) DESC NULLS LAST, " if column == "model" else ""
    return f"""{_intervals_sql("trace_id", where, range_ns)},
        parts AS (
            SELECT {_BUCKET}, left({column}, {limits.LIST_TEXT_MAX_CHARS}) AS value, spans.duration_ns, status,
                type, cost, CASE WHEN coalesce(input_tokens, output_tokens) IS NOT NULL THEN {TOKENS} END AS tokens
            FROM spans JOIN chosen USING (trace_id), bounds WHERE {column} IS NOT NULL
        ), frequent AS (
            SELECT value FROM parts GROUP BY value ORDER BY {first}count(*) DESC, value LIMIT {_SPLIT_VALUES}
        )
        SELECT frequent.value, bucket, count(*) AS spans, {_ERRORS},
            quantile_disc(duration_ns, 0.95) AS p95_ns, {_call_sum("tokens")}, {_CALL_COST}
        FROM parts LEFT JOIN frequent USING (value)
        GROUP BY GROUPING SETS ((frequent.value, bucket), (frequent.value))
        ORDER BY frequent.value IS NULL, bucket IS NOT NULL, {first.replace("sum(cost)", "cost")}spans DESC, 1"""


def _read_series(table: pa.Table) -> list[SpanSeries]:
    """Return the series from the result of `_split_sql`."""
    series: dict[str | None, SpanSeries] = {}
    for row in table.to_pylist():
        value, bucket = row.pop("value"), row.pop("bucket")
        if bucket is None:
            series[value] = SpanSeries(value, row, {})
        else:
            series[value].buckets[bucket] = row
    return list(series.values())


@dataclass(frozen=True, slots=True)
class Overview:
    """Statistics of traces and of their spans."""

    activity: Activity | None
    services: list[Row]
    models: list[Row]
    """Models with their tokens and cost, the most expensive first."""
    types: list[Row]
    """Types of spans, the most frequent first."""
    operations: list[Row]
    """Operations with the largest 95th percentile of latency first."""
    errors: list[Row]
    """Error messages with the number of spans that have them, and one of their traces."""
    calls: list[Row]
    """Calls from one service to another: their number, errors, and sum of durations."""
    not_listed: str | None
    split: list[SpanSeries]
    """The spans by the values of a column, if one was requested: the most frequent values, or the most expensive
    models, then the others as one."""


def read_overview(lake: Lake, wanted: TraceFilter, split: SplitColumn | None = None) -> Overview:
    """Return the overview of the traces of a filter; in a large lake, it may be up to a minute old. Raises QueryError
    if the filter's query does not parse."""
    key = ("overview", _filter_key(wanted), split)
    return lake.statistics(key, lambda: _count_overview(lake, wanted, split))


def _count_overview(lake: Lake, wanted: TraceFilter, split: SplitColumn | None) -> Overview:
    now_ns = time.time_ns()
    conditions, notes = conditions_of(lake, wanted, now_ns)
    where = where_of(conditions)
    chosen = f"SEMI JOIN (SELECT trace_id FROM traces {where}) AS chosen USING (trace_id)" if where else ""
    spans = f"spans {chosen}"
    message = f"left(coalesce(nullif(status_message, ''), name), {limits.LIST_TEXT_MAX_CHARS})"
    range_ns = range_of(wanted, now_ns)
    activity, *tables = lake.select(
        activity_sql(where, range_ns),
        f"SELECT service, count(DISTINCT trace_id) AS traces, count(*) AS spans, {_ERRORS}, {_LATENCY}, {_TOKEN_SUMS} "
        f"FROM {spans} WHERE service IS NOT NULL GROUP BY service ORDER BY traces DESC, service LIMIT {_MAP_ROWS}",
        f"SELECT model, count(*) AS spans, {_ERRORS}, {_LATENCY}, {_CALL_SUMS}, {_CALL_COST} "
        f"FROM {spans} WHERE model IS NOT NULL GROUP BY model "
        f"ORDER BY cost DESC NULLS LAST, spans DESC, model LIMIT {_ROWS}",
        f"SELECT type, count(*) AS spans, {_ERRORS}, {_LATENCY} "
        f"FROM {spans} WHERE type IS NOT NULL GROUP BY type ORDER BY spans DESC, type",
        f"SELECT name, service, count(*) AS spans, {_ERRORS}, {_LATENCY} "
        f"FROM {spans} GROUP BY name, service ORDER BY p95_ns DESC, name, service LIMIT {_ROWS}",
        f"SELECT {message} AS message, count(*) AS spans, count(DISTINCT trace_id) AS traces, "
        "arg_max(trace_id, start_ns) AS trace_id, max(start_ns) AS last_ns "
        f"FROM {spans} WHERE status = 'ERROR' GROUP BY message ORDER BY spans DESC, message LIMIT {_ROWS}",
        "SELECT caller.service AS caller, callee.service AS callee, count(*) AS calls, "
        "count(*) FILTER (callee.status = 'ERROR') AS errors, "
        f"least(greatest(sum(callee.duration_ns::HUGEINT), 0), {_INT64_MAX})::BIGINT AS total_ns "
        f"FROM (SELECT trace_id, parent_span_id, service, status, duration_ns FROM {spans} "
        "WHERE parent_span_id IS NOT NULL) AS callee "
        f"JOIN (SELECT trace_id, span_id, service FROM {spans}) AS caller "
        "ON caller.trace_id = callee.trace_id AND caller.span_id = callee.parent_span_id "
        f"WHERE caller.service <> callee.service GROUP BY ALL ORDER BY calls DESC, caller, callee LIMIT {_MAP_ROWS}",
        *([_split_sql(split, where, range_ns)] if split else []),
    )
    series = _read_series(tables.pop()) if split else []
    services, models, types, operations, errors, calls = (
        [{name: cut(value) for name, value in row.items()} for row in table.to_pylist()] for table in tables
    )
    note = "; ".join([*notes, *not_listed(activity)]) or None
    shown = read_activity(activity)
    return Overview(shown, services, models, types, operations, errors, calls, note, series)


GroupedBy: TypeAlias = Literal["session", "user"]
GroupOrder: TypeAlias = Literal["newest", "oldest", "traces", "spans", "errors", "tokens", "cost"]
_NEWEST: Final = ("(last_ns > {latest_ns})::BIGINT", "last_ns DESC")
_GROUP_KEYS: Final[dict[GroupOrder, tuple[str, ...]]] = {
    "newest": _NEWEST,
    "oldest": ("last_ns",),
    "traces": ("traces DESC", "last_ns DESC"),
    "spans": ("span_count DESC", "last_ns DESC"),
    "errors": ("error_count DESC", "last_ns DESC"),
    "tokens": ("(input_tokens::HUGEINT + output_tokens) DESC", "last_ns DESC"),
    "cost": ("(least(coalesce(cost, 0), 9e9) * 1e9)::BIGINT DESC", "last_ns DESC"),
}
_SUMS: Final = ("span_count", "error_count", "input_tokens", "output_tokens")


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
    keyset = Keyset.read(_GROUP_KEYS[order], "row_id", name_of_search(by, order, *filter_key), wanted.page)
    conditions, notes = conditions_of(lake, wanted, keyset.now_ns)
    column, other = ("session_id", "user_id") if by == "session" else ("user_id", "session_id")
    where = where_of([*conditions, f"{column} IS NOT NULL", f"{column} <> ''"])
    # One character more than a list shows tells that a text is cut.
    shown = limits.LIST_TEXT_MAX_CHARS + 1
    query = f"""
        WITH grouped AS (
            SELECT {column} AS id, md5({column}) AS row_id, count(*) AS traces,
                count(*) FILTER (error_count > 0) AS failed_traces, {totals_sql(_SUMS)},
                {_COST_SUM},
                min(start_ns) AS first_ns, max(start_ns) AS last_ns, arg_min(trace_id, start_ns) AS first_trace_id,
                count(DISTINCT {other}) AS others, arg_max({other}, start_ns) AS other
            FROM traces {where} GROUP BY {column}
        )
        SELECT * REPLACE (left(id, {shown}) AS id, left(other, {shown}) AS other), {keyset.selected}
        FROM grouped {where_of(keyset.conditions)}"""
    range_ns = range_of(wanted, keyset.now_ns)
    counting = activity_sql(where, range_ns) if with_activity else None
    rows = FirstRows(query, keyset.order, wanted.limit + 1, grouped_by=column)
    table, activity = _with_activity(lake, rows, counting, (by, _filter_key(wanted)))
    page = keyset.page(table.to_pylist(), wanted.limit)
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
        "; ".join([*notes, *not_listed(table)]) or None,
        page.next_page,
        page.previous_page,
        activity,
    )
