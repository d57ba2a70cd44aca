"""Decoding stored span parts into rows of table `spans`, within a memory budget.

Each row repeats its resource and scope: a request of 1.5 MB with a large resource and a thousand small spans becomes a
gigabyte of rows. The size is therefore computed before the rows are built. The module also picks the winning version of
each span across both tiers.

`HotLists` provides the uncommitted traces, whose spans are still in the outbox, for lists of traces.

An outbox row never changes. The span rows decoded from it are therefore cached until it leaves the outbox, and building
a list costs only the rows that are new since the last one. One thread at a time builds a list. All callers that wait
during a build share the next one, so the memory of lists does not grow with the number of callers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits, tracking
from tracelake._errors import BackPressureError, DamageError, InputError, LimitError
from tracelake.batching import batches
from tracelake.context import LakeContext
from tracelake.otlp.columns import SpanColumns, of_workspace
from tracelake.otlp.parse import rows_bytes
from tracelake.otlp.partition import add_rows
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.tables import upsert_rule
from tracelake.tables.builtin import SPAN_COLUMNS, TABLE_TRACES, aggregate_sql, summed_traces
from tracelake.tables.scan import connection
from tracelake.tables.table import span_counts, too_large
from tracelake.tables.view import CommitView
from tracelake.versions.branch_store import MAIN

if TYPE_CHECKING:
    from tracelake.tracking.outbox import ListedPart, StoredPart, Uncommitted

_UNCOMMITTED_PART_GROWTH_MAX: Final = 8
"""Ratio of such rows to their OTLP; text takes two to three times."""


_NOT_ALL: Final = (
    "some acknowledged spans wait for the pipeline and are not listed yet: list them later, or start it "
    "(`tracelake pipeline run`)"
)

_SUMMED_SPANS_MAX: Final = 2_000
"""Spans of which Python makes the rows of `traces`. Beyond: an SQL statement, whose time hardly grows."""
PART: Final = pa.field("_part", pa.int64())
"""Column with the position of a span's part among the decoded parts."""


@dataclass(frozen=True, slots=True)
class DecodedParts:
    """Decoded spans of some parts, and the parts left out."""

    rows: pa.Table
    """The columns of SPANS, and `PART`."""
    unread: Sequence[StoredPart]
    """Unreadable parts."""
    large: Sequence[StoredPart]
    """Parts whose rows exceed the memory budget."""


def decoded(parts: Sequence[StoredPart], room_bytes: float, prices: PriceTable = SHIPPED) -> DecodedParts:
    """Return the spans of parts, up to `room_bytes` of rows. An unreadable part does not affect the others."""
    columns, of_rows, read = SpanColumns(prices), list[int](), list[int]()
    unread: list[StoredPart] = []
    large: list[StoredPart] = []
    for place, part in enumerate(parts):
        try:
            add_part(part, columns, room_bytes, spread=False)
            read.append(place)
        except LimitError:
            large.append(part)
        except DamageError:
            unread.append(part)
        of_rows += [place] * (columns.rows - len(of_rows))
    rows = pa.Table.from_batches([columns.take()]).append_column(PART, pa.array(of_rows, PART.type))
    if unread:  # an unreadable part may have added some rows
        rows = rows.filter(pc.is_in(rows[PART.name], pa.array(read, PART.type)))
    return DecodedParts(rows, unread, large)


def add_part(
    part: StoredPart,
    columns: SpanColumns,
    room_bytes: float,
    *,
    spread: bool = True,
    workspace: str | None = None,
) -> None:
    """Add the spans of a part to `columns`. If the rows are large and a `workspace` is given, add only that
    workspace's spans.

    Raises LimitError if the part's rows do not fit into `room_bytes`, or if `spread` is false and they are much larger
    than the part. Raises DamageError if the part is unreadable. Some rows may have been added before an error.
    """
    data = tracking.store.unpacked(part.trace_id, part.payload, part.size_bytes)
    takes = rows_bytes(data)
    if workspace is not None and columns.approx_bytes + takes > limits.LARGE_TRACE_ROWS_BYTES:
        data = of_workspace(data, workspace)
        takes = rows_bytes(data)
    if columns.approx_bytes + takes > room_bytes or (grows_much(takes, data) and not spread):
        raise too_large(part.trace_id)
    try:
        add_rows(data, columns)
    except InputError as error:
        raise DamageError(
            f"the spans of trace {part.trace_id} in the tracking store cannot be read: {error}; restore the database"
        ) from error


def holds_span(part: StoredPart, span_id: str) -> bool:
    """Return whether a part may contain a span: its bytes contain the id, perhaps only as a parent or link. Raises
    DamageError if the part is unreadable."""
    return bytes.fromhex(span_id) in tracking.store.unpacked(part.trace_id, part.payload, part.size_bytes)


