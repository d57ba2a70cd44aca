"""Files as a source: they are their owner's, may change at any time, and are never deleted."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tracelake._errors import UsageError
from tracelake.journal.known import KnownInputs
from tracelake.otlp.whole import LASTING, fingerprint
from tracelake.pipeline.sources.by_content import ByContent
from tracelake.pipeline.sources.names import to_name, to_path
from tracelake.pipeline.sources.port import UNKNOWN_SIZE, Input
from tracelake.storage import ObjectStore

FILES: Final = "files"


class FileSource(ByContent):
    """Files by their names (`names.py`); see `Source`."""

    def __init__(self, objects: ObjectStore, known: KnownInputs) -> None:
        del objects
        super().__init__(known, lambda path, size_bytes: fingerprint(to_path(path), size_bytes)[1])

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        return size_of(to_path(path))


def fetch_file(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """See `Fetch`: a file is read where it is."""
    del objects, size_bytes, folder
    return to_path(path)


def find_files(patterns: Iterable[str]) -> list[Input]:
    """Return the files that paths and glob patterns name, each once, in the order given.

    Raises UsageError for a pattern that matches nothing.
    """
    found: dict[str, Input] = {}
    for pattern in patterns:
        if "\0" in pattern:
            raise UsageError(f"{pattern!r} is no path: it has a null character in it.")
        # A name that exists is taken as it is, even with `[` in it. A plain name that does not exist is an
        # input like any other: it is reported as not there, and the good files beside it go in.
        literal = os.path.lexists(pattern) or not glob.has_magic(pattern)
        matches = [pattern] if literal else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  Path.glob takes no absolute pattern
        if not matches:
            raise UsageError(f"no file matches {pattern!r}. Quote the pattern, and check the folder.")
        for match in matches:
            path = os.path.realpath(match)
            name = to_name(path)
            found.setdefault(name, Input(FILES, name, _size_or_unknown(path)))
    if not found:
        raise UsageError("no file to ingest was named.")
    return list(found.values())


def size_of(path: str) -> int:
    """Return the size of a file, 0 where no file can be read there, as reading it will say.

    Raises OSError for a failure that may pass: it says nothing of what the file has.
    """
    try:
        return Path(path).stat().st_size
    except OSError as error:
        if error.errno in LASTING:
            return 0
        raise


def _size_or_unknown(path: str) -> int:
    try:
        return size_of(path)
    except OSError:
        return UNKNOWN_SIZE
