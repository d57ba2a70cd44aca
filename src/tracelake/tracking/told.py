"""What is told to a workspace of what is said of traces: tags, metadata, assessments.

What a key of one workspace says is of that workspace. MLflow's client says with a key of all workspaces what it knows
of a trace, and not for which of those that share the trace: that is told to a workspace while all spans are of it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Table, and_, exists, or_
from sqlalchemy.sql.elements import ColumnElement

from tracelake.tracking.schema import spans

FOR_ALL: Final = "*"
"""The workspace of what nobody has said for one."""


def told_to(table: Table, workspace: str | ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that what is said of a trace is told to a workspace."""
    said_for = table.c.workspace
    return or_(said_for == workspace, and_(said_for == FOR_ALL, is_alone(table, workspace)))


def is_alone(table: Table, workspace: str | ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a trace has spans, and all of them are of a workspace."""
    of = (spans.c.lake == table.c.lake, spans.c.trace_id == table.c.trace_id)
    here = exists().where(*of, spans.c.workspace == workspace).correlate_except(spans)
    others = exists().where(*of, spans.c.workspace != workspace).correlate_except(spans)
    return and_(here, ~others)
