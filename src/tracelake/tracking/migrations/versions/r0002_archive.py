"""Tables of the archive: objects of repositories, and the archive settings of lakes.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of the archive."""
    op.create_table(
        "tracelake_archive_objects",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("traces", sa.Integer(), nullable=False),
        sa.Column("began_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lake", "path"),
    )
    op.create_table(
        "tracelake_archive_settings",
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lake"),
    )


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
