"""What is read alike of a whole lake and of one workspace of it: searches, completions, queries.

One workspace of a lake, to read and to annotate: what is of others is not there.

What is asked of it goes on with the name of the workspace, and the condition is applied below, where rows, terms and
records are read. What a lake has beside that is of all workspaces, and is refused.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import pyarrow as pa

from tracelake._errors import ForbiddenError
from tracelake.access.audit import Audit
from tracelake.lake.annotations import LakeAnnotations, annotations_of
from tracelake.lake.context import LakeContext
from tracelake.lake.hot_lists import HotList
from tracelake.lake.hot_search import BothTiersSearch
from tracelake.lake.hot_tier import HotTier, SpanPage
from tracelake.limits import NAME_QUOTED_MAX_CHARS, SEARCH_HITS_DEFAULT
from tracelake.results import Trace
from tracelake.search.prefilter import prefilter_of
from tracelake.search.results import SearchResults
from tracelake.search.searcher import Ranking, Sort
from tracelake.search.semantic_search import Mode
from tracelake.tables.builtin import workspace_token
from tracelake.tables.page_tokens import name_of_search, nanoseconds, read_token
from tracelake.tables.view import CommitView, UncommittedRows
from tracelake.tracking.mlflow_search import FoundTraces
from tracelake.versions.branch_store import MAIN

NOT_LISTED: Final = b"tracelake.not_listed"
"""The key of a table's metadata that says what no commit holds yet and the table lacks."""


class WithReads:
    """What a lake reads, in one workspace or in all: whatever is public here is there for a workspace too."""

    _opened: LakeContext
    _whole_hot: HotTier
    """That of the whole lake, whatever part of it is read."""
    _workspace: str | None = None
    """None for all."""

    @property
    def url(self) -> str:
        """Where the lake is, as a URL."""
        return self._opened.objects.url

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
        """Return a page of the spans that match, best first, and how many there are.

        Args:
            query: words, "phrases", AND, OR, -not, `service:name`; see docs/reference/search.md.
            where: a DuckDB condition on table `spans`, such as `service = 'airline-agent'`.
            at: the commit to search.
            limit: hits at most, up to 1,000.
            service: only spans of this service; faster than the same as a condition.
            mode: `text` by words; `semantic` by meaning, where the lake has vectors; `hybrid` ranked by both.
            vector: compare with it instead of the words of the query, which are conditions then.
            sort: `score`, or `newest` or `oldest` first.
            facets: count the whole result by service, kind, status, model, session, user, workspace, day.
            page: `next_page` of this search, to go on where that page ended, at its commit.
            now: when `last 2h` ends, with a time zone; else the time of this search, or of its first page.

        Raises:
            QueryError: query, condition or page does not parse, there is no such facet, or `now` has no time zone.
            RefNotFoundError: there is no such commit.
            EmbeddingError: the function that makes vectors failed.
        """
        by = Ranking.of(mode, vector)
        name = name_of_search(query, where, service, sort, *by.told, *workspace_token(self._workspace))
        token = None if page is None else read_token(page, name)

        def search(view: CommitView, newer: UncommittedRows | None = None) -> SearchResults:
            return view.search(
                query,
                where,
                limit,
                service,
                sort=sort,
                facets=facets,
                page=page,
                now=now,
                by=by,
                newer=newer,
                workspace=self._workspace,
            )

        if not token and at != MAIN:
            return self._opened.read(at, search)
        has_words = by.mode == "text"

        def traces_of(view: CommitView, traces: Collection[str]) -> Collection[str]:
            searcher = view.open_searcher() if traces else None
            if searcher is None:
                return ()
            asked_ns = time.time_ns() if now is None else nanoseconds(now)
            now_ns = asked_ns if token is None else token.now_ns  # that of the first page
            return searcher.traces_found(traces, query, service, now_ns, self._workspace)

        asked = BothTiersSearch(
            name,
            search,
            lambda analyzer: prefilter_of(query, service, self._workspace, analyzer) if has_words else None,
            traces_of,
        )
        return self._whole_hot.search(token, asked)

    def completions(self, typed: str, at: str = MAIN) -> list[str]:
        """Return queries that go on where one that is being typed ends: with fields, attributes, and their values."""
        return self._opened.read(at, lambda view: view.completions(typed, self._workspace))

    def _sql(self, query: str, at: str, uncommitted: bool, allow_files: bool = False) -> pa.Table:
        # What is newer is read before the commit is chosen that it stands beside.
        newer = self._whole_hot.newer() if uncommitted and at == MAIN else HotList()
        table = self._opened.read(
            at, lambda view: view.sql(query, allow_files, newer.tables, self._workspace)
        )
        if newer.not_listed is None:
            return table
        return table.replace_schema_metadata({NOT_LISTED: newer.not_listed.encode()})


