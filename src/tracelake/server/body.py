"""Reads a request body within limits: on the wire, decompressed, and over all requests together."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from tracelake import limits
from tracelake._errors import DecodeError, LimitError
from tracelake.tracking.inbox import BackPressureError

WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content-Encoding → what zlib calls its format."""


class Budget:
    """Bytes that request bodies may hold at one time. Used from the event loop only, so it needs no lock."""

    def __init__(self, max_bytes: int = limits.INBOX_QUEUE_MAX_BYTES) -> None:
        """Begin with nothing held."""
        self._max_bytes = max_bytes
        self._held_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Lend a share for one request, and take back all of it at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._held_bytes -= share.size_bytes

    def take(self, size_bytes: int) -> None:
        """Raise BackPressureError where the bytes are too many; a request that is alone always has room."""
        if self._held_bytes and self._held_bytes + size_bytes > self._max_bytes:
            raise BackPressureError("too many request bytes are in flight; send the request again later")
        self._held_bytes += size_bytes


class Share:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        """Begin with nothing."""
        self._budget = budget
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Hold so many bytes more. Raises BackPressureError."""
        self._budget.take(size_bytes)
        self.size_bytes += size_bytes


async def read_body(request: Request, share: Share, max_bytes: int) -> bytes:
    """Return the body as sent. Raises LimitError beyond `max_bytes`, before it has read that much."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        share.take(len(chunk))
        body += chunk
    return bytes(body)


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undo the Content-Encoding `gzip` or `deflate`; a gzip body may have several members.

    Raises DecodeError where the body is damaged or cut off, LimitError beyond `max_bytes`.
    """
    out = bytearray()
    rest = body
    while True:
        stream = zlib.decompressobj(WINDOW_BITS[encoding])
        try:
            out += stream.decompress(rest, max_bytes - len(out) + 1)
        except zlib.error as error:
            raise DecodeError(f"the body is not {encoding}: {error}; see Content-Encoding") from None
        if len(out) > max_bytes:
            raise _too_large(max_bytes)
        if not stream.eof:
            raise DecodeError(f"the {encoding} body ends in the middle, after {len(body)} bytes")
        rest = stream.unused_data
        if not rest:
            return bytes(out)


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(f"the body is larger than {max_bytes} bytes, decompressed; send smaller batches")
