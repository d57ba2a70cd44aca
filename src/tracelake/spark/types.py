"""Arrow types as Spark has them: it knows no unsigned integers, so they become the next wider signed ones."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def to_spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark columns of an Arrow schema; all of them may be null, as in any source of Spark."""
    return from_arrow_schema(pa.schema([pa.field(field.name, _signed(field.type)) for field in schema]))


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of what a task has to yield for these Spark columns."""
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
