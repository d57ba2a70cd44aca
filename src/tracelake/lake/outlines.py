"""Outlines of traces: the columns that place each span in its tree, without payloads.

An outline of 200,000 spans is read in a fraction of the time of their rows. A page of spans, or one span, is chosen by
the outline; then only its rows are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import UsageError
from tracelake.otlp.schema import SPANS
from tracelake.shards.rows import ROW_ID
from tracelake.tables.builtin import IN_ORDER, SPAN_COLUMNS
from tracelake.tables.view import CommitView

OUTLINE_COLUMNS: Final = tuple(dict.fromkeys((*SPAN_COLUMNS, "kind", "duration_ns", "model")))
KEY_COLUMNS: Final = ("trace_id", "span_id", "workspace", "kind", "start_ns")
"""The columns by which one span is found."""
_HOT: Final = "_hot"
_TOKEN: Final = re.compile(r"(-?[0-9]{1,19})\.([0-9a-f]{16})\.(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outline:
    """Rows of an outline in the order of the spans, and the whole rows of those that the tracking store has."""

    trace_id: str
    rows: pa.Table
    hot: pa.Table

    @classmethod
    def of(cls, trace_id: str, hot: pa.Table, committed: pa.Table) -> Outline:
        """Combine both tiers: a span that is in both is read from the tracking store, which has the newer claim."""
        columns = [name for name in committed.column_names if name != ROW_ID.name]
        if len(hot) and len(committed):
            committed = committed.filter(pc.invert(pc.is_in(_identity(committed), value_set=_identity(hot))))
        places = pa.array(range(len(hot)), pa.int64())
        rows = pa.concat_tables(
            [
                hot.select(columns).append_column(_HOT, places),
                committed.append_column(_HOT, pa.nulls(len(committed), pa.int64())),
            ],
            promote_options="permissive",
        )
        return cls(trace_id, rows.sort_by(IN_ORDER), hot)

    def with_span(self, span_id: str) -> pa.Table:
        """Return the outlines of the spans with an id, of which several workspaces may have one."""
        return self.rows.filter(pc.equal(self.rows["span_id"], pa.scalar(span_id)))

    def after(self, page: str | None, limit: int) -> tuple[pa.Table, str | None]:
        """Return the outlines of a page, and the token of the next page, if any. Raises UsageError for a bad token."""
        starts = self.rows["start_ns"].to_numpy()
        first = 0 if page is None else self._place_after(starts, *_read_token(page))
        end = min(first + limit, len(self.rows))
        # Spans with one key share a page, because the token names the key.
        while 0 < end < len(self.rows) and self._key(end) == self._key(end - 1):
            end += 1
        token = ".".join(map(str, self._key(end - 1))) if end < len(self.rows) else None
        return self.rows.slice(first, end - first), token

    def read(self, view: CommitView, chosen: pa.Table) -> pa.Table:
        """Return the whole rows of chosen spans, in order. Raises LimitError, BackPressureError."""
        hot = self.hot.take(chosen[_HOT].drop_null())
        if ROW_ID.name not in chosen.column_names:
            return hot.sort_by(IN_ORDER)
        ids = chosen[ROW_ID.name].drop_null().to_numpy()
        committed = view.rows(self.trace_id, ids) if len(ids) else SPANS.empty_table()
        rows = pa.concat_tables([hot.select(SPANS.names).cast(SPANS), committed.cast(SPANS)])
        return rows.sort_by(IN_ORDER)

    def _key(self, place: int) -> tuple[int, str, str]:
        start_ns, span_id, workspace = (self.rows[name][place].as_py() for name, _ in IN_ORDER[:3])
        return start_ns, span_id, workspace

    def _place_after(self, starts: npt.NDArray[np.int64], *key: Any) -> int:
        place = int(np.searchsorted(starts, key[0], side="left"))
        while place < len(starts) and self._key(place) <= key:
            place += 1
        return place


def _identity(rows: pa.Table) -> pa.Array[Any]:
    """Return what tells the spans of one trace apart."""
    side = pc.if_else(pc.is_in(rows["kind"], value_set=pa.array(["SERVER", "CONSUMER"])), "s", "c")
    texts = [rows[name].cast(pa.string()) for name in ("workspace", "span_id")]
    joined = pc.binary_join_element_wise(*texts, side, " ")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _read_token(page: str) -> tuple[int, str, str]:
    match = _TOKEN.fullmatch(page)
    if match is None or not -(1 << 63) <= int(match[1]) < 1 << 63:
        raise UsageError("page is not the next_page of this trace; leave it out to begin with the first page")
    return int(match[1]), match[2], match[3]
