"""History and datasets on pages and in the JSON API `/api/v1`: commits, diffs, branches, tags and examples.

Each page has a JSON twin. POST and DELETE change history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from tracelake import limits
from tracelake._errors import ConflictError
from tracelake.lake.lake import Lake
from tracelake.results import BranchInfo, CommitInfo
from tracelake.server.http_policy import RequestLake
from tracelake.server.render import with_query
from tracelake.server.routes import (
    JsonBody,
    JsonRoute,
    Limit,
    Name,
    RequestModel,
    Text,
    json_response,
    render_page,
)


def list_commits(lake: Lake, ref: str, limit: int) -> tuple[list[CommitInfo], str | None]:
    """Return one page of a commit's history, newest first, and the first commit of the next page.

    Raises RefNotFoundError.
    """
    commits = lake.log(ref, limit + 1)
    return commits[:limit], commits[limit].id if len(commits) > limit else None


def names_of(branches: Sequence[BranchInfo], tags: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the branches and tags of each commit."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for branch in branches:
        names[branch.head or ""].append(branch.name)
    for tag, commit_id in tags.items():
        names[commit_id].append(tag)
    return dict(names)


RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description=("Id of the request. A retry with the same id creates no second commit."),
    ),
]


class NewBranch(RequestModel):
    """Request body that creates a branch."""

    name: str
    at: str = "main"


class Protection(RequestModel):
    """Request body that protects a branch or removes its protection."""

    branch: str
    on: bool = True


class NewTag(RequestModel):
    """Request body that tags a commit."""

    name: str
    ref: str = "main"


class NewCommit(RequestModel):
    """Request body that commits the staged changes."""

    message: str
    branch: str = "main"
    committer: str | None = None
    allow_empty: bool = False


class NewMerge(RequestModel):
    """Request body that merges a commit into a branch."""

    source: str
    into: str = "main"
    message: str | None = None
    prefer: str = ""
    committer: str | None = None


class NewRevert(RequestModel):
    """Request body that reverts or cherry-picks a commit."""

    ref: str
    branch: str = "main"
    message: str | None = None
    committer: str | None = None


api = APIRouter(prefix="/api/v1", route_class=JsonRoute)
"""JSON API for history and datasets."""
pages = APIRouter(include_in_schema=False)
"""Pages for history and datasets."""


@api.get("/branches")
def branches(lake: RequestLake) -> Response:
    """List branches and tags."""
    return json_response({"branches": lake.branches(), "tags": lake.tags()})


@api.get("/commits")
def commits(lake: RequestLake, ref: Name = "main", limit: Limit = limits.PAGE_ROWS_DEFAULT) -> Response:
    """List commits, newest first."""
    commits, following = list_commits(lake, ref, limit)
    return json_response({"commits": commits, "next": following})


@api.get("/diff")
def diff(
    lake: RequestLake,
    before: Annotated[Text, Query(alias="from")] = None,
    after: Annotated[Name, Query(alias="to")] = "main",
    limit: Limit = limits.PAGE_ROWS_MAX,
) -> Response:
    """The entries that differ between two commits; without `from`, from the first parent."""
    entries = lake.diff(before, after, limit + 1)
    changes = [change.to_dict() for change in entries[:limit]]
    return json_response({"from": before, "to": after, "changes": changes, "more": len(entries) > limit})


@api.post("/branches")
def create_branch(lake: RequestLake, body: JsonBody[NewBranch], request_id: RequestId = None) -> Response:
    """Make a branch."""
    branch = lake.create_branch(body.name, body.at, request_id=request_id)
    return json_response({"branch": branch.name, "commit": branch.head}, 201)


@api.delete("/branches/{name:path}")
def delete_branch(lake: RequestLake, name: str, force: bool = False) -> Response:
    """Delete a branch; with `force`, also its staged entries."""
    lake.delete_branch(name, force=force)
    return json_response({"branch": name})


@api.post("/protections")
def protect(lake: RequestLake, body: JsonBody[Protection]) -> Response:
    """Protect a branch, so that only merges and pipelines change it, or end that."""
    lake.branch(body.branch).protect(body.on)
    return json_response({"branch": body.branch, "protected": body.on})


@api.post("/tags")
def tag(lake: RequestLake, body: JsonBody[NewTag]) -> Response:
    """Create a tag: a name for a commit that never moves."""
    return json_response({"tag": body.name, "commit": lake.tag(body.name, body.ref)}, 201)


@api.delete("/tags/{name:path}")
def delete_tag(lake: RequestLake, name: str) -> Response:
    """Delete a tag; its commit stays."""
    lake.delete_tag(name)
    return json_response({"tag": name})


@api.post("/commits")
def commit(lake: RequestLake, body: JsonBody[NewCommit], request_id: RequestId = None) -> Response:
    """Commit all staged entries of a branch."""
    branch = lake.branch(body.branch)
    commit = branch.commit(
        body.message, allow_empty=body.allow_empty, committer=body.committer, request_id=request_id
    )
    return json_response({"branch": body.branch, "commit": commit}, 201)


@api.post("/merges")
def merge(lake: RequestLake, body: JsonBody[NewMerge], request_id: RequestId = None) -> Response:
    """Merge a commit into a branch; 409 with the conflicts."""
    branch = lake.branch(body.into)
    try:
        commit = branch.merge(
            body.source, body.message, prefer=body.prefer, committer=body.committer, request_id=request_id
        )
    except ConflictError as error:
        conflicts = branch.conflicts(body.source)[: limits.PAGE_ROWS_MAX]
        return json_response({"error": str(error), "conflicts": conflicts}, 409)
    return json_response({"branch": body.into, "commit": commit}, 201)


@api.post("/reverts")
def revert(lake: RequestLake, body: JsonBody[NewRevert], request_id: RequestId = None) -> Response:
    """Undo the changes of a commit."""
    commit = lake.branch(body.branch).revert(
        body.ref, body.message, committer=body.committer, request_id=request_id
    )
    return json_response({"branch": body.branch, "commit": commit}, 201)


@api.post("/cherry-picks")
def cherry_pick(lake: RequestLake, body: JsonBody[NewRevert], request_id: RequestId = None) -> Response:
    """Apply the changes of a commit to another branch."""
    commit = lake.branch(body.branch).cherry_pick(
        body.ref, body.message, committer=body.committer, request_id=request_id
    )
    return json_response({"branch": body.branch, "commit": commit}, 201)


@pages.get("/versions")
def versions_page(
    lake: RequestLake, request: Request, ref: Name = "main", limit: Limit = limits.PAGE_ROWS_DEFAULT
) -> Response:
    """Show the commits of a branch or tag."""
    branches, tags = lake.branches(), lake.tags()
    commits, following = list_commits(lake, ref, limit)
    return render_page(
        request,
        "versions.html",
        "/api/v1/commits",
        ref=ref,
        branches=branches,
        tags=tags,
        names=names_of(branches, tags),
        commits=commits,
        next_url=with_query(request, ref=following) if following else None,
    )


@pages.get("/diff")
def diff_page(
    lake: RequestLake,
    request: Request,
    before: Annotated[Text, Query(alias="from")] = None,
    after: Annotated[Name, Query(alias="to")] = "main",
    limit: Limit = limits.PAGE_ROWS_MAX,
) -> Response:
    """Show the changes between two commits."""
    entries = lake.diff(before, after, limit + 1)
    commit = lake.log(after, 1)
    return render_page(
        request, "diff.html", "/api/v1/diff",
        before=before, after=after, commit=commit[0] if commit else None,
        changes=entries[:limit], more=len(entries) > limit,
    )  # fmt: skip
