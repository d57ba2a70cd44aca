"""Spark's filters as a DuckDB condition. A filter that is not understood is left to Spark alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from tracelake.shards.rows import literal, quoted

_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def condition_of(filters: Iterable[Filter]) -> str | None:
    """Return a condition that every row fulfils that fulfils all filters, None where nothing can be said."""
    return " and ".join(filter(None, map(_sql, filters))) or None


def _sql(given: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1:
        return None  # a field of a struct, or a negation
    column = quoted(attribute[0])
    if isinstance(given, IsNull | IsNotNull):
        return f"{column} is {'null' if isinstance(given, IsNull) else 'not null'}"
    if isinstance(given, StringStartsWith):
        prefix = _constant(given.value)
        return prefix and f"starts_with({column}, {prefix})"
    if isinstance(given, In):
        options = [_constant(value) for value in given.value]
        return f"{column} in ({', '.join(map(str, options))})" if options and None not in options else None
    operator, value = _OPERATORS.get(type(given)), _constant(getattr(given, "value", None))
    return None if operator is None or value is None else f"{column} {operator} {value}"


def _constant(value: object) -> str | None:
    if isinstance(value, str) and "\0" not in value:
        return literal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None
