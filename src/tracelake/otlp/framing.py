"""Framing of input files: splits a file into payloads. The content determines the format, never the file name.

| first bytes, decompressed | framing |
|---|---|
| `{` after white space | JSON lines; one multi-line document if the first line is `{` alone |
| `TLSEG1` newline | a segment of Tracelake's inbox |
| `TLLOG1` newline | a range of a log, see below |
| 0x0a | one bare protobuf message: field 1, with a length |
| 4-byte big-endian length, then 0x0a, `{` or a zstd frame | messages as the Collector's file exporter writes them
  with `format: proto` or with `compression` (exporter/fileexporter/file_writer.go) |

A log range is stored as a file, so that tasks read it like any input. It contains the messages in order, each with
its offset: `TLLOG1` newline, then frames. A frame is a letter, the offset (8 bytes, big-endian), the length (4 bytes)
and the data.

| letter | data |
|---|---|
| `m` | a message: OTLP protobuf, or JSON if it begins with `{` |
| `x` | the reason why a message is rejected |
| `r` | the reason why messages are missing or corrupt; reading fails here, so that no loss goes unnoticed |
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final, Literal, TypeAlias

import zstandard

from tracelake._errors import RecordsRemovedError
from tracelake.limits import OTLP_LINE_MAX_BYTES
from tracelake.otlp.decode import (
    ZSTD_MAGIC,
    InputDigest,
    NotAnInputError,
    ReadableStream,
    Stream,
    decompressed,
    open_input,
)
from tracelake.results import Problem

LOG_MAGIC: Final = b"TLLOG1\n"
MESSAGE, REFUSED, REMOVED = b"m", b"x", b"r"


def log_frame(offset: int, value: bytes) -> bytes:
    """Return the frame of a message."""
    if len(value) > OTLP_LINE_MAX_BYTES:
        return _frame(REFUSED, offset, f"message longer than {OTLP_LINE_MAX_BYTES} bytes".encode())
    return _frame(MESSAGE, offset, value)


def removed_frame(offset: int, reason: str) -> bytes:
    """Return the frame for messages that were removed from the log, starting at an offset."""
    return _frame(REMOVED, offset, reason.encode())


def is_json(value: bytes) -> bool:
    """Return whether a message is JSON. No protobuf message of OTLP traces begins with `{`."""
    return value.lstrip()[:1] == b"{"


def _frame(kind: bytes, offset: int, data: bytes) -> bytes:
    return kind + offset.to_bytes(8) + len(data).to_bytes(4) + data


Format: TypeAlias = Literal["json", "protobuf"]


@dataclass(frozen=True, slots=True)
class Payload:
    """One OTLP message as bytes, with its place in the input. `line` counts from 1 (JSON lines only); `offset` refers
    to the decompressed data."""

    format: Format
    data: bytes
    line: int | None
    offset: int


@dataclass(slots=True)
class _Share:
    """Selects the payloads whose number modulo `stripes` is `stripe`, and counts all payloads."""

    stripe: int
    stripes: int
    number: int = 0
    """Number of the next payload, from 0; at the end, the total count."""

    def has_next(self) -> bool:
        return self.number % self.stripes == self.stripe


_Items: TypeAlias = Generator[Payload | Problem, None, Problem | None]
"""Payloads and problems of single payloads; returns the problem that ended the file, if any."""
_BOM: Final = b"\xef\xbb\xbf"
_SEGMENT_MAGIC: Final = b"TLSEG1\n"
_SEGMENT_FORMATS: Final[dict[bytes, Format]] = {b"j": "json", b"p": "protobuf"}
_ONE_SEGMENT: Final = b"\x20"
"""Descriptor byte of a zstd frame: a content size of one byte, no checksum."""
_MESSAGE_STARTS: Final = (b"\n", b"{", ZSTD_MAGIC[:1])
_JSON_AFTER_NEWLINE: Final = re.compile(rb'\s*\{\s*("[A-Za-z_]|\}|\Z)')
"""JSON that begins with an empty line. A protobuf message with the same first two bytes does not match."""


class Reading:
    """Iterable over the payloads of an OTLP file whose number modulo `stripes` is `stripe`, in bounded memory. It can
    be iterated once.

    A payload that cannot be unpacked becomes a Problem in its place. After the iteration, `whole` describes the
    entire file. Every stripe reads the whole file, so the digests of all its stripes must agree.

    Args:
        size_bytes: number of bytes that belong to the input; None for the current size of the file
    """

    def __init__(self, path: str, stripe: int = 0, stripes: int = 1, size_bytes: int | None = None) -> None:
        self._path = path
        self._share = _Share(stripe, stripes)
        self._size_bytes = size_bytes
        self.whole: InputDigest | None = None

    def __iter__(self) -> Iterator[Payload | Problem]:
        """Yield the payloads. Raises OSError, possibly after some payloads, if this machine cannot read the file."""
        try:
            with open_input(self._path, self._size_bytes) as file:
                problem = yield from _read_open(file, self._share)
                # The digest also covers the bytes after the last position read.
                size_bytes, sha256 = file.finish()
        except NotAnInputError as error:
            self.whole = InputDigest(0, "", problem=Problem(str(error)))
        else:
            self.whole = InputDigest(size_bytes, sha256, self._share.number, problem)


def _read_open(file: ReadableStream, share: _Share) -> _Items:  # noqa: PLR0911  one for each framing
    stream = Stream(decompressed(file))
    if stream.peek(4) == bytes(4):  # no framing begins with four NULs
        yield from _skipped_nuls(stream, share)
        if not stream.peek(1):
            return None
    head = stream.peek(4096)
    if head.startswith(_BOM):
        stream.skip(len(_BOM))
        head = head[len(_BOM) :]
    if head.startswith(_SEGMENT_MAGIC):
        stream.skip(len(_SEGMENT_MAGIC))
        return (yield from _segment(stream, share))
    if head.startswith(LOG_MAGIC):
        stream.skip(len(LOG_MAGIC))
        return (yield from _log(stream, share))
    if _is_json(head):
        return (yield from _json(stream, share))
    if head[:1] == b"\n" and head.strip():
        return (yield from _bare(stream, share))
    if head[4:5] in _MESSAGE_STARTS and 0 < int.from_bytes(head[:4]) <= OTLP_LINE_MAX_BYTES:
        return (yield from _messages(stream, share))
    return _unknown(stream, head)


def _skipped_nuls(stream: Stream, share: _Share) -> Iterator[Problem]:
    """Skip NUL bytes, which a rotated log has where it was truncated. Yield a problem if there are any."""
    start = stream.offset
    if count := stream.skip_nuls():
        if share.has_next():
            yield Problem(
                f"{count} NUL bytes were skipped; a log has them if it was truncated while a program wrote it",
                offset=start,
            )
        share.number += 1


def _is_json(head: bytes) -> bool:
    if head[:1] == b"\n" and head.strip():
        return _JSON_AFTER_NEWLINE.match(head) is not None
    return head.lstrip()[:1] == b"{"


def _unknown(stream: Stream, head: bytes) -> Problem:
    if stream.damage:
        return _damage(stream)
    if not head:
        return Problem("empty file")
    if not head.strip():
        return Problem("only white space", offset=0)
    return Problem(f"neither OTLP JSON lines nor OTLP protobuf: it begins with {head[:16]!r}", offset=0)


def _damage(stream: Stream, line: int | None = None) -> Problem:
    return Problem(f"{stream.damage} after byte {stream.offset} (decompressed)", line, stream.offset)


def _json(stream: Stream, share: _Share) -> _Items:
    line, first = 0, share.number
    while True:
        line += 1
        yield from _skipped_nuls(stream, share)
        start = stream.offset
        # All stripes read the first line, to see whether it begins a multi-line document.
        piece = stream.take_line(OTLP_LINE_MAX_BYTES, share.number == first or share.has_next())
        if piece.size > OTLP_LINE_MAX_BYTES:
            return _too_long("line", line, start)
        if stream.damage and not piece.ended:
            return _damage(stream, line)
        if share.number == first and piece.data.strip() == b"{":
            return (yield from _document(stream, share, piece.data, line, start))
        if not piece.blank:
            if share.has_next():
                yield Payload("json", piece.data, line, start)
            share.number += 1
        if not piece.ended:
            return None


def _document(stream: Stream, share: _Share, first: bytes, line: int, start: int) -> _Items:
    """Yield the rest of the file as one document."""
    data = first + b"\n" + stream.take(OTLP_LINE_MAX_BYTES)
    if stream.peek(1):
        return _too_long("document", line, start)
    if stream.damage:
        return _damage(stream, line)
    if share.has_next():
        yield Payload("json", data, line, start)
    share.number += 1
    return None


def _too_long(what: str, line: int | None, offset: int) -> Problem:
    return Problem(f"{what} longer than {OTLP_LINE_MAX_BYTES} bytes", line, offset)


def _bare(stream: Stream, share: _Share) -> _Items:
    data = stream.take(OTLP_LINE_MAX_BYTES)
    if stream.peek(1):
        return _too_long("protobuf message", None, 0)
    if stream.damage:
        return _damage(stream)
    if share.has_next():
        yield Payload("protobuf", data, None, 0)
    share.number += 1
    return None


def _messages(stream: Stream, share: _Share) -> _Items:
    while stream.peek(1):
        start = stream.offset
        if stream.peek(4) == bytes(4):
            return Problem("a message of zero bytes; the file may have a hole", offset=start)
        item = _framed(stream, start, "protobuf", share.has_next())
        if isinstance(item, Problem):
            return item
        if item is not None:
            yield _collector_message(item)
        share.number += 1
    return _damage(stream) if stream.damage else None


def _collector_message(payload: Payload) -> Payload | Problem:
    """Return the message in the frame. The Collector may compress each message and may write JSON."""
    data = payload.data
    if data.startswith(ZSTD_MAGIC):
        # zstd's own reader ends without an error after the first frame or at a truncated frame.
        stream = Stream(decompressed(BytesIO(data)))
        data = stream.take(OTLP_LINE_MAX_BYTES + 1)
        if len(data) > OTLP_LINE_MAX_BYTES:
            return _too_long("decompressed message", None, payload.offset)
        if stream.damage:
            return Problem(f"{stream.damage} in the message", offset=payload.offset)
    return Payload("json" if data.startswith(b"{") else "protobuf", data, None, payload.offset)


def _segment(stream: Stream, share: _Share) -> _Items:
    while kind := stream.peek(1):
        start = stream.offset
        if kind not in _SEGMENT_FORMATS:
            return Problem(f"damaged segment: a frame of kind {kind!r}", offset=start)
        stream.skip(1)
        item = _framed(stream, start, _SEGMENT_FORMATS[kind], share.has_next())
        if isinstance(item, Problem):
            return item
        if item is not None:
            yield item
        share.number += 1
    return _damage(stream) if stream.damage else None


def _log(stream: Stream, share: _Share) -> _Items:
    """Yield the messages of a log range, each with its log offset. Raises RecordsRemovedError if some were removed."""
    while kind := stream.take(1):
        offset = int.from_bytes(stream.take(8))
        item = _framed(stream, offset, "protobuf", keep=True)
        if not isinstance(item, Payload):
            return item
        if kind == REMOVED:
            raise RecordsRemovedError(item.data.decode())
        if share.has_next():
            if kind == REFUSED:
                yield Problem(item.data.decode(), offset=offset)
            else:
                yield Payload("json" if is_json(item.data) else "protobuf", item.data, None, offset)
        share.number += 1
    return None


def _framed(stream: Stream, start: int, format: Format, keep: bool) -> Payload | Problem | None:
    """Read a 4-byte length and that many bytes. Return None if the payload is skipped (`keep` is false)."""
    prefix = stream.take(4)
    length = int.from_bytes(prefix)
    if len(prefix) == 4 and length > OTLP_LINE_MAX_BYTES:
        return _too_long(f"message of {length} bytes:", None, start)
    data = stream.take(length) if keep else b""
    size = len(data) if keep else stream.skip(length)
    if len(prefix) < 4 or size < length:
        if stream.damage:
            return _damage(stream)
        return Problem(f"truncated: the message at byte {start} is cut after {size} bytes", offset=start)
    return Payload(format, data, None, start) if keep else None


def write_segment(payloads: Iterable[tuple[Format, bytes]]) -> bytes:
    """Return an inbox segment: the payloads in frames, compressed with zstd level 1, with a checksum."""
    parts = [_SEGMENT_MAGIC]
    for format, data in payloads:
        parts += [b"j" if format == "json" else b"p", len(data).to_bytes(4), data]
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"".join(parts))


def segment_of_frames(frames: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a segment of protobuf payloads that are already zstd frames. Each item is (uncompressed size, frame).

    The headers between the payloads are uncompressed zstd frames, so that every writer produces the same bytes.
    """
    parts, before = list[bytes](), _SEGMENT_MAGIC
    for size_bytes, frame in frames:
        parts += [_stored(before + b"p" + size_bytes.to_bytes(4)), frame]
        before = b""
    return b"".join(parts)


