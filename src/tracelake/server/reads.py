"""What pages and API read from a lake, each time at the newest commit of `main`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from tracelake import limits
from tracelake._errors import NotFoundError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.reads import NOT_LISTED
from tracelake.otlp.encode import encode, resource_spans
from tracelake.results import Row
from tracelake.search.pruning import latest_start
from tracelake.search.query import Sort
from tracelake.search.results import SearchResults
from tracelake.search.semantic import Mode
from tracelake.server.json_pieces import document
from tracelake.tables.large_reads import Turns
from tracelake.tables.result_pages import ListToken, name_of_search, read_list_token
from tracelake.tables.table import to_rows
from tracelake.tables.traces import IN_ORDER

_BY_MEANING: Final = Turns(
    limits.SEMANTIC_SEARCHES_AT_ONCE_MAX,
    "other searches by meaning wait for the function that makes vectors; search again later, or by words",
)
Order: TypeAlias = Literal["newest", "oldest", "longest", "errors", "tokens"]
_HIT_TEXTS: Final = ("name", "service", "model", "status", "session_id", "user_id", "workspace")
ORDERS: tuple[Order, ...] = get_args(Order)
# Senders choose both numbers, and their sum may not fit into 64 bits.
TOKENS: Final = "(coalesce(input_tokens, 0)::HUGEINT + coalesce(output_tokens, 0))"
KEYS: dict[Order, tuple[str, ...]] = {
    # A trace that starts far in the future would otherwise head the list for good.
    "newest": ("(start_ns > {latest_ns})::BIGINT", "start_ns DESC"),
    "oldest": ("start_ns",),
    "longest": ("duration_ns DESC",),
    "errors": ("error_count DESC", "start_ns DESC"),
    "tokens": (f"{TOKENS} DESC", "start_ns DESC"),
}
"""What each order sorts by, ids of traces last."""
TRACE_COLUMNS = (
    "trace_id, workspace, name, service, start_ns, end_ns, duration_ns, span_count, error_count, "
    "input_tokens, output_tokens, session_id, user_id"
)


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Which traces to list. Text matches whole values, except `name`, which matches a part in any case."""

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
    """Rows of table `traces`, and whether more follow."""

    traces: list[Row]
    more: bool
    not_listed: str | None
    """What no commit holds yet, and is not among them."""
    next_page: str | None = None
    """The token of the page that follows; None if none does."""
    previous_page: str | None = None
    """The token of the page before; None for the first page, and for a page that was asked for by its offset."""


def list_traces(lake: Lake, wanted: TraceFilter) -> TracePage:
    """Return one page of traces. Raises QueryError for a page of another list."""
    if wanted.page is not None and wanted.offset:
        raise UsageError("a list takes a page or an offset, not both; leave one out")
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
        [{key: _cut(value) for key, value in row.items()} for row in rows],
        more=has_next,
        not_listed=None if told is None else told.decode(),
        next_page=page_at(-1, before=False) if has_next else None,
        previous_page=page_at(0, before=True) if has_previous else None,
    )


def _behind(keys: Sequence[tuple[str, str, bool]]) -> str:
    """Return the condition of rows that come behind one: its columns in order, with values and whether they fall."""
    column, value, falls = keys[0]
    behind = f"{column} {'<' if falls else '>'} {value}"
    return behind if len(keys) == 1 else f"({behind} OR ({column} = {value} AND {_behind(keys[1:])}))"


def list_services(lake: Lake) -> list[str]:
    """Return the services that traces begin in, by name."""
    table = lake.sql(
        f"SELECT DISTINCT service FROM traces WHERE service IS NOT NULL ORDER BY service LIMIT {limits.PAGE_ROWS_MAX}",
        uncommitted=True,
    )
    return [_cut(str(service)) for service in table.column("service").to_pylist()]


def _cut(value: Any) -> Any:
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
    """Return a page of a search, by words or meaning, in one service or in all. Raises BackPressureError."""
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
    results[:] = [replace(hit, **{name: _cut(getattr(hit, name)) for name in _HIT_TEXTS}) for hit in results]
    return results


@contextmanager
def _turn(mode: Mode | None, vector: Sequence[float] | None) -> Iterator[None]:
    """Wait for a turn where the function of the user is asked, which may take as long as it likes."""
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
    """Quote text as an SQL string. Raises UsageError for a NUL, which SQL text cannot hold."""
    if "\0" in text:
        raise UsageError("a filter holds a NUL character; remove it")
    return "'" + text.replace("'", "''") + "'"


def _equal_conditions(**values: str | None) -> list[str]:
    return [f"{column} = {literal(value)}" for column, value in values.items() if value]
