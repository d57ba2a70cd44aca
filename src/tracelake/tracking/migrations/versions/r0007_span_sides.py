"""The kind becomes part of the key of spans, because a client and a server span of one request may share a span id
(Zipkin B3).

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tracelake.tracking.migrations.copying import hold

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_KEY = ("lake", "trace_id", "span_id", "sequence", "workspace", "kind")
_COLUMNS = (
    *_KEY,
    *("parent_span_id", "name", "status", "service", "start_ns", "end_ns", "session_id", "user_id", "model"),
    *("input_tokens", "output_tokens"),
)


def upgrade() -> None:
    """Change the key of the table. On SQLite, which cannot change a primary key, copy the table into a new one."""
    if op.get_bind().dialect.name == "postgresql":
        key = sa.inspect(op.get_bind()).get_pk_constraint("tracelake_spans")["name"]
        op.execute(
            f'ALTER TABLE tracelake_spans DROP CONSTRAINT "{key}", ADD CONSTRAINT "{key}" '
            f"PRIMARY KEY ({', '.join(_KEY)})"
        )
        return
    hold("tracelake_spans")
    name = sa.String(length=500)
    op.create_table(
        "tracelake_spans_of_sides",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("span_id", sa.String(length=16), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workspace", name, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=32), autoincrement=False, nullable=False),
        sa.Column("parent_span_id", sa.String(length=16), nullable=True),
        sa.Column("name", name, nullable=False),
        sa.Column("status", sa.String(length=32), nullable=True),
        sa.Column("service", name, nullable=True),
        sa.Column("start_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_ns", sa.BigInteger(), nullable=False),
        sa.Column("session_id", name, nullable=True),
        sa.Column("user_id", name, nullable=True),
        sa.Column("model", name, nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(*_KEY),
        sqlite_with_rowid=False,
    )
    columns = ", ".join(_COLUMNS)
    op.execute(f"INSERT INTO tracelake_spans_of_sides ({columns}) SELECT {columns} FROM tracelake_spans")
    op.drop_table("tracelake_spans")
    op.rename_table("tracelake_spans_of_sides", "tracelake_spans")


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
