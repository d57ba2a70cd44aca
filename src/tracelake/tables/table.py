"""A table as of one commit, for Arrow, Polars, DuckDB and Spark.

Turns of requests that read traces whose rows take much memory, which are few at a time in one process.

Rows become objects of Python and a document: what a trace of 450 MB takes for its answer is eight times as much, and
three of them at once took 8 GB. So one of them is made at a time, and few wait to be sent, however slow who reads them
is. Who waits has a thread that others need, so few do.

A trace that is read whole: all its rows, as far as they fit into memory, and the errors where it cannot be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import duckdb
import pyarrow as pa

from tracelake import limits
from tracelake._errors import BackPressureError, DamageError, LimitError, NotFoundError, UsageError
from tracelake.limits import LARGE_TRACE_ROWS_BYTES, LOOKED_UP_TRACES_MAX, TRACE_ROWS_MAX_BYTES
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.results import Row, TableInfo
from tracelake.search.live_docs import RowIds
from tracelake.shards.leases import Leases
from tracelake.shards.rows import ROW_ID, literal, quoted
from tracelake.tables.builtin import within
from tracelake.tables.scan import Scan, connection

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Origin:
    """Where another process finds the same table: the lake, and the commit."""

    lake: str
    at: str


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _in_use(
    method: Callable[Concatenate[Table, Parameters], Result],
) -> Callable[Concatenate[Table, Parameters], Result]:
    """Keep copies of parts until the method returns, and no longer, for it hands none of them out."""

    @wraps(method)
    def run(table: Table, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with table._files.in_use():
            return method(table, *args, **options)

    return run


class Table:
    """One table of one commit. It never changes; ask the lake again for a newer one."""

    def __init__(
        self, name: str, scan: Scan, origin: Origin | None = None, leases: Leases | None = None
    ) -> None:
        """`leases`, if any, hold its parts: they are renewed before parts are read."""
        self.name = name
        self.schema = scan.layout.schema
        self.scan = scan
        self._files = scan.open_files()  # copies that `sql` and `files` name stay as long as the table
        self._origin = origin
        self._leases = leases or Leases()

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
            limit: rows at most.

        Raises:
            QueryError: a column, condition or order that DuckDB refuses.
            DamageError: a part is missing or damaged.
        """
        with self._leased(), self._files.in_use():
            return self.scan.select(self._files, columns, where, order_by, limit)

    def _distinct(self, column: str, where: str, limit: int) -> pa.Table:
        """Return values of a column that differ, at most so many; arguments and errors as `to_arrow`."""
        with self._leased(), self._files.in_use():
            return self.scan.select(self._files, [column], where, limit=limit, distinct=True)

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pl.DataFrame:
        """Return rows as a Polars frame; arguments and errors as `to_arrow`. Maps are lists of structs there."""
        import polars as pl  # noqa: PLC0415  a sixth of the start of a process that has no use for it

        frame = pl.from_arrow(self.to_arrow(columns, where, order_by, limit))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the parts, to go on with in SQL; on a connection of its own by default."""
        self.check()
        return (connection or duckdb.connect()).sql(self.sql())

    def to_spark(
        self, spark: SparkSession, columns: Sequence[str] | None = None, where: str | None = None
    ) -> DataFrame:
        """Return a Spark frame, read by tasks of its own, a part each; small parts together.

        Args:
            spark: a session that finds format `tracelake`: by itself, or since `tracelake.spark.register(spark)`.
            columns: names of columns; all by default. Spark does not tell sources which ones a query needs, so
                name them here where rows are wide.
            where: a DuckDB condition. Spark's own filters are handed down too.

        Raises:
            UsageError: the lake is still empty, or not reachable from other processes, or Spark does not find the
                format.
        """
        from pyspark.errors import AnalysisException  # noqa: PLC0415  slow to import

        if self._origin is None:
            raise UsageError(
                f"table {self.name} cannot be read by other processes: the lake is still empty, or in memory."
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
        """Return the Parquet files of the table. With retractions, they hold more rows than the table: see `sql`."""
        with self._leased(now=True):
            return [self._files.file(part.path) for part in self.scan.snapshot.parts]

    def info(self) -> TableInfo:
        """Return totals."""
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
        """Return the table cut into tasks of any engine, leaving out parts without rows of a DuckDB condition.

        Each can be pickled, and `batches(columns, where)` yields its rows; the condition is applied there.
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
        """Return the rows of some traces, reading only parts that may hold them; `_row_id` may be a column.

        Where `row_ids` are given, these rows alone; `_row_id` must be a column then. Raises LimitError as soon as rows
        take more memory than `max_bytes`, where that is given.
        """
        names = self.schema.names if columns is None else columns
        if self._are_looked_up(trace_ids, names):
            return self._looked_up(trace_ids, names, max_bytes, row_ids)
        wanted = ", ".join(map(literal, trace_ids))
        condition = f"trace_id in ({wanted})" if wanted else "false"
        schema = self.schema.append(ROW_ID)
        if set(names) <= set(schema.names) and self.scan.where(condition).is_empty:
            # As of a trace that is hot: nothing is to be read. DuckDB says of no column that it has no nulls.
            fields = [schema.field(name).with_nullable(True) for name in names]
            return pa.schema(fields).empty_table()
        with self._leased(), self._files.in_use():
            return self.scan.select(self._files, columns, condition, max_bytes=max_bytes, row_ids=row_ids)

    def about(self, claims: pa.Table, trace_ids: Sequence[str]) -> pa.Table:
        """Return the rows, and `_row_id`, of spans of these traces that other rows of SPANS are about.

        Of a trace of very many spans no others are held in memory.
        """
        key = ["trace_id", "span_id"]
        keys = self.lookup(trace_ids, [*key, ROW_ID.name])
        same = keys.join(claims.select(key), key, join_type="left semi")[ROW_ID.name].to_numpy()
        return self.lookup(trace_ids if len(same) else [], [*SPANS.names, ROW_ID.name], row_ids=same)

    def _are_looked_up(self, trace_ids: Sequence[str], columns: Sequence[str]) -> bool:
        """Whether no query is needed: for few traces, and columns that are there. A query refuses others."""
        return (
            0 < len(trace_ids) <= LOOKED_UP_TRACES_MAX
            and all(map(str.isascii, trace_ids))
            and len(set(columns)) == len(columns) > 0
            and {*columns} <= {*self.schema.names, ROW_ID.name}
            and self.scan.is_sorted_by("trace_id")
        )

    @_in_use
    def _looked_up(
        self,
        trace_ids: Sequence[str],
        columns: Sequence[str],
        max_bytes: int | None,
        row_ids: RowIds | None,
    ) -> pa.Table:
        with self._leased():
            return self.scan.lookup(self._files, trace_ids, columns, max_bytes, row_ids)

    @_in_use
    def content_hash(self) -> str:
        """Return a hash of all rows, without their transaction numbers: the same rows in any order and layout,
        reached by any transactions, give the same hash."""
        self.check()
        names = ", ".join(quoted(field.name) for field in self.schema if field != TRANSACTION_FIELD)
        with self._leased(), connection() as db:
            ((count, total),) = db.sql(f"""
                select count(*), coalesce(sum(md5_number_lower(to_json(row({names}))::varchar)), 0)
                from ({self.sql()})
            """).fetchall()
        return f"{count:x}-{int(total) % (1 << 128):032x}"

    def check(self) -> None:
        """Read parts that were not read before, to see that they are what was written. Raises DamageError."""
        with self._leased(), self._files.in_use():
            self.scan.check(self._files)

    @contextmanager
    def _leased(self, *, now: bool = False) -> Iterator[None]:
        """Hold the lease while parts are read: where it ended meanwhile, what is gone is no damage (S10).

        `now` makes sure of it for parts that are handed out, and not read here.
        """
        self._leases.renew(now=now)
        try:
            yield
        except (DamageError, NotFoundError):
            self._leases.renew(now=True)
            raise

    def _read_files(self) -> list[str]:
        """Check all files that `sql` names, and return them. Raises DamageError."""
        self.check()
        with self._leased():
            return self.scan.files_of(self._files)

    def sql(self) -> str:
        """Return the DuckDB query that reads the table. It does not notice flipped bits: `check` does."""
        with self._leased():
            return self.scan.sql(self._files)


