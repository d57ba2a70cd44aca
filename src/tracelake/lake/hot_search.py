"""Searching what no commit holds yet: the spans of outbox rows, indexed in this process as they come.

A search makes what came since the last part was made findable, unless that is done ahead of it, as servers do while
searches come. Where the pipeline has not been at work for long, there is more than fits into memory or into the time of
a search: then results say so.
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
from tracelake.lake.context import NO_COMMIT, LakeContext
from tracelake.lake.hot_index import Coverage, HotIndex, HotPart
from tracelake.lake.hot_rows import are_large, cannot_be_read, latest_version_rows
from tracelake.otlp.schema import SPANS
from tracelake.search.analyzers import Analyzer, analyzer_named
from tracelake.search.prefilter import Prefilter
from tracelake.search.results import SearchResults
from tracelake.shards.rows import ROW_ID
from tracelake.tables.page_tokens import PageToken
from tracelake.tables.view import CommitView, UncommittedRows
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.uncommitted import Uncommitted, named_runs, read_runs, runs_of
from tracelake.versions.branch_store import MAIN

Search = Callable[[CommitView, UncommittedRows | None], SearchResults]


@dataclass(frozen=True, slots=True)
class BothTiersSearch:
    """A search, as far as it goes beyond one commit."""

    name: str
    """What tells it from others."""
    search: Search
    sieve_of: Callable[[Analyzer], Prefilter | None]
    """Returns what tells the spans that it may find; None where any may be."""
    traces_of: Callable[[CommitView, Collection[str]], Collection[str]]
    """Returns the traces, of some, of which it finds spans in a commit."""


_SIFTED: Final = "s_"
"""Before the runs of a page that has of their rows only what its query may find."""


@dataclass(frozen=True, slots=True)
class _OutboxSnapshot:
    """What a search has of the tracking store: parts of one analyzer, and what it does not have."""

    parts: tuple[HotPart, ...] = ()
    not_searched: str | None = None
    left: frozenset[str] = frozenset()
    """Traces of the parts of which no row is in the outbox any more: a commit that is chosen now has these spans."""
    large: frozenset[str] = frozenset()
    """Traces of which the parts lack some: which of their claims stand, the commit will tell."""
    apart: frozenset[int] = frozenset()
    """Rows that wait and are not searched: no page has them."""
    held: frozenset[str] = frozenset()
    """Traces of which spans wait that the search would not find by themselves."""
    with_all_of: Callable[[Collection[str]], _OutboxSnapshot] | None = None
    """Returns the same with all that waits of some of these."""


class HotSearch:
    """The uncommitted spans of a lake, as searches find them. Threads may share it."""

    def __init__(self, opened: LakeContext, store: Callable[[], TrackingStore | None]) -> None:
        self._opened = opened
        self._store = store
        self._lock = Lock()
        self._page_lock = Lock()
        """Of pages that are put together again, one at a time: nobody who searches waits for them."""
        self._parts = HotIndex(opened)
        self._searched_s = -math.inf
        self._kept: dict[tuple[str | None, tuple[HotPart, ...]], UncommittedRows] = {}

    def search(self, token: PageToken | None, asked: BothTiersSearch) -> SearchResults:
        """Search the head of `main` and what is newer, or for a page the commit and the rows of the first page."""
        at = MAIN if token is None else token.commit or NO_COMMIT
        self._searched_s = time.monotonic()
        for _ in range(limits.UNCOMMITTED_SEARCH_TRIES_MAX):
            if (results := self._once(at, token, asked)) is not None:
                return results
        results = self._opened.read(at, lambda view: asked.search(view, None))
        results.not_searched = "the index is being built with other settings: search again"
        return results

    def index_ahead(self) -> bool:
        """Make some of what came findable, and open the newest commit, so that the next search need not.

        Only while searches come. Returns whether there is more to do now.

        Raises:
            TracelakeError: the tracking store or the index does not let itself be read, as searches say, too.
        """
        store = self._store()
        if store is None:
            return False
        if time.monotonic() - self._searched_s > limits.UNCOMMITTED_AHEAD_FOR_S:
            self._parts.look(Uncommitted(store))  # who searches next then knows
            return False
        is_more = self._parts.ahead(Uncommitted(store), self._opened.read(MAIN, self._analyzer))
        # After it: where a part of the commit cannot be opened, what came is made findable all the same.
        self._opened.read(MAIN, CommitView.open_index)
        return is_more

    def _once(self, at: str, token: PageToken | None, asked: BothTiersSearch) -> SearchResults | None:
        """Search once, None where the index has got another analyzer meanwhile."""
        analyzer = self._opened.read(at, self._analyzer)
        # Before the commit is chosen: what leaves the store in between is in that commit.
        looked = self._take(token, analyzer, asked.sieve_of(analyzer))

        def searched(view: CommitView) -> SearchResults | None:
            taken = looked
            if taken.with_all_of is not None and (doubtful := asked.traces_of(view, taken.held)):
                # What waits of them may replace what is found.
                taken = taken.with_all_of(doubtful)
            if taken.parts and self._analyzer(view) is not analyzer:
                return None
            page = "" if token is None else token.newer
            newer = self._beside(view, taken, asked.name, page) if taken.parts else None
            results = asked.search(view, newer)
            said = [text for text in (taken.not_searched, results.not_searched) if text]
            results.not_searched = "; ".join(said) or None
            return results

        return self._opened.read(at, searched)

    def _analyzer(self, view: CommitView) -> Analyzer:
        return view.analyzer(analyzer_named(self._opened.config.text))

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
            return _OutboxSnapshot((), f"what no commit holds yet, because it cannot be read: {error}")

    def _newest(
        self, uncommitted: Uncommitted, analyzer: Analyzer, sieve: Prefilter | None
    ) -> _OutboxSnapshot:
        """Return what waits in the outbox, as far as bytes and time go."""
        covering = self._parts.newest(uncommitted, analyzer)
        if sieve is None or not covering.left:
            return _as_they_wait(uncommitted, covering)

        def with_all_of(traces: Collection[str]) -> _OutboxSnapshot:
            most_bytes = limits.UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES
            sifted = self._parts.sifted(uncommitted, covering, analyzer, sieve, traces, most_bytes)
            return replace(_as_they_wait(uncommitted, sifted), held=sifted.held)

        return replace(with_all_of(()), with_all_of=with_all_of)

    def _of_page(
        self, uncommitted: Uncommitted, token: PageToken, analyzer: Analyzer, sieve: Prefilter | None
    ) -> _OutboxSnapshot:
        """Return what the first page of a search had, put together again where nobody has kept it."""
        run_names, _, _ = token.newer.rpartition("_")
        is_sifted = run_names.startswith(_SIFTED)
        runs = read_runs(run_names.removeprefix(_SIFTED))
        # Before anything is done for it: to put a page together may take seconds.
        if runs is None or token.newer != self._signed(token.commit, run_names, token.search):
            raise QueryError(f"{str(token)!r} is no page; take `next_page` of a result as it is.")
        if (kept := self._kept_of(token)) is not None:
            return _taken(Coverage(kept))
        with self._page_lock:
            if (kept := self._kept_of(token)) is not None:  # by who was here before
                return _taken(Coverage(kept))
            wanted = uncommitted.within(runs, limits.UNCOMMITTED_SEARCH_ROWS_MAX)
            if not is_sifted or sieve is None:
                return _taken(self._parts.of(uncommitted, wanted, analyzer))
            covering = self._parts.texts_of(uncommitted, wanted)

            def with_all_of(traces: Collection[str]) -> _OutboxSnapshot:
                # The page is of the same query, and so is the sieve.
                sifted = self._parts.sifted(uncommitted, covering, analyzer, sieve, traces)
                return replace(_taken(sifted), held=sifted.held)

            return replace(with_all_of(()), with_all_of=with_all_of)

    def _signed(self, commit: str | None, run_names: str, name: str) -> str:
        """Return the name of runs with a signature: of these, beside this commit, a search of this lake had a page.

        Where a search had of them only what it may find, it is that search: what others had is not kept for it.
        """
        store = self._store()
        key = "" if store is None else store.page_key
        of_search = f" {name}" if run_names.startswith(_SIFTED) else ""
        signature = hmac.digest(key.encode(), f"{commit} {run_names}{of_search}".encode(), "sha256").hex()
        return f"{run_names}_{signature[:32]}"

    def _kept_of(self, token: PageToken) -> tuple[HotPart, ...] | None:
        """Return the parts of the first page, where somebody has kept them."""
        with self._lock:
            for (commit, parts), newer in self._kept.items():
                is_it = (commit, newer.name) == (token.commit, token.newer)
                if is_it and all(part.is_there for part in parts):
                    return parts
        return None

    def _beside(self, view: CommitView, taken: _OutboxSnapshot, name: str, page: str) -> UncommittedRows:
        """Return what stands beside a commit, for a page by its name: claims that lose against others are hidden.

        So are those that have left the store: the commit has taken account of them, and is not asked; and those of
        traces that are here in part, for what lacks may stand instead of them.
        """
        parts = taken.parts
        key = view.commit_id, parts
        with self._lock:
            if (newer := self._kept.get(key)) is not None:
                return newer
        indexes = [part.index for part in parts if part.index is not None]
        claims = pa.concat_tables([index.rows for index in indexes])
        has_left = pc.is_in(claims["trace_id"], pa.array(sorted(taken.left | taken.large), pa.string()))
        left = claims[ROW_ID.name].filter(has_left).to_numpy()
        claims = claims.filter(pc.invert(has_left)) if len(left) else claims
        indexed = view.indexed_claims(claims)
        # Those of the commit come first: of equal claims the first stands.
        every = pa.concat_tables([indexed.select(claims.schema.names).cast(claims.schema), claims])
        hidden = np.delete(every[ROW_ID.name].to_numpy(), latest_version_rows(every.select(SPANS.names)))
        sequences = set[int]().union(*(part.sizes for part in parts))
        run_names = named_runs(runs_of(sequences, limits.UNCOMMITTED_RUN_GAP_MAX, taken.apart))
        if any(part.is_sifted for part in parts):
            run_names = f"{_SIFTED}{run_names}"
        # Pages go on with the rows of the first, also where some of them have left.
        told = page or self._signed(view.commit_id, run_names, name)
        newer = UncommittedRows(indexes, np.concatenate([hidden, left]), told)
        with self._lock:
            self._kept[key] = newer
            while len(self._kept) > limits.UNCOMMITTED_SEARCHES_KEPT:
                del self._kept[next(iter(self._kept))]
        return newer


def _as_they_wait(uncommitted: Uncommitted, covering: Coverage) -> _OutboxSnapshot:
    """Return parts of what waits, as far as a page can name them."""
    # Looked at anew: while some were indexed, others have left.
    waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
    apart = frozenset(waiting).difference(*(part.sizes for part in covering.parts))
    nameable = _within_runs(covering.parts, apart)
    more = covering.more or len(nameable) < len(covering.parts)
    is_all = len(waiting) <= limits.UNCOMMITTED_SEARCH_ROWS_MAX
    left = _left(nameable, waiting) if is_all else frozenset[str]()
    return replace(_taken(replace(covering, parts=nameable, more=more), left=left), apart=apart)


def _within_runs(parts: tuple[HotPart, ...], apart: frozenset[int]) -> tuple[HotPart, ...]:
    """Return the newest parts whose rows a page can name, without those that are apart."""
    for first in range(len(parts)):
        rest = parts[first:]
        sequences = set[int]().union(*(part.sizes for part in rest))
        if len(runs_of(sequences, limits.UNCOMMITTED_RUN_GAP_MAX, apart)) <= limits.UNCOMMITTED_RUNS_MAX:
            return rest
    return ()


def _left(parts: Iterable[HotPart], waiting: Iterable[int]) -> frozenset[str]:
    """Return the traces of parts of which no outbox row waits; all that wait are given."""
    waits, came_by = frozenset(waiting), [each for part in parts for each in part.came_by]
    left = {trace_id for trace_id, sequence in came_by if sequence not in waits}
    return frozenset(left.difference(trace_id for trace_id, sequence in came_by if sequence in waits))


def _taken(covering: Coverage, *, left: frozenset[str] = frozenset()) -> _OutboxSnapshot:
    """Return parts that have spans, and say what else there is."""
    parts, lacking, more = covering.parts, covering.lacking, covering.more
    said = []
    if lacking or more:
        how_many = f"{lacking:,}" if not more else f"more than {lacking:,}" if lacking else "some"
        again = (
            "search again in a moment"
            if covering.at_work
            else "search again, or start it (`tracelake pipeline run`)"
        )
        said.append(
            f"{how_many} groups of requests that were acknowledged wait for the pipeline, and are not searched yet: "
            f"{again}"
        )
    if problems := sum(part.problems for part in parts):
        said.append(cannot_be_read(problems))
    if large := frozenset[str]().union(*(part.large for part in parts)):
        said.append(are_large(len(large)))
    with_spans = tuple(part for part in parts if part.index is not None)
    return _OutboxSnapshot(with_spans, "; ".join(said) or None, left, large)
