"""The oldest tables that can be migrated. A new database gets this release's tables (`migrate`), so this never runs.

Revision ID: 0007
"""

revision = "0007"
down_revision = None
branch_labels = None
depends_on = None
