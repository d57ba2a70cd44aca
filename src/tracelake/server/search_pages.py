"""The page of a search: hits, how the whole result spreads, and links that narrow it. It needs no scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.lake.lake import Lake
from tracelake.search.facets import DAY
from tracelake.search.narrowing import clause_of, narrowed, widened
from tracelake.search.query import Sort
from tracelake.search.results import Hit, SearchResults
from tracelake.server.pages import page_maker
from tracelake.server.params import Hits, Text
from tracelake.server.reads import search
from tracelake.server.render import with_query
from tracelake.tables.result_pages import PageToken, name_of_search, read_token

FACETS: Final = ("service", "status", "kind", "model", "user", "session", "day")
SAMPLES: Final = (
    ("status:error last 2h", "what failed lately"),
    ("duration>2s service:checkout", "what took long in one service"),
    ('"refund policy" AND model:gpt*', "a phrase, of some models"),
    ("refnd~1 OR exchange*", "words that are written alike, or begin so"),
    ("has:attributes.exception.type", "what has an attribute"),
)
_SHOWN: Final = 6
"""Values of a facet that are seen at once; the others unfold."""


@dataclass(frozen=True, slots=True)
class FacetChoice:
    """One value of a facet: how many spans have it, and the query that a click leads to."""

    value: str
    spans: int
    url: str
    chosen: bool
    width: float
    """Of a hundred, how much of the whole result it is."""


@dataclass(frozen=True, slots=True)
class FacetShown:
    """A facet beside the hits."""

    name: str
    choices: Sequence[FacetChoice]
    more: Sequence[FacetChoice]
    others: int
    exact: bool


@dataclass(frozen=True, slots=True)
class SearchLink:
    """What leads to another order."""

    text: str
    url: str
    chosen: bool


def search_pages(lake: Lake, templates: Jinja2Templates) -> APIRouter:
    """Return the route of the page over `lake`."""
    router = APIRouter(include_in_schema=False)
    templates.env.filters["neighbours"] = neighbours
    show = page_maker(lake, templates)

    @router.get("/search")
    def search_page(
        request: Request,
        q: str = "",
        limit: Hits = limits.SEARCH_HITS_DEFAULT,
        sort: Sort = "score",
        page: Text = None,
    ) -> Response:
        results, problem = SearchResults(), None
        try:
            if q.strip():
                results = search(lake, q, None, limit, sort, FACETS, page)
        except QueryError as error:
            problem = error
        first = _token(q, sort, page).offset if page and not problem else 0
        return show(
            request,
            "search.html",
            "/api/v1/search",
            status_code=400 if problem else 200,
            q=q,
            sort=sort,
            results=results,
            first=first,
            problem=problem,
            # The character that a query does not go on with, and what stands on both sides of it.
            broken=_parted(q, problem.character) if problem and problem.character else None,
            samples=SAMPLES,
            facets=list(_facets(q, sort, results)),
            orders=[SearchLink(name, _url(q, name), name == sort) for name in get_args(Sort)],
            newest_url=_url(q, sort) if page else None,
            previous_url=_before(request, q, sort, page, first, limit) if first else None,
            next_url=with_query(request, page=results.next_page) if results.next_page else None,
        )

    return router


def neighbours(hit: Hit) -> dict[str, str]:
    """Return what leads from a hit to spans beside it."""
    texts = {"session": "same session", "user": "same user", "like": "more like this"}
    return {
        texts[name]: _url(query, "score" if name == "like" else "oldest")
        for name, query in hit.neighbours.items()
    }


def _url(query: str, sort: Sort) -> str:
    order = {} if sort == "score" else {"sort": sort}
    return f"/search?{urlencode({'q': query, **order})}"


def _token(q: str, sort: Sort, page: str) -> PageToken:
    return read_token(page, name_of_search(q, None, None, sort))


def _before(request: Request, q: str, sort: Sort, page: str | None, first: int, limit: int) -> str:
    token = _token(q, sort, page or "")
    return with_query(request, page=str(replace(token, offset=max(0, first - limit))))


def _parted(query: str, character: int) -> tuple[str, str, str]:
    at = character - 1
    return query[:at], query[at : at + 1] or " ", query[at + 1 :]


def _facets(query: str, sort: Sort, results: SearchResults) -> Iterator[FacetShown]:
    """Yield the facets that have any value, those first that were asked for first."""
    for name, facet in results.facets.items():
        clauses = {value.value: clause_of(name, value.value) for value in facet.values}
        wider = widened(query, list(clauses.values()))
        choices = []
        for value in facet.values:
            clause = clauses[value.value]
            leads_to = wider.get(clause) or narrowed(query, clause)
            choices.append(
                FacetChoice(
                    value.value,
                    value.spans,
                    _url(leads_to, sort),
                    clause in wider,
                    round(100 * value.spans / (results.total or 1), 1),
                )
            )
        if name == DAY:
            choices.reverse()
        if choices:
            yield FacetShown(name, choices[:_SHOWN], choices[_SHOWN:], facet.others, facet.exact)
