"""Temporary directories for tantivy, gone afterwards in spite of its threads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracelake.limits import SCRATCH_DELETE_TRIES_MAX


@contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new directory, under `parent` or the system's place for such; delete what is there at the end.

    Whenever tantivy opens a directory it starts a thread, which may make its lock file once more while the
    directory is being deleted; so deleting is tried again.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield directory
    finally:
        delete_directory(directory)


def delete_directory(directory: Path) -> None:
    """Delete a directory with all that is in it, as well as can be."""
    for _ in range(SCRATCH_DELETE_TRIES_MAX):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break
