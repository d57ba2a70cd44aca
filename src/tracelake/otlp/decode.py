"""Decoder of OTLP payloads. It rejects a bad span alone and accepts the other spans of the payload.

`InputFile` and `Stream` read an input file: as a stream of decompressed bytes in bounded memory, with a digest of the
whole file.

Several tasks read one file at different times. Each task counts and hashes all bytes to the end. If the file was
renamed or rewritten in between, the digests of the tasks differ.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import zstandard
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake import limits
from tracelake._errors import DecodeError
from tracelake.otlp import parse, values, wire
from tracelake.otlp.columns import SpanChecks
from tracelake.otlp.parse import (
    Dialect,
    PayloadSize,
    ResourceGroup,
    ScopeGroup,
    json_groups,
    parse_json,
    parsed_size,
    pruned,
    replace_bad_bytes,
    split_protobuf,
)
from tracelake.otlp.values import Message, RefusedError
from tracelake.otlp.wire import UnknownContainer
from tracelake.results import Problem


@dataclass(frozen=True, slots=True)
class Decoded:
    """Counts of accepted and rejected spans of a payload, and the first PROBLEMS_MAX reasons for rejection."""

    accepted: int
    rejected: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """The first PROBLEMS_MAX notes about accepted spans that were altered."""


_STRICT_JSON_DECODER: Final = msgspec.json.Decoder(values.StrictTracesData, strict=False)
_JSON_DECODER: Final = msgspec.json.Decoder(values.TracesData, strict=False)
# Measured on both real data sets: ids become hex, derived columns repeat texts, and JSON loses its syntax.
_JSON_GROWTH: Final = 1
_PROTOBUF_GROWTH: Final = 2

OnParsed: TypeAlias = Callable[[PayloadSize], None]
"""Callback that gets the payload's size after parsing, before anything is built from it. An exception ends the
decoding."""

OnCareful: TypeAlias = Callable[[], None]
"""Called before the careful pass, which takes many times longer; an error that it raises ends the decoding."""


def _refuse_none(_size: PayloadSize) -> None: ...


def _allow_careful() -> None: ...


def decode_json(
    payload: bytes,
    columns: SpanChecks,
    on_parsed: OnParsed = _refuse_none,
    on_careful: OnCareful = _allow_careful,
) -> Decoded:
    """Add the spans of an OTLP/JSON TracesData or ExportTraceServiceRequest to the columns, or validate them.

    Raises DecodeError, without adding any span, if the payload as a whole cannot be decoded.
    """
    columns.start_payload(len(payload), _JSON_GROWTH)
    groups, unknown = _decode_at_once(payload)
    notes: list[str] = []
    if not groups:
        # The fast decoder's depth limit depends on the stack below it, but acceptance must not. So a payload
        # that it refused is pruned to a depth that every decoder handles. Only what fails again goes through
        # the careful pass.
        shallow, notes = replace_bad_bytes(payload)
        shallow = pruned(shallow)
        if shallow is not payload:
            groups, unknown = _decode_at_once(shallow)
        if not groups:
            on_careful()
            # The careful pass finds the error, even in a payload that seems to be empty.
            data = parse_json(shallow if not notes else pruned(payload))
            groups, unknown = json_groups(data), wire.in_json(data)
    return _add(groups, columns, parse.JSON, on_parsed, unknown, notes)


def _decode_at_once(payload: bytes) -> tuple[list[ResourceGroup], list[UnknownContainer]]:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return _json_as_groups(_STRICT_JSON_DECODER.decode(payload)), []
        except msgspec.ValidationError as error:
            if "unknown field" not in str(error):
                raise
            return _json_as_groups(_JSON_DECODER.decode(payload)), wire.in_json_text(payload)
    return [], []


def _json_as_groups(data: Message) -> list[ResourceGroup]:
    groups = _as_groups(data.resource_spans)
    for group, resource in zip(groups, data.resource_spans, strict=True):
        group.scopes.extend(
            ScopeGroup(old, list(old.spans)) for old in resource.instrumentation_library_spans
        )
    return groups


def decode_protobuf(
    payload: bytes,
    columns: SpanChecks,
    on_parsed: OnParsed = _refuse_none,
    on_careful: OnCareful = _allow_careful,
) -> Decoded:
    """Add the spans of a protobuf TracesData or ExportTraceServiceRequest to the columns, or validate them.

    Raises DecodeError, without adding any span, if the payload as a whole cannot be decoded.
    """
    columns.start_payload(len(payload), _PROTOBUF_GROWTH)
    try:
        data = TracesData.FromString(payload)
        unknown = wire.take_old_names(data)
    except ProtobufDecodeError:
        on_careful()
        notes: list[str] = []
        groups = split_protobuf(payload, notes)
        return _add(groups, columns, parse.PROTOBUF, on_parsed, _unknown_in(payload, groups), notes)
    return _add(_as_groups(data.resource_spans), columns, parse.PROTOBUF, on_parsed, unknown, [])


def _unknown_in(payload: bytes, groups: Sequence[ResourceGroup]) -> list[UnknownContainer]:
    scopes = [scope for group in groups for scope in group.scopes]
    return wire.in_parts(
        payload,
        _valid(group.header for group in groups),
        _valid(scope.header for scope in scopes),
        _valid(span for scope in scopes for span in scope.spans),
    )


def _valid(parts: Iterable[Message | RefusedError]) -> Iterator[Message]:
    return (part for part in parts if not isinstance(part, RefusedError))


def _as_groups(resources: Iterable[Message]) -> list[ResourceGroup]:
    return [
        ResourceGroup(resource, [ScopeGroup(scope, list(scope.spans)) for scope in resource.scope_spans])
        for resource in resources
    ]


def _add(
    groups: Sequence[ResourceGroup],
    columns: SpanChecks,
    dialect: Dialect,
    on_parsed: OnParsed,
    unknown: Iterable[UnknownContainer],
    notes: Sequence[str],
) -> Decoded:
    size = parsed_size(groups)
    if size.messages > limits.OTLP_PAYLOAD_MESSAGES_MAX:
        raise DecodeError(
            f"{size.messages} spans, events, links and attributes; one payload may have "
            f"{limits.OTLP_PAYLOAD_MESSAGES_MAX}"
        )
    on_parsed(size)
    adder = _Adder(columns, dialect)
    for container in unknown:
        adder.reject(container.spans, container.reason())
    for r, group in enumerate(groups):
        adder.add_resource(group, f"resourceSpans[{r}]")
    return Decoded(adder.accepted, adder.rejected, tuple(adder.reasons), tuple(notes[: limits.PROBLEMS_MAX]))


@dataclass(slots=True)
class _Adder:
    """Adds groups of spans to columns and counts accepted and rejected spans."""

    columns: SpanChecks
    dialect: Dialect
    accepted: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def add_resource(self, group: ResourceGroup, where: str) -> None:
        try:
            resource = self.columns.add_resource(_decoded(group.header))
        except RefusedError as error:
            self.reject(sum(len(scope.spans) for scope in group.scopes), f"{where}: {error}")
            return
        for s, scope in enumerate(group.scopes):
            self._add_scope(resource, scope, f"{where}.scopeSpans[{s}]")

    def _add_scope(self, resource: int, group: ScopeGroup, where: str) -> None:
        try:
            scope = self.columns.add_scope(resource, _decoded(group.header))
        except RefusedError as error:
            self.reject(len(group.spans), f"{where}: {error}")
            return
        self._add_spans(scope, group.spans, where, 0)

    def _add_spans(self, scope: int, spans: Sequence[Message | RefusedError], where: str, first: int) -> None:
        """Add all spans at once. If one is refused, bisect to reject only that one."""
        try:
            if RefusedError in map(type, spans):  # checks 20 million spans a second
                raise next(span for span in spans if isinstance(span, RefusedError))
            self.columns.add_spans(scope, spans, self.dialect)
            self.accepted += len(spans)
        except RefusedError as error:
            if len(spans) == 1:
                identity = error.identity or self._identity(spans[0])
                self.reject(1, f"{where}.spans[{first}]{identity}: {error}")
                return
            half = len(spans) // 2
            self._add_spans(scope, spans[:half], where, first)
            self._add_spans(scope, spans[half:], where, first + half)

    def reject(self, spans: int, reason: str) -> None:
        """Count rejected spans, and store the first reasons."""
        self.rejected += spans
        if spans and len(self.reasons) < limits.PROBLEMS_MAX:
            self.reasons.append(reason[: limits.PROBLEM_MAX_CHARS])  # one record stores many reasons

    def _identity(self, span: Message | RefusedError) -> str:
        if isinstance(span, RefusedError):
            return ""
        try:
            trace, own = self.dialect.loose_ids([span.trace_id, span.span_id], "id")
        except RefusedError:
            return ""
        return f" (trace {trace[: limits.QUOTED_MAX_CHARS] or '?'}, span {own[: limits.QUOTED_MAX_CHARS] or '?'})"


def _decoded(message: Message | RefusedError) -> Message:
    if isinstance(message, RefusedError):
        raise message
    return message


_GZIP_READ_BYTES: Final = 16 * 1024
"""Input passed to gzip at a time."""

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
"""Permanent errors, which depend on the path. Any other error is a machine failure that may pass."""


class NotAnInputError(ValueError):
    """The path cannot be an input: it is missing, a directory, or a file that may never end."""


@dataclass(frozen=True, slots=True)
class InputDigest:
    """Digest of a whole input from one pass. Readers of the same bytes get the same digest."""

    size_bytes: int
    sha256: str
    """Hash of all bytes; empty if there was no file to read."""
    payloads: int = 0
    """Number of messages in the file, including those of other stripes."""
    problem: Problem | None = None
    """The problem of the file as a whole, if any."""


def incomplete_reason(size_bytes: int | None, digests: Sequence[InputDigest]) -> str | None:
    """Return why an input cannot be trusted, from the digests of its stripes, or None if it is intact.

    The digests agree if all stripes read the same bytes to the end with the same result. A file that was replaced,
    renamed or truncated during the reading changes at least one digest.

    Args:
        size_bytes: the expected size; None for any
    """
    first = digests[0]
    if not any(digest.sha256 for digest in digests):
        return first.problem.reason if first.problem is not None else "is gone"
    if any(digest != first for digest in digests) or size_bytes not in (None, first.size_bytes):
        lost = next((digest.problem for digest in digests if not digest.sha256), None)
        how = f" ({lost.reason})" if lost is not None else ""
        return (
            f"changed while it was read{how}, so nothing of it was ingested: stop writing to it, and run "
            "again"
        )
    return None


class InputFile:
    """The first bytes of an open file. It counts and hashes the bytes that are read."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._left_bytes = size_bytes
        self._digest = hashlib.sha256()
        self._passed_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end. Raises OSError if the file cannot be read."""
        block = self._file.read(min(size_bytes, self._left_bytes))
        self._left_bytes -= len(block)
        self._passed_bytes += len(block)
        self._digest.update(block)
        return block

    def finish(self) -> tuple[int, str]:
        """Read to the end; return the size and SHA-256 of all bytes. Raises OSError if the file cannot be read."""
        while self.read(limits.OTLP_BLOCK_BYTES):
            pass
        return self._passed_bytes, self._digest.hexdigest()


@contextmanager
def open_input(path: str, size_bytes: int | None = None) -> Iterator[InputFile]:
    """Open the first `size_bytes` of a regular file; None means its current size.

    Bytes appended later do not belong to the input, so that a growing file has an end. Raises NotAnInputError if the
    path is not a readable regular file, OSError for a failure that may be temporary.
    """
    descriptor = _open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        yield InputFile(file, os.fstat(descriptor).st_size if size_bytes is None else size_bytes)


def _open_regular(path: str) -> int:
    descriptor = -1
    try:
        _check_kind(os.stat(path))  # noqa: PTH116  beside os.open: to open a device may do something
        # Do not block if a pipe has replaced the file since the check.
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
    """Return the size and SHA-256 of a file's first bytes; (0, "") if there is no file, which no recorded input has.

    Raises OSError for a failure that may be temporary, because it proves nothing about the file's content.
    """
    try:
        with open_input(path, size_bytes) as file:
            return file.finish()
    except NotAnInputError:
        return 0, ""


GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class ReadableStream(Protocol):
    """A stream that can be read from beginning to end."""

    def read(self, size_bytes: int, /) -> bytes:
        """Return the next bytes, fewer only at the end."""


class DamagedError(ValueError):
    """The stream is truncated or corrupt. The data before the damage was already returned."""


def decompressed(file: ReadableStream) -> Iterator[bytes]:
    """Yield blocks of a gzip, zstd or plain file. The first bytes determine the format.

    Raises DamagedError at the position where a compressed stream is truncated or corrupt.
    """
    head = file.read(4)
    if head.startswith(GZIP_MAGIC):
        return _gunzipped(head, file)
    if head == ZSTD_MAGIC:
        return _unzstd(head, file)
    return chain([head] if head else [], iter(lambda: file.read(limits.OTLP_BLOCK_BYTES), b""))


def _gunzipped(waiting: bytes, file: ReadableStream) -> Iterator[bytes]:
    """Yield the blocks of all members of a gzip file (RFC 1952). Zeros may follow the last member."""
    while waiting:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            waiting = waiting or file.read(_GZIP_READ_BYTES)
            if not waiting:
                raise DamagedError("truncated gzip stream")
            before = member.copy()
            try:
                block = member.decompress(waiting, limits.OTLP_BLOCK_BYTES)
            except zlib.error as error:
                yield _until_damage(before, waiting)
                raise DamagedError(f"corrupt gzip stream: {str(error).partition(': ')[2] or error}") from None
            waiting = member.unconsumed_tail
            if block:
                yield block
        waiting = (member.unused_data or file.read(_GZIP_READ_BYTES)).lstrip(b"\0") or _after_zeros(file)


def _until_damage(member: zlib._Decompress, data: bytes) -> bytes:
    """Return the data before the damage, byte by byte, because zlib returns nothing from a call that fails."""
    parts = []
    try:
        for i in range(len(data)):
            parts.append(member.decompress(data[i : i + 1]))
    except zlib.error:
        pass
    return b"".join(parts)


def _after_zeros(file: ReadableStream) -> bytes:
    while block := file.read(limits.OTLP_BLOCK_BYTES):
        if remaining := block.lstrip(b"\0"):
            return remaining
    return b""


def _unzstd(waiting: bytes, file: ReadableStream) -> Iterator[bytes]:
    """Yield the blocks of all frames of a zstd file (RFC 8878)."""
    decompressor = zstandard.ZstdDecompressor()
    while waiting:
        frame = decompressor.decompressobj()
        while not frame.eof:
            waiting = waiting or file.read(limits.ZSTD_READ_BYTES)
            if not waiting:
                raise DamagedError("truncated zstd stream")
            try:
                block = frame.decompress(waiting)
            except zstandard.ZstdError as error:
                raise DamagedError(f"corrupt zstd stream: {error}") from None
            waiting = b""
            if block:
                yield block
        waiting = frame.unused_data or file.read(limits.ZSTD_READ_BYTES)


class Line(NamedTuple):
    """A line without its newline: its bytes if requested, and whether a newline ended it."""

    data: bytes
    size: int
    blank: bool
    ended: bool


_INK: Final = re.compile(rb"[^ \t\r]")


class Stream:
    """Blocks as one continuous stream. `offset` counts the consumed bytes; `damage` is the reason for an early end."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.offset = 0
        self.damage: str | None = None
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them, fewer at the end. `size` must be small."""
        while len(self._block) - self._at < size:
            more = self._next_block()
            if not more:
                break
            self._block, self._at = self._block[self._at :] + more, 0
        return self._block[self._at : self._at + size]

    def take(self, size: int) -> bytes:
        """Consume and return the next bytes, fewer at the end."""
        parts = [bytes(part) for part in self._parts(size)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> int:
        """Skip the next bytes, and return their number."""
        return sum(len(part) for part in self._parts(size))

    def skip_nuls(self) -> int:
        """Skip the NUL bytes that come next, and return their number."""
        start = self.offset
        while self._fill() and self._block[self._at] == 0:
            remaining = self._block[self._at :].lstrip(b"\0")
            self._move(len(self._block) - len(remaining))
        return self.offset - start

    def take_line(self, limit: int, keep: bool) -> Line:
        """Consume the next line and its newline, but stop after more than `limit` bytes. Copy the bytes only if
        `keep`."""
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
