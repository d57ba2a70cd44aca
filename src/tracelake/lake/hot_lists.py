"""Uncommitted traces for lists: the traces whose spans are still in the outbox.

An outbox row never changes. So the span rows decoded from it are cached until it leaves the outbox, and a list costs
only the rows that are new since the last one. One thread at a time builds a list. All callers that wait during a
build share the next one, so the memory of lists does not grow with the number of callers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits
from tracelake._errors import BackPressureError, DamageError, LimitError
from tracelake.batching import batches
from tracelake.lake.context import LakeContext
from tracelake.lake.hot_rows import add_part, cannot_be_read, latest_versions
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.tables.builtin import SPAN_COLUMNS, TABLE_TRACES, aggregate_sql
from tracelake.tables.scan import connection
from tracelake.tables.view import CommitView
from tracelake.tracking.uncommitted import ListedPart, Uncommitted, listed
from tracelake.versions.branch_store import MAIN

_PART: Final = pa.field("_part", pa.int64())


@dataclass(frozen=True, slots=True)
class HotList:
    """Uncommitted rows that a list shows in addition to a commit."""

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    """Complete rows of `spans` and `traces` for the listed traces; empty if the outbox has none."""
    not_listed: str | None = None
    """A message about uncommitted spans that are missing from the list."""


class HotLists:
    """The uncommitted traces of one tracking store, for lists. Threads may share it."""

    def __init__(self, opened: LakeContext, uncommitted: Uncommitted) -> None:
        self._opened = opened
        self._uncommitted = uncommitted
        self._making = Lock()
        self._begun = 0
        self._made = 0
        """The number of the last finished list."""
        self._list = HotList()
        self._waiting = UncommittedTraces(uncommitted)

    def newest(self) -> HotList:
        """Return a list whose build began after this call. Raises BackPressureError."""
        begun = self._begun
        if not self._making.acquire(timeout=limits.UNCOMMITTED_LIST_WAIT_S):
            raise BackPressureError(
                "what no commit holds yet takes too long to be listed; list it again later"
            )
        try:
            if self._made <= begun:
                self._begun = number = self._begun + 1
                self._list = self._make()
                self._made = number
            return self._list
        finally:
            self._making.release()

    def _make(self) -> HotList:
        # Read the outbox before choosing the commit: rows that left the outbox are then in that commit.
        ids, waiting = self._waiting.newest()

        def read(view: CommitView) -> pa.Table | None:
            shown, committed = _shown(view, ids)
            try:
                here = view.spans_of(shown, limits.UNCOMMITTED_ROWS_MAX_BYTES)
            except LimitError:  # partly committed traces are listed as the commit has them
                shown = [trace_id for trace_id in shown if trace_id not in committed]
                here = SPANS.empty_table()
            if not shown:
                return None
            # Usually all of them are shown, so the filter is skipped.
            of_shown = pc.is_in(waiting["trace_id"], pa.array(shown, pa.string()))
            hot = waiting if len(shown) == len(ids) else waiting.filter(of_shown)
            return latest_versions([hot, here])

        unread = len(self._waiting.unread)
        not_listed = cannot_be_read(unread) if unread else None
        rows = self._opened.read(MAIN, read) if ids else None
        if rows is None:
            return HotList({}, not_listed)
        nothing = pa.nulls(len(rows), pa.int64())
        tables = {
            "spans": rows.append_column(TRANSACTION_FIELD.with_nullable(True), nothing),
            "traces": summaries(rows),
        }
        return HotList(tables, not_listed)


class UncommittedTraces:
    """Cached rows of the outbox, up to the limits of lists. One thread at a time may use it."""

    def __init__(self, uncommitted: Uncommitted) -> None:
        self._uncommitted = uncommitted
        self._rows = SPANS.append(_PART).empty_table()
        self._numbers: dict[ListedPart, int] = {}
        """Number of each cached part; column `_part` has the same numbers."""
        self._next = count()
        self.unread: frozenset[str] = frozenset()
        """Traces with unreadable parts. Each call reads these parts again."""

    def newest(self) -> tuple[list[str], pa.Table]:
        """Return the uncommitted traces, the newest first, and the rows of their spans.

        An unreadable part is left out alone. A trace with a part that takes too much memory is left out entirely.
        """
        wanted = self._uncommitted.listed()
        kept = {part: self._numbers[part] for part in wanted if part in self._numbers}
        rows, unread, large = self._rows, set[str](), set[str]()
        if len(kept) < len(self._numbers):
            rows = rows.filter(pc.is_in(rows[_PART.name], pa.array(kept.values(), _PART.type)))
        for step in steps([part for part in wanted if part not in kept]):
            room_bytes = limits.UNCOMMITTED_ROWS_MAX_BYTES - rows.nbytes
            numbers, new = self._read(step, room_bytes, unread, large)
            kept |= numbers
            rows = pa.concat_tables([rows, new])
        self._rows, self._numbers, self.unread = rows.combine_chunks(), kept, frozenset(unread)
        ids = list(dict.fromkeys(trace_id for trace_id, _, _ in wanted if trace_id not in large))
        if not large:
            return ids, self._rows
        return ids, self._rows.filter(pc.is_in(self._rows["trace_id"], pa.array(ids, pa.string())))

    def _read(
        self, step: Sequence[ListedPart], room_bytes: int, unread: set[str], large: set[str]
    ) -> tuple[dict[ListedPart, int], pa.Table]:
        """Return numbers and rows of the parts that are still in the outbox.

        Adds the traces of unreadable parts to `unread`, and those without room to `large`.
        """
        columns, of_rows = SpanColumns(), list[int]()
        numbers: dict[ListedPart, int] = {}
        for part in self._uncommitted.of_traces(step):
            number = next(self._next)
            try:
                add_part(part, columns, room_bytes, spread=False)
                numbers[listed(part)] = number
            except LimitError:
                large.add(part.trace_id)
            except DamageError:
                unread.add(part.trace_id)
            of_rows += [number] * (columns.rows - len(of_rows))
        rows = pa.Table.from_batches([columns.take()]).append_column(_PART, pa.array(of_rows, _PART.type))
        if unread:  # an unreadable part may have added some rows
            rows = rows.filter(pc.is_in(rows[_PART.name], pa.array(numbers.values(), _PART.type)))
        return numbers, rows


def steps(parts: Sequence[ListedPart]) -> Iterator[list[ListedPart]]:
    """Split parts into steps by their bytes, because decoded spans take many times as much memory."""
    return batches(parts, lambda part: part[2], limits.UNCOMMITTED_SEARCH_STEP_BYTES)


def _shown(view: CommitView, trace_ids: Sequence[str]) -> tuple[list[str], Collection[str]]:
    """Return the uncommitted traces to show, and the traces of which the commit has spans.

    Traces with many committed spans are left out, and so are those beyond the total limit.
    """
    committed: dict[str, int] = {}
    for row in view.table(TABLE_TRACES.name).lookup(trace_ids, ["trace_id", "span_count"]).to_pylist():
        committed[row["trace_id"]] = committed.get(row["trace_id"], 0) + row["span_count"]
    shown, room = [], limits.UNCOMMITTED_LIST_MAX_SPANS
    for trace_id in trace_ids:
        spans = committed.get(trace_id, 0)
        if spans <= min(room, limits.UNCOMMITTED_LIST_TRACE_MAX_SPANS):
            shown.append(trace_id)
            room -= spans
    return shown, committed.keys()


def summaries(rows: pa.Table) -> pa.Table:
    """Return the rows of table `traces` computed from these spans."""
    with connection() as db:
        db.register("whole_traces", rows.select(list(SPAN_COLUMNS)))
        of_traces: pa.Table = db.sql(aggregate_sql("whole_traces", 0)).to_arrow_table()
    return of_traces
