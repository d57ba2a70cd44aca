"""OTLP/JSON as msgspec structs, and conversion between AnyValue and a text with a type letter.

The structs have the field names and the few methods of the protobuf messages. Code after the decoding reads both by
duck typing. No field may be null: a null in the text fails the fast decode, and the careful pass of `decode.py` drops
nulls before it tries again. Source: opentelemetry-proto v1 (trace.proto, common.proto, resource.proto).

| letter | value | text |
|---|---|---|
| s | string | unchanged |
| i | int | decimal |
| d | double | shortest that reads back as the same number; NaN, Infinity, -Infinity |
| b | bool | true, false |
| x | bytes | base64 |
| j | array, kvlist | plain JSON; a number with '.' or 'e' is a double; null is an AnyValue without a value |
| r | array, kvlist that plain JSON cannot represent | readable JSON, see `Exceptions` |
| p | the same in lakes written by earlier versions | base64 of the protobuf AnyValue |
| n | AnyValue without a value | empty |
| - | no AnyValue at all | empty |

An owner may have the same key twice, against OTLP's rule, but DuckDB and Spark refuse such maps. The second `retry` is
therefore stored as `retry#2`, with a capital type letter, or `+` for `-`.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct, field
from opentelemetry.proto.common.v1 import common_pb2 as pb

from tracelake.limits import OTLP_NESTING_MAX

Message: TypeAlias = Any
"""A protobuf message, or a struct of this module with the same field names."""

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Nanoseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]

VALUE_FIELDS: Final = (
    "string_value",
    "bool_value",
    "int_value",
    "double_value",
    "array_value",
    "kvlist_value",
    "bytes_value",
    "string_value_strindex",
)
"""The members of AnyValue's oneof."""


class _Json(Struct, rename="camel", gc=False):
    """A struct with protobuf's `HasField`."""

    def HasField(self, name: str) -> bool:  # noqa: N802 - the name that protobuf gives it
        """Return whether the text contained a field that has presence."""
        return getattr(self, name) is not None


class AnyValue(_Json):
    """An attribute value. At most one field is set."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Int64 | None = None
    double_value: float | None = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: bytes | None = None
    string_value_strindex: Int32 | None = None

    def WhichOneof(self, _group: str) -> str | None:  # noqa: N802 - the name that protobuf gives it
        """Return the name of the field that is set, or None."""
        return next((name for name in VALUE_FIELDS if getattr(self, name) is not None), None)


class ArrayValue(_Json):
    """A list of values."""

    values: list[AnyValue] = []


class KeyValueList(_Json):
    """A map as a list of pairs."""

    values: list[KeyValue] = []


_ABSENT: Final = AnyValue()


class KeyValue(_Json):
    """One attribute."""

    key: str = ""
    value: AnyValue = field(default_factory=lambda: _ABSENT)
    key_strindex: Int32 = 0

    def HasField(self, _name: str) -> bool:  # noqa: N802 - the name that protobuf gives it
        """Return whether the text contained `value`, the only field with presence."""
        return self.value is not _ABSENT


class Status(_Json):
    """The status of a span."""

    message: str = ""
    code: Int32 | str = 0


class Event(_Json):
    """An event during a span."""

    time_unix_nano: Nanoseconds = 0
    name: str = ""
    attributes: list[KeyValue] = []
    dropped_attributes_count: UInt32 = 0


class Link(_Json):
    """A reference to another span. Ids are hex."""

    trace_id: str = ""
    span_id: str = ""
    trace_state: str = ""
    attributes: list[KeyValue] = []
    dropped_attributes_count: UInt32 = 0
    flags: UInt32 = 0


class Span(_Json):
    """One span. Ids are hex."""

    trace_id: str = ""
    span_id: str = ""
    trace_state: str = ""
    parent_span_id: str | None = ""
    flags: UInt32 = 0
    name: str = ""
    kind: Int32 | str = 0
    start_time_unix_nano: Nanoseconds = 0
    end_time_unix_nano: Nanoseconds = 0
    attributes: list[KeyValue] = []
    dropped_attributes_count: UInt32 = 0
    events: list[Event] = []
    dropped_events_count: UInt32 = 0
    links: list[Link] = []
    dropped_links_count: UInt32 = 0
    status: Status | None = None


class EntityRef(_Json):
    """Reference to the resource attributes that identify an entity."""

    schema_url: str = ""
    type: str = ""
    id_keys: list[str] = []
    description_keys: list[str] = []


class Resource(_Json):
    """The emitter of the spans."""

    attributes: list[KeyValue] = []
    dropped_attributes_count: UInt32 = 0
    entity_refs: list[EntityRef] = []


class Scope(_Json):
    """The instrumentation scope of the spans."""

    name: str = ""
    version: str = ""
    attributes: list[KeyValue] = []
    dropped_attributes_count: UInt32 = 0


class ScopeSpans(_Json):
    """Spans of one scope."""

    scope: Scope | None = None
    spans: list[Span] = []
    schema_url: str = ""


class InstrumentationLibrarySpans(_Json):
    """Spans of one scope, under the names of OTLP before 0.15."""

    scope: Scope | None = field(default=None, name="instrumentationLibrary")
    spans: list[Span] = []
    schema_url: str = ""


class ResourceSpans(_Json):
    """Spans of one resource."""

    resource: Resource | None = None
    scope_spans: list[ScopeSpans] = []
    schema_url: str = ""
    instrumentation_library_spans: list[InstrumentationLibrarySpans] = []


class TracesData(_Json):
    """One payload. TracesData and ExportTraceServiceRequest have the same shape."""

    resource_spans: list[ResourceSpans] = []


class _StrictSpan(Span, forbid_unknown_fields=True):
    pass


class _StrictScopeSpans(ScopeSpans, forbid_unknown_fields=True):
    spans: list[_StrictSpan] = []  # type: ignore[assignment]


class _StrictResourceSpans(ResourceSpans, forbid_unknown_fields=True):
    scope_spans: list[_StrictScopeSpans] = []  # type: ignore[assignment]


class StrictTracesData(_Json, forbid_unknown_fields=True):
    """A payload without unknown fields in containers and spans. Any other payload fails to decode."""

    resource_spans: list[_StrictResourceSpans] = []


READABLE: Final = frozenset("sidbjr")
"""Letters of values whose text is readable for a person."""


class RefusedError(ValueError):
    """A part of a payload is refused. The message names the field and the reason, and the span if it is known."""

    def __init__(self, reason: str, identity: str = "") -> None:
        super().__init__(reason)
        self.identity = identity


Exceptions: TypeAlias = dict[str, list[Any]]
"""The nodes of a value that its JSON does not represent exactly, by kind and number.

