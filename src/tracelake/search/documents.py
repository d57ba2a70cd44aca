"""Conversion of spans to index documents, and of documents to hits (`RawHit`) before the rows of `spans` are read.

Arrow makes the terms of whole columns, without an object for each attribute. Each row then becomes one document at
once. Filling documents column by column took twice as long, because they did not stay in the processor's cache.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tracelake.limits import INDEX_ARRAY_MAX_BYTES, INDEX_VALUE_MAX_CHARS
from tracelake.search import analyzers, query_values
from tracelake.search.analyzers import ENGLISH, Analyzer
from tracelake.search.tokenization import Numbers

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
"""The columns of table `spans` that the index is built from, and the row id, which contains the transaction."""

_PART_COLUMNS: Final = {"parent": "parent_span_id"}
_NESTED: Final = re.compile("[^sidbxnSIDBXN+-]")
"""Type letters of attributes whose value may be an array (see `otlp.values`)."""
_INT64_MAX: Final = (1 << 63) - 1

Texts: TypeAlias = list[str | None]
Column: TypeAlias = Any
"""A pyarrow column. The stubs of pyarrow do not know its array type."""


def document_text(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of field `text` for one row, with maps as dicts. Highlights are cut from them.

    Attribute values come first, then input, output and status message, then the events. Input and output are omitted
    if an attribute holds the same text.
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


def texts_to_show(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of a row in order of preference for an excerpt. If no text matches the query, the excerpt comes
    from the first."""
    texts = (row[column] for column in ("output", "input", "status_message", "name"))
    return [*(text for text in texts if text), *document_text(row)]


def texts_of(batch: pa.RecordBatch) -> tuple[Column, Numbers]:
    """Return the texts of `document_text` for each row of a batch, as (texts, firsts).

    `firsts` holds the index of each row's first text; its last element is the end.
    """
    of_attributes, values = _flat(batch.column("attributes"), "items")
    of_events, events = _flat(batch.column("events"), "values")
    of_event_values, event_values = _flat(events.field("attributes"), "items")
    rows = np.arange(batch.num_rows)
    attribute_rows, event_rows = rows.repeat(np.diff(of_attributes)), rows.repeat(np.diff(of_events))
    event_value_rows = event_rows.repeat(np.diff(of_event_values))
    columns = [batch.column(name) for name in ("input", "output", "status_message")]
    arrays: list[Column] = [values, *columns, events.field("name"), event_values]
    texts: Column = pc.dictionary_encode(pa.concat_arrays(arrays))
    codes: npt.NDArray[np.int64] = pc.fill_null(texts.indices, -1).to_numpy().astype(np.int64)
    is_text = (codes >= 0) & (codes != texts.dictionary.index("").as_py())
    prompt, answer = (len(values) + at * batch.num_rows + rows for at in range(2))
    for place in (prompt, answer):
        repeated = attribute_rows[codes[: len(values)] == codes[place][attribute_rows]]
        is_text[place[repeated]] = False
    is_text[answer[codes[answer] == codes[prompt]]] = False
    rows_of_all = np.concatenate([attribute_rows, rows, rows, rows, event_rows, event_value_rows])
    positions = np.flatnonzero(is_text)
    order = positions[np.argsort(rows_of_all[positions], kind="stable")]
    firsts = np.zeros(batch.num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows_of_all[positions], minlength=batch.num_rows), out=firsts[1:])
    return texts.take(pa.array(order)), firsts


def written(batch: pa.RecordBatch) -> Column:
    """Return for each row the unprocessed text that its words and whole values are made of.

    It contains the texts of `document_text`, names and values, separated by newlines, but no attribute paths.
    """
    texts, firsts = texts_of(batch)
    of_resource, values = _flat(batch.column("resource"), "items")
    lists = ((firsts, texts.cast(pa.string())), (of_resource, pc.fill_null(values, "")))
    joined: list[Column] = [
        pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), each), "\n")
        for offsets, each in lists
    ]
    names = ("name", "trace_id", "span_id", *analyzers.FACETS.values())
    columns = [batch.column(name).cast(pa.string()) for name in names]
    every: Column = pc.binary_join_element_wise(*joined, *columns, "\n", null_handling="skip")
    return every


