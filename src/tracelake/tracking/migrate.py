"""Schema migrations of the tracking store, from any revision to this release's, in one transaction.

A killed migration leaves the previous revision. Each process takes a lock first: SQLite's write lock, or a PostgreSQL
advisory lock with a fixed number. So if several start at once, one migrates and the others find the work done.
Copying a large table has no time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from sqlalchemy import Connection, LargeBinary, Table, inspect, text

from tracelake._errors import UsageError
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import HEAD, VERSION_TABLE, metadata

_MIRROR: Final = "tracelake_mirror_"
_SCRIPTS: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 0x544C5452
"""Number of the PostgreSQL advisory lock for migrations: TLTR."""


def migrate(database: TrackingDatabase, revision: str = HEAD) -> None:
    """Migrate the tables to a revision. Raises StorageError, and UsageError for an unknown revision."""
    with database.reading() as connection:
        if current(connection) == revision:
            return
    with database.writing() as connection, _patiently(database, connection):
        if not database.is_sqlite:
            # After waiting for the lock, this transaction must see the other's changes, whatever isolation
            # the database defaults to.
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        before = current(connection)
        if before == revision:
            return
        # Nearly every start returns above, and importing this library takes a tenth of a start.
        from alembic import command  # noqa: PLC0415
        from alembic.config import Config  # noqa: PLC0415
        from alembic.script import ScriptDirectory  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
        config.attributes["connection"] = connection
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if before is not None and before not in known:
            raise UsageError(
                f"{database.name} has revision {before} of the tracking store, this release knows it up to {HEAD}; "
                "use the release that wrote it, or a newer one"
            )
        command.upgrade(config, revision)


def add_mirrors(database: TrackingDatabase) -> None:
    """On SQLite, index all columns of each table except payloads, which have a checksum.

    SQLite has no checksums. An index over all columns is a second copy of each value, and `PRAGMA integrity_check`
    compares the two. So `verify` finds a flipped bit in either. Migrations do not know these indexes.
    """
    if not database.is_sqlite:
        return
    wanted = {_mirror_name(table): table for table in metadata.sorted_tables}
    with database.reading() as connection:
        if database.is_read_only or mirrors(connection) == wanted.keys():
            return
    with database.writing() as connection:
        there = mirrors(connection)
        for name in there - wanted.keys():
            connection.execute(text(f"DROP INDEX {name}"))
        for name in wanted.keys() - there:
            columns = ", ".join(_mirrored(wanted[name]))
            connection.execute(text(f"CREATE INDEX {name} ON {wanted[name].name} ({columns})"))


def mirrors(connection: Connection) -> set[str]:
    """Return the names of the indexes that `add_mirrors` created."""
    query = text("SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE :pattern")
    return set(connection.execute(query, {"pattern": f"{_MIRROR}%"}).scalars())


def has_mirrors(connection: Connection) -> bool:
    """Return whether all columns of all tables are indexed, so that damage to any of them is detectable."""
    return mirrors(connection) >= {_mirror_name(table) for table in metadata.sorted_tables}


def _mirrored(table: Table) -> list[str]:
    return [f'"{column.name}"' for column in table.c if not isinstance(column.type, LargeBinary)]


def _mirror_name(table: Table) -> str:
    """Return a name that depends on the columns, so that an index of other columns is replaced."""
    return (
        f"{_MIRROR}{crc32(','.join(_mirrored(table)).encode()):08x}_{table.name.removeprefix('tracelake_')}"
    )


def current(connection: Connection) -> str | None:
    """Return the revision of the tables, or None if there are no tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return revision


@contextmanager
def _patiently(database: TrackingDatabase, connection: Connection) -> Iterator[None]:
    """Lift PostgreSQL's statement timeout in this context. Lock waits stay bounded."""
    if database.is_sqlite:
        yield
        return
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    driver: Any = connection.connection.driver_connection
    driver.is_patient = True
    try:
        yield
    finally:
        driver.is_patient = False  # the connection is reused
