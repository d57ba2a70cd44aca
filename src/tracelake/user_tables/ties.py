"""Which of several rows of one key in one write stands, or that nothing tells.

A caller in one process gives rows in an order: the last one of a key stands, whether it is a row or a deletion.
Tasks of a job have no order among them. There a column tells, by its greatest value; where it does not, or none is
named, rows that differ are refused. So it never matters how rows were cut into batches, blocks, buckets or tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import InputError, UsageError
from tracelake.limits import KEY_TOLD_MAX_CHARS, KEYS_TOLD_MAX
from tracelake.shards.buckets import Numbers
from tracelake.shards.rows import quoted
from tracelake.tables.scan import connection
from tracelake.tables.spec import TableSpec


@dataclass(frozen=True, slots=True)
class RowOrder:
    """By what rows of one key follow one another: as the caller gave them, or by a column, or by nothing."""

    of_caller: bool = False
    column: str | None = None

    def check(self, spec: TableSpec) -> None:
        """Raise UsageError where the column cannot tell."""
        if self.column is None:
            return
        if not spec.key:
            raise UsageError(
                f"table {spec.name} has no key, so no two rows of it are of one; leave option orderBy out."
            )
        if self.column not in spec.schema.names:
            raise UsageError(
                f"table {spec.name} has no column {self.column!r} to order rows by; its columns are "
                f"{', '.join(spec.schema.names)}."
            )
        if pa.types.is_nested(kind := spec.schema.field(self.column).type):
            raise UsageError(
                f"table {spec.name}: column {self.column!r} is {kind}, which has no order; order by another column."
            )

    def columns_of_deletions(self, spec: TableSpec) -> list[str]:
        """Return the columns that tell of a deleted row: its key, and what orders it."""
        return list(dict.fromkeys([*spec.key, *([self.column] if self.column is not None else [])]))

    @property
    def rank(self) -> str:
        """SQL of what is to be greatest; rows without an order are all equal."""
        return "0" if self.column is None else quoted(self.column)


LAST_STANDS: Final = RowOrder(of_caller=True)


def may_stand(rows: pa.Table, key: Sequence[str], order: RowOrder) -> Numbers:
    """Return the places of rows that may stand, in the order of their keys; `rows` are of one block, and some.

    In the caller's order one of each key is left. Else it is known only when all tasks are done, and what goes here
    is what another row of the block repeats or exceeds; a row that the column does not order stays, to be told of.
    """
    places: Numbers = pc.sort_indices(rows, sort_keys=[(column, "ascending") for column in key]).to_numpy()
    in_order = rows.select(list(key)).take(places)
    is_next_same = np.ones(len(rows) - 1, dtype=np.bool_)
    for column in in_order.columns:
        is_next_same &= pc.equal(column[1:], column[:-1]).to_numpy()
    if not is_next_same.any():
        return places
    if order.of_caller:
        # The sort is stable: of equal keys the last one is the caller's last.
        last: Numbers = places[np.append(np.flatnonzero(~is_next_same), len(rows) - 1)]
        return last
    names, content = (", ".join(map(quoted, columns)) for columns in (key, rows.column_names))
    with connection() as db:
        db.register("rows_to_write", rows.append_column("_number", pa.array(range(len(rows)), pa.int64())))
        kept = db.sql(f"""
            select _number from rows_to_write
            qualify row_number() over (partition by row({content}) order by _number) = 1
                and ({order.rank} is null or {order.rank} = max({order.rank}) over (partition by {names}))
        """).to_arrow_table()
    is_kept = np.zeros(len(rows), dtype=np.bool_)
    is_kept[kept["_number"].to_numpy()] = True
    return places[is_kept[places]]


def untold_sql(claims: str, key: str) -> str:
    """Return the query for keys of which nothing tells the row that stands.

    Args:
        claims: a table of the rows of a write with their `_rank`, and `_row`, all of a row, null for a deletion.
        key: SQL of the columns of the key.
    """
    return f"""
        select {key} from (
            select *, row(_row is null, _row) as _claim, max(_rank) over (partition by {key}) as _top from {claims}
        ) group by {key}
        having count(distinct _claim) > 1
            and (bool_or(_rank is null) or count(distinct _claim) filter (_rank = _top) > 1)
        order by {key} limit {KEYS_TOLD_MAX + 1}
    """


def untold(spec: TableSpec, order: RowOrder, keys: Sequence[dict[str, Any]]) -> InputError:
    """Return the error that names keys, of which there may be more."""
    told = "; ".join(
        ", ".join(f"{column} = {_shortened(repr(key[column]))}" for column in spec.key)
        for key in keys[:KEYS_TOLD_MAX]
    )
    more = "; and more" if len(keys) > KEYS_TOLD_MAX else ""
    if order.column is None:
        why = "nothing says which of them stands"
        way_out = "Leave one for each key, or name a column by option orderBy: its greatest value stands"
    else:
        why = f"column {order.column!r} does not say which of them stands: it is the same, or null"
        way_out = f"Leave one for each key, or give them different values of {order.column!r}"
    return InputError(
        f"table {spec.name}: rows of one key in one write differ, and {why} ({told}{more}). Nothing was written. "
        f"{way_out}."
    )


def _shortened(text: str) -> str:
    return text if len(text) <= KEY_TOLD_MAX_CHARS else text[: KEY_TOLD_MAX_CHARS - 1] + "…"
