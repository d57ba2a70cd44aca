"""Conditions of users: their validation, and pruning of parts by hash bucket and column ranges.

DuckDB parses the conditions. For pruning, only top-level `and`s of comparisons with constants count. Everything else
may match, so a part is skipped only if no row of it can match.

A user writes a condition or an order, each a single expression, or a SELECT. The text must not end the surrounding
query or add to it. It is therefore parsed inside that query, and the rest of the syntax tree must equal that of a
harmless text. A condition or order must not contain a subquery, because that could read other tables or files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import product
from typing import Any, Final

import duckdb
import pyarrow as pa

from tracelake._errors import QueryError
from tracelake.limits import QUOTED_MAX_CHARS
from tracelake.shards.model import Bound, Part
from tracelake.shards.parts import bucket_of, lies_in
from tracelake.shards.rows import GIVEN_UP

_CONDITIONS_REMEMBERED_MAX: Final = 16
"""Parsed conditions that a process caches."""
_CONDITION_KEYS_MAX: Final = 10_000
"""Keys of one condition whose buckets are computed."""

_SUBQUERY: Final = '"class":"SUBQUERY"'
_NODE_KIND: Final = re.compile(r'"type":"([A-Z_]+_NODE)"')
_READING: Final = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
"""Node types of read-only queries. A `with` may contain others: COPY, INSERT, UPDATE, DELETE, MERGE."""
_RUNS_A_TEXT: Final = re.compile(r'"function_name":"(query|json_execute_serialized_sql)"', re.IGNORECASE)
"""Functions that run a query given as text, which cannot be inspected."""

_FUNCTION: Final = re.compile(r'"function_name":"([^"]*)"')
_PRODUCES: Final = re.compile(
    r'"type":"(LAMBDA|JOIN|TABLE_FUNCTION|SUBQUERY|PIVOT|COLUMN_DATA|EXPRESSION_LIST)"|"type_name":"array"'
    r'|"group_sets":\[(?!\]|\[[0-9,]*\]\])',
    re.IGNORECASE,
)
"""Parts of a query that multiply rows or values. A fixed array has as many values as its type says."""
_LINEAR: Final = frozenset(
    """
    + - * / // % ~~ !~~ ~~* !~~* ~~~ -> ->> @> ^@ abs round floor ceil ceiling trunc sign sqrt ln log log10 log2 exp
    lower upper lcase ucase trim ltrim rtrim left right substr substring length len strlen char_length contains
    starts_with ends_with prefix suffix instr strpos regexp_matches regexp_full_match regexp_extract split_part
    list_contains list_has array_contains array_has list_has_any list_has_all list_position list_extract element_at
    map_extract map_extract_value map_contains map_keys map_values cardinality array_extract array_length struct_extract
    json_extract json_extract_string json_extract_path json_extract_path_text json_valid json_type json_array_length
    ifnull nullif isnan isfinite greatest least list_value row typeof hash
    now today date_trunc datetrunc date_part datepart date_diff datediff date_sub year month day hour minute second
    epoch epoch_ms epoch_us epoch_ns make_timestamp make_timestamp_ms make_timestamp_ns to_timestamp
    to_days to_hours to_minutes to_seconds to_milliseconds to_microseconds
    count count_star count_if sum avg mean min max any_value first last bool_and bool_or
    approx_count_distinct quantile_cont quantile_disc approx_quantile median mode stddev stddev_samp stddev_pop
    variance var_samp var_pop corr arg_min arg_max row_number rank dense_rank lag lead first_value last_value unnest
    """.split()  # noqa: SIM905  a list of one name a line would be 150 lines
)
"""Functions whose value is no larger than their arguments together, or of a fixed size."""

_QUERIES_REMEMBERED_MAX: Final = 256
"""Queries of lists whose words a process caches."""
_ALL_COLUMNS: Final = re.compile(r"(?:\bselect|\bdistinct|,|\.)\s*\*", re.IGNORECASE)
"""A star that stands for all columns of a table. After a number it multiplies, and `count(*)` counts rows."""
_PLAIN_NAME: Final = re.compile(r"\w+", re.ASCII)
_NAMED: Final = ("catalog_name", "schema_name", "table_name")


def condition(text: str) -> str:
    """Return a condition in parentheses, ready for use in a query. Raises QueryError if it is not a condition."""
    parsed(text)
    return f"(\n{text}\n)"


def order(text: str) -> str:
    """Return an order for use after `order by`. Raises QueryError if it is not an order."""
    node = _node(f"select * from rows order by\n{text}\n", "order", text)
    modifiers = [modifier["type"] for modifier in node.pop("modifiers")]
    template = _node("select * from rows order by\n1\n", "order", "1")
    template.pop("modifiers")
    if node != template or modifiers != ["ORDER_MODIFIER"]:
        raise _refused("order", text, "it is more than an order")
    return f"\n{text}\n"


@lru_cache(_CONDITIONS_REMEMBERED_MAX)
def parsed(text: str) -> Any:
    """Return the expression of a condition as parsed by DuckDB; do not modify it. Raises QueryError if the text is not
    a single condition without subqueries."""
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
    """Return the syntax tree of the query that surrounds a condition. Callers must not modify it."""
    template = _node("select * from rows where (\ntrue\n)", "condition", "true")
    template.pop("where_clause")
    return template


def reading(query: str) -> str:
    """Return the query if it is a read-only SELECT. Raises QueryError if it writes, even in a `with` or in a text that
    it executes.

    A query that writes could overwrite every file that it may read, and those are the parts of the lake.
    """
    serialized = _serialized(query, "query", query)
    if not serialized.startswith('{"error":false,'):
        raise _refused("query", query, json.loads(serialized)["error_message"])
    if others := set(_NODE_KIND.findall(serialized)) - _READING:
        written = ", ".join(sorted(kind.split("_")[0] for kind in others))
        raise _refused("query", query, f"it may only read, but contains {written}")
    if (match := _RUNS_A_TEXT.search(serialized)) is not None:
        raise _refused(
            "query", query, f"it executes a text with {match[1].lower()}(); write that query directly"
        )
    return query


def of_tables(query: str) -> str:
    """Return the query if it is a SELECT that reads tables by name only. Raises QueryError if it reads from functions
    or paths."""
    reading(query)
    for kind, names in _sources(json.loads(_serialized(query, "query", query))):
        if kind == "TABLE_FUNCTION" or not all(map(_PLAIN_NAME.fullmatch, names)):
            raise _refused("query", query, "within a workspace it may read only tables, by their names")
    return query


def _sources(node: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the sources of all parts of a query: the kind, and the names of schema and table, if any."""
    nodes = [node]
    while nodes:
        one = nodes.pop()
        if isinstance(one, dict):
            if one.get("type") in ("TABLE_FUNCTION", "BASE_TABLE"):
                yield one["type"], [one[part] for part in _NAMED if one.get(part)]
            nodes += one.values()
        elif isinstance(one, list):
            nodes += one


