"""The careful pass over a payload that the fast decoder refused. It parses span by span and keeps the good spans.

A message that cannot be decoded becomes a RefusedError in its place.

Every recursion is bounded beforehand: JSON is pruned, and protobuf's own parser stops at 100 levels. The depth that a
parser can reach depends on its stack, which differs between the server, which acknowledges, and the task, which decodes
again. Both therefore prune to the same depth first, and see the same text. An attribute value below that depth is
refused for its nesting; an unknown field is ignored, as OTLP requires.

Memory is bounded too, because a message of two bytes on the wire takes hundreds in memory: 8 MiB of empty events took
2.7 GiB. Before parsing, a quick count bounds the worst case. Before Python objects are built, the parsed size bounds
it. The factors were measured on crafted payloads of each kind of message and rounded up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake import limits
from tracelake._errors import DecodeError
from tracelake.otlp.values import (
    InstrumentationLibrarySpans,
    Message,
    RefusedError,
    ResourceSpans,
    ScopeSpans,
    Span,
)
from tracelake.otlp.wire import (
    OLD_SCOPE_SPANS,
    OLD_SCOPE_SPANS_FIELD,
    Tables,
    WireError,
    has_fields_beyond,
    replace_bad_text,
    split_field,
    tables_of,
)


@dataclass(frozen=True, slots=True)
class ScopeGroup:
    """A ScopeSpans and its spans, each decoded or refused."""

    header: Message | RefusedError
    spans: list[Message | RefusedError]


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A ResourceSpans, decoded or refused, and its scope groups."""

    header: Message | RefusedError
    scopes: list[ScopeGroup]


def split_protobuf(payload: bytes, notes: list[str]) -> list[ResourceGroup]:
    """Decode each span separately. Raises DecodeError if the outer structure of the payload is damaged.

    Appends to `notes` a sentence about each part that is accepted with replaced bytes.
    """
    try:
        _, parts = split_field(memoryview(payload), (1,), 0)
        return [_protobuf_resource(part, offset, notes) for offset, part in parts]
    except WireError as error:
        raise DecodeError(f"not OTLP protobuf: {error}") from None


def _protobuf_resource(data: memoryview, base: int, notes: list[str]) -> ResourceGroup:
    header, parts = split_field(data, (2, OLD_SCOPE_SPANS_FIELD), base)
    return ResourceGroup(
        _parse(pb.ResourceSpans, header, base, notes),
        [_protobuf_scope(part, offset, notes) for offset, part in parts],
    )


def _protobuf_scope(data: memoryview, base: int, notes: list[str]) -> ScopeGroup:
    header, parts = split_field(data, (2,), base)
    return ScopeGroup(
        _parse(pb.ScopeSpans, header, base, notes),
        [_parse(pb.Span, bytes(part), offset, notes) for offset, part in parts],
    )


def _parse(kind: type[Message], data: bytes, offset: int, notes: list[str]) -> Message | RefusedError:
    with suppress(ProtobufDecodeError):
        return kind.FromString(data)
    with suppress(ProtobufDecodeError, WireError, RecursionError):
        message = kind.FromString(replace_bad_text(memoryview(data), kind.DESCRIPTOR))
        notes.append(
            f"the {kind.__name__} of {len(data)} bytes from byte {offset} has text that is not UTF-8; the "
            "invalid bytes are replaced by U+FFFD"
        )
        return message
    return RefusedError(
        f"the {len(data)} bytes from byte {offset} are not a protobuf {kind.__name__}: damaged, or nested "
        "too deeply"
    )


def json_groups(data: Any) -> list[ResourceGroup]:
    """Decode each span of parsed JSON separately. Raises DecodeError if it does not have the shape of OTLP traces."""
    if not isinstance(data, dict):
        raise DecodeError(f"not OTLP: {_json_type(data)}, must be an object with resourceSpans")
    if data and "resourceSpans" not in data:  # for example metrics: no data is dropped silently
        raise DecodeError(
            f"not OTLP traces: it has no resourceSpans, but {ascii(', '.join(data))[1:-1]:.100}"
        )
    return [_json_resource(item) for item in _list_of(data, "resourceSpans")]


def _json_resource(data: Any) -> ResourceGroup:
    scopes = [_json_scope(item, ScopeSpans) for item in _list_of(data, "scopeSpans")]
    old = _list_of(data, OLD_SCOPE_SPANS)
    scopes += [_json_scope(item, InstrumentationLibrarySpans) for item in old]
    header = {key: value for key, value in data.items() if key not in ("scopeSpans", OLD_SCOPE_SPANS)}
    return ResourceGroup(_convert(ResourceSpans, header), scopes)


