"""`/api/v1`: what the pages show, as JSON. Times are integers, nanoseconds since 1970 UTC."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from tracelake.lake.lake import Lake
from tracelake.limits import QUERY_MAX_CHARS, SEARCH_HITS_DEFAULT, TRACE_API_SPANS_MAX
from tracelake.search.query import Sort
from tracelake.search.semantic import Mode
from tracelake.server.json_pieces import in_pieces
from tracelake.server.params import Facets, Hits, Text, VectorText, Wanted, numbers_of
from tracelake.server.reads import find_span, list_services, list_traces, read_page, search, trace_as_otlp


def api_routes(lake: Lake) -> APIRouter:
    """Return the routes of the JSON API over `lake`."""
    router = APIRouter(prefix="/api/v1")

    @router.get("/traces", summary="List traces")
    def traces(wanted: Wanted) -> Response:
        page = list_traces(lake, wanted)
        bounds = {"limit": wanted.limit, "offset": wanted.offset}
        pages = {"next_page": page.next_page, "previous_page": page.previous_page}
        return json_response(
            {"traces": page.traces, "more": page.more, **bounds, "not_listed": page.not_listed, **pages}
        )

    @router.get("/services", summary="List the services that traces begin in")
    def services() -> Response:
        return json_response({"services": list_services(lake)})

    @router.get("/traces/{trace_id}", summary="One trace with its spans by pages; format=otlp for OTLP/JSON")
    def trace(
        trace_id: str,
        format: Annotated[str, Query(pattern="^(rows|otlp)$")] = "rows",
        tiers: Annotated[bool, Query(description="whether each span says its tier, hot or lake")] = False,
        limit: Annotated[int, Query(ge=1, le=TRACE_API_SPANS_MAX)] = TRACE_API_SPANS_MAX,
        page: Annotated[Text, Query(description="next_page of the answer before")] = None,
    ) -> Response:
        if format == "otlp":
            return in_pieces(trace_as_otlp(lake, trace_id))
        return in_pieces(read_page(lake, trace_id, limit, page, tiers=tiers))

    @router.get("/hot-tier", summary="Whether the lake has a tracking store, and what waits in its outbox")
    def hot_tier() -> Response:
        return json_response(lake.hot.describe())

    @router.get("/traces/{trace_id}/spans/{span_id}", summary="One span")
    def span(trace_id: str, span_id: str, workspace: Text = None, kind: Text = None) -> Response:
        return json_response(find_span(lake, trace_id, span_id, workspace, kind))

    @router.get("/search", summary="Search over spans by words or meaning, with total, facets and pages")
    def search_spans(
        q: Annotated[str, Query(min_length=1)],
        service: Text = None,
        limit: Hits = SEARCH_HITS_DEFAULT,
        sort: Sort = "score",
        facet: Facets = (),
        page: Text = None,
        mode: Mode | None = None,
        vector: VectorText = None,
    ) -> Response:
        numbers = None if vector is None else numbers_of(vector)
        results = search(lake, q, service, limit, sort, facet, page, mode, numbers)
        return json_response({"query": q, **results.to_dict()})

    @router.get("/search/completions", summary="Queries that go on where one that is being typed ends")
    def complete(q: Annotated[str, Query(max_length=QUERY_MAX_CHARS)]) -> Response:
        return json_response({"query": q, "completions": lake.completions(q)})

    return router


def json_response(content: object, status_code: int = 200) -> Response:
    """Answer with rows, records or plain values as JSON; bytes become base64."""
    return Response(msgspec.json.encode(content), status_code, media_type="application/json")
