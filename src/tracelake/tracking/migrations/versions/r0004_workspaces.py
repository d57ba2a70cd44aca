"""A workspace column for tags, assessments and spans, because a trace may belong to several workspaces.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracelake.tracking.migrations.copying import hold

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column to each table, filled with the workspace of the trace."""
    name = sa.String(length=500)
    for table in ("tracelake_spans", "tracelake_assessments"):
        op.add_column(table, sa.Column("workspace", name, nullable=False, server_default="default"))
        op.execute(
            f"UPDATE {table} SET workspace = i.workspace FROM tracelake_trace_info i "
            f"WHERE i.lake = {table}.lake AND i.trace_id = {table}.trace_id AND i.workspace <> 'default'"
        )
    # SQLite changes no primary key: the table is made anew.
    hold("tracelake_trace_tags")
    op.create_table(
        "tracelake_trace_tags_of_workspaces",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("workspace", name, autoincrement=False, nullable=False),
        sa.Column("key", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "trace_id", "workspace", "key"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO tracelake_trace_tags_of_workspaces (lake, trace_id, workspace, key, value) "
        "SELECT t.lake, t.trace_id, coalesce(i.workspace, 'default'), t.key, t.value FROM tracelake_trace_tags t "
        "LEFT JOIN tracelake_trace_info i ON i.lake = t.lake AND i.trace_id = t.trace_id"
    )
    op.drop_table("tracelake_trace_tags")
    op.rename_table("tracelake_trace_tags_of_workspaces", "tracelake_trace_tags")


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
