"""Rows of table `spans` that no commit holds yet, for a search that finds them beside those of a commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.search.live import RowIds
from tracelake.search.unpublished import UnpublishedPart
from tracelake.shards.rows import first_row_id

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

    def rows_of(self, keys: Iterable[tuple[str, str]], columns: Sequence[str]) -> pa.Table:
        """Return the rows that stand here of these spans."""
        places = [self._places[key] for key in keys if key in self._places]
        names = [name for name in columns if name != TRANSACTION_FIELD.name]
        return self._rows.take(pa.array(places, pa.int64())).select(names)

    @cached_property
    def _rows(self) -> pa.Table:
        return pa.concat_tables([part.rows for part in self.parts]).select(SPANS.names)

    @cached_property
    def _places(self) -> dict[tuple[str, str], int]:
        """Where the row of each span is that stands."""
        hidden = set(self.hidden.tolist())
        ids = [row for part in self.parts for row in part.rows["_row_id"].to_pylist()]
        spans = zip(self._rows["trace_id"].to_pylist(), self._rows["span_id"].to_pylist(), ids, strict=True)
        return {
            (str(trace_id), str(span_id)): place
            for place, (trace_id, span_id, row) in enumerate(spans)
            if row not in hidden
        }


assert first_row_id(FIRST_UNCOMMITTED) == 1 << 62
