"""Commands for evaluation datasets."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.options import (
    AtOption,
    BranchOption,
    CommitterOption,
    JsonOption,
    LakeOption,
    MessageOption,
    RequestIdOption,
    format_examples,
    opened,
)
from tracelake.cli.output import console, print_json
from tracelake.limits import DATASET_ADD_DEFAULT, DATASET_ADD_MAX, EXAMPLES_SHOWN, PAGE_ROWS_MAX
from tracelake.results import AddReport

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


app = typer.Typer()
dataset_app = typer.Typer(help="Build versioned evaluation datasets from traces.", no_args_is_help=True)
app.add_typer(dataset_app, name="dataset")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The dataset.")]
CommitOption = Annotated[
    bool,
    typer.Option(
        "--commit", help=("Commit all staged changes of the branch, including this one; implied by -m.")
    ),
]
TEXT_SHOWN = 60
"""Characters of input and output that `dataset show` prints."""


@dataset_app.command(
    "create",
    epilog=format_examples(
        'tracelake dataset create refunds --description "Questions about refunds"',
        "tracelake dataset create refunds --branch labels --commit",
    ),
)
def create(
    name: NameArgument,
    lake: LakeOption = None,
    description: Annotated[str, typer.Option(help="Describe its purpose.")] = "",
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an empty dataset.

    It is staged on the branch until it is committed.
    """
    commit_message = _commit_message(message, commit, f"dataset {name} made")
    with opened(lake) as open_lake:
        open_lake.datasets.create(
            name, description, branch, message=commit_message, committer=committer, request_id=request_id
        )
        head = open_lake.branch(branch).head if commit_message else None
    if as_json:
        print_json({"dataset": name, "branch": branch, "commit": head})
        return
    console().print(f"Created dataset {name}. Next: tracelake dataset add {name} --search WORDS")


@dataset_app.command(
    "list", epilog=format_examples("tracelake dataset list", "tracelake dataset list --at release-1")
)
def list_datasets(lake: LakeOption = None, at: AtOption = "main", as_json: JsonOption = False) -> None:
    """List the datasets and, on a branch, their staged examples."""
    with opened(lake) as open_lake:
        infos = open_lake.datasets.all(at)
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    rows = [(info.name, info.examples, info.staged or None, info.description) for info in infos]
    console().print(render.grid(("dataset", "examples", "staged", "description"), rows, ids=("dataset",)))


@dataset_app.command(
    "show",
    epilog=format_examples("tracelake dataset show refunds", "tracelake dataset show refunds --at v1 --json"),
)
def show(
    name: NameArgument,
    lake: LakeOption = None,
    at: AtOption = "main",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Examples at most.")] = EXAMPLES_SHOWN,
    as_json: JsonOption = False,
) -> None:
    """Show the examples of a dataset.

    On a branch, also shows the staged changes.
    """
    with opened(lake) as open_lake:
        dataset = open_lake.datasets.get(name, at)
        states = dataset.states()
        examples_shown = list(islice(dataset.examples(staged=dataset.on_branch), limit + 1))
        description = dataset.description
    rows: list[dict[str, Any]] = [
        example.to_row() | {"state": states.get(example.id, "committed")}
        for example in examples_shown[:limit]
    ]
    removed = [identity for identity, state in states.items() if state == "removed"]
    if as_json:
        document = {"dataset": name, "at": at, "description": description, "examples": rows}
        print_json({**document, "removed": removed, "more": len(examples_shown) > limit})
        return
    out = console()
    out.print(render.fields([("dataset", name), ("description", description or None), ("at", at)]))
    shown = [(r["id"], r["state"], _short(r["input"]), _short(r["expected_output"])) for r in rows]
    shown += [(identity, "removed", "", "") for identity in removed[:limit]]
    out.print(render.grid(("example", "state", "input", "expected output"), shown, ids=("state",)))
    if len(examples_shown) > limit:
        console(stderr=True).print(f"the first {limit:,}; more with --limit, all with `dataset export`")