def produces_large_values(*, condition: str = "", order: str = "", query: str = "") -> bool:
    """Return whether values of a query may be larger than its rows and its text; True if in doubt.

    A SELECT is safe if it reads one table and contains no nested query, because each nesting may double a value.
    """
    text = query or f"select * from rows{f' where ({chr(10)}{condition}{chr(10)})' if condition else ''}"
    text += f" order by {chr(10)}{order}{chr(10)}" if order else ""
    serialized = _serialized(text, "query", text)
    functions = {name.lower() for name in _FUNCTION.findall(serialized)}
    return (
        not functions <= _LINEAR
        or len(_NODE_KIND.findall(serialized)) != 1
        or _PRODUCES.search(serialized) is not None
        or serialized.count('"BASE_TABLE"') + serialized.count('"type":"EMPTY"') != 1
    )


def words(query: str) -> set[str]:
    """Return the words of a query in lower case, which include the names of all tables that it reads.

    Constants and comments are excluded, so that their text opens no table.
    """
    text = query.encode()
    tokens = duckdb.tokenize(query)
    ends = [start for start, _ in tokens[1:]] + [len(text)]
    return {
        text[start:end].decode().strip().strip('"').lower()
        for (start, kind), end in zip(tokens, ends, strict=True)
        if kind not in (duckdb.token_type.string_const, duckdb.token_type.comment)
    }


