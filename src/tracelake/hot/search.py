"""Search of uncommitted spans: outbox rows that this process scans and partly indexes as searches arrive.

If the pipeline has not run for long, the outbox exceeds the memory or time of a search, and results report it.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits, tracking
from tracelake._errors import QueryError, StorageError
from tracelake.context import NO_COMMIT, LakeContext
from tracelake.hot.index import SEQUENCE, Coverage, HotIndex
from tracelake.hot.rows import latest_version_rows
from tracelake.otlp.schema import SPANS
from tracelake.search.analyzers import Analyzer, get_analyzer
from tracelake.search.prefilter import Prefilter
from tracelake.search.results import SearchResults
from tracelake.shards.rows import ROW_ID
from tracelake.tables.page_tokens import PageToken
from tracelake.tables.uncommitted import UncommittedRows
from tracelake.tables.view import CommitView
from tracelake.versions.branch_store import MAIN

if TYPE_CHECKING:
    from tracelake.tracking.outbox import Uncommitted
    from tracelake.tracking.store import TrackingStore

_UNCOMMITTED_SEARCH_TRIES_MAX: Final = 3
"""Restarts of a search because its index was rebuilt with other settings."""
UNCOMMITTED_SEARCHES_KEPT: Final = 4
"""Searches whose uncommitted spans are kept for further pages."""

Search = Callable[[CommitView, UncommittedRows | None], SearchResults]


@dataclass(frozen=True, slots=True)
class BothTiersSearch:
    """A search over a commit and the outbox."""

    name: str
    """A name that distinguishes it from other searches."""
    search: Search
    sieve_of: Callable[[Analyzer], Prefilter | None]
    """Returns a prefilter for spans that it may find; None if any span may match."""
    traces_of: Callable[[CommitView, Collection[str]], Collection[str]]
    """Returns the given traces of which it finds spans in a commit."""


Cover = Callable[[Collection[str]], Coverage]
"""Function that returns a search's coverage of the outbox, with all spans of the given traces."""