def to_rows(table: pa.Table) -> list[Row]:
    """Return rows with maps as dicts, at every level."""
    return table.to_pylist(maps_as_pydicts="strict")


_TOO_MANY: Final = "other large traces take too long to be read; read this one again later"


class ReadGate:
    """So many at a time, and few who wait for them; others are told why. Threads may share it."""

    def __init__(self, at_once: int, refusal: str = _TOO_MANY) -> None:
        self._refusal = refusal
        self._free = Semaphore(at_once)
        self._lock = Lock()
        self._waiting = 0

    def begin(self) -> None:
        """Wait for a turn, which `end` ends, in any thread. Raises BackPressureError."""
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
    """What one request takes of the turns of its process."""

    def __init__(self, answers: ReadGate, making: ReadGate) -> None:
        self._answers, self._making = answers, making
        self._is_answered = self._is_made = False

    def begin(self) -> None:
        """Wait until what is large may be made for this request, unless it may be by now. Raises BackPressureError."""
        if not self._is_answered:
            self._answers.begin()
            self._is_answered = True
        if not self._is_made:
            self._making.begin()
            self._is_made = True

    def made(self) -> None:
        """Say that the answer is made: what is left of it are its bytes."""
        if self._is_made:
            self._is_made = False
            self._making.end()

    def sent(self) -> None:
        """Say that nothing is left of it."""
        self.made()
        if self._is_answered:
            self._is_answered = False
            self._answers.end()