def _json_scope(data: Any, kind: type[Message]) -> ScopeGroup:
    spans = [_convert(Span, item, _identity(item)) for item in _list_of(data, "spans")]
    header = {key: value for key, value in data.items() if key != "spans"}
    return ScopeGroup(_convert(kind, header), spans)


def _list_of(data: Any, name: str) -> list[Any]:
    if not isinstance(data, dict):
        raise DecodeError(f"not OTLP: {_json_type(data)} where an object with {name} must be")
    items = data.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        raise DecodeError(f"not OTLP: {name} is {_json_type(items)}, must be an array")
    return items


def _json_type(data: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(data), "a number")


def _identity(data: Any) -> str:
    ids = [data.get(name) for name in ("traceId", "spanId")] if isinstance(data, dict) else []
    if not any(ids):
        return ""
    # ascii() escapes characters that a log line cannot hold; the slice removes its quotes.
    return " (trace {:.64}, span {:.64})".format(*(ascii(str(value))[1:-1] for value in ids))


def _convert(kind: type[Message], data: Any, identity: str = "") -> Message | RefusedError:
    try:
        return msgspec.convert(_cleaned(data), kind, strict=False)
    except msgspec.ValidationError as error:
        return RefusedError(str(error), identity)


_HALF_PAIR: Final = type("half of a surrogate pair", (), {})()
"""Placeholder for text that is not Unicode. No known field accepts it, and the error names its type; unknown fields
may have it."""


def _cleaned(data: Any) -> Any:
    """Drop nulls, which mean absent; normalize base64 alphabets; replace text that is not Unicode by a placeholder."""
    match data:
        case dict():
            return {
                key: _base64(_cleaned(value)) if key == "bytesValue" else _cleaned(value)
                for key, value in data.items()
                if value is not None and _is_unicode(key)  # no field has a non-Unicode name
            }
        case list():
            return [_cleaned(item) for item in data]
        case str() if not _is_unicode(data):
            return _HALF_PAIR
    return data


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(data: Any) -> Any:
    if not isinstance(data, str):
        return data
    standard = data.rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
    return standard + "=" * (-len(standard) % 4)


def parse_json(payload: bytes) -> Any:
    """Parse pruned JSON. Raises DecodeError if it is not valid JSON."""
    text = payload.decode("utf-8", "replace")
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        _check_utf8(payload)
        where = len(text[: error.pos].encode())
        what = "ends too early" if where >= len(payload.rstrip()) else error.msg
        raise DecodeError(f"not JSON at byte {where}: {what}") from None


def _check_utf8(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"neither JSON nor UTF-8: byte {error.start} is invalid") from None


def replace_bad_bytes(payload: bytes) -> tuple[bytes, list[str]]:
    """Return JSON with U+FFFD in place of each byte that is not UTF-8, and a note if there are any."""
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        repaired = payload.decode("utf-8", "replace").encode()
        count = repaired.count(_REPLACEMENT) - payload.count(_REPLACEMENT)
        note = (
            f"{count} places are not UTF-8, the first at byte {error.start}; the invalid bytes are replaced "
            "by U+FFFD"
        )
        return repaired, [note]
    return payload, []


_REPLACEMENT: Final = "\ufffd".encode()


def _parse_int(digits: str) -> int | float:
    # Python refuses to convert thousands of digits, and no field of OTLP can hold such a number.
    return int(digits) if len(digits) <= limits.OTLP_JSON_NUMBER_MAX_CHARS else float(digits)


_loads: Final[Callable[[str], Any]] = json.JSONDecoder(parse_int=_parse_int).decode

_QUOTE, _BACKSLASH, _SPACE, _BRACE, _COMMA = b'"\\ {,'
_RESOURCE_DEPTH, _SCOPE_DEPTH, _SPAN_DEPTH, _DEPTHS = 3, 5, 7, 9
"""Brackets around the members of resourceSpans, scopeSpans and spans, with their own; and depths that are counted."""
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


class JsonStructure(NamedTuple):
    """Sizes of JSON before it is parsed: its resources, scopes and spans, and all objects, arrays and commas."""

    resources: int
    scopes: int
    spans: int
    values: int


def pruned(text: bytes) -> bytes:
    """Return JSON with spaces for everything nested deeper than OTLP_JSON_DEPTH_MAX brackets; all offsets stay the
    same.

    Text that is not JSON is still not JSON afterwards. The time depends only on the length of the text.
    """
    if text.count(b"{") + text.count(b"[") <= limits.OTLP_JSON_DEPTH_MAX:
        return text
    cut: bytearray | None = None
    state = _State()
    for start in range(0, len(text), limits.OTLP_BLOCK_BYTES):
        block = np.frombuffer(text, np.uint8, min(limits.OTLP_BLOCK_BYTES, len(text) - start), start)
        deep = state.too_deep(block)
        if deep.any():
            cut = bytearray(text) if cut is None else cut
            np.frombuffer(cut, np.uint8)[start : start + len(block)][deep] = _SPACE
    return text if cut is None else bytes(cut)


