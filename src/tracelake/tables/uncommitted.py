"""Uncommitted rows that a search reads in addition to a commit, and reads of the rows of a search's spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import QueryError
from tracelake.limits import SEARCH_ROWS_MAX
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.search.build import UnpublishedPart
from tracelake.search.documents import document_text
from tracelake.search.model import RowIds
from tracelake.search.query_parser import TABLE_NUMBERS
from tracelake.shards.rows import ROW_ID, first_row_id
from tracelake.tables.builtin import in_workspace
from tracelake.tables.scan import rows_of
from tracelake.tables.table import Table, to_rows

FIRST_UNCOMMITTED: Final = 1 << 30
"""The first number beyond real transactions. The index uses it as the transaction of rows in unpublished parts."""


@dataclass(frozen=True, eq=False)
class UncommittedRows:
    """Uncommitted rows that a search reads in addition to a commit. The search caches data about them in this
    object."""

    parts: Sequence[UnpublishedPart]
    hidden: RowIds
    """Ids of rows, in parts or in the table, that lose to another version of the same span."""
    name: str
    """Name of these rows in page tokens, so that a later page can restore them; "" if there are no rows."""

    def rows_of(self, row_ids: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return the rows with these ids, without hidden rows, which other versions of their spans beat."""
        wanted = np.array(row_ids, np.int64)
        return self._select(columns, lambda rows: np.isin(rows[ROW_ID.name].to_numpy(), wanted))

    def of_span(self, trace_id: str, span_id: str, columns: Sequence[str]) -> pa.Table:
        """Return the uncommitted rows of a span, one for each workspace: the greatest claim."""

        def is_it(rows: pa.Table) -> npt.NDArray[np.bool_]:
            of_trace = pc.equal(rows["trace_id"], pa.scalar(trace_id))
            return np.asarray(pc.and_(of_trace, pc.equal(rows["span_id"], pa.scalar(span_id))), np.bool_)

        return self._select(columns, is_it)

    def of_traces(self, trace_ids: Sequence[str], columns: Sequence[str]) -> pa.Table:
        """Return the winning rows of traces."""
        wanted = pa.array(trace_ids, pa.string())
        return self._select(columns, lambda rows: np.asarray(pc.is_in(rows["trace_id"], wanted), np.bool_))

    def every(self, columns: Sequence[str]) -> pa.Table:
        """Return all winning rows."""
        return self._select(columns, lambda rows: np.ones(len(rows), np.bool_))

    def _select(
        self, columns: Sequence[str], are_wanted: Callable[[pa.Table], npt.NDArray[np.bool_]]
    ) -> pa.Table:
        names = [name for name in columns if name != TRANSACTION_FIELD.name]
        # Take from each part separately: taking from several parts would first concatenate them.
        rows = []
        for part in self.parts:
            is_winner = ~np.isin(part.rows[ROW_ID.name].to_numpy(), self.hidden)
            rows.append(part.rows.select(names).take(np.flatnonzero(are_wanted(part.rows) & is_winner)))
        return pa.concat_tables(rows) if rows else SPANS.append(ROW_ID).empty_table().select(names)


assert first_row_id(FIRST_UNCOMMITTED) == 1 << 62

TEXT_COLUMNS: Final = ("input", "output", "status_message", "attributes", "events")


def with_newer_sql(name: str, rows: str, *, replaces: bool = True) -> str:
    """Return the SQL of the rows of a table with the uncommitted rows, which replace all rows of their traces. Without
    `replaces`, the table has none of these traces, so its rows are not compared."""
    older = f"anti join newer_{name} using (trace_id)" if replaces else ""
    return f"select * from ({rows}) {older} union all by name select * from newer_{name}"


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a query in an order of its columns."""

    query: str
    order: str
    limit: int
    offset: int = 0
    grouped_by: str | None = None
    """The column of `traces` by which rows are grouped, if they are. A trace without a value is in no group."""

    def __str__(self) -> str:
        """Return the SQL."""
        return f"{self.query} ORDER BY {self.order} LIMIT {self.limit:d} OFFSET {self.offset:d}"

    def merged(self, committed: pa.Table, newer: Mapping[str, pa.Table]) -> pa.Table:
        """Return the first of committed rows, which are a result of the query, and of its rows in uncommitted
        tables."""
        both = f"SELECT * FROM (SELECT * FROM committed UNION ALL BY NAME {self.query})"
        # To register the columns of spans takes as long as the rest.
        tables = {name: rows for name, rows in newer.items() if name in self.query}
        with rows_of(str(replace(self, query=both)), tables={**tables, "committed": committed}) as reader:
            return reader.read_all()


def texts_of(
    spans: Table, newer: UncommittedRows | None, trace_id: str, span_id: str, workspace: str | None
) -> list[str] | None:
    """Return the indexed texts of a span, or None if the workspace has no such span."""
    columns = ["span_id", "workspace", *TEXT_COLUMNS]
    rows = (
        [] if newer is None else to_rows(in_workspace(newer.of_span(trace_id, span_id, columns), workspace))
    )
    rows = rows or to_rows(in_workspace(spans.lookup([trace_id], columns), workspace))
    its = [row for row in rows if row["span_id"] == span_id]
    if not its:
        return None
    both = [row for row in its if row["workspace"] == its[0]["workspace"]]
    return [text for row in both for text in document_text(row)]


def events_of(
    spans: Table, newer: UncommittedRows | None, trace_ids: Sequence[str], row_ids: Sequence[int]
) -> list[tuple[str, Any]]:
    """Return the trace ids and events of spans, by the ids of their traces and rows."""
    columns, wanted = ["trace_id", "events", ROW_ID.name], set(row_ids)
    rows = to_rows(spans.lookup(trace_ids, columns, row_ids=np.array(row_ids, np.int64)))
    rows += [] if newer is None else to_rows(newer.rows_of(row_ids, columns))
    return [(row["trace_id"], row["events"] or ()) for row in rows if row[ROW_ID.name] in wanted]


def rows_where(spans: Table, newer: UncommittedRows | None, condition: str) -> list[int]:
    """Return the ids of the rows that meet a condition on TABLE_NUMBERS. Raises QueryError if there are too many."""
    ids: list[Any] = spans.to_arrow([ROW_ID.name], condition, limit=SEARCH_ROWS_MAX + 1)[
        ROW_ID.name
    ].to_pylist()
    if newer is not None and newer.parts:
        tables = {"newer_rows": newer.every([ROW_ID.name, *TABLE_NUMBERS])}
        with rows_of(
            f"select {ROW_ID.name} from newer_rows where {condition}", None, tables=tables
        ) as reader:
            ids += reader.read_all()[ROW_ID.name].to_pylist()
    if len(ids) > SEARCH_ROWS_MAX:
        raise QueryError(f"more than {SEARCH_ROWS_MAX:,} spans have {condition}; set a closer bound")
    return ids
