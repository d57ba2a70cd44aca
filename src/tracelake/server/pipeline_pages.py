"""The pages of the pipeline: its transactions, and one of them; each with its JSON twin."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake.lake.lake import Lake
from tracelake.server.beside import Beside
from tracelake.server.pages import page_maker
from tracelake.server.params import Limit
from tracelake.server.pipeline_api import PIPELINE, Number, pipeline_overview
from tracelake.server.render import with_query


def pipeline_pages(lake: Lake, beside: Beside | None, templates: Jinja2Templates) -> APIRouter:
    """Return the routes of these pages over `lake`."""
    router = APIRouter(include_in_schema=False)
    page = page_maker(lake, templates)

    @router.get("/pipeline")
    def pipeline(
        request: Request, limit: Limit = limits.PAGE_ROWS_DEFAULT, before: Number = None
    ) -> Response:
        view = pipeline_overview(lake, beside, limit, before)
        next_url = with_query(request, before=view["next"]) if view["next"] is not None else None
        return page(request, "pipeline.html", PIPELINE, view=view, next_url=next_url)

    @router.get("/pipeline/{transaction}")
    def transaction(request: Request, transaction: int) -> Response:
        account = lake.journal.explain(transaction)
        shown = limits.PAGE_ROWS_DEFAULT
        twin = f"{PIPELINE}/transactions/{transaction}"
        return page(request, "transaction.html", twin, account=account, info=account.info, shown=shown)

    return router
