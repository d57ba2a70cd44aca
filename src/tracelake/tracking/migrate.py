"""Schema of the tracking store: its creation, and migrations from any revision to this release's, in one transaction.

A killed migration leaves the previous revision. Each process takes a lock first: SQLite's write lock, or a PostgreSQL
advisory lock with a fixed number. If several processes start at once, one migrates, and the others find the work done.
Copying a large table has no time limit.

The module also copies the tracking store of one lake from one database to another, of either kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from sqlalchemy import Column, Connection, LargeBinary, MetaData, String, Table, insert, inspect, select, text

from tracelake import limits
from tracelake._errors import StorageError, UsageError
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import (
    HEAD,
    PREVIEWS,
    VERSION_TABLE,
    lakes,
    metadata,
    outbox,
    previews_checksum,
    span_checksum,
    spans,
    trace_info,
)
from tracelake.tracking.store import OF_SPANS, TrackingStore

_MIRROR: Final = "tracelake_mirror_"
_GROWING: Final = "start_ns"
"""A column whose values mostly grow from row to row."""
_SCRIPTS: Final = Path(__file__).parent / "migrations"
_version: Final = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
"""Alembic's table. It is not in the schema's `metadata`, because its row belongs to no lake."""
_LOCK: Final = 0x544C5452
"""Number of the PostgreSQL advisory lock for migrations: TLTR."""


def migrate(database: TrackingDatabase, revision: str = HEAD) -> None:
    """Migrate the tables to a revision. Raises StorageError if the database fails, and UsageError for an unknown
    revision."""
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
        if before is None and revision == HEAD:
            create(connection)
            return
        # Nearly every start returns above, and importing this library takes a tenth of a start.
        from alembic import command  # noqa: PLC0415
        from alembic.config import Config  # noqa: PLC0415
        from alembic.script import ScriptDirectory  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
        config.attributes["connection"] = connection
        revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if before is not None and before not in revisions:
            raise UsageError(
                f"{database.name} has revision {before} of the tracking store, and this release reads up to "
                f"{HEAD}; use the release that wrote it, or a newer one"
            )
        command.upgrade(config, revision)


def create(connection: Connection) -> None:
    """Create the tables of this release in an empty database, which takes a tenth of the time of all migrations."""
    for tables in (metadata, _version.metadata):
        tables.create_all(connection, checkfirst=False)
    connection.execute(insert(_version), {"version_num": HEAD})


def add_mirrors(database: TrackingDatabase) -> None:
    """On SQLite, index all columns of each table except payloads, previews and spans, which have checksums.

    SQLite has no checksums. An index over all columns is a second copy of each value, and `PRAGMA integrity_check`
    compares the two. So `verify` finds a flipped bit in either. A table's own index may be this copy. Migrations do not
    know the other indexes.
    """
    if not database.is_sqlite:
        return
    wanted = _wanted_mirrors()
    with database.reading() as connection:
        if database.is_read_only or mirrors(connection) == wanted.keys():
            return
    with database.writing() as connection:
        there = mirrors(connection)
        for name in there - wanted.keys():
            connection.execute(text(f"DROP INDEX {name}"))
        for name in wanted.keys() - there:
            columns = ", ".join(f'"{column}"' for column in _mirrored(wanted[name]))
            connection.execute(text(f"CREATE INDEX {name} ON {wanted[name].name} ({columns})"))


def mirrors(connection: Connection) -> set[str]:
    """Return the names of the indexes that `add_mirrors` created."""
    query = text("SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE :pattern")
    return set(connection.execute(query, {"pattern": f"{_MIRROR}%"}).scalars())


def has_mirrors(connection: Connection) -> bool:
    """Return whether all columns of all tables are indexed, so that damage to any of them is detectable."""
    return mirrors(connection) >= _wanted_mirrors().keys()


def _wanted_mirrors() -> dict[str, Table]:
    """Return the tables that need a mirror, by its name: no checksum and no index of their own covers all columns."""
    return {
        _mirror_name(table): table
        for table in metadata.sorted_tables
        if "checksum" not in table.c
        and not any(set(index.columns.keys()) >= set(_mirrored(table)) for index in table.indexes)
    }


def _mirrored(table: Table) -> list[str]:
    """Return the columns of a mirror. A growing one comes first, so that new rows share the mirror's last page."""
    names = [column.name for column in table.c if not isinstance(column.type, LargeBinary)]
    names = [name for name in names if name not in PREVIEWS]
    return sorted(names, key=lambda name: name != _GROWING)


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


