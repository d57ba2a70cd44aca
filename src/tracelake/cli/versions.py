"""Commands for branches, staged changes, commits and tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracelake._errors import ConflictError
from tracelake.cli import render
from tracelake.cli.command import Note, Renderable, Rendered, command
from tracelake.cli.options import BranchOption, CommitterOption, MessageOption, RequestIdOption
from tracelake.cli.output import console
from tracelake.limits import CONFLICTS_TOLD_MAX, DIFF_ENTRIES_SHOWN, PAGE_ROWS_MAX

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake
    from tracelake.results import BranchInfo, RequestInfo

app = typer.Typer()
branch_app = typer.Typer(help="Manage branches: work separately from main, and merge.", no_args_is_help=True)
app.add_typer(branch_app, name="branch")
tag_app = typer.Typer(help="Manage tags: permanent names of commits.", no_args_is_help=True)
app.add_typer(tag_app, name="tag")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The branch.")]
RefArgument = Annotated[str, typer.Argument(metavar="REF", help="The commit; see --at of `tracelake log`.")]
TagArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]
_COMMITTED: Final = f"Branch {{branch}} is at {{commit:.{render.COMMIT_SHOWN}}}."


def _branches(infos: Sequence[BranchInfo]) -> Rendered:
    rows = [
        (i.name, (i.head or "")[: render.COMMIT_SHOWN], i.staged or None, "protected" if i.protected else "")
        for i in infos
    ]
    return render.grid(("branch", "commit", "staged", ""), rows, ids=("branch", "commit"))


@command(
    branch_app, "list", text=_branches, examples=["tracelake branch list", "tracelake branch list --json"]
)
def list_branches(lake: Lake) -> list[BranchInfo]:
    """List all branches."""
    return lake.branches()


def _creation_text(of: dict[str, Any]) -> Rendered:
    return f"Branch {of['branch']} begins at {(of['commit'] or '')[: render.COMMIT_SHOWN]}."


@command(
    branch_app,
    "create",
    text=_creation_text,
    examples=["tracelake branch create labels", "tracelake branch create redo main~3"],
)
def create(
    lake: Lake,
    name: NameArgument,
    ref: Annotated[str, typer.Argument(metavar="[REF]", help="Commit that it begins at.")] = "main",
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Create a branch at a commit. Nothing is copied."""
    return {"branch": name, "commit": lake.create_branch(name, ref, request_id=request_id).head}


@command(
    branch_app,
    "delete",
    text="Deleted branch {branch}.",
    examples=["tracelake branch delete labels", "tracelake branch delete labels --force"],
)
def delete(
    lake: Lake,
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if entries are staged on it.")
    ] = False,
) -> dict[str, Any]:
    """Delete a branch. Commits stay if another branch or a tag reaches them."""
    lake.delete_branch(name, force=force)
    return {"branch": name, "deleted": True}


def _protected(of: dict[str, Any]) -> Rendered:
    return f"Branch {of['branch']} is {'protected' if of['protected'] else 'not protected any more'}."


@command(
    branch_app,
    "protect",
    text=_protected,
    examples=["tracelake branch protect main", "tracelake branch protect main --off"],
)
def protect(
    lake: Lake, name: NameArgument, off: Annotated[bool, typer.Option("--off", help="End it.")] = False
) -> dict[str, Any]:
    """Restrict a branch to merges, pipelines and table writers."""
    lake.branch(name).protect(not off)
    return {"branch": name, "protected": not off}


def _requests(infos: Sequence[RequestInfo]) -> Rendered:
    rows = [(info.id, info.operation, info.committer, info.created_at, info.message) for info in infos]
    heads = ("request", "kind", "committer", "began", "message")
    return render.grid(heads, rows, ids=("request",)) if rows else "No commit waits to be built."


@command(
    branch_app,
    "requests",
    text=_requests,
    examples=["tracelake branch requests main", "tracelake branch requests main --json"],
)
def list_requests(lake: Lake, name: NameArgument) -> list[RequestInfo]:
    """List commit requests of a branch that are not built yet.

    The next committer builds them first. A request that stays here cannot be built; remove it with `drop-request`.
    """
    return lake.branch(name).requests()


