"""Commands about commits: diff, merge, revert, cherry-pick."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake._errors import ConflictError
from tracelake.cli import render
from tracelake.cli.branches import print_commit
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
from tracelake.limits import CONFLICTS_TOLD_MAX, DIFF_ENTRIES_SHOWN

app = typer.Typer()

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

    Tables by the transaction as of which they are named, indexes by their manifest, files by their checksum."""
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
    """Bring onto a branch what a commit has since both parted.

    What only one side changed stands. Of one table at two times, the later stands: it holds all rows of the other.
    Entries that both sides changed are listed, and nothing is merged."""
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
    """Take back what one commit changed, by a new commit.

    A table shows its older rows until it is written to again; a dataset stays as it was."""
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
    """Make the change of one commit once more, on another branch."""
    with opened(lake) as open_lake:
        commit = open_lake.branch(branch).cherry_pick(
            ref, message, committer=committer, request_id=request_id
        )
    print_commit(branch, commit, as_json=as_json)
