"""Which parts can hold rows that a condition asks for: by hash bucket, and by the ranges of their columns.

A condition is DuckDB's text, and DuckDB parses it. Only its top-level `and`s of comparisons with constants are
looked at; all else may match, so a part is left out only where none of its rows can be asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import pyarrow as pa

from tracelake.limits import CONDITION_KEYS_MAX
from tracelake.shards.buckets import bucket_of, lies_in
from tracelake.shards.model import Part
from tracelake.shards.statistics import Bound
from tracelake.tables.conditions import parsed

_FLIPPED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "="}
_OPERATORS: Final = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_SINGLE_ERROR: Final = 2.0**-22
_DOUBLE_ERROR: Final = 2.0**-50
"""A few times the rounding of float32 and float64, in proportion: constants are rounded once or twice on their way."""
_LEAST_ERROR: Final = 2.0**-140
"""The same for numbers so small that they have fewer digits."""
_DIGITS_MAX: Final = 38
"""Digits of an integer that DuckDB compares as one; it rounds a longer one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition that every wanted row fulfils: `column operator value`, with one value or several.

    The type in which DuckDB compares a column is that of all values together, so they stay together.
    """

    column: str
    operator: str
    values: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table are laid out in parts: their columns, and the hash buckets of their keys."""

    schema: pa.Schema
    bucketed_by: tuple[str, ...]
    buckets: int

    def matching(self, parts: Iterable[Part], where: str | None) -> list[Part]:
        """Return the parts that may hold rows that fulfil a condition."""
        return self._with(parts, comparisons_in(where, self.schema))

    def with_keys(self, parts: Iterable[Part], keys: Sequence[str]) -> list[Part]:
        """Return the parts that may hold rows of keys, of the one column that they are bucketed by."""
        (column,) = self.bucketed_by
        return self._with(parts, [Comparison(column, "in", tuple(keys))])

    def _with(self, parts: Iterable[Part], comparisons: Sequence[Comparison]) -> list[Part]:
        wanted = self._wanted_buckets(comparisons)
        certain = [(c, _error(self.schema.field(c.column).type, c.values)) for c in comparisons]
        return [
            part
            for part in parts
            if (wanted is None or lies_in(part.bucket, wanted))
            and all(
                _overlaps(bounds, c, error) for c, error in certain if (bounds := self._range(part, c.column))
            )
        ]

    def _range(self, part: Part, column: str) -> tuple[Bound, Bound] | None:
        if part.first_key and column == self.bucketed_by[0]:
            return part.first_key, part.last_key
        return part.ranges.get(column)

    def _wanted_buckets(self, comparisons: Sequence[Comparison]) -> set[int] | None:
        """Return the buckets of the keys that a row must have, None where it may have any."""
        equal = {c.column: c.values for c in comparisons if c.operator in ("=", "in")}
        if not self.bucketed_by or any(column not in equal for column in self.bucketed_by):
            return None
        values = [equal[column] for column in self.bucketed_by]
        if math.prod(map(len, values)) > CONDITION_KEYS_MAX or any(
            isinstance(v, float) for vs in values for v in vs
        ):
            return None
        return {bucket_of(key_text(key), self.buckets) for key in product(*values)}


def comparisons_in(where: str | None, schema: pa.Schema) -> list[Comparison]:
    """Return what can be told of every row that fulfils a condition. Raises QueryError for what is none."""
    by_lower: dict[str, list[str]] = {}
    for column in schema.names:
        by_lower.setdefault(column.lower(), []).append(column)  # names are the same to DuckDB in any case
    comparisons = []
    for c in _walk(parsed(where)) if where else ():
        match by_lower.get(c.column.lower()):
            case [name] if all(_fits(value, schema.field(name).type) for value in c.values):
                comparisons.append(Comparison(name, c.operator, c.values))
    return comparisons


