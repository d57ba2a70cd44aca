"""Hits as the index returns them, before the rows of table `spans` are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
import tantivy

from tracelake.search import analyzers

SEARCH_RANKED_BEYOND_HITS: Final = 6
"""Hits of a ranked list beyond the page taken from it."""
SEARCH_RANKED_FIRST_HITS: Final = 100
"""Hits of the list from which the first pages are taken then."""
SEARCH_RANKED_STEP_HITS: Final = 1_000
"""Growth of the ranked list from which pages are taken."""


AnyHit: TypeAlias = tuple[float, tantivy.DocAddress]
"""A hit of tantivy: its rank value and its document."""


SEGMENTS_IN_ORDER: Final = 2
"""Number of leading segments whose hits have a stable order.

tantivy merges the hits of segments in a buffer of twice the requested length. So it drops nothing before those of the
first two segments are merged. It keeps the first of equal hits, and hits of later segments arrive in any order.
"""


class RawHit(msgspec.Struct, frozen=True):
    """Row of table `spans` that matches, as the index stores it. Its ids are decoded on access."""

    stored: bytes
    score: float
    """0 if hits are sorted by time."""

    @property
    def trace_id(self) -> str:
        """The trace id in lower-case hex."""
        return analyzers.trace_of(self.stored)

    @property
    def span_id(self) -> str:
        """The span id in lower-case hex."""
        return analyzers.span_of(self.stored)

    @property
    def row(self) -> int:
        """The row id."""
        return analyzers.row_of(self.stored)

    @property
    def transaction(self) -> int:
        """The transaction of the row."""
        return analyzers.transaction_of(self.stored)


def ranked_as_far_as(
    wanted: int, best: Callable[[int], list[AnyHit]], *, beyond: int = SEARCH_RANKED_BEYOND_HITS
) -> list[AnyHit]:
    """Return a list of the best hits whose first `wanted` do not depend on its length. `best` returns the list of a
    given length.

    Among equal scores, the length of a list decides which hits tantivy keeps at its end. Without this function, a hit
    could be on two pages and another on none. A list is accepted if the page ends at a different score than the list.
    It is also accepted if the page ends in a segment of which tantivy drops nothing until all of its hits are
    collected.

    Each hit of a list becomes a Python object, so short lists are tried first, with `beyond` hits after the page. With
    0, for queries with few distinct scores, no longer list is tried. The last list is accepted unchecked.
    """
    longest = SEARCH_RANKED_FIRST_HITS if wanted <= SEARCH_RANKED_FIRST_HITS else SEARCH_RANKED_STEP_HITS
    for length in (wanted + beyond, SEARCH_RANKED_FIRST_HITS) if beyond else (wanted,):
        if wanted <= length <= SEARCH_RANKED_FIRST_HITS:
            hits = best(length)
            if len(hits) < length or _is_sure(hits, wanted):
                return hits
            longest = SEARCH_RANKED_STEP_HITS if beyond else longest
    return best(-(-wanted // longest) * longest)


def _is_sure(hits: list[AnyHit], wanted: int) -> bool:
    """Whether a list of any other length has the same first `wanted` hits."""
    score, address = hits[wanted - 1]
    return address.segment_ord < SEGMENTS_IN_ORDER or score != hits[-1][0]


def raw_hit(searcher: tantivy.Searcher, score: float, address: tantivy.DocAddress) -> RawHit:
    """Return the hit of a document."""
    stored = searcher.doc(address).get_first("id")
    if not isinstance(stored, bytes):
        raise ValueError(f"Data corrupted: a document has no id but {stored!r}")  # worded like tantivy's
    return RawHit(stored, score)
