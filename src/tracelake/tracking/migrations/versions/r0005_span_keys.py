"""The workspace becomes part of the key of spans, because two workspaces may send the same ids, even in one group.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracelake.tracking.migrations.copying import hold

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = (
    "lake, trace_id, span_id, sequence, workspace, parent_span_id, name, kind, status, service, start_ns, end_ns, "
    "session_id, user_id, model, input_tokens, output_tokens"
)


def upgrade() -> None:
    """Copy the table into a new one with the new key, because SQLite cannot change a primary key."""
    hold("tracelake_spans")
    name = sa.String(length=500)
    op.create_table(
        "tracelake_spans_of_workspaces",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("span_id", sa.String(length=16), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workspace", name, autoincrement=False, nullable=False),
        sa.Column("parent_span_id", sa.String(length=16), nullable=True),
        sa.Column("name", name, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=True),
        sa.Column("service", name, nullable=True),
        sa.Column("start_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_ns", sa.BigInteger(), nullable=False),
        sa.Column("session_id", name, nullable=True),
        sa.Column("user_id", name, nullable=True),
        sa.Column("model", name, nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("lake", "trace_id", "span_id", "sequence", "workspace"),
        sqlite_with_rowid=False,
    )
    op.execute(
        f"INSERT INTO tracelake_spans_of_workspaces ({_COLUMNS}) SELECT {_COLUMNS} FROM tracelake_spans"
    )
    op.drop_table("tracelake_spans")
    op.rename_table("tracelake_spans_of_workspaces", "tracelake_spans")


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