class HotSearch:
    """Search of a lake's uncommitted spans. Threads may share it."""

    def __init__(self, opened: LakeContext, store: Callable[[], TrackingStore | None]) -> None:
        self._opened = opened
        self._store = store
        self._lock = Lock()
        self._page_lock = Lock()
        """Serializes the rebuilding of pages. New searches do not take it."""
        self._index = HotIndex(opened)
        self._recent: dict[tuple[object, ...], tuple[Coverage, UncommittedRows]] = {}
        """Rows of the last searches, by commit, index parts and outbox rows."""
        self._masked_number = 0

    def search(self, token: PageToken | None, request: BothTiersSearch) -> SearchResults:
        """Search the head of `main` and the outbox; for a page, search the commit and outbox rows of the first page."""
        at = MAIN if token is None else token.commit or NO_COMMIT
        for _ in range(_UNCOMMITTED_SEARCH_TRIES_MAX):
            if (results := self._once(at, token, request)) is not None:
                return results
        results = self._opened.read(at, lambda view: request.search(view, None))
        results.not_searched = "the index is being rebuilt with other settings: search again"
        return results

    def _once(self, at: str, token: PageToken | None, request: BothTiersSearch) -> SearchResults | None:
        """Search once. Return None if the index's analyzer changed during the search."""
        page = "" if token is None else token.newer
        analyzer = self._opened.read(at, self._analyzer)
        # Read the outbox before choosing the commit: rows that leave the outbox in between are then in that
        # commit.
        try:
            cover = self._covered(token, analyzer, request.sieve_of(analyzer))
            first = cover(())
        except (StorageError, OSError) as error:
            first = Coverage(failure=f"uncommitted spans, because they cannot be read: {error}")

        def searched(view: CommitView) -> SearchResults | None:
            coverage = first
            if coverage.without_match and (doubtful := request.traces_of(view, coverage.without_match)):
                # Their pending spans may replace committed versions that this search finds.
                coverage = cover(doubtful)
            if coverage.parts and self._analyzer(view) is not analyzer:
                return None
            newer = self._uncommitted_rows(view, coverage, request.name, page) if coverage.parts else None
            results = request.search(view, newer)
            messages = [text for text in (coverage.not_searched(), results.not_searched) if text]
            results.not_searched = "; ".join(messages) or None
            return results

        return self._opened.read(at, searched)

    def _analyzer(self, view: CommitView) -> Analyzer:
        return view.analyzer(get_analyzer(self._opened.config.text))

    def _covered(self, token: PageToken | None, analyzer: Analyzer, sieve: Prefilter | None) -> Cover:
        """Return the function that covers the rows that are in the outbox now, or the rows of a page."""
        if (token is not None and not token.newer) or (store := self._store()) is None:
            return lambda _also: Coverage()
        uncommitted = tracking.outbox.Uncommitted(store)
        if token is not None:
            return self._covered_by_page(uncommitted, token, analyzer, sieve)
        waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
        return lambda also: self._index.cover(uncommitted, waiting, analyzer, sieve, also)

    def _covered_by_page(
        self, uncommitted: Uncommitted, token: PageToken, analyzer: Analyzer, sieve: Prefilter | None
    ) -> Cover:
        """Return the same for the rows of a search's first page. They are indexed again if they are no longer
        cached."""
        run_names, _, _ = token.newer.rpartition("_")
        runs = tracking.outbox.read_runs(run_names)
        # Verify the token first, because rebuilding a page may take seconds.
        if runs is None or token.newer != self._signed(token.commit, run_names, token.search):
            raise QueryError(f"{str(token)!r} is not a page; use `next_page` of a result unchanged.")
        index = HotIndex(self._opened)

        def cover(also: Collection[str]) -> Coverage:
            if (cached := self._cached(token)) is not None:
                return cached
            with self._page_lock:
                # The thread that had the lock before may have rebuilt it.
                if (cached := self._cached(token)) is not None:
                    return cached
                waiting = uncommitted.in_ranges(runs, limits.UNCOMMITTED_SEARCH_ROWS_MAX)
                return index.cover(uncommitted, waiting, analyzer, sieve, also, math.inf)

        return cover

    def _signed(self, commit: str | None, run_names: str, name: str) -> str:
        """Return row ranges with a signature. It proves that this search of this lake had a page with these rows and
        this commit."""
        store = self._store()
        key = "" if store is None else store.page_key
        signature = hmac.digest(key.encode(), f"{commit} {run_names} {name}".encode(), "sha256").hex()
        return f"{run_names}_{signature[:32]}"

    def _cached(self, token: PageToken) -> Coverage | None:
        """Return the cached coverage of the first page, or None."""
        with self._lock:
            for (commit, *_), (coverage, newer) in self._recent.items():
                is_it = (commit, newer.name) == (token.commit, token.newer)
                if is_it and all(part.directory.is_dir() for part in coverage.parts):
                    return coverage
        return None

    def _uncommitted_rows(
        self, view: CommitView, coverage: Coverage, name: str, page: str
    ) -> UncommittedRows:
        """Return the outbox rows to search together with a commit. Versions of spans that lose against other versions
        are hidden."""
        # Rows that have left the outbox are in the commit. The others here are not covered, so no page has them.
        key = view.commit_id, name, coverage.parts, coverage.rows
        masked = view.masked
        with self._lock:
            if self._masked_number != masked.number:  # cached rows may be of traces that were erased since
                self._recent, self._masked_number = {}, masked.number
            if key in self._recent:
                return self._recent[key][1]
        claims = pa.concat_tables([part.rows for part in coverage.parts])
        is_shown = pc.and_(
            pc.is_in(claims[SEQUENCE.name], pa.array(coverage.rows, SEQUENCE.type)),
            pc.invert(pc.is_in(claims["trace_id"], pa.array(coverage.large | masked.trace_ids, pa.string()))),
        )
        omitted = claims[ROW_ID.name].filter(pc.invert(is_shown)).to_numpy()
        claims = claims.filter(is_shown) if len(omitted) else claims  # a filter copies all texts
        claims = claims.drop_columns(SEQUENCE.name)
        indexed = view.indexed_claims(claims)
        # Committed versions come first: among equal ones the first wins.
        every = pa.concat_tables([indexed.select(claims.schema.names).cast(claims.schema), claims])
        hidden = np.delete(every[ROW_ID.name].to_numpy(), latest_version_rows(every.select(SPANS.names)))
        runs = tracking.outbox.runs_of(coverage.rows, limits.UNCOMMITTED_RUN_GAP_MAX, coverage.apart)
        run_names = tracking.outbox.named_runs(runs)
        # Later pages keep the rows of the first, even if some have left the outbox.
        page = page or self._signed(view.commit_id, run_names, name)
        newer = UncommittedRows(coverage.parts, np.concatenate([hidden, omitted]), page)
        with self._lock:
            self._recent[key] = (
                replace(coverage, apart=frozenset(), more=False, without_match=frozenset()),
                newer,
            )
            while len(self._recent) > UNCOMMITTED_SEARCHES_KEPT:
                del self._recent[next(iter(self._recent))]
        return newer
