"""Built-in tables `spans` and `traces`: their schemas, how a trace is aggregated, and the rows of one workspace.

In SQL, TRACKED comes from the tracking store: assessments and experiments. They have today's rows, whatever commit a
query reads, because people change them at any time. A user's table with the same name takes precedence.

Writers, readers, maintenance and verification use `BUILT_IN`. A new table is one entry there, and the code in
`pipeline/merge_task.py` that fills it. In a lake of an earlier release, the new table is empty until the next
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.limits import TRACE_USAGE_MAX_STEPS, TRACKED_ROWS_MAX
from tracelake.otlp import conventions
from tracelake.otlp.schema import IS_SERVER_SQL, SPANS_ADDED, SPANS_TABLE, TRANSACTION_FIELD
from tracelake.results import is_server_side
from tracelake.shards.model import SHARED_SCHEMA_VERSION
from tracelake.shards.rows import SHARED, literal
from tracelake.storage import ObjectStore
from tracelake.tables.predicates import Layout
from tracelake.tracking.location import find_tracking

# ruff: noqa: PLC0415  SQLAlchemy: queries that name no table of the tracking store start without it

_FIELDS: list[pa.Field[Any]] = [
    pa.field("trace_id", pa.string(), nullable=False),
    pa.field("workspace", pa.string(), nullable=False),
    pa.field("name", pa.string(), nullable=False),  # of the root span, or of the earliest span without a root
    pa.field("service", pa.string()),  # of the same span as the name
    pa.field("start_ns", pa.int64(), nullable=False),
    pa.field("end_ns", pa.int64(), nullable=False),
    pa.field("duration_ns", pa.int64(), nullable=False),
    pa.field("span_count", pa.int64(), nullable=False),
    pa.field("error_count", pa.int64(), nullable=False),
    pa.field("input_tokens", pa.int64()),  # sum over spans, repeated usage once; null if no span has any
    pa.field("output_tokens", pa.int64()),
    pa.field("cached_input_tokens", pa.int64()),
    pa.field("cache_write_tokens", pa.int64()),
    pa.field("reasoning_tokens", pa.int64()),
    pa.field("total_tokens", pa.int64()),
    pa.field("cost", pa.float64()),  # US dollars
    pa.field("session_id", pa.string()),  # of the earliest span that has one
    pa.field("user_id", pa.string()),
    TRANSACTION_FIELD,
]
TRACES: Final = pa.schema(_FIELDS)
TRACES_ADDED: Final = dict.fromkeys(
    ("cached_input_tokens", "cache_write_tokens", "reasoning_tokens", "total_tokens", "cost"), 2
)
"""The columns that parts of earlier releases lack, with the version of the schema that added them."""

SPAN_COLUMNS: Final = (
    *("trace_id", "span_id", "parent_span_id", "workspace", "service", "name", "kind", "status"),
    *("start_ns", "end_ns", "input_tokens", "output_tokens", *TRACES_ADDED, "session_id", "user_id"),
)
"""The columns of `spans` from which a row of `traces` is aggregated."""

TRACE_VALUES: Final = {"trace_session": "session_id", "trace_user": "user_id"}
"""Columns of `spans` in SQL with the value of the span, or else of its trace. They exist if a query names one."""
CARRIER_COLUMNS: Final = ("trace_id", "span_id", "workspace", "kind", "start_ns", *TRACE_VALUES.values())
"""The columns of `spans` that determine the session and user of a trace."""

IN_ORDER: Final[list[tuple[str, Literal["ascending", "descending"]]]] = [
    ("start_ns", "ascending"),
    ("span_id", "ascending"),
    ("workspace", "ascending"),
    ("kind", "ascending"),
]
"""Display order of the spans of a trace. It is deterministic for a given lake."""

_USAGE: Final = ("input_tokens", "output_tokens", *TRACES_ADDED)
_TOKENS: Final = _USAGE[:-1]
_COST_UNIT: Final = 1e12
"""Costs are added as integers of a trillionth of a dollar, because the sum of doubles depends on their order."""
_HAS_USAGE_SQL: Final = f"coalesce({', '.join(_USAGE)}) is not null"
_Id: TypeAlias = tuple[str, str | None]
"""Workspace and id of a span in the tree."""
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


def aggregate_sql(spans: str, transaction: int, *, with_plain_sums: bool = False) -> str:
    """Return the SQL that makes rows of `traces` from a relation with SPAN_COLUMNS.

    Ties are broken by span id, workspace and side, so the result does not depend on the order of the rows. Senders
    choose the numbers, so sums and differences saturate at the bounds of int64 and never fail.

    Token usage counts once, even if a span reports it again for its descendants. The usage of a span is subtracted from
    the nearest ancestor that reports usage; only the remainder of the ancestor's usage counts.

    Args:
        spans: A table, or a query in parentheses.
        transaction: The transaction of the rows.
        with_plain_sums: Add `plain_input_tokens` and `plain_output_tokens`, the sums over all spans.
    """
    early = f"row(start_ns, span_id, workspace, {IS_SERVER_SQL})"
    root = f"row(parent_span_id is not null, start_ns, span_id, workspace, {IS_SERVER_SQL})"
    end = "max(greatest(start_ns, end_ns))"
    plain = ", ".join(f"{_saturated(name)} as plain_{name}" for name in _USAGE[:2]) if with_plain_sums else ""
    sums = ", ".join(f"sum({_integer_sql(name)}) as {name}" for name in _USAGE)
    once = {name: _saturated(f"{name} - coalesce(repeated_{name}, 0)") for name in _USAGE}
    once["cost"] = f"({once['cost']})::double / {_COST_UNIT}"
    replaced = ", ".join(f"{sql} as {name}" for name, sql in once.items())
    return f"""
        with recursive {_repeated_sql(spans)}, of_traces as (
            select trace_id,
                   arg_min(workspace, {root}) as workspace,
                   arg_min(name, {root}) as name,
                   arg_min_null(service, {root}) as service,
                   min(start_ns) as start_ns,
                   {end} as end_ns,
                   {_saturated(f"{end}::hugeint - min(start_ns)")} as duration_ns,
                   count(*) as span_count,
                   count(*) filter (status = 'ERROR') as error_count,
                   {sums},
                   arg_min(session_id, {early}) filter (session_id is not null) as session_id,
                   arg_min(user_id, {early}) filter (user_id is not null) as user_id
            from {spans} group by trace_id
        )
        select of_traces.* replace ({replaced}),
               {transaction}::bigint as transaction{plain and ", " + plain}
        from of_traces left join repeated using (trace_id) order by trace_id
    """


def _repeated_sql(spans: str) -> str:
    """Return SQL CTEs. The CTE `repeated` has the usage of each trace that spans report although their descendants
    report it too.

    The CTE `placed` places spans in the tree as `Trace.walk` does. If the server span of a call shares its id with the
    client span, its id there ends in `+`.
    """
    has_usage = _HAS_USAGE_SQL
    read = ", ".join(f"{_integer_sql(name)} as {name}" for name in _USAGE)
    tokens = ", ".join(_USAGE)
    of_step = ", ".join(f"s.{name}" for name in _USAGE)
    sums = ", ".join(f"sum({name}) as {name}" for name in _USAGE)
    both = ", ".join(
        f"sum(greatest(least(coalesce(above.{name}, 0), coalesce(given.{name}, 0)), 0))::hugeint as repeated_{name}"
        for name in _USAGE
    )
    return f"""
        narrow as materialized (
            select trace_id, workspace, span_id, parent_span_id, service, {IS_SERVER_SQL} as is_server, {read}
            from {spans} where trace_id in (
                select trace_id from {spans} where {has_usage} and (parent_span_id is not null or {IS_SERVER_SQL}))
        ), shared as (
            select trace_id, workspace, span_id, max(service) filter (is_server) as server_service
            from narrow group by all having bool_or(is_server) and not bool_and(is_server)
        ), placed as materialized (
            select n.trace_id, n.workspace,
                   n.span_id || case when n.is_server and own.span_id is not null then '+' else '' end as span_id,
                   case when n.is_server and own.span_id is not null then n.span_id
                        when above.span_id is not null and n.service is not distinct from above.server_service
                        then n.parent_span_id || '+' else n.parent_span_id end as parent_span_id,
                   {tokens}
            from narrow n left join shared own using (trace_id, workspace, span_id) left join shared above
                on above.trace_id = n.trace_id and above.workspace = n.workspace and above.span_id = n.parent_span_id
        ), steps as (
            select trace_id, workspace, span_id, parent_span_id as above_id, {tokens}, 1 as step
            from placed where {has_usage} and parent_span_id is not null
            union
            select s.trace_id, s.workspace, s.span_id, p.parent_span_id, {of_step}, s.step + 1
            from steps s join placed p
                on p.trace_id = s.trace_id and p.workspace = s.workspace and p.span_id = s.above_id
            where coalesce({", ".join(f"p.{name}" for name in _USAGE)}) is null and p.parent_span_id is not null
                and s.step < {TRACE_USAGE_MAX_STEPS}
        ), given as (
            select trace_id, workspace, above_id as span_id, {sums} from steps
            where above_id <> span_id group by all
        ), repeated as (
            select above.trace_id, {both}
            from (from placed where {has_usage}) as above join given using (trace_id, workspace, span_id)
            group by above.trace_id
        )"""


def _integer_sql(name: str) -> str:
    """Return SQL of usage as an integer."""
    return f"({name} * {_COST_UNIT})::hugeint" if name == "cost" else f"{name}::hugeint"


def _integer(span: Mapping[str, Any], name: str) -> int | None:
    """Return usage as an integer, as `_integer_sql` does."""
    number = span[name]
    return None if number is None else round(number * _COST_UNIT) if name == "cost" else int(number)


def _repeated(spans: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Compute in Python, for one trace, the result of `_repeated_sql`."""
    ids = _placed(spans)
    by_id = {key: span for (key, _), span in zip(ids, spans, strict=True)}
    above_of = dict(ids)
    nested_usage: dict[_Id, dict[str, int]] = {}
    for (key, parent), span in zip(ids, spans, strict=True):
        if not has_usage(span):
            continue
        above = parent
        for _ in range(TRACE_USAGE_MAX_STEPS - 1):
            if above not in by_id or has_usage(by_id[above]):
                break
            above = above_of[above]
        if above != key and above in by_id and has_usage(by_id[above]):
            sums = nested_usage.setdefault(above, dict.fromkeys(_USAGE, 0))
            for name in _USAGE:
                sums[name] += _integer(span, name) or 0
    return {
        name: sum(
            max(0, min(_integer(by_id[key], name) or 0, sums[name])) for key, sums in nested_usage.items()
        )
        for name in _USAGE
    }


