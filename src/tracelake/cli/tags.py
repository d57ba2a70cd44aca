"""Commands about tags: names of commits that never move."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli import render
from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, print_json

app = typer.Typer()
tag_app = typer.Typer(help="Name commits, so that they can be read by name.", no_args_is_help=True)
app.add_typer(tag_app, name="tag")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]


@tag_app.command(
    "create",
    epilog=examples(
        "tracelake tag create before-migration", "tracelake tag create release-1 main@2026-01-01"
    ),
)
def create(
    name: NameArgument,
    ref: Annotated[str, typer.Argument(metavar="[REF]", help="The commit to name.")] = "main",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a commit a name that never moves."""
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
def delete(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Take a tag away; its commit stays."""
    with opened(lake) as open_lake:
        open_lake.delete_tag(name)
    if as_json:
        print_json({"tag": name, "deleted": True})
        return
    console().print(f"Deleted tag {name}.")
