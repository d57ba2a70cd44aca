"""What Alembic runs: all revisions in the transaction of who called, which commits or nothing has happened."""

from alembic import context

from tracelake.tracking.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite has it too, where nothing commits in between
)
with context.begin_transaction():
    context.run_migrations()