def _placed(spans: Sequence[Mapping[str, Any]]) -> list[tuple[_Id, _Id]]:
    """Return the id of each span and of its parent in the tree, as `placed` of `_repeated_sql` has them."""
    clients = {(span["workspace"], span["span_id"]) for span in spans if not is_server_side(span)}
    services = {
        (span["workspace"], span["span_id"]): span["service"]
        for span in spans
        if is_server_side(span) and (span["workspace"], span["span_id"]) in clients
    }
    placed: list[tuple[_Id, _Id]] = []
    for span in spans:
        workspace = span["workspace"]
        own, above = (workspace, span["span_id"]), (workspace, span["parent_span_id"])
        if is_server_side(span) and own in services:
            placed.append(((workspace, f"{span['span_id']}+"), own))
        elif above in services and span["service"] == services[above]:
            placed.append((own, (workspace, f"{span['parent_span_id']}+")))
        else:
            placed.append((own, above))
    return placed


def has_usage(span: Mapping[str, Any]) -> bool:
    """Return whether a span reports any tokens or a cost."""
    return any(span[name] is not None for name in _USAGE)


def _early(span: Mapping[str, Any]) -> tuple[Any, ...]:
    return span["start_ns"], span["span_id"], span["workspace"], is_server_side(span)


def values_of_traces(spans: Sequence[pa.Table], workspace: str | None) -> dict[str, dict[str, Any]]:
    """Return the session and user of each trace in a workspace, given CARRIER_COLUMNS of its spans."""
    values: dict[str, dict[str, Any]] = {}
    carriers: list[dict[str, Any]] = []
    for rows in spans:
        session, user = (pc.is_valid(rows[name]) for name in TRACE_VALUES.values())
        carriers += in_workspace(rows.filter(pc.or_(session, user)), workspace).to_pylist()
    for span in sorted(carriers, key=_early):
        of_trace = values.setdefault(span["trace_id"], dict.fromkeys(TRACE_VALUES.values()))
        for name, value in of_trace.items():
            of_trace[name] = span[name] if value is None else value
    return values


