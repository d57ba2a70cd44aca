"""Search of uncommitted spans: outbox rows that this process indexes as they arrive.

A search indexes the rows that arrived since the last index part was built. Servers do this in the background as long as
searches arrive. If the pipeline has not run for long, the outbox exceeds the memory or time of a search, and results
report it.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits
from tracelake._errors import QueryError, StorageError
from tracelake.context import NO_COMMIT, LakeContext
from tracelake.hot.index import Coverage, HotIndex, HotPart
from tracelake.hot.rows import are_large, cannot_be_read, latest_version_rows
from tracelake.limits.input import MIB
from tracelake.otlp.schema import SPANS
from tracelake.search.analyzers import Analyzer, get_analyzer
from tracelake.search.prefilter import Prefilter
from tracelake.search.results import SearchResults
from tracelake.shards.rows import ROW_ID
from tracelake.tables.page_tokens import PageToken
from tracelake.tables.uncommitted import UncommittedRows
from tracelake.tables.view import CommitView
from tracelake.tracking.outbox import Uncommitted, named_runs, read_runs, runs_of
from tracelake.tracking.store import TrackingStore
from tracelake.versions.branch_store import MAIN

UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES: Final = MIB
"""OTLP of spans left to the pipeline that a search's prefilter selects and the search indexes."""
UNCOMMITTED_AHEAD_FOR_S: Final = 10.0
"""Time after a search for which indexing ahead continues."""
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


_SIFTED: Final = "s_"
"""Prefix of a page's row ranges if the page was filtered for its query."""


@dataclass(frozen=True, slots=True)
class _OutboxSnapshot:
    """A search's snapshot of the outbox: index parts of one analyzer, and the rows that are missing."""

    parts: tuple[HotPart, ...] = ()
    not_searched: str | None = None
    committed: frozenset[str] = frozenset()
    """Traces that have left the outbox. A commit chosen after that has their spans."""
    large: frozenset[str] = frozenset()
    """Traces that the parts have incompletely. The pipeline's commit decides their winning span versions."""
    apart: frozenset[int] = frozenset()
    """Pending rows that are not searched. No page has them."""
    without_match: frozenset[str] = frozenset()
    """Traces with pending spans of which none passed the prefilter."""
    with_all_of: Callable[[Collection[str]], _OutboxSnapshot] | None = None
    """Returns a snapshot that also has all pending spans of the given traces."""


