"""The pages of history and datasets, each with its JSON twin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake.lake.lake import Lake
from tracelake.server.pages import page_maker
from tracelake.server.params import Limit, Name, Text
from tracelake.server.render import with_query
from tracelake.server.versions import list_changes, list_commits, list_examples, names_of


def versions_pages(lake: Lake, templates: Jinja2Templates) -> APIRouter:
    """Return the routes of these pages over `lake`."""
    router = APIRouter(include_in_schema=False)
    page = page_maker(lake, templates)

    @router.get("/versions")
    def versions(request: Request, ref: Name = "main", limit: Limit = limits.PAGE_ROWS_DEFAULT) -> Response:
        branches, tags = lake.branches(), lake.tags()
        listing = list_commits(lake, ref, limit)
        return page(
            request,
            "versions.html",
            "/api/v1/commits",
            ref=ref,
            branches=branches,
            tags=tags,
            names=names_of(branches, tags),
            commits=listing.commits,
            next_url=with_query(request, ref=listing.next) if listing.next else None,
        )

    @router.get("/diff")
    def diff(
        request: Request,
        before: Annotated[Text, Query(alias="from")] = None,
        after: Annotated[Name, Query(alias="to")] = "main",
        limit: Limit = limits.PAGE_ROWS_MAX,
    ) -> Response:
        listing = list_changes(lake, before, after, limit)
        commit = lake.log(after, 1)
        return page(
            request, "diff.html", "/api/v1/diff",
            before=before, after=after, commit=commit[0] if commit else None,
            changes=listing.changes, more=listing.more,
        )  # fmt: skip

    @router.get("/datasets")
    def datasets(request: Request, ref: Name = "main") -> Response:
        return page(
            request, "datasets.html", "/api/v1/datasets",
            ref=ref, datasets=lake.datasets.all(ref), branches=lake.branches(), tags=lake.tags(),
        )  # fmt: skip

    @router.get("/datasets/{name}")
    def dataset(
        request: Request,
        name: str,
        ref: Name = "main",
        after: Text = None,
        limit: Limit = limits.PAGE_ROWS_DEFAULT,
    ) -> Response:
        listing = list_examples(lake, name, ref, after or "", limit)
        return page(
            request,
            "dataset.html",
            f"/api/v1/datasets/{name}",
            dataset=name,
            ref=ref,
            listing=listing,
            next_url=with_query(request, after=listing.next) if listing.next else None,
        )

    return router