def documents(batch: pa.RecordBatch, analyzer: Analyzer = ENGLISH) -> Iterator[tantivy.Document]:
    """Yield one document for each row of a batch that has `COLUMNS`. The analyzer splits its texts into words.

    Raises:
        ValueError: An id is not hexadecimal, or does not have 32 or 16 digits.
    """
    integers = list(_numbers(batch))
    terms = _terms(batch, analyzer.span_term_digits) if analyzer.has_all_terms else _earlier_terms(batch)
    texts = [*_columns(batch), *terms, *_words(batch, analyzer)]
    for row, document_id in enumerate(_ids(batch)):
        document = tantivy.Document()
        document.add_bytes("id", document_id)
        for field, numbers in integers:
            if (number := numbers[row]) is not None:
                document.add_integer(field, number)
        add_text = document.add_text
        for field, values in texts:
            if value := values[row]:
                add_text(field, value)
        yield document


def _words(batch: pa.RecordBatch, analyzer: Analyzer) -> Iterator[tuple[str, Texts]]:
    """Yield the word fields. All texts of a row become one text."""
    wording, rows = analyzer.wording, batch.num_rows
    names: Column = batch.column("name")
    names = names.fill_null("")
    yield "name", list(wording.texts_of_rows(names, np.arange(rows + 1)))
    yield "text", list(wording.texts_of_rows(*texts_of(batch)))


def _columns(batch: pa.RecordBatch) -> Iterator[tuple[str, Texts]]:
    """Yield the column fields in which any row has a value."""
    for field, column in {"trace": "trace_id", **analyzers.FACETS}.items():
        values = batch.column(column)
        if values.null_count < len(values):
            yield field, values.to_pylist()


def _numbers(batch: pa.RecordBatch) -> Iterator[tuple[str, list[int | None]]]:
    """Yield the integer fields with their values. A running span has no duration."""
    yield "row", _values(batch, "_row_id")
    yield "start", _values(batch, "start_ns")
    ends, durations = _values(batch, "end_ns"), _values(batch, "duration_ns")
    yield "duration", [took if end else None for end, took in zip(ends, durations, strict=True)]
    if batch.column("input_tokens").null_count == batch.column("output_tokens").null_count == batch.num_rows:
        return
    inputs, outputs = _values(batch, "input_tokens"), _values(batch, "output_tokens")
    yield "input_tokens", inputs
    yield "output_tokens", outputs
    yield (
        "tokens",
        [
            None if a is None and b is None else min((a or 0) + (b or 0), _INT64_MAX)
            for a, b in zip(inputs, outputs, strict=True)
        ],
    )


class _Owned(NamedTuple):
    """Attributes of several owners. Those of owner n begin at `offsets[n]`; the last offset is the end."""

    offsets: list[int]
    keys: Column
    values: Column
    types: Texts
    """The type letters of each owner's attributes; None if all are texts."""
    rows: Sequence[int]
    """The row of each owner's span."""
    in_rows: list[int]
    """Offsets by row instead of by owner."""


def _owned(batch: pa.RecordBatch, column: str, letters: str) -> _Owned:
    """Return the attributes of spans or resources."""
    offsets, values = _flat(batch.column(column), "items")
    types: Column = pc.struct_field(batch.column("otlp"), letters)
    keys = _flat(batch.column(column), "keys")[1]
    return _Owned(offsets, keys, values, types.to_pylist(), range(batch.num_rows), offsets)


