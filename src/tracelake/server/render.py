"""Formatting of numbers, times and excerpts for pages. All functions are pure and accept every value that a table can
hold.

The module also encodes JSON responses with many spans in pieces, so that none takes much memory or blocks the event
loop for long.

Encoding a whole trace at once takes many times the memory of its rows, and the encoder holds the interpreter lock for
as long as it takes. Each piece is made in a thread, after the client has read the previous piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import SequenceMatcher
from itertools import chain
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from markupsafe import Markup, escape

from tracelake.limits.input import MIB
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import SERVER_KINDS, Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS = (
    (365 * 86400, "year"),
    (30 * 86400, "month"),
    (86400, "day"),
    (3600, "hour"),
    (60, "minute"),
    (1, "second"),
)
MATCH = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def duration(nanoseconds: int) -> str:
    """Format a duration as `850 ns`, `1.25 ms`, `3.20 s` or `2 m 05 s`."""
    size = abs(nanoseconds)
    for limit, unit in ((1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms"), (60_000_000_000, "s")):
        if size < limit:
            unit_ns = 1_000_000_000 if unit == "s" else limit // 1_000
            value = nanoseconds / unit_ns
            digits = 0 if unit == "ns" or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:.{digits}f} {unit}"
    minutes, seconds = divmod(size // 1_000_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if nanoseconds < 0 else ""
    return sign + (f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {seconds:02d} s")


def timestamp(nanoseconds: int) -> str:
    """Format a time in UTC, as `2026-01-31 12:00:00.123456`."""
    return str((EPOCH + timedelta(microseconds=nanoseconds // 1_000)).replace(tzinfo=None))


def minute(nanoseconds: int | None) -> str:
    """Format a time in UTC as the field of a form has it, `2026-01-31T12:00`; None becomes an empty text."""
    return "" if nanoseconds is None else timestamp(nanoseconds)[:16].replace(" ", "T")


def ago(nanoseconds: int, now_ns: int) -> str:
    """Format an age, such as `5 minutes ago`."""
    seconds = (now_ns - nanoseconds) // 1_000_000_000
    if seconds < 0:
        return "in the future"
    for size, unit in UNITS:
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "now"


def span_url(trace_id: str, span_id: str, workspace: str | None = None, kind: str | None = None) -> str:
    """Return the URL of a trace's page with a span selected. `workspace` and `kind` are needed if several spans share
    the id.

    A span on the server side needs its kind, because a client span may share its id.
    """
    its_workspace = None if workspace == WORKSPACE_DEFAULT else workspace
    query = span_query(span_id, its_workspace, kind if kind in SERVER_KINDS else None)
    return f"/traces/{quote(trace_id, safe='')}?{query}#{query}"


def span_query(span_id: str, workspace: str | None = None, kind: str | None = None) -> str:
    """Return the query string that identifies a span, with workspace and kind if they are given."""
    parameters = {"span": span_id, "workspace": workspace, "kind": kind}
    return urlencode({name: value for name, value in parameters.items() if value}, quote_via=quote)


def count(number: int | None) -> str:
    """Format a number with grouped digits; None gives an empty text."""
    return "" if number is None else f"{number:,}"


def short(number: int) -> str:
    """Format a number as `850`, `12.3 k` or `4.1 M`."""
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return str(number)


def size(number: int) -> str:
    """Format a size as `850 B`, `1.2 KiB` or `3.4 GiB`."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"


def outcome(operation: Row) -> str:
    """Summarize an operation's result, as `3 archived, 1 waiting`, with the reasons of failures."""
    result = operation["result"] or {}
    if operation["error"] and not result:
        return str(operation["error"])
    match operation["kind"]:
        case "pass":
            counts = sorted(result.get("traces", {}).items())
            text = ", ".join(f"{number:,} {kind}" for kind, number in counts) or "nothing was due"
            failed = result.get("failures", {})
        case "restore":
            text, failed = f"{sum(result.get('restored', {}).values()):,} restored", result.get("failed", {})
        case "deletion":
            text, failed = f"{len(result.get('deleted', ())):,} deleted", result.get("failed", {})
        case _:
            text, failed = f"{result.get('deleted_objects', 0):,} objects deleted", {}
    return "\n".join([text, *_reasons(failed)])


def _reasons(failed: dict[str, str]) -> list[str]:
    """Return each distinct reason once, with the first trace that has it."""
    traces: dict[str, list[str]] = {}
    for trace_id, reason in failed.items():
        traces.setdefault(reason, []).append(trace_id)
    return [
        f"{ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {reason}"
        for reason, ids in traces.items()
    ]


