"""What a search returns: a page of hits, and what is known of the whole result.

What the index says of a hit, before its row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import msgspec
import tantivy

from tracelake.limits import SEARCH_RANKED_BEYOND_HITS, SEARCH_RANKED_FIRST_HITS, SEARCH_RANKED_STEP_HITS
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.search import analyzers
from tracelake.search.query_parser import clause_of


@dataclass(frozen=True, slots=True)
class Hit:
    """One span that a search found. `highlight` is an excerpt with the matches between [[ and ]]."""

    trace_id: str
    span_id: str
    score: float  # 0 where hits are sorted by time
    service: str | None
    name: str
    start_ns: int
    highlight: str
    duration_ns: int = 0  # 0 where it still runs
    status: str | None = None
    model: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    workspace: str = WORKSPACE_DEFAULT
    kind: str | None = None

    @property
    def id(self) -> str:
        """Trace and span id as one text, as queries with `like:` take it."""
        return f"{self.trace_id}-{self.span_id}"

    @property
    def neighbours(self) -> dict[str, str]:
        """Queries that find spans beside this one: of its session, of its user, and like it elsewhere."""
        beside = {"session": self.session_id, "user": self.user_id, "like": self.id}
        return {field: clause_of(field, value) for field, value in beside.items() if value}


@dataclass(frozen=True, slots=True)
class FacetValue:
    """How many spans of a result have a value."""

    value: str
    spans: int


@dataclass(frozen=True, slots=True)
class Facet:
    """How the spans of a whole result spread over the values of a field; days in order, others by number."""

    values: tuple[FacetValue, ...]
    others: int
    """Spans with values that are not among these."""
    exact: bool = True
    """Whether the numbers are exact: a part of the index may have had more different values than are counted there."""


@dataclass(frozen=True, slots=True)
class PartsAsked:
    """How many parts of the index a search asks, and how many it leaves out since they cannot have what it asks for."""

    asked: int
    pruned: int


class SearchResults(list[Hit]):
    """The hits of one page, in order, and what is known of the whole result."""

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
        """How many spans the search finds in all; None where a condition decides."""
        self.facets = dict(facets or {})
        """Those that were asked for, by name."""
        self.commit = commit
        """The commit that was searched; None for an empty lake."""
        self.next_page = next_page
        """What to give to the same search as `page` for the hits that follow; None where there are none."""
        self.text = text
        """How texts become words in the index that was searched; None for an empty lake."""
        self.parts = parts
        """How many parts of the index were asked for the hits, and how many were not."""
        self.vectors = vectors
        """Which vectors the index has that was searched; None for none."""
        self.not_searched = not_searched
        """What was acknowledged and this search has not looked at, and why; None where it has looked at all."""
        self.hint = hint
        """Why the index may lack what the query asks for, and what to do; only if the search finds nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
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
        return analyzers.trace_of(self.stored)

    @property
    def span_id(self) -> str:
        """In lower-case hex."""
        return analyzers.span_of(self.stored)

    @property
    def row(self) -> int:
        """The id of the row."""
        return analyzers.row_of(self.stored)

    @property
    def transaction(self) -> int:
        """That of the row."""
        return analyzers.transaction_of(self.stored)


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
