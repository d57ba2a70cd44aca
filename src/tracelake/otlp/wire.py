"""Parser of the protobuf wire format, so that only the span that does not parse is refused.

Source: Protocol Buffers, Encoding. OTLP has no groups (wire types 3 and 4). Like protobuf's own parser, this code
skips a group and its content. It must accept every group that protobuf accepts. Otherwise, a group would hide the
fields after it.

The module also finds containers of spans under unknown names. Two old names are accepted. Spans in any other unknown
container count as rejected, so that no sender loses spans despite a success response.

| place | accepted | counted as rejected |
|---|---|---|
| JSON | `instrumentationLibrarySpans` (OTLP before 0.15) | an array of objects; any value with spans in it |
| protobuf | field 1000 of ResourceSpans (OTLP 0.15 to 0.18) | a length-delimited field that is a message |
| inside a span | | only an object with the ids and start time of a span |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.limits import OTLP_NESTING_MAX
from tracelake.otlp.values import Span


class WireError(ValueError):
    """Invalid or truncated protobuf bytes. The message contains the byte offset."""


def split_field(
    data: memoryview, numbers: Collection[int], base: int
) -> tuple[bytes, list[tuple[int, memoryview]]]:
    """Return the message without the sub-messages of some fields, and those sub-messages with their offsets.

    `base` is the offset of `data` in the payload, for error messages. Raises WireError if the bytes are no valid
    message.
    """
    remaining = bytearray()
    values = []
    for field, start, value, end in _fields(data, base):
        if field in numbers:
            values.append((base + value, data[value:end]))
        else:
            remaining += data[start:end]
    return bytes(remaining), values


def is_message(data: bytes) -> bool:
    """Return whether bytes have the wire format of a message with at least one field."""
    try:
        return bool(list(_fields(memoryview(data), 0)))
    except WireError:
        return False


Tables: TypeAlias = dict[int, Any]
"""Tags of sub-messages on the wire, each with those within it."""


def has_fields_beyond(data: bytes, tables: Tables, messages_max: int, others_max: int) -> bool:  # noqa: PLR0912
    """Return whether a message has more sub-messages of `tables`, or too many other fields for those that it has.

    Damaged fields are skipped. It is one flat loop, because it may scan millions of fields while other requests wait.
    """
    messages = others = 0
    pending = [(0, len(data), tables)]
    with suppress(IndexError):  # damaged at the end of the data
        while pending:
            at, end, table = pending.pop()
            groups = 0
            while at < end:
                tag = data[at]
                at += 1
                if tag >= 0x80:
                    tag, at = _long_number(data, at, tag)
                match tag & 7:
                    case 2:
                        size = data[at]
                        at += 1
                        if size >= 0x80:
                            size, at = _long_number(data, at, size)
                        child = None if groups else table.get(tag)
                        if child is not None:
                            messages += 1
                            if messages > messages_max:
                                return True
                            if child:
                                pending.append((at, min(at + size, end), child))
                            at += size
                            continue
                        at += size
                    case 0:
                        while data[at] >= 0x80:
                            at += 1
                        at += 1
                    case 1:
                        at += 8
                    case 5:
                        at += 4
                    case 3:
                        groups += 1
                    case 4:
                        groups -= 1
                    case _:
                        at = end
                others += 1
                if others > others_max and others > others_max + messages:
                    return True
    return False


def _long_number(data: bytes, at: int, first: int) -> tuple[int, int]:
    number, shift = first & 0x7F, 7
    while (byte := data[at]) >= 0x80 and shift < 63:
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | (byte & 0x7F) << shift, at + 1


def tables_of(kind: Descriptor, tables: dict[str, Tables]) -> Tables:
    """Return the tags of all sub-messages of a kind of message. `tables` caches the tags by kind of message; the call
    adds all kinds inside this one."""
    if kind.full_name not in tables:
        table = tables[kind.full_name] = {}
        for field in kind.fields:
            if field.message_type is not None:
                table[field.number << 3 | 2] = tables_of(field.message_type, tables)
    return tables[kind.full_name]


def replace_bad_text(data: memoryview, kind: Descriptor) -> bytes:
    """Return a message whose texts have U+FFFD in place of each byte that is not UTF-8. Raises WireError if the bytes
    are no valid message."""
    out = bytearray()
    for number, start, value, end in _fields(data, 0):
        field = kind.fields_by_number.get(number)
        inner = bytes(data[value:end])
        if field is not None and field.type == FieldDescriptor.TYPE_STRING:
            repaired = inner.decode("utf-8", "replace").encode()
        elif field is not None and field.message_type is not None:
            repaired = replace_bad_text(data[value:end], field.message_type)
        else:
            repaired = inner
        if repaired == inner:
            out += data[start:end]
        else:
            out += _as_varint(number << 3 | 2) + _as_varint(len(repaired)) + repaired
    return bytes(out)


def _as_varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _fields(data: memoryview, base: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, or 0 if the field is not length-delimited; start; start of the value; end)."""
    position = start = groups = 0
    while position < len(data):
        start = start if groups else position
        field = position
        tag, position = _varint(data, position, base)
        value, number = position, 0
        match tag & 7:
            case 0:
                _, position = _varint(data, position, base)
            case 1:
                position += 8
            case 2:
                length, value = _varint(data, position, base)
                position, number = value + length, tag >> 3
            case 3:
                groups += 1
            case 4 if groups:
                groups -= 1
            case 5:
                position += 4
            case other:
                raise WireError(f"byte {base + field}: wire type {other} is not protobuf of OTLP")
        if position > len(data):
            raise WireError(
                f"truncated: the field at byte {base + field} ends at byte {base + position}, but there are "
                f"only {base + len(data)} bytes"
            )
        if not groups:
            yield number, start, value, position
    if groups:
        raise WireError(f"truncated: the group at byte {base + start} does not end")


