"""Table `traces`: one row a trace, made of all its spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from tracelake.otlp.schema import TRANSACTION_FIELD

_FIELDS: list[pa.Field[Any]] = [
    pa.field("trace_id", pa.string(), nullable=False),
    pa.field("workspace", pa.string(), nullable=False),
    pa.field("name", pa.string(), nullable=False),  # of the root, else of the earliest span
    pa.field("service", pa.string()),  # of the same span as the name
    pa.field("start_ns", pa.int64(), nullable=False),
    pa.field("end_ns", pa.int64(), nullable=False),
    pa.field("duration_ns", pa.int64(), nullable=False),
    pa.field("span_count", pa.int64(), nullable=False),
    pa.field("error_count", pa.int64(), nullable=False),
    pa.field("input_tokens", pa.int64()),  # sum over spans, null where no span carries any
    pa.field("output_tokens", pa.int64()),
    pa.field("session_id", pa.string()),  # of the earliest span that carries one
    pa.field("user_id", pa.string()),
    TRANSACTION_FIELD,
]
TRACES: Final = pa.schema(_FIELDS)

SPAN_COLUMNS: Final = (
    *("trace_id", "span_id", "parent_span_id", "workspace", "service", "name", "status"),
    *("start_ns", "end_ns", "input_tokens", "output_tokens", "session_id", "user_id"),
)
"""The columns of `spans` that a row of `traces` is made of."""

IN_ORDER: Final[list[tuple[str, Literal["ascending", "descending"]]]] = [
    ("start_ns", "ascending"),
    ("span_id", "ascending"),
    ("workspace", "ascending"),
]
"""The order in which spans of a trace are shown: of one lake always the same."""

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


def aggregate_sql(spans: str, transaction: int) -> str:
    """Return the SQL that makes rows of `traces` from a relation with SPAN_COLUMNS.

    Ties are broken by span id and workspace, so the result does not depend on the order of the rows. What numbers
    senders made up is no reason to fail: sums and differences stop at the bounds of int64.
    """
    root = "row(parent_span_id is not null, start_ns, span_id, workspace)"
    early = "row(start_ns, span_id, workspace)"
    end = "max(greatest(start_ns, end_ns))"
    return f"""
        select trace_id,
               arg_min(workspace, {root}) as workspace,
               arg_min(name, {root}) as name,
               arg_min_null(service, {root}) as service,
               min(start_ns) as start_ns,
               {end} as end_ns,
               {_saturated(f"{end}::hugeint - min(start_ns)")} as duration_ns,
               count(*) as span_count,
               count(*) filter (status = 'ERROR') as error_count,
               {_saturated("sum(input_tokens::hugeint)")} as input_tokens,
               {_saturated("sum(output_tokens::hugeint)")} as output_tokens,
               arg_min(session_id, {early}) filter (session_id is not null) as session_id,
               arg_min(user_id, {early}) filter (user_id is not null) as user_id,
               {transaction}::bigint as transaction
        from {spans} group by trace_id order by trace_id
    """


def summed(spans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `aggregate_sql` makes of all spans of one trace, without a query, and without the transaction."""
    early = sorted(spans, key=lambda span: (span["start_ns"], span["span_id"], span["workspace"]))
    root = next((span for span in early if span["parent_span_id"] is None), early[0])
    start_ns = early[0]["start_ns"]
    end_ns = max(max(span["start_ns"], span["end_ns"]) for span in spans)

    def first(name: str) -> Any:
        return next((span[name] for span in early if span[name] is not None), None)

    def total(name: str) -> int | None:
        numbers = [span[name] for span in spans if span[name] is not None]
        return _within(sum(numbers)) if numbers else None

    return {
        "trace_id": root["trace_id"],
        "workspace": root["workspace"],
        "name": root["name"],
        "service": root["service"],
        "start_ns": start_ns,
        "end_ns": end_ns,
        "duration_ns": _within(end_ns - start_ns),
        "span_count": len(spans),
        "error_count": sum(span["status"] == "ERROR" for span in spans),
        "input_tokens": total("input_tokens"),
        "output_tokens": total("output_tokens"),
        "session_id": first("session_id"),
        "user_id": first("user_id"),
    }


def _within(number: int) -> int:
    return min(max(number, _INT64_MIN), _INT64_MAX)


def _saturated(number: str) -> str:
    """Return SQL for a number of 128 bits as an int64, the nearest one; null where it is null."""
    # `least` and `greatest` pass over null.
    return f"case when {number} is not null then least(greatest({number}, {_INT64_MIN}), {_INT64_MAX})::bigint end"
