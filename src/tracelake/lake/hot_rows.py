"""What is stored of traces, as rows of table `spans`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tracelake._errors import DamageError, InputError
from tracelake.otlp.by_trace import add_rows, rows_of
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.schema import SPANS
from tracelake.tracking.store import unpacked
from tracelake.tracking.uncommitted import StoredPart


def decoded(parts: Sequence[StoredPart]) -> tuple[pa.Table, list[StoredPart]]:
    """Return the spans of parts, and the parts that cannot be read: these hide no others."""
    payloads = list[tuple[StoredPart, bytes]]()
    unread = list[StoredPart]()
    for part in parts:
        try:
            payloads.append((part, unpacked(part.trace_id, part.payload, part.size_bytes)))
        except DamageError:
            unread.append(part)
    try:
        batches = [rows_of(b"".join(payload for _, payload in payloads)).take()]
    except InputError:
        batches = []
        for part, payload in payloads:
            try:
                batches.append(rows_of(payload).take())
            except InputError:
                unread.append(part)
    return pa.Table.from_batches(batches, batches[0].schema if batches else SPANS), unread


def add_part(part: StoredPart, columns: SpanColumns) -> None:
    """Add the spans of a part to columns. Raises DamageError where it cannot be read; some may have been added then."""
    try:
        add_rows(unpacked(part.trace_id, part.payload, part.size_bytes), columns)
    except InputError as error:
        raise DamageError(
            f"the spans of trace {part.trace_id} in the tracking store cannot be read: {error}; restore the database"
        ) from error


def cannot_be_read(traces: int) -> str:
    """Return what results say that lack spans of so many traces."""
    return f"the spans of {traces:,} traces in the tracking store cannot be read: run `tracelake verify`"
