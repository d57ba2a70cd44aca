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
from typing import Final

import duckdb
import pyarrow as pa

from tracelake.otlp.schema import SPANS, SPANS_TABLE, TRANSACTION_FIELD
from tracelake.pipeline.traces import SPAN_COLUMNS, TRACES, aggregate_sql
from tracelake.shards.rows import RETRACTIONS, ROW_ID, FileOf, rows_sql
from tracelake.shards.store import EMPTY, Snapshot

_CONTENT: Final = ", ".join(SPANS.names)
_TRACE_CONTENT: Final = [name for name in TRACES.names if name != TRANSACTION_FIELD.name]


@dataclass(frozen=True, slots=True)
class Stored:
    """What the buckets of a table hold as of the transaction before, and where its parts are as files."""

    snapshot: Snapshot = EMPTY
    file: FileOf = str

    def sql(self, columns: Sequence[str], schema: pa.Schema) -> str:
        """Return a query for columns of the live rows."""
        return rows_sql(self.snapshot, self.file, columns, schema)


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
        held = spans.sql([ROW_ID.name, *SPANS.names], SPANS_TABLE)  # made once: it reads the retractions
        _load_stored(db, "stored", f"select {ROW_ID.name}, {', '.join(SPAN_COLUMNS)} from ({held})")
        _contest(db, numbered, held)
        taken = db.sql("""
            select ord from incoming
            where ord not in (select ord from lost)
            order by trace_id, start_ns, span_id
        """).to_arrow_table()["ord"]
        gone = db.sql("select row_id from replaced order by row_id").to_arrow_table()
        rows = incoming.take(taken).combine_chunks()
        trace_rows, trace_gone = _merge_traces(db, traces, transaction)
    return Merged(
        spans=rows.append_column(TRANSACTION_FIELD, pa.repeat(pa.scalar(transaction, pa.int64()), len(rows))),
        span_retractions=_retractions(gone, transaction),
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


def _load_stored(db: duckdb.DuckDBPyConnection, name: str, rows: str) -> None:
    """Make a table of the stored rows of touched traces."""
    db.execute(f"create temp table {name} as from ({rows}) where trace_id in (select trace_id from touched)")


def _contest(db: duckdb.DuckDBPyConnection, incoming: pa.Table, held: str) -> None:
    """Make `lost` (ord of incoming rows that are not taken) and `replaced` (ids of stored rows that go)."""
    db.execute("""
        create temp table contested as
        select trace_id, span_id
        from (select trace_id, span_id from incoming union all select trace_id, span_id from stored)
        group by trace_id, span_id having count(*) > 1
    """)
    # DuckDB reads whole rows of an Arrow table even where a join leaves few; so it gets these few only.
    ords = db.sql("select ord from incoming semi join contested using (trace_id, span_id)").to_arrow_table()
    db.register("claims", incoming.take(ords["ord"]))
    db.execute("""
        create temp table places as select _row_id from stored semi join contested using (trace_id, span_id)
    """)
    db.execute(f"""
        create temp table ranked as
        select trace_id, span_id, ord, _row_id,
               row_number() over (
                   partition by trace_id, span_id
                   order by end_ns desc, row({_CONTENT}) desc, ord is null desc, ord
               ) as rank
        from (
            select {_CONTENT}, ord, null::bigint as _row_id from claims
            union all by name
            select {_CONTENT}, null::bigint as ord, _row_id from ({held}) semi join places using (_row_id)
        )
    """)
    db.execute("create temp table lost as select ord from ranked where ord is not null and rank > 1")
    db.execute(
        "create temp table replaced as select _row_id as row_id from ranked where ord is null and rank > 1"
    )


def _merge_traces(
    db: duckdb.DuckDBPyConnection, traces: Stored, transaction: int
) -> tuple[pa.Table, pa.Table]:
    """Make the rows of traces that changed anew from all their spans; return rows and retractions."""
    spans = ", ".join(SPAN_COLUMNS)
    db.execute(f"""
        create temp view all_spans as
        select {spans} from incoming where ord not in (select ord from lost)
        union all
        select {spans} from stored where _row_id not in (select row_id from replaced)
    """)
    db.execute(f"create temp table made as {aggregate_sql('all_spans', transaction)}")
    _load_stored(db, "stored_traces", traces.sql([ROW_ID.name, *_TRACE_CONTENT], TRACES))
    db.execute(f"""
        create temp table unchanged as
        select m.trace_id from made m join stored_traces s using (trace_id)
        where {" and ".join(f"m.{name} is not distinct from s.{name}" for name in _TRACE_CONTENT)}
    """)
    rows = db.sql(
        "select * from made where trace_id not in (select trace_id from unchanged) order by trace_id"
    ).to_arrow_table()
    gone = db.sql("""
        select _row_id as row_id from stored_traces
        where trace_id not in (select trace_id from unchanged) order by row_id
    """).to_arrow_table()
    return rows.cast(TRACES), _retractions(gone, transaction)


def _retractions(gone: pa.Table, transaction: int) -> pa.Table:
    times = pa.repeat(pa.scalar(transaction, pa.int64()), len(gone))
    return gone.append_column(RETRACTIONS.field("time"), times).cast(RETRACTIONS)
