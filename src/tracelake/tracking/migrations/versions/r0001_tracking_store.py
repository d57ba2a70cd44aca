"""First schema of the tracking store.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    _make_tables_of_traces()
    _make_more_tables_of_traces()
    op.create_table(
        "tracelake_assessments",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("assessment_id", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("span_id", sa.String(length=16), nullable=True),
        sa.Column("name", sa.String(length=500), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("updated_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "trace_id", "assessment_id"),
    )
    op.create_table(
        "tracelake_experiment_tags",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("experiment_id", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("key", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "experiment_id", "key"),
    )
    op.create_table(
        "tracelake_experiments",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("experiment_id", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("workspace", sa.String(length=500), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "experiment_id"),
        sa.UniqueConstraint("lake", "workspace", "name"),
    )
    op.create_table(
        "tracelake_lakes",
        sa.Column("lake", sa.Integer(), nullable=False),
        sa.Column("lake_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("lake"),
        sa.UniqueConstraint("lake_id"),
    )
    op.create_table(
        "tracelake_outbox",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("lake", sa.Integer(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sqlite_autoincrement=True,
    )
    op.create_index("tracelake_outbox_by_lake", "tracelake_outbox", ["lake", "sequence"], unique=False)


def _make_tables_of_traces() -> None:
    op.create_table(
        "tracelake_spans",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("span_id", sa.String(length=16), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parent_span_id", sa.String(length=16), nullable=True),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=True),
        sa.Column("service", sa.String(length=500), nullable=True),
        sa.Column("start_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_ns", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.String(length=500), nullable=True),
        sa.Column("user_id", sa.String(length=500), nullable=True),
        sa.Column("model", sa.String(length=500), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("lake", "trace_id", "span_id", "sequence"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tracelake_trace_info",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("workspace", sa.String(length=500), nullable=False),
        sa.Column("experiment_id", sa.String(length=250), nullable=False),
        sa.Column("start_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_ns", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=True),
        sa.Column("service", sa.String(length=500), nullable=True),
        sa.Column("session_id", sa.String(length=500), nullable=True),
        sa.Column("user_id", sa.String(length=500), nullable=True),
        sa.Column("client_request_id", sa.String(length=500), nullable=True),
        sa.Column("request_preview", sa.String(length=1000), nullable=True),
        sa.Column("response_preview", sa.String(length=1000), nullable=True),
        sa.Column("spans_location", sa.String(length=32), nullable=False),
        sa.Column("archive_location", sa.Text(), nullable=True),
        sa.Column("archive_bytes", sa.BigInteger(), nullable=True),
        sa.Column("archive_sha256", sa.String(length=64), nullable=True),
        sa.Column("archived_ns", sa.BigInteger(), nullable=True),
        sa.Column("archival_failure", sa.String(length=64), nullable=True),
        sa.Column("db_payload_generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("updated_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "trace_id"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "tracelake_trace_info_by_time",
        "tracelake_trace_info",
        ["lake", "experiment_id", "start_ns", "trace_id"],
        unique=False,
    )


def _make_more_tables_of_traces() -> None:
    op.create_table(
        "tracelake_trace_metadata",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("key", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "trace_id", "key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tracelake_trace_parts",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("spans", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "trace_id", "sequence"),
    )
    op.create_index("tracelake_trace_parts_by_sequence", "tracelake_trace_parts", ["sequence"], unique=False)
    op.create_table(
        "tracelake_trace_tags",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("key", sa.String(length=250), autoincrement=False, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "trace_id", "key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tracelake_workspaces",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("workspace", sa.String(length=500), autoincrement=False, nullable=False),
        sa.Column("trace_archival_location", sa.Text(), nullable=True),
        sa.Column("trace_archival_retention", sa.String(length=8000), nullable=True),
        sa.PrimaryKeyConstraint("lake", "workspace"),
    )
