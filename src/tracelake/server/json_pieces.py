"""JSON answers with many spans, encoded in pieces: none takes much memory, or keeps the event loop waiting.

Encoding a whole trace at once takes many times the memory of its rows, and the encoder holds the interpreter lock for
as long as it takes. Each piece is made in a thread, once the client has read the piece before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa
from fastapi import Response
from fastapi.responses import StreamingResponse

from tracelake.limits.units import MIB

JSON_PIECE_SPANS_MAX: Final = 500
"""Spans that become JSON at once, where an answer has many."""
_JSON_PIECE_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of these, on average."""


def slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in pieces, of a bounded number, and of bounded bytes where the rows are alike."""
    of_bytes = _JSON_PIECE_MAX_BYTES * len(rows) // max(rows.nbytes, 1)
    step = max(1, min(JSON_PIECE_SPANS_MAX, of_bytes))
    for first in range(0, len(rows), step):
        yield rows.slice(first, step)


def in_pieces(pieces: Iterator[bytes]) -> Response:
    """Answer with pieces of a JSON document. Raises what the first piece raises; one piece is a plain response."""
    first, second = next(pieces, b""), next(pieces, None)
    if second is None:
        return Response(first, media_type="application/json")
    return StreamingResponse(chain((first, second), pieces), media_type="application/json")


def document(
    head: Mapping[str, object],
    name: str,
    rows: pa.Table,
    items: Callable[[pa.Table], Sequence[Any]],
    tail: Mapping[str, object] | None = None,
) -> Iterator[bytes]:
    """Yield a JSON object: some fields, a list that is made of rows piece by piece, and some fields more."""
    before = b"{" + b"".join(_field(each, value) + b"," for each, value in head.items())
    before += msgspec.json.encode(name) + b":["
    after = b"]" + b"".join(b"," + _field(each, value) for each, value in (tail or {}).items()) + b"}"
    # The last piece comes with the end of the document, so that a short document is one piece.
    piece, separator = before, b""
    for some in slices(rows):
        if separator:
            yield piece
            piece = b""
        encoded = msgspec.json.encode(items(some))[1:-1]
        piece += separator + encoded
        separator = b","
    yield piece + after


def enclosed(before: bytes, pieces: Iterator[bytes], after: bytes) -> Iterator[bytes]:
    """Yield the pieces of a document, with bytes before the first and after the last."""
    last = before
    for piece in pieces:
        if last is not before:
            yield last
            last = piece
        else:
            last = before + piece
    yield last + after


def _field(name: str, value: object) -> bytes:
    return msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
