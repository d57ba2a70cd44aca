"""Directories that survive a power failure: a name is as durable as the directory it stands in."""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, durable on return; fine where it is there. Raises OSError."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: str | Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
