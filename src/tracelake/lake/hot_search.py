"""Searching what no commit holds yet: the spans of outbox rows, indexed in this process as they come.

Each row of the outbox never changes, so neither do the parts that are made of some: a search makes a part of what came
since the search before it, and parts of alike sizes become one. The newest come first. Where the pipeline has not
been at work for long, there is more than fits into memory or into the time of a search: then results say so.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits, tiers
from tracelake._errors import DamageError, InputError, QueryError, StorageError
from tracelake.lake.claimed import standing_places
from tracelake.lake.opened import NO_COMMIT, OpenLake
from tracelake.otlp.by_trace import rows_of
from tracelake.otlp.schema import SPANS
from tracelake.search.analyzers import Analyzer, named
from tracelake.search.results import SearchResults
from tracelake.search.unpublished import FIRST_UNPUBLISHED, UnpublishedPart, write_unpublished
from tracelake.shards.rows import ROW_ID
from tracelake.tables.commit_view import CommitView
from tracelake.tables.newer import NewerRows
from tracelake.tables.result_pages import PageToken
from tracelake.tracking.store import TrackingStore, unpacked
from tracelake.tracking.uncommitted import StoredPart, Uncommitted, named_runs, read_runs, runs_of
from tracelake.versions.branches import MAIN

Search = Callable[[CommitView, NewerRows | None], SearchResults]
_NO_ROWS: Final = SPANS.append(ROW_ID).empty_table()


@dataclass(frozen=True, eq=False)
class _HotPart:
    """Some outbox rows, indexed."""

    index: UnpublishedPart | None
    """None where no span could be read."""
    analyzer: Analyzer
    sizes: Mapping[int, int]
    """The outbox rows that it was made of, with the bytes of their spans."""
    came_by: frozenset[tuple[str, int]]
    """Its traces, each with the outbox rows that brought spans of it."""
    problems: int
    """How many parts of traces could not be read."""

    @property
    def size_bytes(self) -> int:
        """The bytes of its spans as OTLP."""
        return sum(self.sizes.values())

    @property
    def spans(self) -> int:
        """How many claims about spans it has."""
        return 0 if self.index is None else len(self.index.rows)

    @property
    def is_there(self) -> bool:
        """Whether its files are: another process deletes those that are old, as if they were of a killed one."""
        return self.index is None or self.index.directory.is_dir()


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a search has of the tracking store: parts of one analyzer, and what it does not have."""

    parts: tuple[_HotPart, ...] = ()
    not_searched: str | None = None
    left: frozenset[str] = frozenset()
    """Traces of the parts of which no row is in the outbox any more: a commit that is chosen now has these spans."""