def _owned_by_events(batch: pa.RecordBatch) -> _Owned:
    """Return the attributes of events."""
    of_rows, events = _flat(batch.column("events"), "values")
    maps: Column = events.field("attributes")
    offsets, values = _flat(maps, "items")
    rows = np.arange(batch.num_rows).repeat(np.diff(of_rows)).tolist()
    types: Texts = events.field("attribute_types").to_pylist()
    return _Owned(offsets, _flat(maps, "keys")[1], values, types, rows, [offsets[at] for at in of_rows])


def _terms(batch: pa.RecordBatch, span_digits: int | None) -> Iterator[tuple[str, Texts]]:
    """Yield the fields of attributes and span parts. The terms of a row form one text, which tantivy splits.

    `span_digits` is the number of digits of a span id in its term; None for all.
    """
    several = {
        "attributes": _owned(batch, "attributes", "attribute_types"),
        "resource": _owned(batch, "resource", "resource_types"),
        "events": _owned_by_events(batch),
    }
    ids: Column = pc.utf8_slice_codeunits(batch.column("span_id").cast(pa.string()), 0, span_digits)
    of_spans = pc.binary_join_element_wise(query_values.path_term("span"), ids, query_values.SEPARATOR)
    yield from _terms_of(batch, several, [of_spans], with_elements=True)


def _earlier_terms(batch: pa.RecordBatch) -> Iterator[tuple[str, Texts]]:
    """Yield the same fields in the form of document version 2."""
    several = {
        "attributes": _owned(batch, "attributes", "attribute_types"),
        "resource": _owned(batch, "resource", "resource_types"),
    }
    return _terms_of(batch, several, [], with_elements=False)


def _terms_of(
    batch: pa.RecordBatch, several: Mapping[str, _Owned], others: list[Column], *, with_elements: bool
) -> Iterator[tuple[str, Texts]]:
    """Yield the `attribute`, `has` and `number` fields from the owners' attributes, `others` and the span parts."""
    attributes, has, numbers = others, [], defaultdict[int, list[str]](list)
    for owner, owned in several.items():
        paths, items = _paths(owner, owned.keys), owned.values
        has.append(_joined(owned.in_rows, paths))
        is_short: Column = pc.less_equal(pc.utf8_length(items), pa.scalar(INDEX_VALUE_MAX_CHARS, pa.int32()))
        short: Column = pc.if_else(is_short, items, pa.scalar(None, items.type))
        terms = pc.binary_join_element_wise(paths, _in_terms(short), query_values.SEPARATOR)
        attributes.append(_joined(owned.in_rows, terms))
        if not any(owned.types):
            continue
        for owner_number, term in _number_terms(owned.offsets, owned.types, paths, short):
            numbers[owned.rows[owner_number]].append(term)
        if with_elements:
            texts = defaultdict[int, list[str]](list)
            for owner_number, path, element in _elements(owned, paths):
                row = owned.rows[owner_number]
                texts[row].append(query_values.term_of(path, query_values.element_text(element)))
                if (number := query_values.element_number(element)) is not None:
                    numbers[row] += query_values.number_terms([path], [number])
            if texts:
                attributes.append(
                    pa.array([query_values.JOINT.join(texts.get(row, ())) for row in range(batch.num_rows)])
                )
    yield "attribute", pc.binary_join_element_wise(*attributes, query_values.JOINT).to_pylist()
    yield "has", pc.binary_join_element_wise(*has, *_parts(batch), query_values.JOINT).to_pylist()
    if numbers:
        yield "number", [query_values.JOINT.join(numbers.get(row, ())) for row in range(batch.num_rows)]


def _elements(owned: _Owned, paths: Column) -> Iterator[tuple[int, str, query_values.Element]]:
    """Yield the scalar elements of arrays as (owner number, path, element)."""
    for owner, letters in enumerate(owned.types):
        if letters is None:
            continue
        for match in _NESTED.finditer(letters):
            at = owned.offsets[owner] + match.start()
            if at >= owned.offsets[owner + 1]:
                break
            text = owned.values[at]
            if text.as_buffer() is not None and text.as_buffer().size <= INDEX_ARRAY_MAX_BYTES:
                for element in query_values.elements_of(text.as_py()):
                    yield owner, paths[at].as_py(), element


