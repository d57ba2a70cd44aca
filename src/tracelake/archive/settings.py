"""Archive settings of a lake: one row, locked by changes of the settings and by archivers that begin uploads.

So concurrent changes do not overwrite each other. A move of the repository either precedes the registration of
uploads, which then fails, or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Connection, delete, select, update

from tracelake._errors import DamageError, UsageError
from tracelake.archive.model import ArchiveSettings
from tracelake.archive.protocol import LIVE
from tracelake.tracking.schema import archive_objects, archive_settings
from tracelake.tracking.store import TrackingStore


def read_settings(tracking: TrackingStore) -> ArchiveSettings:
    """Return the archive settings of a lake. Raises DamageError."""
    query = select(archive_settings.c.settings).where(archive_settings.c.lake == tracking.lake)
    with tracking.database.reading() as connection:
        return _from_text(connection.execute(query).scalar())


def change_settings(tracking: TrackingStore, changed: Mapping[str, Any]) -> ArchiveSettings:
    """Change some archive settings in one transaction. Raises DamageError, UsageError.

    The repository cannot be moved while it has archived traces; uploads in progress are abandoned. Damaged settings
    can only be replaced all at once.
    """
    with tracking.database.writing() as connection:
        try:
            before = locked_settings(connection, tracking, is_changed=True)
        except DamageError:
            if len(changed) < len(fields(ArchiveSettings)):
                raise
            before = ArchiveSettings(**changed)
        after = replace(before, **changed)
        if after.location != before.location:
            _leave_repository(connection, tracking.lake)
        here = update(archive_settings).where(archive_settings.c.lake == tracking.lake)
        # Without ASCII escapes, so that invalid UTF-8, possible from a command line, fails here and not in
        # each answer.
        connection.execute(here, {"settings": json.dumps(asdict(after), ensure_ascii=False)})
    return after


def locked_settings(connection: Connection, tracking: TrackingStore, *, is_changed: bool) -> ArchiveSettings:
    """Return the archive settings, locked until the transaction ends. Raises DamageError.

    Passes take a shared lock on the row, and changes an exclusive one. So the row is created even for default
    settings.
    """
    row = {"lake": tracking.lake, "settings": "{}"}
    connection.execute(tracking.database.insert(archive_settings).on_conflict_do_nothing(), row)
    query = select(archive_settings.c.settings).where(archive_settings.c.lake == tracking.lake)
    return _from_text(connection.execute(query.with_for_update(read=not is_changed)).scalar())


def _leave_repository(connection: Connection, lake: int) -> None:
    """Abandon all uploads to a repository, so that no trace is archived there. Raises UsageError if it has archived
    traces.

    The repository need not be reachable, because it may never have existed or be gone.
    """
    objects = archive_objects.c
    uploads = select(objects.path).where(objects.lake == lake, objects.state != LIVE).order_by(objects.path)
    connection.execute(
        uploads.with_for_update()
    ).all()  # a concurrent finalize came before, or finds its row gone
    if connection.execute(
        select(objects.path).where(objects.lake == lake, objects.state == LIVE).limit(1)
    ).first():
        raise UsageError(
            "traces are archived in the present repository: restore or delete them first, or keep it where it is"
        )
    connection.execute(delete(archive_objects).where(objects.lake == lake))


def _from_text(text: str | None) -> ArchiveSettings:
    try:
        fields = {} if text is None else json.loads(text)
        return ArchiveSettings(**fields | {"allowlist": tuple(fields.get("allowlist", ()))})
    except (ValueError, TypeError, AttributeError) as error:
        raise DamageError(
            f"the settings of the archive cannot be read: {error}; set layout, location, retention and allowlist anew, "
            "all at once"
        ) from error