class HotSearch:
    """The uncommitted spans of a lake, as searches find them. Threads may share it."""

    def __init__(self, opened: OpenLake, store: Callable[[], TrackingStore | None]) -> None:
        self._opened = opened
        self._store = store
        self._lock = Lock()
        self._page_lock = Lock()
        """Of pages that are put together again, one at a time: nobody who searches waits for them."""
        self._parts: tuple[_HotPart, ...] = ()
        self._kept: dict[tuple[str | None, tuple[_HotPart, ...]], NewerRows] = {}
        self._row_ids = count(FIRST_UNPUBLISHED)

    def search(self, token: PageToken | None, search: Search) -> SearchResults:
        """Search the head of `main` and what is newer, or for a page the commit and the rows of the first page."""
        at = MAIN if token is None else token.commit or NO_COMMIT
        for _ in range(limits.UNCOMMITTED_SEARCH_TRIES_MAX):
            if (results := self._once(at, token, search)) is not None:
                return results
        results = self._opened.read(at, lambda view: search(view, None))
        results.not_searched = "the index is being built with other settings: search again"
        return results

    def _once(self, at: str, token: PageToken | None, search: Search) -> SearchResults | None:
        """Search once, None where the index has got another analyzer meanwhile."""
        analyzer = self._opened.read(at, self._analyzer)
        # Before the commit is chosen: what leaves the store in between is in that commit.
        taken = self._take(token, analyzer)

        def searched(view: CommitView) -> SearchResults | None:
            if not taken.parts:
                return search(view, None)
            return search(view, self._beside(view, taken)) if self._analyzer(view) is analyzer else None

        results = self._opened.read(at, searched)
        if results is not None:
            said = [text for text in (taken.not_searched, results.not_searched) if text]
            results.not_searched = "; ".join(said) or None
        return results

    def _analyzer(self, view: CommitView) -> Analyzer:
        return view.analyzer(named(self._opened.config.text))

    def _take(self, token: PageToken | None, analyzer: Analyzer) -> _Taken:
        if token is not None and not token.newer:
            return _Taken()
        try:
            store = self._store()
            if store is None:
                return _Taken()
            deadline_s = time.monotonic() + limits.UNCOMMITTED_SEARCH_BUILD_S
            if token is None:
                return self._newest(Uncommitted(store), analyzer, deadline_s)
            return self._of_page(Uncommitted(store), token, analyzer)
        except (StorageError, OSError) as error:
            return _Taken((), f"what no commit holds yet, because it cannot be read: {error}")

    def _newest(self, uncommitted: Uncommitted, analyzer: Analyzer, deadline_s: float) -> _Taken:
        """Return what waits in the outbox, as far as bytes and time go."""
        with self._lock:
            waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
            wanted = waiting[: limits.UNCOMMITTED_SEARCH_ROWS_MAX]
            self._parts, lacking = self._covering(uncommitted, wanted, analyzer, self._parts, deadline_s)
            parts = self._parts
        nameable, more = _within_runs(parts), len(waiting) > len(wanted)
        # Looked at anew: while some were indexed, others have left.
        waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
        is_all = len(waiting) <= limits.UNCOMMITTED_SEARCH_ROWS_MAX
        left = _left(nameable, waiting) if is_all else frozenset[str]()
        return _taken(nameable, lacking, more=more or len(nameable) < len(parts), left=left)

    def _of_page(self, uncommitted: Uncommitted, token: PageToken, analyzer: Analyzer) -> _Taken:
        """Return what the first page of a search had, put together again where nobody has kept it."""
        run_names, _, _ = token.newer.rpartition("_")
        runs = read_runs(run_names)
        # Before anything is done for it: to put a page together may take seconds.
        if runs is None or token.newer != self._signed(token.commit, run_names):
            raise QueryError(f"{str(token)!r} is no page; take `next_page` of a result as it is.")
        if (kept := self._kept_of(token)) is not None:
            return _taken(kept)
        with self._page_lock:
            if (kept := self._kept_of(token)) is not None:  # by who was here before
                return _taken(kept)
            wanted = uncommitted.within(runs, limits.UNCOMMITTED_SEARCH_ROWS_MAX)
            parts, lacking = self._covering(uncommitted, wanted, analyzer, (), None)
        return _taken(parts, lacking)

    def _signed(self, commit: str | None, run_names: str) -> str:
        """Return the name of runs with a signature: of these, beside this commit, a search of this lake had a page."""
        store = self._store()
        key = "" if store is None else store.page_key
        signature = hmac.digest(key.encode(), f"{commit} {run_names}".encode(), "sha256").hex()
        return f"{run_names}_{signature[:32]}"

    def _kept_of(self, token: PageToken) -> tuple[_HotPart, ...] | None:
        """Return the parts of the first page, where somebody has kept them."""
        with self._lock:
            for (commit, parts), newer in self._kept.items():
                is_it = (commit, newer.name) == (token.commit, token.newer)
                if is_it and all(part.is_there for part in parts):
                    return parts
        return None

    def _covering(
        self,
        uncommitted: Uncommitted,
        wanted: Sequence[int],
        analyzer: Analyzer,
        before: Sequence[_HotPart],
        deadline_s: float | None,
    ) -> tuple[tuple[_HotPart, ...], int]:
        """Return parts with the spans of outbox rows, and how many rows lack; the newest are the first in `wanted`.

        What came since is in them by one step at least, whatever the time.
        """
        sizes = _fitting(
            uncommitted, wanted, {each: size for part in before for each, size in part.sizes.items()}
        )
        parts = _useful(before, sizes.keys(), analyzer)
        there = set[int]().union(*(part.sizes for part in parts))
        lacking = len(wanted) - len(sizes)
        for number, step in enumerate(
            _steps({each: size for each, size in sizes.items() if each not in there})
        ):
            if number > 0 and deadline_s is not None and time.monotonic() > deadline_s:
                lacking += len(step)
            else:
                parts.append(self._part(uncommitted, step, analyzer))
        parts.sort(key=lambda part: max(part.sizes))
        return tuple(self._merged(parts)), lacking

    def _part(self, uncommitted: Uncommitted, sizes: Mapping[int, int], analyzer: Analyzer) -> _HotPart:
        stored = uncommitted.parts(sizes)
        rows, problems = _decoded(stored)
        ids = [next(self._row_ids) for _ in range(len(rows))]
        rows = rows.append_column(ROW_ID, pa.array(ids, ROW_ID.type))
        came_by = frozenset((part.trace_id, part.sequence) for part in stored)
        return _HotPart(self._indexed(rows, analyzer), analyzer, sizes, came_by, problems)

    def _indexed(self, rows: pa.Table, analyzer: Analyzer) -> UnpublishedPart | None:
        cache = self._opened.stores.cache / "search"
        return write_unpublished(rows, analyzer, cache) if len(rows) else None

    def _merged(self, parts: list[_HotPart]) -> list[_HotPart]:
        """Return parts of which small ones of alike sizes have become one, the oldest first."""
        while True:
            large = [
                at for at, part in enumerate(parts) if part.size_bytes >= limits.UNCOMMITTED_SEARCH_STEP_BYTES
            ]
            first = large[-1] + 1 if large else 0
            run = tiers.due([part.spans for part in parts[first:]], limits.UNCOMMITTED_SEARCH_PARTS_MERGED)
            if not run:
                return parts
            some = parts[first + run.start : first + run.stop]
            rows = [part.index.rows for part in some if part.index is not None]
            merged = _HotPart(
                self._indexed(pa.concat_tables([_NO_ROWS, *rows]), some[0].analyzer),
                some[0].analyzer,
                {sequence: size for part in some for sequence, size in part.sizes.items()},
                frozenset[tuple[str, int]]().union(*(part.came_by for part in some)),
                sum(part.problems for part in some),
            )
            parts = [*parts[: first + run.start], merged, *parts[first + run.stop :]]

    def _beside(self, view: CommitView, taken: _Taken) -> NewerRows:
        """Return what stands beside a commit: claims that lose against others are hidden.

        So are those that have left the store: the commit has taken account of them, and is not asked.
        """
        parts = taken.parts
        key = view.commit_id, parts
        with self._lock:
            if (newer := self._kept.get(key)) is not None:
                return newer
        indexes = [part.index for part in parts if part.index is not None]
        claims = pa.concat_tables([index.rows for index in indexes])
        has_left = pc.is_in(claims["trace_id"], pa.array(sorted(taken.left), pa.string()))
        left = claims[ROW_ID.name].filter(has_left).to_numpy()
        claims = claims.filter(pc.invert(has_left)) if len(left) else claims
        indexed = view.indexed_rows([str(trace_id) for trace_id in claims["trace_id"].unique().to_pylist()])
        # Those of the commit come first: of equal claims the first stands.
        every = pa.concat_tables([indexed.select(claims.schema.names).cast(claims.schema), claims])
        hidden = np.delete(every[ROW_ID.name].to_numpy(), standing_places(every.select(SPANS.names)))
        sequences = set[int]().union(*(part.sizes for part in parts))
        run_names = named_runs(runs_of(sequences, limits.UNCOMMITTED_RUN_GAP_MAX))
        newer = NewerRows(indexes, np.concatenate([hidden, left]), self._signed(view.commit_id, run_names))
        with self._lock:
            self._kept[key] = newer
            while len(self._kept) > limits.UNCOMMITTED_SEARCHES_KEPT:
                del self._kept[next(iter(self._kept))]
        return newer


