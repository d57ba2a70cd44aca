"""Preparations of a revision that copies a table into its replacement."""

from __future__ import annotations

from alembic import op


def hold(table: str) -> None:
    """Wait for those who are writing a table, and let nobody write it before this is over.

    On PostgreSQL a statement that copies does not see rows of transactions that are open, and to drop the table waits
    for these: what they commit meanwhile would go with it. SQLite has one writer at a time, which is this one.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
