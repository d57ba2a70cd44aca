"""Commands for evaluation datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.command import Note, Renderable, Rendered, command, plain_record
from tracelake.cli.options import AtOption, BranchOption, CommitterOption, MessageOption, RequestIdOption
from tracelake.cli.output import console
from tracelake.limits import DATASET_ADD_DEFAULT, DATASET_ADD_MAX, EXAMPLES_SHOWN, PAGE_ROWS_MAX
from tracelake.results import AddReport, DatasetInfo, ExportReport

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake

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
InputOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Input of one example; by default that of its span.")
]
ExpectedOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Expected output of one example; by default the last answer of its span."
    ),
]
MetadataOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Attach this note to each example.")
]
TEXT_SHOWN = 60
"""Characters of input and output that `dataset show` prints."""


@command(
    dataset_app,
    "create",
    text="Created dataset {dataset}. Next: tracelake dataset add {dataset} --search WORDS",
    examples=[
        'tracelake dataset create refunds --description "Questions about refunds"',
        "tracelake dataset create refunds --branch labels --commit",
    ],
)
def create(
    lake: Lake,
    name: NameArgument,
    description: Annotated[str, typer.Option(help="Describe its purpose.")] = "",
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Create an empty dataset.

    It is staged on the branch until it is committed.
    """
    commit_message = _commit_message(message, commit, f"dataset {name} made")
    lake.datasets.create(
        name, description, branch, message=commit_message, committer=committer, request_id=request_id
    )
    head = lake.branch(branch).head if commit_message else None
    return {"dataset": name, "branch": branch, "commit": head}


def _datasets(infos: Sequence[DatasetInfo]) -> Rendered:
    rows = [(info.name, info.examples, info.staged or None, info.description) for info in infos]
    return render.grid(("dataset", "examples", "staged", "description"), rows, ids=("dataset",))


@command(
    dataset_app,
    "list",
    text=_datasets,
    examples=["tracelake dataset list", "tracelake dataset list --at release-1"],
)
def list_datasets(lake: Lake, at: AtOption = "main") -> list[DatasetInfo]:
    """List the datasets and, on a branch, their staged examples."""
    return lake.datasets.all(at)


def _examples(of: dict[str, Any]) -> Iterator[Renderable]:
    pairs = [(name, of[name] or None) for name in ("dataset", "description", "at")]
    yield render.fields(pairs)
    limit = of["limit"]
    rows = [(r["id"], r["state"], _short(r["input"]), _short(r["expected_output"])) for r in of["examples"]]
    rows += [(identity, "removed", "", "") for identity in of["removed"][:limit]]
    yield render.grid(("example", "state", "input", "expected output"), rows, ids=("state",))
    if of["more"]:
        yield Note(f"the first {limit:,}; more with --limit, all with `dataset export`")


@command(
    dataset_app,
    "show",
    text=_examples,
    examples=["tracelake dataset show refunds", "tracelake dataset show refunds --at v1 --json"],
)
def show(
    lake: Lake,
    name: NameArgument,
    at: AtOption = "main",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Examples at most.")] = EXAMPLES_SHOWN,
) -> dict[str, Any]:
    """Show the examples of a dataset.

    On a branch, also shows the staged changes.
    """
    dataset = lake.datasets.get(name, at)
    states = dataset.states()
    examples = list(islice(dataset.examples(staged=dataset.on_branch), limit + 1))
    return {
        "dataset": name,
        "at": at,
        "description": dataset.description,
        "examples": [
            example.to_row() | {"state": states.get(example.id, "committed")} for example in examples[:limit]
        ],
        "removed": [identity for identity, state in states.items() if state == "removed"],
        "limit": limit,
        "more": len(examples) > limit,
    }


def _added(of: dict[str, Any]) -> Iterator[Renderable]:
    report: AddReport = of["report"]
    words = [f"{report.added:,} added"]
    words += [
        f"{count:,} {state}"
        for count, state in (
            (report.replaced, "replaced"),
            (report.known, "there already"),
            (report.empty, "without input and output"),
        )
        if count
    ]
    if report.added + report.replaced:
        words[-1] += f"; {_where(report.commit)}"
    yield f"Dataset {report.dataset}: {', '.join(words)}."
    yield from map(Note, report.warnings)
    if report.added + report.known + report.replaced + report.empty == of["limit"]:
        yield Note(f"that is --limit {of['limit']:,}; there may be more")


