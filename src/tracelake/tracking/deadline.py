"""Searches that end: SQLite is interrupted, and PostgreSQL gives up by its `statement_timeout`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, exc

from tracelake import limits
from tracelake._errors import QueryError

_CANCELED: Final = "57014"
"""What PostgreSQL calls a statement that took too long."""


@contextmanager
def in_time(connection: Connection) -> Iterator[None]:
    """Let statements run as long as a search may take. Raises QueryError."""
    driver: Any = connection.connection.driver_connection
    is_sqlite = isinstance(driver, sqlite3.Connection)
    if is_sqlite:
        deadline = time.monotonic() + limits.TRACKING_SEARCH_TIMEOUT_S
        driver.set_progress_handler(lambda: time.monotonic() > deadline, limits.TRACKING_SEARCH_POLL_STEPS)
    try:
        yield
    except exc.OperationalError as error:
        if not _is_too_late(error.orig):
            raise
        raise QueryError(
            "the search took too long; name fewer experiments, or times (timestamp_ms > …), and fewer patterns."
        ) from error
    finally:
        if is_sqlite:
            driver.set_progress_handler(None, 0)  # the connection is used again


def _is_too_late(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_INTERRUPT or getattr(error, "sqlstate", None) == _CANCELED
