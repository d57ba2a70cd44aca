"""Parts of an index that a process makes of outbox rows, as they come: for searches, and by them or ahead of them.

Each row of the outbox never changes, so neither do the parts that are made of some: what came since becomes a part, and
parts of alike sizes become one. The newest come first. One thread makes parts at a time; the others wait, not for long.

To index what the pipeline is about to index costs as much again, and takes it from the pipeline and from searches. So
where much waits and the pipeline is at work, what comes is left to it, and a search indexes for itself what its words
may find (`hot_texts.py`).

What is written in spans that are left to a pipeline at work: it tells which of them a search may find.

To read a span costs a tenth of what it takes to index it. So a search looks through the texts of all that waits, and
indexes the few spans that pass its sieve (`search/prefilter.py`): these are found at once, however busy the
pipeline is.
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

from tracelake import limits, tiers
from tracelake.batching import batches
from tracelake.lake.context import LakeContext
from tracelake.lake.hot_rows import decoded
from tracelake.otlp.schema import SPANS
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import FIRST_UNPUBLISHED, UnpublishedPart, write_unpublished
from tracelake.search.documents import written
from tracelake.search.prefilter import Prefilter
from tracelake.search.tokenization import normalized
from tracelake.shards.rows import ROW_ID
from tracelake.tracking.uncommitted import ListedPart, StoredPart, Uncommitted, listed, runs_of


@dataclass(frozen=True, slots=True)
class HotText:
    """What is written in the spans of one trace that some outbox rows brought, in lower case."""

    trace_id: str
    parts: tuple[ListedPart, ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a sieve let through."""

    sizes: Mapping[int, int]
    """The rows that were looked through, with the bytes of all their spans."""
    parts: Sequence[ListedPart]
    problems: int
    """How many parts of traces could not be read."""
    large: frozenset[str]
    """Traces of which some was not looked through, whose rows there was no room for."""
    held: frozenset[str]
    """The traces of which nothing passed."""