def json_structure(text: bytes, most: int) -> JsonStructure:
    """Count objects by depth, arrays and commas of JSON outside of texts; stop soon after `most` of them."""
    state = _State()
    objects, values = np.zeros(_DEPTHS, np.int64), 0
    for start in range(0, len(text), limits.OTLP_BLOCK_BYTES):
        block = np.frombuffer(text, np.uint8, min(limits.OTLP_BLOCK_BYTES, len(text) - start), start)
        in_text, steps, depths = state.scan(block)
        opening = depths[(steps == 1) & (block == _BRACE)]
        objects += np.bincount(np.clip(opening, 0, _DEPTHS - 1), minlength=_DEPTHS)
        values += int(np.count_nonzero(steps == 1)) + int(
            np.count_nonzero((block == _COMMA) & (in_text == 0))
        )
        if values > most:
            break
    of_attributes = objects[_SPAN_DEPTH - 1]  # an attribute of a resource is an object around another one
    spans = max(int(objects[_SPAN_DEPTH] - of_attributes), 0)
    return JsonStructure(int(objects[_RESOURCE_DEPTH]), int(objects[_SCOPE_DEPTH]), spans, values)


class _State:
    """Scanner of JSON text, block by block. Its state at a block boundary is the bracket depth, whether the position is
    inside a string, and the number of preceding backslashes."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = 0
        self._backslashes = 0

    def too_deep(self, block: Any) -> Any:
        """Return a mask of the bytes in the next block that are nested deeper than OTLP_JSON_DEPTH_MAX brackets. The
        brackets of the deepest allowed level are not in the mask, so the pruned text stays valid JSON."""
        _, steps, depths = self.scan(block)
        # Both brackets of the last level stay: the condition spares the opening one, and the closing one is
        # less deep.
        return (depths > limits.OTLP_JSON_DEPTH_MAX) | ((depths == limits.OTLP_JSON_DEPTH_MAX) & (steps != 1))

    def scan(self, block: Any) -> tuple[Any, Any, Any]:
        """Scan the next block. Return for each byte whether it is inside a string, its change of the bracket depth (-1,
        0 or 1), and the depth after it."""
        quotes = block == _QUOTE
        if self._backslashes or (block == _BACKSLASH).any():
            quotes &= ~self._escaped(block)
        in_text = (np.cumsum(quotes) + self._in_text) & 1
        steps = np.where(in_text, 0, _STEPS[block])
        depths = np.cumsum(steps) + self._depth
        self._in_text, self._depth = int(in_text[-1]), int(depths[-1])
        return in_text, steps, depths

    def _escaped(self, block: Any) -> Any:
        """Return a mask of the bytes that follow an odd number of backslashes."""
        places = np.arange(len(block))
        others = np.maximum.accumulate(np.where(block == _BACKSLASH, -1, places))
        run = places - others + np.where(others < 0, self._backslashes, 0)
        before = np.concatenate(([self._backslashes], run[:-1]))
        self._backslashes = int(run[-1])
        return before % 2 == 1


@dataclass(frozen=True, slots=True)
class ProtobufDialect:
    """Reads those fields whose form differs between protobuf and JSON, for many spans at once. In protobuf, ids are
    bytes, and HasField reports presence."""

    def ids(self, values: list[Message], field: str, size: int) -> list[str]:
        """Return ids of `size` bytes as lower-case hex. Raises RefusedError for any other length."""
        for length in set(map(len, values)):
            if length != size:
                raise RefusedError(f"{field}: {length} bytes, must be {size}")
        return [value.hex() for value in values]

    def loose_ids(self, values: list[Message], field: str) -> list[str]:  # noqa: ARG002 - as in the JSON dialect
        """Return ids of any length, including empty ones, as lower-case hex."""
        return [value.hex() for value in values]

    def statuses(self, spans: Sequence[Message]) -> list[Message | None]:
        """Return the status of each span, None if it has none."""
        return [span.status if span.HasField("status") else None for span in spans]


@dataclass(frozen=True, slots=True)
class JsonDialect:
    """The JSON dialect: ids are hex in either case; an absent message is None."""

    def ids(self, values: list[Message], field: str, size: int) -> list[str]:
        """Return ids of `size` bytes as lower-case hex. Raises RefusedError for any other length."""
        for length in set(map(len, values)):
            if length != 2 * size:
                raise RefusedError(f"{field}: {length} hex digits, must be {2 * size}")
        return _lower_hex(values, field)

    def loose_ids(self, values: list[Message], field: str) -> list[str]:
        """Return ids of any length as lower-case hex. Raises RefusedError if they are not hex."""
        for value in values:
            if len(value) % 2:
                raise RefusedError(f"{field}: {len(value)} hex digits, must be an even number")
        return _lower_hex(values, field)

    def statuses(self, spans: Sequence[Message]) -> list[Message | None]:
        """Return the status of each span, None if it has none."""
        return [span.status for span in spans]


def _lower_hex(values: list[Message], field: str) -> list[str]:
    joined = "".join(values)
    try:
        decoded = bytes.fromhex(joined)
    except ValueError:
        decoded = b""
    if 2 * len(decoded) != len(joined):  # not hex, or contains white space, which fromhex() skips
        raise RefusedError(f"{field}: not hex")
    return values if joined == joined.lower() else [value.lower() for value in values]


Dialect: TypeAlias = ProtobufDialect | JsonDialect
PROTOBUF: Final = ProtobufDialect()
JSON: Final = JsonDialect()

MESSAGE_BYTES: Final = 450
"""Memory of one message, parsed and as Python objects."""
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
"""Approximate size of one span's fixed-width columns and ids."""
_ROWS_GROWTH: Final = 2
"""Growth from protobuf to rows, measured on real data: ids become hex, and derived columns repeat texts."""
_MESSAGE_MIN_BYTES: Final = 2
"""Size of an empty message on the wire: its tag and its length."""