Nodes are counted from 0 in preorder.

| kind | node | in JSON |
|---|---|---|
| `-` | an entry of a kvlist without a value | null |
| `x` | bytes | base64 |
| `d` | a double that is not finite | "NaN", "Infinity", "-Infinity" |
| `t` | an index into a table of strings | a number |
| `k` | [number, key, index of the key]: an entry that repeats an earlier key, or has a key index | another key |
"""


def to_text(entry: Message) -> tuple[str, str, Exceptions | None]:  # noqa: PLR0911 - one for each letter
    """Return the text, letter and exceptions of a KeyValue's value; exceptions exist for letter `r` only.

    Raises RefusedError for a value that is nested too deeply.
    """
    if not entry.HasField("value"):
        return "", "-", None
    value = entry.value
    kind = value.WhichOneof("value")
    match kind:
        case "string_value":
            return value.string_value, "s", None
        case "int_value":
            return str(value.int_value), "i", None
        case "double_value":
            return double_text(value.double_value), "d", None
        case "bool_value":
            return "true" if value.bool_value else "false", "b", None
        case "bytes_value":
            return b64encode(value.bytes_value).decode(), "x", None
        case None:
            return "", "n", None
        case _:
            return _nested_text(value)


def double_text(number: float) -> str:
    """Return a double as text that OTLP/JSON and `float()` both read."""
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def from_text(text: str, letter: str, exceptions: Exceptions | None, entry: pb.KeyValue) -> None:
    """Set the value of `entry` from the output of `to_text`."""
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
            _PlainReader({}).read(entry.value, msgspec.json.decode(text))
        case "r":
            _PlainReader(exceptions or {}).read(entry.value, msgspec.json.decode(text))
        case "p":
            entry.value.ParseFromString(b64decode(text))
        case "n":
            entry.value.SetInParent()
        case _:
            assert letter == "-", letter


def _nested_text(value: Message) -> tuple[str, str, Exceptions | None]:
    _check_nesting(value, 0)
    writer = _PlainWriter()
    text = msgspec.json.encode(writer.plain(value)).decode()
    return (text, "r", writer.exceptions) if writer.exceptions else (text, "j", None)


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


class _PlainWriter:
    """Converts one value to plain JSON, and collects the nodes that JSON does not represent exactly."""

    def __init__(self) -> None:
        self.exceptions: Exceptions = {}
        self._nodes = 0

    def plain(self, value: Message) -> Any:
        """Return a value as plain JSON."""
        kind = value.WhichOneof("value")
        node, self._nodes = self._nodes, self._nodes + 1
        match kind:
            case None:
                return None
            case "array_value":
                return [self.plain(inner) for inner in value.array_value.values]
            case "kvlist_value":
                return self._members(value.kvlist_value.values)
            case "double_value" if not math.isfinite(value.double_value):
                self._note("d", node)
                return double_text(value.double_value)
            case "bytes_value":
                self._note("x", node)
                return b64encode(value.bytes_value).decode()
            case "string_value_strindex":
                self._note("t", node)
        return getattr(value, kind)

    def _members(self, entries: Iterable[Message]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        repeats: dict[str, int] = {}
        for entry in entries:
            key = entry.key
            if key in members or entry.key_strindex:
                self._note("k", [self._nodes, key, entry.key_strindex])
            while key in members:
                repeats[entry.key] = repeats.get(entry.key, 1) + 1
                key = f"{entry.key}#{repeats[entry.key]}"
            if entry.HasField("value"):
                members[key] = self.plain(entry.value)
            else:
                self._note("-", self._nodes)
                self._nodes += 1
                members[key] = None
        return members

    def _note(self, kind: str, node: Any) -> None:
        self.exceptions.setdefault(kind, []).append(node)


class _PlainReader:
    """Converts plain JSON with its exceptions back to one value."""

    def __init__(self, exceptions: Exceptions) -> None:
        self._kinds = {node: kind for kind in "xdt" for node in exceptions.get(kind, ())}
        self._absent = frozenset(exceptions.get("-", ()))
        self._keys = {node: (key, index) for node, key, index in exceptions.get("k", ())}
        self._nodes = 0

    def read(self, value: pb.AnyValue, plain: Any) -> None:
        """Set a value from plain JSON."""
        node, self._nodes = self._nodes, self._nodes + 1
        match self._kinds.get(node):
            case "x":
                value.bytes_value = b64decode(plain)
                return
            case "d":
                value.double_value = float(plain)
                return
            case "t":
                value.string_value_strindex = plain
                return
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
                    self.read(value.array_value.values.add(), inner)
            case _:
                value.kvlist_value.SetInParent()
                for key, inner in plain.items():
                    self._read_entry(value.kvlist_value.values.add(), key, inner)

    def _read_entry(self, entry: pb.KeyValue, key: str, plain: Any) -> None:
        entry.key, entry.key_strindex = self._keys.get(self._nodes, (key, 0))
        if self._nodes in self._absent:
            self._nodes += 1
            return
        entry.value.SetInParent()
        self.read(entry.value, plain)


def types_tail(exceptions: list[Exceptions]) -> str:
    """Return the suffix after an owner's type letters: the exceptions of its values with letter `r`, in order."""
    return msgspec.json.encode(exceptions).decode() if exceptions else ""