_SEQUENCE: Final = "pg_get_serial_sequence('tracelake_outbox', 'sequence')"


@contextmanager
def paused_snapshot(database: TrackingDatabase) -> Iterator[tuple[Connection, Any]]:
    """Pause writers of the outbox. Yield a connection that reads one snapshot, and a function that ends the pause.

    Data that the caller reads elsewhere before it ends the pause is from the same moment as the snapshot: in the
    meantime no request is acknowledged, and no row of the outbox deleted.
    """
    with database._failures("copy"), database.engine.connect() as lock, database.engine.connect() as reader:
        driver: Any = lock.connection.driver_connection
        if not database.is_sqlite:
            reader.execution_options(isolation_level="REPEATABLE READ")
        # Both connections are open before the lock is taken, because to open one may wait for it.
        reader.connection  # noqa: B018
        driver.execute(
            "BEGIN IMMEDIATE" if database.is_sqlite else "LOCK TABLE tracelake_outbox IN SHARE MODE"
        )
        is_paused = True

        def resume() -> None:
            nonlocal is_paused
            if is_paused:
                is_paused = False
                driver.execute("ROLLBACK")

        try:
            with reader.begin():
                reader.execute(select(lakes.c.lake).limit(1)).all()  # the snapshot begins here
                yield reader, resume
        finally:
            resume()


def copy_tracking(source: Connection, lake_id: str, target: TrackingDatabase) -> int:
    """Copy all rows of a lake into a migrated database that has none of them; return their number."""
    number = source.execute(select(lakes.c.lake).where(lakes.c.lake_id == lake_id)).scalar_one()
    with target.reading() as connection:
        if connection.execute(select(lakes.c.lake).where(lakes.c.lake_id == lake_id)).first() is not None:
            raise StorageError(
                f"{target.name} already has a tracking store of this lake; name an empty database"
            )
    there = TrackingStore(target, lake_id)
    last = _last_number(source)
    copied = 0
    with target.writing() as connection:
        for table in metadata.sorted_tables:
            if table is lakes:
                continue
            rows = source.execution_options(yield_per=limits.VERIFY_ROWS_AT_ONCE).execute(
                select(table).where(table.c.lake == number)
            )
            for some in rows.mappings().partitions():
                copied += len(some)
                # An experiment that each lake has may be there already.
                copies = [{**row, "lake": there.lake} for row in some]
                for row in copies:  # a row of an earlier release has none, and that of a span is of its lake
                    if table is trace_info:
                        row["previews_checksum"] = previews_checksum([row[name] for name in PREVIEWS])
                    elif table is spans:
                        row["checksum"] = span_checksum([row[name] for name in OF_SPANS[:-1]])
                connection.execute(target.insert(table).on_conflict_do_nothing(), copies)
        _number_from(connection, target, there.lake, last)
    return copied


def _last_number(connection: Connection) -> int:
    """Return the last number that an outbox row had. The journal identifies rows by number, so a number must never be
    used again."""
    if connection.dialect.name == "sqlite":
        query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'tracelake_outbox'"
    else:
        query = f"SELECT coalesce(pg_sequence_last_value({_SEQUENCE}::regclass), 0)"
    return int(connection.execute(text(query)).scalar_one())


def _number_from(connection: Connection, database: TrackingDatabase, lake: int, last: int) -> None:
    """Make the database assign outbox numbers after `last`."""
    if not database.is_sqlite:
        connection.execute(text(f"SELECT setval({_SEQUENCE}, greatest(:last, 1))"), {"last": last})
    elif (
        last
        and connection.execute(select(outbox.c.sequence).where(outbox.c.sequence == last)).first() is None
    ):
        row = {"sequence": last, "lake": lake, "payload": b"", "size_bytes": 0, "received_ns": 0}
        connection.execute(insert(outbox), row)
        connection.execute(outbox.delete().where(outbox.c.sequence == last))
