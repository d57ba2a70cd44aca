"""Indexes for archive passes. They contain all columns that a pass selects by or counts.

Revision ID: 0003
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create these indexes, and drop the ones that they replace."""
    op.drop_index("tracelake_trace_info_by_time", "tracelake_trace_info")
    op.create_index(
        "tracelake_trace_info_by_place",
        "tracelake_trace_info",
        [
            "lake",
            "spans_location",
            "experiment_id",
            "workspace",
            "start_ns",
            "trace_id",
            "archival_failure",
            "archive_bytes",
        ],
    )
    op.drop_index("tracelake_trace_parts_by_sequence", "tracelake_trace_parts")
    op.create_index(
        "tracelake_trace_parts_by_sequence", "tracelake_trace_parts", ["sequence", "lake", "size_bytes"]
    )


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
