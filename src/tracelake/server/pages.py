"""The web UI: pages rendered here, each with its JSON twin. Templates escape whatever comes from a trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.lake.lake import Lake
from tracelake.server import render
from tracelake.server.key_ring import ACTOR, KeyHolder
from tracelake.server.params import Offset, Text, Wanted
from tracelake.server.reads import ORDERS, TraceFilter, TracePage, list_services, list_traces
from tracelake.server.routes import may_open
from tracelake.server.waterfall import lay_out

HERE = Path(__file__).parent
STATIC = HERE / "static"
ROOMS = (
    ("/", "Traces"),
    ("/versions", "Versions"),
    ("/datasets", "Datasets"),
    ("/pipeline", "Pipeline"),
    ("/archive", "Archive"),
)


class HasUrl(Protocol):
    """What is somewhere."""

    @property
    def url(self) -> str:
        """Where it is."""


def page_templates() -> Jinja2Templates:
    """Return the templates with the filters of `render`."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": render.duration,
        "timestamp": render.timestamp,
        "ago": lambda nanoseconds: render.ago(nanoseconds, time.time_ns()),
        "count": render.count,
        "size": render.size,
        "outcome": render.outcome,
        "span_url": render.span_url,
        "tokens": render.tokens,
        "reference": render.reference,
        "highlighted": render.highlighted,
    }
    return Jinja2Templates(env=environment, context_processors=[_rooms])


def _rooms(request: Request) -> dict[str, Any]:
    """Return the pages that lead on from each, which who asks may open; without a key, those of a lake without any."""
    actor: KeyHolder | None = request.scope.get(ACTOR)
    return {
        "rooms": [
            (path, label)
            for path, label in ROOMS
            if actor is None or may_open(path, actor.role, actor.workspace)
        ]
    }


def page_maker(lake: HasUrl, templates: Jinja2Templates) -> Callable[..., Response]:
    """Return what renders a page: of a request, by template, with the path of its JSON twin, and what it shows."""

    def page(request: Request, name: str, twin: str, status_code: int = 200, **context: Any) -> Response:
        json_url = f"{twin}?{request.url.query}" if request.url.query else twin
        context |= {"json_url": json_url, "lake_url": lake.url}
        return templates.TemplateResponse(request, name, context, status_code=status_code)

    return page


def page_routes(lake: Lake, templates: Jinja2Templates) -> APIRouter:
    """Return the routes of the pages over `lake`."""
    router = APIRouter(include_in_schema=False)

    page = page_maker(lake, templates)

    @router.get("/")
    def traces(request: Request, wanted: Wanted) -> Response:
        listing = list_traces(lake, wanted)
        return page(
            request,
            "traces.html",
            "/api/v1/traces",
            traces=listing.traces,
            not_listed=listing.not_listed,
            wanted=wanted,
            services=list_services(lake),
            orders=ORDERS,
            previous_url=_previous_url(request, wanted, listing),
            next_url=render.with_page(request, listing.next_page) if listing.next_page else None,
        )

    @router.get("/favicon.ico")
    def icon() -> Response:
        return FileResponse(STATIC / "icon.svg")

    @router.get("/traces/{trace_id}")
    def trace_page(
        request: Request,
        trace_id: str,
        first: Offset = 0,
        span: Text = None,
        workspace: Text = None,
        kind: Text = None,
    ) -> Response:
        trace = lake.hot.outline(trace_id)
        waterfall = lay_out(trace)
        size = limits.TRACE_PAGE_SPANS_MAX
        if span:
            first = waterfall.first_of_page(span, size, workspace, kind)
        return page(
            request,
            "trace.html",
            f"/api/v1/traces/{trace.trace_id}",
            trace=trace,
            tags=_shown_tags(lake, trace.trace_id),
            waterfall=waterfall,
            bars=waterfall.bars[first : first + size],
            first=first,
            total=len(waterfall.bars),
            previous_first=max(first - size, 0) if first else None,
            next_first=first + size if first + size < len(waterfall.bars) else None,
        )

    return router


def _previous_url(request: Request, wanted: TraceFilter, listing: TracePage) -> str | None:
    """Return the address of the page before one; a page that was asked for by its offset leads to another such."""
    if wanted.offset:
        return render.with_query(request, offset=max(wanted.offset - wanted.limit, 0))
    return render.with_page(request, listing.previous_page) if listing.previous_page else None


def _shown_tags(lake: Lake, trace_id: str) -> dict[str, str]:
    """Return the tags of a trace; none where the lake keeps no tags, or they cannot be read: the trace can."""
    try:
        return {} if not lake.hot.is_there else lake.annotations.shown_tags([trace_id]).get(trace_id, {})
    except StorageError:
        return {}
