"""The rows of single traces in the tracking store, of which a large one is not decoded anew with every read.

A trace may come in very many parts, as where a session of an agent sends each span by itself, and most of its parts
may be claims about spans that it has already. A commit has what has left the outbox: so of a large trace a read takes
what waits there, and the tables have the rest. One thread at a time reads large traces: what they take in memory does
not grow with those who ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tracelake import limits
from tracelake.lake.claimed import standing
from tracelake.lake.hot_lists import steps
from tracelake.lake.hot_rows import add_part, holds_span
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.schema import SPANS
from tracelake.tables.large_reads import Turns, begin_large_read
from tracelake.tables.workspaces import within
from tracelake.tracking.uncommitted import ListedPart, Uncommitted


class HotTraces:
    """The traces of one tracking store, as they are read one by one. Threads may share it."""

    def __init__(self, uncommitted: Uncommitted) -> None:
        self._uncommitted = uncommitted
        self._reading = Turns(1)

    def rows(
        self,
        trace_id: str,
        workspace: str | None = None,
        *,
        whole: bool = False,
        span_id: str | None = None,
    ) -> pa.Table:
        """Return the rows of what is here of a trace, with the columns of SPANS; there may be several about a span.

        Those of other workspaces are left out where they are many. Of a large one what waits in the outbox alone,
        unless some of it was given up: a commit that is chosen after this call has the rest. With `whole` all of it.
        With `span_id` only parts that hold this id are decoded.

        Raises DamageError, LimitError for rows that take too much memory, BackPressureError where others read large
        traces for too long.
        """
        # Not one more is listed than it takes to tell whether it is large.
        parts = self._uncommitted.of_trace(trace_id, at_most=limits.HOT_TRACE_PARTS + 1)
        if not is_large(parts):
            return self._read(parts, workspace, begin_large_read, span_id=span_id)
        self._reading.begin()
        try:
            rows = self._of_large(trace_id, workspace, whole, span_id)
        finally:
            self._reading.end()
        # Not before: who has a turn there may wait for one here.
        if rows.nbytes > limits.LARGE_TRACE_ROWS_BYTES:
            begin_large_read()
        return rows

    def known(self, trace_id: str, workspace: str | None = None) -> int:
        """Return how many spans of a trace came in, be their payload here or gone."""
        return self._uncommitted.spans_known(trace_id, workspace)

    def is_given_up(self, trace_id: str) -> bool:
        """Whether the tables may lack for good what is not here of a trace."""
        return self._uncommitted.is_given_up(trace_id)

    def _of_large(
        self, trace_id: str, workspace: str | None, whole: bool, span_id: str | None = None
    ) -> pa.Table:
        rows = SPANS.empty_table()
        parts = self._uncommitted.of_trace(trace_id, waiting=True)
        # Asked after that: who gives rows up marks their traces by the same transaction.
        if self.is_given_up(trace_id) or whole:
            parts = self._uncommitted.of_trace(trace_id)
        for step in steps(parts):
            new = within(self._read(step, workspace, held_bytes=rows.nbytes, span_id=span_id), workspace)
            rows = standing([rows, new])
        return rows

    def _read(
        self,
        parts: Sequence[ListedPart],
        workspace: str | None,
        begin: Callable[[], None] | None = None,
        held_bytes: int = 0,
        span_id: str | None = None,
    ) -> pa.Table:
        """Return the rows of those of some parts that are still there, beside what is held.

        What is large begins before it is made. Raises LimitError, and what `begin` does.
        """
        columns = SpanColumns()
        for part in self._uncommitted.of_traces(parts):
            if span_id is not None and not holds_span(part, span_id):
                continue
            room_bytes = limits.TRACE_ROWS_MAX_BYTES - held_bytes
            add_part(part, columns, room_bytes, workspace=workspace)
            if begin is not None and columns.approx_bytes > limits.LARGE_TRACE_ROWS_BYTES:
                begin()
        return pa.Table.from_batches([columns.take()])


def is_large(parts: Sequence[ListedPart]) -> bool:
    """Whether a trace has so many parts, or bytes, that not every read takes all that is here of it."""
    return len(parts) > limits.HOT_TRACE_PARTS or sum(part[2] for part in parts) > limits.HOT_TRACE_BYTES
