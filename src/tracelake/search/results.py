"""Search results: a page of hits and facts about the complete result, and the index's data of a hit before its row is
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import msgspec
import tantivy

from tracelake.limits import (
    LIST_TEXT_MAX_CHARS,
    SEARCH_RANKED_BEYOND_HITS,
    SEARCH_RANKED_FIRST_HITS,
    SEARCH_RANKED_STEP_HITS,
)
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.search import analyzers
from tracelake.search.query_parser import clause_of


@dataclass(frozen=True, slots=True)
class Hit:
    """Span that a search found. `highlight` is an excerpt with the matches between [[ and ]]."""

    trace_id: str
    span_id: str
    score: float  # 0 if hits are sorted by time
    service: str | None
    name: str
    start_ns: int
    highlight: str
    duration_ns: int = 0  # 0 if the span is still running
    status: str | None = None
    model: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    workspace: str = WORKSPACE_DEFAULT
    kind: str | None = None

    @property
    def id(self) -> str:
        """Trace and span id as one text, in the form of `like:` queries."""
        return f"{self.trace_id}-{self.span_id}"

    @property
    def neighbours(self) -> dict[str, str]:
        """Queries for related spans: of its session, of its user, and similar spans. Long values have none."""
        beside = {"session": self.session_id, "user": self.user_id, "like": self.id}
        return {
            field: clause_of(field, value)
            for field, value in beside.items()
            if value
            and len(value) < LIST_TEXT_MAX_CHARS  # a longer one is cut in lists, and its query finds nothing
        }


@dataclass(frozen=True, slots=True)
class FacetValue:
    """Number of spans of a result that have a value."""

    value: str
    spans: int


@dataclass(frozen=True, slots=True)
class Facet:
    """Distribution of a complete result over the values of a field. Days are in order, other values by number of
    spans."""

    values: tuple[FacetValue, ...]
    others: int
    """The number of spans with other values."""
    exact: bool = True
    """Whether the numbers are exact. They are not if a part of the index has more distinct values than are counted."""


@dataclass(frozen=True, slots=True)
class PartsAsked:
    """Number of parts that a search reads, and of parts that it skips because they cannot match."""

    asked: int
    pruned: int


class SearchResults(list[Hit]):
    """Hits of one page, in order, with facts about the complete result."""

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        total: int | None = 0,
        facets: Mapping[str, Facet] | None = None,
        commit: str | None = None,
        next_page: str | None = None,
        text: str | None = None,
        parts: PartsAsked = PartsAsked(0, 0),
        vectors: str | None = None,
        not_searched: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(hits)
        self.total = total
        """The number of all matching spans; None if a condition decides."""
        self.facets = dict(facets or {})
        """The requested facets, by name."""
        self.commit = commit
        """The commit that was searched; None for an empty lake."""
        self.next_page = next_page
        """The `page` argument of the same search for the following hits; None if there are no more."""
        self.text = text
        """The analyzer of the index that was searched; None for an empty lake."""
        self.parts = parts
        """The number of index parts that were read and skipped for the hits."""
        self.vectors = vectors
        """The vector settings of the index that was searched; None if it has no vectors."""
        self.not_searched = not_searched
        """Acknowledged data that this search did not cover, and the reason; None if it covered all."""
        self.hint = hint
        """Why the index may lack matches of the query, and the remedy. Set only if the search finds nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain JSON types."""
        return {
            "hits": [{**asdict(hit), "neighbours": hit.neighbours} for hit in self],
            "total": self.total,
            "facets": {name: asdict(facet) for name, facet in self.facets.items()},
            "commit": self.commit,
            "next_page": self.next_page,
            "text": self.text,
            "parts": asdict(self.parts),
            "vectors": self.vectors,
            "not_searched": self.not_searched,
            "hint": self.hint,
        }


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
    """Return a list of the best hits whose first `wanted` are the same for every length; `best` returns lists by
    length.

    The length of a list decides which of equal scores tantivy keeps at its end. Without this function, a hit could be
    on two pages and another on none. A list is accepted if the page ends at a different score than the list. It is
    also accepted if the page ends in a segment of which tantivy drops nothing until all of its hits are collected.

    Each hit of a list becomes a Python object, so short lists are tried first, with `beyond` hits after the page.
    With 0, for queries with few distinct scores, no longer list is tried. The last list is accepted unchecked.
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