def inherit(rows: Sequence[tuple[str, dict[str, Any]]], values: Mapping[str, Mapping[str, Any]]) -> None:
    """Give rows, each with its trace id, the session and user of their trace if they have none."""
    for trace_id, row in rows:
        for name in TRACE_VALUES.values():
            if row[name] is None and trace_id in values:
                row[name] = values[trace_id][name]


def summed_traces(of_traces: Mapping[str, Sequence[Mapping[str, Any]]], transaction: int) -> pa.Table:
    """Return the rows of table `traces` for the spans of traces, by trace id. For few spans, this takes less time than
    `aggregate_sql`, a statement of 50 ms."""
    rows = [summed(of_traces[each]) | {TRANSACTION_FIELD.name: transaction} for each in sorted(of_traces)]
    return pa.Table.from_pylist(rows, TRACES)


def summed(spans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute in Python what `aggregate_sql` computes for all spans of one trace, but not column `transaction`."""
    early = sorted(spans, key=_early)
    root = next((span for span in early if span["parent_span_id"] is None), early[0])
    start_ns = early[0]["start_ns"]
    end_ns = max(max(span["start_ns"], span["end_ns"]) for span in spans)

    def first(name: str) -> Any:
        return next((span[name] for span in early if span[name] is not None), None)

    def total(name: str) -> int | None:
        numbers = [number for span in spans if (number := _integer(span, name)) is not None]
        return _clamp(sum(numbers) - repeated[name]) if numbers else None

    repeated = _repeated(spans) if any(map(has_usage, spans)) else dict.fromkeys(_USAGE, 0)
    cost = total("cost")

    return {
        "trace_id": root["trace_id"],
        "workspace": root["workspace"],
        "name": root["name"],
        "service": root["service"],
        "start_ns": start_ns,
        "end_ns": end_ns,
        "duration_ns": _clamp(end_ns - start_ns),
        "span_count": len(spans),
        "error_count": sum(span["status"] == "ERROR" for span in spans),
        **{name: total(name) for name in _TOKENS},
        "cost": None if cost is None else cost / _COST_UNIT,
        "session_id": first("session_id"),
        "user_id": first("user_id"),
    }


def _clamp(number: int) -> int:
    return min(max(number, _INT64_MIN), _INT64_MAX)


def _saturated(number: str) -> str:
    """Return SQL that saturates a 128-bit number to int64; null stays null."""
    # `least` and `greatest` ignore null.
    return f"case when {number} is not null then least(greatest({number}, {_INT64_MIN}), {_INT64_MAX})::bigint end"


TABLES_FOLDER: Final = "tables/"
"""Folder of the table entries in a commit."""


def entry_of(table: str) -> str:
    """Return the path of a table's entry in a commit."""
    return TABLES_FOLDER + table


@dataclass(frozen=True, slots=True)
class BuiltInTable:
    """A table to which transactions append. The shard that stores it has the same name."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    """The columns that tell rows apart: no two rows have the same values of `key_sql`."""
    sorted_by: tuple[str, ...]
    """The row order in parts. It is total, because it contains the key, so that a replay assigns each row the same
    id."""
    bucketed_by: str
    """The column whose hash determines the bucket of a row. Each part has a summary of its values."""
    added: Mapping[str, int] = field(default_factory=dict)
    """The columns that the schema got after its first version, each with the version that added it. A new column is
    nullable; parts of earlier versions stay as they are."""
    sides: bool = False
    """Whether only the side of a span, not all of column `kind`, is part of the key."""

    @property
    def entry(self) -> str:
        """The path of its entry in a commit."""
        return entry_of(self.name)

    @property
    def key_sql(self) -> tuple[str, ...]:
        """Return SQL of the key. The side of a span comes from `kind`, so parts of earlier releases have it too."""
        return tuple(IS_SERVER_SQL if self.sides and name == "kind" else name for name in self.key)

    @property
    def version(self) -> int:
        """The version of its schema, which new parts have."""
        return max(self.added.values(), default=1)

    def layout(self, buckets: int) -> Layout:
        """Return the layout of its rows in a lake with that number of buckets."""
        return Layout(self.schema, (self.bucketed_by,), buckets, self.added)


TABLE_SPANS: Final = BuiltInTable(
    name="spans",
    schema=SPANS_TABLE,
    key=("trace_id", "span_id", "workspace", "kind"),
    sorted_by=("trace_id", "start_ns", "span_id", "workspace", "kind"),
    bucketed_by="trace_id",
    added={**SPANS_ADDED, SHARED.name: SHARED_SCHEMA_VERSION},
    sides=True,
)
TABLE_TRACES: Final = BuiltInTable(
    name="traces",
    schema=TRACES,
    key=("trace_id",),
    sorted_by=("trace_id",),
    bucketed_by="trace_id",
    added=TRACES_ADDED,
)

BUILT_IN: Final[dict[str, BuiltInTable]] = {table.name: table for table in (TABLE_SPANS, TABLE_TRACES)}
"""The tables by name, in append order. The first one decides whether a transaction was published or quarantined."""


def in_workspace(rows: pa.Table, workspace: str | None) -> pa.Table:
    """Return the rows of one workspace, or all rows for None."""
    return rows if workspace is None else rows.filter(pc.equal(rows["workspace"], pa.scalar(workspace)))


def workspace_sql(rows: str, workspace: str | None) -> str:
    """Return the SQL of the rows of one workspace, or of all rows for None."""
    return rows if workspace is None else f"select * from ({rows}) where workspace = {literal(workspace)}"


def workspace_token(workspace: str | None) -> tuple[str, ...]:
    """Return the part of a page token that names the workspace, so that tokens of other workspaces are refused. Empty
    for None."""
    return () if workspace is None else ("workspace", workspace)


def workspace_table_sql(name: str, rows: str, workspace: str | None) -> str:
    """Return the SQL of a table in one workspace, or in all for None.

    The row of a shared trace in `traces` describes the spans of all its workspaces, so for one workspace it is
    aggregated anew.
    """
    is_aggregated = workspace is not None and name == TABLE_TRACES.name
    return aggregate_sql(TABLE_SPANS.name, 0) if is_aggregated else workspace_sql(rows, workspace)


def base_tables(names: set[str], workspace: str | None) -> set[str]:
    """Return the tables that DuckDB must read to answer a query with these words, besides those that it names."""
    if workspace is not None:
        return {TABLE_SPANS.name} if TABLE_TRACES.name in names else set()
    return set() if names.isdisjoint(TRACE_VALUES) else {TABLE_TRACES.name}


def with_trace_values_sql(spans: str, traces: str | None) -> str:
    """Return SQL of spans with TRACE_VALUES.

    Args:
        spans: A query for the spans.
        traces: A query for their traces; None if the spans do not have all spans of the traces.
    """
    early = f"row(start_ns, span_id, workspace, {IS_SERVER_SQL})"
    first = ", ".join(
        f"arg_min({name}, {early}) filter ({name} is not null) as {name}" for name in TRACE_VALUES.values()
    )
    of_traces = traces or f"select trace_id, {first} from ({spans}) group by trace_id"
    columns = ", ".join(
        f"coalesce(span.{name}, of_trace.{name}) as {value}" for value, name in TRACE_VALUES.items()
    )
    return f"select span.*, {columns} from ({spans}) span left join ({of_traces}) of_trace using (trace_id)"


def _texts(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, pa.string())


ASSESSMENTS: Final = "assessments"
EXPERIMENTS: Final = "experiments"
TRACE_EXPERIMENTS: Final = "trace_experiments"
TRACKED: Final[dict[str, pa.Schema]] = {
    ASSESSMENTS: pa.schema(
        {
            **_texts("trace_id", "span_id", "workspace", "kind", "name", "value"),
            "number": pa.float64(),
            **_texts("comment", "source", "author", "assessment_id"),
            "created_ns": pa.int64(),
        }
    ),
    EXPERIMENTS: pa.schema(
        {
            **_texts("experiment_id", "name", "workspace"),
            "created_ns": pa.int64(),
            "tags": pa.map_(pa.string(), pa.string()),
        }
    ),
    TRACE_EXPERIMENTS: pa.schema(_texts("trace_id", "experiment_id")),
}
"""The tables with their columns."""


def stored_values(
    objects: ObjectStore, kind: str, name: str, workspace: str | None
) -> Iterable[tuple[str, Any]]:
    """Return the trace ids and values of a lake's assessments of a kind and name; none without a tracking store."""
    if (store := find_tracking(objects)) is None:
        return ()
    from tracelake.tracking.annotations import Annotations

    return Annotations(store, workspace).values_of(kind, name)


def stored_rows(objects: ObjectStore, name: str, workspace: str | None) -> pa.Table:
    """Return the rows of one of TRACKED from the tracking store. Raises LimitError if there are too many."""
    store = find_tracking(objects)
    rows: list[dict[str, Any]] = []
    if store is not None:
        from tracelake.tracking.annotations import Annotations, is_valid

        annotations = Annotations(store, workspace)
        if name == ASSESSMENTS:
            stored = annotations.stored_assessments(TRACKED_ROWS_MAX)
            rows = [_assessment(each, body) for each, body in stored if is_valid(body)]
        elif name == EXPERIMENTS:
            rows = [
                {
                    "experiment_id": each.experiment_id,
                    "name": each.name,
                    "workspace": each.workspace,
                    "created_ns": each.created_ns,
                    "tags": list(each.tags.items()),
                }
                for each in annotations.experiments()
            ]
        else:
            pairs = annotations.trace_experiments(TRACKED_ROWS_MAX)
            rows = [{"trace_id": trace_id, "experiment_id": experiment} for trace_id, experiment in pairs]
    return pa.Table.from_pylist(rows, TRACKED[name])


def without_traces(rows: pa.Table, trace_ids: Collection[str]) -> pa.Table:
    """Return the rows of a table that are not of these traces."""
    if not trace_ids or "trace_id" not in rows.column_names:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["trace_id"], pa.array(sorted(trace_ids), pa.string()))))


