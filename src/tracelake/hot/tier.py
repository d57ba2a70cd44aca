"""Reads of both tiers as one: uncommitted spans from the tracking store, merged with the tables of a commit.

The tracking store is read first, and the newest commit after it, so rows that left the store in between are in that
commit. A trace without rows in the outbox is read from the commit alone. If there are several versions of a span, the
upsert rule picks one by content alone. An answer therefore does not depend on the tier that a version came from.

A part is the spans of a trace that one request brought. A trace may have very many parts, for example if an agent's
session sends each span separately, and most may be repeats. A read of a large trace therefore reads only the parts that
are still in the outbox; the tables have the rest. One thread at a time reads large traces, so their memory does not
grow with the number of callers.

An outline of a trace has the columns that place each span in its tree, without payloads.

Reading an outline of 200,000 spans takes a fraction of the time of reading their rows. A page of spans, or one span, is
chosen from the outline, and only the chosen rows are read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits, tracking
from tracelake._errors import DamageError, UsageError
from tracelake.context import LakeContext
from tracelake.hot.rows import HotList, HotLists, add_part, holds_span, latest_versions, steps, summaries
from tracelake.hot.search import BothTiersSearch, HotSearch
from tracelake.limits.input import MIB
from tracelake.otlp.columns import SpanColumns, of_workspace
from tracelake.otlp.parse import rows_bytes
from tracelake.otlp.partition import rows_of
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.results import InboxInfo, Row, Trace, is_server_side
from tracelake.search.results import SearchResults
from tracelake.shards.rows import ROW_ID
from tracelake.tables.builtin import IN_ORDER, SPAN_COLUMNS, in_workspace, summed
from tracelake.tables.page_tokens import PageToken
from tracelake.tables.table import ReadGate, acquire_read, no_trace, to_rows, too_large
from tracelake.tables.view import CommitView
from tracelake.tracking.location import find_tracking, has_place, set_up
from tracelake.versions.branch_store import MAIN

if TYPE_CHECKING:
    from tracelake.tracking.mlflow_search import FoundTraces
    from tracelake.tracking.outbox import ListedPart, Uncommitted
    from tracelake.tracking.store import TrackingStore

OUTLINE_COLUMNS: Final = tuple(dict.fromkeys((*SPAN_COLUMNS, "duration_ns", "type", "model")))
KEY_COLUMNS: Final = ("trace_id", "span_id", "workspace", "kind", "start_ns")
"""The columns by which one span is found."""
_HOT: Final = "_hot"
_TOKEN: Final = re.compile(r"(-?[0-9]{1,19})\.([0-9a-f]{16})\.(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outline:
    """Outline of a trace: its rows in the order of the spans, and the complete rows of those spans that the tracking
    store has."""

    trace_id: str
    rows: pa.Table
    hot: pa.Table
    summary: Row | None = None
    """The commit's row of table `traces`, if it was read."""

    @classmethod
    def of(cls, trace_id: str, hot: pa.Table, committed: pa.Table, summary: Row | None = None) -> Outline:
        """Combine the rows of both tiers. A span in both is taken from the tracking store, which has the newer
        claim."""
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
        return cls(trace_id, rows.sort_by(IN_ORDER), hot, summary)

    def after(self, page: str | None, limit: int) -> tuple[pa.Table, str | None]:
        """Return the outlines of a page, and the token of the next page, if any. Raises UsageError if `page` is no
        token of this trace."""
        starts = self.rows["start_ns"].to_numpy()
        first = 0 if page is None else self._place_after(starts, *_read_token(page))
        end = min(first + limit, len(self.rows))
        # Spans with one key share a page, because the token names the key.
        while 0 < end < len(self.rows) and self._key(end) == self._key(end - 1):
            end += 1
        token = ".".join(map(str, self._key(end - 1))) if end < len(self.rows) else None
        return self.rows.slice(first, end - first), token

    def read(self, view: CommitView, chosen: pa.Table) -> pa.Table:
        """Return the complete rows of chosen spans, by start time. Raises LimitError if they take too much memory, and
        BackPressureError if other large reads take too long."""
        if set(SPANS.names) <= set(chosen.column_names):
            return chosen.select(SPANS.names)
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


