"""Commands for the pipeline's configured sources, its outputs other than the tables, and the prices of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command
from tracelake.cli.keys import recorded
from tracelake.cli.output import plain

if TYPE_CHECKING:
    from tracelake.journal.prices import OwnPrice
    from tracelake.lake.lake import Lake
    from tracelake.lake.sources import OutputInfo, SourceInfo

NameArgument = Annotated[str, typer.Argument(help="Its name.")]
app = typer.Typer()
sources_app = typer.Typer(help="Manage input sources while pipelines run.")
app.add_typer(sources_app, name="source")
outputs_app = typer.Typer(help="Manage outputs that receive each transaction exactly once.")
app.add_typer(outputs_app, name="output")
prices_app = typer.Typer(help="Manage own prices of models, by which costs are computed.")
app.add_typer(prices_app, name="prices")


def source_lines(infos: Sequence[SourceInfo]) -> Iterator[Renderable]:
    """Yield the sources, one a row, then the reason of each failure."""
    if not infos:
        yield "No source was added, and no replica runs."
        return
    yield render.sources(infos)
    for info in infos:
        if info.reason:
            yield plain(f"source {info.name} is {info.state}: {info.reason}")


@command(
    sources_app,
    "add",
    text=source_lines,
    examples=[
        "tracelake source add drops '/data/otlp/*.jsonl.gz'",
        "tracelake source add nightly 's3://bucket/otlp/**/*.gz'",
        "tracelake source add spans kafka://broker:9092/otlp_spans",
    ],
)
def source_add(
    lake: Lake,
    name: NameArgument,
    address: Annotated[
        str, typer.Argument(help="Pattern of files or objects, an archive repository, or a topic.")
    ],
) -> list[SourceInfo]:
    """Add a source for all pipelines of the lake.

    Each pipeline reads it from its next poll on.
    """
    return [lake.sources.add(name, address)]


@command(
    sources_app, "list", text=source_lines, examples=["tracelake source list", "tracelake source list --json"]
)
def source_list(lake: Lake) -> list[SourceInfo]:
    """List the sources with their state, lag and rate."""
    return lake.sources.all()


@command(sources_app, "pause", text=source_lines, examples=["tracelake source pause drops"])
def source_pause(lake: Lake, name: NameArgument) -> list[SourceInfo]:
    """Pause a source until it is resumed.

    Input that a transaction has already recorded is still ingested.
    """
    return [lake.sources.pause(name)]


@command(sources_app, "resume", text=source_lines, examples=["tracelake source resume drops"])
def source_resume(lake: Lake, name: NameArgument) -> list[SourceInfo]:
    """Resume a source, including its pending input."""
    return [lake.sources.resume(name)]


@command(sources_app, "remove", text=source_lines, examples=["tracelake source remove drops"])
def source_remove(lake: Lake, name: NameArgument) -> list[SourceInfo]:
    """Remove a source. Recorded input is still ingested; its data stays in place."""
    lake.sources.remove(name)
    return lake.sources.all()


def _outputs(infos: Sequence[OutputInfo]) -> Iterator[Renderable]:
    if not infos:
        yield "No output was added."
    for info in infos:
        what = f"changes of {info.changes}" if info.changes else "new spans"
        if not info.damaged:
            yield plain(f"{info.name}: {what} to {info.to}, from transaction {info.since} on")
        yield from map(plain, info.explain())


@command(
    outputs_app,
    "add",
    text=_outputs,
    examples=[
        "tracelake output add stream kafka://broker1:9092,broker2:9092/spans",
        "tracelake output add files my_sinks:Files",
        "tracelake output add rows kafka://broker1:9092/rows --changes traces",
    ],
)
def output_add(
    lake: Lake,
    name: NameArgument,
    to: Annotated[
        str, typer.Argument(help="Target: kafka://brokers/topic, or module:name of a sink factory.")
    ],
    changes: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            help="Send the changes of table spans or traces, as lines of JSON with their sign.",
        ),
    ] = "",
) -> list[OutputInfo]:
    """Send the new spans of each transaction to an output.

    The spans are sent as OTLP, from the next transaction on. Every pipeline of the lake writes to the output before
    it commits, and waits if the output is unreachable.
    """
    return [lake.outputs.add(name, to, changes)]


@command(
    outputs_app, "list", text=_outputs, examples=["tracelake output list", "tracelake output list --json"]
)
def output_list(lake: Lake) -> list[OutputInfo]:
    """List the outputs that were added."""
    return lake.outputs.all()


@command(outputs_app, "remove", text=_outputs, examples=["tracelake output remove stream"])
def output_remove(lake: Lake, name: NameArgument) -> list[OutputInfo]:
    """Remove an output. The data sent to it stays there."""
    lake.outputs.remove(name)
    return lake.outputs.all()


DayOption = Annotated[
    str | None,
    typer.Option("--valid-from", metavar="DAY", help="First day of the price, UTC, such as 2026-01-31."),
]


def _prices(prices: Sequence[OwnPrice]) -> Rendered:
    if not prices:
        return "No own prices: costs are computed by the shipped prices. `tracelake prices set` adds one."
    names = ("input", "cached_input", "cache_write", "output")
    return render.grid(
        ("model", "valid from", *(name.replace("_", " ") for name in names)),
        [
            (each.model, each.valid_from or "always", *(getattr(each, name) for name in names))
            for each in prices
        ],
        ids=("model",),
    )


@command(
    prices_app,
    "list",
    text=_prices,
    examples=["tracelake prices list", "tracelake prices list --json"],
)
def price_list(lake: Lake) -> list[OwnPrice]:
    """List the own prices in US dollars per million tokens."""
    return lake.prices.all()


@command(
    prices_app,
    "set",
    text=_prices,
    examples=[
        "tracelake prices set my-model --input 0.5 --output 2",
        "tracelake prices set 'gpt-4o*' --input 2 --output 8 --valid-from 2026-01-01",
    ],
)
def price_set(
    lake: Lake,
    model: Annotated[str, typer.Argument(help="Name of the model; * at its end matches any ending.")],
    input: Annotated[
        float, typer.Option("--input", metavar="DOLLARS", help="US dollars per million input tokens.")
    ],
    output: Annotated[float, typer.Option(metavar="DOLLARS", help="The same for output.")] = 0.0,
    cached_input: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="The same for input read from a cache; default: as input."),
    ] = None,
    cache_write: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="The same for input written to a cache; default: as input."),
    ] = None,
    valid_from: DayOption = None,
) -> list[OwnPrice]:
    """Add or replace an own price of a model.

    It applies to spans that are ingested from now on and state no cost. Of several valid prices, the most specific
    name wins, then the latest day, then the shipped price.
    """
    with recorded(lake, "prices set", model):
        price = lake.prices.set(
            model,
            input=input,
            output=output,
            cached_input=cached_input,
            cache_write=cache_write,
            valid_from=valid_from or "",
        )
    return [price]


@command(
    prices_app,
    "remove",
    text=_prices,
    examples=[
        "tracelake prices remove my-model",
        "tracelake prices remove 'gpt-4o*' --valid-from 2026-01-01",
    ],
)
def price_remove(
    lake: Lake,
    model: Annotated[str, typer.Argument(help="Name of the model, as listed.")],
    valid_from: DayOption = None,
) -> list[OwnPrice]:
    """Remove the own prices of a model, or only the one that is valid from a day."""
    with recorded(lake, "prices remove", model):
        lake.prices.remove(model, valid_from)
    return lake.prices.all()