def segment_of_frames_bytes(frames: Collection[int]) -> int:
    """Return the size of a `segment_of_frames` segment, from the sizes of its frames."""
    return len(_SEGMENT_MAGIC) + len(frames) * len(_stored(b"p" + bytes(4))) + sum(frames)


def _stored(data: bytes) -> bytes:
    """Return a zstd frame with a few uncompressed bytes (RFC 8878): their number, then one raw block."""
    return (
        ZSTD_MAGIC + _ONE_SEGMENT + len(data).to_bytes() + (len(data) << 3 | 1).to_bytes(3, "little") + data
    )


def segment_payloads(data: bytes) -> Iterator[Payload]:
    """Yield the readable payloads of an inbox segment, up to the first damage."""
    for item in _read_open(BytesIO(data), _Share(0, 1)):
        if isinstance(item, Payload):
            yield item


def segment_problem(data: bytes) -> Problem | None:
    """Return the first problem in the bytes of an inbox segment, or None if it is intact."""
    if not data.startswith(ZSTD_MAGIC):
        return Problem("it is not a segment")
    items = _read_open(BytesIO(data), _Share(0, 1))
    while True:
        try:
            if isinstance(item := next(items), Problem):
                return item
        except StopIteration as ended:
            problem: Problem | None = ended.value
            return problem