def with_span(rows: pa.Table, span_id: str) -> pa.Table:
    """Return the rows with this span id. Several workspaces may each have one."""
    return rows.filter(pc.equal(rows["span_id"], pa.scalar(span_id)))


def _identity(rows: pa.Table) -> pa.Array[Any]:
    """Return a value for each row that identifies its span within the trace."""
    side = pc.if_else(pc.is_in(rows["kind"], value_set=pa.array(["SERVER", "CONSUMER"])), "s", "c")
    texts = [rows[name].cast(pa.string()) for name in ("workspace", "span_id")]
    joined = pc.binary_join_element_wise(*texts, side, " ")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _read_token(page: str) -> tuple[int, str, str]:
    match = _TOKEN.fullmatch(page)
    if match is None or not -(1 << 63) <= int(match[1]) < 1 << 63:
        raise UsageError("page is not the next_page of this trace; leave it out to begin with the first page")
    return int(match[1]), match[2], match[3]


HOT_TRACE_PARTS: Final = 64
"""Pieces of a hot trace, as received, that every read decodes."""
HOT_TRACE_BYTES: Final = MIB
"""OTLP bytes of a hot trace that every read decodes."""


class HotTraces:
    """Reads single traces from one tracking store. Threads may share it."""

    def __init__(self, uncommitted: Uncommitted, prices: Callable[[], PriceTable] = lambda: SHIPPED) -> None:
        """Create a reader. `prices` returns the current prices, and is called only if spans are decoded."""
        self._uncommitted = uncommitted
        self._prices = prices
        self._reading = ReadGate(1)

    def rows(
        self,
        trace_id: str,
        workspace: str | None = None,
        *,
        complete: bool = False,
        span_id: str | None = None,
    ) -> pa.Table:
        """Return the rows of a trace that the tracking store has, with the columns of SPANS; a span may have several
        versions.

        Of a large trace, only rows still in the outbox are returned, unless outbox rows were discarded or `complete` is
        set: a commit that is chosen after this call has the rest. Rows of other workspaces are left out if they take
        much memory. With `span_id`, only parts that contain this id are decoded.

        Raises DamageError if a part is unreadable, LimitError if the rows take too much memory, and BackPressureError
        if other large reads take too long.
        """
        # One part above the limit is enough to tell that the trace is large.
        parts = self._uncommitted.of_trace(trace_id, at_most=HOT_TRACE_PARTS + 1)
        if not is_large(parts):
            return self._read(parts, workspace, acquire_read, span_id=span_id)
        self._reading.begin()
        try:
            rows = self._of_large(trace_id, workspace, complete, span_id)
        finally:
            self._reading.end()
        # Only after `end()`: a thread that holds the other gate may be waiting for this one.
        if rows.nbytes > limits.LARGE_TRACE_ROWS_BYTES:
            acquire_read()
        return rows

    def received_spans(self, trace_id: str, workspace: str | None = None) -> int:
        """Return the number of received spans of a trace, whether or not their payload is still stored."""
        return self._uncommitted.received_spans(trace_id, workspace)

    def is_settled(self, trace_id: str) -> bool:
        """Return whether a commit that is chosen later has all spans of a trace, unless a commit was reverted."""
        return self._uncommitted.is_settled(trace_id)

    def is_given_up(self, trace_id: str) -> bool:
        """Return whether the tables may permanently lack spans of a trace because outbox rows were discarded."""
        return self._uncommitted.is_given_up(trace_id)

    def _of_large(
        self, trace_id: str, workspace: str | None, complete: bool, span_id: str | None = None
    ) -> pa.Table:
        rows = SPANS.empty_table()
        parts = self._uncommitted.of_trace(trace_id, waiting=True)
        # Check after the read: discarding rows marks their traces in the same transaction.
        if self.is_given_up(trace_id) or complete:
            parts = self._uncommitted.of_trace(trace_id)
        for step in steps(parts):
            new = in_workspace(
                self._read(step, workspace, held_bytes=rows.nbytes, span_id=span_id), workspace
            )
            rows = latest_versions([rows, new])
        return rows

    def _read(
        self,
        parts: Sequence[ListedPart],
        workspace: str | None,
        begin: Callable[[], None] | None = None,
        held_bytes: int = 0,
        span_id: str | None = None,
    ) -> pa.Table:
        """Return the rows of the given parts that still exist.

        `begin` is called before large rows are built. `held_bytes` counts against the memory limit. Raises LimitError
        if the rows exceed the memory limit, and the errors of `begin`.
        """
        columns = SpanColumns(self._prices())
        for part in self._uncommitted.of_traces(parts):
            if span_id is not None and not holds_span(part, span_id):
                continue
            room_bytes = limits.TRACE_ROWS_MAX_BYTES - held_bytes
            add_part(part, columns, room_bytes, workspace=workspace)
            if begin is not None and columns.approx_bytes > limits.LARGE_TRACE_ROWS_BYTES:
                begin()
        return pa.Table.from_batches([columns.take()])


