"""How a lake archives: one row, that who changes it locks, and who begins uploads, too.

So of two changes at once each stands, and the repository is moved either before uploads are noted, which then are not
made where it was, or not at all.
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
    """Return how a lake archives. Raises DamageError."""
    query = select(archive_settings.c.settings).where(archive_settings.c.lake == tracking.lake)
    with tracking.database.reading() as connection:
        return _from_text(connection.execute(query).scalar())


def change_settings(tracking: TrackingStore, changed: Mapping[str, Any]) -> ArchiveSettings:
    """Change some of how a lake archives, by one transaction. Raises DamageError, UsageError.

    The repository cannot be moved away from traces that are in it, and uploads that are under way come to nothing. What
    cannot be read is set anew by who says all of it.
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
        # As it is: what is no UTF-8, as a command line may have it, is refused here, and would fail each answer.
        connection.execute(here, {"settings": json.dumps(asdict(after), ensure_ascii=False)})
    return after


def locked_settings(connection: Connection, tracking: TrackingStore, *, is_changed: bool) -> ArchiveSettings:
    """Return how a lake archives, as it stays until the transaction ends. Raises DamageError.

    Passes lock the row beside each other, and who changes it alone; so it is there even if nothing was ever set.
    """
    row = {"lake": tracking.lake, "settings": "{}"}
    connection.execute(tracking.database.insert(archive_settings).on_conflict_do_nothing(), row)
    query = select(archive_settings.c.settings).where(archive_settings.c.lake == tracking.lake)
    return _from_text(connection.execute(query.with_for_update(read=not is_changed)).scalar())


def _leave_repository(connection: Connection, lake: int) -> None:
    """Give up all uploads to a repository, so that no trace is ever archived there. Raises UsageError where some are.

    It may be one that never was, or is no more: so nobody need reach it.
    """
    objects = archive_objects.c
    uploads = select(objects.path).where(objects.lake == lake, objects.state != LIVE).order_by(objects.path)
    connection.execute(
        uploads.with_for_update()
    ).all()  # who finalizes one of them was before, or finds it gone
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