@command(
    dataset_app,
    "add",
    text=_added,
    json=lambda of: plain_record(of["report"]),
    examples=[
        'tracelake dataset add refunds --search "refund policy" --limit 50',
        "tracelake dataset add refunds --where \"service = 'airline-agent' and input is not null\"",
        "tracelake dataset add refunds --trace 096fc09a --trace 520a1cf8 --commit",
        "tracelake dataset add refunds --trace 096fc09a --span 53d4f9d70441ebc0 -m 'a hard one'",
        "tracelake dataset add refunds --trace 096fc09a --expected 'You get 40 EUR back.' --commit",
    ],
)
def add(
    lake: Lake,
    name: NameArgument,
    *,
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
    input: InputOption = None,
    expected: ExpectedOption = None,
    metadata: MetadataOption = None,
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
) -> dict[str, Any]:
    """Add spans as examples.

    The span's input becomes the input, and its output the expected output. Each example keeps its trace, span and
    commit. Spans that the dataset has already stay unchanged. Additions are staged on the branch until `tracelake
    commit`, or committed at once with --commit or -m.
    """
    report = lake.datasets.get(name, branch).add(
        traces=trace or (),
        spans=span or (),
        where=where,
        search=search,
        limit=limit,
        at=at,
        input=input,
        expected=expected,
        metadata=_pairs(metadata or []),
        replace=replace,
        message=_commit_message(message, commit, f"dataset {name}: examples added"),
        committer=committer,
        request_id=request_id,
    )
    return {"report": report, "limit": limit}


def _edited(of: dict[str, Any]) -> str:
    return f"Dataset {of['dataset']}: example {of['example']} changed; {_where(of['commit'])}."


@command(
    dataset_app,
    "edit",
    text=_edited,
    examples=[
        "tracelake dataset edit refunds 096fc09a5d6c4b7e8f90a1b2c3d4e5f6-53d4f9d70441ebc0 --expected '40 EUR'"
    ],
)
def edit(
    lake: Lake,
    name: NameArgument,
    example: Annotated[str, typer.Argument(metavar="ID", help="The example, as in `dataset show`.")],
    input: InputOption = None,
    expected: ExpectedOption = None,
    metadata: MetadataOption = None,
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Change the input, expected output or metadata of an example; older commits keep it.

    An empty text removes the input or the expected output. With --metadata, the given notes replace all others.
    """
    commit_id = lake.datasets.get(name, branch).update(
        example,
        input=input,
        expected=expected,
        metadata=None if metadata is None else _pairs(metadata),
        message=_commit_message(message, commit, f"dataset {name}: example edited"),
        committer=committer,
        request_id=request_id,
    )
    return {"dataset": name, "branch": branch, "example": example, "commit": commit_id}


def _differences(of: dict[str, Any]) -> Iterator[Renderable]:
    rows = []
    for each in of["changes"]:
        before, after = each["before"] or {}, each["after"] or {}
        fields = each["fields"] or ["input", "expected_output"]
        for place, field in enumerate(fields):
            texts = [_short(str(side[field]) if side.get(field) else None) for side in (before, after)]
            rows.append(
                (each["id"] if place == 0 else "", each["change"] if place == 0 else "", field, *texts)
            )
    yield render.grid(("example", "change", "field", "before", "after"), rows, ids=("change",))
    if of["more"]:
        yield Note(f"the first {len(of['changes']):,}; more with --limit")


@command(
    dataset_app,
    "diff",
    text=_differences,
    examples=["tracelake dataset diff refunds main~3", "tracelake dataset diff refunds v1 v2 --json"],
)
def diff(
    lake: Lake,
    name: NameArgument,
    before: Annotated[str, typer.Argument(metavar="REF", help="The older version.")],
    after: Annotated[str, typer.Argument(metavar="REF", help="The newer version.")] = "main",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Examples at most.")] = EXAMPLES_SHOWN,
) -> dict[str, Any]:
    """Show the examples that differ between two versions of a dataset."""
    changes = lake.datasets.get(name, after).diff(before, limit + 1)
    return {
        "dataset": name,
        "before": before,
        "after": after,
        "changes": [each.to_dict() for each in changes[:limit]],
        "more": len(changes) > limit,
    }


def _removed(of: dict[str, Any]) -> str:
    return f"Dataset {of['dataset']}: {of['removed']:,} removed; {_where(of['commit'])}."


@command(
    dataset_app,
    "remove",
    text=_removed,
    examples=["tracelake dataset remove refunds 096fc09a5d6c4b7e8f90a1b2c3d4e5f6-53d4f9d70441ebc0"],
)
def remove(
    lake: Lake,
    name: NameArgument,
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help=("Remove these examples, named as in `dataset show`.")),
    ],
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Remove examples; older commits keep them."""
    commit_message = _commit_message(message, commit, f"dataset {name}: examples removed")
    commit_id = lake.datasets.get(name, branch).remove(
        ids, message=commit_message, committer=committer, request_id=request_id
    )
    return {"dataset": name, "branch": branch, "removed": len(set(ids)), "commit": commit_id}


def _runs(of: dict[str, Any]) -> Rendered:
    names = list(dict.fromkeys(name for run in of["runs"] for name in run["scores"]))
    rows = [
        (run["name"], *(_mean(run["scores"].get(name)) for name in names), run["errors"], run["examples"],
         run["created_at"][:16].replace("T", " "), run["id"])
        for run in of["runs"]
    ]  # fmt: skip
    return render.grid(("run", *names, "errors", "examples", "created", "id"), rows, ids=("run", "id"))


@command(
    dataset_app,
    "runs",
    text=_runs,
    examples=["tracelake dataset runs refunds", "tracelake dataset runs refunds --at labels --json"],
)
def list_runs(lake: Lake, name: NameArgument, at: AtOption = "main") -> dict[str, Any]:
    """List the evaluation runs of a dataset with their mean scores, newest first."""
    from msgspec import to_builtins

    return {"dataset": name, "at": at, "runs": to_builtins(lake.datasets.get(name, at).runs())}


def _comparison(of: dict[str, Any]) -> Iterator[Renderable]:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in of["counts"].items())
    yield f"{of['base']['name']} -> {of['run']['name']}: {counts}."
    rows = []
    for each in of["examples"]:
        sides = [each["base"] or {}, each["run"] or {}]
        texts = [_short(side.get("error") or side.get("output")) for side in sides]
        rows.append((each["example_id"], each["change"], ", ".join(each["worse"] + each["better"]), *texts))
    yield render.grid(("example", "change", "scores", "base", "run"), rows, ids=("change",))
    if of["more"]:
        yield Note(f"the first {len(of['examples']):,}; more with --limit")


