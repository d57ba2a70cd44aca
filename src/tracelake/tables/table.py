"""A table as of one commit, for Arrow, Polars, DuckDB and Spark.

The module also bounds the memory of large traces. As Python objects and a document, the answer for a trace of 450 MB
takes eight times as much memory, and three answers at once took 8 GB. One process therefore builds one such answer at a
time, and only a few built answers wait for slow clients. A waiting request blocks a thread that others need, so only a
few may wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from html import escape
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from tracelake import limits
from tracelake._errors import BackPressureError, LimitError, NotFoundError, UsageError
from tracelake.limits import LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES
from tracelake.limits.input import MIB
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.results import Row, TableInfo, html_table, public_names
from tracelake.search.model import RowIds
from tracelake.shards.leases import Leases
from tracelake.shards.rows import ROW_ID, literal, quoted
from tracelake.tables.builtin import in_workspace
from tracelake.tables.scan import Scan, connection

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

_LONG_TEXTS: Final = ("input", "output")
LOOKED_UP_TRACES_MAX: Final = 64
"""Traces whose rows are looked up without a query."""
LOOKED_UP_ROWS_MAX_BYTES: Final = 8 * MIB
"""Columns of the rows of such traces."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Address of a table for another process: the lake's URL and the commit."""

    lake: str
    at: str


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _in_use(
    method: Callable[Concatenate[Table, Parameters], Result],
) -> Callable[Concatenate[Table, Parameters], Result]:
    """Decorator: keep local copies of parts until the method returns. The method must not return paths of such
    copies."""

    @wraps(method)
    def run(table: Table, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with table._files.in_use():
            return method(table, *args, **options)

    return run


class Table:
    """One table as of one commit. The object never changes; `Lake.table` returns a newer state."""

    def __init__(
        self, name: str, scan: Scan, origin: Origin | None = None, leases: Leases | None = None
    ) -> None:
        """Open a table. `leases`, if any, protect its parts and are renewed before parts are read."""
        self.name = name
        self.schema = scan.layout.schema
        self.scan = scan
        self._files = scan.open_files()  # copies named by `sql` and `files` exist as long as the table
        self._origin = origin
        self._leases = leases or Leases()

    def __repr__(self) -> str:
        """Return the name and the columns."""
        return f"Table({self.name!r}, {len(self.schema):,} columns)"

    def __dir__(self) -> list[str]:
        """Return the names for users of a table."""
        return public_names(
            self, "about", "bucket_sql", "check", "content_hash", "lookup", "of_query", "scan", "splits"
        )

    def _repr_html_(self) -> str:
        """Return the number of rows, and the columns with their types, for a notebook."""
        columns = html_table(("column", "type"), ((field.name, field.type) for field in self.schema))
        return f"<p>Table {escape(self.name)}: {self._rows():,} rows</p>{columns}"

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return rows as an Arrow table.

        Args:
            columns: names of columns; all by default.
            where: a DuckDB condition such as `service = 'frontend' and duration_ns > 1e6`.
            order_by: a DuckDB order such as `start_ns desc`; no particular order by default.
            limit: maximum number of rows.
        Raises:
            QueryError: DuckDB refuses a column, condition or order.
            DamageError: a part is missing or damaged.
        """
        with self._leased(), self._files.in_use():
            return self.scan.select(self._files, columns, where, order_by, limit)

    def _distinct(self, column: str, where: str, limit: int) -> pa.Table:
        """Return at most `limit` distinct values of a column; arguments and errors as in `to_arrow`."""
        with self._leased(), self._files.in_use():
            return self.scan.select(self._files, [column], where, limit=limit, distinct=True)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """Return rows as a pandas frame. Arguments and errors as in `to_arrow`; pandas must be installed."""
        return self.to_arrow(columns, where, order_by, limit).to_pandas(maps_as_pydicts="lossy")

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pl.DataFrame:
        """Return rows as a Polars frame; arguments and errors as in `to_arrow`. Maps become lists of structs."""
        import polars as pl  # noqa: PLC0415  a sixth of the start of a process that has no use for it

        frame = pl.from_arrow(self.to_arrow(columns, where, order_by, limit))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the table's parts, for further SQL. It belongs to `connection`, by default to a
        new one."""
        self.check()
        return (connection or duckdb.connect()).sql(self.sql())

    def to_spark(
        self, spark: SparkSession, columns: Sequence[str] | None = None, where: str | None = None
    ) -> DataFrame:
        """Return a Spark frame. Each Spark task reads one part, or several small ones.

        Args:
            spark: a session that knows format `tracelake`, by itself or after `tracelake.spark.register(spark)`.
            columns: names of columns; all by default. Spark does not report to the data source which columns a query
                needs, so name them here if rows are wide.
            where: a DuckDB condition. Spark's own filters are pushed down too.
        Raises:
            UsageError: the lake is still empty, or not reachable from other processes, or Spark does not find the
                format.
        """
        from pyspark.errors import AnalysisException  # noqa: PLC0415  slow to import

        if self._origin is None:
            raise UsageError(
                f"table {self.name} cannot be read by other processes: the lake is empty, or in memory."
            )
        reader = (
            spark.read.format("tracelake").option("lake", self._origin.lake).option("at", self._origin.at)
        )
        if columns is not None:
            reader = reader.option("columns", json.dumps(list(columns)))
        if where is not None:
            reader = reader.option("where", where)
        try:
            return reader.load(self.name)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_NOT_FOUND":
                raise
            raise UsageError(
                "Spark does not find format tracelake by itself, as the Python that it starts has no module "
                "pyspark_tracelake; call tracelake.spark.register(spark) first, or set PYSPARK_PYTHON."
            ) from error

    def files(self) -> list[str]:
        """Return the paths of the table's Parquet files. If rows were retracted, the files contain more rows than the
        table; `sql` returns a query without them. Attributes that repeat the input or output of a span are null."""
        with self._leased(now=True):
            return [self._files.file(part.path) for part in self.scan.snapshot.parts]

    def info(self) -> TableInfo:
        """Return the table's totals: rows, parts and bytes."""
        snapshot = self.scan.snapshot
        return TableInfo(
            name=self.name,
            rows=self._rows(),
            parts=len(snapshot.parts),
            bytes=sum(part.size_bytes for part in snapshot.parts),
            upper=snapshot.as_of + 1,
        )

    @_in_use
    def _rows(self) -> int:
        if self.scan.snapshot.rows is not None:
            return self.scan.snapshot.rows
        self.check()
        with self._leased(), connection() as db:
            ((count,),) = db.sql(f"select count(*) from ({self.sql()})").fetchall()
        return int(count)

    def splits(self, where: str | None = None) -> list[Scan]:
        """Return the table split into tasks for any engine, without parts that cannot match a DuckDB condition.

        Each task can be pickled; its `batches(columns, where)` applies the condition and yields the rows.
        """
        self._leases.renew(now=True)
        return self.scan.where(where).splits()

    def lookup(
        self,
        trace_ids: Sequence[str],
        columns: Sequence[str] | None = None,
        max_bytes: int | None = None,
        row_ids: RowIds | None = None,
    ) -> pa.Table:
        """Return the rows of some traces, reading only parts that may have them.

        Args:
            columns: names of columns, possibly `_row_id`; all by default
            max_bytes: memory limit of the rows; LimitError is raised as soon as they exceed it
            row_ids: return only these rows; `_row_id` must be one of the columns then
        """
        names = self.schema.names if columns is None else columns
        if self._are_looked_up(trace_ids, names):
            return self._looked_up(trace_ids, names, max_bytes, row_ids)
        wanted = ", ".join(map(literal, trace_ids))
        condition = f"trace_id in ({wanted})" if wanted else "false"
        schema = self.schema.append(ROW_ID)
        if set(names) <= set(schema.names) and (not wanted or self.scan.where(condition).is_empty):
            # Nothing to read, for example for an uncommitted trace. Fields are nullable as in DuckDB's
            # results.
            fields = [schema.field(name).with_nullable(True) for name in names]
            return pa.schema(fields).empty_table()
        with self._leased(), self._files.in_use():
            return self.scan.select(self._files, columns, condition, max_bytes=max_bytes, row_ids=row_ids)

    def about(self, claims: pa.Table, trace_ids: Sequence[str]) -> pa.Table:
        """Return the stored rows, with `_row_id`, of spans in these traces that also occur in `claims`."""
        key = ["trace_id", "span_id"]
        keys = self.lookup(trace_ids, [*key, ROW_ID.name])
        same = keys.join(claims.select(key), key, join_type="left semi")[ROW_ID.name].to_numpy()
        return self.lookup(trace_ids if len(same) else [], [*SPANS.names, ROW_ID.name], row_ids=same)

    def _are_looked_up(self, trace_ids: Sequence[str], columns: Sequence[str]) -> bool:
        """Return whether no query is needed: few traces, and known columns. A query reports an unknown column."""
        return (
            0 < len(trace_ids) <= LOOKED_UP_TRACES_MAX
            and all(map(str.isascii, trace_ids))
            and len(set(columns)) == len(columns) > 0
            and {*columns} <= {*self.schema.names, ROW_ID.name}
            and self.scan.is_sorted_by("trace_id")
        )

    @_in_use
    def _looked_up(
        self, trace_ids: Sequence[str], columns: Sequence[str], max_bytes: int | None, row_ids: RowIds | None
    ) -> pa.Table:
        with self._leased():
            return self.scan.lookup(self._files, trace_ids, columns, max_bytes, row_ids)

    @_in_use
    def content_hash(self) -> str:
        """Return a hash of all rows, without their transaction numbers.

        The same rows give the same hash, in any order or layout and from any transactions.
        """
        self.check()
        names = ", ".join(quoted(field.name) for field in self.schema if field != TRANSACTION_FIELD)
        with self._leased(), connection() as db:
            ((count, total),) = db.sql(f"""
                select count(*), coalesce(sum(md5_number_lower(to_json(row({names}))::varchar)), 0)
                from ({self.sql()})
            """).fetchall()
        return f"{count:x}-{int(total) % (1 << 128):032x}"

    def check(self) -> None:
        """Verify the checksums of parts that this process has not read yet. Raises DamageError if a part is missing or
        altered."""
        with self._leased(), self._files.in_use():
            self.scan.check(self._files)

    def _leased(self, *, now: bool = False) -> AbstractContextManager[None]:
        """Keep the lease of the parts while the `with` block reads them.

        With `now`, renew the lease at once, because the caller receives the paths of the parts and reads them later.
        """
        return self._leases.reading(now=now)

    def of_query(self, query: str) -> Table:
        """Return the table with only those parts that may have rows that a query uses."""
        scan = self.scan.of_query(query, self.name)
        return self if scan is self.scan else Table(self.name, scan, self._origin, self._leases)

    def _read_files(self) -> list[str]:
        """Check all files that `sql` names, and return their paths. Raises DamageError if one is missing or altered."""
        self.check()
        with self._leased():
            return self.scan.files_of(self._files)

    def bucket_sql(self, bucket: int, where: str, columns: Sequence[str]) -> str | None:
        """Return the DuckDB query for columns, possibly `_row_id`, of the rows of one bucket that match a condition;
        None if no part has such rows. Its files are checked, and parts that cannot match are skipped."""
        scan = replace(self.scan, snapshot=self.scan.snapshot.for_buckets({bucket})).where(where)
        if scan.is_empty:
            return None
        with self._leased(now=True):
            scan.check(self._files)
            rows = scan.sql(self._files, [name for name in columns if name == ROW_ID.name])
            return f"select {', '.join(map(quoted, columns))} from ({rows}) where {where}"

    def sql(self) -> str:
        """Return the DuckDB query that reads the table. It does not detect flipped bits; `check` does."""
        with self._leased():
            return self.scan.sql(self._files)


ColumnsInMemory: TypeAlias = dict[tuple[str, ...], pa.Table | None]
"""Columns of all rows by the names of the table and the columns; None if they take too much memory."""


def columns_in_memory(
    tables: Sequence[Table], names: Collection[str], cached: ColumnsInMemory, trace_ids: Collection[str] = ()
) -> dict[str, pa.Table] | None:
    """Return the columns of tables with these names, by table, or None if some are not in memory. Texts and maps of any
    length never are. With a few `trace_ids`, look up the rows of these traces, with all columns."""
    if (looked_up := _columns_of_traces(tables, names, trace_ids)) is not None:
        return looked_up
    columns = dict[str, pa.Table]()
    for table in tables:
        fields = [field for field in table.schema if field.name in names or field.name == "trace_id"]
        if any(pa.types.is_nested(field.type) or field.name in _LONG_TEXTS for field in fields):
            return None
        key = (table.name, *(field.name for field in fields))
        if key not in cached:
            cached[key] = table.scan.in_memory(key[1:])
        if (rows := cached[key]) is None:
            return None
        columns[table.name] = rows
    return columns


def span_counts(traces: Table, counts: dict[str, int], trace_ids: Iterable[str]) -> dict[str, int]:
    """Return the number of spans of each trace by table `traces`, 0 if it has none. Traces in `counts` are not looked
    up; new ones are added."""
    new = dict.fromkeys((trace_id for trace_id in trace_ids if trace_id not in counts), 0)
    for row in traces.lookup([*new], ["trace_id", "span_count"]).to_pylist() if new else ():
        new[row["trace_id"]] += row["span_count"]
    counts |= new
    return {trace_id: counts[trace_id] for trace_id in trace_ids}


def _columns_of_traces(
    tables: Iterable[Table], names: Collection[str], trace_ids: Collection[str]
) -> dict[str, pa.Table] | None:
    """Return the columns with these names of the rows of a few traces, by table, or None if a query reads them in less
    time or memory."""
    if not 0 < len(trace_ids) <= LOOKED_UP_TRACES_MAX:
        return None
    columns = dict[str, pa.Table]()
    for table in tables:
        fields = [name for name in table.schema.names if name in names or name == "trace_id"]
        try:
            columns[table.name] = table.lookup([*trace_ids], fields, LOOKED_UP_ROWS_MAX_BYTES)
        except LimitError:
            return None
    return columns


def to_rows(table: pa.Table) -> list[Row]:
    """Return rows with maps as dicts, at every level."""
    return table.to_pylist(maps_as_pydicts="strict")


_TOO_MANY: Final = "reading other large traces takes too long; read this one again later"


class ReadGate:
    """A semaphore with a bounded wait: few requests may wait for a turn, others are refused. Threads may share it."""

    def __init__(self, at_once: int, refusal: str = _TOO_MANY) -> None:
        self._refusal = refusal
        self._free = Semaphore(at_once)
        self._lock = Lock()
        self._waiting = 0

    def begin(self) -> None:
        """Wait for a turn, which any thread may end by `end`. Raises BackPressureError if too many requests wait
        already, or the wait takes too long."""
        if self._free.acquire(blocking=False):
            return
        with self._lock:
            if self._waiting >= limits.LARGE_TRACES_WAITING_MAX:
                raise BackPressureError(self._refusal)
            self._waiting += 1
        try:
            if not self._free.acquire(timeout=limits.HOT_TRACE_WAIT_S):
                raise BackPressureError(self._refusal)
        finally:
            with self._lock:
                self._waiting -= 1

    def end(self) -> None:
        """End a turn."""
        self._free.release()


class LargeReads:
    """The turns of one request: one to have an answer in memory, and one to build it."""

    def __init__(self, answers: ReadGate, making: ReadGate) -> None:
        self._answers, self._making = answers, making
        self._is_answered = self._is_built = False

    def begin(self) -> None:
        """Wait until this request may build a large answer; return at once if it already may. Raises BackPressureError
        if other requests take too long."""
        if not self._is_answered:
            self._answers.begin()
            self._is_answered = True
        if not self._is_built:
            self._making.begin()
            self._is_built = True

    def end_build(self) -> None:
        """Give up the turn to build, because the answer is complete and only its bytes remain in memory."""
        if self._is_built:
            self._is_built = False
            self._making.end()

    def sent(self) -> None:
        """Give up all turns, because the answer was sent and nothing of it remains in memory."""
        self.end_build()
        if self._is_answered:
            self._is_answered = False
            self._answers.end()


_ANSWERS: Final = ReadGate(limits.LARGE_TRACES_ANSWERED_MAX)
_MAKING: Final = ReadGate(1)
_OF_REQUEST: Final[ContextVar[LargeReads | None]] = ContextVar("tracelake_large_reads", default=None)


@contextmanager
def large_reads(answers: ReadGate = _ANSWERS, making: ReadGate = _MAKING) -> Iterator[LargeReads]:
    """Bound the large reads in this block, and in threads started from it. The block counts as one request."""
    reads = LargeReads(answers, making)
    token = _OF_REQUEST.set(reads)
    try:
        yield reads
    finally:
        _OF_REQUEST.reset(token)
        reads.sent()


def acquire_read() -> None:
    """If a request is being answered, wait until it may build a large answer. Raises BackPressureError if other
    requests take too long."""
    if (reads := _OF_REQUEST.get()) is not None:
        reads.begin()


def read_trace(spans: Table, trace_id: str, workspace: str | None = None) -> pa.Table:
    """Return the spans of a trace as they were sent, in one workspace or in all. Spans of other workspaces take no
    memory.

    Raises LimitError if the rows take too much memory, BackPressureError if they are large and other large reads take
    too long.
    """
    few_bytes = min(LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES)
    with suppress(LimitError):
        return in_workspace(spans.lookup([trace_id], SPANS.names, few_bytes), workspace)
    columns, own = SPANS.names, None
    if workspace is not None:
        columns = [*SPANS.names, ROW_ID.name]
        own = in_workspace(spans.lookup([trace_id], ["workspace", ROW_ID.name]), workspace)[
            ROW_ID.name
        ].to_numpy()
        with suppress(LimitError):
            return spans.lookup([trace_id], columns, few_bytes, own).select(SPANS.names)
    acquire_read()
    try:
        return spans.lookup([trace_id], columns, TRACE_ROWS_MAX_BYTES, own).select(SPANS.names)
    except LimitError as error:
        raise too_large(trace_id) from error


def read_small_trace(spans: Table, trace_id: str) -> pa.Table | None:
    """Return the spans of a trace with `_row_id`, or None if they take much memory."""
    few_bytes = min(LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES)
    with suppress(LimitError):
        return spans.lookup([trace_id], [*SPANS.names, ROW_ID.name], few_bytes)
    return None


def read_rows(spans: Table, trace_id: str, row_ids: RowIds) -> pa.Table:
    """Return some spans of a trace, by their row ids. Raises the same errors as `read_trace`."""
    columns = [*SPANS.names, ROW_ID.name]
    few_bytes = min(LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES)
    with suppress(LimitError):
        return spans.lookup([trace_id], columns, few_bytes, row_ids).select(SPANS.names)
    acquire_read()
    try:
        return spans.lookup([trace_id], columns, TRACE_ROWS_MAX_BYTES, row_ids).select(SPANS.names)
    except LimitError as error:
        raise too_large(trace_id) from error


def too_large(trace_id: str) -> LimitError:
    """Return the error for a trace that is too large to be read whole."""
    return LimitError(
        f"the rows of trace {trace_id} take more than {TRACE_ROWS_MAX_BYTES:,} bytes, with resource and scope at each "
        "of its spans; read columns of it by SQL, such as "
        f"`select span_id, name, duration_ns from spans where trace_id = '{trace_id}'`"
    )


def no_trace(trace_id: str) -> NotFoundError:
    """Return the error for a missing trace."""
    return NotFoundError(f"no trace {trace_id!r} in this lake. `tracelake search` finds ids by text.")