class WorkspaceLake(WithReads):
    """The part of a lake that is of one workspace: `lake.within("team-a")`. Threads may share it."""

    def __init__(self, opened: LakeContext, hot: HotTier, workspace: str) -> None:
        self._opened = opened
        self._whole_hot = hot
        self.workspace = self._workspace = workspace
        self.hot = WorkspaceHot(hot, workspace)
        self.audit = Audit(lambda: opened.key_value, workspace)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is not divided by workspace."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _of_the_whole(name, self.workspace)

    @property
    def annotations(self) -> LakeAnnotations:
        """Tags, experiments and assessments. Raises UsageError for a lake without a tracking store."""
        return annotations_of(self._opened, self._whole_hot.store, self.workspace)

    def sql(self, query: str, at: str = MAIN, *, uncommitted: bool = False) -> pa.Table:
        """Run a DuckDB query over the rows of `spans` and `traces` that are of the workspace. Raises QueryError."""
        return self._sql(query, at, uncommitted)

    def trace(self, trace_id: str, *, tiers: bool = False) -> Trace:
        """Return the spans of a trace that are of the workspace, by its id or the beginning of it.

        Raises NotFoundError.
        """
        return self._whole_hot.trace(trace_id, tiers=tiers, workspace=self.workspace)


class WorkspaceHot:
    """What a workspace has of both tiers, as rows."""

    def __init__(self, hot: HotTier, workspace: str) -> None:
        self._hot = hot
        self._workspace = workspace

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is not divided by workspace."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _of_the_whole(f"hot.{name}", self._workspace)

    @property
    def is_there(self) -> bool:
        """Whether the lake has a tracking store."""
        return self._hot.is_there

    def spans_of(self, trace_id: str) -> pa.Table:
        """Return the rows of a trace, with the columns of SPANS. Raises NotFoundError."""
        return self._hot.spans_of(trace_id, self._workspace)

    def outline(self, trace_id: str) -> Trace:
        """Return a trace whose spans have the columns of an outline only. Raises NotFoundError."""
        return self._hot.outline(trace_id, self._workspace)

    def page(self, trace_id: str, limit: int, page: str | None = None, *, tiers: bool = False) -> SpanPage:
        """Return a page of the spans of a trace; see `HotTier.page`."""
        return self._hot.page(trace_id, limit, page, tiers=tiers, workspace=self._workspace)

    def span_rows(self, trace_id: str, span_id: str) -> pa.Table:
        """Return the spans of a trace with an id. Raises NotFoundError where there is no such trace."""
        return self._hot.span_rows(trace_id, span_id, self._workspace)

    def infos(self, trace_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what the tracking store says of traces, by id. Raises UsageError for a lake without one."""
        return self._hot.infos(trace_ids, self._workspace)

    def said_of(self, trace_ids: Sequence[str]) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return metadata and fields that clients told of traces, by id. Raises UsageError as `infos` does."""
        return self._hot.said_of(trace_ids, self._workspace)

    def deleted(self, trace_ids: Sequence[str]) -> set[str]:
        """Return those of some traces that were deleted; see `HotTier.deleted`."""
        return self._hot.deleted(trace_ids)

    def find_traces(self, *asked: Any) -> FoundTraces:
        """Search the tracking store as MLflow does; see `HotTier.find_traces`."""
        return self._hot.find_traces(*asked, workspace=self._workspace)


def _of_the_whole(name: str, workspace: str) -> ForbiddenError:
    return ForbiddenError(
        f"{name[:NAME_QUOTED_MAX_CHARS]!r} is of the whole lake, and this is workspace {workspace!r} of it; ask the "
        "lake itself, over HTTP with a key of all workspaces"
    )