def _fits(value: Bound, kind: pa.DataType) -> bool:
    """Whether a constant is compared with a column as it is; DuckDB would convert any other."""
    if pa.types.is_string(kind):
        return isinstance(value, str)
    return not isinstance(value, str) and (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def overlap(one: tuple[Bound, Bound] | None, other: tuple[Bound, Bound] | None) -> bool:
    """Whether two ranges of one column can hold the same value; None is a range that nobody knows."""
    if one is None or other is None:
        return True
    return not _less(one[1], other[0], 0.0) and not _less(other[1], one[0], 0.0)


def key_text(values: Sequence[Bound]) -> str:
    """Return the text of a key whose hash is its bucket: a single text is itself. Part of the table format."""
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(list(values), ensure_ascii=False, separators=(",", ":"))


def _error(kind: pa.DataType, values: Sequence[Bound]) -> float:
    """Return how far two numbers are apart, in proportion, that DuckDB surely tells apart; 0 where all are told apart.

    It compares a column and all constants beside it as one type, to which it rounds them: with a float32 as float32,
    whatever the constants are, and integers with one fraction among them perhaps as float64. What is rounded keeps
    its order, so numbers that are further apart than rounding moves them are in the same order before and after.
    """
    if pa.types.is_floating(kind):
        return _DOUBLE_ERROR if pa.types.is_float64(kind) else _SINGLE_ERROR
    return _DOUBLE_ERROR if any(isinstance(value, float) for value in values) else 0.0


def _overlaps(bounds: tuple[Bound, Bound], comparison: Comparison, error: float) -> bool:
    """Whether a range can hold a value that fulfils the comparison."""
    low, high = bounds
    first = comparison.values[0]
    match comparison.operator:
        case "<":
            return not _less(first, low, error) and (error > 0 or first != low)
        case "<=":
            return not _less(first, low, error)
        case ">":
            return not _less(high, first, error) and (error > 0 or first != high)
        case ">=":
            return not _less(high, first, error)
        case "between":
            return not _less(high, first, error) and not _less(comparison.values[1], low, error)
        case _:
            return any(
                not _less(value, low, error) and not _less(high, value, error) for value in comparison.values
            )


def _less(left: Bound, right: Bound, error: float) -> bool:
    """Whether `left` is surely less."""
    if isinstance(left, str) or isinstance(right, str):
        assert isinstance(left, str), "a text is compared with a text"
        assert isinstance(right, str), "a text is compared with a text"
        return left < right
    if not error:
        return left < right
    one, other = _float(left), _float(right)
    return one + max(abs(one), abs(other)) * error + _LEAST_ERROR < other


def _float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _walk(node: Any) -> Iterator[Comparison]:
    """Yield the comparisons of a parsed condition that must all be true."""
    match node:
        case {"type": "CONJUNCTION_AND", "children": children}:
            for child in children:
                yield from _walk(child)
        case {"class": "COMPARISON", "type": kind, "left": left, "right": right} if kind in _OPERATORS:
            operator = _OPERATORS[kind]
            if (column := _column(left)) is None:
                column, right, operator = _column(right), left, _FLIPPED[operator]
            value = _constant(right)
            if column is not None and value is not None:
                yield Comparison(column, operator, (value,))
        case {"type": "COMPARE_BETWEEN", "input": tested, "lower": lower, "upper": upper}:
            bounds = _constant(lower), _constant(upper)
            if (column := _column(tested)) is not None and None not in bounds:
                yield Comparison(column, "between", tuple(bound for bound in bounds if bound is not None))
        case {"type": "COMPARE_IN", "children": [tested, *options]}:
            values = [_constant(option) for option in options]
            if (column := _column(tested)) is not None and None not in values:
                yield Comparison(column, "in", tuple(value for value in values if value is not None))


def _column(node: Any) -> str | None:
    match node:
        case {"class": "COLUMN_REF", "column_names": [str(name)]}:
            return name
    return None


def _constant(node: Any) -> Bound | None:
    match node:
        case {"class": "CONSTANT", "literal": Mapping() as literal}:
            text = literal.get("text", "")
            match literal.get("kind"):
                case "STRING":
                    return str(text)
                case "INTEGER" if len(text) <= _DIGITS_MAX:
                    return int(text)
                case "NUMERIC":
                    return float(text)
    return None
