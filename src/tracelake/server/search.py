"""Search page: hits, facets over all results, and links that refine the query. It needs no scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from tracelake import limits
from tracelake._errors import EmbeddingError, QueryError, UsageError
from tracelake.search.facets import DAY
from tracelake.search.query_parser import clause_of, narrowed, widened
from tracelake.search.results import Hit, SearchResults
from tracelake.search.searcher import Sort
from tracelake.search.semantic_search import Mode
from tracelake.server.http_policy import RequestLake, status_of
from tracelake.server.render import with_query
from tracelake.server.routes import Hits, Text, refuse_unknown, render_page
from tracelake.server.trace_list_routes import find_id, presets_of
from tracelake.server.trace_page import TYPE_LABELS
from tracelake.server.traces import TimeRange, search
from tracelake.tables.page_tokens import PageToken, token_of

FACETS: Final = ("service", "status", "kind", "model", "user", "session", "day")
SAMPLES: Final = (
    ("status:error last 2h", "what failed lately"),
    ("duration>2s service:checkout", "slow spans of one service"),
    ('"refund policy" AND model:gpt*', "a phrase, for some models"),
    ("refnd~1 OR exchange*", "similar words, or words with a common beginning"),
    ("has:attributes.exception.type", "spans with an attribute"),
)
_SHOWN: Final = 6
"""Facet values shown at once; the others unfold."""


@dataclass(frozen=True, slots=True)
class FacetChoice:
    """One facet value with its number of spans, and the query that a click runs."""

    value: str
    spans: int
    url: str | None
    """None for a cut value, because a query for it finds nothing."""
    chosen: bool
    width: float
    """Percentage of the whole result."""


@dataclass(frozen=True, slots=True)
class FacetShown:
    """Facet shown next to the hits."""

    name: str
    choices: Sequence[FacetChoice]
    more: Sequence[FacetChoice]
    others: int
    exact: bool


@dataclass(frozen=True, slots=True)
class SearchLink:
    """Link to another order or mode."""

    text: str
    url: str
    chosen: bool


pages = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])
"""Search page."""


@pages.get("/search")
def search_page(
    lake: RequestLake,
    request: Request,
    time_range: TimeRange,
    q: str = "",
    limit: Hits = limits.SEARCH_HITS_DEFAULT,
    sort: Sort = "score",
    page: Text = None,
    mode: Mode = "text",
) -> Response:
    """Show the hits of a search, or redirect to the trace or span with this id."""
    if (address := find_id(lake, q)) is not None:
        return RedirectResponse(address, 303)
    results, problem = SearchResults(), None
    parameters = request.query_params
    times = tuple((name, parameters[name]) for name in ("last", "start", "end") if parameters.get(name))
    try:
        if q.strip() or times:
            results = search(
                lake, q, mode=mode, time_range=time_range, limit=limit, sort=sort, facets=FACETS, page=page
            )
    except (QueryError, EmbeddingError, UsageError) as error:
        problem = error
    page_request = SearchPageRequest(q, sort, mode, times)
    # The lake has checked that the token belongs to this search and workspace.
    token = token_of(page) if page and not problem else None
    first = token.offset if token is not None else 0
    character = getattr(problem, "character", None)
    return render_page(
        request,
        "search.html",
        "/api/v1/search",
        status=status_of(type(problem)) if problem else 200,
        q=q,
        times=times,
        wanted=time_range,
        presets=presets_of(request),
        parameters=parameters,
        sort=sort,
        mode=mode,
        results=results,
        first=first,
        problem=problem,
        # The unexpected character of the query, and the text before and after it.
        broken=_parted(q, character) if character else None,
        neighbours=neighbours,
        samples=SAMPLES,
        types=TYPE_LABELS,
        facets=list(_facets(page_request, results)),
        orders=[] if mode != "text" else page_request.orders(),
        modes=page_request.modes() if results.vectors or mode != "text" else [],
        newest_url=page_request.url() if page else None,
        previous_url=_before(request, token, limit) if token is not None and first else None,
        next_url=with_query(request, page=results.next_page) if results.next_page else None,
    )


@dataclass(frozen=True, slots=True)
class SearchPageRequest:
    """Parameters of a search page, and links to variants of it."""

    query: str
    sort: Sort = "score"
    mode: Mode = "text"
    times: tuple[tuple[str, str], ...] = ()
    """Parameters of the time range."""

    def url(self) -> str:
        """Return the URL of the first page."""
        order = {} if self.sort == "score" else {"sort": self.sort}
        by = {} if self.mode == "text" else {"mode": self.mode}
        return f"/search?{urlencode({'q': self.query, **order, **by, **dict(self.times)})}"

    def orders(self) -> list[SearchLink]:
        """Return links to the same hits in each order."""
        return [
            SearchLink(name, replace(self, sort=name).url(), name == self.sort) for name in get_args(Sort)
        ]

    def modes(self) -> list[SearchLink]:
        """Return links to the same search by words, by meaning, and by both."""
        texts: dict[Mode, str] = {"text": "words", "semantic": "meaning", "hybrid": "both"}
        return [
            SearchLink(text, replace(self, sort="score", mode=mode).url(), mode == self.mode)
            for mode, text in texts.items()
        ]


def neighbours(hit: Hit) -> dict[str, str]:
    """Return links from a hit to related spans."""
    texts = {"session": "same session", "user": "same user", "like": "more like this"}
    return {
        texts[name]: SearchPageRequest(query, "score" if name == "like" else "oldest").url()
        for name, query in hit.neighbours.items()
    }


def _before(request: Request, token: PageToken, limit: int) -> str:
    """Return the URL of the previous page."""
    return with_query(request, page=str(replace(token, offset=max(0, token.offset - limit))))


def _parted(query: str, character: int) -> tuple[str, str, str]:
    at = character - 1
    return query[:at], query[at : at + 1] or " ", query[at + 1 :]


def _facets(page_request: SearchPageRequest, results: SearchResults) -> Iterator[FacetShown]:
    """Yield the facets that have values, in the requested order."""
    for name, facet in results.facets.items():
        clauses = {value.value: clause_of(name, value.value) for value in facet.values}
        wider = widened(page_request.query, list(clauses.values()))
        choices = []
        for value in facet.values:
            clause = clauses[value.value]
            leads_to = wider.get(clause) or narrowed(page_request.query, clause)
            choices.append(
                FacetChoice(
                    value.value,
                    value.spans,
                    replace(page_request, query=leads_to).url()
                    if len(value.value) < limits.LIST_TEXT_MAX_CHARS
                    else None,
                    clause in wider,
                    round(100 * value.spans / (results.total or 1), 1),
                )
            )
        if name == DAY:
            choices.reverse()
        if choices:
            yield FacetShown(name, choices[:_SHOWN], choices[_SHOWN:], facet.others, facet.exact)
