"""Commands about outputs besides the tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, plain, print_json

if TYPE_CHECKING:
    from tracelake.lake.outputs import OutputInfo

NameArgument = Annotated[str, typer.Argument(help="Its name.", show_default=False)]
app = typer.Typer()
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
    name: NameArgument,
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
    """Send the spans that are new in each transaction to an output, as OTLP, from the next transaction on.

    Every pipeline of the lake writes to it before it commits, and waits for one that cannot be reached."""
    with opened(lake) as open_lake:
        _print([open_lake.outputs.add(name, to, changes)], as_json=as_json)


@outputs_app.command("list", epilog=examples("tracelake output list", "tracelake output list --json"))
def output_list(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the outputs that were added."""
    with opened(lake) as open_lake:
        _print(open_lake.outputs.all(), as_json=as_json)


@outputs_app.command("remove", epilog=examples("tracelake output remove stream"))
def output_remove(name: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Send nothing more to an output. What it has stays there."""
    with opened(lake) as open_lake:
        open_lake.outputs.remove(name)
        _print(open_lake.outputs.all(), as_json=as_json)


def _print(infos: list[OutputInfo], *, as_json: bool) -> None:
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