@dataclass(frozen=True, slots=True)
class PayloadSize:
    """Counts of a payload: spans, and all messages (spans, events, links, attributes, resources, scopes)."""

    spans: int
    messages: int


def parse_max_bytes(payload: bytes, format: str) -> int:
    """Return an upper bound of the memory that parsing takes. Protobuf spans are bounded by `has_spans_beyond`
    instead."""
    if format == "protobuf":
        return _PROTOBUF_FACTOR * len(payload)
    brackets = payload.count(b"{") + payload.count(b"[")
    return (
        _JSON_FACTOR * len(payload) + _JSON_BRACKET_BYTES * brackets + _JSON_COMMA_BYTES * payload.count(b",")
    )


def message_tags(payload: bytes) -> int:
    """Return an upper bound on the number of messages in a protobuf payload: the number of its bytes that may be the
    field tag of a message."""
    return len(payload) - len(payload.translate(None, _MESSAGE_TAGS))


def has_spans_beyond(payload: bytes, most: int) -> bool:
    """Return whether a protobuf payload has more than `most` resources, scopes and spans. False if it is damaged."""
    if len(payload) <= _MESSAGE_MIN_BYTES * most:
        return False
    return has_fields_beyond(payload, _SPANS, most, limits.OTLP_REQUEST_VALUES_MAX)


def has_messages_beyond(payload: bytes, messages_max: int, others_max: int) -> bool:
    """Return whether a protobuf payload has more messages of any kind, or too many other fields for those it has."""
    return has_fields_beyond(payload, _MESSAGES, messages_max, others_max)


def rows_bytes(data: bytes) -> int:
    """Estimate the Arrow size of the rows of a `TracesData`. Each row repeats its resource and scope.

    For data that cannot be parsed, the estimate is based on its length, because decoding reports the error.
    """
    size_bytes = _ROWS_GROWTH * len(data)
    try:
        groups = TracesData.FromString(data).resource_spans
    except ProtobufDecodeError:
        return size_bytes
    for group in groups:
        shared_bytes = ROW_BYTES + group.resource.ByteSize() + len(group.schema_url)
        for spans in group.scope_spans:
            size_bytes += len(spans.spans) * (shared_bytes + spans.scope.ByteSize() + len(spans.schema_url))
    return size_bytes


def parsed_size(groups: Sequence[ResourceGroup]) -> PayloadSize:
    """Count the spans and messages of a payload."""
    scopes = [scope for group in groups for scope in group.scopes]
    headers = [header.resource for group in groups if not isinstance(header := group.header, RefusedError)]
    headers += [header.scope for scope in scopes if not isinstance(header := scope.header, RefusedError)]
    spans = [span for scope in scopes for span in scope.spans]
    valid = [span for span in spans if not isinstance(span, RefusedError)]
    messages = len(groups) + len(scopes) + len(spans) + _attributes(header for header in headers if header)
    for span in valid:
        messages += len(span.attributes) + _with_attributes(span.events) + _with_attributes(span.links)
    return PayloadSize(len(spans), messages)


def _with_attributes(messages: Sequence[Message]) -> int:
    return len(messages) + _attributes(messages) if messages else 0


def _attributes(messages: Iterable[Message]) -> int:
    return sum(len(message.attributes) for message in messages)
