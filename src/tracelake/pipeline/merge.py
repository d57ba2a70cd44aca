"""Upsert of some buckets: which incoming spans are new, which replace a stored one, which are repeats.

A span that comes several times is one row: the claim that ended last stands, and among those the one whose
row compares greatest. The rule looks at content only, so neither the order of inputs nor the number of
partitions nor a replay changes the table (S5, S6: what is there already gives no output).

The sets are computed by DuckDB over Arrow tables and Parquet parts; only keys, and the few rows that are
contested, are looked at, so text is moved once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import duckdb
import pyarrow as pa

from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.pipeline.traces import SPAN_COLUMNS, TRACES, aggregate_sql

_PLACE: Final[list[pa.Field[Any]]] = [pa.field("part", pa.string()), pa.field("row", pa.int64())]
RETRACTIONS: Final = pa.schema(_PLACE)

_CONTENT: Final = ", ".join(SPANS.names)
_TRACE_CONTENT: Final = ", ".join(name for name in TRACES.names if name != TRANSACTION_FIELD.name)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of the table as of the transaction before: its name in the lake, and a file with its bytes."""

    path: str
    file: str


@dataclass(frozen=True, slots=True)
class Stored:
    """What the buckets of a table hold: parts, and files of retraction parts."""

    parts: Sequence[StoredPart] = ()
    retractions: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """What the buckets' batch is made of, rows sorted by trace, and what was counted."""

    spans: pa.Table
    span_retractions: pa.Table
    traces: pa.Table
    trace_retractions: pa.Table
    new: int
    replaced: int
    repeated: int


def merge(incoming: pa.Table, spans: Stored, traces: Stored, transaction: int) -> Merged:
    """Merge incoming spans (schema SPANS, in any order, with repeats) with what is stored."""
    with _connect() as db:
        numbered = incoming.append_column("ord", pa.array(range(len(incoming)), pa.int64()))
        db.register("incoming", numbered)
        db.execute("create temp table touched as select distinct trace_id from incoming")
        _load_stored(db, "stored", spans, SPAN_COLUMNS)
        _contest(db, numbered, spans)
        taken = db.sql("""
            select ord from incoming
            where ord not in (select ord from lost)
            order by trace_id, start_ns, span_id
        """).to_arrow_table()["ord"]
        gone = db.sql("select part, row from replaced order by part, row").to_arrow_table()
        rows = incoming.take(taken).combine_chunks()
        trace_rows, trace_gone = _merge_traces(db, traces, transaction)
    return Merged(
        spans=rows.append_column(TRANSACTION_FIELD, pa.repeat(pa.scalar(transaction, pa.int64()), len(rows))),
        span_retractions=gone.cast(RETRACTIONS),
        traces=trace_rows,
        trace_retractions=trace_gone,
        new=len(rows) - len(gone),
        replaced=len(gone),
        repeated=len(incoming) - len(rows),
    )


@contextmanager
def _connect() -> Iterator[duckdb.DuckDBPyConnection]:
    db = _database().cursor()
    try:
        yield db
    finally:
        db.close()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})  # one core for each task, as Spark counts them


def _load_stored(db: duckdb.DuckDBPyConnection, name: str, stored: Stored, columns: str) -> None:
    """Make a table of the live stored rows of touched traces, each with its place (part, row)."""
    if not stored.parts:
        fields = {field.name: field for field in (*SPANS, *TRACES)}
        empty = pa.schema([*_PLACE, *(fields[column.strip()] for column in columns.split(","))])
        db.register(name, empty.empty_table())
        return
    db.register(f"{name}_parts", _part_table(stored.parts))
    gone = (
        f"read_parquet({_list(stored.retractions)})"
        if stored.retractions
        else "(select '' as part, -1 as row)"
    )
    db.execute(f"""
        create temp table {name} as
        select p.path as part, s.file_row_number as row, {columns}
        from read_parquet({_list([part.file for part in stored.parts])}, filename = true, file_row_number = true) s
        join {name}_parts p on p.file = s.filename
        where s.trace_id in (select trace_id from touched)
          and not exists (select 1 from {gone} g where g.part = p.path and g.row = s.file_row_number)
    """)


def _contest(db: duckdb.DuckDBPyConnection, incoming: pa.Table, spans: Stored) -> None:
    """Make `lost` (ord of incoming rows that are not taken) and `replaced` (places of stored rows that go)."""
    db.execute("""
        create temp table contested as
        select trace_id, span_id
        from (select trace_id, span_id from incoming union all select trace_id, span_id from stored)
        group by trace_id, span_id having count(*) > 1
    """)
    # DuckDB reads whole rows of an Arrow table even where a join leaves few; so it gets these few only.
    ords = db.sql("select ord from incoming semi join contested using (trace_id, span_id)").to_arrow_table()
    db.register("claims", incoming.take(ords["ord"]))
    db.execute(f"""
        create temp table ranked as
        select trace_id, span_id, ord, part, "row",
               row_number() over (
                   partition by trace_id, span_id
                   order by end_ns desc, row({_CONTENT}) desc, ord is null desc, ord
               ) as rank
        from (
            select {_CONTENT}, ord, null::varchar as part, null::bigint as "row" from claims
            union all by name
            {_contested_stored(spans)}
        )
    """)
    db.execute("create temp table lost as select ord from ranked where ord is not null and rank > 1")
    db.execute("""
        create temp table replaced as
        select part, "row", trace_id, span_id from ranked where ord is null and rank > 1
    """)


def _contested_stored(spans: Stored) -> str:
    if not spans.parts:
        return f'select {_CONTENT}, ord, null::varchar as part, null::bigint as "row" from claims where false'
    return f"""
        select {_CONTENT}, null::bigint as ord, place.part, place."row"
        from read_parquet({_list([part.file for part in spans.parts])}, filename = true, file_row_number = true) s
        join stored_parts p on p.file = s.filename
        join (select part, "row" from stored semi join contested using (trace_id, span_id)) place
          on place.part = p.path and place."row" = s.file_row_number
    """


def _merge_traces(
    db: duckdb.DuckDBPyConnection, traces: Stored, transaction: int
) -> tuple[pa.Table, pa.Table]:
    """Make the rows of traces that changed anew from all their spans; return rows and retractions."""
    db.execute(f"""
        create temp view all_spans as
        select {SPAN_COLUMNS} from incoming where ord not in (select ord from lost)
        union all
        select {SPAN_COLUMNS} from stored
        where (part, "row") not in (select (part, "row") from replaced)
    """)
    db.execute(f"create temp table made as {aggregate_sql('all_spans', transaction)}")
    _load_stored(db, "stored_traces", traces, _TRACE_CONTENT)
    db.execute(f"""
        create temp table unchanged as
        select m.trace_id from (select {_TRACE_CONTENT} from made) m join stored_traces s using (trace_id)
        where {" and ".join(f"m.{c.strip()} is not distinct from s.{c.strip()}" for c in _TRACE_CONTENT.split(","))}
    """)
    rows = db.sql(
        "select * from made where trace_id not in (select trace_id from unchanged) order by trace_id"
    ).to_arrow_table()
    gone = db.sql("""
        select part, "row" from stored_traces
        where trace_id not in (select trace_id from unchanged) order by part, "row"
    """).to_arrow_table()
    return rows.cast(TRACES), gone.cast(RETRACTIONS)


def _part_table(parts: Sequence[StoredPart]) -> pa.Table:
    return pa.table({"path": [part.path for part in parts], "file": [part.file for part in parts]})


def _list(files: Sequence[str]) -> str:
    quoted = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return f"[{quoted}]"