def is_large(parts: Sequence[ListedPart]) -> bool:
    """Return whether a trace has so many parts or bytes that ordinary reads take only its pending parts."""
    return len(parts) > HOT_TRACE_PARTS or sum(part[2] for part in parts) > HOT_TRACE_BYTES


HOT: Final = "hot"
LAKE: Final = "lake"
_Key: TypeAlias = tuple[str, str, bool]
"""Workspace and id of a span, and whether it is on the server side."""
ResultT = TypeVar("ResultT")
_SPAN_ID: Final = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class SpanPage:
    """A page of the spans of a trace."""

    trace_id: str
    summary: Row
    rows: pa.Table
    """With the columns of SPANS, in order of start time."""
    next_page: str | None
    hot: Collection[_Key] | None
    """Keys of the spans in the tracking store, if asked for."""

    def spans_of(self, rows: pa.Table) -> list[Row]:
        """Return rows of the page as dicts, each with its tier in `_tier` if the page was requested with tiers."""
        spans = to_rows(rows)
        if self.hot is None:
            return spans
        return [{**span, "_tier": HOT if _key_of(span) in self.hot else LAKE} for span in spans]


_SHARED: Final[ContextVar[dict[int, HotList] | None]] = ContextVar("tracelake_shared_lists", default=None)


