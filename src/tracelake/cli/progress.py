"""A progress bar on standard error for long work, where standard error is a terminal."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracelake.cli.output import console

if TYPE_CHECKING:
    from tracelake.tasks.progress import Progress


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None] | None]:
    """Yield what shows a step of progress, or None where nobody watches."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=screen, transient=True) as bars:
        task = bars.add_task("starting", total=None, amount="")

        def show(step: Progress) -> None:
            where = "" if step.transaction is None else f" transaction {step.transaction}"
            bars.update(
                task,
                description=f"{step.stage}{where}",
                completed=step.done,
                total=step.total or None,
                amount=f"{step.done:,}/{step.total:,} {step.unit}",
            )

        yield show
