"""Rows of one workspace: the conditions that reads of it have, as SQL and for rows that are there."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.shards.rows import literal


def within(rows: pa.Table, workspace: str | None) -> pa.Table:
    """Return the rows of one workspace, with None all."""
    return rows if workspace is None else rows.filter(pc.equal(rows["workspace"], pa.scalar(workspace)))


def only_within(rows: str, workspace: str | None) -> str:
    """Return the SQL of rows of one workspace, with None of all."""
    return rows if workspace is None else f"select * from ({rows}) where workspace = {literal(workspace)}"


def told_of(workspace: str | None) -> tuple[str, ...]:
    """Return what tells a search in one workspace from others, for the names of pages; nothing for one in all."""
    return () if workspace is None else ("workspace", workspace)
