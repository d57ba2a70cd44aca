"""OTLP/JSON as msgspec structs, with the field names and the few methods of the protobuf messages.

Code after the decoding reads both by duck typing. No field may be null: a null in the text fails the fast decode, and
the careful pass of `decode.py` drops nulls before it tries again.

Source: opentelemetry-proto v1 (trace.proto, common.proto, resource.proto), OTLP/JSON encoding.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct, field

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
