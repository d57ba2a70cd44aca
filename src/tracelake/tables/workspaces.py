"""Rows of one workspace: the conditions that reads of it have, as SQL and for rows that are there."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.shards.rows import literal
from tracelake.tables.built_in import TABLE_SPANS, TABLE_TRACES
from tracelake.tables.traces import aggregate_sql


def within(rows: pa.Table, workspace: str | None) -> pa.Table:
    """Return the rows of one workspace, with None all."""
    return rows if workspace is None else rows.filter(pc.equal(rows["workspace"], pa.scalar(workspace)))


def only_within(rows: str, workspace: str | None) -> str:
    """Return the SQL of rows of one workspace, with None of all."""
    return rows if workspace is None else f"select * from ({rows}) where workspace = {literal(workspace)}"


def told_of(workspace: str | None) -> tuple[str, ...]:
    """Return what tells a search in one workspace from others, for the names of pages; nothing for one in all."""
    return () if workspace is None else ("workspace", workspace)


def table_within(name: str, rows: str, workspace: str | None) -> str:
    """Return the SQL of a table in one workspace, with None in all.

    A trace that workspaces share has one row in `traces`, which tells of all its spans: so that is made anew.
    """
    is_made = workspace is not None and name == TABLE_TRACES.name
    return aggregate_sql(TABLE_SPANS.name, 0) if is_made else only_within(rows, workspace)


def made_of(names: set[str], workspace: str | None) -> set[str]:
    """Return the tables that others are made of in one workspace."""
    return {TABLE_SPANS.name} if workspace is not None and TABLE_TRACES.name in names else set()
