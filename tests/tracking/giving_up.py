"""Timeouts of a tracking store in PostgreSQL."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.patience import HANG_S
from tracelake import limits
from tracelake._errors import StorageError
from tracelake.tracking.database import TrackingDatabase


def check_gives_up(database: TrackingDatabase) -> None:
    """Check that client and server both cancel a long statement; limits must be below ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "POSTGRES_REPLY_TIMEOUT_S", HANG_S)  # a busy server cancels late
        with pytest.raises(StorageError, match="statement timeout"), database.writing() as connection:
            connection.execute(text("SELECT pg_sleep(10)"))
        with database.writing() as connection:
            connection.execute(text("SET statement_timeout = 0"))
    with pytest.raises(StorageError, match="no reply"), database.writing() as connection:
        connection.execute(text("SELECT pg_sleep(10)"))