def _assessment(workspace: str, body: Mapping[str, Any]) -> dict[str, Any]:
    from tracelake.tracking.annotations import kind_of, value_of

    value, source = value_of(body), body.get("source")
    source = source if isinstance(source, Mapping) else {}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = None
    with suppress(OverflowError):
        number = float(value) if is_number else None
    return {
        "trace_id": body.get("trace_id"),
        "span_id": _text(body.get("span_id")),
        "workspace": workspace,
        "kind": kind_of(body),
        "name": _text(body.get("assessment_name")),
        "value": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        "number": number,
        "comment": _text(body.get("rationale")),
        "source": _text(source.get("source_type")),
        "author": _text(source.get("source_id")),
        "assessment_id": _text(body.get("assessment_id")),
        "created_ns": _nanoseconds(body.get("create_time")),
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _nanoseconds(time: Any) -> int | None:
    """Return an ISO time as nanoseconds since 1970; None for another value."""
    try:
        return int(datetime.fromisoformat(time).timestamp() * 1_000_000) * 1_000
    except (TypeError, ValueError, OverflowError):
        return None


def tracked_views(names: Iterable[str]) -> list[str]:
    """Return the statements that create views of these tables, from the rows `stored_NAME` and the spans."""
    return [
        f'create temp view "{name}" as select * from stored_{name}'
        + (f" union all by name {_EVALUATIONS_SQL}" if name == ASSESSMENTS else "")
        for name in names
    ]


_EVALUATIONS_SQL: Final = f"""
    select trace_id, span_id, workspace, 'feedback' as kind, evaluation['{conventions.EVALUATION_NAME}'] as name,
           coalesce(
               evaluation['{conventions.EVALUATION_LABEL}'], evaluation['{conventions.EVALUATION_SCORE}']
           ) as value,
           try_cast(evaluation['{conventions.EVALUATION_SCORE}'] as double) as number,
           evaluation['{conventions.EVALUATION_COMMENT}'] as comment, 'EVENT' as source, service as author, created_ns
    from (
        select trace_id, span_id, workspace, service, event.time_ns as created_ns, event.attributes as evaluation
        from (select trace_id, span_id, workspace, service, unnest(events) as event from "{TABLE_SPANS.name}")
        where event.name = '{conventions.EVALUATION_EVENT}'
    ) where name is not null
"""
