"""AnyValue ⇄ text and one letter that says its type.

| letter | value | text |
|---|---|---|
| s | string | as it is |
| i | int | decimal |
| d | double | shortest that reads back as the same number; NaN, Infinity, -Infinity |
| b | bool | true, false |
| x | bytes | base64 |
| j | array, kvlist | plain JSON; a number with '.' or 'e' is a double; null is an AnyValue without a value |
| p | array, kvlist that plain JSON cannot hold | base64 of the protobuf AnyValue |
| n | AnyValue without a value | empty |
| - | the attribute has no AnyValue at all | empty |

A capital, or + for -, says the same of an attribute whose key was there before, see repeats.py.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec
from opentelemetry.proto.common.v1 import common_pb2 as pb

from tracelake.limits import OTLP_NESTING_MAX
from tracelake.otlp.messages import Message

READABLE: Final = frozenset("sidbj")
"""Letters of values whose text means something to a person."""


class RefusedError(ValueError):
    """A part of a payload that cannot be taken; says which field and why, and of which span where known."""

    def __init__(self, reason: str, identity: str = "") -> None:
        super().__init__(reason)
        self.identity = identity


class _NotPlainError(Exception):
    """A nested value that plain JSON cannot hold."""


def to_text(entry: Message) -> tuple[str, str]:  # noqa: PLR0911 - one for each letter
    """Return text and letter of a KeyValue's value. Raises RefusedError where it is nested too deeply."""
    if not entry.HasField("value"):
        return "", "-"
    value = entry.value
    kind = value.WhichOneof("value")
    match kind:
        case "string_value":
            return value.string_value, "s"
        case "int_value":
            return str(value.int_value), "i"
        case "double_value":
            return double_text(value.double_value), "d"
        case "bool_value":
            return "true" if value.bool_value else "false", "b"
        case "bytes_value":
            return b64encode(value.bytes_value).decode(), "x"
        case None:
            return "", "n"
        case _:
            return _nested_text(value)


def double_text(number: float) -> str:
    """Return a double as OTLP/JSON and `float()` both read it."""
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def from_text(text: str, letter: str, entry: pb.KeyValue) -> None:
    """Set the value of `entry` to what `to_text` was given."""
    match letter:
        case "s":
            entry.value.string_value = text
        case "i":
            entry.value.int_value = int(text)
        case "d":
            entry.value.double_value = float(text)
        case "b":
            entry.value.bool_value = text == "true"
        case "x":
            entry.value.bytes_value = b64decode(text)
        case "j":
            _set_plain(entry.value, msgspec.json.decode(text))
        case "p":
            entry.value.ParseFromString(b64decode(text))
        case "n":
            entry.value.SetInParent()
        case _:
            assert letter == "-", letter


def _nested_text(value: Message) -> tuple[str, str]:
    _check_nesting(value, 0)
    try:
        return msgspec.json.encode(_plain(value)).decode(), "j"
    except _NotPlainError:
        return b64encode(to_protobuf(value).SerializeToString(deterministic=True)).decode(), "p"


def _check_nesting(value: Message, depth: int) -> None:
    kind = value.WhichOneof("value")
    if kind not in ("array_value", "kvlist_value"):
        return
    if depth == OTLP_NESTING_MAX:
        raise RefusedError(f"nested deeper than {OTLP_NESTING_MAX} levels")
    if kind == "array_value":
        for inner in value.array_value.values:
            _check_nesting(inner, depth + 1)
    else:
        for entry in value.kvlist_value.values:
            _check_nesting(entry.value, depth + 1)


def _plain(value: Message) -> Any:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "array_value":
            return [_plain(inner) for inner in value.array_value.values]
        case "kvlist_value":
            members: dict[str, Any] = {}
            for entry in value.kvlist_value.values:
                if entry.key in members or entry.key_strindex or not entry.HasField("value"):
                    raise _NotPlainError
                members[entry.key] = _plain(entry.value)
            return members
        case "double_value" if not math.isfinite(value.double_value):
            raise _NotPlainError
        case "bytes_value" | "string_value_strindex":
            raise _NotPlainError
        case _:
            return getattr(value, kind)


def _set_plain(value: pb.AnyValue, plain: Any) -> None:
    match plain:
        case None:
            pass
        case bool():
            value.bool_value = plain
        case str():
            value.string_value = plain
        case int():
            value.int_value = plain
        case float():
            value.double_value = plain
        case list():
            value.array_value.SetInParent()
            for inner in plain:
                _set_plain(value.array_value.values.add(), inner)
        case _:
            value.kvlist_value.SetInParent()
            for key, inner in plain.items():
                entry = value.kvlist_value.values.add(key=key)
                entry.value.SetInParent()
                _set_plain(entry.value, inner)


def to_protobuf(value: Message) -> pb.AnyValue:
    """Return the value as protobuf, whichever of the two it is."""
    if isinstance(value, pb.AnyValue):
        return value
    message = pb.AnyValue()
    kind = value.WhichOneof("value")
    if kind == "array_value":
        message.array_value.SetInParent()
        message.array_value.values.extend(to_protobuf(inner) for inner in value.array_value.values)
    elif kind == "kvlist_value":
        message.kvlist_value.SetInParent()
        for entry in value.kvlist_value.values:
            added = message.kvlist_value.values.add(key=entry.key, key_strindex=entry.key_strindex)
            if entry.HasField("value"):
                added.value.CopyFrom(to_protobuf(entry.value))
    elif kind is not None:
        setattr(message, kind, getattr(value, kind))
    return message