@command(
    branch_app,
    "drop-request",
    text="Dropped request {request} of branch {branch}.",
    examples=[
        "tracelake branch drop-request main 0f3c21b4",
        'tracelake branch drop-request main 0f3c21b4 --why "needs more memory than there is"',
    ],
)
def drop_request(
    lake: Lake,
    name: NameArgument,
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help=("Id of the request, as in `branch requests`."))
    ],
    why: Annotated[str | None, typer.Option("--why", help="Reason that its committer gets.")] = None,
) -> dict[str, Any]:
    """Drop a commit request that cannot be built. Its staged changes stay staged."""
    lake.branch(name).drop_request(request, why)
    return {"branch": name, "request": request, "dropped": True}


def _status(of: dict[str, Any]) -> Iterator[Renderable]:
    branch, head, staged = of["branch"], of["head"], of["staged"]
    note = ", protected" if of["protected"] else ""
    yield f"Branch {branch} at {head[: render.COMMIT_SHOWN] if head else 'no commit yet'}{note}."
    if not staged:
        yield "Nothing is staged."
        return
    yield render.changes(staged[:PAGE_ROWS_MAX])
    on = "" if branch == "main" else f" --branch {branch}"
    yield from (f"{each.path}: {each.problem}" for each in staged if each.problem is not None)
    yield f"{len(staged):,} staged; `tracelake commit -m MESSAGE{on}` commits all of it."


@command(
    app, "status", text=_status, examples=["tracelake status", "tracelake status --branch labels --json"]
)
def status(lake: Lake, branch: BranchOption = "main") -> dict[str, Any]:
    """Show what is staged on a branch."""
    at = lake.branch(branch)
    return {"branch": branch, "head": at.head, "protected": at.protected, "staged": at.staged()}


