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
        places: dict[int, list[int]] = {}
        for key in keys:
            if (at := self._places.get(key)) is not None:
                places.setdefault(at[0], []).append(at[1])
        names = [name for name in columns if name != TRANSACTION_FIELD.name]
        # Of each part by itself: rows that are taken of several are first all put together.
        rows = [self.parts[number].rows.select(names).take(some) for number, some in places.items()]
        return pa.concat_tables(rows) if rows else SPANS.empty_table().select(names)

    @cached_property
    def _places(self) -> dict[tuple[str, str], tuple[int, int]]:
        """In which part the row of each span is that stands, and where in it."""
        hidden = set(self.hidden.tolist())
        return {
            (str(trace_id), str(span_id)): (number, place)
            for number, part in enumerate(self.parts)
            for place, (trace_id, span_id, row) in enumerate(
                zip(
                    *(part.rows[name].to_pylist() for name in ("trace_id", "span_id", "_row_id")), strict=True
                )
            )
            if row not in hidden
        }


assert first_row_id(FIRST_UNCOMMITTED) == 1 << 62
