"""Options of format `tracelake`, and conversions between Spark and Arrow.

Spark has no unsigned integers, so they become the next wider signed type. Spark's filters become a DuckDB condition;
a filter without a translation is left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
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
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tracelake._errors import UsageError
from tracelake.lake.context import LakeContext
from tracelake.lake.lake import find_location
from tracelake.shards.rows import literal, quoted
from tracelake.tables.changes import Retractions
from tracelake.tables.scan import CHANGE, CHANGED_AT

_CHANGES: Final = {None: Retractions.REFUSE, "all": Retractions.TELL, "insertions": Retractions.LEAVE_OUT}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a reader or writer; their names are case-insensitive."""

    lake: str | None
    metadata: str | None
    """Location of the lake's metadata, if it has moved since the lake was created."""
    table: str
    at: str
    columns: tuple[str, ...] | None
    where: str | None
    changes: str | None
    """`all`, `insertions` or None."""
    since: str
    """Transaction number, or `latest`."""
    transactions_per_batch: int
    """0 means no limit."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Parse the options. Raises UsageError."""
        table = options.get("table") or options.get("path")
        if not table:
            raise UsageError('name a table: .load("spans"), .save("mine"), or .option("table", "mine").')
        changes = options.get("changes")
        if changes not in _CHANGES:
            raise UsageError(f"option changes must be all or insertions, not {changes!r}.")
        since = options.get("since", "-1")
        if since != "latest":
            number(options, "since", -1)
        return cls(
            options.get("lake"),
            options.get("metadata"),
            table,
            options.get("at", "main"),
            _columns(options),
            options.get("where"),
            changes,
            since,
            number(options, "transactionsPerBatch", 0),
        )

    @property
    def retractions(self) -> Retractions:
        """Treatment of retracted rows."""
        return _CHANGES[self.changes]

    def schema_of(self, table: pa.Schema) -> pa.Schema:
        """Return the columns to read. Raises UsageError for an unknown column."""
        fields = [*table, *((CHANGE, CHANGED_AT) if self.changes == "all" else ())]
        if self.columns is None:
            return pa.schema(fields)
        by_name = {field.name: field for field in fields}
        if unknown := [name for name in self.columns if name not in by_name]:
            raise UsageError(f"table {self.table} has no column {unknown[0]!r}; it has {', '.join(by_name)}.")
        return pa.schema([by_name[name] for name in self.columns])

    @contextmanager
    def opened(self) -> Iterator[LakeContext]:
        """Open the lake for the time of a block."""
        with closing(LakeContext(find_location(self.lake, self.metadata))) as lake:
            yield lake


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an integer option. Raises UsageError."""
    text = options.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"option {name} must be a whole number, not {text!r}.") from error


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Parse option `columns`: names separated by commas, or a JSON list for names with commas."""
    text = options.get("columns")
    if text is None:
        return None
    if text.lstrip().startswith("["):
        return tuple(str(name) for name in json.loads(text))
    return tuple(name.strip() for name in text.split(","))


_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def to_spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark columns of an Arrow schema. All are nullable, as in every Spark source."""
    return from_arrow_schema(pa.schema([pa.field(field.name, _signed(field.type)) for field in schema]))


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that a task must yield for these Spark columns."""
    return to_arrow_schema(schema, timezone="UTC")


def _signed(kind: pa.DataType) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if isinstance(kind, pa.StructType):
        return pa.struct([_signed_field(kind.field(number)) for number in range(kind.num_fields)])
    if isinstance(kind, pa.MapType):
        return pa.map_(_signed(kind.key_type), _signed(kind.item_type))
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(_signed_field(kind.value_field))
    return kind


def _signed_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, _signed(field.type))


_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def condition_of(filters: Iterable[Filter]) -> str | None:
    """Return a condition that holds for every row that passes all filters, or None if no filter has a translation."""
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
