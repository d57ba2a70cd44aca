"""What pages and API read from a lake, each time at the newest commit of `main`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from tracelake import limits
from tracelake._errors import NotFoundError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.reads import NOT_LISTED
from tracelake.otlp.encode import encode, to_json
from tracelake.results import Row
from tracelake.search.query import Sort
from tracelake.search.results import SearchResults
from tracelake.search.semantic import Mode
from tracelake.tables.large_reads import Turns
from tracelake.tables.traces import IN_ORDER

_BY_MEANING: Final = Turns(
    limits.SEMANTIC_SEARCHES_AT_ONCE_MAX,
    "other searches by meaning wait for the function that makes vectors; search again later, or by words",
)
Order: TypeAlias = Literal["newest", "oldest", "longest", "errors", "tokens"]
ORDERS: tuple[Order, ...] = get_args(Order)
ORDER_BY: dict[Order, str] = {
    "newest": "start_ns DESC",
    "oldest": "start_ns",
    "longest": "duration_ns DESC",
    "errors": "error_count DESC, start_ns DESC",
    # Senders choose both numbers, and their sum may not fit into 64 bits.
    "tokens": "coalesce(input_tokens, 0)::HUGEINT + coalesce(output_tokens, 0) DESC, start_ns DESC",
}
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


@dataclass(frozen=True, slots=True)
class TracePage:
    """Rows of table `traces`, and whether more follow."""

    traces: list[Row]
    more: bool
    not_listed: str | None
    """What no commit holds yet, and is not among them."""


def list_traces(lake: Lake, wanted: TraceFilter) -> TracePage:
    """Return one page of traces."""
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
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    table = lake.sql(
        f"SELECT {TRACE_COLUMNS} FROM traces {where} ORDER BY {ORDER_BY[wanted.order]}, trace_id "
        f"LIMIT {wanted.limit + 1:d} OFFSET {wanted.offset:d}",
        uncommitted=True,
    )
    told = (table.schema.metadata or {}).get(NOT_LISTED)
    rows: list[Row] = table.to_pylist()
    return TracePage(
        rows[: wanted.limit],
        more=len(rows) > wanted.limit,
        not_listed=None if told is None else told.decode(),
    )


def list_services(lake: Lake) -> list[str]:
    """Return the services that traces begin in, by name."""
    table = lake.sql(
        f"SELECT DISTINCT service FROM traces WHERE service IS NOT NULL ORDER BY service LIMIT {limits.PAGE_ROWS_MAX}",
        uncommitted=True,
    )
    return [str(service) for service in table.column("service").to_pylist()]


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
        return lake.search(
            query,
            service=service or None,
            limit=limit,
            mode=mode,
            vector=vector,
            sort=sort,
            facets=facets,
            page=page,
        )


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


def find_span(lake: Lake, trace_id: str, span_id: str, workspace: str | None = None) -> Row:
    """Return one span of a trace, where several workspaces have it that of the one named.

    Raises NotFoundError, and UsageError where several have it and none is named.
    """
    spans = [span for span in lake.trace(trace_id).spans if span["span_id"] == span_id]
    its = [span for span in spans if workspace in (None, span["workspace"])]
    if not its:
        raise NotFoundError(f"trace {trace_id} has no span {span_id}")
    if len(its) > 1:
        names = ", ".join(repr(span["workspace"][: limits.NAME_QUOTED_MAX_CHARS]) for span in its[:10])
        raise UsageError(
            f"several workspaces have span {span_id} of this trace; add workspace=, one of {names}"
        )
    return its[0]


def trace_as_otlp(lake: Lake, trace_id: str) -> bytes:
    """Return a trace as OTLP/JSON, spans by start time. Raises NotFoundError."""
    return to_json(encode(lake.hot.spans_of(trace_id).sort_by(IN_ORDER)))


def literal(text: str) -> str:
    """Quote text as an SQL string. Raises UsageError for a NUL, which SQL text cannot hold."""
    if "\0" in text:
        raise UsageError("a filter holds a NUL character; remove it")
    return "'" + text.replace("'", "''") + "'"


def _equal_conditions(**values: str | None) -> list[str]:
    return [f"{column} = {literal(value)}" for column, value in values.items() if value]
