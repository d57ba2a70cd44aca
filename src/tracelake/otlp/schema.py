"""The Arrow schema of table `spans`. The column order is the order on disk.

The schema contains every field of OTLP v1, so that `encode.py` can restore the original span. Fields that users query
have their own column; the rest is in the struct column `otlp`. Columns `kind` and `status` contain words for OTLP's
enum numbers; a number without a word is stored as digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from tracelake.otlp.values import RefusedError
from tracelake.results import SERVER_KINDS

ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())
"""Attribute values of any type as text; the matching `*_types` column defines how to read them back."""

EVENT: Final = pa.struct(
    [
        pa.field("time_ns", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("attributes", ATTRIBUTES),
        pa.field("attribute_types", pa.string()),
        pa.field("dropped_attributes_count", pa.uint32()),
    ]
)

LINK: Final = pa.struct(
    [
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("trace_state", pa.string()),
        pa.field("attributes", ATTRIBUTES),
        pa.field("attribute_types", pa.string()),
        pa.field("dropped_attributes_count", pa.uint32()),
        pa.field("flags", pa.uint32()),
    ]
)

SCOPE: Final = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("version", pa.string()),
        pa.field("attributes", ATTRIBUTES),
        pa.field("attribute_types", pa.string()),
        pa.field("dropped_attributes_count", pa.uint32()),
    ]
)

OTLP_REST: Final = pa.struct(
    [
        # One letter for each map entry, see values.py, and JSON for letter `r`; null if all are strings.
        pa.field("attribute_types", pa.string()),
        pa.field("resource_types", pa.string()),
        pa.field("trace_state", pa.string()),
        pa.field("flags", pa.uint32()),
        pa.field("dropped_attributes_count", pa.uint32()),
        pa.field("dropped_events_count", pa.uint32()),
        pa.field("dropped_links_count", pa.uint32()),
        pa.field("resource_dropped_attributes_count", pa.uint32()),
        pa.field("resource_entity_refs", pa.list_(pa.binary())),  # serialized common.v1.EntityRef
        pa.field("resource_schema_url", pa.string()),
        pa.field("scope_schema_url", pa.string()),
    ]
)

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("trace_id", pa.string(), nullable=False),  # 32 lower-case hex digits
    pa.field("span_id", pa.string(), nullable=False),  # 16 lower-case hex digits
    pa.field("parent_span_id", pa.string()),  # null for a root
    pa.field("workspace", pa.string(), nullable=False),
    pa.field("service", pa.string()),  # resource attribute service.name
    pa.field("name", pa.string(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),  # SERVER, CLIENT, …; an unknown number as digits
    pa.field("status", pa.string()),  # UNSET, OK, ERROR, other numbers as digits; null if OTLP had no status
    pa.field("status_message", pa.string()),
    pa.field("start_ns", pa.int64(), nullable=False),  # since 1970, UTC
    pa.field("end_ns", pa.int64(), nullable=False),  # 0 while the span is running
    pa.field("duration_ns", pa.int64(), nullable=False),  # 0 while the span is running
    pa.field("session_id", pa.string()),
    pa.field("user_id", pa.string()),
    pa.field("type", pa.string()),  # a `content.SpanType`; null for a plain span
    pa.field("model", pa.string()),
    pa.field("input_tokens", pa.int64()),  # with those read from a cache or written to it
    pa.field("output_tokens", pa.int64()),  # with those of reasoning
    pa.field("cached_input_tokens", pa.int64()),
    pa.field("cache_write_tokens", pa.int64()),
    pa.field("reasoning_tokens", pa.int64()),
    pa.field("total_tokens", pa.int64()),  # as sent, or the sum of input and output
    pa.field("cost", pa.float64()),  # US dollars, as sent or by the price table
    pa.field("input", pa.string()),
    pa.field("output", pa.string()),
    pa.field("attributes", ATTRIBUTES),
    pa.field("resource", ATTRIBUTES),  # null if OTLP had no resource
    pa.field("scope", SCOPE),  # null if OTLP had no scope
    pa.field("events", pa.list_(EVENT)),
    pa.field("links", pa.list_(LINK)),
    pa.field("otlp", OTLP_REST),
]
SPANS: Final = pa.schema(_FIELDS)
"""A decoded span. The table adds `transaction` (int64) as its last column."""

TRANSACTION_FIELD: Final = pa.field("transaction", pa.int64(), nullable=False)
SPANS_TABLE: Final = SPANS.append(TRANSACTION_FIELD)
SPANS_ADDED: Final = dict.fromkeys(
    (*("type", "cached_input_tokens", "cache_write_tokens", "reasoning_tokens"), *("total_tokens", "cost")), 2
)
"""The columns that parts of earlier releases lack, with the version of the schema that added them."""

_INT32: Final = range(-(2**31), 2**31)


class EnumNames(dict[int | str, str]):
    """Mapping from an enum number to its word. It also accepts the enum's full name, which some OTLP/JSON senders
    write."""

    def __init__(self, field: str, prefix: str, words: Sequence[str]) -> None:
        super().__init__(enumerate(words))
        self.update((prefix + word, word) for word in words)
        self.numbers: Final = {word: number for number, word in enumerate(words)}
        self._field: Final = field

    def __missing__(self, key: int | str) -> str:
        """Return digits for an unknown number. Raises RefusedError for an unknown name."""
        try:
            number = int(key)
        except ValueError:
            raise RefusedError(f"{self._field}: no such name: {key!r:.60}") from None
        if number not in _INT32:
            raise RefusedError(f"{self._field}: {number} is not a 32-bit number")
        return self[number] if number in self else str(number)

    def number(self, word: str) -> int:
        """Return the number of a word."""
        return self.numbers[word] if word in self.numbers else int(word)


KINDS: Final = EnumNames(
    "kind", "SPAN_KIND_", ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
)
STATUSES: Final = EnumNames("status.code", "STATUS_CODE_", ("UNSET", "OK", "ERROR"))
IS_SERVER_SQL: Final = f"kind in {SERVER_KINDS}"
"""SQL of the side of a span, for a relation with column `kind`: true on the receiving side of a call."""
