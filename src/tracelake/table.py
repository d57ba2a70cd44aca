"""A table as of one commit, read through DuckDB: parts less retracted rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

import duckdb
import polars as pl
import pyarrow as pa

from tracelake._errors import DamageError, NotFoundError, QueryError
from tracelake.records import TableInfo
from tracelake.shards.buckets import bucket_of
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part
from tracelake.shards.rows import literal, quoted, rows_sql
from tracelake.shards.store import Snapshot
from tracelake.storage import LocalFiles

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
        self,
        name: str,
        schema: pa.Schema,
        snapshot: Snapshot,
        files: LocalFiles,
        buckets: int,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        """`renew` is called before parts are read: it makes the lease on them hold on, or raises ExpiredError."""
        self.name = name
        self.schema = schema
        self._snapshot = snapshot
        self._files = files
        self._buckets = buckets
        self._renew = renew

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
        return self._select(self._snapshot, columns, where, order_by, limit)

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pl.DataFrame:
        """Return rows as a Polars frame; arguments and errors as `to_arrow`. Maps are lists of structs there."""
        frame = pl.from_arrow(self.to_arrow(columns, where, order_by, limit))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the parts, to go on with in SQL; on a connection of its own by default."""
        self.check()
        return (connection or duckdb.connect()).sql(self.sql())

    def files(self) -> list[str]:
        """Return the Parquet files of the table. With retractions, they hold more rows than the table: see `sql`."""
        self._renew()
        return [self._files.file(part.path) for part in self._snapshot.parts]

    def info(self) -> TableInfo:
        """Return totals."""
        return TableInfo(
            name=self.name,
            rows=self._rows(),
            parts=len(self._snapshot.parts),
            bytes=sum(part.size_bytes for part in self._snapshot.parts),
            upper=self._snapshot.as_of + 1,
        )

    @_in_use
    def _rows(self) -> int:
        if self._snapshot.rows is not None:
            return self._snapshot.rows
        self.check()
        with connection() as db:
            ((count,),) = db.sql(f"select count(*) from ({self.sql()})").fetchall()
        return int(count)

    def lookup(self, trace_ids: Sequence[str], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of some traces, reading only parts that may hold them."""
        buckets = {bucket_of(key, self._buckets) for key in trace_ids}
        low, high = min(trace_ids, default=""), max(trace_ids, default="")
        narrow = self._snapshot.narrow(
            lambda part: (
                part.bucket in buckets
                and (not part.first_key or (part.first_key <= high and part.last_key >= low))
            )
        )
        wanted = ", ".join(literal(key) for key in trace_ids)
        return self._select(narrow, columns, f"trace_id in ({wanted})" if wanted else "false")

    @_in_use
    def content_hash(self) -> str:
        """Return a hash of all rows, without their transaction numbers: the same rows in any order and layout,
        reached by any transactions, give the same hash."""
        self.check()
        names = ", ".join(quoted(field.name) for field in self.schema if field.name != "transaction")
        with connection() as db:
            ((count, total),) = db.sql(f"""
                select count(*), coalesce(sum(md5_number_lower(to_json(row({names}))::varchar)), 0)
                from ({self.sql()})
            """).fetchall()
        return f"{count:x}-{int(total) % (1 << 128):032x}"

    def check(self) -> None:
        """Read parts that were not read before, to see that they are what was written. Raises DamageError."""
        self._check(self._snapshot)

    @_in_use
    def _check(self, snapshot: Snapshot) -> None:
        self._renew()
        self._check_parts((*snapshot.parts, *snapshot.history))

    def _check_parts(self, parts: Sequence[Part]) -> None:
        try:
            self._files.fetch([part.path for part in parts])
            for part in parts:
                self._check_part(part)
        except NotFoundError as error:
            raise DamageError(
                f"a part is gone: {error}. `tracelake verify` names all that is wrong."
            ) from error

    def _check_part(self, part: Part) -> None:
        try:
            check_part(self._files.file(part.path), part)
        except DamageError:
            if not self._files.forget(part.path):
                raise
            # Only the copy was bad, perhaps: a disk that failed, or a file that somebody removed.
            check_part(self._files.file(part.path), part)

    def sql(self) -> str:
        """Return the DuckDB query that reads the table. It does not notice flipped bits: `check` does."""
        return self._sql(self._snapshot)

    @_in_use
    def _select(
        self,
        snapshot: Snapshot,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        self._check(snapshot)
        names = ", ".join(quoted(column) for column in columns) if columns is not None else "*"
        query = f"select {names} from ({self._sql(snapshot)})"
        query += f" where {where}" if where else ""
        query += f" order by {order_by}" if order_by else ""
        query += f" limit {int(limit)}" if limit is not None else ""
        with connection() as db:
            rows: pa.Table = select(db, query).to_arrow_table()
        return rows

    def _sql(self, snapshot: Snapshot) -> str:
        self._check_parts(snapshot.retractions)
        return rows_sql(snapshot, self._files.file, self.schema.names, self.schema)


@contextmanager
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB connection, and turn its errors into ours.

    Connections share one in-memory database, which is quicker than one each; make temporary tables and
    views only, which nobody else sees.
    """
    db = _database().cursor()
    try:
        yield db
    except duckdb.IOException as error:
        raise DamageError(
            f"a part cannot be read: {error}. Run `tracelake verify` to see all that is wrong."
        ) from error
    except duckdb.InvalidInputException as error:
        if "parquet" in str(error).lower():
            raise DamageError(f"a part cannot be read: {error}. Run `tracelake verify`.") from error
        raise QueryError(f"DuckDB refuses the query: {error}") from error
    except duckdb.Error as error:
        raise QueryError(f"DuckDB refuses the query: {error}") from error
    finally:
        db.close()


def select(db: duckdb.DuckDBPyConnection, query: str) -> duckdb.DuckDBPyRelation:
    """Run one SELECT. Anything else is refused: statements that write, and settings, would outlive the query."""
    statements = db.extract_statements(query)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise QueryError(
            "a lake is read by one SELECT statement here, and changed by `tracelake ingest` only."
        )
    return db.sql(query)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()
