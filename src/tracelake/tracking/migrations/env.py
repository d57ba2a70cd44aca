"""Environment of Alembic: all revisions run in the transaction of the caller, which commits all or none."""

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
