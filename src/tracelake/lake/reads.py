"""What is read alike of a whole lake and of one workspace of it: searches, completions, queries."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa

from tracelake.lake.hot import HotTier
from tracelake.lake.hot_lists import HotList
from tracelake.lake.hot_search import BothTiersSearch
from tracelake.lake.opened import OpenLake
from tracelake.limits import SEARCH_HITS_DEFAULT
from tracelake.search.asked import By
from tracelake.search.query import Sort
from tracelake.search.results import SearchResults
from tracelake.search.semantic import Mode
from tracelake.search.sieve import sieve_of
from tracelake.tables.commit_view import CommitView
from tracelake.tables.newer import NewerRows
from tracelake.tables.result_pages import name_of_search, nanoseconds, read_token
from tracelake.tables.workspaces import told_of
from tracelake.versions.branches import MAIN

NOT_LISTED: Final = b"tracelake.not_listed"
"""The key of a table's metadata that says what no commit holds yet and the table lacks."""


class WithReads:
    """What a lake reads, in one workspace or in all: whatever is public here is there for a workspace too."""

    _opened: OpenLake
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
        by = By.of(mode, vector)
        name = name_of_search(query, where, service, sort, *by.told, *told_of(self._workspace))
        token = None if page is None else read_token(page, name)

        def search(view: CommitView, newer: NewerRows | None = None) -> SearchResults:
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
            lambda analyzer: sieve_of(query, service, self._workspace, analyzer) if has_words else None,
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