@command(
    app,
    "commit",
    text=_COMMITTED,
    examples=[
        'tracelake commit -m "20 questions about refunds"',
        "tracelake commit --branch labels -m labels",
    ],
)
def commit(
    lake: Lake,
    message: Annotated[str, typer.Option("--message", "-m", help="Message of the commit.")],
    branch: BranchOption = "main",
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Commit even if nothing is staged.")
    ] = False,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Commit all that is staged on a branch."""
    commit = lake.branch(branch).commit(
        message, allow_empty=allow_empty, committer=committer, request_id=request_id
    )
    return {"branch": branch, "commit": commit}


def _discarded(of: dict[str, Any]) -> Rendered:
    count = of["discarded"]
    return f"Forgot {count:,} staged {'entry' if count == 1 else 'entries'} of branch {of['branch']}."


@command(
    app,
    "discard",
    text=_discarded,
    examples=[
        "tracelake discard",
        "tracelake discard datasets/questions",
        "tracelake discard --branch labels --json",
    ],
)
def discard(
    lake: Lake,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Entries to discard, as in `status`; all by default."),
    ] = None,
    branch: BranchOption = "main",
) -> dict[str, Any]:
    """Discard the staged changes of a branch, all or some paths."""
    return {"branch": branch, "discarded": lake.branch(branch).discard(paths or ())}


def _diff(of: dict[str, Any]) -> Iterator[Renderable]:
    changes = of["changes"]
    yield render.changes(changes) if changes else f"{of['before']} and {of['after']} are the same commit."
    if of["more"]:
        yield Note(f"the first {len(changes):,} entries; more with --limit")


@command(
    app,
    "diff",
    text=_diff,
    examples=[
        "tracelake diff main~1",
        "tracelake diff release-1 labels",
        "tracelake diff main@2026-01-01 main --json",
    ],
)
def diff(
    lake: Lake,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A branch, tag, commit or time.")],
    after: Annotated[str, typer.Argument(metavar="[AFTER]", help="Another one.")] = "main",
    limit: Annotated[int, typer.Option(min=1, help="Entries at most.")] = DIFF_ENTRIES_SHOWN,
) -> dict[str, Any]:
    """Show which entries differ between two commits.

    Compares tables by their transaction number, indexes by their manifest, and files by their checksum.
    """
    entries = lake.diff(before, after, limit=limit + 1)
    return {"before": before, "after": after, "changes": entries[:limit], "more": len(entries) > limit}


@command(
    app,
    "merge",
    text=_COMMITTED,
    examples=[
        "tracelake merge labels",
        'tracelake merge labels --prefer source -m "labels of this week"',
        "tracelake merge main --into labels",
    ],
)
def merge(
    lake: Lake,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A branch, tag or commit.")],
    into: Annotated[str, typer.Option("--into", metavar="NAME", help="Branch to merge into.")] = "main",
    prefer: Annotated[
        str,
        typer.Option(
            metavar="source|dest",
            help="Choose the side that wins if both changed an entry; by default, the merge is refused.",
        ),
    ] = "",
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    *,
    as_json: bool,
) -> dict[str, Any]:
    """Merge another branch, tag or commit into a branch.

    A change on only one side wins. If both sides have the same table at two transactions, the later wins, because it
    contains all rows of the other. If both sides changed an entry, the conflicts are listed and nothing is merged.
    """
    branch = lake.branch(into)
    try:
        commit = branch.merge(source, message, prefer=prefer, committer=committer, request_id=request_id)
    except ConflictError:
        if not as_json:
            console(stderr=True).print(render.conflicts(branch.conflicts(source)[:CONFLICTS_TOLD_MAX]))
        raise
    return {"branch": into, "commit": commit}


@command(
    app,
    "revert",
    text=_COMMITTED,
    examples=["tracelake revert main", "tracelake revert 4f2a91 --branch labels --json"],
)
def revert(
    lake: Lake,
    ref: RefArgument,
    branch: BranchOption = "main",
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Undo the changes of one commit by a new commit.

    A table shows its older rows until the next write to it; a dataset keeps the older state.
    """
    commit = lake.branch(branch).revert(ref, message, committer=committer, request_id=request_id)
    return {"branch": branch, "commit": commit}


@command(
    app,
    "cherry-pick",
    text=_COMMITTED,
    examples=["tracelake cherry-pick labels", "tracelake cherry-pick 4f2a91 --branch labels"],
)
def cherry_pick(
    lake: Lake,
    ref: RefArgument,
    branch: BranchOption = "main",
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Apply the change of one commit to another branch."""
    commit = lake.branch(branch).cherry_pick(ref, message, committer=committer, request_id=request_id)
    return {"branch": branch, "commit": commit}


@command(
    tag_app,
    "create",
    text=f"{{tag}} names {{commit:.{render.COMMIT_SHOWN}}}.",
    examples=["tracelake tag create before-migration", "tracelake tag create release-1 main@2026-01-01"],
)
def create_tag(
    lake: Lake,
    name: TagArgument,
    ref: Annotated[str, typer.Argument(metavar="[REF]", help="Commit to name.")] = "main",
) -> dict[str, Any]:
    """Create a tag: a name for a commit that never moves."""
    return {"tag": name, "commit": lake.tag(name, ref)}


def _tags(of: Sequence[dict[str, str]]) -> Rendered:
    rows = [(each["tag"], each["commit"][: render.COMMIT_SHOWN]) for each in of]
    return render.grid(("tag", "commit"), rows, ids=("tag", "commit"))


@command(tag_app, "list", text=_tags, examples=["tracelake tag list", "tracelake tag list --json"])
def list_tags(lake: Lake) -> list[dict[str, str]]:
    """List all tags."""
    return [{"tag": name, "commit": commit} for name, commit in lake.tags().items()]


@command(tag_app, "delete", text="Deleted tag {tag}.", examples=["tracelake tag delete before-migration"])
def delete_tag(lake: Lake, name: TagArgument) -> dict[str, Any]:
    """Delete a tag; its commit stays."""
    lake.delete_tag(name)
    return {"tag": name, "deleted": True}
