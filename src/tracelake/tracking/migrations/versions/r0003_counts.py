"""Indexes that passes of the archive select by, and that have all that is counted.

Revision ID: 0003
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them, and drop those that they stand for."""
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
    """Go back no further."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
