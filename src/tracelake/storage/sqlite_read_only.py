"""Read-only access to a SQLite file in a directory that cannot be written: read-only, no rights, or a full disk.

SQLite in WAL mode needs a shared-memory file beside the database, even to read. If it cannot be made:

1. `mode=ro` reads the database if that file is there already.
2. Without a write-ahead log, and if the directory is read-only, `immutable=1` reads the file as it is.
3. Otherwise a private copy of the database and its log in the temporary directory is read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

WRITE_ERRORS: Final = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
)
"""Primary result codes of a database whose directory is unwritable."""
_MEMORY: Final = "/dev/shm"  # noqa: S108  a private directory in it, if the disk of the temporary directory is full


class ReadOnlyFile:
    """An address at which a SQLite file can be read, and why it cannot be written. `close` deletes a private copy."""

    def __init__(self, path: Path) -> None:
        """Find the address. Raises sqlite3.Error or OSError if the file cannot be read either."""
        is_writable = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
        self.reason = "its disk is full or fails" if is_writable else "its directory or file is read-only"
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        log = path.with_name(f"{path.name}-wal")
        has_log = log.exists() and log.stat().st_size > 0
        self.address = f"{path.as_uri()}?mode=ro"
        if self._can_read():
            return
        if not has_log and not is_writable:
            self.address += "&immutable=1"
        else:
            self.address = f"{self._copied(path, log).as_uri()}?mode=ro"
        with closing(sqlite3.connect(self.address, uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def close(self) -> None:
        """Delete the private copy, if there is one. Calling it twice is allowed."""
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _can_read(self) -> bool:
        try:
            with closing(sqlite3.connect(self.address, uri=True)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) not in WRITE_ERRORS:
                raise
            return False
        return True

    def _copied(self, path: Path, log: Path) -> Path:
        places = [place for place in (tempfile.gettempdir(), _MEMORY) if Path(place).is_dir()]
        for number, place in enumerate(places):
            self._copy = tempfile.TemporaryDirectory(prefix="tracelake-read-only-", dir=place)
            copy = Path(self._copy.name) / path.name
            try:
                shutil.copyfile(path, copy)
                if log.exists():
                    shutil.copyfile(log, copy.with_name(log.name))
            except OSError:
                self.close()
                if number + 1 == len(places):
                    raise
            else:
                return copy
        raise FileNotFoundError("no temporary directory")