@lru_cache(_QUERIES_REMEMBERED_MAX)
def names_in(query: str) -> frozenset[str] | None:
    """Return the words of a query, which include the names of all columns that it reads; None if a star stands for
    columns. Raises QueryError if it is no read-only SELECT."""
    reading(query)
    return None if _ALL_COLUMNS.search(query) is not None else frozenset(words(query))


def _node(query: str, what: str, text: str) -> dict[str, Any]:
    """Return the syntax tree of a query that must be a single SELECT without subqueries."""
    serialized = _serialized(query, what, text)
    try:
        parsed = json.loads(serialized)
    except RecursionError as error:
        raise _refused(what, text, str(error)) from error
    if parsed["error"]:
        raise _refused(what, text, parsed["error_message"])
    if _SUBQUERY in serialized:
        raise _refused(what, text, "it contains a query; use `sql` for that")
    nodes = [statement["node"] for statement in parsed["statements"]]
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
"""A small multiple of the relative rounding error of float32 and float64. A constant is rounded once or twice on its
way."""
_LEAST_ERROR: Final = 2.0**-140
"""The absolute rounding error of numbers so small that they have fewer digits."""
_DIGITS_MAX: Final = 38
"""The longest integer that DuckDB compares as an integer; it rounds a longer one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition that every matching row fulfils: `column operator value`, with one or several values."""

    column: str
    operator: str
    values: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a table's rows in parts: columns, and hash buckets of the keys."""

    schema: pa.Schema
    bucketed_by: tuple[str, ...]
    buckets: int
    added: Mapping[str, int] = field(default_factory=dict)
    """The columns that old parts lack, with the version of the schema that added them."""

    def matching(self, parts: Iterable[Part], where: str | None) -> list[Part]:
        """Return the parts that may have rows that match a condition."""
        return self._with(parts, comparisons_in(where, self.schema))

    def of_query(self, parts: Sequence[Part], query: str, table: str) -> list[Part]:
        """Return the parts of a table that may have rows that a query uses."""
        uses = comparisons_by_use(query, table, self.schema)
        if not uses or not all(uses):
            return list(parts)
        paths = {part.path for comparisons in uses for part in self._with(parts, comparisons)}
        return [part for part in parts if part.path in paths]

    def with_keys(self, parts: Iterable[Part], keys: Sequence[str]) -> list[Part]:
        """Return the parts that may have rows with these keys. The table must be bucketed by a single column."""
        (column,) = self.bucketed_by
        return self._with(parts, [Comparison(column, "in", tuple(keys))]) if keys else []

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
        """Return the buckets of the keys that a matching row must have, None if it may have any key."""
        equal = {c.column: c.values for c in comparisons if c.operator in ("=", "in")}
        if not self.bucketed_by or any(column not in equal for column in self.bucketed_by):
            return None
        values = [equal[column] for column in self.bucketed_by]
        if math.prod(map(len, values)) > _CONDITION_KEYS_MAX or any(
            isinstance(v, float) for vs in values for v in vs
        ):
            return None
        return {bucket_of(key_text(key), self.buckets) for key in product(*values)}


def comparisons_in(where: str | None, schema: pa.Schema) -> list[Comparison]:
    """Return comparisons that every matching row of a condition fulfils. Raises QueryError if it is not a condition."""
    return _of_schema(_walk(parsed(where)) if where else (), schema)


