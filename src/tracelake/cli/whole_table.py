"""A table that a narrow terminal makes higher, and never less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

COLUMN_LEAST: Final = 4
"""Width that a column which may be broken has at least, before those which may not are broken."""


class WholeTable(Table):
    """A table that leaves no column out: in a terminal too narrow for what is never broken, that is broken as well."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbroken = [column for column in self.columns if column.no_wrap]
        cells = (max(map(cell_len, map(str, (column.header, *column.cells)))) for column in unbroken)
        rest = len(self.columns) - len(unbroken)
        if sum(cells) + rest * COLUMN_LEAST + 3 * len(self.columns) > options.max_width:
            for column in unbroken:
                column.no_wrap = False
        yield from Table.__rich_console__(self, console, options)