def _varint(data: memoryview, position: int, base: int) -> tuple[int, int]:
    number = 0
    for i, byte in enumerate(data[position : position + 10]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number, position + i + 1
    if position + 10 > len(data):
        raise WireError(f"truncated in the number at byte {base + position}")
    raise WireError(f"byte {base + position}: a number of more than 10 bytes is not protobuf")


OLD_SCOPE_SPANS: Final = "instrumentationLibrarySpans"
OLD_SCOPE_SPANS_FIELD: Final = 1000
OLD_SCOPE_SPANS_TAG: Final = b"\xc2\x3e"
"""The field's tag on the wire."""

_ROOT_FIELDS: Final = frozenset({"resourceSpans"})
_RESOURCE_FIELDS: Final = frozenset({"resource", "scopeSpans", "schemaUrl", OLD_SCOPE_SPANS})
_SCOPE_FIELDS: Final = frozenset({"scope", "instrumentationLibrary", "spans", "schemaUrl"})
_SPAN_LISTS: Final = frozenset({"attributes", "events", "links"})
_SPAN_FIELDS: Final = frozenset(Span.__struct_encode_fields__)
_SPAN_KEYS: Final = frozenset({"traceid", "spanid", "starttimeunixnano"})
"""Fields that identify an object as a span, in lower case without underscores."""
_LENGTH_DELIMITED: Final = 2


class UnknownContainer(NamedTuple):
    """A field with an unknown name that may hold spans."""

    where: str
    name: str
    spans: int
    """Number of spans in it; an unrecognizable item counts as one."""

    def reason(self) -> str:
        """Return the message for the sender."""
        path = f"{self.where}.{self.name}" if self.where else self.name
        return f"{path}: unknown field with {self.spans} spans; OTLP has resourceSpans, scopeSpans and spans"


class _Parsed:
    """Accessor for values returned by `json.loads`."""

    def members(self, value: Any) -> dict[str, Any]:
        return value if isinstance(value, dict) else {}

    def items(self, value: Any) -> list[Any]:
        return value if isinstance(value, list) else []

    def decoded(self, value: Any) -> Any:
        return value


class _Raw:
    """Accessor for `msgspec.Raw` values. It parses only containers, one level at a time."""

    _LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
    _OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def members(self, value: Any) -> dict[str, Any]:
        return self._OBJECT.decode(value) if bytes(memoryview(value)[:1]) == b"{" else {}

    def items(self, value: Any) -> list[Any]:
        return self._LIST.decode(value) if bytes(memoryview(value)[:1]) == b"[" else []

    def decoded(self, value: Any) -> Any:
        return msgspec.json.decode(value)


def in_json_text(payload: bytes) -> list[UnknownContainer]:
    """Return the unknown containers of a JSON payload. Raises msgspec.DecodeError if it is no valid JSON, and
    RecursionError if it is nested too deeply."""
    return list(_in_root(payload.strip(), _Raw()))


def in_json(data: Any) -> list[UnknownContainer]:
    """Return the unknown containers of parsed JSON."""
    return list(_in_root(data, _Parsed()))


def _in_root(data: Any, values: _Parsed | _Raw) -> Iterator[UnknownContainer]:
    root = values.members(data)
    yield from _unknown(root, _ROOT_FIELDS, "", values)
    for r, resource in enumerate(values.items(root.get("resourceSpans", b""))):
        of_resource, where = values.members(resource), f"resourceSpans[{r}]"
        yield from _unknown(of_resource, _RESOURCE_FIELDS, where, values)
        for name in ("scopeSpans", OLD_SCOPE_SPANS):
            for s, scope in enumerate(values.items(of_resource.get(name, b""))):
                yield from _in_scope(values.members(scope), f"{where}.{name}[{s}]", values)


def _in_scope(scope: dict[str, Any], where: str, values: _Parsed | _Raw) -> Iterator[UnknownContainer]:
    yield from _unknown(scope, _SCOPE_FIELDS, where, values)
    for n, span in enumerate(values.items(scope.get("spans", b""))):
        for name, value in values.members(span).items():
            if name not in _SPAN_FIELDS and (spans := _count_spans(values.decoded(value), OTLP_NESTING_MAX)):
                yield UnknownContainer(f"{where}.spans[{n}]", ascii(name)[1:-1], spans)


def _unknown(
    members: dict[str, Any], fields: frozenset[str], where: str, values: _Parsed | _Raw
) -> Iterator[UnknownContainer]:
    for name, value in members.items():
        if name in fields:
            continue
        decoded = values.decoded(value)
        spans = _count_spans(decoded, OTLP_NESTING_MAX)
        if not spans and isinstance(decoded, list):
            spans = sum(isinstance(item, dict) for item in decoded)
        if spans:
            yield UnknownContainer(where, ascii(name)[1:-1], spans)


def _count_spans(value: Any, levels: int) -> int:
    """Count the objects in a value that have the ids of a span, down to `levels` levels."""
    if not levels or not isinstance(value, (dict, list)):
        return 0
    if isinstance(value, list):
        return sum(_count_spans(item, levels - 1) for item in value)
    if _SPAN_KEYS.issubset(name.replace("_", "").lower() for name in value):
        return 1
    return sum(_count_spans(item, levels - 1) for name, item in value.items() if name not in _SPAN_LISTS)


def take_old_names(data: pb.TracesData) -> list[UnknownContainer]:
    """Move the spans of field 1000 to `scope_spans`; remove and return the unknown containers.

    Raises google.protobuf.message.DecodeError if field 1000 does not contain ScopeSpans.
    """
    unknown = _in_message(data, "")
    has_old = False
    for r, resource in enumerate(data.resource_spans):
        where = f"resourceSpans[{r}]"
        if len(UnknownFieldSet(resource)):
            old = [each.data for each in _fields_of(resource) if _is_old(each)]
            unknown += _in_message(resource, where)
            has_old = has_old or bool(old)
            for scope_spans in old:
                resource.scope_spans.add().MergeFromString(scope_spans)
        for s, scope in enumerate(resource.scope_spans):
            unknown += _in_message(scope, f"{where}.scopeSpans[{s}]")
            for n, span in enumerate(scope.spans):
                if len(UnknownFieldSet(span)):
                    unknown += _in_message(span, f"{where}.scopeSpans[{s}].spans[{n}]")
    if unknown or has_old:
        data.DiscardUnknownFields()  # otherwise a decoding of a part of the payload counts them again
    return unknown


def in_parts(
    payload: bytes, resources: Iterable[Any], scopes: Iterable[Any], spans: Iterable[Any]
) -> list[UnknownContainer]:
    """Remove and return the unknown containers of a payload that was decoded in parts. Raises WireError if the payload
    is no valid message."""
    remaining, _ = split_field(memoryview(payload), (1,), 0)
    unknown = []
    with suppress(ProtobufDecodeError):
        unknown += _in_message(pb.TracesData.FromString(remaining), "")
    for where, messages_ in (("resourceSpans", resources), ("scopeSpans", scopes), ("spans", spans)):
        for message in messages_:
            if in_message := _in_message(message, where):
                unknown += in_message
                message.DiscardUnknownFields()
    return unknown


def has_old_names(payload: bytes) -> bool:
    """Return whether a protobuf payload may hold field 1000 of ResourceSpans."""
    return OLD_SCOPE_SPANS_TAG in payload


def _in_message(message: Any, where: str) -> list[UnknownContainer]:
    unknown = []
    for each in _fields_of(message):
        is_old = _is_old(each) and isinstance(message, pb.ResourceSpans)
        if each.wire_type == _LENGTH_DELIMITED and not is_old:
            spans = _count_messages(each.data, isinstance(message, pb.Span))
            if spans:
                unknown.append(UnknownContainer(where, f"field {each.field_number}", spans))
    return unknown


def _fields_of(message: Any) -> list[Any]:
    fields = UnknownFieldSet(message)
    return [fields[i] for i in range(len(fields))]


def _is_old(field: Any) -> bool:
    return bool(field.field_number == OLD_SCOPE_SPANS_FIELD and field.wire_type == _LENGTH_DELIMITED)


def _count_messages(data: bytes, is_in_span: bool) -> int:
    """Count the spans in an unknown field. Outside a span, a message without recognizable spans counts as 1."""
    if not is_message(data):
        return 0  # text or empty
    candidates: list[Any] = []
    for kind in (pb.Span, pb.ScopeSpans, pb.ResourceSpans):
        with suppress(ProtobufDecodeError):
            message = kind.FromString(data)
            candidates.append(list(_spans_of(message)))
    spans = max((sum(map(_is_span, each)) for each in candidates), default=0)
    return spans or int(not is_in_span)


def _spans_of(message: Any) -> Iterable[Any]:
    match message:
        case pb.Span():
            return [message]
        case pb.ScopeSpans():
            return message.spans
    return [span for scope in message.scope_spans for span in scope.spans]


def _is_span(span: Any) -> bool:
    return bool(len(span.trace_id) == 16 and len(span.span_id) == 8 and span.start_time_unix_nano)
