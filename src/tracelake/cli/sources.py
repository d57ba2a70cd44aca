"""Commands for the pipeline's configured sources, and for its outputs other than the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, plain, print_json

if TYPE_CHECKING:
    from tracelake.lake.sources import OutputInfo, SourceInfo

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


NameArgument = Annotated[str, typer.Argument(help="Its name.", show_default=False)]
app = typer.Typer()
sources_app = typer.Typer(help="Take input from more places, while pipelines run.")
app.add_typer(sources_app, name="source")


@sources_app.command(
    "add",
    epilog=examples(
        "tracelake source add drops '/data/otlp/*.jsonl.gz'",
        "tracelake source add nightly 's3://bucket/otlp/**/*.gz'",
        "tracelake source add spans kafka://broker:9092/otlp_spans",
    ),
)
def source_add(
    name: NameArgument,
    address: Annotated[
        str,
        typer.Argument(
            help="Pattern of files or objects, an archive repository, or a topic.", show_default=False
        ),
    ],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a source for all pipelines of the lake.

    Each pipeline reads it from its next poll on.
    """
    with opened(lake) as open_lake:
        _print_sources([open_lake.sources.add(name, address)], as_json=as_json)


@sources_app.command("list", epilog=examples("tracelake source list", "tracelake source list --json"))
def source_list(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the sources with their state, lag and rate."""
    with opened(lake) as open_lake:
        _print_sources(open_lake.sources.all(), as_json=as_json)


@sources_app.command("pause", epilog=examples("tracelake source pause drops"))
def source_pause(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Pause a source until it is resumed.

    Input that a transaction has already recorded is still ingested.
    """
    with opened(lake) as open_lake:
        _print_sources([open_lake.sources.pause(name)], as_json=as_json)


@sources_app.command("resume", epilog=examples("tracelake source resume drops"))
def source_resume(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Resume a source, including its pending input."""
    with opened(lake) as open_lake:
        _print_sources([open_lake.sources.resume(name)], as_json=as_json)


@sources_app.command("remove", epilog=examples("tracelake source remove drops"))
def source_remove(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Remove a source. Recorded input is still ingested; its data stays in place."""
    with opened(lake) as open_lake:
        open_lake.sources.remove(name)
        _print_sources(open_lake.sources.all(), as_json=as_json)


def print_sources(infos: Sequence[SourceInfo]) -> None:
    """Print the sources, one a row, then the reason of each failure."""
    from tracelake.cli.render import sources

    out = console()
    out.print(sources(infos))
    for info in infos:
        if info.reason:
            out.print(plain(f"source {info.name} is {info.state}: {info.reason}"), soft_wrap=True)


def _print_sources(infos: list[SourceInfo], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(info) for info in infos])
    elif infos:
        print_sources(infos)
    else:
        console().print("No source was added, and no replica runs.")


OutputArgument = Annotated[str, typer.Argument(help="Its name.", show_default=False)]
outputs_app = typer.Typer(help="Send new spans elsewhere, each transaction exactly once.")
app.add_typer(outputs_app, name="output")


@outputs_app.command(
    "add",
    epilog=examples(
        "tracelake output add stream kafka://broker1:9092,broker2:9092/spans",
        "tracelake output add files my_sinks:Files",
        "tracelake output add rows kafka://broker1:9092/rows --changes traces",
    ),
)
def output_add(
    name: OutputArgument,
    to: Annotated[
        str,
        typer.Argument(
            help="kafka://brokers/topic, or module:name of what makes a sink.", show_default=False
        ),
    ],
    changes: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            help="Send the changes of table spans or traces, as lines of JSON with their sign.",
            show_default=False,
        ),
    ] = "",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the new spans of each transaction to an output.

    The spans are sent as OTLP, from the next transaction on. Every pipeline of the lake writes to the output before
    it commits, and waits if the output is unreachable.
    """
    with opened(lake) as open_lake:
        _print_outputs([open_lake.outputs.add(name, to, changes)], as_json=as_json)


@outputs_app.command("list", epilog=examples("tracelake output list", "tracelake output list --json"))
def output_list(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the outputs that were added."""
    with opened(lake) as open_lake:
        _print_outputs(open_lake.outputs.all(), as_json=as_json)


@outputs_app.command("remove", epilog=examples("tracelake output remove stream"))
def output_remove(name: OutputArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Remove an output. The data sent to it stays there."""
    with opened(lake) as open_lake:
        open_lake.outputs.remove(name)
        _print_outputs(open_lake.outputs.all(), as_json=as_json)


def _print_outputs(infos: list[OutputInfo], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(info) for info in infos])
    elif not infos:
        console().print("There is no output besides the tables.")
    for info in () if as_json else infos:
        what = f"changes of {info.changes}" if info.changes else "new spans"
        if not info.damaged:
            console().print(
                plain(f"{info.name}: {what} to {info.to}, from transaction {info.since} on"), soft_wrap=True
            )
        for line in info.explain():
            console().print(plain(line), soft_wrap=True)
