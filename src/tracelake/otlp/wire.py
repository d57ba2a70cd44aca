"""Walks the wire format of a protobuf payload, so that a span that does not parse is refused alone.

Source: Protocol Buffers, Encoding. Groups (wire types 3 and 4) are not in OTLP: one is passed over with all that it
holds, as protobuf's own parser does. What that takes, this must walk: else a group hides what comes behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor


class WireError(ValueError):
    """Bytes that are not protobuf, or that stop too early; says at which byte."""


def split_field(
    data: memoryview, numbers: Collection[int], base: int
) -> tuple[bytes, list[tuple[int, memoryview]]]:
    """Return the message without the sub-messages of some fields, and those with the offsets where they begin.

    `base` is the offset of `data` in the payload, for messages. Raises WireError.
    """
    rest = bytearray()
    values = []
    for field, start, value, end in _fields(data, base):
        if field in numbers:
            values.append((base + value, data[value:end]))
        else:
            rest += data[start:end]
    return bytes(rest), values


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

    It passes over what is damaged. One flat loop: this walks millions of fields while others wait.
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


def tables_of(kind: Descriptor, known: dict[str, Tables]) -> Tables:
    """Return the tags of all sub-messages of a kind of message. `known` is filled with those of other kinds."""
    if kind.full_name not in known:
        table = known[kind.full_name] = {}
        for field in kind.fields:
            if field.message_type is not None:
                table[field.number << 3 | 2] = tables_of(field.message_type, known)
    return known[kind.full_name]


def replace_bad_text(data: memoryview, kind: Descriptor) -> bytes:
    """Return a message with U+FFFD in place of each byte that is not UTF-8 in its texts. Raises WireError."""
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
    """Yield (field number or 0 where it is no sub-message, start, start of the value, end)."""
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
                f"truncated: the field at byte {base + field} ends at byte {base + position}, "
                f"but only {base + len(data)} bytes are there"
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