def _parts(batch: pa.RecordBatch) -> Iterator[Column]:
    """Yield a column for each of `analyzers.PARTS`: the part's name in rows that have it, otherwise an empty text."""
    for field in analyzers.PARTS:
        column: Column = batch.column(_PART_COLUMNS.get(field, field))
        measure = pc.list_value_length if pa.types.is_list(column.type) else pc.binary_length
        sizes: Column = measure(column)
        yield pc.if_else(pc.greater(pc.fill_null(sizes, 0), pa.scalar(0, sizes.type)), field, "")


def _paths(owner: str, keys: Column) -> Column:
    """Return the paths of attributes in the form of terms. Dictionary encoding pays off because few paths differ."""
    encoded = keys.dictionary_encode()
    paths = [query_values.path_term(f"{owner}.{key}") for key in encoded.dictionary.to_pylist()]
    return pa.array(paths, pa.string()).take(encoded.indices)


def _in_terms(values: Column) -> Column:
    """Return values in the form of `term_of`."""
    valid, offsets, data = values.buffers()
    if data is None:
        return values
    written = pa.py_buffer(data.to_pybytes().translate(query_values.BYTES_IN_TERMS))
    return pa.Array.from_buffers(values.type, len(values), [valid, offsets, written], offset=values.offset)


def _joined(offsets: list[int], terms: Column) -> Column:
    """Join the terms of each row into one text."""
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pc.fill_null(terms, ""))
    return pc.binary_join(lists, query_values.JOINT)


def _number_terms(
    offsets: list[int], types: Texts, paths: Column, values: Column
) -> Iterator[tuple[int, str]]:
    """Yield the numeric terms of attributes that are numbers, each with the number of its owner."""
    lengths = (last - first for first, last in pairwise(offsets))
    letters = "".join((one or "").ljust(length)[:length] for one, length in zip(types, lengths, strict=True))
    places = [match.start() for match in query_values.NUMERIC.finditer(letters)]
    if not places:
        return
    texts, names = values.take(places).to_pylist(), paths.take(places).to_pylist()
    numeric = [
        (bisect_right(offsets, place) - 1, path, number)
        for place, path, text in zip(places, names, texts, strict=True)
        if text is not None and not math.isnan(number := float(text))
    ]
    terms = query_values.number_terms([path for _, path, _ in numeric], [number for _, _, number in numeric])
    for (row, _, _), term in zip(numeric, terms, strict=True):
        yield row, term


