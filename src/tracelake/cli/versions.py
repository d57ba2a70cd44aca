"""Commands for branches, staged changes, commits and tags."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tracelake._errors import ConflictError
from tracelake.cli import render
from tracelake.cli.options import (
    BranchOption,
    CommitterOption,
    JsonOption,
    LakeOption,
    MessageOption,
    RequestIdOption,
    examples,
    opened,
)
from tracelake.cli.output import console, print_json
from tracelake.limits import CONFLICTS_TOLD_MAX, DIFF_ENTRIES_SHOWN, PAGE_ROWS_MAX

app = typer.Typer()
branch_app = typer.Typer(help="Work beside main, and merge when it is good.", no_args_is_help=True)
app.add_typer(branch_app, name="branch")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The branch.")]


@branch_app.command("list", epilog=examples("tracelake branch list", "tracelake branch list --json"))
def list_branches(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List all branches."""
    with opened(lake) as open_lake:
        infos = open_lake.branches()
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    rows = [
        (i.name, (i.head or "")[: render.COMMIT_SHOWN], i.staged or None, "protected" if i.protected else "")
        for i in infos
    ]
    console().print(render.grid(("branch", "commit", "staged", ""), rows, ids=("branch", "commit")))


@branch_app.command(
    "create", epilog=examples("tracelake branch create labels", "tracelake branch create redo main~3")
)
def create(
    name: NameArgument,
    ref: Annotated[str, typer.Argument(metavar="[REF]", help="The commit that it begins at.")] = "main",
    lake: LakeOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a branch at a commit. Nothing is copied."""
    with opened(lake) as open_lake:
        head = open_lake.create_branch(name, ref, request_id=request_id).head
    if as_json:
        print_json({"branch": name, "commit": head})
        return
    console().print(f"Branch {name} begins at {(head or '')[: render.COMMIT_SHOWN]}.")


@branch_app.command(
    "delete", epilog=examples("tracelake branch delete labels", "tracelake branch delete labels --force")
)
def delete(
    name: NameArgument,
    lake: LakeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Even where entries are staged on it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a branch. Commits stay if another branch or a tag reaches them."""
    with opened(lake) as open_lake:
        open_lake.delete_branch(name, force=force)
    if as_json:
        print_json({"branch": name, "deleted": True})
        return
    console().print(f"Deleted branch {name}.")


@branch_app.command(
    "protect", epilog=examples("tracelake branch protect main", "tracelake branch protect main --off")
)
def protect(
    name: NameArgument,
    lake: LakeOption = None,
    off: Annotated[bool, typer.Option("--off", help="End it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Restrict a branch to merges, pipelines and table writers."""
    with opened(lake) as open_lake:
        open_lake.branch(name).protect(not off)
    if as_json:
        print_json({"branch": name, "protected": not off})
        return
    console().print(f"Branch {name} is {'not protected any more' if off else 'protected'}.")


@branch_app.command(
    "requests", epilog=examples("tracelake branch requests main", "tracelake branch requests main --json")
)
def list_requests(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List commit requests of a branch that are not built yet.

    The next committer builds them first. A request that stays here cannot be built; remove it with `drop-request`.
    """
    with opened(lake) as open_lake:
        infos = open_lake.branch(name).requests()
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    rows = [(info.id, info.operation, info.committer, info.created_at, info.message) for info in infos]
    heads = ("request", "kind", "committer", "began", "message")
    console().print(render.grid(heads, rows, ids=("request",)) if rows else "No commit waits to be built.")


@branch_app.command(
    "drop-request",
    epilog=examples(
        "tracelake branch drop-request main 0f3c21b4",
        'tracelake branch drop-request main 0f3c21b4 --why "needs more memory than there is"',
    ),
)
def drop_request(
    name: NameArgument,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its id, as `branch requests` shows it.")],
    lake: LakeOption = None,
    why: Annotated[
        str | None, typer.Option("--why", help="What its committer is told.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Drop a commit request that cannot be built. Its staged changes stay staged."""
    with opened(lake) as open_lake:
        open_lake.branch(name).drop_request(request, why)
    if as_json:
        print_json({"branch": name, "request": request, "dropped": True})
        return
    console().print(f"Dropped request {request} of branch {name}.")


@app.command(epilog=examples("tracelake status", "tracelake status --branch labels --json"))
def status(lake: LakeOption = None, branch: BranchOption = "main", as_json: JsonOption = False) -> None:
    """Show what is staged on a branch."""
    with opened(lake) as open_lake:
        branch_at = open_lake.branch(branch)
        head, protected, staged = branch_at.head, branch_at.protected, branch_at.staged()
    if as_json:
        changes = [change.to_dict() for change in staged]
        print_json({"branch": branch, "head": head, "protected": protected, "staged": changes})
        return
    out = console()
    note = ", protected" if protected else ""
    out.print(f"Branch {branch} at {head[: render.COMMIT_SHOWN] if head else 'no commit yet'}{note}.")
    if not staged:
        out.print("Nothing is staged.")
        return
    out.print(render.changes(staged[:PAGE_ROWS_MAX]))
    on = "" if branch == "main" else f" --branch {branch}"
    for damaged in (change for change in staged if change.problem is not None):
        out.print(f"{damaged.path}: {damaged.problem}", soft_wrap=True)
    out.print(f"{len(staged):,} staged; `tracelake commit -m MESSAGE{on}` commits all of it.")


@app.command(
    epilog=examples(
        'tracelake commit -m "20 questions about refunds"', "tracelake commit --branch labels -m labels"
    )
)
def commit(
    message: Annotated[str, typer.Option("--message", "-m", help="What the commit says.")],
    lake: LakeOption = None,
    branch: BranchOption = "main",
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Even where nothing is staged.", show_default=False)
    ] = False,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit all that is staged on a branch."""
    with opened(lake) as open_lake:
        commit = open_lake.branch(branch).commit(
            message, allow_empty=allow_empty, committer=committer, request_id=request_id
        )
    print_commit(branch, commit, as_json=as_json)


@app.command(
    epilog=examples(
        "tracelake discard",
        "tracelake discard datasets/questions",
        "tracelake discard --branch labels --json",
    )
)
def discard(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...", help="Entries to forget, as `status` shows them; all by default."
        ),
    ] = None,
    lake: LakeOption = None,
    branch: BranchOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Discard the staged changes of a branch, all or some paths."""
    with opened(lake) as open_lake:
        count = open_lake.branch(branch).discard(paths or ())
    if as_json:
        print_json({"branch": branch, "discarded": count})
        return
    console().print(f"Forgot {count:,} staged {'entry' if count == 1 else 'entries'} of branch {branch}.")


def print_commit(branch: str, commit_id: str, *, as_json: bool) -> None:
    """Print the commit that a command made."""
    if as_json:
        print_json({"branch": branch, "commit": commit_id})
        return
    console().print(f"Branch {branch} is at {commit_id[: render.COMMIT_SHOWN]}.")


RefArgument = Annotated[str, typer.Argument(metavar="REF", help="The commit; see --at of `tracelake log`.")]


@app.command(
    epilog=examples(
        "tracelake diff main~1",
        "tracelake diff release-1 labels",
        "tracelake diff main@2026-01-01 main --json",
    )
)
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A branch, tag, commit or time.")],
    after: Annotated[str, typer.Argument(metavar="[AFTER]", help="Another one.")] = "main",
    lake: LakeOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries at most.")] = DIFF_ENTRIES_SHOWN,
    as_json: JsonOption = False,
) -> None:
    """Show which entries differ between two commits.

    Compares tables by their transaction number, indexes by their manifest, and files by their checksum.
    """
    with opened(lake) as open_lake:
        entries = open_lake.diff(before, after, limit=limit + 1)
    changes, more = entries[:limit], len(entries) > limit
    if as_json:
        plain = [change.to_dict() for change in changes]
        print_json({"before": before, "after": after, "changes": plain, "more": more})
        return
    console().print(render.changes(changes) if changes else f"{before} and {after} name the same.")
    if more:
        console(stderr=True).print(f"the first {limit:,} entries; more with --limit")


@app.command(
    epilog=examples(
        "tracelake merge labels",
        'tracelake merge labels --prefer source -m "labels of this week"',
        "tracelake merge main --into labels",
    )
)
def merge(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A branch, tag or commit.")],
    lake: LakeOption = None,
    into: Annotated[str, typer.Option("--into", metavar="NAME", help="The branch that takes it.")] = "main",
    prefer: Annotated[
        str,
        typer.Option(
            metavar="source|dest",
            help="Which side stands where both changed an entry; without it, such a merge is refused.",
            show_default=False,
        ),
    ] = "",
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge another branch, tag or commit into a branch.

    A change on only one side wins. If both sides have the same table at two transactions, the later wins, because it
    contains all rows of the other. If both sides changed an entry, the conflicts are listed and nothing is merged.
    """
    with opened(lake) as open_lake:
        branch = open_lake.branch(into)
        try:
            commit = branch.merge(source, message, prefer=prefer, committer=committer, request_id=request_id)
        except ConflictError:
            if not as_json:
                console(stderr=True).print(render.conflicts(branch.conflicts(source)[:CONFLICTS_TOLD_MAX]))
            raise
    print_commit(into, commit, as_json=as_json)


@app.command(epilog=examples("tracelake revert main", "tracelake revert 4f2a91 --branch labels --json"))
def revert(
    ref: RefArgument,
    lake: LakeOption = None,
    branch: BranchOption = "main",
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo the changes of one commit by a new commit.

    A table shows its older rows until the next write to it; a dataset keeps the older state.
    """
    with opened(lake) as open_lake:
        commit = open_lake.branch(branch).revert(ref, message, committer=committer, request_id=request_id)
    print_commit(branch, commit, as_json=as_json)


@app.command(
    "cherry-pick",
    epilog=examples("tracelake cherry-pick labels", "tracelake cherry-pick 4f2a91 --branch labels"),
)
def cherry_pick(
    ref: RefArgument,
    lake: LakeOption = None,
    branch: BranchOption = "main",
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the change of one commit to another branch."""
    with opened(lake) as open_lake:
        commit = open_lake.branch(branch).cherry_pick(
            ref, message, committer=committer, request_id=request_id
        )
    print_commit(branch, commit, as_json=as_json)


tag_app = typer.Typer(help="Name commits, so that they can be read by name.", no_args_is_help=True)
app.add_typer(tag_app, name="tag")

TagArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]


@tag_app.command(
    "create",
    epilog=examples(
        "tracelake tag create before-migration", "tracelake tag create release-1 main@2026-01-01"
    ),
)
def create_tag(
    name: TagArgument,
    ref: Annotated[str, typer.Argument(metavar="[REF]", help="The commit to name.")] = "main",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a tag: a name for a commit that never moves."""
    with opened(lake) as open_lake:
        commit = open_lake.tag(name, ref)
    if as_json:
        print_json({"tag": name, "commit": commit})
        return
    console().print(f"{name} names {commit[: render.COMMIT_SHOWN]}.")


@tag_app.command("list", epilog=examples("tracelake tag list", "tracelake tag list --json"))
def list_tags(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List all tags."""
    with opened(lake) as open_lake:
        tags = open_lake.tags()
    if as_json:
        print_json([{"tag": name, "commit": commit} for name, commit in tags.items()])
        return
    rows = [(name, commit[: render.COMMIT_SHOWN]) for name, commit in tags.items()]
    console().print(render.grid(("tag", "commit"), rows, ids=("tag", "commit")))


@tag_app.command("delete", epilog=examples("tracelake tag delete before-migration"))
def delete_tag(name: TagArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Delete a tag; its commit stays."""
    with opened(lake) as open_lake:
        open_lake.delete_tag(name)
    if as_json:
        print_json({"tag": name, "deleted": True})
        return
    console().print(f"Deleted tag {name}.")
