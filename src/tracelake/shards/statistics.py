"""Ranges of columns, kept with each part, so that a query need not open a part without matching rows."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.limits import STATISTICS_TEXT_MAX_CHARS

Bound: TypeAlias = int | float | str
Ranges: TypeAlias = dict[str, tuple[Bound, Bound]]
"""For some columns, the least and the greatest value that is not null. Other columns may hold anything."""


def ranges_of(rows: pa.Table) -> Ranges:
    """Return the ranges of numbers and of short texts."""
    ranges: Ranges = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not _is_ordered(column.type):
            continue
        bounds = pc.min_max(column)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if _is_useful(low) and _is_useful(high) and not _has_nan(column):
            ranges[name] = (low, high)
    return ranges


def _is_ordered(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)


def _is_useful(bound: Bound | None) -> bool:
    if isinstance(bound, str):
        return len(bound) <= STATISTICS_TEXT_MAX_CHARS
    return bound is not None and math.isfinite(bound)


def _has_nan(column: pa.ChunkedArray[Any]) -> bool:
    """Whether a column holds NaN, which `min_max` passes over and a query may ask for."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())
