"""What is written in spans that are left to a pipeline at work: it tells which of them a search may find.

To read a span costs a tenth of what it takes to index it. So a search looks through the texts of all that waits, and
indexes the few spans that pass its sieve (`search/sieve.py`): these are found at once, however busy the pipeline is.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracelake import limits
from tracelake.batching import batches
from tracelake.lake.hot_rows import decoded
from tracelake.search.cutting import normalized
from tracelake.search.documents import written
from tracelake.search.sieve import Sieve
from tracelake.tracking.uncommitted import ListedPart, Uncommitted, listed


@dataclass(frozen=True, slots=True)
class HotText:
    """What is written in the spans of one trace that some outbox rows brought, in lower case."""

    trace_id: str
    parts: tuple[ListedPart, ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class Passed:
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
class HotTexts:
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
    ) -> HotTexts:
        """Return those of the rows that are wanted, the newest of which come first.

        What is not here is read, by one step at least, whatever the time.
        """
        if not wanted:
            return HotTexts()
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
        return HotTexts(tuple(texts), sizes, tuple(unread), tuple(large))

    def passing(
        self, rows: Collection[int], sieve: Sieve, known: Collection[str], most_bytes: float
    ) -> Passed:
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
        return Passed(sizes, parts, len(self.unread), frozenset(part[0] for part in self.large), held)


def _read(uncommitted: Uncommitted, rows: Iterable[int]) -> HotTexts:
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
    return HotTexts(tuple(of_traces), unread=unread, large=large)


def _in_each_form(text: str) -> str:
    """Return a text in lower case, as it is written and in the Unicode form of words in the index."""
    form = normalized(text)
    return text.lower() if form == text else f"{text}\n{form}".lower()


def _distinct_lines(text: str) -> str:
    """Return each line of a text once: what is sought lies in one, and all spans of a resource have those of it."""
    return "\n".join(dict.fromkeys(text.split("\n")))
