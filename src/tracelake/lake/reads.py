"""Reads that work for a whole lake and for one workspace: searches, completions, queries.

A view of one workspace passes its name to the functions that read rows, terms and records, which filter by it. The view
refuses operations that concern all workspaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tracelake._errors import ForbiddenError, LimitError
from tracelake.access.audit import Audit
from tracelake.context import LakeContext
from tracelake.hot.rows import HotList
from tracelake.hot.search import BothTiersSearch
from tracelake.hot.tier import HotTier, SpanPage
from tracelake.limits import SEARCH_HITS_DEFAULT
from tracelake.otlp.schema import SPANS
from tracelake.results import Trace, public_names
from tracelake.search.analyzers import Analyzer
from tracelake.search.prefilter import Prefilter, prefilter_of
from tracelake.search.results import SearchResults
from tracelake.search.searcher import SearchRequest, Sort
from tracelake.search.semantic_search import Mode
from tracelake.tables.builtin import (
    TABLE_SPANS,
    TABLE_TRACES,
    TRACKED,
    in_workspace,
    without_traces,
    workspace_token,
)
from tracelake.tables.page_tokens import name_of_search, read_token
from tracelake.tables.table import LOOKED_UP_ROWS_MAX_BYTES, LOOKED_UP_TRACES_MAX, span_counts
from tracelake.tables.uncommitted import FirstRows, UncommittedRows
from tracelake.tables.view import CommitView
from tracelake.versions.branch_store import MAIN

if TYPE_CHECKING:
    from tracelake.lake.annotations import LakeAnnotations
    from tracelake.tracking.mlflow_search import FoundTraces

NOT_LISTED: Final = b"tracelake.not_listed"
"""Key of a table's metadata that describes uncommitted spans missing from the table."""
ResultT = TypeVar("ResultT")
_REPLACED_STEP: Final = 64
"""Rounds the number of replaced rows in a cached query."""
_REUSED_SPANS_MIN: Final = 200_000
"""Spans of a lake from which on statistics are reused: fewer are counted in less time than a page is drawn."""


@dataclass(frozen=True, slots=True)
class MatchingTraces:
    """Traces with spans that match a query."""

    trace_ids: tuple[str, ...]
    """Those of the newest matching spans first."""
    is_cut: bool
    """Whether more spans match than were read."""
    not_searched: str | None
    """Acknowledged data that the search did not cover, and the reason; None if it covered all."""