def comparisons_by_use(query: str, table: str, schema: pa.Schema) -> list[list[Comparison]]:
    """Return comparisons that every used row of a table fulfils, for each place where a query reads the table.

    A place fulfils some if it is the only source of a SELECT with a WHERE. Otherwise its list is empty.
    """
    try:
        nodes: list[Any] = [json.loads(_serialized(query, "query", query))]
    except RecursionError:
        return [[]]
    uses: list[list[Comparison]] = []
    while nodes:
        one = nodes.pop()
        match one:
            case {"type": "SELECT_NODE", "from_table": source, "where_clause": condition} if (
                _is_table(source, table)
                and not source.get("column_name_alias")
                and not source.get("sample")  # drawn before the condition
            ):
                uses.append(_of_schema(_walk(condition), schema))
                nodes += [value for name, value in one.items() if name != "from_table"]
            case dict():
                if _is_table(one, table):
                    uses.append([])
                nodes += one.values()
            case list():
                nodes += one
    return uses


def _is_table(node: Any, table: str) -> bool:
    return (
        isinstance(node, dict)
        and node.get("type") == "BASE_TABLE"
        and str(node.get("table_name")).lower() == table.lower()
    )


def _of_schema(candidates: Iterable[Comparison], schema: pa.Schema) -> list[Comparison]:
    by_lower: dict[str, list[str]] = {}
    for column in schema.names:
        by_lower.setdefault(column.lower(), []).append(column)  # DuckDB ignores the case of names
    comparisons = []
    for c in candidates:
        match by_lower.get(c.column.lower()):
            case [name] if all(_fits(value, schema.field(name).type) for value in c.values):
                comparisons.append(Comparison(name, c.operator, c.values))
    return comparisons


def _fits(value: Bound, kind: pa.DataType) -> bool:
    """Return whether DuckDB compares a constant with a column unchanged; it would convert any other constant."""
    if pa.types.is_string(kind):
        return isinstance(value, str)
    return not isinstance(value, str) and (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def overlap(one: tuple[Bound, Bound] | None, other: tuple[Bound, Bound] | None) -> bool:
    """Return whether two ranges of one column can share a value. None means an unknown range."""
    if one is None or other is None:
        return True
    return not _less(one[1], other[0], 0.0) and not _less(other[1], one[0], 0.0)


def key_text(values: Sequence[Bound]) -> str:
    """Return the text of a key whose hash determines the key's bucket. A key of a single text is used unchanged. This
    is part of the table format."""
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(list(values), ensure_ascii=False, separators=(",", ":"))


def _error(kind: pa.DataType, values: Sequence[Bound]) -> float:
    """Return the relative difference from which DuckDB surely distinguishes two numbers; 0 if it distinguishes all.

    DuckDB converts a column and all constants in a comparison to one type. Next to a float32, it rounds all constants
    to float32. Next to one fraction, it may convert integers to float64. Rounding keeps the order, so numbers that
    differ by more than the rounding error keep their order.
    """
    if pa.types.is_floating(kind):
        return _DOUBLE_ERROR if pa.types.is_float64(kind) else _SINGLE_ERROR
    return _DOUBLE_ERROR if any(isinstance(value, float) for value in values) else 0.0


def _overlaps(bounds: tuple[Bound, Bound], comparison: Comparison, error: float) -> bool:
    """Return whether a part whose values are in `bounds` can contain a value that fulfils the comparison."""
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


def _less(first_bound: Bound, second_bound: Bound, error: float) -> bool:
    """Return whether `first_bound` is surely less than `second_bound`."""
    if isinstance(first_bound, str) or isinstance(second_bound, str):
        assert isinstance(first_bound, str), "a text is compared with a text"
        assert isinstance(second_bound, str), "a text is compared with a text"
        return first_bound < second_bound
    if not error:
        return first_bound < second_bound
    one, other = _float(first_bound), _float(second_bound)
    return one + max(abs(one), abs(other)) * error + _LEAST_ERROR < other


def _float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _walk(node: Any) -> Iterator[Comparison]:
    """Yield the comparisons of a parsed condition that must all hold."""
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
