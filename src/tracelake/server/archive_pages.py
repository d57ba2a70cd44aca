"""The page of the archive, with its JSON twin."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake.lake.lake import Lake
from tracelake.server.archive_api import OVERVIEW
from tracelake.server.archive_reads import archive_overview
from tracelake.server.archiving import Archiving
from tracelake.server.pages import page_maker
from tracelake.server.params import Limit


def archive_pages(lake: Lake, archiving: Archiving, templates: Jinja2Templates) -> APIRouter:
    """Return the route of this page over `lake`."""
    router = APIRouter(include_in_schema=False)
    page = page_maker(lake, templates)

    @router.get("/archive")
    def archive(request: Request, limit: Limit = limits.ARCHIVE_LISTED_DEFAULT) -> Response:
        view = None if not lake.hot.is_there else archive_overview(lake, archiving, limit)
        return page(request, "archive.html", OVERVIEW, view=view)

    return router