_ANSWERS: Final = ReadGate(limits.LARGE_TRACES_ANSWERED_MAX)
_MAKING: Final = ReadGate(1)
_OF_REQUEST: Final[ContextVar[LargeReads | None]] = ContextVar("tracelake_large_reads", default=None)


@contextmanager
def large_reads(answers: ReadGate = _ANSWERS, making: ReadGate = _MAKING) -> Iterator[LargeReads]:
    """Bound what is read here, and in threads that are begun from here: it is one request until the end of this."""
    reads = LargeReads(answers, making)
    token = _OF_REQUEST.set(reads)
    try:
        yield reads
    finally:
        _OF_REQUEST.reset(token)
        reads.sent()


def acquire_read() -> None:
    """Wait for a turn where a request is answered. Raises BackPressureError."""
    if (reads := _OF_REQUEST.get()) is not None:
        reads.begin()


def read_trace(spans: Table, trace_id: str, workspace: str | None = None) -> pa.Table:
    """Return the spans of a trace as they were sent, in one workspace or in all: those of others take no memory.

    Raises LimitError where their rows take too much memory, BackPressureError where they take much, and others do.
    """
    few_bytes = min(LARGE_TRACE_ROWS_BYTES, TRACE_ROWS_MAX_BYTES)
    with suppress(LimitError):
        return within(spans.lookup([trace_id], SPANS.names, few_bytes), workspace)
    columns, own = SPANS.names, None
    if workspace is not None:
        columns = [*SPANS.names, ROW_ID.name]
        own = within(spans.lookup([trace_id], ["workspace", ROW_ID.name]), workspace)[ROW_ID.name].to_numpy()
        with suppress(LimitError):
            return spans.lookup([trace_id], columns, few_bytes, own).select(SPANS.names)
    acquire_read()
    try:
        return spans.lookup([trace_id], columns, TRACE_ROWS_MAX_BYTES, own).select(SPANS.names)
    except LimitError as error:
        raise too_large(trace_id) from error


def read_rows(spans: Table, trace_id: str, row_ids: RowIds) -> pa.Table:
    """Return some spans of a trace, by their row ids. Raises as `whole` does."""
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
    """Return the error for a trace that is not read whole."""
    return LimitError(
        f"the rows of trace {trace_id} take more than {TRACE_ROWS_MAX_BYTES:,} bytes, with resource and scope at each "
        "of its spans; read columns of it by SQL, such as "
        f"`select span_id, name, duration_ns from spans where trace_id = '{trace_id}'`"
    )


def no_trace(trace_id: str) -> NotFoundError:
    """Return the error for a trace that is not there."""
    return NotFoundError(f"no trace {trace_id!r} in this lake. `tracelake search` finds ids by text.")
