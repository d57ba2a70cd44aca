"""Scan of one snapshot of a table through DuckDB, in this process or in a task of another one.

`TableRows` reports which row ids of a whole table exist, and which are known to be retracted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake import limits
from tracelake._errors import DamageError, LimitError, NotFoundError, QueryError
from tracelake.limits import PART_COPIES_MAX_BYTES
from tracelake.limits.input import MIB
from tracelake.search.model import PartRef, RowIds
from tracelake.shards.lookup import Columns, Lookup, column_cache
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part, is_checked, may_share
from tracelake.shards.rows import (
    GIVEN_UP,
    GONE,
    ROW_ID,
    FileOf,
    first_row_id,
    literal,
    parquet,
    quoted,
    retracted,
    rows_sql,
    time_sql,
)
from tracelake.shards.shard import EMPTY, Snapshot
from tracelake.storage import LocalFiles, ObjectStore, open_objects
from tracelake.tables.predicates import Layout, condition, order, produces_large_values
from tracelake.tables.query_memory import (
    BOUNDED_BATCH_ROWS,
    Cancellation,
    current_cancellation,
    memory_settings,
    query_process,
    streamed,
    too_much_memory,
)

SPLIT_MIN_BYTES: Final = 32 * MIB
"""Stored bytes of parts that one task reads together."""
_SPLIT_BATCH_ROWS: Final = 8_192
"""Rows of one Arrow batch that a task yields."""
_CHECK_THREADS_MAX: Final = 4
"""Parts that a reader checks against their checksums concurrently, at most one a processor."""
_LIST_VALUE_BYTES: Final = 6
"""Estimated memory of a value: a number takes 8 bytes, a text that repeats 4."""
_QUERY_DATABASES_MAX: Final = 4
"""Databases, each locked to its files, that a process keeps for user queries."""

_columns: Final[Columns] = column_cache()
_list_columns: Final[Columns] = column_cache(lambda: limits.LIST_COLUMNS_MAX_BYTES)
_NO_OTHER_CODE: Final = ("autoinstall_known_extensions", "autoload_known_extensions")
CHANGE: Final = pa.field("_change", pa.int8(), nullable=False)
"""+1 for an inserted row, -1 for a retracted row."""
CHANGED_AT: Final = pa.field("_transaction", pa.int64(), nullable=False)
"""The transaction of the change; for a user table, the number of the write."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Selection of either the rows that a range of transactions inserted, or the rows that it retracted."""

    after: int
    """The range begins after this transaction (exclusive)."""
    until: int
    """The last transaction of the range (inclusive)."""
    inserted: bool
    """Whether inserted rows are selected; otherwise retracted rows."""
    has_change_columns: bool
    """Whether the rows have the columns `_change` and `_transaction`."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows of a snapshot of a table. A scan can be pickled and sent to another process that reaches the store by its
    URL."""

    objects_url: str
    copies: str
    """Directory of the copies of remote parts."""
    layout: Layout
    snapshot: Snapshot
    changed: Changed | None = None
    """The changed rows to read instead of the current rows, if set."""
    masked: frozenset[str] = frozenset()
    """Traces of open erasures. Their rows are not read."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the scanned rows."""
        has_change_columns = self.changed is not None and self.changed.has_change_columns
        return pa.schema([*self.layout.schema, *((CHANGE, CHANGED_AT) if has_change_columns else ())])

    @property
    def is_empty(self) -> bool:
        """Return whether the scan has no parts, and therefore no rows."""
        return not self._parts

    def hiding(self, masked: frozenset[str]) -> Scan:
        """Return a scan without the rows of masked traces. Its number of rows is unknown without reading."""
        return replace(self, masked=masked, snapshot=replace(self.snapshot, rows=None)) if masked else self

    def where(self, condition: str | None) -> Scan:
        """Return a scan of only those parts that may have rows that match a condition. The rows are not filtered
        yet."""
        return self if condition is None else self.of_parts(self.layout.matching(self._parts, condition))

    def of_query(self, query: str, table: str) -> Scan:
        """Return a scan of only those parts that may have rows of this table that a query uses."""
        parts = self.layout.of_query(self._parts, query, table)
        return self if len(parts) == len(self._parts) else self.of_parts(parts)

    def of_parts(self, parts: Iterable[Part]) -> Scan:
        """Return the scan of some of the parts, with the retractions that may concern them."""
        paths = {part.path for part in parts}
        chosen = [part for part in self._parts if part.path in paths]
        buckets = {part.bucket for part in chosen}
        first = min((part.first_row_id for part in chosen), default=0)
        last = max((part.last_row_id for part in chosen), default=-1)
        snapshot = self.snapshot
        return replace(
            self,
            snapshot=replace(
                snapshot,
                parts=tuple(part for part in snapshot.parts if part.path in paths),
                history=tuple(part for part in snapshot.history if part.path in paths),
                retractions=tuple(
                    part
                    for part in snapshot.retractions
                    if (not part.last_row_id or (part.first_row_id <= last and first <= part.last_row_id))
                    and any(may_share(part.bucket, bucket) for bucket in buckets)
                ),
                rows=None,
                swallowed=(),
            ),
        )

    def splits(self) -> list[Scan]:
        """Split the scan into tasks: one part each, or several small parts."""
        groups: list[list[Part]] = []
        size = SPLIT_MIN_BYTES
        for part in sorted(self._parts, key=lambda part: part.bucket):
            if size + part.size_bytes > SPLIT_MIN_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.size_bytes
        return [self.of_parts(group) for group in groups]

    def open_files(self) -> LocalFiles:
        """Return the lake's objects as files. Copies of remote objects exist as long as the returned value."""
        return LocalFiles(_objects(self.objects_url), Path(self.copies), PART_COPIES_MAX_BYTES)

    def check(self, files: LocalFiles) -> None:
        """Verify parts that this process has not read yet. Raises DamageError if one is missing or altered."""
        check_parts(files, (*self._parts, *self.snapshot.retractions))

    def select(
        self,
        files: LocalFiles,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
        *,
        distinct: bool = False,
        max_bytes: int | None = None,
        row_ids: RowIds | None = None,
    ) -> pa.Table:
        """Return rows, optionally distinct; arguments and errors as in `Table.to_arrow`, the last two as in
        `Table.lookup`."""
        scan = self.where(where)
        scan.check(files)
        query = scan._query(files, columns, where, order_by, limit, distinct=distinct)
        with rows_of(query, where, order_by, is_bounded=False) as reader:
            if max_bytes is None and row_ids is None:
                rows: pa.Table = reader.read_all()
                return rows
            batches = (_only(pa.Table.from_batches([each]), row_ids) for each in reader)
            return pa.concat_tables([reader.schema.empty_table(), *_limit_memory(batches, max_bytes)])

    def is_sorted_by(self, key: str) -> bool:
        """Return whether `lookup` can find rows by a text column: the column sorts the parts, and the parts are
        local."""
        return (
            self.changed is None
            and self.layout.bucketed_by == (key,)
            and pa.types.is_string(self.layout.schema.field(key).type)
            and not self.is_empty
            and _objects(self.objects_url).local_path(self._parts[0].path) is not None
            and all(part.footer_bytes and part.first_key and not part.relative for part in self._parts)
        )

    def lookup(
        self,
        files: LocalFiles,
        keys: Sequence[str],
        columns: Sequence[str],
        max_bytes: int | None = None,
        row_ids: RowIds | None = None,
    ) -> pa.Table:
        """Return columns of the rows with these keys, faster than a query; `_row_id` may be one of the columns.

        Raises DamageError if a part is missing or altered, and LimitError if the rows exceed `max_bytes`.
        """
        (key,) = self.layout.bucketed_by
        wanted = sorted(set(keys) - self.masked)
        scan = self.of_parts(self.layout.with_keys(self._parts, wanted))
        schema = self.layout.schema.append(ROW_ID)
        fields = pa.schema([schema.field(name).with_nullable(True) for name in columns])
        layout = self.layout
        lookup = Lookup(
            _objects(self.objects_url),
            scan.snapshot,
            key,
            _columns,
            buckets=layout.buckets,
            schema=layout.schema,
            added=layout.added,
            check=partial(check_parts, files),
        )
        others = [name for name in columns if name != ROW_ID.name]  # the lookup adds it itself
        groups = (_with_fields(each, fields) for each in lookup.rows(wanted, others, row_ids))
        rows = list(_limit_memory(groups, max_bytes))
        return pa.concat_tables(rows) if rows else fields.empty_table()

    def in_memory(self, columns: Sequence[str]) -> pa.Table | None:
        """Return columns of all rows, with texts as dictionaries. Return None if they may take too much memory, or if
        `lookup` cannot read the parts. Raises DamageError if a part is missing or altered."""
        stored = self.stored_rows
        max_bytes = limits.LIST_COLUMNS_MAX_BYTES
        (*keys,) = self.layout.bucketed_by
        if self.masked or self.snapshot.only is not None:
            return None
        if len(keys) != 1 or not self.is_sorted_by(keys[0]):
            return None
        if stored * len(columns) * _LIST_VALUE_BYTES > max_bytes:
            return None
        layout = self.layout
        lookup = Lookup(
            _objects(self.objects_url),
            self.snapshot,
            keys[0],
            _list_columns,
            schema=layout.schema,
            added=layout.added,
        )
        return lookup.columns(columns, max_bytes)

    def batches(
        self, columns: Sequence[str] | None = None, where: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows in batches, without loading all of them."""
        scan, files = self.where(where), self.open_files()
        scan.check(files)
        query = scan._query(files, columns, where)
        with rows_of(query, where, is_bounded=False, batch_rows=_SPLIT_BATCH_ROWS) as reader:
            yield from reader

    def sql(self, files: LocalFiles, further: Sequence[str] = ()) -> str:
        """Return the DuckDB query of the rows. `further` may name `_row_id` as an additional column.

        The query does not detect flipped bits in parts; `check` does.
        """
        check_parts(files, self.snapshot.retractions)
        if self.changed is None:
            names = [*self.layout.schema.names, *further]
            rows = rows_sql(self.snapshot, files.file, names, self.layout.schema, self.layout.added)
        else:
            rows = changes_sql(self.snapshot, files.file, self.layout, self.changed)
        return f"select * from ({rows}) where {not_masked(self.masked)}" if self.masked else rows

    def files_of(self, files: LocalFiles) -> list[str]:
        """Return the files that the query of `sql` reads."""
        return [files.file(part.path) for part in (*self._parts, *self.snapshot.retractions)]

    @property
    def stored_rows(self) -> int:
        """The number of rows in the parts, with those that were replaced or deleted."""
        return sum(part.rows for part in self._parts)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (*self.snapshot.parts, *self.snapshot.history)

    def _query(
        self,
        files: LocalFiles,
        columns: Sequence[str] | None,
        where: str | None,
        order_by: str | None = None,
        limit: int | None = None,
        *,
        distinct: bool = False,
    ) -> str:
        names = ", ".join(map(quoted, columns)) if columns is not None else "*"
        further = [ROW_ID.name] if columns is not None and ROW_ID.name in columns else []
        query = f"select {'distinct ' if distinct else ''}{names} from ({self.sql(files, further)})"
        query += f" where {condition(where)}" if where else ""
        query += f" order by {order(order_by)}" if order_by else ""
        query += f" limit {int(limit)}" if limit is not None else ""
        return query


def of_traces_sql(trace_ids: Iterable[str]) -> str:
    """Return the SQL condition for rows of the given traces, of which there is at least one."""
    return f"trace_id in ({', '.join(map(literal, sorted(trace_ids)))})"


def not_masked(masked: frozenset[str]) -> str:
    """Return the SQL condition for rows of traces that no open erasure hides."""
    return f"not {of_traces_sql(masked)}" if masked else "true"


def _with_fields(rows: pa.Table, fields: pa.Schema) -> pa.Table:
    """Return the columns of a schema. A column is cast only if its type differs, because a cast of all takes longer
    than the rest of a lookup."""
    columns = [rows.column(name) for name in fields.names]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=fields)


def _only(rows: pa.Table, row_ids: RowIds | None) -> pa.Table:
    return rows if row_ids is None else rows.filter(pc.is_in(rows[ROW_ID.name], pa.array(row_ids)))


def _limit_memory(tables: Iterable[pa.Table], max_bytes: int | None) -> Iterator[pa.Table]:
    """Yield the tables. Raises LimitError as soon as their total size exceeds `max_bytes`."""
    if max_bytes is None:
        yield from tables
        return
    total_bytes = 0
    for table in tables:
        total_bytes += table.nbytes
        if total_bytes > max_bytes:
            raise LimitError(
                f"these rows take more than {max_bytes:,} bytes, with resource and scope at each span; "
                "request fewer traces, or some columns by SQL"
            )
        yield table


def changes_sql(snapshot: Snapshot, file: FileOf, layout: Layout, changed: Changed) -> str:
    """Return a query for the rows of a snapshot's parts that were inserted, or retracted, by a range of
    transactions."""
    schema = layout.schema
    names = ", ".join(map(quoted, schema.names))
    times = f"between {changed.after + 1} and {changed.until}"

    def columns(change: int, time: str) -> str:
        change_columns = f", {change}::tinyint as {CHANGE.name}, {time}::bigint as {CHANGED_AT.name}"
        return names + (change_columns if changed.has_change_columns else "")

    def source(parts: Sequence[Part]) -> str:
        return parquet(parts, file, schema, layout.added)

    branches = []
    if changed.inserted:
        first, end = first_row_id(changed.after + 1), first_row_id(changed.until + 1)
        for parts in filter(None, (snapshot.parts, snapshot.history)):
            branches.append(
                f"select {columns(1, time_sql())} from {source(parts)} "
                f"where {ROW_ID.name} >= {first} and {ROW_ID.name} < {end}"
            )
    else:
        if snapshot.parts and snapshot.retractions:
            branches.append(
                f"select {columns(-1, '_retracted_at')} from {source(snapshot.parts)} join (select row_id as "
                f"{ROW_ID.name}, time as _retracted_at from {parquet(snapshot.retractions, file)} where time {times}) "
                f"using ({ROW_ID.name})"
            )
        if snapshot.history:
            branches.append(
                f"select {columns(-1, GONE.name)} from {source(snapshot.history)} where {GONE.name} {times}"
            )
    nothing = f"select {columns(0, '0')} from ({rows_sql(EMPTY, file, schema.names, schema)})"
    return " union all ".join(branches) or nothing


def check_parts(files: LocalFiles, parts: Sequence[Part]) -> None:
    """Verify parts, once in a process. Raises DamageError if one is missing or differs from what was written."""
    try:
        files.fetch([part.path for part in parts])
        unchecked = [part for part in parts if not is_checked(files.file(part.path), part)]
        if not unchecked:
            return
        # Hashing and reading release the GIL, so threads run in parallel.
        with ThreadPoolExecutor(min(_CHECK_THREADS_MAX, os.cpu_count() or 1)) as threads:
            list(threads.map(partial(_check_part, files), unchecked))
    except NotFoundError as error:
        raise DamageError(f"a part is missing: {error}. `tracelake verify` lists all damage.") from error


def _check_part(files: LocalFiles, part: Part) -> None:
    try:
        check_part(files.file(part.path), part)
    except DamageError:
        if not files.forget(part.path):
            raise
        # Perhaps only the local copy was bad, because of a disk failure or a removed file.
        check_part(files.file(part.path), part)


@cache
def _objects(url: str) -> ObjectStore:
    return open_objects(url)


@contextmanager
def connection(
    only: Iterable[str] | None = None, allow_files: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB connection, and translate its errors to Tracelake's.

    Connections share one in-memory database, which is faster than separate ones. Callers must create only temporary
    tables and views, which other connections do not see. A query written by a user gets a database that reads only the
    files in `only`, loads no extensions, and accepts no settings. With `allow_files`, it gets a separate database that
    is discarded afterwards.
    """
    with _errors_as_ours(current_cancellation()):
        shared = None if allow_files else _database() if only is None else _locked(tuple(only))
        db = _new_database([]) if shared is None else shared.cursor()
        try:
            with current_cancellation().interruptible(db.interrupt):
                yield db
        finally:
            db.close()


@contextmanager
def rows_of(
    query: str,
    where: str | None = None,
    order_by: str | None = None,
    tables: Mapping[str, pa.Table] | None = None,
    *,
    is_bounded: bool = True,
    batch_rows: int = BOUNDED_BATCH_ROWS,
) -> Iterator[pa.RecordBatchReader]:
    """Run a query of Tracelake that contains a user's condition and order. The user's text may name `tables` in
    addition to files."""
    if (where or order_by) and produces_large_values(condition=where or "", order=order_by or ""):
        statements = [f"set {setting} = false" for setting in _NO_OTHER_CODE]
        with limited_process(statements, query, tables, is_bounded=is_bounded) as reader:
            yield reader
        return
    with connection() as db:
        for name, table in (tables or {}).items():
            db.register(name, table)
        yield streamed(select(db, query), batch_rows)


@contextmanager
def limited_process(
    statements: Sequence[str],
    query: str,
    tables: Mapping[str, pa.Table] | None = None,
    *,
    is_bounded: bool = True,
) -> Iterator[pa.RecordBatchReader]:
    """Run a query in a separate process with a memory limit; raises errors like `connection`."""
    with (
        _errors_as_ours(current_cancellation()),
        query_process(statements, query, tables, is_bounded=is_bounded) as reader,
    ):
        yield reader


@contextmanager
def _errors_as_ours(cancellation: Cancellation) -> Iterator[None]:
    """Convert errors of DuckDB inside the `with` block to errors of Tracelake."""
    try:
        yield
    except duckdb.InterruptException as error:
        cancellation.check()
        raise QueryError(f"DuckDB refuses the query: {error}") from error
    except duckdb.PermissionException as error:
        raise QueryError(
            f"DuckDB refuses the query: {error}. Queries read the tables of the lake only; allow_files=True, "
            "or `tracelake sql --allow-files`, lets a query read files of this machine, too."
        ) from error
    except duckdb.IOException as error:
        raise DamageError(f"a part cannot be read: {error}. `tracelake verify` lists all damage.") from error
    except duckdb.OutOfMemoryException as error:
        raise too_much_memory(error) from error
    except GIVEN_UP as error:
        _database.cache_clear()
        _locked.cache_clear()
        raise QueryError(f"DuckDB refuses the query: {error}") from error
    except duckdb.InvalidInputException as error:
        if "parquet" in str(error).lower():
            raise DamageError(
                f"a part cannot be read: {error}. `tracelake verify` lists all damage."
            ) from error
        raise QueryError(f"DuckDB refuses the query: {error}") from error
    except duckdb.Error as error:
        raise QueryError(f"DuckDB refuses the query: {error}") from error


def select(db: duckdb.DuckDBPyConnection, query: str) -> duckdb.DuckDBPyRelation:
    """Run one SELECT. Anything else is refused, because writes and settings would outlive the query."""
    return db.sql(checked(db, query))


def checked(db: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return the query if it is a single SELECT. Raises QueryError otherwise."""
    try:
        statements = db.extract_statements(query.encode().decode())
    except UnicodeEncodeError as error:
        raise QueryError(
            f"the query is not Unicode text ({error.reason}); replace that character."
        ) from error
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise QueryError("only one SELECT statement is allowed here; `tracelake ingest` changes the lake.")
    return query


def _new_database(statements: Sequence[str]) -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    for statement in (*memory_settings(), *statements):
        db.execute(statement)
    return db


@cache
def _database() -> duckdb.DuckDBPyConnection:
    # A user's condition may name a function of an extension.
    return _new_database([f"set {setting} = false" for setting in _NO_OTHER_CODE])


@lru_cache(_QUERY_DATABASES_MAX)
def _locked(files: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
    """Return a locked database for user queries. It accepts only these files; other files need another database."""
    return _new_database(locked_settings(files))


def locked_settings(files: Iterable[str]) -> list[str]:
    """Return statements that lock a database for queries of users to these files."""
    off = (*_NO_OTHER_CODE, "python_enable_replacements", "enable_external_access")
    return [
        f"set allowed_paths = [{', '.join(map(literal, files))}]",
        *(f"set {setting} = false" for setting in off),
        "set lock_configuration = true",
    ]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Row ids of a whole table for the index, which implements `search.live_docs.Rows`."""

    scan: Scan
    files: LocalFiles

    @property
    def as_of(self) -> int:
        """The last transaction of the commit."""
        return self.scan.snapshot.as_of

    @property
    def count(self) -> int | None:
        """The number of rows, None if it is unknown without reading."""
        return self.scan.snapshot.rows

    def removed_rows(self, parts: Sequence[PartRef]) -> RowIds:
        """Return ids of retracted rows, including all known ones that are in these index parts.

        Most retractions are stored in the table's retraction parts. Rows that were inserted and retracted within a
        compacted batch are only in the batch's history. The history is read only if an index part was built before the
        retraction.
        """
        snapshot = self.scan.snapshot
        if all(part.as_of >= snapshot.as_of for part in parts):
            return self._masked()
        history = [*snapshot.history, *self._swallowed(parts)]
        with self.files.in_use():
            check_parts(self.files, (*snapshot.retractions, *history))
            id_arrays = [*retracted(snapshot, self.files.file).values(), *map(self._retracted_in, history)]
        ids = np.concatenate([*id_arrays, self._masked()])
        return np.unique(ids[ids < first_row_id(snapshot.as_of + 1)])

    def live(self) -> RowIds:
        """Return the ids of all existing rows, sorted."""
        scan = self.scan
        with self.files.in_use(), connection() as db:
            scan.check(self.files)
            rows = scan.sql(self.files, [ROW_ID.name])
            ids = db.sql(f"select {ROW_ID.name} from ({rows})").to_arrow_table()[ROW_ID.name].to_numpy()
        return np.sort(ids)

    def _masked(self) -> RowIds:
        """Return the ids of all rows of traces that an open erasure hides, including replaced rows."""
        scan, snapshot = self.scan, self.scan.snapshot
        row_ids = [np.array([], np.int64)]
        if not scan.masked:
            return row_ids[0]
        with self.files.in_use(), connection() as db:
            # History has a further column, so it is read by a separate query.
            for stored in (snapshot.parts, (*snapshot.history, *(part for _, part in snapshot.swallowed))):
                parts = scan.layout.with_keys(stored, sorted(scan.masked))
                if parts:
                    check_parts(self.files, parts)
                    source = parquet(parts, self.files.file, scan.schema, scan.layout.added)
                    query = f"select {ROW_ID.name} from {source} where {of_traces_sql(scan.masked)}"
                    row_ids.append(db.sql(query).to_arrow_table()[ROW_ID.name].to_numpy())
        return np.concatenate(row_ids)

    def _swallowed(self, parts: Sequence[PartRef]) -> Iterator[Part]:
        """Yield the parts of history that may have rows of these index parts."""
        for upper, part in self.scan.snapshot.swallowed:
            for built in parts:
                inserted = (
                    part.first_row_id < first_row_id(built.upper)
                    and first_row_id(built.lower) <= part.last_row_id
                )
                if inserted and built.as_of < upper - 1:
                    yield part
                    break

    def _retracted_in(self, part: Part) -> RowIds:
        table = pq.read_table(self.files.file(part.path), columns=[ROW_ID.name, GONE.name])
        ids, times = (table[field.name].to_numpy() for field in (ROW_ID, GONE))
        row_ids: RowIds = ids[times <= self.scan.snapshot.as_of] + (part.first_row_id if part.relative else 0)
        return row_ids
