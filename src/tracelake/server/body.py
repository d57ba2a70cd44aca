"""Reads a request body within limits: on the wire, decompressed, and over all requests together."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import zstandard
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from tracelake import limits
from tracelake._errors import BackPressureError, DecodeError, LimitError

WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content-Encoding → what zlib calls its format."""
ENCODINGS = frozenset({*WINDOW_BITS, "zstd"})
"""Each Content-Encoding that is undone."""


class Budget:
    """Bytes that requests may hold together: as sent, decompressed, and while they are decoded. Threads share it."""

    def __init__(self, max_bytes: int) -> None:
        """Begin with nothing held."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._lock = Lock()

    @contextmanager
    def share(self) -> Iterator[BudgetShare]:
        """Lend a share for one request, and take back all of it at the end."""
        share = BudgetShare(self)
        try:
            yield share
        finally:
            self.give_back(share.size_bytes)

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Hold so many bytes more for a request that holds `held_bytes`.

        Raises LimitError for a request that has no room alone, BackPressureError where others leave it none now.
        """
        if held_bytes + size_bytes > self._max_bytes:
            raise LimitError(
                f"the request takes more than {self._max_bytes} bytes while it is decoded; send smaller batches"
            )
        with self._lock:
            if self._held_bytes + size_bytes > self._max_bytes:
                raise BackPressureError("too many request bytes are in flight; send the request again later")
            self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Hold so many bytes less."""
        with self._lock:
            self._held_bytes -= size_bytes


class BudgetShare:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        """Begin with nothing."""
        self._budget = budget
        self.size_bytes = 0
        self._kept_bytes = 0

    @contextmanager
    def for_now(self) -> Iterator[BudgetShare]:
        """Give back at the end of the block what was taken in it, and not kept."""
        before_bytes = self.size_bytes - self._kept_bytes
        try:
            yield self
        finally:
            self.give_back(self.size_bytes - self._kept_bytes - before_bytes)

    def keep(self, size_bytes: int) -> None:
        """Hold so many bytes more to the end of the request. Raises LimitError, BackPressureError."""
        self.take(size_bytes)
        self._kept_bytes += size_bytes

    def take(self, size_bytes: int) -> None:
        """Hold so many bytes more. Raises LimitError, BackPressureError."""
        self._budget.take(size_bytes, self.size_bytes)
        self.size_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Hold so many bytes less."""
        self._budget.give_back(size_bytes)
        self.size_bytes -= size_bytes


class RequestBody:
    """The body of one request, of which the application may read all, a part, or nothing."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        """Wrap the `receive` of a request."""
        headers = dict(scope["headers"])
        self._receive = receive
        self._awaits_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._is_complete = (
            b"transfer-encoding" not in headers and headers.get(b"content-length", b"0").strip() == b"0"
        )

    async def receive(self) -> Message:
        """Receive the next message for the application."""
        self._awaits_continue = False
        message = await self._receive()
        self._is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def discard(self) -> bool:
        """Read and discard the rest of the body; return whether the whole body was read.

        A client that is still sending sees a reset instead of the answer if the server closes the connection
        (RFC 9112, section 9.6). A client that waits for `100 Continue` has sent nothing, so nothing is read.
        """
        if self._is_complete or self._awaits_continue:
            return self._is_complete
        size_bytes = 0
        try:
            async with asyncio.timeout(limits.DISCARDED_BODY_MAX_S):
                while not self._is_complete and size_bytes <= limits.DISCARDED_BODY_MAX_BYTES:
                    size_bytes += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return False
        return self._is_complete


async def read_body(declared: bytes, receive: Receive, share: BudgetShare, max_bytes: int) -> bytes:
    """Return the body as sent; `declared` is its Content-Length, if any.

    Raises LimitError beyond `max_bytes`, before it has read that much; ClientDisconnect.
    """
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        share.take(len(chunk))
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


def decompress(body: bytes, encoding: str, max_bytes: int, share: BudgetShare) -> bytes:
    """Undo the Content-Encoding `gzip`, `deflate` or `zstd`; a gzip body may have several members, one of zstd frames.

    Raises DecodeError where the body is damaged or cut off, LimitError beyond `max_bytes`, BackPressureError.
    """
    if encoding == "zstd":
        return _unzstd(body, max_bytes, share)
    out = bytearray()
    position = 0
    for _ in range(limits.COMPRESSED_MEMBERS_MAX):
        stream = zlib.decompressobj(WINDOW_BITS[encoding])
        while not stream.eof:
            # Small pieces of either side: what is left of one is copied each time.
            given = stream.unconsumed_tail or body[position : position + limits.DECOMPRESSED_PIECE_BYTES]
            position += 0 if stream.unconsumed_tail else len(given)
            try:
                piece = stream.decompress(
                    given, min(limits.DECOMPRESSED_PIECE_BYTES, max_bytes - len(out) + 1)
                )
            except zlib.error as error:
                raise DecodeError(f"the body is not {encoding}: {error}; see Content-Encoding") from None
            if not given and not piece and not stream.eof:
                raise DecodeError(f"the {encoding} body ends in the middle, after {len(body)} bytes")
            share.take(len(piece))
            out += piece
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
        position -= len(stream.unused_data)
        if position == len(body):
            return bytes(out)
    raise DecodeError(f"the body has more than {limits.COMPRESSED_MEMBERS_MAX} {encoding} members")


def _unzstd(body: bytes, max_bytes: int, share: BudgetShare) -> bytes:
    """Undo all frames of a zstd body (RFC 8878), with a bound on the window that a client can ask for."""
    out = bytearray()
    position = 0
    for _ in range(limits.COMPRESSED_MEMBERS_MAX):
        frame = zstandard.ZstdDecompressor(max_window_size=limits.ZSTD_WINDOW_MAX_BYTES).decompressobj()
        while not frame.eof:
            given = body[position : position + limits.ZSTD_READ_BYTES]
            if not given:
                raise DecodeError(f"the zstd body ends in the middle, after {len(body)} bytes")
            position += len(given)
            try:
                piece = frame.decompress(given)
            except zstandard.ZstdError as error:
                raise DecodeError(f"the body is not zstd: {error}; see Content-Encoding") from None
            share.take(len(piece))
            out += piece
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
        position -= len(frame.unused_data)
        if position == len(body):
            return bytes(out)
    raise DecodeError(f"the body has more than {limits.COMPRESSED_MEMBERS_MAX} zstd frames")


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(f"the body is larger than {max_bytes} bytes, decompressed; send smaller batches")
