"""Commands about sources: what pipelines take, while they run."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, plain, print_json

if TYPE_CHECKING:
    from tracelake.lake.sources import SourceInfo

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
    """Let every pipeline of the lake take what appears somewhere, from its next look on."""
    with opened(lake) as open_lake:
        _print([open_lake.sources.add(name, address)], as_json=as_json)


@sources_app.command("list", epilog=examples("tracelake source list", "tracelake source list --json"))
def source_list(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the sources: state, lag, and how fast each is taken."""
    with opened(lake) as open_lake:
        _print(open_lake.sources.all(), as_json=as_json)


@sources_app.command("pause", epilog=examples("tracelake source pause drops"))
def source_pause(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Take nothing of a source that appears from now on, until it is resumed.

    What a transaction has recorded of it is finished."""
    with opened(lake) as open_lake:
        _print([open_lake.sources.pause(name)], as_json=as_json)


@sources_app.command("resume", epilog=examples("tracelake source resume drops"))
def source_resume(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Take again what waits at a source, and what appears."""
    with opened(lake) as open_lake:
        _print([open_lake.sources.resume(name)], as_json=as_json)


@sources_app.command("remove", epilog=examples("tracelake source remove drops"))
def source_remove(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Forget a source. What is recorded of it is finished; what it has stays where it is."""
    with opened(lake) as open_lake:
        open_lake.sources.remove(name)
        _print(open_lake.sources.all(), as_json=as_json)


def print_sources(infos: Sequence[SourceInfo]) -> None:
    """Print sources, one a row, and below why any fails."""
    from tracelake.cli.render_sources import sources

    out = console()
    out.print(sources(infos))
    for info in infos:
        if info.reason:
            out.print(plain(f"source {info.name} is {info.state}: {info.reason}"), soft_wrap=True)


def _print(infos: list[SourceInfo], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(info) for info in infos])
    elif infos:
        print_sources(infos)
    else:
        console().print("No source was added, and no replica runs.")