@command(
    dataset_app,
    "compare",
    text=_comparison,
    examples=["tracelake dataset compare refunds 'prompt 1' 'prompt 2'"],
)
def compare(
    lake: Lake,
    name: NameArgument,
    base: Annotated[str, typer.Argument(metavar="BASE", help="The older run, by name or id.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="The newer run, by name or id.")],
    at: AtOption = "main",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Examples at most.")] = EXAMPLES_SHOWN,
) -> dict[str, Any]:
    """Compare two evaluation runs by example, regressions first."""
    compared = lake.datasets.get(name, at).compare(base, run).to_dict()
    examples = compared["examples"]
    return compared | {"examples": examples[:limit], "more": len(examples) > limit}


def _mean(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _deleted(of: dict[str, Any]) -> str:
    return f"Deleted dataset {of['dataset']}; {_where(of['commit'])}."


@command(dataset_app, "delete", text=_deleted, examples=["tracelake dataset delete refunds --commit"])
def delete(
    lake: Lake,
    name: NameArgument,
    branch: BranchOption = "main",
    commit: CommitOption = False,
    message: MessageOption = None,
    committer: CommitterOption = None,
    request_id: RequestIdOption = None,
) -> dict[str, Any]:
    """Delete a dataset with all its examples; older commits keep it."""
    commit_message = _commit_message(message, commit, f"dataset {name} deleted")
    commit_id = lake.datasets.delete(
        name, branch, message=commit_message, committer=committer, request_id=request_id
    )
    return {"dataset": name, "branch": branch, "deleted": True, "commit": commit_id}


def _exported(report: ExportReport | None) -> Iterator[Renderable]:
    if report is not None:
        yield f"Wrote {report.examples:,} examples, {render.size(report.bytes)}, to {report.path}."


@command(
    dataset_app,
    "export",
    text=_exported,
    examples=[
        "tracelake dataset export refunds -o refunds.jsonl",
        "tracelake dataset export refunds --at release-1 -o refunds.parquet",
        "tracelake dataset export refunds | head -3",
    ],
)
def export(
    lake: Lake,
    name: NameArgument,
    at: AtOption = "main",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Else standard output.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="jsonl|parquet", help=("Choose the format; by default the file extension.")),
    ] = None,
    *,
    as_json: bool,
) -> ExportReport | None:
    """Export the committed examples as JSON lines or Parquet.

    At a tag, commit or time, the export contains exactly that version, ordered by id. An existing file is replaced
    only once the new one is complete. Standard output takes JSON lines only.
    """
    if output is None and (as_json or format not in (None, "jsonl")):
        raise UsageError("name a file with -o: standard output takes JSON lines only, and not with --json.")
    dataset = lake.datasets.get(name, at)
    if staged := len(dataset.states()):
        console(stderr=True).print(f"{staged:,} staged examples are not included; commit them first")
    if output is not None:
        return dataset.export(output, format)
    from tracelake.datasets.files import json_line

    for example in dataset.examples():
        sys.stdout.buffer.write(json_line(example))
    return None


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
