"""An input file as one run of bytes: what is trusted of it is what was read whole.

Several tasks read one file, each at its own time. Each counts and hashes the bytes that it decodes, to the end,
so that tasks which saw different files (one was renamed, or written again) are found out by comparing.

Reads a file as a stream of decompressed bytes, with bounded memory whatever is in it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, Final, NamedTuple, Protocol

import zstandard

from tracelake.limits import GZIP_READ_BYTES, OTLP_BLOCK_BYTES, ZSTD_READ_BYTES
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
class InputDigest:
    """What one pass saw of a whole input: the same for all who read the same bytes."""

    size_bytes: int
    sha256: str
    """Of all its bytes; empty where there was no file to read."""
    payloads: int = 0
    """Messages in the file, also those of other stripes."""
    problem: Problem | None = None
    """What is wrong with the file as a whole."""


def incomplete_reason(size_bytes: int | None, seen: Sequence[InputDigest]) -> str | None:
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


GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class ReadableStream(Protocol):
    """What can be read from its beginning to its end."""

    def read(self, size_bytes: int, /) -> bytes:
        """Return the next bytes, fewer only at the end."""


class DamagedError(ValueError):
    """The stream is truncated or corrupt; what came before has been given out."""


def decompressed(file: ReadableStream) -> Iterator[bytes]:
    """Yield blocks of a gzip, zstd or plain file, told apart by its first bytes.

    Raises DamagedError at the place where a compressed stream is cut or corrupt.
    """
    head = file.read(4)
    if head.startswith(GZIP_MAGIC):
        return _gunzipped(head, file)
    if head == ZSTD_MAGIC:
        return _unzstd(head, file)
    return chain([head] if head else [], iter(lambda: file.read(OTLP_BLOCK_BYTES), b""))


def _gunzipped(waiting: bytes, file: ReadableStream) -> Iterator[bytes]:
    """Yield the blocks of all members of a gzip file (RFC 1952); zeros may follow the last."""
    while waiting:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            waiting = waiting or file.read(GZIP_READ_BYTES)
            if not waiting:
                raise DamagedError("truncated gzip stream")
            before = member.copy()
            try:
                block = member.decompress(waiting, OTLP_BLOCK_BYTES)
            except zlib.error as error:
                yield _until_damage(before, waiting)
                raise DamagedError(f"corrupt gzip stream: {str(error).partition(': ')[2] or error}") from None
            waiting = member.unconsumed_tail
            if block:
                yield block
        waiting = (member.unused_data or file.read(GZIP_READ_BYTES)).lstrip(b"\0") or _after_zeros(file)


def _until_damage(member: zlib._Decompress, data: bytes) -> bytes:
    """Return what comes out of the data before the damage: zlib gives nothing of a call that fails."""
    parts = []
    try:
        for i in range(len(data)):
            parts.append(member.decompress(data[i : i + 1]))
    except zlib.error:
        pass
    return b"".join(parts)


def _after_zeros(file: ReadableStream) -> bytes:
    while block := file.read(OTLP_BLOCK_BYTES):
        if rest := block.lstrip(b"\0"):
            return rest
    return b""


def _unzstd(waiting: bytes, file: ReadableStream) -> Iterator[bytes]:
    """Yield the blocks of all frames of a zstd file (RFC 8878)."""
    decompressor = zstandard.ZstdDecompressor()
    while waiting:
        frame = decompressor.decompressobj()
        while not frame.eof:
            waiting = waiting or file.read(ZSTD_READ_BYTES)
            if not waiting:
                raise DamagedError("truncated zstd stream")
            try:
                block = frame.decompress(waiting)
            except zstandard.ZstdError as error:
                raise DamagedError(f"corrupt zstd stream: {error}") from None
            waiting = b""
            if block:
                yield block
        waiting = frame.unused_data or file.read(ZSTD_READ_BYTES)


class Line(NamedTuple):
    """A line without its newline: its bytes if they were asked for, and whether there was a newline."""

    data: bytes
    size: int
    blank: bool
    ended: bool


_INK: Final = re.compile(rb"[^ \t\r]")


class Stream:
    """Blocks as one run of bytes. `offset` is how many were taken; `damage` says why it ended early."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.offset = 0
        self.damage: str | None = None
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them, fewer at the end. `size` must be small."""
        while len(self._block) - self._at < size:
            more = self._next_block()
            if not more:
                break
            self._block, self._at = self._block[self._at :] + more, 0
        return self._block[self._at : self._at + size]

    def take(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        parts = [bytes(part) for part in self._parts(size)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> int:
        """Pass over the next bytes, and return how many there were."""
        return sum(len(part) for part in self._parts(size))

    def skip_nuls(self) -> int:
        """Skip the NUL bytes that come next, and return how many there were."""
        start = self.offset
        while self._fill() and self._block[self._at] == 0:
            rest = self._block[self._at :].lstrip(b"\0")
            self._move(len(self._block) - len(rest))
        return self.offset - start

    def take_line(self, limit: int, keep: bool) -> Line:
        """Take the next line and its newline, but stop where it gets longer than `limit` bytes.

        Its bytes are copied only if `keep`.
        """
        parts: list[bytes] = []
        size, blank, ended = 0, True, False
        while not ended and size <= limit and self._fill():
            newline = self._block.find(b"\n", self._at)
            ended = newline >= 0
            end = newline if ended else len(self._block)
            blank = blank and not _INK.search(self._block, self._at, end)
            if keep:
                parts.append(self._block[self._at : end])
            size += end - self._at
            self._move(end + ended)
        return Line(b"".join(parts), size, blank, ended)

    def _parts(self, size: int) -> Iterator[memoryview]:
        while size and self._fill():
            part = memoryview(self._block)[self._at : self._at + size]
            size -= len(part)
            self._move(self._at + len(part))
            yield part

    def _move(self, at: int) -> None:
        self.offset += at - self._at
        self._at = at

    def _fill(self) -> bool:
        if self._at == len(self._block):
            self._block, self._at = self._next_block(), 0
        return bool(self._block)

    def _next_block(self) -> bytes:
        try:
            return next(self._blocks, b"")
        except DamagedError as error:
            self.damage = str(error)
            return b""