def tokens(trace: Row) -> str:
    """Format input and output tokens as `1,200 / 85`, with a dash for an unknown number."""
    numbers = (trace["input_tokens"], trace["output_tokens"])
    return "" if numbers == (None, None) else " / ".join(count(number) or "–" for number in numbers)  # noqa: RUF001


def cost(dollars: float) -> str:
    """Format US dollars as `$12.30`, `$0.0042`, or `<$0.0001`."""
    if 0 < dollars < 0.0001:
        return "<$0.0001"
    return f"${dollars:,.2f}" if dollars >= 1 or not dollars else f"${dollars:.4f}"


def reference(target: Row | None) -> str:
    """Format a version entry's target: a table's transaction, an index's manifest, or a file's checksum and size."""
    match target:
        case None:
            return ""
        case {"type": "table", "as_of": as_of}:
            return f"transaction {as_of}"
        case {"type": "index", "manifest": manifest}:
            return str(manifest).rpartition("/")[2].removesuffix(".json")
        case {"sha256": sha256, "size_bytes": size_bytes}:
            return f"{sha256[:12]}, {count(size_bytes)} bytes"
    return str(target)


def with_query(request: Request, **changed: int | str) -> str:
    """Return the request's URL with changed query parameters."""
    url = request.url.include_query_params(**changed)
    return f"{url.path}?{url.query}"


def with_page(request: Request, page: str) -> str:
    """Return the URL of another page of a list, by page token."""
    url = request.url.remove_query_params("offset").include_query_params(page=page)
    return f"{url.path}?{url.query}"


def highlighted(excerpt: str) -> Markup:
    """Return an excerpt as HTML: text is escaped, and matches between [[ and ]] become `<mark>`."""
    return Markup(MATCH.sub(r"<mark>\1</mark>", str(escape(excerpt))))  # noqa: S704 escaped one call before


JSON_PIECE_SPANS_MAX: Final = 500
"""Spans that become JSON at once, where an answer has many."""
_JSON_PIECE_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of these, on average."""


def slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in pieces of at most a fixed number of rows, and of about at most a fixed number of bytes."""
    of_bytes = _JSON_PIECE_MAX_BYTES * len(rows) // max(rows.nbytes, 1)
    step = max(1, min(JSON_PIECE_SPANS_MAX, of_bytes))
    for first in range(0, len(rows), step):
        yield rows.slice(first, step)


def in_pieces(pieces: Iterator[bytes]) -> Response:
    """Return a response that streams pieces of a JSON document. If there is only one piece, return an ordinary
    response. Errors of the first piece are raised."""
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


DiffPiece: TypeAlias = tuple[Literal["same", "removed", "added", "folded"], str]

_PIECES_MAX: Final = 800
"""Words or lines of one side that a diff compares."""
_EQUAL_SHOWN_CHARS: Final = 600
"""Equal text between two differences that is shown whole."""
_EQUAL_MIN_CHARS: Final = 8
"""Equal text between two differences that is shown as equal. Single equal words would cut a rewritten sentence up."""


def diff_text(base: str, other: str) -> list[DiffPiece]:
    """Return the pieces of two texts: common pieces, pieces of the base only, and pieces of the other text only.

    The run time can grow with the cube of the input. Therefore, the diff is by words, by lines, or of the whole text:
    the first that has few enough pieces.
    """
    for pattern in (r"\w+|\s+|[^\w\s]", r"[^\n]*\n|[^\n]+"):
        ours, theirs = re.findall(pattern, base), re.findall(pattern, other)
        if max(len(ours), len(theirs)) <= _PIECES_MAX:
            break
    else:
        return [("removed", base), ("added", other)]
    changes = SequenceMatcher(None, ours, theirs).get_opcodes()
    pieces: list[DiffPiece] = []
    removed = added = ""
    for number, (change, low, high, other_low, other_high) in enumerate(changes):
        before, after = "".join(ours[low:high]), "".join(theirs[other_low:other_high])
        is_between = 0 < number < len(changes) - 1
        if change != "equal" or (is_between and len(before.strip()) < _EQUAL_MIN_CHARS):
            removed, added = removed + before, added + after
            continue
        pieces += [*_changed(removed, added), *_folded(before)]
        removed = added = ""
    return pieces + _changed(removed, added)


def _changed(removed: str, added: str) -> list[DiffPiece]:
    pieces: list[DiffPiece] = [("removed", removed), ("added", added)]
    return [piece for piece in pieces if piece[1]]


def _folded(text: str) -> list[DiffPiece]:
    """Return equal text; of a long one, its beginning and its end."""
    if len(text) <= _EQUAL_SHOWN_CHARS:
        return [("same", text)]
    half = _EQUAL_SHOWN_CHARS // 2
    folded = f"{len(text) - 2 * half:,} equal characters"
    return [("same", text[:half]), ("folded", folded), ("same", text[-half:])]
