"""Which rows a snapshot holds, as a DuckDB query over its parts.

Every stored row has a `_row_id`, unique in its table and for ever: the time at which it was inserted, and a number
within it. A retraction names that id, never a place in a file, so rows may move from part to part by compaction while
writers retract them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace as changed

from tracelake.shards.model import Part
from tracelake.shards.partitioning import Numbers, buckets_of, is_all, may_share
from tracelake.shards.shard import Snapshot

ROW_ID: Final = pa.field("_row_id", pa.int64(), nullable=False)
GONE: Final = pa.field("_gone", pa.int64(), nullable=False)
RETRACTIONS: Final = pa.schema(
    [pa.field("row_id", pa.int64(), nullable=False), pa.field("time", pa.int64(), nullable=False)]
)
_TIME_BITS: Final = 32
GIVEN_UP: Final = (duckdb.FatalException, duckdb.InternalException)
"""Errors after which DuckDB gives up a database for good: who shares one needs another."""

FileOf = Callable[[str], str]
"""Gives an object, by its path, as a file."""


def first_row_id(time: int) -> int:
    """Return the least id of rows that were inserted at a time; those of earlier times are less. Part of the format."""
    return time << _TIME_BITS


def with_row_ids(rows: pa.Table, time: int, bucket: int, buckets: int, before: int = 0) -> pa.Table:
    """Append the ids of the rows of one bucket, in their order: no other bucket has the same.

    `before` is how many rows of the bucket have ids of that time already.
    """
    counted = np.arange(before, before + len(rows), dtype=np.int64)
    numbers: Numbers = first_row_id(time) + bucket + counted * buckets
    return rows.append_column(ROW_ID, pa.array(numbers))


def with_row_ids_of_all(rows: pa.Table, time: int, key: str, buckets: int) -> pa.Table:
    """Append the same ids to rows of all buckets, in which the rows of each stand in the order that they would have."""
    of_row: Numbers = buckets_of(rows[key].combine_chunks(), buckets)
    counted: Numbers = np.empty(len(rows), np.int64)
    for bucket in np.unique(of_row):
        mine = np.flatnonzero(of_row == bucket)
        counted[mine] = np.arange(len(mine))
    return rows.append_column(ROW_ID, pa.array(first_row_id(time) + of_row + counted * buckets))


def buckets_of_ids(ids: Numbers, buckets: int) -> Numbers:
    """Return the bucket of each row, which its id tells. Not of ids that count from 0 in a part."""
    return (ids & (first_row_id(1) - 1)) % buckets


def in_buckets_sql(id_column: str, wanted: Collection[int], buckets: int) -> str:
    """Return the SQL of whether a row is of one of some buckets, by its id."""
    return f"({id_column} & {first_row_id(1) - 1}) % {buckets} in ({', '.join(map(str, sorted(wanted)))})"


def with_relative_row_ids(rows: pa.Table) -> pa.Table:
    """Append ids that count from 0, in the order of the rows: those of a part that `relative` says so of."""
    return rows.append_column(ROW_ID, pa.array(np.arange(len(rows), dtype=np.int64)))


def relative(part: Part, first: int) -> Part:
    """Return the entry of a part with relative row ids, of which the first is to be `first`."""
    assert first + part.rows <= first_row_id((first >> _TIME_BITS) + 1), "ids of one time only"
    return changed(part, first_row_id=first, last_row_id=first + part.rows - 1, relative=True)


def retractions_by_bucket(gone: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, its retractions) for each bucket that has any; a row's id tells its bucket."""
    of_row = buckets_of_ids(gone["row_id"].to_numpy(), buckets)
    for bucket in np.unique(of_row):
        yield int(bucket), gone.filter(pa.array(of_row == bucket))


def rows_by_time(part: Part, rows: pa.Table) -> dict[tuple[int, int], int]:
    """Return how many rows of a part were inserted at each time, by time and bucket."""
    ids: Numbers = rows[ROW_ID.name].to_numpy() + (part.first_row_id if part.relative else 0)
    counted: dict[tuple[int, int], int] = {}
    of_row = buckets_of_ids(ids, -part.bucket) if is_all(part.bucket) else np.full(len(ids), part.bucket)
    for bucket in np.unique(of_row):
        times, counts = np.unique(ids[of_row == bucket] >> _TIME_BITS, return_counts=True)
        counted |= {(int(t), int(bucket)): int(n) for t, n in zip(times, counts, strict=True)}
    return counted


