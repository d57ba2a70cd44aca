"""Summing a row of `traces` from spans directly gives the same row as the SQL query."""

from __future__ import annotations

import functools
import random
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.tables import builtin
from tracelake.tables.builtin import SPAN_COLUMNS, aggregate_sql, summed
from tracelake.tables.scan import connection

EARLY = builtin._early
INT64 = (-(2**63), -1, 0, 1, 2, 2**62, 2**63 - 1)
VALUES: dict[str, tuple[Any, ...]] = {
    "parent_span_id": (None, "00", "0a", "5b", "ff", "ff"),
    "service": (None, "checkout", "search"),
    "name": ("", "a", "b"),
    "status": (None, "OK", "ERROR"),
    "start_ns": INT64,
    "end_ns": INT64,
    "input_tokens": (None, *INT64),
    "output_tokens": (None, *INT64),
    **dict.fromkeys(
        ("cached_input_tokens", "cache_write_tokens", "reasoning_tokens", "total_tokens"), (None, *INT64)
    ),
    "cost": (None, 0.0, 0.1, 0.2, 1 / 3, 2.5e-13, 1e6),
    "session_id": (None, "s", "t"),
    "user_id": (None, "u", "v"),
}
KEYS = [
    (span_id, workspace, kind)
    for span_id in ("0a", "5b")
    for workspace in ("default", "other")
    for kind in ("CLIENT", "SERVER")
]
FIELDS = pa.schema([SPANS.field(name).with_nullable(True) for name in SPAN_COLUMNS])


def alike() -> None:
    """Check generated traces."""
    chance = random.Random(3)
    spans_by_trace = [
        [
            {
                "trace_id": f"{number:032x}",
                "span_id": span_id,
                "workspace": workspace,
                "kind": kind,
                **{name: chance.choice(of) for name, of in VALUES.items()},
            }
            for span_id, workspace, kind in chance.sample(KEYS, chance.randint(1, 4))
        ]
        for number in range(1_000)
    ]
    rows = pa.Table.from_pylist([span for spans in spans_by_trace for span in spans], FIELDS)
    with connection() as db:
        db.register("spans_of_all", rows)
        table = db.sql(aggregate_sql("spans_of_all", 0)).to_arrow_table()
    assert [summed(spans) for spans in spans_by_trace] == table.drop_columns(
        [TRANSACTION_FIELD.name]
    ).to_pylist()


def _without(ignored: str, span: dict[str, Any]) -> tuple[Any, ...]:
    """Return the order of a span without one of its parts."""
    return EARLY(span | {ignored: ""})


def test_it_is_the_same_row() -> None:
    """The rows are equal for nulls, ties and bounds of int64."""
    alike()
    with mock.patch.object(builtin, "_integer_sql", "{}::hugeint".format), pytest.raises(AssertionError):
        alike()  # costs are added in units that no order of addition changes
    for key in ("span_id", "workspace"):  # ties go by these
        with (
            mock.patch.object(builtin, "_early", functools.partial(_without, key)),
            pytest.raises(AssertionError),
        ):
            alike()
    with mock.patch.object(builtin, "is_server_side", return_value=False), pytest.raises(AssertionError):
        alike()  # the side breaks ties
