"""Which parts can hold rows that a condition asks for: by hash bucket, and by the ranges of their columns.

A condition is DuckDB's text, and DuckDB parses it. Only its top-level `and`s of comparisons with constants are
looked at; all else may match, so a part is left out only where none of its rows can be asked for.

What users write of a query: a condition or an order, which is one expression each and nothing else, or a SELECT.

DuckDB parses them. A text may not end the query that it is put into, nor add to it, so it is parsed at its place there,
and all around it must be as it is around a text that is known. Nor may it have a query of its own: that would read
other tables, or files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import Any, Final

import duckdb
import pyarrow as pa

from tracelake._errors import QueryError
from tracelake.limits import CONDITION_KEYS_MAX, CONDITIONS_REMEMBERED_MAX, QUOTED_MAX_CHARS
from tracelake.shards.model import Part
from tracelake.shards.partitioning import Bound, bucket_of, lies_in
from tracelake.shards.rows import GIVEN_UP

_SUBQUERY: Final = '"class":"SUBQUERY"'
_NODE_KIND: Final = re.compile(r'"type":"([A-Z_]+_NODE)"')
_READING: Final = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
"""Kinds of queries that change nothing. A `with` may have others: COPY, INSERT, UPDATE, DELETE, MERGE."""
_RUNS_A_TEXT: Final = re.compile(r'"function_name":"(query|json_execute_serialized_sql)"', re.IGNORECASE)
"""Functions that run a query which is a text, where nobody sees what it does."""

_PLAIN_NAME: Final = re.compile(r"\w+", re.ASCII)
_NAMED: Final = ("catalog_name", "schema_name", "table_name")


def condition(text: str) -> str:
    """Return a condition as it may stand in a query, in parentheses. Raises QueryError for what is no condition."""
    parsed(text)
    return f"(\n{text}\n)"


def order(text: str) -> str:
    """Return what may stand behind `order by`. Raises QueryError for what is no order."""
    node = _node(f"select * from rows order by\n{text}\n", "order", text)
    modifiers = [modifier["type"] for modifier in node.pop("modifiers")]
    rest = _node("select * from rows order by\n1\n", "order", "1")
    rest.pop("modifiers")
    if node != rest or modifiers != ["ORDER_MODIFIER"]:
        raise _refused("order", text, "it is more than an order")
    return f"\n{text}\n"


@lru_cache(CONDITIONS_REMEMBERED_MAX)
def parsed(text: str) -> Any:
    """Return the expression of a condition as DuckDB parses it, not to be changed. Raises QueryError."""
    node = _node(f"select * from rows where (\n{text}\n)", "condition", text)
    clause = node.pop("where_clause", None)
    if (
        node != _without_condition()
        or clause is None
        or (clause.get("function_name") == "row" and not clause.get("children"))
    ):
        raise _refused("condition", text, "it is more than a condition, or none")
    return clause


@cache
def _without_condition() -> Any:
    """Return what a query has beside its condition, not to be changed."""
    rest = _node("select * from rows where (\ntrue\n)", "condition", "true")
    rest.pop("where_clause")
    return rest


def reading(query: str) -> str:
    """Return a SELECT that only reads. Raises QueryError for one that writes, be it in a `with` or in a text.

    The files that a query may read, it could write, too: they are the parts of the lake.
    """
    serialized = _serialized(query, "query", query)
    if not serialized.startswith('{"error":false,'):
        raise _refused("query", query, json.loads(serialized)["error_message"])
    if others := set(_NODE_KIND.findall(serialized)) - _READING:
        written = ", ".join(sorted(kind.split("_")[0] for kind in others))
        raise _refused("query", query, f"it may only read, and has {written} in it")
    if (match := _RUNS_A_TEXT.search(serialized)) is not None:
        raise _refused("query", query, f"it runs a text with {match[1].lower()}(); write its query itself")
    return query


def of_tables(query: str) -> str:
    """Return a SELECT that reads tables by their names, and nothing by a function, or a path. Raises QueryError."""
    reading(query)
    for kind, names in _sources(json.loads(_serialized(query, "query", query))):
        if kind == "TABLE_FUNCTION" or not all(map(_PLAIN_NAME.fullmatch, names)):
            raise _refused("query", query, "in one workspace it may read tables, by their names")
    return query


def _sources(node: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield what each part of a query reads from: the kind, and the names of schema and table where it has some."""
    nodes = [node]
    while nodes:
        one = nodes.pop()
        if isinstance(one, dict):
            if one.get("type") in ("TABLE_FUNCTION", "BASE_TABLE"):
                yield one["type"], [one[part] for part in _NAMED if one.get(part)]
            nodes += one.values()
        elif isinstance(one, list):
            nodes += one


def words(query: str) -> set[str]:
    """Return the words of a query, in lower case: the names of all tables that it reads are among them.

    What it says in constants and comments is left out, so that no such text opens a table.
    """
    text = query.encode()
    tokens = duckdb.tokenize(query)
    ends = [start for start, _ in tokens[1:]] + [len(text)]
    return {
        text[start:end].decode().strip().strip('"').lower()
        for (start, kind), end in zip(tokens, ends, strict=True)
        if kind not in (duckdb.token_type.string_const, duckdb.token_type.comment)
    }


def _node(query: str, what: str, text: str) -> dict[str, Any]:
    """Return the one SELECT of a query."""
    serialized = _serialized(query, what, text)
    try:
        said = json.loads(serialized)
    except RecursionError as error:
        raise _refused(what, text, str(error)) from error
    if said["error"]:
        raise _refused(what, text, said["error_message"])
    if _SUBQUERY in serialized:
        raise _refused(what, text, "it has a query of its own; use `sql` for that")
    nodes = [statement["node"] for statement in said["statements"]]
    if len(nodes) != 1 or nodes[0].get("type") != "SELECT_NODE":
        raise _refused(what, text, f"it is more than one {what}")
    node: dict[str, Any] = nodes[0]
    return node


def _serialized(query: str, what: str, text: str) -> str:
    """Return the syntax tree of a query, or DuckDB's error, as JSON."""
    db = _parser().cursor()
    try:
        ((serialized,),) = db.execute("select json_serialize_sql(?)", [query]).fetchall()
        return str(serialized)
    except (duckdb.Error, UnicodeError) as error:
        if isinstance(error, GIVEN_UP):
            _parser.cache_clear()
        raise _refused(what, text, str(error)) from error
    finally:
        db.close()


def _refused(what: str, text: str, why: str) -> QueryError:
    shown = text if len(text) <= QUOTED_MAX_CHARS else text[:QUOTED_MAX_CHARS] + "…"
    return QueryError(f"DuckDB refuses the query: {shown!r} is no {what}: {why}.")


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"enable_external_access": "false"})


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
