"""Index parts that a process builds from outbox rows, for searches of uncommitted spans.

A row of the outbox never changes, so neither does an index part built from rows. New rows become a new part, and parts
of similar sizes are merged. One thread builds parts at a time; others wait for a limited time.

Indexing rows that the pipeline will index soon takes time from the pipeline and from searches. If many rows are pending
and a pipeline is running, the rows are therefore left to the pipeline. Reading a span costs a tenth of indexing it, so
a search scans the texts of these rows (`TextScan`) and indexes only the few spans that pass its prefilter
(`search/prefilter.py`). Such spans are found immediately, even if the pipeline is busy.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from threading import Lock
from typing import Final

import pyarrow as pa

from tracelake import batching, limits
from tracelake.batching import batches
from tracelake.context import LakeContext
from tracelake.hot.rows import decoded
from tracelake.limits.input import MIB
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.otlp.schema import SPANS
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import FIRST_UNPUBLISHED, UnpublishedPart, write_unpublished
from tracelake.search.documents import written
from tracelake.search.prefilter import Prefilter
from tracelake.search.tokenization import normalized
from tracelake.shards.rows import ROW_ID
from tracelake.tracking.outbox import ListedPart, StoredPart, Uncommitted, listed, runs_of

UNCOMMITTED_SEARCH_MAX_BYTES: Final = 64 * MIB
"""OTLP of uncommitted spans that searches cover, the newest."""
UNCOMMITTED_SEARCH_LEFT_BYTES: Final = 4 * MIB
"""OTLP of uncommitted spans that searches index while a pipeline is active."""
UNCOMMITTED_AT_WORK_S: Final = 15.0
"""Time since one of the oldest rows left the outbox, in which a pipeline counts as active."""
_UNCOMMITTED_OLDEST_ROWS: Final = 64
"""Oldest outbox rows, one of which must leave to show an active pipeline."""
UNCOMMITTED_SEARCH_BUILD_S: Final = 1.0
"""Time that a search spends on indexing new spans."""
UNCOMMITTED_SEARCH_WAIT_S: Final = 1.0
"""Wait of a search for others that index new spans."""
UNCOMMITTED_SEARCH_PARTS_MERGED: Final = 24
"""Index parts of similar size with such spans, and twice as many if only searches build them."""
UNCOMMITTED_AHEAD_STEP_BYTES: Final = MIB
"""Spans that one step ahead of searches covers."""


@dataclass(frozen=True, slots=True)
class HotText:
    """The lowercase text of one trace's spans in some outbox rows."""

    trace_id: str
    parts: tuple[ListedPart, ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a prefilter scan."""

    sizes: Mapping[int, int]
    """Scanned rows, with the bytes of all their spans."""
    parts: Sequence[ListedPart]
    problems: int
    """Number of unreadable trace parts."""
    large: frozenset[str]
    """Traces scanned only in part, because some of their rows did not fit into memory."""
    without_match: frozenset[str]
    """Traces without a match."""


@dataclass(frozen=True, slots=True)
class TextScan:
    """Texts of outbox rows, which a search scans with its prefilter."""

    texts: tuple[HotText, ...] = ()
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Outbox rows, with the bytes of their spans."""
    unread: tuple[ListedPart, ...] = ()
    """Unreadable trace parts."""
    large: tuple[ListedPart, ...] = ()
    """Trace parts whose rows take too much memory."""

    def newer(
        self, uncommitted: Uncommitted, wanted: Mapping[int, int], until_s: float, step_bytes: int
    ) -> TextScan:
        """Return the texts of the `wanted` rows, given the newest first.

        Missing texts are read until the deadline `until_s`, but at least one step of them.
        """
        if not wanted:
            return TextScan()
        sizes = {each: size for each, size in self.sizes.items() if each in wanted}
        texts = [text for text in self.texts if any(part[1] in sizes for part in text.parts)]
        unread = [part for part in self.unread if part[1] in sizes]
        large = [part for part in self.large if part[1] in sizes]
        new = [each for each in wanted if each not in sizes]
        for number, step in enumerate(batches(new, wanted.__getitem__, step_bytes)):
            if number > 0 and time.monotonic() > until_s:
                break
            read = _read(uncommitted, step)
            texts += read.texts
            unread += read.unread
            large += read.large
            sizes.update((each, wanted[each]) for each in step)
        return TextScan(tuple(texts), sizes, tuple(unread), tuple(large))

    def passing(
        self, rows: Collection[int], sieve: Prefilter, indexed: Collection[str], most_bytes: float
    ) -> ScanResult:
        """Scan these rows, the newest first, until matching parts reach `most_bytes`; at least one row is scanned.

        A row with more matching bytes than one search may index is skipped. If any span of a trace matches, all of
        the trace passes. Traces in `indexed`, which have other rows in the index, pass too: the winning version of a
        span depends on all.
        """
        passing = {text.trace_id for text in self.texts if sieve(text.text)}.union(indexed)
        of_rows: dict[int, list[ListedPart]] = defaultdict(list)
        for text in self.texts:
            if text.trace_id in passing:
                for part in text.parts:
                    of_rows[part[1]].append(part)
        sizes, parts, room = dict[int, int](), list[ListedPart](), most_bytes
        for row in sorted(self.sizes.keys() & rows, reverse=True):
            size_bytes = sum(part[2] for part in of_rows[row])
            if size_bytes > max(most_bytes, limits.UNCOMMITTED_SEARCH_STEP_BYTES):
                continue
            room -= size_bytes
            if sizes and room < 0:
                break
            sizes[row] = self.sizes[row]
            parts += of_rows[row]
        without_match = frozenset(text.trace_id for text in self.texts) - passing
        return ScanResult(
            sizes, parts, len(self.unread), frozenset(part[0] for part in self.large), without_match
        )


def _read(uncommitted: Uncommitted, rows: Iterable[int]) -> TextScan:
    """Return the texts of rows, up to the memory budget, without their sizes."""
    stored = uncommitted.parts(list(rows))
    read = decoded(stored, limits.UNCOMMITTED_ROWS_MAX_BYTES)
    unread, large = (tuple(listed(part) for part in some) for some in (read.unread, read.large))
    texts: dict[str, list[str]] = defaultdict(list)
    for batch in read.rows.to_batches():
        for trace_id, text in zip(batch["trace_id"].to_pylist(), written(batch).to_pylist(), strict=True):
            texts[str(trace_id)].append(str(text))
    parts: dict[str, list[ListedPart]] = defaultdict(list)
    for part in map(listed, stored):
        if part not in (*unread, *large):
            parts[part[0]].append(part)
    of_traces = [
        HotText(trace_id, tuple(parts[trace_id]), _distinct_lines(_in_each_form("\n".join(some))).encode())
        for trace_id, some in texts.items()
    ]
    return TextScan(tuple(of_traces), unread=unread, large=large)


def _in_each_form(text: str) -> str:
    """Return a text in lower case, both as written and in the Unicode normal form of the index's words."""
    form = normalized(text)
    return text.lower() if form == text else f"{text}\n{form}".lower()


def _distinct_lines(text: str) -> str:
    """Remove repeated lines. A match lies within one line, and all spans of a resource repeat its lines."""
    return "\n".join(dict.fromkeys(text.split("\n")))


# `empty_table` would import pandas, if it is installed.
_NO_ROWS: Final = pa.Table.from_batches([], SPANS.append(ROW_ID))


@dataclass(frozen=True, eq=False)
class HotPart:
    """An index part built from outbox rows."""

    index: UnpublishedPart | None
    """None if no span was readable."""
    analyzer: Analyzer
    sizes: Mapping[int, int]
    """Its outbox rows, with the bytes of their spans."""
    came_by: frozenset[tuple[str, int]]
    """Its traces, each paired with the outbox rows that brought its spans."""
    problems: int
    """Number of unreadable trace parts."""
    large: frozenset[str]
    """Traces that are incomplete because some of their rows did not fit into memory."""
    prices: PriceTable = SHIPPED
    is_sifted: bool = False
    """Whether it was filtered for one query and lacks the other spans of its rows."""

    @property
    def size_bytes(self) -> int:
        """The bytes of its spans as OTLP."""
        return sum(self.sizes.values())

    @property
    def spans(self) -> int:
        """Number of span versions in it."""
        return 0 if self.index is None else len(self.index.rows)

    @property
    def is_there(self) -> bool:
        """Whether its files exist. Another process may delete old ones as leftovers of a killed process."""
        return self.index is None or self.index.directory.is_dir()


@dataclass(frozen=True, slots=True)
class Coverage:
    """Index parts of outbox rows, the oldest first, and the rows that they do not cover."""

    parts: tuple[HotPart, ...]
    lacking: int = 0
    """Number of wanted rows that are not covered."""
    more: bool = False
    """Whether the outbox has more rows than were wanted."""
    later: int = 0
    """Number of rows that are missing only because the time was over."""
    at_work: bool = False
    """Whether rows are missing because a running pipeline will index them soon."""
    unindexed: Mapping[int, int] = field(default_factory=dict)
    """Rows left to the pipeline, the newest first, with the bytes of their spans."""
    texts: TextScan = field(default_factory=TextScan)
    """Texts of these rows, as far as they were read."""
    without_match: frozenset[str] = frozenset()
    """Scanned traces without a match."""


class HotIndex:
    """Index parts of outbox rows in one process. Threads may share them."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._making = Lock()
        self._parts: tuple[HotPart, ...] = ()
        self._texts = TextScan()
        self._searched_s = -math.inf
        """Time when a search last built parts."""
        self._oldest: frozenset[int] = frozenset()
        self._left_s = -math.inf
        """Time when one of the oldest rows was last seen to have left the outbox."""
        self._row_ids = count(FIRST_UNPUBLISHED)

    def __len__(self) -> int:
        """Return the number of index parts."""
        return len(self._parts)

    def look(self, uncommitted: Uncommitted) -> bool:
        """Poll the outbox, and return whether a pipeline seems to be running because rows have left it."""
        return self.record(uncommitted.oldest(_UNCOMMITTED_OLDEST_ROWS))

    def record(self, sequences: Iterable[int]) -> bool:
        """Record the oldest rows of the outbox, and return the same as `look`."""
        oldest = frozenset(sequences)
        if self._oldest - oldest:
            self._left_s = time.monotonic()
        self._oldest = oldest
        return self._is_at_work()

    def _is_at_work(self) -> bool:
        """Return whether a pipeline was running at the last poll."""
        return time.monotonic() - self._left_s < UNCOMMITTED_AT_WORK_S

    def sifted(
        self,
        uncommitted: Uncommitted,
        covering: Coverage,
        analyzer: Analyzer,
        sieve: Prefilter,
        indexed: Collection[str] = (),
        most_bytes: float = math.inf,
    ) -> Coverage:
        """Extend a coverage by a part with the matching spans of rows that were left to the pipeline, and with all
        spans of `indexed` traces."""
        indexed = {trace_id for part in covering.parts for trace_id, _ in part.came_by}.union(indexed)
        rows = _nameable(covering.texts.sizes.keys() & covering.unindexed)
        passed = covering.texts.passing(rows, sieve, indexed, most_bytes)
        # Sort by row as in all parts, so that the order of equal hits is the same on each page.
        stored = sorted(uncommitted.of_traces(passed.parts), key=lambda part: (part.sequence, part.trace_id))
        # The budget is per search, because each one builds such a part.
        most_bytes = limits.UNCOMMITTED_PART_ROWS_MAX_BYTES
        prices = self._opened.prices.table()
        part = self._part(stored, passed.sizes, analyzer, prices, covering.parts, most_bytes)
        part = replace(
            part, problems=part.problems + passed.problems, large=part.large | passed.large, is_sifted=True
        )
        return replace(
            covering,
            parts=_in_order([*covering.parts, part]) if part.sizes else covering.parts,
            lacking=covering.lacking - len(part.sizes),
            without_match=passed.without_match,
        )

    def newest(self, uncommitted: Uncommitted, analyzer: Analyzer) -> Coverage:
        """Return index parts of the outbox, within the limits of bytes and time. Missing parts are built here.

        Rows left to a running pipeline get their texts read instead.
        """
        is_mine = self._making.acquire(timeout=UNCOMMITTED_SEARCH_WAIT_S)
        try:
            waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
            wanted = waiting[: limits.UNCOMMITTED_SEARCH_ROWS_MAX]
            more = len(waiting) > len(wanted)
            texts = self._texts
            if not is_mine:
                prices = self._opened.prices.table()
                parts = tuple(_useful(self._parts, set(wanted), analyzer, prices))
                there = set[int]().union(*(part.sizes for part in parts))
                lacking = [each for each in wanted if each not in there]
                at_work = self._is_at_work() and bool(lacking)
                unindexed = {each: texts.sizes[each] for each in lacking if each in texts.sizes}
                return Coverage(parts, len(lacking), more, at_work=at_work, unindexed=unindexed, texts=texts)
            until_s = time.monotonic() + UNCOMMITTED_SEARCH_BUILD_S
            at_work = self.look(uncommitted) if waiting else self.record(())
            covering = self._covering(uncommitted, wanted, analyzer, self._parts, until_s, at_work=at_work)
            step_bytes = limits.UNCOMMITTED_SEARCH_STEP_BYTES
            self._texts = texts = texts.newer(uncommitted, covering.unindexed, until_s, step_bytes)
            # The warmer merges earlier; without one, a search merges here, at twice the fan-out.
            self._parts = self._merged(covering.parts, 2 * UNCOMMITTED_SEARCH_PARTS_MERGED)
            self._searched_s = time.monotonic()
            return replace(covering, parts=self._parts, more=more, texts=texts)
        finally:
            if is_mine:
                self._making.release()

    def index_newest(self, uncommitted: Uncommitted, analyzer: Analyzer) -> bool:
        """Build a part of the newest rows that lack one, unless another thread is building. Return whether more rows
        lack one.

        Rows left to the pipeline get their texts read. The call does nothing shortly after a search has built parts:
        it would add one more part, and the next search might wait for it.
        """
        if time.monotonic() - self._searched_s < limits.UNCOMMITTED_AHEAD_EVERY_S:
            return False
        if not self._making.acquire(blocking=False):
            return False
        try:
            wanted = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX)
            step_bytes = UNCOMMITTED_AHEAD_STEP_BYTES
            covering = self._covering(
                uncommitted,
                wanted,
                analyzer,
                self._parts,
                -math.inf,
                step_bytes,
                at_work=self.look(uncommitted),
            )
            self._texts = self._texts.newer(uncommitted, covering.unindexed, -math.inf, step_bytes)
            self._parts = self._merged(covering.parts, UNCOMMITTED_SEARCH_PARTS_MERGED)
            return covering.later > 0 or len(self._texts.sizes) < len(covering.unindexed)
        finally:
            self._making.release()

    def of(self, uncommitted: Uncommitted, wanted: Sequence[int], analyzer: Analyzer) -> Coverage:
        """Return uncached parts of these rows."""
        covering = self._covering(uncommitted, wanted, analyzer, (), math.inf)
        merged = self._merged(covering.parts, UNCOMMITTED_SEARCH_PARTS_MERGED)
        return Coverage(merged, covering.lacking)

    @staticmethod
    def texts_of(uncommitted: Uncommitted, wanted: Sequence[int]) -> Coverage:
        """Return uncached texts of these rows."""
        sizes = _fitting(uncommitted, wanted, {})
        texts = TextScan().newer(uncommitted, sizes, math.inf, limits.UNCOMMITTED_SEARCH_STEP_BYTES)
        return Coverage((), len(wanted), unindexed=sizes, texts=texts)

    def _covering(
        self,
        uncommitted: Uncommitted,
        wanted: Sequence[int],
        analyzer: Analyzer,
        before: Sequence[HotPart],
        until_s: float,
        step_bytes: int | None = None,
        *,
        at_work: bool = False,
    ) -> Coverage:
        """Return parts of the `wanted` outbox rows, given the newest first.

        New rows are indexed until the deadline, but at least one step of them. If many rows are pending and a
        pipeline is `at_work`, they are all left to it.
        """
        sizes = _fitting(
            uncommitted,
            wanted,
            {**self._texts.sizes, **{each: size for part in before for each, size in part.sizes.items()}},
        )
        prices = self._opened.prices.table()  # once, so that all parts have the same
        parts = _useful(before, sizes.keys(), analyzer, prices)
        there = set[int]().union(*(part.sizes for part in parts))
        later = 0
        new = {each: size for each, size in sizes.items() if each not in there}
        if at_work and sum(sizes.values()) > UNCOMMITTED_SEARCH_LEFT_BYTES:
            return Coverage(
                _in_order(parts), len(wanted) - len(sizes) + len(new), at_work=True, unindexed=new
            )
        steps = batches(new, new.__getitem__, step_bytes or limits.UNCOMMITTED_SEARCH_STEP_BYTES)
        for number, step in enumerate(steps):
            if number > 0 and time.monotonic() > until_s:
                later += len(step)
            else:
                rows = {each: new[each] for each in step}
                parts.append(self._part(uncommitted.parts(rows), rows, analyzer, prices, parts))
        return Coverage(_in_order(parts), len(wanted) - len(sizes) + later, later=later)

    def _part(
        self,
        stored: Sequence[StoredPart],
        sizes: Mapping[int, int],
        analyzer: Analyzer,
        prices: PriceTable,
        other_parts: Iterable[HotPart],
        most_bytes: float = math.inf,
    ) -> HotPart:
        """Build a part of these rows, within `most_bytes` and the memory that the parts in `other_parts` leave."""
        held_bytes = sum(part.index.rows.nbytes for part in other_parts if part.index is not None)
        read = decoded(stored, min(most_bytes, limits.UNCOMMITTED_ROWS_MAX_BYTES - held_bytes), prices)
        ids = [next(self._row_ids) for _ in range(len(read.rows))]
        rows = read.rows.append_column(ROW_ID, pa.array(ids, ROW_ID.type))
        came_by = frozenset((part.trace_id, part.sequence) for part in stored)
        index = self._indexed(rows, analyzer)
        large = frozenset(part.trace_id for part in read.large)
        return HotPart(index, analyzer, sizes, came_by, len(read.unread), large, prices)

    def _indexed(self, rows: pa.Table, analyzer: Analyzer) -> UnpublishedPart | None:
        cache = self._opened.stores.cache / "search"
        return write_unpublished(rows, analyzer, cache) if len(rows) else None

    def _merged(self, parts: Sequence[HotPart], fan_out: int) -> tuple[HotPart, ...]:
        """Merge small parts of similar sizes; return all parts, the oldest first.

        A merge takes at most one step's bytes, because a search may wait for it.
        """
        parts = list(parts)
        step_bytes = limits.UNCOMMITTED_SEARCH_STEP_BYTES
        while True:
            large = [at for at, part in enumerate(parts) if 2 * part.size_bytes >= step_bytes]
            first = large[-1] + 1 if large else 0
            run = batching.due([part.spans for part in parts[first:]], fan_out)
            if not run:
                return tuple(parts)
            begin = first + run.start
            totals = accumulate(part.size_bytes for part in parts[begin : first + run.stop])
            some = parts[begin : begin + sum(total <= step_bytes for total in totals)]
            parts[begin : begin + len(some)] = [self._as_one(some)]

    def _as_one(self, some: Sequence[HotPart]) -> HotPart:
        rows = [part.index.rows for part in some if part.index is not None]
        return HotPart(
            self._indexed(pa.concat_tables([_NO_ROWS, *rows]), some[0].analyzer),
            some[0].analyzer,
            {sequence: size for part in some for sequence, size in part.sizes.items()},
            frozenset[tuple[str, int]]().union(*(part.came_by for part in some)),
            sum(part.problems for part in some),
            frozenset[str]().union(*(part.large for part in some)),
            some[0].prices,
        )


def _in_order(parts: Iterable[HotPart]) -> tuple[HotPart, ...]:
    return tuple(sorted(parts, key=lambda part: max(part.sizes)))


def _fitting(
    uncommitted: Uncommitted, wanted: Sequence[int], known_sizes: Mapping[int, int]
) -> dict[int, int]:
    """Return the leading `wanted` rows that fit into memory, with their bytes; at least one."""
    fitting: dict[int, int] = {}
    total = 0
    for start in range(0, len(wanted), limits.TRACKING_IDS_AT_ONCE):
        some = wanted[start : start + limits.TRACKING_IDS_AT_ONCE]
        sizes = uncommitted.sizes([sequence for sequence in some if sequence not in known_sizes])
        for sequence in some:
            size = known_sizes.get(sequence, sizes.get(sequence, 0))
            if fitting and total + size > UNCOMMITTED_SEARCH_MAX_BYTES:
                return fitting
            fitting[sequence] = size
            total += size
    return fitting


def _nameable(rows: Collection[int]) -> list[int]:
    """Return the newest rows that a page token can name."""
    runs = runs_of(rows, limits.UNCOMMITTED_RUN_GAP_MAX)[: limits.UNCOMMITTED_RUNS_MAX]
    return [row for row in rows if row >= runs[-1][0]]


def _useful(
    parts: Iterable[HotPart], wanted: Collection[int], analyzer: Analyzer, prices: PriceTable
) -> list[HotPart]:
    """Return the existing parts with these prices of which at least half the rows are wanted. Wanted rows of the others
    are indexed again."""
    return [
        part
        for part in parts
        if part.analyzer is analyzer
        and part.prices == prices
        and 2 * sum(each in wanted for each in part.sizes) >= len(part.sizes)
        and part.is_there
    ]
