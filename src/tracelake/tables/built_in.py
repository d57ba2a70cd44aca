"""The tables that every lake has, made of what is ingested: each is said once, here.

Whoever writes, reads, maintains or verifies tables goes through `BUILT_IN`. So another table is one entry, and what
fills it in `pipeline/merge.py`; without that, every transaction appends nothing to it. In a lake that is older than
the entry, the table begins with the next transaction: commits before it do not name it, and read it as empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tracelake.otlp.names import IS_SERVER_SQL
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.tables.pruning import Layout
from tracelake.tables.traces import TRACES

TABLES_FOLDER: Final = "tables/"
"""Where the entries of tables lie in a commit."""


def entry_of(table: str) -> str:
    """Return the path of a table's entry in a commit."""
    return TABLES_FOLDER + table


@dataclass(frozen=True, slots=True)
class BuiltInTable:
    """A table that transactions append to: its name is that of its shard, too."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    """The columns that tell rows apart: no two rows have the same values of `key_sql`."""
    sorted_by: tuple[str, ...]
    """The order of rows in parts: total, as the key is in it, so that a replay gives each row the id that it had."""
    bucketed_by: str
    """The column whose hash says in which bucket a row is. A part has a summary of its values."""
    sides: bool = False
    """Whether a row is told apart by its side instead of by all of column `kind`."""

    @property
    def entry(self) -> str:
        """The path of its entry in a commit."""
        return entry_of(self.name)

    @property
    def key_sql(self) -> tuple[str, ...]:
        """Return SQL of the key. The side of a span comes from `kind`, so parts of earlier releases have it too."""
        return tuple(IS_SERVER_SQL if self.sides and name == "kind" else name for name in self.key)

    def layout(self, buckets: int) -> Layout:
        """Return how its rows are laid out in a lake with so many buckets."""
        return Layout(self.schema, (self.bucketed_by,), buckets)


TABLE_SPANS: Final = BuiltInTable(
    name="spans",
    schema=SPANS_TABLE,
    key=("trace_id", "span_id", "workspace", "kind"),
    sorted_by=("trace_id", "start_ns", "span_id", "workspace", "kind"),
    bucketed_by="trace_id",
    sides=True,
)
TABLE_TRACES: Final = BuiltInTable(
    name="traces",
    schema=TRACES,
    key=("trace_id",),
    sorted_by=("trace_id",),
    bucketed_by="trace_id",
)

BUILT_IN: Final[dict[str, BuiltInTable]] = {table.name: table for table in (TABLE_SPANS, TABLE_TRACES)}
"""By name, in the order in which a transaction is appended: the first says whether it was published or set aside."""