class HotSearch:
    """Search of a lake's uncommitted spans. Threads may share it."""

    def __init__(self, opened: LakeContext, store: Callable[[], TrackingStore | None]) -> None:
        self._opened = opened
        self._store = store
        self._lock = Lock()
        self._page_lock = Lock()
        """Serializes the rebuilding of pages. New searches do not take it."""
        self._parts = HotIndex(opened)
        self._searched_s = -math.inf
        self._kept: dict[tuple[str | None, tuple[HotPart, ...]], UncommittedRows] = {}
        self._masked_number = 0

    def search(self, token: PageToken | None, request: BothTiersSearch) -> SearchResults:
        """Search the head of `main` and the outbox; for a page, search the commit and outbox rows of the first page."""
        at = MAIN if token is None else token.commit or NO_COMMIT
        self._searched_s = time.monotonic()
        for _ in range(_UNCOMMITTED_SEARCH_TRIES_MAX):
            if (results := self._once(at, token, request)) is not None:
                return results
        results = self._opened.read(at, lambda view: request.search(view, None))
        results.not_searched = "the index is being rebuilt with other settings: search again"
        return results

    def index_newest(self) -> bool:
        """Index new rows and open the newest commit in the background, so that the next search does not have to.

        Does nothing if no search arrived recently. Returns whether more rows can be indexed now.

        Raises:
            TracelakeError: the tracking store or the index is unreadable. Searches report this too.
        """
        store = self._store()
        if store is None:
            return False
        if time.monotonic() - self._searched_s > UNCOMMITTED_AHEAD_FOR_S:
            self._parts.look(Uncommitted(store))  # record the pipeline's progress for the next search
            return False
        is_more = self._parts.index_newest(Uncommitted(store), self._opened.read(MAIN, self._analyzer))
        # Index first: if a part of the commit cannot be opened, new rows are searchable anyway.
        self._opened.read(MAIN, CommitView.open_index)
        return is_more

    def _once(self, at: str, token: PageToken | None, request: BothTiersSearch) -> SearchResults | None:
        """Search once. Return None if the index's analyzer changed during the search."""
        analyzer = self._opened.read(at, self._analyzer)
        # Read the outbox before choosing the commit: rows that leave the outbox in between are then in that
        # commit.
        outbox = self._take(token, analyzer, request.sieve_of(analyzer))

        def searched(view: CommitView) -> SearchResults | None:
            snapshot = outbox
            if snapshot.with_all_of is not None and (
                doubtful := request.traces_of(view, snapshot.without_match)
            ):
                # Their pending spans may replace committed versions that this search finds.
                snapshot = snapshot.with_all_of(doubtful)
            if snapshot.parts and self._analyzer(view) is not analyzer:
                return None
            page = "" if token is None else token.newer
            newer = self._uncommitted_rows(view, snapshot, request.name, page) if snapshot.parts else None
            results = request.search(view, newer)
            messages = [text for text in (snapshot.not_searched, results.not_searched) if text]
            results.not_searched = "; ".join(messages) or None
            return results

        return self._opened.read(at, searched)

    def _analyzer(self, view: CommitView) -> Analyzer:
        return view.analyzer(get_analyzer(self._opened.config.text))

    def _take(self, token: PageToken | None, analyzer: Analyzer, sieve: Prefilter | None) -> _OutboxSnapshot:
        if token is not None and not token.newer:
            return _OutboxSnapshot()
        try:
            store = self._store()
            if store is None:
                return _OutboxSnapshot()
            if token is None:
                return self._newest(Uncommitted(store), analyzer, sieve)
            return self._of_page(Uncommitted(store), token, analyzer, sieve)
        except (StorageError, OSError) as error:
            return _OutboxSnapshot((), f"uncommitted spans, because they cannot be read: {error}")

    def _newest(
        self, uncommitted: Uncommitted, analyzer: Analyzer, sieve: Prefilter | None
    ) -> _OutboxSnapshot:
        """Return a snapshot of the outbox, within the limits of bytes and time."""
        covering = self._parts.newest(uncommitted, analyzer)
        if not covering.parts and not covering.unindexed and not covering.lacking:
            return _snapshot(covering)  # the outbox is empty
        if sieve is None or not covering.unindexed:
            return _as_they_wait(uncommitted, covering)

        def with_all_of(traces: Collection[str]) -> _OutboxSnapshot:
            most_bytes = UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES
            sifted = self._parts.sifted(uncommitted, covering, analyzer, sieve, traces, most_bytes)
            return replace(_as_they_wait(uncommitted, sifted), without_match=sifted.without_match)

        return replace(with_all_of(()), with_all_of=with_all_of)

    def _of_page(
        self, uncommitted: Uncommitted, token: PageToken, analyzer: Analyzer, sieve: Prefilter | None
    ) -> _OutboxSnapshot:
        """Return the outbox snapshot of a search's first page. It is rebuilt if it is no longer cached."""
        run_names, _, _ = token.newer.rpartition("_")
        is_sifted = run_names.startswith(_SIFTED)
        runs = read_runs(run_names.removeprefix(_SIFTED))
        # Verify the token first, because rebuilding a page may take seconds.
        if runs is None or token.newer != self._signed(token.commit, run_names, token.search):
            raise QueryError(f"{str(token)!r} is not a page; use `next_page` of a result unchanged.")
        if (parts := self._kept_of(token)) is not None:
            return _snapshot(Coverage(parts))
        with self._page_lock:
            if (
                parts := self._kept_of(token)
            ) is not None:  # the thread that had the lock before may have rebuilt it
                return _snapshot(Coverage(parts))
            wanted = uncommitted.in_ranges(runs, limits.UNCOMMITTED_SEARCH_ROWS_MAX)
            if not is_sifted or sieve is None:
                return _snapshot(self._parts.of(uncommitted, wanted, analyzer))
            covering = self._parts.texts_of(uncommitted, wanted)

            def with_all_of(traces: Collection[str]) -> _OutboxSnapshot:
                # The page is of the same query, so the prefilter is the same.
                sifted = self._parts.sifted(uncommitted, covering, analyzer, sieve, traces)
                return replace(_snapshot(sifted), without_match=sifted.without_match)

            return replace(with_all_of(()), with_all_of=with_all_of)

    def _signed(self, commit: str | None, run_names: str, name: str) -> str:
        """Return row ranges with a signature. It proves that a search of this lake had a page with these rows and
        this commit.

        For a filtered page the signature also covers the search's name, because the page has only that search's
        spans.
        """
        store = self._store()
        key = "" if store is None else store.page_key
        of_search = f" {name}" if run_names.startswith(_SIFTED) else ""
        signature = hmac.digest(key.encode(), f"{commit} {run_names}{of_search}".encode(), "sha256").hex()
        return f"{run_names}_{signature[:32]}"

    def _kept_of(self, token: PageToken) -> tuple[HotPart, ...] | None:
        """Return the cached parts of the first page, or None."""
        with self._lock:
            for (commit, parts), newer in self._kept.items():
                is_it = (commit, newer.name) == (token.commit, token.newer)
                if is_it and all(part.is_there for part in parts):
                    return parts
        return None

    def _uncommitted_rows(
        self, view: CommitView, snapshot: _OutboxSnapshot, name: str, page: str
    ) -> UncommittedRows:
        """Return the outbox rows to search together with a commit. Versions of spans that lose against other versions
        are hidden."""
        parts = snapshot.parts
        key = view.commit_id, parts
        masked = view.masked
        with self._lock:
            if self._masked_number != masked.number:  # cached rows may be of traces that were erased since
                self._kept, self._masked_number = {}, masked.number
            if (newer := self._kept.get(key)) is not None:
                return newer
        indexes = [part.index for part in parts if part.index is not None]
        claims = pa.concat_tables([index.rows for index in indexes])
        is_committed = pc.is_in(
            claims["trace_id"], pa.array(sorted(snapshot.committed | snapshot.large), pa.string())
        )
        committed = claims[ROW_ID.name].filter(is_committed).to_numpy()
        claims = claims.filter(pc.invert(is_committed)) if len(committed) else claims
        indexed = view.indexed_claims(claims)
        # Committed versions come first: among equal ones the first wins.
        every = pa.concat_tables([indexed.select(claims.schema.names).cast(claims.schema), claims])
        hidden = np.delete(every[ROW_ID.name].to_numpy(), latest_version_rows(every.select(SPANS.names)))
        sequences = set[int]().union(*(part.sizes for part in parts))
        run_names = named_runs(runs_of(sequences, limits.UNCOMMITTED_RUN_GAP_MAX, snapshot.apart))
        if any(part.is_sifted for part in parts):
            run_names = f"{_SIFTED}{run_names}"
        is_masked = pc.is_in(claims["trace_id"], pa.array(sorted(masked.trace_ids), pa.string()))
        committed = np.concatenate([committed, claims[ROW_ID.name].filter(is_masked).to_numpy()])
        # Later pages keep the rows of the first, even if some have left the outbox.
        page_token = page or self._signed(view.commit_id, run_names, name)
        newer = UncommittedRows(indexes, np.concatenate([hidden, committed]), page_token)
        with self._lock:
            self._kept[key] = newer
            while len(self._kept) > UNCOMMITTED_SEARCHES_KEPT:
                del self._kept[next(iter(self._kept))]
        return newer