class LakeReads:
    """Reads of a lake: of one workspace, or of all if `workspace` is None. Threads may share it."""

    def __init__(self, opened: LakeContext, hot: HotTier, workspace: str | None = None) -> None:
        self._opened = opened
        self._hot = hot
        self._workspace = workspace

    def search(self, request: SearchRequest, at: str = MAIN) -> SearchResults:
        """See `Lake.search`."""
        request = replace(request, workspace=self._workspace)
        query, service = request.query, request.service
        name = name_of_search(*request.token_key)
        token = None if request.page is None else read_token(request.page, name)

        def search(view: CommitView, newer: UncommittedRows | None = None) -> SearchResults:
            return view.search(request, newer)

        if not token and at != MAIN:
            return self._opened.read(at, search)
        has_words = request.ranking.mode == "text"

        now_ns = request.now_ns if token is None else token.now_ns  # the time of the first page
        return self._hot.search(
            token, self._both_tiers(name, search, query, service, now_ns, has_words=has_words)
        )

    def _both_tiers(
        self,
        name: str,
        search: Callable[[CommitView, UncommittedRows | None], SearchResults],
        query: str,
        service: str | None,
        now_ns: int,
        *,
        has_words: bool = True,
    ) -> BothTiersSearch:
        def traces_of(view: CommitView, traces: Collection[str]) -> Collection[str]:
            searcher = view.open_searcher() if traces else None
            if searcher is None:
                return ()
            return searcher.matching_traces(traces, query, service, now_ns, self._workspace)

        def prefilter(analyzer: Analyzer) -> Prefilter | None:
            return prefilter_of(query, service, self._workspace, analyzer) if has_words else None

        return BothTiersSearch(name, search, prefilter, traces_of)

    def completions(self, typed: str, at: str = MAIN) -> list[str]:
        """See `Lake.completions`."""
        return self._opened.read(at, lambda view: view.completions(typed, self._workspace))

    def sql(self, query: str, at: str, uncommitted: bool, allow_files: bool = False) -> pa.Table:
        """See `Lake.sql`."""
        # Read uncommitted rows before choosing the commit: rows that leave the outbox in between are then in
        # it.
        newer = self._hot.newer() if uncommitted and at == MAIN else HotList()
        table = self._opened.read(
            at, lambda view: view.sql(query, allow_files, newer.tables, self._workspace)
        )
        return _with_note(table, newer)

    def select(self, *queries: str, traces: Collection[str] = ()) -> list[pa.Table]:
        """See `Lake.select`."""
        newer = self._hot.newer()
        if traces and not _has_any(newer, traces):
            newer = replace(newer, tables={})
        tables = self._opened.read(
            MAIN, lambda view: [self._select(view, query, newer, traces) for query in queries]
        )
        return [_with_note(table, newer) for table in tables]

    def _select(self, view: CommitView, query: str, newer: HotList, traces: Collection[str] = ()) -> pa.Table:
        # Rows of the tracking store change without a commit.
        if newer.tables or any(name in query for name in TRACKED):
            return view.select(query, newer.tables, self._workspace, traces)
        # A commit never changes, and neither does the set of traces that an erasure hides from it.
        key = (
            view.commit_id,
            view.masked,
            self._workspace,
            sha256(query.encode(errors="surrogatepass")).digest(),
        )
        table = self._opened.selected.get(key)
        if table is None:
            table = view.select(query, None, self._workspace, traces)
            self._opened.selected.put(key, table)
        return table

    def first_rows(self, rows: FirstRows) -> pa.Table:
        """Return the first rows of a query over `traces`, as `select`. Those of the commit are cached."""
        newer = self._hot.newer()

        def read(view: CommitView) -> pa.Table:
            if not newer.tables or rows.offset or self._workspace is not None:
                return self._select(view, str(rows), newer)
            pending = [str(each) for each in newer.tables[TABLE_TRACES.name]["trace_id"].to_pylist()]
            counts = span_counts(view.table(TABLE_TRACES.name), view.span_counts, pending)
            replaced = [trace_id for trace_id in counts if counts[trace_id]]
            if rows.grouped_by is not None:
                of_groups = pc.any(pc.is_valid(newer.tables[TABLE_TRACES.name][rows.grouped_by])).as_py()
                return self._select(view, str(rows), newer if replaced or of_groups else HotList())
            # The commit's rows of these traces are dropped, so as many more are read. The number is rounded up, so
            # that most lists of a commit read the same.
            room = -(-len(replaced) // _REPLACED_STEP) * _REPLACED_STEP
            committed = self._select(view, str(replace(rows, limit=rows.limit + room)), HotList())
            return rows.merged(without_traces(committed, replaced), newer.tables)

        return _with_note(self._opened.read(MAIN, read), newer)

    def spans_of(self, trace_ids: Sequence[str], columns: Sequence[str]) -> pa.Table | None:
        """Return columns of the spans of a few traces; None for many traces or much memory."""
        if len(trace_ids) > LOOKED_UP_TRACES_MAX:
            return None
        newer = self._hot.newer().tables.get(TABLE_SPANS.name)
        pending = (newer or SPANS.empty_table()).select(columns)
        pending = pending.filter(pc.is_in(pending["trace_id"], pa.array(trace_ids, pa.string())))
        committed = sorted({*trace_ids} - {*pending["trace_id"].to_pylist()})

        def read(view: CommitView) -> pa.Table:
            return view.table(TABLE_SPANS.name).lookup(committed, columns, LOOKED_UP_ROWS_MAX_BYTES)

        try:
            rows = self._opened.read(MAIN, read)
        except LimitError:
            return None
        return in_workspace(pa.concat_tables([rows, pending], promote_options="permissive"), self._workspace)

    def statistics(
        self, key: Hashable, read: Callable[[], ResultT], now: Callable[[], ResultT] | None = None
    ) -> ResultT:
        """See `Lake.statistics`."""
        spans = self._opened.view().table(TABLE_SPANS.name)
        if spans.scan.stored_rows < _REUSED_SPANS_MIN:
            return (now or read)()
        # An erasure hides its traces at once, also from statistics.
        masked = self._opened.erasures.masked()
        return self._opened.statistics.get(masked, (self._workspace, key), read, now)

    def traces_matching(self, query: str, limit: int) -> MatchingTraces:
        """See `Lake.traces_matching`."""
        name = name_of_search("traces", query, *workspace_token(self._workspace))
        now_ns = time.time_ns()
        ids: list[str] = []

        def search(view: CommitView, newer: UncommittedRows | None = None) -> SearchResults:
            ids[:] = view.traces_matching(query, limit + 1, now_ns, newer, self._workspace)
            return SearchResults(commit=view.commit_id)

        results = self._hot.search(None, self._both_tiers(name, search, query, None, now_ns))
        return MatchingTraces(tuple(dict.fromkeys(ids[:limit])), len(ids) > limit, results.not_searched)


def _with_note(table: pa.Table, newer: HotList) -> pa.Table:
    """Return a table whose metadata describes uncommitted spans that it lacks."""
    if newer.not_listed is None:
        return table
    return table.replace_schema_metadata({NOT_LISTED: newer.not_listed.encode()})


def _has_any(newer: HotList, trace_ids: Collection[str]) -> bool:
    """Return whether uncommitted rows belong to any of these traces."""
    if not newer.tables:
        return False
    return bool(
        pc.any(pc.is_in(newer.tables["traces"]["trace_id"], pa.array(trace_ids, pa.string()))).as_py()
    )


class _WholeLakeOnly:
    """Descriptor for an attribute of `Lake` that a workspace view does not have. Reading it raises ForbiddenError."""

    def __init__(self, component: str = "") -> None:
        self._component = component

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{self._component}{name}"

    def __get__(self, view: WorkspaceLake | WorkspaceHot | None, owner: type) -> NoReturn:
        if view is None:
            raise AttributeError(self._name)
        raise ForbiddenError(
            f"{self._name!r} belongs to the whole lake, and this is only its workspace {view.workspace!r}; "
            "use the lake itself, or a key for all workspaces over HTTP"
        )


def _whole_lake_only(count: int, component: str = "") -> list[_WholeLakeOnly]:
    return [_WholeLakeOnly(component) for _ in range(count)]


def _refused(view: type) -> Iterable[str]:
    return (name for name, value in vars(view).items() if isinstance(value, _WholeLakeOnly))


class WorkspaceLake:
    """View of one workspace of a lake: `lake.within("team-a")`. Threads may share it."""

    archive, backup, branch, branches, close, config, create_branch = _whole_lake_only(7)
    create_table, datasets, delete_branch, delete_tag, diff, erase, erasures = _whole_lake_only(7)
    inbox, index, ingest, journal, keys, listen, log, maintenance, merge = _whole_lake_only(9)
    objects, outputs, pipeline, place, prices, quarantine, replicas, retention = _whole_lake_only(8)
    sessions, sources, table, tables, tag, tags, transactions, verify, write = _whole_lake_only(9)

    def __init__(self, opened: LakeContext, hot: HotTier, workspace: str) -> None:
        self._opened = opened
        self._all_hot = hot
        self.reads = LakeReads(opened, hot, workspace)
        self.workspace = workspace
        self.hot = WorkspaceHot(hot, workspace)
        self.audit = Audit(lambda: opened.key_value, workspace)

    def __dir__(self) -> list[str]:
        """Return the names for users of a workspace, without those that it refuses."""
        return public_names(self, "hot", "select", "statistics", *_refused(type(self)))

    @property
    def url(self) -> str:
        """The lake's URL."""
        return self._opened.objects.url

    @property
    def annotations(self) -> LakeAnnotations:
        """Tags, experiments and assessments. Raises UsageError for a lake without a tracking store."""
        from tracelake.lake.annotations import annotations_of  # noqa: PLC0415  it imports SQLAlchemy

        return annotations_of(self._opened, self._all_hot.store, self.workspace)

    def search(
        self,
        query: str = "*",
        where: str | None = None,
        at: str = MAIN,
        limit: int = SEARCH_HITS_DEFAULT,
        service: str | None = None,
        *,
        mode: Mode | None = None,
        vector: Sequence[float] | None = None,
        sort: Sort = "score",
        facets: Sequence[str] = (),
        page: str | None = None,
        now: datetime | None = None,
    ) -> SearchResults:
        """Return a page of the workspace's matching spans. See `Lake.search`."""
        request = SearchRequest(query, where, limit, service, mode, vector, sort, facets, page, now)
        return self.reads.search(request, at)

    def completions(self, typed: str, at: str = MAIN) -> list[str]:
        """Return completions from the workspace. See `Lake.completions`."""
        return self.reads.completions(typed, at)

    def sql(self, query: str, at: str = MAIN, *, uncommitted: bool = False) -> pa.Table:
        """Run a DuckDB query over the workspace's rows of `spans` and `traces`. Raises QueryError if DuckDB refuses the
        query."""
        return self.reads.sql(query, at, uncommitted)

    def select(self, *queries: str, traces: Collection[str] = ()) -> list[pa.Table]:
        """Run SELECTs over the workspace's rows. See `Lake.select`."""
        return self.reads.select(*queries, traces=traces)

    def statistics(
        self, key: Hashable, read: Callable[[], ResultT], now: Callable[[], ResultT] | None = None
    ) -> ResultT:
        """Return statistics of the workspace. See `Lake.statistics`."""
        return self.reads.statistics(key, read, now)

    def traces_matching(self, query: str, limit: int) -> MatchingTraces:
        """Return the workspace's traces with a span that matches a query. See `Lake.traces_matching`."""
        return self.reads.traces_matching(query, limit)

    def trace(self, trace_id: str, *, tiers: bool = False) -> Trace:
        """Return the workspace's spans of a trace, by its id or a unique prefix of it. With `tiers`, each span names
        its tier in `_tier`. Raises NotFoundError if no trace, or more than one, matches."""
        return self._all_hot.trace(trace_id, tiers=tiers, workspace=self.workspace)


class WorkspaceHot:
    """Reads of a workspace's traces and spans in the hot tier and the tables."""

    describe, has_place, newer, required_store, search, set_up = _whole_lake_only(6, "hot.")
    store, trace, waiting = _whole_lake_only(3, "hot.")

    def __init__(self, hot: HotTier, workspace: str) -> None:
        self._hot = hot
        self.workspace = workspace

    @property
    def is_there(self) -> bool:
        """Whether the lake has a tracking store."""
        return self._hot.is_there

    def spans_of(self, trace_id: str) -> pa.Table:
        """Return the rows of a trace, with the columns of SPANS. Raises NotFoundError if the workspace has no such
        trace."""
        return self._hot.spans_of(trace_id, self.workspace)

    def outline(self, trace_id: str) -> Trace:
        """Return a trace with the few span columns that an outline shows. Raises NotFoundError if the workspace has no
        such trace."""
        return self._hot.outline(trace_id, self.workspace)

    def page(self, trace_id: str, limit: int, page: str | None = None, *, tiers: bool = False) -> SpanPage:
        """Return a page of the spans of a trace; see `HotTier.page`."""
        return self._hot.page(trace_id, limit, page, tiers=tiers, workspace=self.workspace)

    def span_rows(self, trace_id: str, span_id: str) -> pa.Table:
        """Return the rows with this span id in a trace. Raises NotFoundError if the workspace has no such trace."""
        return self._hot.span_rows(trace_id, span_id, self.workspace)

    def infos(self, trace_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the tracking store's information on traces, by id. Raises UsageError for a lake without one."""
        return self._hot.infos(trace_ids, self.workspace)

    def said_of(self, trace_ids: Sequence[str]) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return the metadata and fields that clients sent for traces, by id. Raises UsageError as `infos` does."""
        return self._hot.said_of(trace_ids, self.workspace)

    def deleted(self, trace_ids: Sequence[str]) -> set[str]:
        """Return the given traces that were deleted. See `HotTier.deleted`."""
        return self._hot.deleted(trace_ids)

    def find_traces(self, *criteria: Any) -> FoundTraces:
        """Search the tracking store as MLflow does; see `HotTier.find_traces`."""
        return self._hot.find_traces(*criteria, workspace=self.workspace)
