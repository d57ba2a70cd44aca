"""What the index says of a hit, before its row is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

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


class RawHit(msgspec.Struct, frozen=True):
    """One row of table `spans` that matches: ids in lower-case hex, and the transaction of the row."""

    trace_id: str
    span_id: str
    transaction: int
    score: float
    """0 where hits are sorted by time."""


def ranked_as_far_as(
    wanted: int, best: Callable[[int], list[AnyHit]], *, are_few: bool = False
) -> list[AnyHit]:
    """Return a list of the best hits that is the same for all as far as `wanted`; `best` gives so many of them.

    Which of equal scores tantivy keeps at the end of its list depends on how long the list is, or a hit could stand
    on two pages and another on none. So a list counts where the score at which the page ends is not that at which
    the list does. All of a list becomes objects of Python, so short ones are tried first; the last counts as it is,
    and where there are few different scores it is the only one.
    """
    longest = SEARCH_RANKED_FIRST_HITS if wanted <= SEARCH_RANKED_FIRST_HITS else SEARCH_RANKED_STEP_HITS
    for length in () if are_few else (wanted + SEARCH_RANKED_BEYOND_HITS, SEARCH_RANKED_FIRST_HITS):
        if wanted <= length <= SEARCH_RANKED_FIRST_HITS:
            hits = best(length)
            if len(hits) < length or hits[wanted - 1][0] != hits[-1][0]:
                return hits
            longest = SEARCH_RANKED_STEP_HITS
    return best(-(-wanted // longest) * longest)


def raw_hit(searcher: tantivy.Searcher, score: float, address: tantivy.DocAddress) -> RawHit:
    """Return the hit of a document."""
    stored = searcher.doc(address).get_first("id")
    assert isinstance(stored, bytes), stored
    trace_id, span_id, transaction = fields.decode_id(stored)
    return RawHit(trace_id, span_id, transaction, score)
