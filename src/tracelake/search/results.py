"""What a search returns: a page of hits, and what is known of the whole result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracelake.results import Hit


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


class SearchResults(list[Hit]):
    """The hits of one page, in order, and what is known of the whole result."""

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        total: int | None = 0,
        facets: Mapping[str, Facet] | None = None,
        commit: str | None = None,
        next_page: str | None = None,
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "hits": [asdict(hit) for hit in self],
            "total": self.total,
            "facets": {name: asdict(facet) for name, facet in self.facets.items()},
            "commit": self.commit,
            "next_page": self.next_page,
        }
