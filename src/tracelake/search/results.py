"""Search results: a page of hits, and facts about the complete result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracelake.limits import (
    LIST_TEXT_MAX_CHARS,
)
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
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