@dataset_app.command(
    "add",
    epilog=format_examples(
        'tracelake dataset add refunds --search "refund policy" --limit 50',
        "tracelake dataset add refunds --where \"service = 'airline-agent' and input is not null\"",
        "tracelake dataset add refunds --trace 096fc09a --trace 520a1cf8 --commit",
        "tracelake dataset add refunds --trace 096fc09a --span 53d4f9d70441ebc0 -m 'a hard one'",
    ),
)
def add(
    name: NameArgument,
    *,
    lake: LakeOption = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help=("Add this trace: the spans of --span, by default its first span with text.")
        ),
    ] = None,
    span: Annotated[list[str] | None, typer.Option(metavar="ID", help="A span.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Add spans that match this SQL condition.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="QUERY", help="Add the best hits of this full-text query.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=DATASET_ADD_MAX, help="Spans at most.")
    ] = DATASET_ADD_DEFAULT,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Attach this note to each example.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help=("Also update existing examples with the current text of their spans.")
        ),
    ] = False,
    branch: BranchOption = "main",
    at: Annotated[
        str | None, typer.Option(metavar="REF", help="Read spans from this commit instead of the branch.")
    ] = None,
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add spans as examples.

    The span's input becomes the input, and its output the expected output. Each example keeps its trace, span and
    commit. Spans that the dataset has already stay unchanged. Additions are staged on the branch until `tracelake
    commit`, or committed at once with --commit or -m.
    """
    with opened(lake) as open_lake:
        report = open_lake.datasets.get(name, branch).add(
            traces=trace or (),
            spans=span or (),
            where=where,
            search=search,
            limit=limit,
            at=at,
            metadata=_pairs(metadata or []),
            replace=replace,
            message=_commit_message(message, commit, f"dataset {name}: examples added"),
            committer=committer,
            request_id=request_id,
        )
    if as_json:
        print_json(asdict(report))
        return
    console().print(_describe_report(report))
    if report.added + report.known + report.replaced + report.empty == limit:
        console(stderr=True).print(f"that is --limit {limit:,}; there may be more")


@dataset_app.command(
    "remove",
    epilog=format_examples(
        "tracelake dataset remove refunds 096fc09a5d6c4b7e8f90a1b2c3d4e5f6-53d4f9d70441ebc0"
    ),
)
def remove(
    name: NameArgument,
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help=("Remove these examples, named as in `dataset show`.")),
    ],
    lake: LakeOption = None,
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove examples; older commits keep them."""
    commit_message = _commit_message(message, commit, f"dataset {name}: examples removed")
    with opened(lake) as open_lake:
        commit_id = open_lake.datasets.get(name, branch).remove(
            ids, message=commit_message, committer=committer, request_id=request_id
        )
    if as_json:
        print_json({"dataset": name, "branch": branch, "removed": len(set(ids)), "commit": commit_id})
        return
    console().print(f"Dataset {name}: {len(set(ids)):,} removed; {_where(commit_id)}.")


@dataset_app.command("delete", epilog=format_examples("tracelake dataset delete refunds --commit"))
def delete(
    name: NameArgument,
    lake: LakeOption = None,
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a dataset with all its examples; older commits keep it."""
    commit_message = _commit_message(message, commit, f"dataset {name} deleted")
    with opened(lake) as open_lake:
        commit_id = open_lake.datasets.delete(
            name, branch, message=commit_message, committer=committer, request_id=request_id
        )
    if as_json:
        print_json({"dataset": name, "branch": branch, "deleted": True, "commit": commit_id})
        return
    console().print(f"Deleted dataset {name}; {_where(commit_id)}.")


@dataset_app.command(
    "export",
    epilog=format_examples(
        "tracelake dataset export refunds -o refunds.jsonl",
        "tracelake dataset export refunds --at release-1 -o refunds.parquet",
        "tracelake dataset export refunds | head -3",
    ),
)
def export(
    name: NameArgument,
    lake: LakeOption = None,
    at: AtOption = "main",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Else standard output.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="jsonl|parquet", help=("Choose the format; by default the file extension.")),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export the committed examples as JSON lines or Parquet.

    At a tag, commit or time, the export contains exactly that version, ordered by id. An existing file is replaced
    only once the new one is complete. Standard output takes JSON lines only.
    """
    if output is None and (as_json or format not in (None, "jsonl")):
        raise UsageError("name a file with -o: standard output takes JSON lines only, and not with --json.")
    with opened(lake) as open_lake:
        dataset = open_lake.datasets.get(name, at)
        staged = len(dataset.states())
        if output is None:
            from tracelake.datasets.dataset import json_line

            for example in dataset.examples():
                sys.stdout.buffer.write(json_line(example))
            report = None
        else:
            report = dataset.export(output, format)
    if report is not None and as_json:
        print_json(asdict(report))
    elif report is not None:
        console().print(
            f"Wrote {report.examples:,} examples, {render.size(report.bytes)}, to {report.path}.",
            soft_wrap=True,
        )
    if staged:
        console(stderr=True).print(f"{staged:,} staged examples are not included; commit them first")


def _describe_report(report: AddReport) -> str:
    words = [f"{report.added:,} added"]
    words += [
        f"{count:,} {what}"
        for count, what in (
            (report.replaced, "replaced"),
            (report.known, "there already"),
            (report.empty, "without input and output"),
        )
        if count
    ]
    if report.added + report.replaced:
        words[-1] += f"; {_where(report.commit)}"
    return f"Dataset {report.dataset}: {', '.join(words)}."


def _commit_message(message: str | None, commit: bool, otherwise: str) -> str | None:
    """Return the message for a requested commit, or None if nothing is committed."""
    return message or (otherwise if commit else None)


def _where(commit: str | None) -> str:
    return f"in commit {commit[: render.COMMIT_SHOWN]}" if commit else "staged"


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--metadata {text!r} is not a pair; write KEY=VALUE.")
        pairs[key] = value
    return pairs


def _short(text: str | None) -> str:
    return "" if text is None else text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"