@contextmanager
def shared_lists() -> Iterator[None]:
    """Let all lists that a `with` block reads show the same uncommitted traces, which are then decoded once."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


class HotTier:
    """Reads of both tiers of an open lake. The lake may have no tracking store. Threads may share the object."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._lock = Lock()
        self._store: TrackingStore | None = None
        self._next_look_s = 0.0
        self._traces: tuple[TrackingStore, HotTraces] | None = None
        self._lists: tuple[TrackingStore, PriceTable, HotLists] | None = None
        self._search = HotSearch(opened, lambda: self.store)

    def set_up(self, url: str | None = None) -> TrackingStore:
        """Return the tracking store; create it if the lake has none. Raises UsageError if the lake cannot have one."""
        location = self._opened.location
        self._store = set_up(self._opened.objects, self._opened.config.id, location.records_url, url)
        return self._store

    def has_place(self) -> bool:
        """Return whether the lake has a tracking store or can have one."""
        return has_place(self._opened.objects, self._opened.location.records_url)

    @property
    def store(self) -> TrackingStore | None:
        """The tracking store; None if the lake has none, which is checked again every few seconds."""
        with self._lock:
            if self._store is None and time.monotonic() >= self._next_look_s:
                self._next_look_s = time.monotonic() + limits.TRACKING_LOOK_S
                self._store = find_tracking(self._opened.objects)
            return self._store

    @property
    def is_there(self) -> bool:
        """Whether the lake has a tracking store."""
        return self.store is not None

    def required_store(self) -> TrackingStore:
        """Return the tracking store. Raises UsageError for a lake without one."""
        store = self.store
        if store is None:
            raise UsageError(
                "this lake has no tracking store, which MLflow's searches read; `tracelake serve` creates "
                "one."
            )
        return store

    def describe(self) -> dict[str, object]:
        """Return whether the lake has a hot tier, its database, and the size of its outbox."""
        store, waiting = self.store, self.waiting()
        if store is None or waiting is None:
            return {"hot_tier": False}
        outbox = {"rows": waiting.segments, "size_bytes": waiting.bytes, "oldest_s": waiting.oldest_s}
        return {"hot_tier": True, "database": store.database.name, "outbox": outbox}

    def waiting(self) -> InboxInfo | None:
        """Return the pending rows of the outbox, counted as segments; None without a hot tier. Raises StorageError if
        the tracking store fails."""
        store = self.store
        if store is None:
            return None
        rows, size_bytes, oldest_ns = tracking.outbox.Outbox(store).totals()
        oldest_s = None if oldest_ns is None else max(0.0, time.time() - oldest_ns / 1e9)
        return InboxInfo(rows, size_bytes, oldest_s)

    def search(self, token: PageToken | None, request: BothTiersSearch) -> SearchResults:
        """Search the newest commit and the outbox, or return a page of the search that the token names."""
        return self._search.search(token, request)

    def trace(self, trace_id: str, *, tiers: bool = False, workspace: str | None = None) -> Trace:
        """Return all spans of a trace from both tiers, in one workspace or all. The id may be a unique prefix.

        With `tiers`, each span has its tier in `_tier`. Raises NotFoundError if no trace, or more than one, matches.
        """
        rows, hot = self._rows(trace_id, workspace, tiers=tiers)
        summary = summary_of(rows)
        spans = to_rows(rows.sort_by(IN_ORDER))
        if tiers:
            spans = [{**span, "_tier": HOT if _key_of(span) in hot else LAKE} for span in spans]
        return Trace(str(summary["trace_id"]), summary, tuple(spans))

    def outline(self, trace_id: str, workspace: str | None = None) -> Trace:
        """Return a trace whose spans have the columns of an outline only. Raises NotFoundError if no trace, or more
        than one, matches the id."""
        return self._outlined(
            trace_id,
            workspace,
            OUTLINE_COLUMNS,
            lambda view, outline: Trace(
                outline.trace_id,
                self._summary_of(view, outline, workspace),
                tuple(outline.rows.select(OUTLINE_COLUMNS).to_pylist()),
            ),
        )

    def page(
        self,
        trace_id: str,
        limit: int,
        page: str | None = None,
        *,
        tiers: bool = False,
        workspace: str | None = None,
    ) -> SpanPage:
        """Return a page of the spans of a trace, in order of start time.

        Args:
            trace_id: the id, or the beginning of it.
            limit: maximum number of spans.
            page: `next_page` of the previous page.
            tiers: whether each span names its tier.
            workspace: the spans of one workspace only.

        Raises:
            NotFoundError: there is no such trace.
            UsageError: `page` is not the token of a page.
        """

        def read(view: CommitView, outline: Outline) -> SpanPage:
            chosen, token = outline.after(page, limit)
            rows = outline.read(view, chosen)
            hot = _spans_in(outline.hot) if tiers else None
            return SpanPage(outline.trace_id, self._summary_of(view, outline, workspace), rows, token, hot)

        return self._outlined(trace_id, workspace, OUTLINE_COLUMNS, read, tiers=tiers, few=limit)

    def span_rows(self, trace_id: str, span_id: str, workspace: str | None = None) -> pa.Table:
        """Return the rows with this span id in a trace. Several workspaces may each have one.

        Raises NotFoundError if no trace, or more than one, matches `trace_id`.
        """
        if not _SPAN_ID.fullmatch(span_id):
            return SPANS.empty_table()
        return self._outlined(
            trace_id,
            workspace,
            KEY_COLUMNS,
            lambda view, outline: outline.read(view, with_span(outline.rows, span_id)),
            span_id=span_id,
        )

    def spans_of(self, trace_id: str, workspace: str | None = None) -> pa.Table:
        """Return the rows of a trace, with the columns of SPANS. Raises NotFoundError if no trace, or more than one,
        matches the id."""
        return self._rows(trace_id, workspace)[0]

    def infos(self, trace_ids: Sequence[str], workspace: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the tracking store's information on traces, by id. Raises UsageError for a lake without one."""
        return self.required_store().infos(trace_ids, workspace)

    def said_of(
        self, trace_ids: Sequence[str], workspace: str | None = None
    ) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return the metadata and fields that clients sent for traces, by id. A workspace sees only its own."""
        return tracking.annotations.ClientTraceInfo(self.required_store()).of_traces(trace_ids, workspace)

    def deleted(self, trace_ids: Sequence[str]) -> set[str]:
        """Return the given traces that were deleted from the tracking store. The tables may still have them."""
        store = self.store
        return set() if store is None else tracking.annotations.ClientTraceInfo(store).deleted(trace_ids)

    def find_traces(
        self,
        experiment_ids: Sequence[str],
        filter: str | None,
        max_results: int,
        order_by: Sequence[str],
        page_token: str | None,
        *,
        workspace: str | None = None,
    ) -> FoundTraces:
        """Return traces of experiments that match an MLflow filter. Raises QueryError if the filter or order does not
        parse, and UsageError if the lake has no tracking store."""
        return tracking.mlflow_search.TraceSearch(self.required_store(), workspace).search(
            experiment_ids, filter, max_results, order_by, page_token
        )

    def newer(self) -> HotList:
        """Return the newest uncommitted traces, for lists. Call this before choosing the commit, so that no trace is
        missing from both."""
        if (store := self.store) is None:
            return HotList()
        if (shared := _SHARED.get()) is None:
            return self._lists_of(store).newest()
        if id(self) not in shared:
            shared[id(self)] = self._lists_of(store).newest()
        return shared[id(self)]

    def _rows(
        self, trace_id: str, workspace: str | None, *, tiers: bool = False
    ) -> tuple[pa.Table, Collection[_Key]]:
        """Return the rows of a trace, and with `tiers` the keys of spans of which the tracking store has a claim."""
        # Count first: spans that arrive after the count may be missing.
        counts = self._span_counts(trace_id.lower(), workspace)
        rows, spans = self._both(trace_id, workspace, [*counts] if tiers else self._unsettled(counts))
        full_id = str(rows["trace_id"][0]) if len(rows) else trace_id.lower()
        # After a revert or loss of a commit, the tracking store or its archive still has the spans. So read
        # all of them.
        if len(rows) < max((counts[each] for each in counts if each.startswith(full_id)), default=0):
            rows, spans = self._both(trace_id, workspace, [*counts], complete=True)
            self._check_archived(
                len(rows), {each: counts[each] for each in counts if each.startswith(full_id)}
            )
        if not len(rows):
            raise no_trace(trace_id)
        return rows, spans

    def _check_archived(self, rows: int, counts: dict[str, int]) -> None:
        """Raise DamageError if the tables archive a trace and have fewer rows than spans were received (A17)."""
        for trace_id, count in counts.items():
            if rows < count and self.required_store().is_archived_in_tables(trace_id):
                raise DamageError(
                    f"trace {trace_id} is archived in the tables of this lake, and `main` has {rows:,} of its "
                    f"{count:,} spans. `tracelake log` shows whether a commit was reverted; revert that commit, or "
                    "restore a backup."
                )

    def _outlined(
        self,
        trace_id: str,
        workspace: str | None,
        columns: Sequence[str],
        use: Callable[[CommitView, Outline], ResultT],
        *,
        span_id: str | None = None,
        tiers: bool = False,
        few: int = 0,
    ) -> ResultT:
        """Return the result of calling `use` with a commit and the outline of a trace. Raises NotFoundError if no trace
        matches.

        With `span_id`, only this span is read from the tracking store. With `tiers`, the outline has all rows that the
        tracking store has, also if the commit has them. If the commit's trace has at most `few` spans, the outline
        has all columns, so that no second read is needed.
        """
        counts = self._span_counts(trace_id.lower(), workspace)

        def attempt(complete: bool) -> ResultT | None:
            ids = [*counts] if complete or tiers else self._unsettled(counts)
            hot = self._hot(ids, workspace, complete, span_id)
            others = {each for each in counts if counts[each]}

            def read(view: CommitView) -> ResultT | None:
                full_id = view.full_id(trace_id, others, workspace)
                of_trace = [batch for batch in hot if len(batch) and str(batch["trace_id"][0]) == full_id]
                rows = latest_versions(of_trace) if of_trace else SPANS.empty_table()
                summary = view.summary(full_id) if few else None
                is_small = summary is not None and summary["span_count"] <= few
                committed = view.outline(full_id, columns, workspace, complete=is_small)
                spans_there = len(committed)
                if span_id is not None:
                    committed = with_span(committed, span_id)
                outline = Outline.of(full_id, rows, committed, summary)
                spans = outline.rows if span_id is None else with_span(outline.rows, span_id)
                expected = counts.get(full_id, 0) if span_id is None else min(counts.get(full_id, 0), 1)
                # A commit that was reverted lacks spans that the tracking store, or its archive, still has.
                if not complete and len(spans) < expected:
                    return None
                if len(spans) < expected:
                    self._check_archived(max(spans_there, len(outline.rows)), {full_id: counts[full_id]})
                # A trace of the tracking store may be there without the span that is asked for.
                if not spans_there and not len(rows) and (span_id is None or not counts.get(full_id)):
                    raise no_trace(trace_id)
                return use(view, outline)

            return self._opened.read(MAIN, read)

        result = attempt(complete=False)
        if result is None:
            result = attempt(complete=True)
        assert result is not None
        return result

    def _summary_of(self, view: CommitView, outline: Outline, workspace: str | None) -> Row:
        """Return the row of table `traces` for a trace: the commit's row if the commit has all spans, otherwise one
        computed from the outline."""
        if workspace is None and not len(outline.hot):
            summary = outline.summary or view.summary(outline.trace_id)
            if summary is not None and summary["span_count"] == len(outline.rows):
                return summary
        return summary_of(outline.rows)

    def _span_counts(self, trace_id: str, workspace: str | None) -> dict[str, int]:
        """Return the number of received spans for at most two traces with this id prefix."""
        store = self.store
        if store is None or not trace_id.isalnum():
            return {}
        ids = [trace_id] if len(trace_id) == 32 else store.ids_that_begin(trace_id, 2, workspace)
        return {each: self._traces_of(store).received_spans(each, workspace) for each in ids}

    def _unsettled(self, trace_ids: Iterable[str]) -> list[str]:
        """Return the traces that a commit may lack spans of, because they are in the outbox or were discarded."""
        store = self.store
        if store is None:
            return []
        traces = self._traces_of(store)
        return [each for each in trace_ids if not traces.is_settled(each)]

    def _both(
        self, trace_id: str, workspace: str | None, ids: Sequence[str], *, complete: bool = False
    ) -> tuple[pa.Table, Collection[_Key]]:
        """Return the rows of both tiers, in the form of `_rows`. `complete` reads all hot parts of `ids`."""
        hot = self._hot(ids, workspace, complete)
        others = {str(batch["trace_id"][0]) for batch in hot if len(batch)}

        def read(view: CommitView) -> pa.Table:
            full_id = view.full_id(trace_id, others, workspace)
            of_trace = [batch for batch in hot if len(batch) and str(batch["trace_id"][0]) == full_id]
            rows = latest_versions([*of_trace, view.trace_spans(full_id, workspace)])
            if rows.nbytes > limits.TRACE_ROWS_MAX_BYTES:  # both tiers may have contributed rows
                raise too_large(full_id)
            return rows

        return self._opened.read(MAIN, read), set[_Key]().union(*map(_spans_in, hot))

    def _hot(
        self, ids: Sequence[str], workspace: str | None, complete: bool, span_id: str | None = None
    ) -> list[pa.Table]:
        store = self.store
        if store is None:
            return []
        return [
            in_workspace(self._here(store, complete, each, workspace, span_id), workspace) for each in ids
        ]

    def _here(
        self,
        store: TrackingStore,
        complete: bool,
        trace_id: str,
        workspace: str | None,
        span_id: str | None = None,
    ) -> pa.Table:
        """Return a trace's rows from the tracking store.

        If the store has no payload, read the trace's archive, either with `complete` or if the tables may permanently
        lack spans.
        """
        from tracelake.archive.service import open_archive  # noqa: PLC0415  lists of traces never read it

        traces = self._traces_of(store)
        for _ in range(limits.ARCHIVE_RESTORE_TRIES_MAX):
            rows = traces.rows(trace_id, workspace, complete=complete, span_id=span_id)
            if len(rows) or (not complete and not traces.is_given_up(trace_id)):
                break
            if (data := open_archive(self._opened).read(trace_id)) is not None:
                if workspace is not None:
                    data = of_workspace(data, workspace)
                if (takes := rows_bytes(data)) > limits.TRACE_ROWS_MAX_BYTES:
                    raise too_large(trace_id)
                if takes > limits.LARGE_TRACE_ROWS_BYTES:
                    acquire_read()
                return pa.Table.from_batches([rows_of(data, self._opened.prices.table()).take()])
        return rows

    def _traces_of(self, store: TrackingStore) -> HotTraces:
        """Return the cached reader of single traces for this store."""
        with self._lock:
            if self._traces is None or self._traces[0] is not store:
                self._traces = store, HotTraces(tracking.outbox.Uncommitted(store), self._opened.prices.table)
            return self._traces[1]

    def _lists_of(self, store: TrackingStore) -> HotLists:
        """Return the cached reader of lists for this store. Other prices need another one, because rows are cached with
        their costs."""
        prices = self._opened.prices.table()
        with self._lock:
            if self._lists is None or self._lists[0] is not store or self._lists[1] != prices:
                self._lists = (
                    store,
                    prices,
                    HotLists(self._opened, tracking.outbox.Uncommitted(store), prices),
                )
            return self._lists[2]


def _key_of(span: Row) -> _Key:
    return span["workspace"], span["span_id"], is_server_side(span)


def _spans_in(rows: pa.Table) -> Collection[_Key]:
    """Return the keys of spans."""
    return {_key_of(span) for span in rows.select(["workspace", "span_id", "kind"]).to_pylist()}


def summary_of(rows: pa.Table) -> dict[str, Any]:
    """Return the row of table `traces` for the spans of one trace, without its transaction."""
    # For a small trace, an SQL query takes as long as the rest of the read.
    if len(rows) <= limits.TRACE_SUMMED_MAX_SPANS:
        return summed(rows.select(list(SPAN_COLUMNS)).to_pylist())
    summary: dict[str, Any] = summaries(rows).drop_columns([TRANSACTION_FIELD.name]).to_pylist()[0]
    return summary
