"""Rows of a snapshot, as a DuckDB query over its parts.

Every stored row has a permanent `_row_id`, unique in its table: the time of its insertion and a number within that
time. A retraction names this id, never a position in a file. So compaction may move rows between parts while writers
retract them.

A part stores each text once: if an attribute of a span has the text of column `input` or `output`, the value in
`attributes` is null, and column `_shared` names that column. Readers restore the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace as changed

from tracelake._errors import DamageError, NotFoundError
from tracelake.shards.model import Batch, Part
from tracelake.shards.parts import Numbers, buckets_of, is_all, may_share
from tracelake.shards.shard import Snapshot

ROW_ID: Final = pa.field("_row_id", pa.int64(), nullable=False)
GONE: Final = pa.field("_gone", pa.int64(), nullable=False)
RETRACTIONS: Final = pa.schema(
    [pa.field("row_id", pa.int64(), nullable=False), pa.field("time", pa.int64(), nullable=False)]
)
SHARED: Final = pa.field("_shared", pa.string())
"""Column of parts that share texts: a character for each entry of column `attributes`, see `_SOURCES`; `.` for an entry
with its own value. Null if all entries of the row have their own."""
_SHARING: Final = "attributes"
_SOURCES: Final = {"i": "input", "o": "output"}
"""The columns that have the values of entries, by character."""
_SHARED_TEXT_MIN_BYTES: Final = 64
"""Length of a text from which it is shared. The repeats of shorter ones take almost no space."""
_TIME_BITS: Final = 32
GIVEN_UP: Final = (duckdb.FatalException, duckdb.InternalException)
"""Errors after which a DuckDB database is unusable. Users of a shared database must open another."""

NOTHING_ADDED: Final[Mapping[str, int]] = {}

FileOf = Callable[[str], str]
"""Function that returns a local file for an object's path."""


def first_row_id(time: int) -> int:
    """Return the smallest row id of a time. Rows of earlier times have smaller ids. Part of the format."""
    return time << _TIME_BITS


def time_of(row_id: int) -> int:
    """Return the insertion time of a row."""
    return row_id >> _TIME_BITS


def with_row_ids(rows: pa.Table, time: int, bucket: int, buckets: int, before: int = 0) -> pa.Table:
    """Append the ids of the rows of one bucket, in order. They differ from those of all other buckets.

    `before` is the number of rows of the bucket that already have ids of that time.
    """
    counted = np.arange(before, before + len(rows), dtype=np.int64)
    numbers: Numbers = first_row_id(time) + bucket + counted * buckets
    return rows.append_column(ROW_ID, pa.array(numbers))


def with_row_ids_of_all(rows: pa.Table, time: int, key: str, buckets: int) -> pa.Table:
    """Append the same ids as `with_row_ids` to rows of all buckets. The rows of each bucket must be in order."""
    of_row: Numbers = buckets_of(rows[key].combine_chunks(), buckets)
    counted: Numbers = np.empty(len(rows), np.int64)
    for bucket in np.unique(of_row):
        mine = np.flatnonzero(of_row == bucket)
        counted[mine] = np.arange(len(mine))
    return rows.append_column(ROW_ID, pa.array(first_row_id(time) + of_row + counted * buckets))


def buckets_of_ids(ids: Numbers, buckets: int) -> Numbers:
    """Return the bucket of each row from its id. Not valid for relative ids."""
    return (ids & (first_row_id(1) - 1)) % buckets


def in_buckets_sql(id_column: str, wanted: Collection[int], buckets: int) -> str:
    """Return the SQL condition for rows of the wanted buckets, by id."""
    return f"({id_column} & {first_row_id(1) - 1}) % {buckets} in ({', '.join(map(str, sorted(wanted)))})"


def with_relative_row_ids(rows: pa.Table) -> pa.Table:
    """Append ids that count from 0 in row order, for parts that are `relative`."""
    return rows.append_column(ROW_ID, pa.array(np.arange(len(rows), dtype=np.int64)))


def relative(part: Part, first: int) -> Part:
    """Return the record of a part with relative row ids. The part's first row gets the id `first` in the table."""
    assert first + part.rows <= first_row_id((first >> _TIME_BITS) + 1), "ids of one time only"
    return changed(part, first_row_id=first, last_row_id=first + part.rows - 1, relative=True)


