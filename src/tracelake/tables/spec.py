"""Specification of a user table, fixed at its creation: columns, key and buckets. One object for each table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import NotFoundError, TableNotFoundError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import BUCKETS_MAX
from tracelake.storage import ObjectStore
from tracelake.tables.builtin import BUILT_IN
from tracelake.tables.predicates import Layout

FORMAT_VERSION: Final = 1
_RESERVED: Final = ("", "file_index", "file_row_number")
_FOLDER: Final = "tables/"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")


class TableSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user table. `columns` is its Arrow schema in Arrow IPC format; `key` may be empty."""

    name: str
    columns: bytes
    key: tuple[str, ...]
    buckets: int
    format_version: int = FORMAT_VERSION

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    def layout(self) -> Layout:
        """Return the layout of its rows."""
        return Layout(self.schema, self.key, self.buckets)


def check_name(name: str) -> None:
    """Raise UsageError if the name is not allowed for a user table."""
    if name in BUILT_IN:  # only the pipeline writes these
        raise UsageError(
            f"the pipeline writes table {name}, so other writes are refused; choose another name."
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a table: use up to 63 of a-z, 0-9 and _, beginning with a "
            "letter."
        )


def check_columns(table: str, schema: pa.Schema) -> None:
    """Raise UsageError if a column has a name that DuckDB or Tracelake reserves."""
    for column in schema.names:
        if column.startswith("_") or column.lower() in _RESERVED:
            raise UsageError(
                f"table {table}: a column cannot be {column!r}: file_index, file_row_number and names that begin "
                "with _ are reserved. Rename it."
            )


def check_types(table: str, schema: pa.Schema) -> None:
    """Raise UsageError if a column has a type that cannot be written, sorted and read."""
    for field in schema:
        if (problem := _unsupported_reason(field)) is not None:
            raise UsageError(
                f"table {table}: column {field.name!r} is {field.type}, which cannot be stored ({problem}); "
                "convert it to another type, such as float32 or string."
            )


def _unsupported_reason(field: pa.Field[Any]) -> str | None:
    """Return the error of Parquet, Arrow or DuckDB for a type that it cannot write, sort or read; None for most
    types."""
    empty = pa.schema([field]).empty_table()
    try:
        pq.write_table(empty, pa.BufferOutputStream())
        empty.take(pa.array([], pa.int64()))
        with duckdb.connect() as db:
            db.from_arrow(empty)
    except (pa.ArrowException, duckdb.Error) as error:
        return str(error).splitlines()[0]
    return None


def make_spec(name: str, schema: pa.Schema, key: Sequence[str], buckets: int) -> TableSpec:
    """Return the specification of a table without creating the table. Raises UsageError if a name, a type, the key or
    the number of buckets is not allowed."""
    check_name(name)
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(f"buckets must be from 1 to {BUCKETS_MAX}, not {buckets}.")
    lower = [column.lower() for column in schema.names]
    if not lower or len(set(lower)) < len(lower):
        raise UsageError(f"table {name}: it needs columns, with unique names regardless of case.")
    check_columns(name, schema)
    check_types(name, schema)
    for column in key:
        if column not in schema.names:
            raise UsageError(f"table {name}: no column {column!r} for its key.")
        kind = schema.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise UsageError(
                f"table {name}: column {column!r} is {kind}; key columns must be text or integers."
            )
    columns = schema.remove_metadata().serialize().to_pybytes()
    return TableSpec(name, columns, tuple(dict.fromkeys(key)), buckets)


def create_spec(objects: ObjectStore, spec: TableSpec) -> TableSpec:
    """Store the specification of a table, unless an equal one exists; return the stored one.

    Raises UsageError if a different table has this name.
    """
    if objects.create(_path(spec.name), encode(spec, _path(spec.name))):
        return spec
    there = read_spec(objects, spec.name)
    if not there.schema.equals(spec.schema) or there.key != spec.key:
        raise UsageError(
            f"table {spec.name} already exists, with other columns or another key: its key is "
            f"{', '.join(there.key) or 'none'}, its columns are {', '.join(there.schema.names)}."
        )
    return there


def read_spec(objects: ObjectStore, name: str) -> TableSpec:
    """Return the specification of a table. Raises TableNotFoundError if no table has this name, and DamageError if the
    specification does not decode."""
    try:
        data = objects.get(_path(name))
    except NotFoundError as error:
        raise TableNotFoundError(
            f"no table {name!r}; create it by writing to it, or with create_table."
        ) from error
    return decode(TableSpec, data, _path(name), FORMAT_VERSION, _path(name))


def table_names(objects: ObjectStore) -> list[str]:
    """Return the names of all user tables."""
    names = (info.path.removeprefix(_FOLDER).removesuffix(".json") for info in objects.list(_FOLDER))
    return [name for name in names if _NAME.fullmatch(name)]


def _path(name: str) -> str:
    return f"{_FOLDER}{name}.json"
