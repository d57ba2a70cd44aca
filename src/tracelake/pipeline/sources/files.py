"""Files as a source: they are their owner's, may change at any time, and are never deleted."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Final

from tracelake._errors import LimitError, UsageError
from tracelake.journal.known import KnownInputs
from tracelake.otlp.whole import LASTING, fingerprint
from tracelake.pipeline.sources.archives import ARCHIVED
from tracelake.pipeline.sources.by_content import ByContent
from tracelake.pipeline.sources.names import to_name, to_path
from tracelake.pipeline.sources.port import UNKNOWN_SIZE, Input
from tracelake.pipeline.sources.walking import walk
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


def find_files(objects: ObjectStore, pattern: str) -> list[Input]:
    """See `Find`: the files that a path, a file URL, or a glob pattern in either names.

    A directory stands for the archive repository that it holds; where it holds none, it is an input that is none.
    """
    del objects
    path = path_of(pattern)
    archived = _named_by(pattern_below(path)) if os.path.isdir(path) else []  # noqa: PTH112
    # A name that exists is taken as it is, even with `[` in it. A plain name that does not exist is an
    # input like any other: it is reported as not there, and the good files beside it go in.
    literal = os.path.lexists(path) or not glob.has_magic(path)
    matches = archived or ([os.path.realpath(path)] if literal else _named_by(path))
    if not matches:
        raise UsageError(f"no file matches {pattern!r}. Quote the pattern, and check the folder.")
    return [Input(FILES, to_name(file), _size_or_unknown(file)) for file in matches]


def _named_by(pattern: str) -> list[str]:
    """Return all that a pattern names. Raises LimitError where it has no end."""
    walked = walk(pattern, files_only=False)
    if walked.left_out:
        raise LimitError(f"{pattern!r} names more than one call looks through: {walked.left_out}.")
    return sorted(walked.paths)


def pattern_below(path: str) -> str:
    """Return the pattern of the archived traces in a directory."""
    return f"{glob.escape(path)}/{ARCHIVED}"


def path_of(pattern: str) -> str:
    """Return what the user named, by a path or a file URL, as a path. Raises UsageError where it can be none."""
    path = to_path(pattern)
    if "\0" in path:
        raise UsageError(f"{pattern!r} is no path: it has a null character in it.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{pattern!r} is no path: it has half a character in it, which is no text."
        ) from error
    if path != pattern and not path.startswith("/"):
        raise UsageError(f"{pattern!r} holds no absolute path; write three slashes, as in file:///data/*.gz")
    return path


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
