"""Command `erase`: erase traces from the whole lake, and list, continue or verify erasures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tracelake._errors import UsageError
from tracelake.cli.command import Renderable, command
from tracelake.cli.keys import recorded
from tracelake.cli.output import plain
from tracelake.results import ErasureReport

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake

app = typer.Typer()


class Action(StrEnum):
    """Action on existing erasures."""

    LIST = "list"
    SHOW = "show"
    RUN = "run"


def _shown(reports: Sequence[ErasureReport]) -> Iterator[Renderable]:
    if not reports:
        yield "There are no erasures."
    for report in reports:
        yield plain(
            f"{report.id} {report.state}: {report.traces:,} traces of {report.criterion} {report.value}"
        )
        if report.step is not None:
            yield f"  next: {report.step}"
        for place, count in report.removed.items():
            yield f"  removed: {count:,} {place}"
    if reports and reports[0].not_removed:
        yield "Not in the lake's reach:"
        yield from (f"  {place}" for place in reports[0].not_removed)
    if any(report.state == "open" for report in reports):
        yield "Readers no longer see the traces. `tracelake erase run` continues the removal of their bytes."


@command(
    app,
    "erase",
    text=_shown,
    examples=[
        "tracelake erase --trace 4bf92f3577b34da6a3ce929d0e0e4736",
        "tracelake erase --user alice",
        "tracelake erase --where \"attributes['customer'] = '17'\" --json",
        "tracelake erase run",
        "tracelake erase show 0c1f5a3be2d94f68",
    ],
)
def erase(
    lake: Lake,
    action: Annotated[Action | None, typer.Argument(help="Act on existing erasures.")] = None,
    erasure: Annotated[str | None, typer.Argument(help="Id of an erasure.")] = None,
    trace: Annotated[str | None, typer.Option(metavar="ID", help="Erase this trace.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Erase the traces of a session.")] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Erase the traces of a user.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="Erase the traces with a span that matches this DuckDB condition."
        ),
    ] = None,
) -> list[ErasureReport]:
    """Erase whole traces from every commit, the search index, the hot tier and the archive.

    Readers stop seeing the traces at once. If the pipeline has input from before the request, the bytes go later:
    `erase run` continues all open erasures, `erase list` and `erase show` report them.
    """
    criteria = {"trace": trace, "session": session, "user": user, "where": where}
    if action is None:
        if erasure is not None:
            raise UsageError("name an action before the id: list, show or run.")
        with recorded(
            lake, "erase", next((name for name, value in criteria.items() if value), "")
        ) as objects:
            report = lake.erase(trace=trace, session=session, user=user, where=where)
            objects.append(report.id)
        return [report]
    if any(value is not None for value in criteria.values()):
        raise UsageError(f"`erase {action}` acts on existing erasures; leave out what to erase.")
    if action is Action.RUN:
        return lake.erasures.run(erasure)
    if action is Action.SHOW and erasure is None:
        raise UsageError("name the erasure to show; `tracelake erase list` lists all.")
    return lake.erasures.all() if erasure is None else [lake.erasures.get(erasure)]