def grows_much(rows_bytes: int, data: bytes) -> bool:
    """Return whether the rows of a part are much larger than its bytes. Lists and searches then skip the part, even if
    memory is free."""
    return rows_bytes > max(limits.UNCOMMITTED_PART_ROWS_MAX_BYTES, _UNCOMMITTED_PART_GROWTH_MAX * len(data))


def cannot_be_read(traces: int) -> str:
    """Return the message for results that lack the spans of unreadable traces."""
    return f"the spans of {traces:,} traces in the tracking store cannot be read: run `tracelake verify`"


def are_large(traces: int) -> str:
    """Return the message for results that lack spans because their rows take too much memory."""
    return (
        f"spans of {traces:,} traces have large resources and become searchable once the pipeline has "
        "ingested them: search again later, or start it (`tracelake pipeline run`)"
    )


def latest_versions(claimed: Collection[pa.Table]) -> pa.Table:
    """Return the winning version of each span, with the columns of SPANS."""
    rows = pa.concat_tables([table.select(SPANS.names).cast(SPANS) for table in claimed])
    places = latest_version_rows(rows)
    return rows if len(places) == len(rows) else rows.take(places)


def latest_version_rows(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the positions of the winning versions in rows with the columns of SPANS. Among equals the first wins."""
    keys = upsert_rule.ids_of(rows)
    # Most traces have one version of each span. Arrow detects this in a tenth of the time.
    if len(keys.group_by(keys.column_names, use_threads=False).aggregate([])) == len(rows):
        return np.arange(len(rows))
    # Until a trace is archived, both tiers have it, usually with identical content.
    if (places := upsert_rule.drop_duplicates(rows.select(SPANS.names))) is not None:
        return places
    keys = keys.append_column("ord", pa.array(range(len(rows)), pa.int64()))
    with connection() as db:
        db.register("keys", keys)
        claimed_again = (
            f"select ord from keys qualify count(*) over (partition by {upsert_rule.IDS}) > 1 order by ord"
        )
        several = db.sql(claimed_again).to_arrow_table()["ord"]
        db.register("claimed", rows.take(several).append_column("ord", several))
        losers = db.sql(
            f"select ord from (select {upsert_rule.KEY_COLUMNS}, ord, {upsert_rule.COLUMNS} from claimed) "
            f"qualify row_number() over (partition by {upsert_rule.KEY} order by {upsert_rule.ORDER}, ord) > 1"
        ).to_arrow_table()
    return np.delete(np.arange(len(rows)), losers["ord"].to_numpy())


@dataclass(frozen=True, slots=True)
class HotList:
    """Uncommitted rows that a list shows in addition to a commit."""

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    """Complete rows of `spans` and `traces` for the listed traces; empty if the outbox has none."""
    not_listed: str | None = None
    """A message about uncommitted spans that are missing from the list."""


class HotLists:
    """The uncommitted traces of one tracking store, for lists. Threads may share it."""

    def __init__(self, opened: LakeContext, uncommitted: Uncommitted, prices: PriceTable = SHIPPED) -> None:
        self._opened = opened
        self._uncommitted = uncommitted
        self._making = Lock()
        self._started = 0
        self._made = 0
        """The number of the last finished list."""
        self._list = HotList()
        self._waiting = UncommittedTraces(uncommitted, prices)

    def newest(self) -> HotList:
        """Return a list whose build began after this call. Raises BackPressureError if other builds take too long."""
        started = self._started
        if not self._making.acquire(timeout=limits.UNCOMMITTED_LIST_WAIT_S):
            raise BackPressureError("listing uncommitted spans takes too long; list them again later")
        try:
            if self._made <= started:
                self._started = number = self._started + 1
                self._list = self.build()
                self._made = number
            return self._list
        finally:
            self._making.release()

    def build(self) -> HotList:
        """Return a new list. One thread at a time may call it."""
        # Read the outbox before choosing the commit: rows that left the outbox are then in that commit.
        ids, waiting = self._waiting.newest()

        def read(view: CommitView) -> tuple[pa.Table | None, bool]:
            committed = span_counts(view.table(TABLE_TRACES.name), view.span_counts, ids)
            shown = _shown(committed, ids)
            try:
                here = view.spans_of(list(filter(committed.get, shown)), limits.UNCOMMITTED_ROWS_MAX_BYTES)
            except LimitError:  # partly committed traces are listed as the commit has them
                shown = [trace_id for trace_id in shown if not committed[trace_id]]
                here = SPANS.empty_table()
            if not shown:
                return None, not ids
            # Usually all of them are shown, so the filter is skipped.
            of_shown = pc.is_in(waiting["trace_id"], pa.array(shown, pa.string()))
            hot = waiting if len(shown) == len(ids) else waiting.filter(of_shown)
            return latest_versions([hot, here]), len(shown) == len(ids)

        rows, is_complete = self._opened.read(MAIN, read) if ids else (None, True)
        messages = [] if is_complete and self._waiting.is_complete else [_NOT_ALL]
        if unread := len(self._waiting.unread):
            messages.append(cannot_be_read(unread))
        not_listed = "; ".join(messages) or None
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

    def __init__(self, uncommitted: Uncommitted, prices: PriceTable = SHIPPED) -> None:
        self._uncommitted = uncommitted
        self._prices = prices
        # `empty_table` would import pandas, if it is installed.
        self._rows = pa.Table.from_batches([], SPANS.append(PART))
        self._numbers: dict[ListedPart, int] = {}
        """Number of each cached part; column `_part` has the same numbers."""
        self._next = 0
        self.unread: frozenset[str] = frozenset()
        """Traces with unreadable parts. Each call reads these parts again."""
        self.is_complete = True
        """Whether all pending traces are within the limits."""

    def newest(self) -> tuple[list[str], pa.Table]:
        """Return the uncommitted traces, the newest first, and the rows of their spans.

        If a part is unreadable, only that part is left out. If a part takes too much memory, its whole trace is left
        out.
        """
        wanted, self.is_complete = self._uncommitted.listed()
        reused = {part: self._numbers[part] for part in wanted if part in self._numbers}
        rows, unread, large = self._rows, set[str](), set[str]()
        if len(reused) < len(self._numbers):
            rows = rows.filter(pc.is_in(rows[PART.name], pa.array(reused.values(), PART.type)))
        for step in steps([part for part in wanted if part not in reused]):
            room_bytes = limits.UNCOMMITTED_ROWS_MAX_BYTES - rows.nbytes
            numbers, new = self._read(step, room_bytes, unread, large)
            reused |= numbers
            rows = pa.concat_tables([rows, new])
        self._rows, self._numbers, self.unread = rows.combine_chunks(), reused, frozenset(unread)
        ids = list(dict.fromkeys(trace_id for trace_id, _, _ in wanted if trace_id not in large))
        if not large:
            return ids, self._rows
        self.is_complete = False
        return ids, self._rows.filter(pc.is_in(self._rows["trace_id"], pa.array(ids, pa.string())))

    def _read(
        self, step: Sequence[ListedPart], room_bytes: int, unread: set[str], large: set[str]
    ) -> tuple[dict[ListedPart, int], pa.Table]:
        """Return numbers and rows of the parts that are still in the outbox.

        Adds the traces of unreadable parts to `unread`, and those without room to `large`.
        """
        stored = self._uncommitted.of_traces(step)
        read = decoded(stored, room_bytes, self._prices)
        unread.update(part.trace_id for part in read.unread)
        large.update(part.trace_id for part in read.large)
        omitted = {tracking.outbox.listed(part) for part in (*read.unread, *read.large)}
        first, self._next = self._next, self._next + len(stored)
        parts = [(tracking.outbox.listed(part), first + place) for place, part in enumerate(stored)]
        numbers = {part: number for part, number in parts if part not in omitted}
        of_rows = pc.add(read.rows[PART.name], pa.scalar(first, PART.type))
        return numbers, read.rows.set_column(read.rows.num_columns - 1, PART, of_rows)


def steps(parts: Sequence[ListedPart]) -> Iterator[list[ListedPart]]:
    """Split parts into steps by their bytes, because decoded spans take many times as much memory."""
    return batches(parts, lambda part: part[2], limits.UNCOMMITTED_SEARCH_STEP_BYTES)


def _shown(committed: Mapping[str, int], trace_ids: Sequence[str]) -> list[str]:
    """Return the uncommitted traces to show, given the number of spans that the commit has of each.

    Traces with many committed spans are left out, and so are those beyond the total limit.
    """
    shown, room = [], limits.UNCOMMITTED_LIST_MAX_SPANS
    for trace_id in trace_ids:
        spans = committed[trace_id]
        if spans <= min(room, limits.UNCOMMITTED_LIST_TRACE_MAX_SPANS):
            shown.append(trace_id)
            room -= spans
    return shown


def summaries(rows: pa.Table) -> pa.Table:
    """Return the rows of table `traces` computed from these spans."""
    if len(rows) <= _SUMMED_SPANS_MAX:
        spans = defaultdict[str, list[Mapping[str, object]]](list)
        for span in rows.select(list(SPAN_COLUMNS)).to_pylist():
            spans[span["trace_id"]].append(span)
        return summed_traces(spans, 0)
    with connection() as db:
        db.register("whole_traces", rows.select(list(SPAN_COLUMNS)))
        of_traces: pa.Table = db.sql(aggregate_sql("whole_traces", 0)).to_arrow_table()
    return of_traces
