"""Spans as documents. Columns become Python lists once a batch; nothing looks at a row as an object."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tracelake.limits import INDEX_VALUE_MAX_CHARS
from tracelake.search import fields
from tracelake.search.parts import identifiers
from tracelake.search.values import is_number, number_terms, path_term, term_of

COLUMNS: Final = (
    "trace_id",
    "span_id",
    "parent_span_id",
    "workspace",
    "service",
    "name",
    "kind",
    "status",
    "status_message",
    "start_ns",
    "end_ns",
    "duration_ns",
    "session_id",
    "user_id",
    "model",
    "input_tokens",
    "output_tokens",
    "input",
    "output",
    "attributes",
    "resource",
    "events",
    "links",
    "otlp",
    "_row_id",
)
"""The columns of table `spans` that the index is made of, with the id of the row, which tells its transaction."""

_PART_COLUMNS: Final = {"parent": "parent_span_id"}
_INT64_MAX: Final = (1 << 63) - 1

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
    made = [tantivy.Document() for _ in range(batch.num_rows)]
    for document, document_id in zip(made, _ids(batch), strict=True):
        document.add_bytes("id", document_id)
    for field, column in {"trace": "trace_id", "name": "name", **fields.FACETS}.items():
        values = batch.column(column)
        if values.null_count == len(values):
            continue
        for document, value in zip(made, values.to_pylist(), strict=True):
            if value:
                document.add_text(field, value)
    for field, numbers in _numbers(batch):
        for document, number in zip(made, numbers, strict=True):
            if number is not None:
                document.add_integer(field, number)
    _add_parts(batch, made)
    types = batch.column("otlp")
    for owner, letters in (("attributes", "attribute_types"), ("resource", "resource_types")):
        _add_attributes(made, owner, batch.column(owner), pc.struct_field(types, letters).to_pylist())
    _add_identifiers(batch, made)
    # Texts come last and one by one: they may be long, and are copied.
    for document, texts in zip(made, _texts(batch), strict=True):
        for text in texts:
            if text:
                document.add_text("text", text)
        yield document


def _add_identifiers(batch: pa.RecordBatch, made: Sequence[tantivy.Document]) -> None:
    """Add the parts of identifiers of names and texts, once each."""
    for number, found in identifiers(batch.column("name")).items():
        for parts in sorted(found):
            made[number].add_text("name", parts)
    held: defaultdict[int, set[str]] = defaultdict(set)
    for column, rows in _text_columns(batch):
        for number, found in identifiers(column).items():
            held[number if rows is None else bisect_right(rows, number) - 1] |= found
    for row, found in held.items():
        for parts in sorted(found):
            made[row].add_text("text", parts)


def _text_columns(batch: pa.RecordBatch) -> Iterator[tuple[Column, list[int] | None]]:
    """Yield the columns of field `text`, flat, each with where the texts of each row begin; None for one a row."""
    offsets, items = _flat(batch.column("attributes"), "items")
    yield items, offsets
    for name in ("input", "output", "status_message"):
        yield batch.column(name), None
    events, flat_events = _flat(batch.column("events"), "values")
    yield flat_events.field("name"), events
    event_offsets, event_items = _flat(flat_events.field("attributes"), "items")
    yield event_items, [event_offsets[at] for at in events]


def _numbers(batch: pa.RecordBatch) -> Iterator[tuple[str, list[int | None]]]:
    """Yield the fields of integers with their values. A span that still runs has no duration."""
    yield "row", _values(batch, "_row_id")
    yield "start", _values(batch, "start_ns")
    ends, durations = _values(batch, "end_ns"), _values(batch, "duration_ns")
    yield "duration", [took if end else None for end, took in zip(ends, durations, strict=True)]
    if batch.column("input_tokens").null_count == batch.column("output_tokens").null_count == batch.num_rows:
        return
    given, made = _values(batch, "input_tokens"), _values(batch, "output_tokens")
    yield "input_tokens", given
    yield "output_tokens", made
    yield (
        "tokens",
        [
            None if a is None and b is None else min((a or 0) + (b or 0), _INT64_MAX)
            for a, b in zip(given, made, strict=True)
        ],
    )


def _add_parts(batch: pa.RecordBatch, made: Sequence[tantivy.Document]) -> None:
    """Say which of `fields.PARTS` are there."""
    for field in fields.PARTS:
        column: Column = batch.column(_PART_COLUMNS.get(field, field))
        measure = pc.list_value_length if pa.types.is_list(column.type) else pc.binary_length
        sizes: Column = measure(column)
        for document, size in zip(made, sizes.to_pylist(), strict=True):
            if size:
                document.add_text("has", field)


def _add_attributes(
    made: Sequence[tantivy.Document], owner: str, column: Column, types: Sequence[str | None]
) -> None:
    """Add the attributes of spans, or of their resources, with their paths and types."""
    offsets, items = _flat(column, "items")
    keys, values = _flat(column, "keys")[1].to_pylist(), items.to_pylist()
    known: dict[str, str] = {}
    numeric: list[tuple[int, str, float]] = []
    for row, letters in enumerate(types):
        first, add_text = offsets[row], made[row].add_text
        for at in range(first, offsets[row + 1]):
            key, value = keys[at], values[at]
            path = known.get(key)
            if path is None:
                path = known[key] = path_term(f"{owner}.{key}")
            add_text("has", path)
            if value is None or len(value) > INDEX_VALUE_MAX_CHARS:
                continue
            add_text("attribute", term_of(path, value))
            if letters and is_number(letters[at - first]) and not math.isnan(number := float(value)):
                numeric.append((row, path, number))
    terms = number_terms([path for _, path, _ in numeric], [number for _, _, number in numeric])
    for (row, _, _), term in zip(numeric, terms, strict=True):
        made[row].add_text("number", term)


def _ids(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield 16 bytes of trace id, 8 of span id, 8 of row id, big-endian."""
    ids = np.empty((batch.num_rows, 32), np.uint8)
    ids[:, :16] = np.frombuffer(_hex(batch, "trace_id", 32), np.uint8).reshape(-1, 16)
    ids[:, 16:24] = np.frombuffer(_hex(batch, "span_id", 16), np.uint8).reshape(-1, 8)
    rows = np.array(_values(batch, "_row_id"), dtype=">u8")
    ids[:, 24:] = np.frombuffer(rows.tobytes(), np.uint8).reshape(-1, 8)
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
