"""Rows of table `spans` that no commit holds yet, for a search that finds them beside those of a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.search.live import RowIds
from tracelake.search.unpublished import UnpublishedPart
from tracelake.shards.rows import ROW_ID, first_row_id

FIRST_UNCOMMITTED: Final = 1 << 30
"""The least transaction that is none: what the index says of the row of an unpublished part."""


@dataclass(frozen=True, eq=False)
class NewerRows:
    """Rows beside one commit. A search keeps what it made of them as long as they are there."""

    parts: Sequence[UnpublishedPart]
    hidden: RowIds
    """Ids of rows, of parts or of the table, that another claim about the same span stands before."""
    name: str
    """What a page of the search says of them, so that they can be put together again; "" where there are none."""

    def rows_of(self, row_ids: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return the rows of these ids, of those that stand."""
        wanted = np.setdiff1d(np.array(row_ids, np.int64), self.hidden)
        return self._taken(columns, lambda rows: np.isin(rows[ROW_ID.name].to_numpy(), wanted))

    def of_span(self, trace_id: str, span_id: str, columns: Sequence[str]) -> pa.Table:
        """Return the rows that stand here of a span, one for each workspace."""

        def is_it(rows: pa.Table) -> npt.NDArray[np.bool_]:
            same = pc.and_(
                pc.equal(rows["trace_id"], pa.scalar(trace_id)), pc.equal(rows["span_id"], pa.scalar(span_id))
            )
            return np.asarray(same, np.bool_) & ~np.isin(rows[ROW_ID.name].to_numpy(), self.hidden)

        return self._taken(columns, is_it)

    def _taken(
        self, columns: Sequence[str], are_wanted: Callable[[pa.Table], npt.NDArray[np.bool_]]
    ) -> pa.Table:
        names = [name for name in columns if name != TRANSACTION_FIELD.name]
        # Of each part by itself: rows that are taken of several are first all put together.
        rows = [part.rows.select(names).take(np.flatnonzero(are_wanted(part.rows))) for part in self.parts]
        return pa.concat_tables(rows) if rows else SPANS.append(ROW_ID).empty_table().select(names)


assert first_row_id(FIRST_UNCOMMITTED) == 1 << 62
