"""The rows of single traces in the tracking store, of which a large one is not decoded anew with every read.

A trace may come in very many parts, as where a session of an agent sends each span by itself, and most of its parts
may be claims about spans that it has already. What a part brought never changes, but for one that was restored. So of
a large trace the claims that stand are kept, and a read decodes the parts that came since the one before. One thread
at a time reads large traces: what they take in memory does not grow with those who ask.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

from tracelake import limits
from tracelake._errors import BackPressureError
from tracelake.lake.claimed import standing
from tracelake.lake.hot_lists import steps
from tracelake.otlp.by_trace import add_rows
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.schema import SPANS
from tracelake.tracking.schema import RESTORED_SEQUENCE
from tracelake.tracking.store import unpacked
from tracelake.tracking.uncommitted import ListedPart, Uncommitted


class _Kept(NamedTuple):
    """The claims that stand among some parts of a trace."""

    parts: frozenset[ListedPart]
    rows: pa.Table


class HotTraces:
    """The traces of one tracking store, as they are read one by one. Threads may share it."""

    def __init__(self, uncommitted: Uncommitted) -> None:
        self._uncommitted = uncommitted
        self._reading = Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """The one that was read last, last."""

    def rows(self, trace_id: str) -> pa.Table:
        """Return the rows of what is here of a trace, with the columns of SPANS; there may be several about a span.

        Raises DamageError, and BackPressureError where others read large traces for too long.
        """
        count, size_bytes = self._uncommitted.size_of(trace_id)
        # Of a large one the numbers of its parts alone are more than all readers at once may have.
        if count <= limits.HOT_TRACE_PARTS and size_bytes <= limits.HOT_TRACE_BYTES:
            return self._read(self._uncommitted.of_trace(trace_id))[1]
        if not self._reading.acquire(timeout=limits.HOT_TRACE_WAIT_S):
            raise BackPressureError("other large traces take too long to be read; read this one again later")
        try:
            return self._of_large(trace_id)
        finally:
            self._reading.release()

    def _of_large(self, trace_id: str) -> pa.Table:
        parts = self._uncommitted.of_trace(trace_id)
        # Its number is that of every restored part: nothing tells this one from one of before.
        restored = [part for part in parts if part[1] == RESTORED_SEQUENCE]
        kept = self._kept.pop(trace_id, None)
        if kept is None or not kept.parts <= set(parts):
            kept = _Kept(frozenset(), SPANS.empty_table())
        for step in steps([part for part in parts if part not in kept.parts and part not in restored]):
            read, rows = self._read(step)
            kept = _Kept(kept.parts | read, standing([kept.rows, rows]))
        if kept.rows.nbytes <= limits.HOT_TRACES_KEPT_BYTES:
            self._kept[trace_id] = kept
        while sum(each.rows.nbytes for each in self._kept.values()) > limits.HOT_TRACES_KEPT_BYTES:
            self._kept.popitem(last=False)
        return standing([kept.rows, self._read(restored)[1]]) if restored else kept.rows

    def _read(self, parts: Sequence[ListedPart]) -> tuple[frozenset[ListedPart], pa.Table]:
        """Return those of some parts that are still there, and their rows."""
        columns, read = SpanColumns(), list[ListedPart]()
        for part in self._uncommitted.of_traces(parts):
            read.append((part.trace_id, part.sequence, part.size_bytes))
            add_rows(unpacked(part.trace_id, part.payload, part.size_bytes), columns)
        return frozenset(read), pa.Table.from_batches([columns.take()])