def retracted(snapshot: Snapshot, file: FileOf) -> dict[int, Numbers]:
    """Read which rows are gone as of the snapshot's time: sorted row ids by bucket."""
    by_bucket: dict[int, list[Numbers]] = {}
    for part in snapshot.retractions:
        table = pq.read_table(file(part.path))
        ids, times = (table[name].to_numpy() for name in RETRACTIONS.names)
        by_bucket.setdefault(part.bucket, []).append(ids[times <= snapshot.as_of])
    return {bucket: np.sort(np.concatenate(ids)) for bucket, ids in by_bucket.items()}


def lost_rows(part: Part, gone: dict[int, Numbers]) -> bool:
    """Whether a part may hold rows that are gone."""
    bounds = [part.first_row_id, part.last_row_id + 1]
    return any(
        int(np.diff(np.searchsorted(ids, bounds))[0]) > 0
        for bucket, ids in gone.items()
        if may_share(bucket, part.bucket)
    )


def time_sql() -> str:
    """Return the SQL of the time at which a row was inserted."""
    return f"({ROW_ID.name} >> {_TIME_BITS})"


def rows_sql(snapshot: Snapshot, file: FileOf, columns: Sequence[str], schema: pa.Schema) -> str:
    """Return a query for columns of the snapshot's rows; `_row_id` may be one of them."""
    end = first_row_id(snapshot.as_of + 1)
    gone = retracted(snapshot, file)
    names = ", ".join(quoted(name) for name in columns)
    whole: list[Part] = []
    rest: list[Part] = []
    for part in snapshot.parts:
        if part.first_row_id < end:
            is_whole = part.last_row_id < end and not lost_rows(part, gone)
            (whole if is_whole else rest).append(part)
    history = [part for part in snapshot.history if part.first_row_id < end]
    absent = _absent(snapshot, file, {part.bucket for part in (*rest, *history)})
    mine = _of_buckets(snapshot)
    branches = []
    if whole:
        branches.append(f"select {names} from {parquet(whole, file)} where {mine}")
    if rest:
        branches.append(
            f"select {names} from {parquet(rest, file)} {absent} where {ROW_ID.name} < {end} and {mine}"
        )
    if history:
        branches.append(
            f"select {names} from {parquet(history, file)} {absent} "
            f"where {ROW_ID.name} < {end} and {GONE.name} > {snapshot.as_of} and {mine}"
        )
    return " union all ".join(branches) or _nothing(columns, schema)


def _of_buckets(snapshot: Snapshot) -> str:
    """Return the SQL of whether a row is of the buckets that a snapshot was narrowed to."""
    everywhere = [part for part in (*snapshot.parts, *snapshot.history) if is_all(part.bucket)]
    if snapshot.only is None or not everywhere:
        return "true"
    return in_buckets_sql(ROW_ID.name, snapshot.only, -everywhere[0].bucket)


def parquet(parts: Sequence[Part], file: FileOf) -> str:
    """Return the DuckDB source of what these parts hold, with the `_row_id` that their rows have in the table."""
    absolute = [part for part in parts if not part.relative]
    counted = [part for part in parts if part.relative]
    sources = [_read_parquet(absolute, file)] if absolute else []
    if counted:
        first = ", ".join(str(part.first_row_id) for part in counted)
        sources.append(
            f"(select * replace ({ROW_ID.name} + ([{first}]::bigint[])[file_index::bigint + 1] as {ROW_ID.name}) "
            f"from {_read_parquet(counted, file)})"
        )
    return sources[0] if len(sources) == 1 else f"(from {' union all by name from '.join(sources)})"


def _read_parquet(parts: Sequence[Part], file: FileOf) -> str:
    files = ", ".join(literal(file(part.path)) for part in parts)
    return f"read_parquet([{files}], hive_partitioning = false)"  # a folder `a=b` above the lake is no column


def quoted(name: str) -> str:
    """Return a column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def _absent(snapshot: Snapshot, file: FileOf, buckets: set[int]) -> str:
    parts = [
        part for part in snapshot.retractions if any(may_share(part.bucket, bucket) for bucket in buckets)
    ]
    if not parts:
        return ""
    return (
        f"anti join (select row_id as {ROW_ID.name} from {parquet(parts, file)} "
        f"where time <= {snapshot.as_of}) using ({ROW_ID.name})"
    )


@cache
def _types(schema: pa.Schema) -> dict[str, str]:
    """Return DuckDB's types of columns: whoever reads an empty table again and again asks for them each time."""
    empty = pa.schema([*schema, ROW_ID]).empty_table()
    with duckdb.connect() as db:
        db.register("empty_table", empty)
        return {str(name): str(kind) for name, kind, *_ in db.sql("describe empty_table").fetchall()}


def _nothing(columns: Sequence[str], schema: pa.Schema) -> str:
    """Return a query for no rows, with the types that Parquet files of this schema would give."""
    types = _types(schema)
    return (
        "select " + ", ".join(f"null::{types[name]} as {quoted(name)}" for name in columns) + " where false"
    )