def _fitting(uncommitted: Uncommitted, wanted: Sequence[int], known: Mapping[int, int]) -> dict[int, int]:
    """Return the rows that fit into memory with their bytes, as they are wanted, and one at least."""
    fitting: dict[int, int] = {}
    total = 0
    for start in range(0, len(wanted), limits.TRACKING_IDS_AT_ONCE):
        some = wanted[start : start + limits.TRACKING_IDS_AT_ONCE]
        sizes = uncommitted.sizes([sequence for sequence in some if sequence not in known])
        for sequence in some:
            size = known.get(sequence, sizes.get(sequence, 0))
            if fitting and total + size > limits.UNCOMMITTED_SEARCH_MAX_BYTES:
                return fitting
            fitting[sequence] = size
            total += size
    return fitting


def _useful(parts: Iterable[_HotPart], wanted: Collection[int], analyzer: Analyzer) -> list[_HotPart]:
    """Return the parts that are there and of which most is wanted: of others what is wanted is indexed anew."""
    return [
        part
        for part in parts
        if part.analyzer is analyzer
        and 2 * sum(each in wanted for each in part.sizes) >= len(part.sizes)
        and part.is_there
    ]


def _within_runs(parts: tuple[_HotPart, ...]) -> tuple[_HotPart, ...]:
    """Return the newest parts whose rows a page can name."""
    for first in range(len(parts)):
        rest = parts[first:]
        sequences = set[int]().union(*(part.sizes for part in rest))
        if len(runs_of(sequences, limits.UNCOMMITTED_RUN_GAP_MAX)) <= limits.UNCOMMITTED_RUNS_MAX:
            return rest
    return ()


