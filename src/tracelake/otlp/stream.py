"""Reads a file as a stream of decompressed bytes, with bounded memory whatever is in it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple, Protocol

import zstandard

from tracelake.limits import GZIP_READ_BYTES, OTLP_BLOCK_BYTES, ZSTD_READ_BYTES

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    """What can be read from its beginning to its end."""

    def read(self, size_bytes: int, /) -> bytes:
        """Return the next bytes, fewer only at the end."""


class DamagedError(ValueError):
    """The stream is truncated or corrupt; what came before has been given out."""


def decompressed(file: Readable) -> Iterator[bytes]:
    """Yield blocks of a gzip, zstd or plain file, told apart by its first bytes.

    Raises DamagedError at the place where a compressed stream is cut or corrupt.
    """
    head = file.read(4)
    if head.startswith(GZIP_MAGIC):
        return _gunzipped(head, file)
    if head == ZSTD_MAGIC:
        return _unzstd(head, file)
    return chain([head] if head else [], iter(lambda: file.read(OTLP_BLOCK_BYTES), b""))


def _gunzipped(waiting: bytes, file: Readable) -> Iterator[bytes]:
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


def _after_zeros(file: Readable) -> bytes:
    while block := file.read(OTLP_BLOCK_BYTES):
        if rest := block.lstrip(b"\0"):
            return rest
    return b""


def _unzstd(waiting: bytes, file: Readable) -> Iterator[bytes]:
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