def retractions_by_bucket(retractions: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (bucket, its retractions) for each bucket that has any, by the buckets of row ids."""
    of_row = buckets_of_ids(retractions["row_id"].to_numpy(), buckets)
    for bucket in np.unique(of_row):
        yield int(bucket), retractions.filter(pa.array(of_row == bucket))


def rows_by_time(part: Part, rows: pa.Table) -> dict[tuple[int, int], int]:
    """Count the rows of a part by insertion time and bucket."""
    ids: Numbers = rows[ROW_ID.name].to_numpy() + (part.first_row_id if part.relative else 0)
    counted: dict[tuple[int, int], int] = {}
    of_row = buckets_of_ids(ids, -part.bucket) if is_all(part.bucket) else np.full(len(ids), part.bucket)
    for bucket in np.unique(of_row):
        times, counts = np.unique(ids[of_row == bucket] >> _TIME_BITS, return_counts=True)
        counted |= {(int(t), int(bucket)): int(n) for t, n in zip(times, counts, strict=True)}
    return counted


def retracted(snapshot: Snapshot, file: FileOf) -> dict[int, Numbers]:
    """Read the retracted rows as of the snapshot's time: sorted row ids by bucket. Raises DamageError for a missing
    part, which an erasure may have deleted."""
    by_bucket: dict[int, list[Numbers]] = {}
    for part in snapshot.retractions:
        try:
            table = pq.read_table(file(part.path))
        except (FileNotFoundError, NotFoundError) as error:
            raise DamageError(f"part {part.path} is missing. `tracelake verify` lists all damage.") from error
        ids, times = (table[name].to_numpy() for name in RETRACTIONS.names)
        by_bucket.setdefault(part.bucket, []).append(ids[times <= snapshot.as_of])
    return {bucket: np.sort(np.concatenate(ids)) for bucket, ids in by_bucket.items()}


def ids_by_batch(ids: Numbers, batches: Sequence[Batch]) -> list[Numbers]:
    """Return those of the sorted ids that each batch inserted."""
    bounds = [first_row_id(time) for batch in batches for time in (batch.lower, batch.upper)]
    places = np.searchsorted(ids, bounds).reshape(-1, 2)
    return [ids[first:end] for first, end in places]


def sorted_ids(ids: Iterable[Numbers]) -> Numbers:
    """Return all ids of these arrays, sorted."""
    return np.unique(np.concatenate([np.array([], np.int64), *ids]))


def lost_rows(part: Part, retracted_ids: dict[int, Numbers]) -> bool:
    """Whether a part may contain rows that these retractions name."""
    bounds = [part.first_row_id, part.last_row_id + 1]
    return any(
        int(np.diff(np.searchsorted(ids, bounds))[0]) > 0
        for bucket, ids in retracted_ids.items()
        if may_share(bucket, part.bucket)
    )


def time_sql() -> str:
    """Return the SQL expression for the insertion time of a row."""
    return f"({ROW_ID.name} >> {_TIME_BITS})"


def rows_sql(
    snapshot: Snapshot,
    file: FileOf,
    columns: Sequence[str],
    schema: pa.Schema,
    added: Mapping[str, int] = NOTHING_ADDED,
) -> str:
    """Return a query for columns of the snapshot's rows, which may include `_row_id`.

    `added` maps the columns that old parts may lack to the schema version that added them.
    """
    end = first_row_id(snapshot.as_of + 1)
    retracted_ids = retracted(snapshot, file)
    names = ", ".join(quoted(name) for name in columns)
    complete: list[Part] = []
    filtered: list[Part] = []
    for part in snapshot.parts:
        if part.first_row_id < end:
            is_complete = part.last_row_id < end and not lost_rows(part, retracted_ids)
            (complete if is_complete else filtered).append(part)
    history = [part for part in snapshot.history if part.first_row_id < end]
    absent = _absent(snapshot, file, {part.bucket for part in (*filtered, *history)})
    mine = _of_buckets(snapshot)
    branches = []
    if complete:
        branches.append(f"select {names} from {parquet(complete, file, schema, added)} where {mine}")
    if filtered:
        branches.append(
            f"select {names} from {parquet(filtered, file, schema, added)} {absent} "
            f"where {ROW_ID.name} < {end} and {mine}"
        )
    if history:
        branches.append(
            f"select {names} from {parquet(history, file, schema, added)} {absent} "
            f"where {ROW_ID.name} < {end} and {GONE.name} > {snapshot.as_of} and {mine}"
        )
    return " union all ".join(branches) or _nothing(columns, schema)


def _of_buckets(snapshot: Snapshot) -> str:
    """Return the SQL condition for rows of the buckets that a snapshot is restricted to."""
    everywhere = [part for part in (*snapshot.parts, *snapshot.history) if is_all(part.bucket)]
    if snapshot.only is None or not everywhere:
        return "true"
    return in_buckets_sql(ROW_ID.name, snapshot.only, -everywhere[0].bucket)


def parquet(
    parts: Sequence[Part],
    file: FileOf,
    schema: pa.Schema | None = None,
    added: Mapping[str, int] = NOTHING_ADDED,
) -> str:
    """Return the DuckDB source for the rows of these parts, with the `_row_id` that they have in the table.

    A column of `schema` that was added after a part was written is null in it.
    """
    groups: dict[tuple[bool, tuple[str, ...]], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.relative, absent_columns(part, added)), []).append(part)
    sources = []
    for (is_relative, absent), group in groups.items():
        replaced = []
        if is_relative:
            first = ", ".join(str(part.first_row_id) for part in group)
            replaced.append(f"{ROW_ID.name} + ([{first}]::bigint[])[file_index::bigint + 1] as {ROW_ID.name}")
        columns = "*"
        if has_shared(group[0], added):
            columns += f" exclude ({SHARED.name})"
            replaced.append(f"{RESTORED_SQL} as {_SHARING}")
        columns += f" replace ({', '.join(replaced)})" if replaced else ""
        columns += "".join(f", {null}" for null in _nulls(absent, schema))
        read = _read_parquet(group, file)
        sources.append(read if columns == "*" else f"(select {columns} from {read})")
    return sources[0] if len(sources) == 1 else f"(from {' union all by name from '.join(sources)})"


def absent_columns(part: Part, added: Mapping[str, int]) -> tuple[str, ...]:
    """Return the columns that were added to the table's schema after a part was written."""
    return tuple(name for name, version in added.items() if version > part.schema_version)


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, in its order and types. Columns that the rows lack are null."""
    columns = [
        rows[field.name] if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def has_shared(part: Part, added: Mapping[str, int]) -> bool:
    """Return whether a part has column `_shared`."""
    return SHARED.name in added and SHARED.name not in absent_columns(part, added)


def stored_columns(part: Part, columns: Sequence[str], added: Mapping[str, int]) -> list[str]:
    """Return the columns of a part from which `restore_texts` makes these columns."""
    needed = (*_SOURCES.values(), SHARED.name) if _SHARING in columns and has_shared(part, added) else ()
    return [*dict.fromkeys((*columns, *needed))]


def share_texts(rows: pa.Table) -> pa.Table:
    """Return rows of spans with column `_shared`, whose attributes share the texts of columns `input` and `output`."""
    if all(rows[source].null_count == len(rows) for source in _SOURCES.values()):
        return rows.append_column(SHARED, pa.nulls(len(rows), SHARED.type))
    shared = [share_batch(batch) for batch in rows.to_batches()]
    place = rows.schema.get_field_index(_SHARING)
    field = rows.schema.field(place)
    attributes, names = (pa.chunked_array(list(each)) for each in zip(*shared, strict=True))
    return rows.set_column(place, field, attributes).append_column(SHARED, names)


def share_batch(batch: pa.RecordBatch) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Return the attributes of some rows, and column `_shared`."""
    attributes = batch.column(_SHARING)
    row_of, keys, values, offsets = _entries(attributes)
    sizes, marks = _sizes(values), np.full(len(values), ord("."), np.uint8)
    for mark, source in _SOURCES.items():
        texts = batch.column(source)
        if texts.null_count == len(texts):
            continue
        alike = np.flatnonzero((sizes >= _SHARED_TEXT_MIN_BYTES) & (sizes == _sizes(texts)[row_of]))
        equal = pc.equal(values.take(alike), texts.take(row_of[alike]))
        marks[alike[equal.to_numpy(zero_copy_only=False)]] = ord(mark)
    is_shared = marks != ord(".")
    if not is_shared.any():
        return attributes, pa.nulls(len(batch), SHARED.type)
    sharing = np.zeros(len(batch), bool)
    sharing[row_of[is_shared]] = True
    own = pc.if_else(pa.array(is_shared), pa.scalar(None, pa.string()), values)
    names = pa.StringArray.from_buffers(
        len(batch), pa.py_buffer(offsets.tobytes()), pa.py_buffer(marks.tobytes())
    )
    return _with_values(attributes, offsets, keys, own), pc.if_else(
        pa.array(sharing), names, pa.scalar(None, pa.string())
    )


def restore_texts(rows: pa.Table) -> pa.Table:
    """Return rows of a part with the values of all attributes, without column `_shared`. Rows of other parts, and
    columns other than `stored_columns`, are returned unchanged.

    Raises DamageError if the columns disagree.
    """
    if SHARED.name not in rows.schema.names:
        return rows
    names = rows.schema.get_field_index(SHARED.name)
    if _SHARING in rows.schema.names and rows[SHARED.name].null_count < len(rows):
        place = rows.schema.get_field_index(_SHARING)
        field = rows.schema.field(place)
        values = pa.chunked_array([restore_batch(batch) for batch in rows.to_batches()], field.type)
        rows = rows.set_column(place, field, values)
    return rows.remove_column(names)


def restore_batch(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return the attributes of some rows with all values."""
    attributes, names = batch.column(_SHARING), batch.column(SHARED.name)
    row_of, keys, values, offsets = _entries(attributes)
    is_sharing = pc.is_valid(names).to_numpy(zero_copy_only=False)[row_of]
    marks = np.full(len(values), ord("."), np.uint8)
    text = np.frombuffer("".join(filter(None, names.to_pylist())).encode(), np.uint8)
    if len(text) != np.count_nonzero(is_sharing):
        raise DamageError(f"a part is damaged: column {SHARED.name} does not match {_SHARING}.")
    marks[is_sharing] = text
    # Each value by its place among the own values, the inputs and the outputs.
    places = np.arange(len(values))
    pool, size = [values], len(values)
    for mark, source in _SOURCES.items():
        is_source = marks == ord(mark)
        places[is_source] = size + row_of[is_source]
        pool.append(batch.column(source))
        size += len(batch)
    every = pa.concat_arrays(pool).take(places)
    return _with_values(attributes, offsets, keys, every)


def _entries(maps: Any) -> tuple[Numbers, Any, Any, Any]:
    """Return the row, key and value of each entry of some maps, and the offsets of the rows among the entries."""
    offsets = maps.offsets.to_numpy()
    first, entries = int(offsets[0]), int(offsets[-1] - offsets[0])
    row_of: Numbers = np.repeat(np.arange(len(maps)), np.diff(offsets))
    return row_of, maps.keys.slice(first, entries), maps.items.slice(first, entries), offsets - offsets[0]


def _sizes(texts: Any) -> Numbers:
    """Return the length of each text, -1 for null."""
    sizes: Numbers = pc.fill_null(pc.binary_length(texts), -1).to_numpy()
    return sizes


def _with_values(maps: Any, offsets: Any, keys: Any, values: Any) -> pa.Array[Any]:
    """Return maps with other values."""
    make: Any = pa.MapArray.from_arrays  # its stubs lack the type
    changed: pa.Array[Any] = make(
        pa.array(offsets), keys, values, maps.type, mask=pc.is_null(maps) if maps.null_count else None
    )
    return changed


_FROM_SOURCE_SQL: Final = " ".join(f"when '{mark}' then {source}" for mark, source in _SOURCES.items())
RESTORED_SQL: Final = (
    f"case when {SHARED.name} is null then {_SHARING} else map(map_keys({_SHARING}), list_transform("
    f"map_values({_SHARING}), lambda own, place: case {SHARED.name}[place] {_FROM_SOURCE_SQL} else own end)) end"
)
"""SQL of column `attributes` with all values, for parts with column `_shared`."""


def read_group(part: pq.ParquetFile, group: int, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema from a row group of a part. Columns that the part lacks are null."""
    return conform(restore_texts(part.read_row_group(group, columns=[*schema.names, SHARED.name])), schema)


def _nulls(columns: Sequence[str], schema: pa.Schema | None) -> list[str]:
    types = _types(schema) if schema is not None else {}
    return [f"null::{types[name]} as {quoted(name)}" for name in columns if name != SHARED.name]


def _read_parquet(parts: Sequence[Part], file: FileOf) -> str:
    files = ", ".join(literal(file(part.path)) for part in parts)
    return f"read_parquet([{files}], hive_partitioning = false)"  # no column of a folder `a=b`


def quoted(name: str) -> str:
    """Quote a column name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a text for SQL."""
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
    """Return DuckDB's types of columns. Cached because repeated reads of an empty table need them each time."""
    empty = pa.schema([*schema, ROW_ID]).empty_table()
    with duckdb.connect() as db:
        db.register("empty_table", empty)
        return {str(name): str(kind) for name, kind, *_ in db.sql("describe empty_table").fetchall()}


def _nothing(columns: Sequence[str], schema: pa.Schema) -> str:
    """Return a query for no rows, with the types that Parquet files of this schema would have."""
    return f"select {', '.join(_nulls(columns, schema))} where false"
