"""What the index says of a hit, before its row is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
import tantivy

from tracelake.limits import (
    SEARCH_RANKED_BEYOND_HITS,
    SEARCH_RANKED_FIRST_HITS,
    SEARCH_RANKED_STEP_HITS,
)
from tracelake.search import fields

AnyHit: TypeAlias = tuple[float, tantivy.DocAddress]
"""A hit of tantivy: what it is ranked by, and its document."""
SEGMENTS_IN_ORDER: Final = 2
"""tantivy puts the lists of segments together in a buffer that is twice as long as the list which is asked for. So it
drops nothing before those of the first two are there; of equal ones it keeps what comes first, and in a segment that
is put to others later they come in any order."""


class RawHit(msgspec.Struct, frozen=True):
    """One row of table `spans` that matches, as the index stores it: who reads few of its ids has few of them made."""

    stored: bytes
    score: float
    """0 where hits are sorted by time."""

    @property
    def trace_id(self) -> str:
        """In lower-case hex."""
        return fields.trace_of(self.stored)

    @property
    def span_id(self) -> str:
        """In lower-case hex."""
        return fields.span_of(self.stored)

    @property
    def row(self) -> int:
        """The id of the row."""
        return fields.row_of(self.stored)

    @property
    def transaction(self) -> int:
        """That of the row."""
        return fields.transaction_of(self.stored)


def ranked_as_far_as(
    wanted: int, best: Callable[[int], list[AnyHit]], *, beyond: int = SEARCH_RANKED_BEYOND_HITS
) -> list[AnyHit]:
    """Return a list of the best hits that is the same for all as far as `wanted`; `best` gives so many of them.

    Which of equal scores tantivy keeps at the end of its list depends on how long the list is, or a hit could stand
    on two pages and another on none. So a list counts where the score at which the page ends is not that at which
    the list does, or the page ends in a segment of which nothing is dropped before its whole list is there. All of a
    list becomes objects of Python, so short ones are tried first, of so many hits beyond the page as are likely to
    tell: 0 where there are few different scores, and then no longer one is tried. The last counts as it is.
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
    """Whether a list of any other length begins as this one does, as far as `wanted`."""
    score, address = hits[wanted - 1]
    return address.segment_ord < SEGMENTS_IN_ORDER or score != hits[-1][0]


def raw_hit(searcher: tantivy.Searcher, score: float, address: tantivy.DocAddress) -> RawHit:
    """Return the hit of a document."""
    stored = searcher.doc(address).get_first("id")
    if not isinstance(stored, bytes):
        raise ValueError(f"Data corrupted: a document has no id but {stored!r}")  # as tantivy would say it
    return RawHit(stored, score)
