"""What is read of a table: some parts of one snapshot, through DuckDB, here or in a task of another process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from tracelake._errors import DamageError, QueryError
from tracelake.limits import SPLIT_BATCH_ROWS, SPLIT_MIN_BYTES
from tracelake.predicates import Layout
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part
from tracelake.shards.store import Snapshot
from tracelake.storage import LocalFiles, open_objects

PLACE: Final = ("_part", "_row")
"""Where a stored row is: the part, and the number in it from 0."""

_INTEGERS: Final[dict[pa.DataType, str]] = {pa.int8(): "tinyint", pa.int64(): "bigint"}


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows of a snapshot. It is pickled to where they are read; the store must be reachable from there by URL."""

    objects_url: str
    copies: str
    """Where copies of remote parts are kept."""
    layout: Layout
    snapshot: Snapshot
    gone: tuple[Part, ...] = ()
    """Retractions: where there are any, the rows that they name are read instead of those that are there."""
    constants: tuple[tuple[str, pa.DataType, int], ...] = ()
    """Further columns (name, an integer type, value), with the same value in every row."""

    def where(self, condition: str | None) -> Scan:
        """Return the scan of those parts that may hold rows of a condition."""
        kept = self.layout.matching(self.snapshot.parts, condition)
        return self if len(kept) == len(self.snapshot.parts) else self.of_parts(kept)

    def of_parts(self, parts: Iterable[Part]) -> Scan:
        """Return the scan of some of the parts, with the retractions that can concern them."""
        kept = {part.path for part in parts}
        buckets = {part.bucket for part in self.snapshot.parts if part.path in kept}
        return replace(
            self,
            snapshot=narrowed(
                self.snapshot, lambda part: part.path in kept, lambda gone: gone.bucket in buckets
            ),
            gone=tuple(part for part in self.gone if part.bucket in buckets),
        )

    def splits(self) -> list[Scan]:
        """Cut the scan into tasks: a part each, and small parts together."""
        groups: list[list[Part]] = []
        size = SPLIT_MIN_BYTES
        for part in sorted(self.snapshot.parts, key=lambda part: part.bucket):
            if size + part.size_bytes > SPLIT_MIN_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.size_bytes
        return [self.of_parts(group) for group in groups]

    def check(self) -> None:
        """Read parts that were not read before, to see that they are what was written. Raises DamageError."""
        for part in (*self._parts(), *self.snapshot.retractions, *self.gone):
            check_part(self._files.file(part.path), part)

    def select(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return rows; arguments and errors as `Table.to_arrow`."""
        scan = self.where(where)
        scan.check()
        with connection() as db:
            rows: pa.Table = select(db, scan._query(columns, where, order_by, limit)).to_arrow_table()
        return rows

    def batches(
        self, columns: Sequence[str] | None = None, where: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows in batches, without holding all of them."""
        scan = self.where(where)
        scan.check()
        with connection() as db:
            yield from select(db, scan._query(columns, where)).to_arrow_reader(SPLIT_BATCH_ROWS)

    def sql(self) -> str:
        """Return the DuckDB query of the rows. It does not notice flipped bits: `check` does."""
        rows = self._gone_sql() if self.gone else self._live_sql()
        constants = "".join(
            f", {value}::{_INTEGERS[kind]} as {quoted_name(name)}" for name, kind, value in self.constants
        )
        return f"select *{constants} from ({rows})" if constants else rows

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        constants = [pa.field(name, kind, nullable=False) for name, kind, _ in self.constants]
        return pa.schema([*self.layout.schema, *constants])

    def placed_sql(self) -> str:
        """Return the query of the rows with their places, `PLACE`, by which a retraction names them."""
        if not self.snapshot.parts:
            return f"select *, null::varchar as _part, null::bigint as _row from ({self._empty_sql()})"
        retractions = self.snapshot.retractions
        gone = ""
        if retractions:
            gone = (
                f"anti join (select part as _part, row as _row from read_parquet({self._list(retractions)}))"
            )
            gone += " using (_part, _row)"
        return f"select * from ({self._placed_sql(self.snapshot.parts)}) {gone}"

    def _placed_sql(self, parts: Sequence[Part]) -> str:
        files = ", ".join(f"({literal(part.path)}, {literal(self._files.file(part.path))})" for part in parts)
        return f"""
            select {self._names}, _part, file_row_number as _row
            from read_parquet({self._list(parts)}, filename = '_file', file_row_number = true)
            join (values {files}) as places(_part, _file) using (_file)
        """

    def files(self) -> list[str]:
        """Return the files of the parts."""
        return [self._files.file(part.path) for part in self.snapshot.parts]

    def _query(
        self,
        columns: Sequence[str] | None,
        where: str | None,
        order_by: str | None = None,
        limit: int | None = None,
    ) -> str:
        names = ", ".join(map(quoted_name, columns)) if columns is not None else "*"
        query = f"select {names} from ({self.sql()})"
        query += f" where {where}" if where else ""
        query += f" order by {order_by}" if order_by else ""
        query += f" limit {int(limit)}" if limit is not None else ""
        return query

    @property
    def _names(self) -> str:
        return ", ".join(map(quoted_name, self.layout.schema.names))

    def _live_sql(self) -> str:
        snapshot = self.snapshot
        retracted = self._named_by(snapshot.retractions)
        clean = [part for part in snapshot.parts if part.path not in retracted]
        dirty = [part for part in snapshot.parts if part.path in retracted]
        branches = []
        if clean:
            branches.append(f"select {self._names} from read_parquet({self._list(clean)})")
        if dirty:
            branches.append(self._joined("anti", dirty, snapshot.retractions))
        return " union all ".join(branches) or self._empty_sql()

    def retraction(self, places: pa.Table) -> pa.Table:
        """Return the rows of a retraction part that names rows by their places."""
        return places.select(list(PLACE)).rename_columns(["part", "row"])

    def _gone_sql(self) -> str:
        parts = self._parts()
        return self._joined("semi", parts, self.gone) if parts else self._empty_sql()

    def _parts(self) -> Sequence[Part]:
        """Return the parts that are read: of rows that are gone, only those that lost them."""
        if not self.gone:
            return self.snapshot.parts
        named = self._named_by(self.gone)
        return [part for part in self.snapshot.parts if part.path in named]

    def _joined(self, how: str, parts: Sequence[Part], retractions: Sequence[Part]) -> str:
        """Return the query of those rows of parts that retractions name (semi), or do not (anti)."""
        files = ", ".join(f"({literal(part.path)}, {literal(self._files.file(part.path))})" for part in parts)
        return f"""
            select {self._names}
            from read_parquet({self._list(parts)}, filename = '_file', file_row_number = true)
            {how} join (
                select _file, "row" as file_row_number
                from read_parquet({self._list(retractions)})
                join (values {files}) as places(part, _file) using (part)
            ) using (_file, file_row_number)
        """

    def _named_by(self, retractions: Sequence[Part]) -> set[str]:
        """Return the parts that lost rows."""
        if not retractions:
            return set()
        for part in retractions:
            check_part(self._files.file(part.path), part)
        with connection() as db:
            paths = db.sql(f"select distinct part from read_parquet({self._list(retractions)})").fetchall()
        return {path for (path,) in paths}

    def _empty_sql(self) -> str:
        with connection() as db:
            empty = self.layout.schema.empty_table()
            db.register("empty_table", empty)
            types = db.sql("describe select * from empty_table").fetchall()
        columns = ", ".join(f"null::{kind} as {quoted_name(name)}" for name, kind, *_ in types)
        return f"select {columns} where false"

    def _list(self, parts: Sequence[Part]) -> str:
        return "[" + ", ".join(literal(self._files.file(part.path)) for part in parts) + "]"

    @property
    def _files(self) -> LocalFiles:
        return local_files(self.objects_url, self.copies)


def narrowed(snapshot: Snapshot, keep: Callable[[Part], bool], concerns: Callable[[Part], bool]) -> Snapshot:
    """Return a snapshot with the parts to keep and the retractions that concern them; `rows` is not known (-1)."""
    return replace(
        snapshot,
        parts=tuple(filter(keep, snapshot.parts)),
        retractions=tuple(filter(concerns, snapshot.retractions)),
        rows=-1,
    )


@cache
def local_files(objects_url: str, copies: str) -> LocalFiles:
    """Return the objects of a store as files, with copies in a directory where the store is remote."""
    try:
        Path(copies).mkdir(parents=True, exist_ok=True)
    except OSError:  # on another machine than the one that chose the place
        copies = tempfile.mkdtemp(prefix="tracelake-parts-")
    return LocalFiles(open_objects(objects_url), Path(copies))


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


def literal(text: str) -> str:
    """Quote a text for DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def quoted_name(text: str) -> str:
    """Quote the name of a column or table for DuckDB."""
    return '"' + text.replace('"', '""') + '"'
