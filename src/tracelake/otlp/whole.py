"""An input file as one run of bytes: what is trusted of it is what was read whole.

Several tasks read one file, each at its own time. Each counts and hashes the bytes that it decodes, to the end,
so that tasks which saw different files (one was renamed, or written again) are found out by comparing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

from tracelake.limits import OTLP_BLOCK_BYTES
from tracelake.results import Problem

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
LASTING: Final = frozenset(
    [errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG]
)
"""Errors that say what stands at the path. Any other is a failure of the machine, which may pass."""


class NotAnInputError(ValueError):
    """What stands at the path cannot be an input: nothing, a directory, something that may never end."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What one pass saw of a whole input: the same for all who read the same bytes."""

    size_bytes: int
    sha256: str
    """Of all its bytes; empty where there was no file to read."""
    payloads: int = 0
    """Messages in the file, also those of other stripes."""
    problem: Problem | None = None
    """What is wrong with the file as a whole."""


def why_not_whole(size_bytes: int | None, seen: Sequence[Whole]) -> str | None:
    """Say why an input of this size (None: of any), as its stripes have seen it, is not whole; or None.

    They agree where they read the same bytes to the end and saw the same in them. What was replaced, renamed or cut
    between the first look and the last task shows in one of them.
    """
    first = seen[0]
    if not any(whole.sha256 for whole in seen):
        return first.problem.reason if first.problem is not None else "is gone"
    if any(whole != first for whole in seen) or size_bytes not in (None, first.size_bytes):
        lost = next((whole.problem for whole in seen if not whole.sha256), None)
        how = f" ({lost.reason})" if lost is not None else ""
        return (
            f"changed while it was read{how}, and nothing of it was taken: leave it as it is, and run again"
        )
    return None


class InputFile:
    """The first bytes of an open file; what passes is counted and hashed."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._left_bytes = size_bytes
        self._digest = hashlib.sha256()
        self._passed_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end. Raises OSError."""
        block = self._file.read(min(size_bytes, self._left_bytes))
        self._left_bytes -= len(block)
        self._passed_bytes += len(block)
        self._digest.update(block)
        return block

    def finish(self) -> tuple[int, str]:
        """Read to the end; return size and SHA-256 of all bytes. Raises OSError."""
        while self.read(OTLP_BLOCK_BYTES):
            pass
        return self._passed_bytes, self._digest.hexdigest()


@contextmanager
def open_input(path: str, size_bytes: int | None = None) -> Iterator[InputFile]:
    """Open the first `size_bytes` of a regular file; None: what it has now.

    What is appended to a file meanwhile is no part of this input, so that a file which grows has an end.

    Raises NotAnInputError for what is no such file, OSError for a failure that may pass.
    """
    descriptor = _open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        yield InputFile(file, os.fstat(descriptor).st_size if size_bytes is None else size_bytes)


def _open_regular(path: str) -> int:
    descriptor = -1
    try:
        _check_kind(os.stat(path))  # noqa: PTH116  beside os.open: to open a device may do something
        # A pipe that took the place of the file since then must not block us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        _check_kind(os.fstat(descriptor))
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, OSError) and error.errno in LASTING:
            raise NotAnInputError(f"cannot be read: {error.strerror}") from None
        raise
    return descriptor


def _check_kind(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
        raise NotAnInputError(f"{what}: give the path of an OTLP file")


def fingerprint(path: str, size_bytes: int) -> tuple[int, str]:
    """Return size and SHA-256 of a file's first bytes; (0, "") where no file is, as of no recorded one.

    Raises OSError for a failure that may pass: it says nothing of what the file has.
    """
    try:
        with open_input(path, size_bytes) as file:
            return file.finish()
    except NotAnInputError:
        return 0, ""
