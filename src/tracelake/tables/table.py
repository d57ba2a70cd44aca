"""A table as of one commit, for Arrow, Polars, DuckDB and Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import duckdb
import pyarrow as pa

from tracelake._errors import DamageError, NotFoundError, UsageError
from tracelake.limits import LOOKED_UP_TRACES_MAX
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.results import Row, TableInfo
from tracelake.shards.leases import Leases
from tracelake.shards.rows import ROW_ID, literal, quoted
from tracelake.tables.scan import Scan, connection

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from tracelake.search.live import RowIds


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
