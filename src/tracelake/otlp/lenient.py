"""The careful pass over a payload that the fast decoder refused: span by span, so that good ones are kept.

What cannot be decoded stands as a RefusedError in the place of the message. Whatever recurses here has a bound
before it begins: JSON comes pruned (`depth.py`), and protobuf's own parser goes 100 messages deep.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake._errors import DecodeError
from tracelake.limits import OTLP_JSON_NUMBER_MAX_CHARS
from tracelake.otlp import messages
from tracelake.otlp.containers import OLD_SCOPE_SPANS, OLD_SCOPE_SPANS_FIELD
from tracelake.otlp.messages import Message
from tracelake.otlp.values import RefusedError
from tracelake.otlp.wire import WireError, replace_bad_text, split_field


@dataclass(frozen=True, slots=True)
class ScopeGroup:
    """A ScopeSpans and its spans, each decoded or refused."""

    header: Message | RefusedError
    spans: list[Message | RefusedError]


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A ResourceSpans, decoded or refused, and its scopes."""

    header: Message | RefusedError
    scopes: list[ScopeGroup]


def split_protobuf(payload: bytes, notes: list[str]) -> list[ResourceGroup]:
    """Decode each span on its own. Raises DecodeError where the frame of the payload is damaged.

    `notes` gets a sentence about each part that is taken with replaced bytes.
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
            f"the {kind.__name__} of {len(data)} bytes from byte {offset} has text that is not UTF-8: it is taken "
            "with U+FFFD in place of the wrong bytes"
        )
        return message
    return RefusedError(
        f"the {len(data)} bytes from byte {offset} are no protobuf {kind.__name__}: damaged, or nested too deeply"
    )


def split_json(payload: bytes) -> list[ResourceGroup]:
    """Decode each span of pruned JSON on its own. Raises DecodeError where it is no JSON, or not of that shape."""
    return json_groups(parse_json(payload))


def json_groups(data: Any) -> list[ResourceGroup]:
    """Decode each span of parsed JSON on its own. Raises DecodeError where it has another shape."""
    if not isinstance(data, dict):
        raise DecodeError(f"not OTLP: {_json_type(data)}, must be an object with resourceSpans")
    if data and "resourceSpans" not in data:  # metrics, say: nothing is passed over in silence
        raise DecodeError(f"not OTLP traces: no resourceSpans in it, but {ascii(', '.join(data))[1:-1]:.100}")
    return [_json_resource(item) for item in _list_of(data, "resourceSpans")]


def _json_resource(data: Any) -> ResourceGroup:
    scopes = [_json_scope(item, messages.ScopeSpans) for item in _list_of(data, "scopeSpans")]
    old = _list_of(data, OLD_SCOPE_SPANS)
    scopes += [_json_scope(item, messages.InstrumentationLibrarySpans) for item in old]
    header = {key: value for key, value in data.items() if key not in ("scopeSpans", OLD_SCOPE_SPANS)}
    return ResourceGroup(_convert(messages.ResourceSpans, header), scopes)


def _json_scope(data: Any, kind: type[Message]) -> ScopeGroup:
    spans = [_convert(messages.Span, item, _identity(item)) for item in _list_of(data, "spans")]
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
    # Without the quotes of ascii(), which escapes what a log line cannot hold.
    return " (trace {:.64}, span {:.64})".format(*(ascii(str(value))[1:-1] for value in ids))


def _convert(kind: type[Message], data: Any, identity: str = "") -> Message | RefusedError:
    try:
        return msgspec.convert(_cleaned(data), kind, strict=False)
    except msgspec.ValidationError as error:
        return RefusedError(str(error), identity)


_HALF_PAIR: Final = type("half of a surrogate pair", (), {})()
"""Stands for text that is not Unicode. No field takes it, and the error names its type; unknown fields may have it."""


def _cleaned(data: Any) -> Any:
    """Drop nulls, which mean absent; allow all base64 alphabets; mark text that is not Unicode."""
    match data:
        case dict():
            return {
                key: _base64(_cleaned(value)) if key == "bytesValue" else _cleaned(value)
                for key, value in data.items()
                if value is not None and _is_unicode(key)  # no field has such a name
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
    """Parse pruned JSON. Raises DecodeError."""
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
        raise DecodeError(f"neither JSON nor UTF-8: byte {error.start} is wrong") from None


def replace_bad_bytes(payload: bytes) -> tuple[bytes, list[str]]:
    """Return JSON with U+FFFD in place of each byte that is not UTF-8, and a sentence about them if there are any."""
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        repaired = payload.decode("utf-8", "replace").encode()
        count = repaired.count(_REPLACEMENT) - payload.count(_REPLACEMENT)
        note = (
            f"{count} places are not UTF-8, the first at byte {error.start}: the text is taken with U+FFFD in place of "
            "the wrong bytes"
        )
        return repaired, [note]
    return payload, []


_REPLACEMENT: Final = "\ufffd".encode()


def _parse_int(digits: str) -> int | float:
    # Python refuses to convert thousands of digits; no field of OTLP holds them either.
    return int(digits) if len(digits) <= OTLP_JSON_NUMBER_MAX_CHARS else float(digits)


_loads: Final[Callable[[str], Any]] = json.JSONDecoder(parse_int=_parse_int).decode
