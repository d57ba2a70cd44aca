"""Payloads, texts and index parts of outbox rows in one process, for searches of uncommitted spans.

The pipeline indexes each span. A search therefore indexes few of them again: it scans the payloads of the pending rows
with the prefilter of its query (`search/prefilter.py`), decodes those that may match to scan their texts, and indexes
only traces that may match. Scanning costs a fraction of decoding and indexing, and an outbox row never changes, so all
three are kept for later searches until the row leaves the outbox.

Each index part covers a range of outbox rows, and the ranges of two parts do not overlap. If a later query needs more
traces of a range, its part is built again. The documents of all parts are therefore in the order of their rows, which
is the order of equal hits on each page, in every process.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits, tracking
from tracelake._errors import DamageError
from tracelake.batching import batches
from tracelake.context import LakeContext
from tracelake.hot.rows import PART, are_large, cannot_be_read, decoded, steps
from tracelake.limits.input import MIB
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import FIRST_UNPUBLISHED, UnpublishedPart, write_unpublished
from tracelake.search.documents import written
from tracelake.search.prefilter import Prefilter, payload_text
from tracelake.search.tokenization import normalized
from tracelake.shards.rows import ROW_ID

if TYPE_CHECKING:
    from tracelake.tracking.outbox import ListedPart, StoredPart, Uncommitted

UNCOMMITTED_SEARCH_MAX_BYTES: Final = 64 * MIB
"""OTLP of uncommitted spans that searches cover, the newest."""
UNCOMMITTED_SEARCH_WHOLE_BYTES: Final = MIB // 16
"""OTLP of spans that a search indexes without a scan. Scores are then those of one index."""
UNCOMMITTED_SEARCH_BUILD_S: Final = 1.0
"""Time that a search spends on reading and indexing new spans."""
UNCOMMITTED_SEARCH_WAIT_S: Final = 1.0
"""Wait of a search for other searches that read or index new spans."""
UNCOMMITTED_SEARCH_PARTS_MAX: Final = 32
"""Index parts that are not full. Beyond: adjacent ones are merged."""

SEQUENCE: Final = pa.field("_sequence", pa.int64())
"""Column with the outbox row of a span, in the rows of index parts."""


@dataclass(frozen=True, eq=False)
class HotPart:
    """An index part built from trace parts in the outbox."""

    index: UnpublishedPart | None
    """None if no span was readable."""
    parts: frozenset[ListedPart]

    @cached_property
    def first(self) -> int:
        """Its first outbox row."""
        return min(sequence for _, sequence, _ in self.parts)

    @cached_property
    def last(self) -> int:
        """Its last outbox row."""
        return max(sequence for _, sequence, _ in self.parts)

    @cached_property
    def size_bytes(self) -> int:
        """The bytes of its spans as OTLP."""
        return _bytes_of(self.parts)

    @property
    def is_there(self) -> bool:
        """Whether its files exist. Another process may delete old ones as leftovers of a killed process."""
        return self.index is None or self.index.directory.is_dir()


@dataclass(frozen=True, slots=True)
class Coverage:
    """The outbox rows that a query covers, and index parts with all traces of these rows that may match it."""

    parts: tuple[UnpublishedPart, ...] = ()
    """In the order of their rows. They may contain other rows and traces too."""
    rows: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()
    """Pending rows that are not covered."""
    more: bool = False
    """Whether more rows are pending than a search may cover."""
    unread: int = 0
    """Number of unreadable trace parts."""
    large: frozenset[str] = frozenset()
    """Traces that are incomplete because some of their rows take too much memory."""
    without_match: frozenset[str] = frozenset()
    """Traces of the pending rows that do not pass the prefilter."""
    failure: str | None = None
    """A message, if the outbox cannot be read."""

    def not_searched(self) -> str | None:
        """A message about all that is missing; None if nothing is."""
        messages = [] if self.failure is None else [self.failure]
        if (lacking := len(self.apart)) or self.more:
            how_many = f"{lacking:,}" if not self.more else f"more than {lacking:,}" if lacking else "some"
            messages.append(
                f"{how_many} groups of acknowledged requests wait for the pipeline and are not searchable yet: "
                "search again, or start it (`tracelake pipeline run`)"
            )
        if self.unread:
            messages.append(cannot_be_read(self.unread))
        if self.large:
            messages.append(are_large(len(self.large)))
        return "; ".join(messages) or None


@dataclass(frozen=True, slots=True)
class _Pending:
    """Pending outbox rows, as far as this process has read them."""

    rows: Mapping[int, Sequence[ListedPart]] = field(default_factory=dict)
    texts: Mapping[ListedPart, bytes] = field(default_factory=dict)
    """Lowercase texts of trace parts."""
    payloads: Mapping[ListedPart, bytes | None] = field(default_factory=dict)
    """Lowercase payloads of parts without text; None if a payload may hide its text."""
    unread: frozenset[ListedPart] = frozenset()
    """Unreadable trace parts."""
    large: frozenset[ListedPart] = frozenset()
    """Trace parts whose rows take too much memory."""
    parts: tuple[HotPart, ...] = ()
    """Index parts in the order of their rows."""
    analyzer: Analyzer | None = None
    prices: PriceTable = SHIPPED

    def missing(self, rows: Iterable[int]) -> dict[int, list[ListedPart]]:
        """Return the parts of each row that are not indexed."""
        finished = self._finished()
        return {row: [part for part in self.rows[row] if part not in finished] for row in rows}

    def _finished(self) -> frozenset[ListedPart]:
        return self.unread.union(self.large, *(part.parts for part in self.parts))

    def without_text(self, parts: Sequence[ListedPart]) -> list[ListedPart]:
        """Return those of these parts that have no text yet. Indexed parts need none."""
        finished = self._finished()
        return [part for part in parts if part not in self.texts and part not in finished]

    def may_match(self, part: ListedPart, sieve: Prefilter) -> bool:
        """Return whether a part may match. An unread part may."""
        if (text := self.texts.get(part)) is not None:
            return sieve(text)
        payload = self.payloads.get(part)
        return payload is None or sieve.payload_passes is None or sieve.payload_passes(payload)

    def wanted(self, rows: Iterable[int], passing: Collection[str] | None) -> dict[int, list[ListedPart]]:
        """Return the parts to index for a query, by the rows that it can cover. If `passing` is None, any trace may
        match."""
        return {
            row: [part for part in parts if passing is None or part[0] in passing]
            for row, parts in self.missing(rows).items()
        }

    def coverage(
        self, waiting: Sequence[int], rows: Sequence[int], passing: Collection[str] | None
    ) -> Coverage:
        """Return the rows that a query covers, of the `waiting` rows that it may cover."""
        covered = frozenset(row for row, parts in self.wanted(rows, passing).items() if not parts)
        # Only the newest rows that a page token can name.
        runs = tracking.outbox.runs_of(covered, limits.UNCOMMITTED_RUN_GAP_MAX, frozenset(waiting) - covered)
        oldest = min((first for first, _ in runs[: limits.UNCOMMITTED_RUNS_MAX]), default=0)
        covered = frozenset(row for row in covered if row >= oldest)
        traces = {trace_id for row in rows for trace_id, _, _ in self.rows[row]}
        parts = [
            part.index
            for part in self.parts
            if part.index is not None
            and (passing is None or any(trace_id in passing for trace_id, _, _ in part.parts))
        ]
        return Coverage(
            tuple(parts),
            covered,
            frozenset(waiting) - covered,
            unread=len(self.unread),
            large=frozenset(trace_id for trace_id, _, _ in self.large),
            without_match=frozenset() if passing is None else frozenset(traces.difference(passing)),
        )


class HotIndex:
    """Texts and index parts of outbox rows in one process. Threads may share them."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._making = Lock()
        self._pending = _Pending()
        self._next_id = FIRST_UNPUBLISHED

    def cover(
        self,
        uncommitted: Uncommitted,
        waiting: Sequence[int],
        analyzer: Analyzer,
        sieve: Prefilter | None,
        also: Collection[str] = (),
        build_s: float | None = None,
    ) -> Coverage:
        """Return index parts with all pending spans of the traces that pass a prefilter, and of the traces in `also`.

        Missing texts and parts of the `waiting` rows, given the newest first, are made here, within the limits of bytes
        and time, but at least one step of each. Without a prefilter, all traces pass.
        """
        is_more = len(waiting) > limits.UNCOMMITTED_SEARCH_ROWS_MAX
        waiting = waiting[: limits.UNCOMMITTED_SEARCH_ROWS_MAX]
        until_s = time.monotonic() + (UNCOMMITTED_SEARCH_BUILD_S if build_s is None else build_s)
        is_mine = self._making.acquire(timeout=UNCOMMITTED_SEARCH_WAIT_S)
        try:
            if is_mine:
                self._refresh(uncommitted, waiting, analyzer)
            pending = self._pending
            rows = _newest(pending.rows, waiting)
            new = [part for parts in pending.missing(rows).values() for part in parts]
            if _bytes_of(new) <= UNCOMMITTED_SEARCH_WHOLE_BYTES:
                sieve = None
            passing = None
            if sieve is not None:
                matching = [
                    part for row in rows for part in pending.rows[row] if pending.may_match(part, sieve)
                ]
                if is_mine:
                    matching = self._read(uncommitted, matching, sieve, until_s)
                    pending = self._pending
                unread = {row for _, row, _ in pending.without_text(matching)}
                rows = [row for row in rows if row not in unread]
                # All parts of these traces must be indexed, because the winning version of a span depends on
                # all versions.
                passing = {trace_id for trace_id, row, _ in matching if row not in unread}.union(also)
            if is_mine:
                self._index(uncommitted, rows, passing, until_s)
                pending = self._pending
        finally:
            if is_mine:
                self._making.release()
        if pending.analyzer is not analyzer:
            pending = replace(pending, parts=())
        return replace(pending.coverage(waiting, rows, passing), more=is_more)

    def _refresh(self, uncommitted: Uncommitted, waiting: Sequence[int], analyzer: Analyzer) -> None:
        """Forget rows that have left the outbox, and list new ones."""
        before, wanted, prices = self._pending, frozenset(waiting), self._opened.prices.table()
        rows = {row: parts for row, parts in before.rows.items() if row in wanted}
        rows |= uncommitted.listed_in([row for row in waiting if row not in rows])
        is_same = (before.analyzer, before.prices) == (analyzer, prices)
        parts = before.parts if is_same else ()
        self._pending = _Pending(
            rows,
            {part: text for part, text in before.texts.items() if part[1] in rows},
            {part: payload for part, payload in before.payloads.items() if part[1] in rows},
            frozenset(part for part in before.unread if part[1] in rows),
            frozenset(part for part in before.large if part[1] in rows),
            tuple(part for part in parts if part.is_there and any(each[1] in rows for each in part.parts)),
            analyzer,
            prices,
        )

    def _read(
        self, uncommitted: Uncommitted, matching: Sequence[ListedPart], sieve: Prefilter, until_s: float
    ) -> list[ListedPart]:
        """Read parts that may match, given the newest first, and return those that still may. A part whose payload
        excludes a match needs no text."""
        excluded: set[ListedPart] = set()
        for step in steps(self._pending.without_text(matching)):
            unseen = frozenset(part for part in step if part not in self._pending.payloads)
            stored = uncommitted.parts({sequence for _, sequence, _ in unseen}) if unseen else []
            if sieve.payload_passes is not None:
                self.add_payloads(unseen, stored)
            if parts := {part for part in step if self._pending.may_match(part, sieve)}:
                stored += uncommitted.of_traces(parts - unseen) if parts - unseen else []
                self.add_texts(parts, [part for part in stored if tracking.outbox.listed(part) in parts])
            excluded.update(part for part in step if not self._pending.may_match(part, sieve))
            if time.monotonic() > until_s:
                break
        return [part for part in matching if part not in excluded]

    def add_payloads(self, new: Collection[ListedPart], stored: Iterable[StoredPart]) -> None:
        """Add the payloads of stored parts; those that are gone have none."""
        payloads: dict[ListedPart, bytes | None] = dict.fromkeys(new, b"")
        unread: set[ListedPart] = set()
        for part in stored:
            if (key := tracking.outbox.listed(part)) in payloads:
                try:
                    payloads[key] = payload_text(
                        tracking.store.unpacked(part.trace_id, part.payload, part.size_bytes)
                    )
                except DamageError:
                    unread.add(key)
        pending = self._pending
        self._pending = replace(
            pending, payloads={**pending.payloads, **payloads}, unread=pending.unread.union(unread)
        )

    def add_texts(self, parts: Collection[ListedPart], stored: Sequence[StoredPart]) -> None:
        """Add the texts of stored parts."""
        read = decoded(stored, limits.UNCOMMITTED_ROWS_MAX_BYTES)
        lines: dict[int, list[str]] = defaultdict(list)
        for batch in read.rows.to_batches():
            for place, text in zip(batch[PART.name].to_numpy(), written(batch).to_pylist(), strict=True):
                lines[int(place)].append(text)
        texts = dict.fromkeys(parts, b"")
        texts |= {tracking.outbox.listed(stored[place]): _searchable(some) for place, some in lines.items()}
        pending = self._pending
        self._pending = replace(
            pending,
            texts={**pending.texts, **texts},
            payloads={part: payload for part, payload in pending.payloads.items() if part not in texts},
            unread=pending.unread.union(map(tracking.outbox.listed, read.unread)),
            large=pending.large.union(map(tracking.outbox.listed, read.large)),
        )

    def _index(
        self, uncommitted: Uncommitted, rows: Sequence[int], passing: Collection[str] | None, until_s: float
    ) -> None:
        """Index the missing parts of rows, given the newest first, and merge parts if there are many."""
        step_bytes = limits.UNCOMMITTED_SEARCH_STEP_BYTES
        most_bytes = step_bytes // 4  # because a part may be built again
        new = [parts for parts in self._pending.wanted(rows, passing).values() if parts]
        for step in batches(new, _bytes_of, step_bytes):
            for some in batches(step, _bytes_of, most_bytes):
                self._insert(uncommitted, [part for parts in some for part in parts])
            if time.monotonic() > until_s:
                break
        parts = self._pending.parts
        full = sum(part.size_bytes for part in parts) // most_bytes
        if len(parts) > UNCOMMITTED_SEARCH_PARTS_MAX + 2 * full:
            merged = list[HotPart]()
            for alike in batches(parts, lambda part: part.size_bytes, most_bytes):
                is_due = len(alike) > 1 and time.monotonic() < until_s
                merged += [self._built(uncommitted, alike, [])] if is_due else alike
            self._pending = replace(self._pending, parts=tuple(merged))

    def _insert(self, uncommitted: Uncommitted, new: Iterable[ListedPart]) -> None:
        """Index trace parts, together with the index parts in whose ranges they are."""
        parts = list(self._pending.parts)
        lasts = [part.last for part in parts]
        of_places: dict[tuple[int, bool], list[ListedPart]] = defaultdict(list)
        for each in new:
            place = bisect_left(lasts, each[1])
            of_places[place, place < len(parts) and parts[place].first <= each[1]].append(each)
        for (place, overlaps), some in sorted(of_places.items(), reverse=True):
            end = place + overlaps
            parts[place:end] = [self._built(uncommitted, parts[place:end], some)]
        self._pending = replace(self._pending, parts=tuple(parts))

    def _built(
        self, uncommitted: Uncommitted, before: Sequence[HotPart], new: Collection[ListedPart]
    ) -> HotPart:
        """Build a part of the pending rows of others and of new trace parts, within the memory that all parts share."""
        pending, cache = self._pending, self._opened.stores.cache / "search"
        kept_bytes = sum(part.index.rows.nbytes for part in pending.parts if part.index is not None)
        stored = uncommitted.of_traces(new)
        read = decoded(stored, limits.UNCOMMITTED_ROWS_MAX_BYTES - kept_bytes, pending.prices)
        self._pending = replace(
            pending,
            unread=pending.unread.union(map(tracking.outbox.listed, read.unread)),
            large=pending.large.union(map(tracking.outbox.listed, read.large)),
        )
        of_parts = np.array([part.sequence for part in stored], np.int64)
        sequences = of_parts[read.rows[PART.name].to_numpy()]
        rows = read.rows.drop_columns(PART.name).append_column(SEQUENCE, pa.array(sequences))
        others = [part.index.rows.drop_columns(ROW_ID.name) for part in before if part.index is not None]
        rows = pa.concat_tables([*others, rows])
        rows = rows.filter(pc.is_in(rows[SEQUENCE.name], pa.array(list(pending.rows), SEQUENCE.type)))
        # Stable, so equal hits have the same order in each part that contains them.
        rows = rows.take(pc.sort_indices(rows, [(SEQUENCE.name, "ascending"), ("trace_id", "ascending")]))
        ids = np.arange(self._next_id, self._next_id + len(rows))
        self._next_id += len(rows)
        rows = rows.append_column(ROW_ID, pa.array(ids, ROW_ID.type))
        parts = frozenset(new).union(*(part.parts for part in before))
        index = write_unpublished(rows, pending.analyzer, cache) if len(rows) and pending.analyzer else None
        return HotPart(index, frozenset(part for part in parts if part[1] in pending.rows))


def _bytes_of(parts: Iterable[ListedPart]) -> int:
    """Return the bytes of spans as OTLP."""
    return sum(size_bytes for _, _, size_bytes in parts)


def _newest(rows: Mapping[int, Sequence[ListedPart]], waiting: Iterable[int]) -> list[int]:
    """Return the leading `waiting` rows that fit into memory; at least one."""
    newest, room = list[int](), UNCOMMITTED_SEARCH_MAX_BYTES
    for row in waiting:
        if row in rows:
            room -= _bytes_of(rows[row])
            if newest and room < 0:
                break
            newest.append(row)
    return newest


def _searchable(texts: Iterable[str]) -> bytes:
    """Return the distinct lines of texts in lower case, as written and in the Unicode form of the index's words.

    A match lies within one line, and all spans of a resource repeat its lines.
    """
    lines = dict.fromkeys("\n".join(texts).split("\n"))
    others = "\n".join(line for line in lines if not line.isascii())
    forms = [*lines] if (normal := normalized(others)) == others else [*lines, normal]
    return "\n".join(forms).lower().encode()
