"""What a task writes of the rows that are to go into a table of the user: sorted pieces that nothing names."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake._errors import InputError
from tracelake.limits import STAGED_ROWS_AGE_MAX_S, STAGED_ROWS_MAX_BYTES
from tracelake.predicates import key_text
from tracelake.scan import connection
from tracelake.shards.buckets import by_bucket
from tracelake.shards.model import Part
from tracelake.shards.rows import quoted
from tracelake.storage import ObjectStore
from tracelake.user_tables.spec import TableSpec

STAGING: Final = "staging/tables/"
_KEY_TEXT: Final = "_key_text"


@dataclass(frozen=True, slots=True)
class Staged:
    """Pieces with new rows, and pieces with the keys of rows to delete; sorted by key, each key once in a piece."""

    rows: list[Part] = field(default_factory=list)
    deleted: list[Part] = field(default_factory=list)

    def paths(self) -> list[str]:
        """Return the paths of all pieces."""
        return [part.path for part in (*self.rows, *self.deleted)]


def stage(
    objects: ObjectStore, spec: TableSpec, batches: Iterable[pa.RecordBatch], tombstone: str | None = None
) -> Staged:
    """Write rows as pieces, in memory of a bounded size.

    Where `tombstone` names a column of booleans, which is not of the table, rows in which it is true delete
    the row of their key. Raises InputError where a row cannot be taken.
    """
    staged = Staged()
    for rows in _blocks(batches):
        if tombstone is None:
            _write(objects, spec, _fitting(rows, spec.schema, spec.name), staged.rows)
            continue
        is_deletion: pc.Expression = pc.field(tombstone) == pc.scalar(True)
        kept = rows.filter(is_deletion.is_null() | ~is_deletion).drop_columns([tombstone])
        _write(objects, spec, _fitting(kept, spec.schema, spec.name), staged.rows)
        key_schema = pa.schema([spec.schema.field(column) for column in spec.key])
        keys = _fitting(rows.filter(is_deletion).select(list(spec.key)), key_schema, spec.name)
        _write(objects, spec, keys, staged.deleted)
    return staged


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(held_batch.nbytes for held_batch in held) >= STAGED_ROWS_MAX_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _fitting(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """Return rows with the columns of a table, in its order and of its types; a column that lacks is null."""
    if unknown := [name for name in rows.column_names if name not in schema.names]:
        raise InputError(
            f"table {table} has no column {unknown[0]!r}; its columns are {', '.join(schema.names)}."
        )
    columns = []
    for wanted in schema:
        if wanted.name not in rows.column_names:
            columns.append(pa.nulls(len(rows), wanted.type))
            continue
        try:
            columns.append(rows[wanted.name].cast(wanted.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"table {table}: column {wanted.name!r} is {wanted.type}, and what came is not: {error}"
            ) from error
    for wanted, column in zip(schema, columns, strict=True):
        if not wanted.nullable and column.null_count:
            raise InputError(f"table {table}: column {wanted.name!r} must not be null.")
    return pa.table(columns, schema=schema)


def _write(objects: ObjectStore, spec: TableSpec, rows: pa.Table, into: list[Part]) -> None:
    if not len(rows):
        return
    if not spec.key:
        into.append(_write_piece(objects, 0, rows))
        return
    for column in spec.key:
        if rows[column].null_count:
            raise InputError(
                f"table {spec.name}: column {column!r} is part of its key, and must not be null."
            )
    rows = _each_key_once(rows, spec.key)
    placed = rows.append_column(_KEY_TEXT, _key_texts(rows, spec.key))
    for bucket, of_bucket in by_bucket(placed, _KEY_TEXT, spec.buckets):
        into.append(_write_piece(objects, bucket, of_bucket.drop_columns([_KEY_TEXT])))


def _write_piece(objects: ObjectStore, bucket: int, rows: pa.Table) -> Part:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="lz4")
    data = sink.getvalue().to_pybytes()
    path = f"{STAGING}{bucket:04d}-{uuid.uuid4().hex}.parquet"
    objects.put(path, data)
    return Part(path, bucket, len(rows), len(data), hashlib.sha256(data).hexdigest())


def clean_staging(objects: ObjectStore) -> None:
    """Delete what writers left that were killed."""
    too_old = time.time() - STAGED_ROWS_AGE_MAX_S
    for info in list(objects.list(STAGING)):
        if info.modified_s < too_old:
            objects.delete(info.path)


def _key_texts(rows: pa.Table, key: Sequence[str]) -> pa.StringArray:
    if all(pa.types.is_integer(rows[column].type) for column in key):  # the same texts, many times as fast
        texts: list[Any] = [rows[column].cast(pa.string()) for column in key]
        joined: Any = pc.binary_join_element_wise(*texts, ",")
        whole: pa.StringArray = pc.binary_join_element_wise("[", joined, "]", "").combine_chunks()
        return whole
    values = zip(*(rows[column].to_pylist() for column in key), strict=True)
    return pa.array([key_text(value) for value in values], pa.string())


def _each_key_once(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sort rows by key; of several with one key the one that compares greatest stands (see `merge`)."""
    if len(rows.group_by(list(key)).aggregate([])) < len(rows):
        names = ", ".join(map(quoted, key))
        numbered = rows.append_column("_number", pa.array(range(len(rows)), pa.int64()))
        with connection() as db:
            db.register("rows_to_write", numbered)
            content = ", ".join(map(quoted, rows.column_names))
            kept = db.sql(f"""
                select arg_max(_number, row({content})) as number from rows_to_write group by {names}
            """).to_arrow_table()
        rows = rows.take(kept["number"])
    return rows.sort_by([(column, "ascending") for column in key])
