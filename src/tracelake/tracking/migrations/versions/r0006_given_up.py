"""A permanent flag for traces whose spans were given up, which stays when a user removes their mark. On PostgreSQL,
trace ids are compared by their bytes.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_OF_TRACES = (
    "tracelake_trace_info",
    "tracelake_trace_tags",
    "tracelake_trace_metadata",
    "tracelake_assessments",
    "tracelake_trace_parts",
    "tracelake_spans",
)


def upgrade() -> None:
    """Set the flag for marked traces. On PostgreSQL, change the collation of trace ids, which rebuilds the indexes but
    not the tables."""
    op.add_column(
        "tracelake_trace_info", sa.Column("given_up", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.execute("UPDATE tracelake_trace_info SET given_up = true WHERE archival_failure = 'INCOMPLETE_TRACE'")
    if op.get_bind().dialect.name == "postgresql":
        for table in _OF_TRACES:
            op.execute(f'ALTER TABLE {table} ALTER COLUMN trace_id TYPE varchar(64) COLLATE "C"')


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
