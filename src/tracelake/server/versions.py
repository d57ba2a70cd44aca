"""History and datasets on pages and in the JSON API `/api/v1`: commits, diffs, branches, tags and examples.

Each page has a JSON twin. POST and DELETE change history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from tracelake import limits
from tracelake._errors import ConflictError, TracelakeError
from tracelake._settings import load_settings
from tracelake.datasets.model import dataset_of, is_spec
from tracelake.lake.lake import Lake
from tracelake.results import BranchInfo, CommitInfo, EntryChange
from tracelake.server.audit import tell_object
from tracelake.server.http_policy import RequestLake
from tracelake.server.render import count, reference, with_query
from tracelake.server.routes import (
    FormFields,
    JsonBody,
    JsonRoute,
    Limit,
    Name,
    RequestModel,
    Text,
    author_of,
    is_allowed,
    json_response,
    render_page,
)
from tracelake.versions.branch_store import MAIN


def list_commits(lake: Lake, ref: str, limit: int) -> tuple[list[CommitInfo], str | None]:
    """Return one page of a commit's history, newest first, and the first commit of the next page.

    Raises RefNotFoundError.
    """
    commits = lake.log(ref, limit + 1, reasons=True)
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
    return json_response({"commits": commits, "next": following, "expired": lake.branch().expired()})


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
    return _versions_page(lake, request, ref, limit)


def _versions_page(
    lake: Lake, request: Request, ref: str, limit: int, error: TracelakeError | None = None
) -> Response:
    branches, tags = lake.branches(), lake.tags()
    commits, following = list_commits(lake, ref, limit)
    return render_page(
        request,
        "versions.html",
        "/api/v1/commits",
        ref=ref,
        error=error,
        can_edit=_may_change(request),
        is_branch=any(branch.name == ref for branch in branches),
        branches=branches,
        tags=tags,
        names=names_of(branches, tags),
        commits=commits,
        next_url=with_query(request, ref=following) if following else None,
        expired=lake.branch().expired(),
        history=load_settings(),
    )


def history_metrics(lake: Lake) -> Iterator[Metric]:
    """Yield metrics of expired commits."""
    expired = lake.branch().expired()
    oldest_at = expired.oldest_at if expired is not None else ""
    for name, text, value in (
        ("expired_commits", "Commits that have expired.", 0 if expired is None else expired.commits),
        (
            "oldest_timestamp_seconds",
            "Time of the oldest commit of main that can be read; 0 before any has expired.",
            datetime.fromisoformat(oldest_at).timestamp() if oldest_at else 0,
        ),
    ):
        yield GaugeMetricFamily(f"tracelake_history_{name}", text, value=value)


def _may_change(request: Request) -> bool:
    """Return whether the caller may change branches and tags."""
    return is_allowed(request, "/versions/merge")


def _to_versions(ref: str) -> Response:
    return RedirectResponse(f"/versions?{urlencode({'ref': ref})}", 303)


@pages.post("/versions/branches")
def submit_branch(lake: RequestLake, request: Request, fields: FormFields) -> Response:
    """Create a branch, and show it. After an error, show the versions with the reason."""
    name, ref = fields.get("name", "").strip(), fields.get("at") or MAIN
    try:
        lake.create_branch(name, ref)
    except TracelakeError as error:
        return _versions_page(lake, request, MAIN, limits.PAGE_ROWS_DEFAULT, error)
    return _to_versions(name)


@pages.post("/versions/tags")
def submit_tag(lake: RequestLake, request: Request, fields: FormFields) -> Response:
    """Tag a commit, and show it. After an error, show the versions with the reason."""
    name, ref = fields.get("name", "").strip(), fields.get("at") or MAIN
    try:
        lake.tag(name, ref)
    except TracelakeError as error:
        return _versions_page(lake, request, MAIN, limits.PAGE_ROWS_DEFAULT, error)
    return _to_versions(name)


@pages.post("/versions/branches/delete")
def submit_branch_deletion(lake: RequestLake, request: Request, fields: FormFields) -> Response:
    """Delete a branch without staged entries, and show `main`. After an error, show the branch with the reason."""
    name = fields.get("name", "")
    tell_object(f"branch {name}")
    try:
        lake.delete_branch(name)
    except TracelakeError as error:
        return _versions_page(lake, request, name, limits.PAGE_ROWS_DEFAULT, error)
    return _to_versions(MAIN)


@pages.post("/versions/tags/delete")
def submit_tag_deletion(lake: RequestLake, fields: FormFields) -> Response:
    """Delete a tag, and show `main`."""
    name = fields.get("name", "")
    tell_object(f"tag {name}")
    lake.delete_tag(name)
    return _to_versions(MAIN)


@pages.get("/versions/merge")
def merge_page(lake: RequestLake, request: Request, source: Name, into: Name = MAIN) -> Response:
    """Show what a merge would change, and its conflicts, before anything changes."""
    return _merge_page(lake, request, source, into)


@pages.post("/versions/merge")
def submit_merge(lake: RequestLake, request: Request, fields: FormFields) -> Response:
    """Merge, and show the branch. After an error, show the preview again with the reason."""
    source, into = fields.get("source", ""), fields.get("into") or MAIN
    try:
        lake.branch(into).merge(
            source,
            fields.get("message") or None,
            prefer=fields.get("prefer", ""),
            committer=author_of(request),
        )
    except TracelakeError as error:
        return _merge_page(lake, request, source, into, error)
    return _to_versions(into)


def summary_of(changes: Sequence[EntryChange]) -> list[str]:
    """Return what changes do, in words: the number of examples of each dataset, and each other entry."""
    examples = Counter[tuple[str, str]]()
    others = []
    for each in changes:
        if (name := dataset_of(each.path)) is not None and not is_spec(each.path):
            examples[name, each.change] += 1
        else:
            path = each.path.replace("/", " ", 1)
            others.append(f"{path}: {reference(each.before) or 'none'} → {reference(each.after) or 'none'}")
    return [
        f"dataset {name}: {count(number)} example{'s' if number > 1 else ''} {change}"
        for (name, change), number in sorted(examples.items())
    ] + others


def _merge_page(
    lake: Lake, request: Request, source: str, into: str, error: TracelakeError | None = None
) -> Response:
    branch = lake.branch(into)
    changes, conflicts = branch.preview(source)
    return render_page(
        request, "version_change.html", "/api/v1/branches",
        action="merge", ref=source, branch=into, changes=changes[: limits.PAGE_ROWS_MAX], total=len(changes),
        summary=summary_of(changes), conflicts=conflicts[: limits.PAGE_ROWS_MAX],
        error=error, commit=None, can_edit=_may_change(request),
    )  # fmt: skip


@pages.get("/versions/revert")
def revert_page(lake: RequestLake, request: Request, ref: Name, branch: Name = MAIN) -> Response:
    """Show the changes of a commit that a revert would undo, before anything changes."""
    return _commit_page(lake, request, "revert", ref, branch)


@pages.post("/versions/revert")
def submit_revert(lake: RequestLake, request: Request, fields: FormFields) -> Response:
    """Revert a commit, and show the branch. After an error, show the changes again with the reason."""
    return _submit_commit(lake, request, "revert", fields)


@pages.get("/versions/cherry-pick")
def cherry_pick_page(lake: RequestLake, request: Request, ref: Name, branch: Name = MAIN) -> Response:
    """Show the changes of a commit that another branch would get, before anything changes."""
    return _commit_page(lake, request, "cherry-pick", ref, branch)


@pages.post("/versions/cherry-pick")
def submit_cherry_pick(lake: RequestLake, request: Request, fields: FormFields) -> Response:
    """Apply a commit to another branch, and show it. After an error, show the changes again with the reason."""
    return _submit_commit(lake, request, "cherry-pick", fields)


def _submit_commit(
    lake: Lake, request: Request, action: Literal["revert", "cherry-pick"], fields: Mapping[str, str]
) -> Response:
    ref, name = fields.get("ref", ""), fields.get("branch") or MAIN
    try:
        branch = lake.branch(name)
        change = branch.revert if action == "revert" else branch.cherry_pick
        change(ref, fields.get("message") or None, committer=author_of(request))
    except TracelakeError as error:
        return _commit_page(lake, request, action, ref, name, error)
    return _to_versions(name)


def _commit_page(
    lake: Lake,
    request: Request,
    action: Literal["revert", "cherry-pick"],
    ref: str,
    branch: str,
    error: TracelakeError | None = None,
) -> Response:
    changes = lake.diff(None, ref, limits.PAGE_ROWS_MAX)
    return render_page(
        request, "version_change.html", "/api/v1/branches",
        action=action, ref=ref, branch=branch, changes=changes, total=len(changes), conflicts=[],
        summary=summary_of(changes), error=error, commit=next(iter(lake.log(ref, 1)), None),
        can_edit=_may_change(request),
    )  # fmt: skip


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
        can_edit=_may_change(request), branches=[each.name for each in lake.branches() if not each.protected],
    )  # fmt: skip