def _steps(sizes: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Cut rows into steps by their bytes; one that is larger is a step by itself."""
    step: dict[int, int] = {}
    for sequence, size in sizes.items():
        if step and sum(step.values()) + size > limits.UNCOMMITTED_SEARCH_STEP_BYTES:
            yield step
            step = {}
        step[sequence] = size
    if step:
        yield step


def _decoded(parts: Sequence[StoredPart]) -> tuple[pa.Table, int]:
    """Return the spans of parts, and how many parts cannot be read: these hide no others."""
    payloads, problems = [], 0
    for part in parts:
        try:
            payloads.append(unpacked(part.trace_id, part.payload, part.size_bytes))
        except DamageError:
            problems += 1
    try:
        batches = [rows_of(b"".join(payloads)).take()]
    except InputError:
        batches = []
        for payload in payloads:
            try:
                batches.append(rows_of(payload).take())
            except InputError:
                problems += 1
    return pa.Table.from_batches(batches, batches[0].schema if batches else SPANS), problems


def _left(parts: Iterable[_HotPart], waiting: Iterable[int]) -> frozenset[str]:
    """Return the traces of parts of which no outbox row waits; all that wait are given."""
    waits, came_by = frozenset(waiting), [each for part in parts for each in part.came_by]
    left = {trace_id for trace_id, sequence in came_by if sequence not in waits}
    return frozenset(left.difference(trace_id for trace_id, sequence in came_by if sequence in waits))


def _taken(
    parts: tuple[_HotPart, ...],
    lacking: int = 0,
    *,
    more: bool = False,
    left: frozenset[str] = frozenset(),
) -> _Taken:
    """Return parts that have spans, and say what else there is."""
    said = []
    if lacking or more:
        how_many = f"{lacking:,}" if not more else f"more than {lacking:,}" if lacking else "some"
        said.append(
            f"{how_many} groups of requests that were acknowledged wait for the pipeline, and are not searched yet: "
            "search again, or start it (`tracelake pipeline run`)"
        )
    if problems := sum(part.problems for part in parts):
        said.append(
            f"the spans of {problems:,} traces in the tracking store cannot be read: run `tracelake verify`"
        )
    with_spans = tuple(part for part in parts if part.index is not None)
    return _Taken(with_spans, "; ".join(said) or None, left)