def _ids(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield ids of 32 bytes: 16 of the trace id, 8 of the span id and 8 of the row id, big-endian."""
    ids = np.empty((batch.num_rows, 32), np.uint8)
    ids[:, :16] = np.frombuffer(_hex(batch, "trace_id", 32), np.uint8).reshape(-1, 16)
    ids[:, 16:24] = np.frombuffer(_hex(batch, "span_id", 16), np.uint8).reshape(-1, 8)
    rows = np.array(_values(batch, "_row_id"), dtype=">u8")
    ids[:, 24:] = np.frombuffer(rows.tobytes(), np.uint8).reshape(-1, 8)
    packed = ids.tobytes()
    return (packed[at : at + 32] for at in range(0, len(packed), 32))


def _hex(batch: pa.RecordBatch, column: str, digits: int) -> bytes:
    """Return the concatenated bytes of all ids of a column."""
    ids = _values(batch, column)
    if any(len(one) != digits for one in ids):
        wrong = next(one for one in ids if len(one) != digits)
        raise ValueError(f"{column} {wrong!r} does not have {digits} hexadecimal digits")
    return bytes.fromhex("".join(ids))


def _values(batch: pa.RecordBatch, column: str) -> list[Any]:
    return batch.column(column).to_pylist()


def _flat(column: Column, children: str) -> tuple[list[int], Column]:
    """Return (offsets, elements): row i of a list or map column has elements[offsets[i] : offsets[i + 1]]."""
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    return [offset - first for offset in offsets], getattr(column, children).slice(first, last - first)


SEARCH_RANKED_BEYOND_HITS: Final = 6
"""Hits of a ranked list beyond the page taken from it."""
SEARCH_RANKED_FIRST_HITS: Final = 100
"""Hits of the list from which the first pages are taken then."""
SEARCH_RANKED_STEP_HITS: Final = 1_000
"""Growth of the ranked list from which pages are taken."""

AnyHit: TypeAlias = tuple[float, tantivy.DocAddress]
"""A hit of tantivy: its rank value and its document."""

SEGMENTS_IN_ORDER: Final = 2
"""Number of leading segments whose hits have a stable order.

tantivy merges the hits of segments in a buffer of twice the requested length. So it drops nothing before those of the
first two segments are merged. It keeps the first of equal hits, and hits of later segments arrive in any order.
"""


class RawHit(msgspec.Struct, frozen=True):
    """Row of table `spans` that matches, as the index stores it. Its ids are decoded on access."""

    stored: bytes
    score: float
    """0 if hits are sorted by time."""

    @property
    def trace_id(self) -> str:
        """The trace id in lower-case hex."""
        return analyzers.trace_of(self.stored)

    @property
    def span_id(self) -> str:
        """The span id in lower-case hex."""
        return analyzers.span_of(self.stored)

    @property
    def row(self) -> int:
        """The row id."""
        return analyzers.row_of(self.stored)

    @property
    def transaction(self) -> int:
        """The transaction of the row."""
        return analyzers.transaction_of(self.stored)


def ranked_as_far_as(
    wanted: int, best: Callable[[int], list[AnyHit]], *, beyond: int = SEARCH_RANKED_BEYOND_HITS
) -> list[AnyHit]:
    """Return a list of the best hits whose first `wanted` do not depend on its length. `best` returns the list of a
    given length.

    Among equal scores, the length of a list decides which hits tantivy keeps at its end. Without this function, a hit
    could be on two pages and another on none. A list is accepted if the page ends at a different score than the list.
    It is also accepted if the page ends in a segment of which tantivy drops nothing until all of its hits are
    collected.

    Each hit of a list becomes a Python object, so short lists are tried first, with `beyond` hits after the page. With
    0, for queries with few distinct scores, no longer list is tried. The last list is accepted unchecked.
    """
    longest = SEARCH_RANKED_FIRST_HITS if wanted <= SEARCH_RANKED_FIRST_HITS else SEARCH_RANKED_STEP_HITS
    for length in (wanted + beyond, SEARCH_RANKED_FIRST_HITS) if beyond else (wanted,):
        if wanted <= length <= SEARCH_RANKED_FIRST_HITS:
            hits = best(length)
            if len(hits) < length or _is_sure(hits, wanted):
                return hits
            longest = SEARCH_RANKED_STEP_HITS if beyond else longest
    return best(-(-wanted // longest) * longest)


def _is_sure(hits: list[AnyHit], wanted: int) -> bool:
    """Whether a list of any other length has the same first `wanted` hits."""
    score, address = hits[wanted - 1]
    return address.segment_ord < SEGMENTS_IN_ORDER or score != hits[-1][0]


def raw_hit(searcher: tantivy.Searcher, score: float, address: tantivy.DocAddress) -> RawHit:
    """Return the hit of a document."""
    stored = searcher.doc(address).get_first("id")
    if not isinstance(stored, bytes):
        raise ValueError(f"Data corrupted: a document has no id but {stored!r}")  # worded like tantivy's
    return RawHit(stored, score)