def exceptions_of(types: str | None, count: int) -> Iterator[Exceptions]:
    """Return the exceptions of an owner with `count` attributes: the inverse of `types_tail`."""
    tail = (types or "")[count:]
    return iter(msgspec.json.decode(tail) if tail else [])


def to_protobuf(value: Message) -> pb.AnyValue:
    """Return a protobuf or JSON value as protobuf."""
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


_MARKED: Final = {letter: letter.upper() for letter in "sidbxjrpn"} | {"-": "+"}
_PLAIN: Final = {marked: letter for letter, marked in _MARKED.items()}


def mark_repeats(keys: list[str], counts: Sequence[int], letters: Sequence[str] | None) -> list[str] | None:
    """Rename a repeated attribute key to `key#2`, `key#3`, … in place, because maps have no repeated keys.

    Args:
        keys: the attribute keys of all spans, one span after another.
        counts: the number of keys of each span.
        letters: the type letter of each key, or None if all values are strings.

    Returns:
        The letters, where a capital marks a renamed key for `unmark`; None if no key repeats.
    """
    changed: list[str] | None = None
    start = 0
    for count in counts:
        end = start + count
        if count > 1 and len(set(keys[start:end])) != count:
            changed = changed or list(letters or "s" * len(keys))
            _mark_owner(keys, changed, start, end)
        start = end
    return changed


def _mark_owner(keys: list[str], letters: list[str], start: int, end: int) -> None:
    used = set(keys[start:end])
    previous: set[str] = set()
    numbers: dict[str, int] = {}
    for at in range(start, end):
        key = keys[at]
        if key not in previous:
            previous.add(key)
            continue
        number = numbers.get(key, 1) + 1
        while f"{key}#{number}" in used:
            number += 1
        numbers[key] = number
        keys[at] = f"{key}#{number}"
        used.add(keys[at])
        letters[at] = _MARKED[letters[at]]


def unmark(key: str, letter: str) -> tuple[str, str]:
    """Return the original key and letter."""
    if letter in _PLAIN:
        return key[: key.rindex("#")], _PLAIN[letter]
    return key, letter
