"""How large a payload becomes when it is decoded: bounds for who decodes what strangers send.

A message of two bytes on the wire takes hundreds in memory: 8 MiB of empty events took 2.7 GiB. So before a payload is
parsed its worst is bounded by what can be counted in a moment, and before Python objects are made of it, by what was
parsed. The factors are measured on crafted payloads of each kind of message, and rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake.limits import OTLP_REQUEST_VALUES_MAX
from tracelake.otlp.containers import OLD_SCOPE_SPANS_FIELD
from tracelake.otlp.lenient import ResourceGroup
from tracelake.otlp.messages import Message
from tracelake.otlp.values import RefusedError
from tracelake.otlp.wire import Tables, has_fields_beyond, tables_of

MESSAGE_BYTES: Final = 450
"""One message as parsed and as Python objects."""
_PROTOBUF_FACTOR: Final = 48
_JSON_FACTOR: Final = 3
_JSON_BRACKET_BYTES: Final = 400
_JSON_COMMA_BYTES: Final = 60
_MESSAGE_TAGS: Final = bytes(number << 3 | 2 for number in (1, 2, 3, 4, 5, 6, 9, 11, 13, 15))
"""Tags of all fields of OTLP that hold messages."""
_SCOPES: Final[Tables] = {2 << 3 | 2: {2 << 3 | 2: {}}}
_SPANS: Final[Tables] = {1 << 3 | 2: {**_SCOPES, OLD_SCOPE_SPANS_FIELD << 3 | 2: _SCOPES[2 << 3 | 2]}}
"""Tags that lead from TracesData to its spans."""
_MESSAGES: Final = tables_of(TracesData.DESCRIPTOR, {})
"""Tags that lead to all its messages."""
ROW_BYTES: Final = 200
"""About what the columns of fixed width and the ids of one span take."""
_ROWS_GROWTH: Final = 2
"""Ids become hex, derived columns repeat texts: as measured on real data."""
_MESSAGE_MIN_BYTES: Final = 2
"""An empty message on the wire: its tag and its length."""


@dataclass(frozen=True, slots=True)
class PayloadSize:
    """What a payload holds: its spans, and all its messages: spans, events, links, attributes, resources, scopes."""

    spans: int
    messages: int


def parse_max_bytes(payload: bytes, format: str) -> int:
    """Return what parsing the payload takes at most, spans of protobuf aside, which `has_spans_beyond` bounds."""
    if format == "protobuf":
        return _PROTOBUF_FACTOR * len(payload)
    brackets = payload.count(b"{") + payload.count(b"[")
    return (
        _JSON_FACTOR * len(payload) + _JSON_BRACKET_BYTES * brackets + _JSON_COMMA_BYTES * payload.count(b",")
    )


def message_tags(payload: bytes) -> int:
    """Return a bound on the messages of a protobuf payload: how many of its bytes may be the tag of one."""
    return len(payload) - len(payload.translate(None, _MESSAGE_TAGS))


def has_spans_beyond(payload: bytes, most: int) -> bool:
    """Return whether a protobuf payload has more resources, scopes and spans together; one that is damaged has not."""
    if len(payload) <= _MESSAGE_MIN_BYTES * most:
        return False
    return has_fields_beyond(payload, _SPANS, most, OTLP_REQUEST_VALUES_MAX)


def has_messages_beyond(payload: bytes, messages_max: int, others_max: int) -> bool:
    """Return whether a protobuf payload has more messages of any kind, or too many other fields for those it has."""
    return has_fields_beyond(payload, _MESSAGES, messages_max, others_max)


def rows_bytes(data: bytes) -> int:
    """Return about what the rows of a `TracesData` take in Arrow, where each span has resource and scope beside it.

    Of what is none it says what its bytes take: decoding says what is wrong with it.
    """
    size_bytes = _ROWS_GROWTH * len(data)
    try:
        groups = TracesData.FromString(data).resource_spans
    except ProtobufDecodeError:
        return size_bytes
    for group in groups:
        beside = ROW_BYTES + group.resource.ByteSize() + len(group.schema_url)
        for spans in group.scope_spans:
            size_bytes += len(spans.spans) * (beside + spans.scope.ByteSize() + len(spans.schema_url))
    return size_bytes


def parsed_size(groups: Sequence[ResourceGroup]) -> PayloadSize:
    """Count what a payload holds."""
    scopes = [scope for group in groups for scope in group.scopes]
    headers = [header.resource for group in groups if not isinstance(header := group.header, RefusedError)]
    headers += [header.scope for scope in scopes if not isinstance(header := scope.header, RefusedError)]
    spans = [span for scope in scopes for span in scope.spans]
    whole = [span for span in spans if not isinstance(span, RefusedError)]
    messages = len(groups) + len(scopes) + len(spans) + _attributes(header for header in headers if header)
    for span in whole:
        messages += len(span.attributes) + _with_attributes(span.events) + _with_attributes(span.links)
    return PayloadSize(len(spans), messages)


def _with_attributes(messages: Sequence[Message]) -> int:
    return len(messages) + _attributes(messages) if messages else 0


def _attributes(messages: Iterable[Message]) -> int:
    return sum(len(message.attributes) for message in messages)
