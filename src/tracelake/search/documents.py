"""Spans as documents. Columns become Python lists once a batch; nothing looks at a row as an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import tantivy

COLUMNS: Final = (
    "trace_id",
    "span_id",
    "service",
    "name",
    "kind",
    "status",
    "status_message",
    "input",
    "output",
    "attributes",
    "events",
    "transaction",
)
"""The columns of table `spans` that the index is made of."""

Texts: TypeAlias = list[str | None]
Column: TypeAlias = Any
"""A column as pyarrow gives it; its stubs do not know which kind of array it is."""


def document_text(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of field `text` for one row, maps as dicts: what a highlight is cut from.

    Attribute values first, then input, output and status message, then the events. Input and output are
    left out where an attribute holds the same text.
    """
    texts: Texts = list((row["attributes"] or {}).values())
    for name in ("input", "output"):
        if row[name] not in texts:
            texts.append(row[name])
    texts.append(row["status_message"])
    events = row["events"] or ()
    texts += [event["name"] for event in events]
    texts += [value for event in events for value in (event["attributes"] or {}).values()]
    return [text for text in texts if text]


def documents(batch: pa.RecordBatch) -> Iterator[tantivy.Document]:
    """Yield one document for each row of a batch that has `COLUMNS`.

    Raises:
        ValueError: An id is not hexadecimal, or not 32 or 16 digits.
    """
    names, services, kinds, statuses = (
        _values(batch, name) for name in ("name", "service", "kind", "status")
    )
    rows = zip(_ids(batch), names, services, kinds, statuses, _texts(batch), strict=True)
    for document_id, name, service, kind, status, texts in rows:
        document = tantivy.Document()
        add_text = document.add_text
        document.add_bytes("id", document_id)
        add_text("name", name)
        if service:
            add_text("service", service)
        if kind:
            add_text("kind", kind)
        if status:
            add_text("status", status)
        for text in texts:
            if text:
                add_text("text", text)
        yield document


def _ids(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield 16 bytes of trace id, 8 of span id, 8 of transaction, big-endian."""
    ids = np.empty((batch.num_rows, 32), np.uint8)
    ids[:, :16] = np.frombuffer(_hex(batch, "trace_id", 32), np.uint8).reshape(-1, 16)
    ids[:, 16:24] = np.frombuffer(_hex(batch, "span_id", 16), np.uint8).reshape(-1, 8)
    transactions = np.array(_values(batch, "transaction"), dtype=">u8")
    ids[:, 24:] = np.frombuffer(transactions.tobytes(), np.uint8).reshape(-1, 8)
    packed = ids.tobytes()
    return (packed[at : at + 32] for at in range(0, len(packed), 32))


def _hex(batch: pa.RecordBatch, column: str, digits: int) -> bytes:
    """Return the bytes of all ids of a column, one after another."""
    ids = _values(batch, column)
    if any(len(one) != digits for one in ids):
        wrong = next(one for one in ids if len(one) != digits)
        raise ValueError(f"{column} {wrong!r} does not have {digits} hexadecimal digits")
    return bytes.fromhex("".join(ids))


def _values(batch: pa.RecordBatch, column: str) -> list[Any]:
    return batch.column(column).to_pylist()


def _texts(batch: pa.RecordBatch) -> Iterator[Texts]:
    """Yield the same texts as `document_text`, for each row."""
    attributes, items = _flat(batch.column("attributes"), "items")
    values: Texts = items.to_pylist()
    events, flat_events = _flat(batch.column("events"), "values")
    event_names: Texts = flat_events.field("name").to_pylist()
    event_attributes, event_items = _flat(flat_events.field("attributes"), "items")
    event_values: Texts = event_items.to_pylist()
    columns = [_values(batch, name) for name in ("input", "output", "status_message")]
    for row, (given, made, message) in enumerate(zip(*columns, strict=True)):
        texts = values[attributes[row] : attributes[row + 1]]
        if given and given not in texts:
            texts.append(given)
        if made and made not in texts:
            texts.append(made)
        if message:
            texts.append(message)
        first, last = events[row], events[row + 1]
        if first != last:
            texts += event_names[first:last]
            texts += event_values[event_attributes[first] : event_attributes[last]]
        yield texts


def _flat(column: Column, children: str) -> tuple[list[int], Column]:
    """Return (offsets, elements): row i of a list or map column has elements[offsets[i] : offsets[i + 1]]."""
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    return [offset - first for offset in offsets], getattr(column, children).slice(first, last - first)