def _as_they_wait(uncommitted: Uncommitted, covering: Coverage) -> _OutboxSnapshot:
    """Return a snapshot of those pending parts that a page token can name."""
    # List the outbox again: rows may have left it during indexing.
    waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
    apart = frozenset(waiting).difference(*(part.sizes for part in covering.parts))
    nameable = _within_runs(covering.parts, apart)
    more = covering.more or len(nameable) < len(covering.parts)
    is_all = len(waiting) <= limits.UNCOMMITTED_SEARCH_ROWS_MAX
    committed = _committed_traces(nameable, waiting) if is_all else frozenset[str]()
    return replace(_snapshot(replace(covering, parts=nameable, more=more), committed=committed), apart=apart)


def _within_runs(parts: tuple[HotPart, ...], apart: frozenset[int]) -> tuple[HotPart, ...]:
    """Return the newest parts whose rows a page token can name without the rows in `apart`."""
    for first in range(len(parts)):
        newest = parts[first:]
        sequences = set[int]().union(*(part.sizes for part in newest))
        if len(runs_of(sequences, limits.UNCOMMITTED_RUN_GAP_MAX, apart)) <= limits.UNCOMMITTED_RUNS_MAX:
            return newest
    return ()


def _committed_traces(parts: Iterable[HotPart], waiting: Iterable[int]) -> frozenset[str]:
    """Return the traces of these parts without pending rows. `waiting` must list all pending rows."""
    waits, came_by = frozenset(waiting), [each for part in parts for each in part.came_by]
    committed = {trace_id for trace_id, sequence in came_by if sequence not in waits}
    return frozenset(committed.difference(trace_id for trace_id, sequence in came_by if sequence in waits))


def _snapshot(covering: Coverage, *, committed: frozenset[str] = frozenset()) -> _OutboxSnapshot:
    """Return a snapshot of the parts that have spans, with a message about all that is missing."""
    parts, lacking, more = covering.parts, covering.lacking, covering.more
    messages = []
    if lacking or more:
        how_many = f"{lacking:,}" if not more else f"more than {lacking:,}" if lacking else "some"
        again = (
            "search again in a moment"
            if covering.at_work
            else "search again, or start it (`tracelake pipeline run`)"
        )
        messages.append(
            f"{how_many} groups of acknowledged requests wait for the pipeline and are not searchable yet: "
            f"{again}"
        )
    if problems := sum(part.problems for part in parts):
        messages.append(cannot_be_read(problems))
    if large := frozenset[str]().union(*(part.large for part in parts)):
        messages.append(are_large(len(large)))
    with_spans = tuple(part for part in parts if part.index is not None)
    return _OutboxSnapshot(with_spans, "; ".join(messages) or None, committed, large)
