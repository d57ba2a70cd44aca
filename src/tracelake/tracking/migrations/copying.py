"""Lock for a migration that copies a table into its replacement."""

from __future__ import annotations

from alembic import op


def hold(table: str) -> None:
    """Lock a table until the migration ends, so that no other transaction writes it.

    On PostgreSQL, a statement that copies a table does not see rows of open transactions, and dropping the table waits
    for these transactions. Rows that they commit in the meantime would be lost. SQLite allows one writer at a time,
    which is the migration.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
