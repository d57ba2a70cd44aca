"""Reading both tiers as one: what the tracking store has and no commit holds yet, beside the tables of a commit.

The tracking store is read first, and the newest commit after it: what left the store in between is in that commit.
What both have, or several claims about one span, is one row by the upsert rule, which looks at content only. So an
answer does not depend on the tier that gave it.

The rows of single traces in the tracking store, of which a large one is not decoded anew with every read.

A trace may come in very many parts, as where a session of an agent sends each span by itself, and most of its parts
may be claims about spans that it has already. A commit has what has left the outbox: so of a large trace a read takes
what waits there, and the tables have the rest. One thread at a time reads large traces: what they take in memory does
not grow with those who ask.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from tracelake import limits
from tracelake._errors import DamageError, UsageError
from tracelake.lake.archive import open_archive
from tracelake.lake.context import LakeContext
from tracelake.lake.hot_lists import HotList, HotLists, steps, summaries
from tracelake.lake.hot_rows import add_part, holds_span, latest_versions
from tracelake.lake.hot_search import BothTiersSearch, HotSearch
from tracelake.lake.outlines import KEY_COLUMNS, OUTLINE_COLUMNS, Outline
from tracelake.otlp.columns import SpanColumns, of_workspace
from tracelake.otlp.parse import rows_bytes
from tracelake.otlp.partition import rows_of
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.results import InboxInfo, Row, Trace, is_server_side
from tracelake.search.results import SearchResults
from tracelake.tables.builtin import IN_ORDER, SPAN_COLUMNS, summed, within
from tracelake.tables.page_tokens import PageToken
from tracelake.tables.table import ReadGate, acquire_read, no_trace, to_rows, too_large
from tracelake.tables.view import CommitView
from tracelake.tracking.annotations import ClientTraceInfo
from tracelake.tracking.location import find_tracking, has_place, set_up
from tracelake.tracking.mlflow_search import FoundTraces, TraceSearch
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.uncommitted import ListedPart, Uncommitted
from tracelake.versions.branch_store import MAIN


class HotTraces:
    """The traces of one tracking store, as they are read one by one. Threads may share it."""

    def __init__(self, uncommitted: Uncommitted) -> None:
        self._uncommitted = uncommitted
        self._reading = ReadGate(1)

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
            return self._read(parts, workspace, acquire_read, span_id=span_id)
        self._reading.begin()
        try:
            rows = self._of_large(trace_id, workspace, whole, span_id)
        finally:
            self._reading.end()
        # Not before: who has a turn there may wait for one here.
        if rows.nbytes > limits.LARGE_TRACE_ROWS_BYTES:
            acquire_read()
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
        """Return some of the rows as spans, with their tiers if asked for."""
        spans = to_rows(rows)
        if self.hot is None:
            return spans
        return [{**span, "_tier": HOT if _key_of(span) in self.hot else LAKE} for span in spans]


class HotTier:
    """The tracking store of a lake that is open, where it has one. Threads may share it."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._lock = Lock()
        self._store: TrackingStore | None = None
        self._next_look_s = 0.0
        self._reads: tuple[TrackingStore, tuple[HotLists, HotTraces]] | None = None
        self._search = HotSearch(opened, lambda: self.store)

    def set_up(self, url: str | None = None) -> TrackingStore:
        """Return the tracking store, made where the lake has none. Raises UsageError where it can have none."""
        location = self._opened.location
        self._store = set_up(self._opened.objects, self._opened.config.id, location.records_url, url)
        return self._store

    def has_place(self) -> bool:
        """Whether the lake has a tracking store, or a place for one."""
        return has_place(self._opened.objects, self._opened.location.records_url)

    @property
    def store(self) -> TrackingStore | None:
        """The tracking store; None where the lake has none, which is looked at again every few seconds."""
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
                "this lake has no tracking store, which MLflow's searches read; `tracelake serve` makes one."
            )
        return store

    def describe(self) -> dict[str, object]:
        """Return whether there is a hot tier, where, and what waits in its outbox."""
        store, waiting = self.store, self.waiting()
        if store is None or waiting is None:
            return {"hot_tier": False}
        outbox = {"rows": waiting.segments, "size_bytes": waiting.bytes, "oldest_s": waiting.oldest_s}
        return {"hot_tier": True, "database": store.database.name, "outbox": outbox}

    def waiting(self) -> InboxInfo | None:
        """Return what waits in the outbox, each row a segment; None where there is no hot tier. Raises StorageError."""
        store = self.store
        if store is None:
            return None
        rows, size_bytes, oldest_ns = Outbox(store).totals()
        oldest_s = None if oldest_ns is None else max(0.0, time.time() - oldest_ns / 1e9)
        return InboxInfo(rows, size_bytes, oldest_s)

    def search(self, token: PageToken | None, asked: BothTiersSearch) -> SearchResults:
        """Search the newest commit and what no commit holds yet; a page, what the search of its token has found."""
        return self._search.search(token, asked)

    def index_ahead(self) -> bool:
        """Make some of what waits findable before the next search; see `HotSearch.index_ahead`."""
        return self._search.index_ahead()

    def trace(self, trace_id: str, *, tiers: bool = False, workspace: str | None = None) -> Trace:
        """Return all spans of a trace of either tier, in one workspace or in all; with `tiers`, each says its own.

        Raises NotFoundError.
        """
        rows, hot = self._rows(trace_id, workspace)
        summary = summary_of(rows)
        spans = to_rows(rows.sort_by(IN_ORDER))
        if tiers:
            spans = [{**span, "_tier": HOT if _key_of(span) in hot else LAKE} for span in spans]
        return Trace(str(summary["trace_id"]), summary, tuple(spans))

    def outline(self, trace_id: str, workspace: str | None = None) -> Trace:
        """Return a trace whose spans have the columns of an outline only. Raises NotFoundError."""
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
            limit: spans at most.
            page: `next_page` of the page before.
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

        return self._outlined(trace_id, workspace, OUTLINE_COLUMNS, read)

    def span_rows(self, trace_id: str, span_id: str, workspace: str | None = None) -> pa.Table:
        """Return the spans of a trace with an id, of which several workspaces may have one.

        Raises NotFoundError where there is no such trace.
        """
        if not _SPAN_ID.fullmatch(span_id):
            return SPANS.empty_table()
        return self._outlined(
            trace_id,
            workspace,
            KEY_COLUMNS,
            lambda view, outline: outline.read(view, outline.with_span(span_id)),
            span_id,
        )

    def spans_of(self, trace_id: str, workspace: str | None = None) -> pa.Table:
        """Return the rows of a trace, with the columns of SPANS. Raises NotFoundError."""
        return self._rows(trace_id, workspace)[0]

    def infos(self, trace_ids: Sequence[str], workspace: str | None = None) -> dict[str, dict[str, Any]]:
        """Return what the tracking store says of traces, by id. Raises UsageError for a lake without one."""
        return self.required_store().infos(trace_ids, workspace)

    def said_of(
        self, trace_ids: Sequence[str], workspace: str | None = None
    ) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return metadata and fields that clients told of traces, by id; in a workspace, of those of it alone."""
        return ClientTraceInfo(self.required_store()).of_traces(trace_ids, workspace)

    def deleted(self, trace_ids: Sequence[str]) -> set[str]:
        """Return those of some traces that were deleted from the tracking store. The tables may still have them."""
        store = self.store
        return set() if store is None else ClientTraceInfo(store).deleted(trace_ids)

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
        """Return traces of experiments by a filter of MLflow. Raises QueryError, UsageError."""
        return TraceSearch(self.required_store(), workspace).search(
            experiment_ids, filter, max_results, order_by, page_token
        )

    def newer(self) -> HotList:
        """Return what lists show beside a commit: the newest traces of those that no commit holds whole yet.

        Ask for it before the commit is chosen that it stands beside.
        """
        store = self.store
        return HotList() if store is None else self._reads_of(store)[0].newest()

    def _rows(self, trace_id: str, workspace: str | None) -> tuple[pa.Table, Collection[_Key]]:
        """Return the rows of a trace, and the keys of spans of which the tracking store has a claim."""
        # Counted first: what comes after that may be missing.
        known = self._known(trace_id.lower(), workspace)
        rows, spans = self._both(trace_id, workspace, [*known])
        full_id = str(rows["trace_id"][0]) if len(rows) else trace_id.lower()
        # A commit that was taken back, or lost, takes nothing along that the tracking store or its archive has.
        if len(rows) < max((known[each] for each in known if each.startswith(full_id)), default=0):
            rows, spans = self._both(trace_id, workspace, [*known], whole=True)
            self._check_archived(rows, {each: known[each] for each in known if each.startswith(full_id)})
        if not len(rows):
            raise no_trace(trace_id)
        return rows, spans

    def _check_archived(self, rows: pa.Table, known: dict[str, int]) -> None:
        """Raise DamageError if a trace whose archive is the tables has fewer rows there than spans came in (A17)."""
        for trace_id, count in known.items():
            if len(rows) < count and self.required_store().is_archived_in_tables(trace_id):
                raise DamageError(
                    f"trace {trace_id} is archived in the tables of this lake, and `main` has {len(rows):,} of its "
                    f"{count:,} spans. `tracelake log` shows whether a commit was reverted; revert that commit, or "
                    "restore a backup."
                )

    def _outlined(
        self,
        trace_id: str,
        workspace: str | None,
        columns: Sequence[str],
        use: Callable[[CommitView, Outline], ResultT],
        span_id: str | None = None,
    ) -> ResultT:
        """Return what `use` makes of the outline of a trace. Raises NotFoundError.

        With `span_id` the tracking store is asked for this span only.
        """
        known = self._known(trace_id.lower(), workspace)

        def attempt(whole: bool) -> ResultT | None:
            hot = self._hot([*known], workspace, whole, span_id)
            others = {each for each in known if known[each]}

            def read(view: CommitView) -> ResultT | None:
                full_id = view.full_id(trace_id, others, workspace)
                of_trace = [batch for batch in hot if len(batch) and str(batch["trace_id"][0]) == full_id]
                rows = latest_versions(of_trace) if of_trace else SPANS.empty_table()
                outline = Outline.of(full_id, rows, view.outline(full_id, columns, workspace))
                spans = outline.rows if span_id is None else outline.with_span(span_id)
                expected = known.get(full_id, 0) if span_id is None else min(known.get(full_id, 0), 1)
                # A commit that was reverted lacks spans that the tracking store, or its archive, still has.
                if not whole and len(spans) < expected:
                    return None
                if len(spans) < expected:
                    self._check_archived(outline.rows, {full_id: known[full_id]})
                # A trace of the tracking store may be there without the span that is asked for.
                if not len(outline.rows) and (span_id is None or not known.get(full_id)):
                    raise no_trace(trace_id)
                return use(view, outline)

            return self._opened.read(MAIN, read)

        result = attempt(whole=False)
        if result is None:
            result = attempt(whole=True)
        assert result is not None
        return result

    def _summary_of(self, view: CommitView, outline: Outline, workspace: str | None) -> Row:
        """Return the row of table `traces` of a trace: of its commit where that has all of it."""
        if workspace is None and not len(outline.hot):
            summary = view.summary(outline.trace_id)
            if summary is not None and summary["span_count"] == len(outline.rows):
                return summary
        return summary_of(outline.rows)

    def _known(self, trace_id: str, workspace: str | None) -> dict[str, int]:
        """Return how many spans came in of traces that begin so, two at most."""
        store = self.store
        if store is None or not trace_id.isalnum():
            return {}
        ids = [trace_id] if len(trace_id) == 32 else store.ids_that_begin(trace_id, 2, workspace)
        return {each: self._reads_of(store)[1].known(each, workspace) for each in ids}

    def _both(
        self, trace_id: str, workspace: str | None, ids: Sequence[str], *, whole: bool = False
    ) -> tuple[pa.Table, Collection[_Key]]:
        """Return the rows of both tiers, as `_rows`; of those ids the hot one has them `whole` where so asked."""
        hot = self._hot(ids, workspace, whole)
        others = {str(batch["trace_id"][0]) for batch in hot if len(batch)}

        def read(view: CommitView) -> pa.Table:
            full_id = view.full_id(trace_id, others, workspace)
            of_trace = [batch for batch in hot if len(batch) and str(batch["trace_id"][0]) == full_id]
            rows = latest_versions([*of_trace, view.whole(full_id, workspace)])
            if rows.nbytes > limits.TRACE_ROWS_MAX_BYTES:  # some of either tier
                raise too_large(full_id)
            return rows

        keys = ["workspace", "span_id", "kind"]
        return self._opened.read(MAIN, read), {
            _key_of(span) for batch in hot for span in batch.select(keys).to_pylist()
        }

    def _hot(
        self, ids: Sequence[str], workspace: str | None, whole: bool, span_id: str | None = None
    ) -> list[pa.Table]:
        store = self.store
        if store is None:
            return []
        return [within(self._here(store, whole, each, workspace, span_id), workspace) for each in ids]

    def _here(
        self,
        store: TrackingStore,
        whole: bool,
        trace_id: str,
        workspace: str | None,
        span_id: str | None = None,
    ) -> pa.Table:
        """Return the rows of what is here of a trace; of what the tables may lack for good, those of its archive.

        And where it is to be `whole`.
        """
        traces = self._reads_of(store)[1]
        for _ in range(limits.ARCHIVE_RESTORE_TRIES_MAX):
            rows = traces.rows(trace_id, workspace, whole=whole, span_id=span_id)
            if len(rows) or (not whole and not traces.is_given_up(trace_id)):
                break
            if (data := open_archive(self._opened).read(trace_id)) is not None:
                if workspace is not None:
                    data = of_workspace(data, workspace)
                if (takes := rows_bytes(data)) > limits.TRACE_ROWS_MAX_BYTES:
                    raise too_large(trace_id)
                if takes > limits.LARGE_TRACE_ROWS_BYTES:
                    acquire_read()
                return pa.Table.from_batches([rows_of(data).take()])
        return rows

    def _reads_of(self, store: TrackingStore) -> tuple[HotLists, HotTraces]:
        """Return what reads lists and traces of this store, and keeps what it has read."""
        with self._lock:
            if self._reads is None or self._reads[0] is not store:
                lists = HotLists(self._opened, Uncommitted(store))
                self._reads = store, (lists, HotTraces(Uncommitted(store)))
            return self._reads[1]


def _key_of(span: Row) -> _Key:
    return span["workspace"], span["span_id"], is_server_side(span)


def _spans_in(rows: pa.Table) -> Collection[_Key]:
    """Return the keys of spans."""
    return {_key_of(span) for span in rows.select(["workspace", "span_id", "kind"]).to_pylist()}


def summary_of(rows: pa.Table) -> dict[str, Any]:
    """Return the row of table `traces` that the spans of one trace make, without its transaction."""
    # A query takes as long as all else that is read of a small trace.
    if len(rows) <= limits.TRACE_SUMMED_MAX_SPANS:
        return summed(rows.select(list(SPAN_COLUMNS)).to_pylist())
    summary: dict[str, Any] = summaries(rows).drop_columns([TRANSACTION_FIELD.name]).to_pylist()[0]
    return summary