@dataclass(frozen=True, slots=True)
class TextScan:
    """The texts of outbox rows."""

    texts: tuple[HotText, ...] = ()
    sizes: Mapping[int, int] = field(default_factory=dict)
    """The rows, with the bytes of their spans."""
    unread: tuple[ListedPart, ...] = ()
    """Parts of traces that cannot be read."""
    large: tuple[ListedPart, ...] = ()
    """Those that take too much memory as rows."""

    def newer(
        self, uncommitted: Uncommitted, wanted: Mapping[int, int], until_s: float, step_bytes: int
    ) -> TextScan:
        """Return those of the rows that are wanted, the newest of which come first.

        What is not here is read, by one step at least, whatever the time.
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
        self, rows: Collection[int], sieve: Prefilter, known: Collection[str], most_bytes: float
    ) -> ScanResult:
        """Look through as many of these rows, the newest first, as have so many bytes that pass, one at least.

        One that has more than a search indexes at once is left out.
        All of a trace passes of which some does, and of those that are `known`, of which other rows are indexed: which
        claim about a span stands depends on all.
        """
        passing = {text.trace_id for text in self.texts if sieve(text.text)}.union(known)
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
        held = frozenset(text.trace_id for text in self.texts) - passing
        return ScanResult(sizes, parts, len(self.unread), frozenset(part[0] for part in self.large), held)


def _read(uncommitted: Uncommitted, rows: Iterable[int]) -> TextScan:
    """Return the texts of rows, as far as there is room, without their sizes."""
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
    """Return a text in lower case, as it is written and in the Unicode form of words in the index."""
    form = normalized(text)
    return text.lower() if form == text else f"{text}\n{form}".lower()


def _distinct_lines(text: str) -> str:
    """Return each line of a text once: what is sought lies in one, and all spans of a resource have those of it."""
    return "\n".join(dict.fromkeys(text.split("\n")))


_NO_ROWS: Final = SPANS.append(ROW_ID).empty_table()


@dataclass(frozen=True, eq=False)
class HotPart:
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
    large: frozenset[str]
    """Traces of which it lacks some, whose rows there was no room for."""
    is_sifted: bool = False
    """Whether it has of its rows only what one query may find."""

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
class Coverage:
    """Parts of outbox rows, the oldest first, and what they lack."""

    parts: tuple[HotPart, ...]
    lacking: int = 0
    """How many rows, of those that were wanted."""
    more: bool = False
    """Whether there are more rows than were wanted."""
    later: int = 0
    """How many rows lack only because their time has not come."""
    at_work: bool = False
    """Whether they lack because a pipeline is at work that will have them in a moment."""
    left: Mapping[int, int] = field(default_factory=dict)
    """The rows that are left to it, the newest first, with the bytes of their spans."""
    texts: TextScan = field(default_factory=TextScan)
    """Their texts, as far as they were read."""
    held: frozenset[str] = frozenset()
    """Traces of what was looked through of which nothing passed."""


class HotIndex:
    """The parts of one process. Threads may share them."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._making = Lock()
        self._parts: tuple[HotPart, ...] = ()
        self._texts = TextScan()
        self._searched_s = -math.inf
        """When a search has made parts last."""
        self._oldest: frozenset[int] = frozenset()
        self._left_s = -math.inf
        """When one of the oldest rows was seen to have left the outbox."""
        self._row_ids = count(FIRST_UNPUBLISHED)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._parts)

    def look(self, uncommitted: Uncommitted) -> bool:
        """Note whether rows leave the outbox, and return whether a pipeline is at work, as far as is seen here."""
        oldest = frozenset(uncommitted.oldest(limits.UNCOMMITTED_OLDEST_ROWS))
        if self._oldest - oldest:
            self._left_s = time.monotonic()
        self._oldest = oldest
        return self._is_at_work()

    def _is_at_work(self) -> bool:
        """Return whether a pipeline is at work, as was seen when somebody looked last."""
        return time.monotonic() - self._left_s < limits.UNCOMMITTED_AT_WORK_S

    def sifted(
        self,
        uncommitted: Uncommitted,
        covering: Coverage,
        analyzer: Analyzer,
        sieve: Prefilter,
        known: Collection[str] = (),
        most_bytes: float = math.inf,
    ) -> Coverage:
        """Return the same with what passes the sieve of what is left to a pipeline, and all of traces that are known.

        Beside others who search: what was read never changes.
        """
        known = {trace_id for part in covering.parts for trace_id, _ in part.came_by}.union(known)
        rows = _nameable(covering.texts.sizes.keys() & covering.left)
        passed = covering.texts.passing(rows, sieve, known, most_bytes)
        # In order of the rows, as all parts are: of equal hits the first of these comes first, on each page.
        stored = sorted(uncommitted.of_traces(passed.parts), key=lambda part: (part.sequence, part.trace_id))
        # Each search has one of its own.
        most_bytes = limits.UNCOMMITTED_PART_ROWS_MAX_BYTES
        part = self._part(stored, passed.sizes, analyzer, covering.parts, most_bytes)
        part = replace(
            part, problems=part.problems + passed.problems, large=part.large | passed.large, is_sifted=True
        )
        return replace(
            covering,
            parts=_in_order([*covering.parts, part]) if part.sizes else covering.parts,
            lacking=covering.lacking - len(part.sizes),
            held=passed.held,
        )

    def newest(self, uncommitted: Uncommitted, analyzer: Analyzer) -> Coverage:
        """Return parts of what waits in the outbox, as far as bytes and time go; what lacks is made here.

        Of what is left to a pipeline at work the texts are read.
        """
        is_mine = self._making.acquire(timeout=limits.UNCOMMITTED_SEARCH_WAIT_S)
        try:
            waiting = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX + 1)
            wanted = waiting[: limits.UNCOMMITTED_SEARCH_ROWS_MAX]
            more = len(waiting) > len(wanted)
            texts = self._texts
            if not is_mine:
                parts = tuple(_useful(self._parts, set(wanted), analyzer))
                there = set[int]().union(*(part.sizes for part in parts))
                lacking = [each for each in wanted if each not in there]
                at_work = self._is_at_work() and bool(lacking)
                left = {each: texts.sizes[each] for each in lacking if each in texts.sizes}
                return Coverage(parts, len(lacking), more, at_work=at_work, left=left, texts=texts)
            until_s = time.monotonic() + limits.UNCOMMITTED_SEARCH_BUILD_S
            covering = self._covering(
                uncommitted, wanted, analyzer, self._parts, until_s, at_work=self.look(uncommitted)
            )
            step_bytes = limits.UNCOMMITTED_SEARCH_STEP_BYTES
            self._texts = texts = texts.newer(uncommitted, covering.left, until_s, step_bytes)
            # Who makes parts ahead of searches puts them together, too; else it is done here, later.
            self._parts = self._merged(covering.parts, 2 * limits.UNCOMMITTED_SEARCH_PARTS_MERGED)
            self._searched_s = time.monotonic()
            return replace(covering, parts=self._parts, more=more, texts=texts)
        finally:
            if is_mine:
                self._making.release()

    def ahead(self, uncommitted: Uncommitted, analyzer: Analyzer) -> bool:
        """Make a part of the newest that lack one, where nobody else is at it; return whether more lack one.

        Of what is left to a pipeline the texts are read. Not where a search has done so just now: it would be one part
        more, and who searches next may wait for it.
        """
        if time.monotonic() - self._searched_s < limits.UNCOMMITTED_AHEAD_EVERY_S:
            return False
        if not self._making.acquire(blocking=False):
            return False
        try:
            wanted = uncommitted.newest(limits.UNCOMMITTED_SEARCH_ROWS_MAX)
            step_bytes = limits.UNCOMMITTED_AHEAD_STEP_BYTES
            covering = self._covering(
                uncommitted,
                wanted,
                analyzer,
                self._parts,
                -math.inf,
                step_bytes,
                at_work=self.look(uncommitted),
            )
            self._texts = self._texts.newer(uncommitted, covering.left, -math.inf, step_bytes)
            self._parts = self._merged(covering.parts, limits.UNCOMMITTED_SEARCH_PARTS_MERGED)
            return covering.later > 0 or len(self._texts.sizes) < len(covering.left)
        finally:
            self._making.release()

    def of(self, uncommitted: Uncommitted, wanted: Sequence[int], analyzer: Analyzer) -> Coverage:
        """Return parts of these rows, which nobody keeps."""
        covering = self._covering(uncommitted, wanted, analyzer, (), math.inf)
        merged = self._merged(covering.parts, limits.UNCOMMITTED_SEARCH_PARTS_MERGED)
        return Coverage(merged, covering.lacking)

    @staticmethod
    def texts_of(uncommitted: Uncommitted, wanted: Sequence[int]) -> Coverage:
        """Return the texts of these rows, which nobody keeps."""
        sizes = _fitting(uncommitted, wanted, {})
        texts = TextScan().newer(uncommitted, sizes, math.inf, limits.UNCOMMITTED_SEARCH_STEP_BYTES)
        return Coverage((), len(wanted), left=sizes, texts=texts)

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
        """Return parts with the spans of outbox rows, the newest of which are the first in `wanted`.

        What came since is in them by one step at least, whatever the time; or by none, where much waits for a pipeline
        that is `at_work`.
        """
        sizes = _fitting(
            uncommitted,
            wanted,
            {**self._texts.sizes, **{each: size for part in before for each, size in part.sizes.items()}},
        )
        parts = _useful(before, sizes.keys(), analyzer)
        there = set[int]().union(*(part.sizes for part in parts))
        later = 0
        new = {each: size for each, size in sizes.items() if each not in there}
        if at_work and sum(sizes.values()) > limits.UNCOMMITTED_SEARCH_LEFT_BYTES:
            return Coverage(_in_order(parts), len(wanted) - len(sizes) + len(new), at_work=True, left=new)
        steps = batches(new, new.__getitem__, step_bytes or limits.UNCOMMITTED_SEARCH_STEP_BYTES)
        for number, step in enumerate(steps):
            if number > 0 and time.monotonic() > until_s:
                later += len(step)
            else:
                rows = {each: new[each] for each in step}
                parts.append(self._part(uncommitted.parts(rows), rows, analyzer, parts))
        return Coverage(_in_order(parts), len(wanted) - len(sizes) + later, later=later)

    def _part(
        self,
        stored: Sequence[StoredPart],
        sizes: Mapping[int, int],
        analyzer: Analyzer,
        beside: Iterable[HotPart],
        most_bytes: float = math.inf,
    ) -> HotPart:
        """Return a part of what is stored, of these rows, as far as others beside it, and `most_bytes`, leave room."""
        held_bytes = sum(part.index.rows.nbytes for part in beside if part.index is not None)
        read = decoded(stored, min(most_bytes, limits.UNCOMMITTED_ROWS_MAX_BYTES - held_bytes))
        ids = [next(self._row_ids) for _ in range(len(read.rows))]
        rows = read.rows.append_column(ROW_ID, pa.array(ids, ROW_ID.type))
        came_by = frozenset((part.trace_id, part.sequence) for part in stored)
        index = self._indexed(rows, analyzer)
        large = frozenset(part.trace_id for part in read.large)
        return HotPart(index, analyzer, sizes, came_by, len(read.unread), large)

    def _indexed(self, rows: pa.Table, analyzer: Analyzer) -> UnpublishedPart | None:
        cache = self._opened.stores.cache / "search"
        return write_unpublished(rows, analyzer, cache) if len(rows) else None

    def _merged(self, parts: Sequence[HotPart], fan_out: int) -> tuple[HotPart, ...]:
        """Return parts of which small ones of alike sizes have become one, the oldest first.

        No more become one than a step has: a search may wait for it.
        """
        parts = list(parts)
        step_bytes = limits.UNCOMMITTED_SEARCH_STEP_BYTES
        while True:
            large = [at for at, part in enumerate(parts) if 2 * part.size_bytes >= step_bytes]
            first = large[-1] + 1 if large else 0
            run = tiers.due([part.spans for part in parts[first:]], fan_out)
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
        )


def _in_order(parts: Iterable[HotPart]) -> tuple[HotPart, ...]:
    return tuple(sorted(parts, key=lambda part: max(part.sizes)))


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


def _nameable(rows: Collection[int]) -> list[int]:
    """Return the newest of some rows, as many as a page can name."""
    runs = runs_of(rows, limits.UNCOMMITTED_RUN_GAP_MAX)[: limits.UNCOMMITTED_RUNS_MAX]
    return [row for row in rows if row >= runs[-1][0]]


def _useful(parts: Iterable[HotPart], wanted: Collection[int], analyzer: Analyzer) -> list[HotPart]:
    """Return the parts that are there and of which most is wanted: of others what is wanted is indexed anew."""
    return [
        part
        for part in parts
        if part.analyzer is analyzer
        and 2 * sum(each in wanted for each in part.sizes) >= len(part.sizes)
        and part.is_there
    ]
