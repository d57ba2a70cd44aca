"""Encoder of rows as OTLP messages and OTLP/JSON: the inverse of `columns.py`.

It also converts single decoded messages, protobuf or JSON, to protobuf: a resource or scope without its children, or
a span. The JSON follows the OTLP specification, JSON Protobuf Encoding. Ids are hex, enums are numbers, 64-bit
integers are strings, names are lowerCamelCase, and default values are omitted.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.otlp import values
from tracelake.otlp.schema import KINDS, STATUSES
from tracelake.otlp.values import Message as OtlpMessage
from tracelake.otlp.values import double_text, exceptions_of, from_text, unmark
from tracelake.results import Row

_IDS: Final = frozenset(("trace_id", "span_id", "parent_span_id"))
_INT64: Final = frozenset(
    (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
)


def encode(rows: pa.Table | pa.RecordBatch) -> pb.TracesData:
    """Return the spans as one message. `rows` needs the columns of SPANS; other columns are ignored.

    Spans with the same resource, scope and schema URLs form one group, in row order. Resources and scopes come in
    order of first appearance.
    """
    data = pb.TracesData()
    resources: dict[Any, pb.ResourceSpans] = {}
    scopes: dict[Any, pb.ScopeSpans] = {}
    for row in rows.to_pylist():
        resource_key = _resource_key(row)
        scope_key = (resource_key, _scope_key(row))
        if scope_key not in scopes:
            if resource_key not in resources:
                resources[resource_key] = data.resource_spans.add()
                _set_resource(resources[resource_key], row)
            scopes[scope_key] = resources[resource_key].scope_spans.add()
            _set_scope(scopes[scope_key], row)
        _set_span(scopes[scope_key].spans.add(), row)
    return data


def _resource_key(row: Row) -> Any:
    otlp = row["otlp"]
    return (
        None if row["resource"] is None else tuple(row["resource"]),
        otlp["resource_types"],
        otlp["resource_dropped_attributes_count"],
        tuple(otlp["resource_entity_refs"] or ()),
        otlp["resource_schema_url"],
    )


def _scope_key(row: Row) -> Any:
    scope = row["scope"]
    url = row["otlp"]["scope_schema_url"]
    return url, scope and tuple(
        tuple(value) if isinstance(value, list) else value for value in scope.values()
    )


def _set_resource(message: pb.ResourceSpans, row: Row) -> None:
    otlp = row["otlp"]
    message.schema_url = otlp["resource_schema_url"] or ""
    if row["resource"] is None:
        return
    refs = [common.EntityRef.FromString(ref) for ref in otlp["resource_entity_refs"] or ()]
    dropped = otlp["resource_dropped_attributes_count"]
    message.resource.CopyFrom(Resource(dropped_attributes_count=dropped, entity_refs=refs))
    _set_attributes(message.resource.attributes, row["resource"], otlp["resource_types"])


def _set_scope(message: pb.ScopeSpans, row: Row) -> None:
    message.schema_url = row["otlp"]["scope_schema_url"] or ""
    scope = row["scope"]
    if scope is None:
        return
    message.scope.SetInParent()
    message.scope.name = scope["name"]
    message.scope.version = scope["version"]
    message.scope.dropped_attributes_count = scope["dropped_attributes_count"]
    _set_attributes(message.scope.attributes, scope["attributes"], scope["attribute_types"])


def _set_span(span: pb.Span, row: Row) -> None:
    otlp = row["otlp"]
    span.trace_id = bytes.fromhex(row["trace_id"])
    span.span_id = bytes.fromhex(row["span_id"])
    span.parent_span_id = bytes.fromhex(row["parent_span_id"] or "")
    span.trace_state = otlp["trace_state"] or ""
    span.flags = otlp["flags"]
    span.name = row["name"]
    _set_enum(span, "kind", KINDS.number(row["kind"]))
    span.start_time_unix_nano = row["start_ns"]
    span.end_time_unix_nano = row["end_ns"]
    _set_attributes(span.attributes, row["attributes"], otlp["attribute_types"])
    span.dropped_attributes_count = otlp["dropped_attributes_count"]
    span.dropped_events_count = otlp["dropped_events_count"]
    span.dropped_links_count = otlp["dropped_links_count"]
    for event in row["events"]:
        message = span.events.add(time_unix_nano=event["time_ns"], name=event["name"])
        message.dropped_attributes_count = event["dropped_attributes_count"]
        _set_attributes(message.attributes, event["attributes"], event["attribute_types"])
    for link in row["links"]:
        _set_link(span.links.add(), link)
    if row["status"] is not None:
        span.status.SetInParent()
        _set_enum(span.status, "code", STATUSES.number(row["status"]))
        span.status.message = row["status_message"] or ""


def _set_link(message: pb.Span.Link, link: Row) -> None:
    message.trace_id = bytes.fromhex(link["trace_id"])
    message.span_id = bytes.fromhex(link["span_id"])
    message.trace_state = link["trace_state"] or ""
    message.flags = link["flags"]
    message.dropped_attributes_count = link["dropped_attributes_count"]
    _set_attributes(message.attributes, link["attributes"], link["attribute_types"])


def _set_enum(message: pb.Span | pb.Status, field: str, number: int) -> None:
    # The type stubs allow only named enum numbers, but the wire format and Tracelake allow all.
    setattr(message, field, number)


def _set_attributes(
    entries: RepeatedCompositeFieldContainer[common.KeyValue],
    attributes: Sequence[tuple[str, str]],
    letters: str | None,
) -> None:
    exceptions = exceptions_of(letters, len(attributes))
    for i, (stored, text) in enumerate(attributes):
        key, letter = unmark(stored, letters[i] if letters else "s")
        from_text(text, letter, next(exceptions) if letter == "r" else None, entries.add(key=key))


def to_json(message: pb.TracesData) -> bytes:
    """Return the message as one line of OTLP/JSON, without the newline."""
    return msgspec.json.encode(_fields(message))


def resource_spans(message: pb.TracesData) -> list[dict[str, Any]]:
    """Return the list `resourceSpans` of the message as OTLP/JSON, to be encoded."""
    return [_fields(each) for each in message.resource_spans]


def _fields(message: Message) -> dict[str, Any]:
    return {
        field.json_name: [_value(field, item) for item in value]
        if field.is_repeated
        else _value(field, value)
        for field, value in message.ListFields()
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Message):
        return _fields(value)
    if isinstance(value, bytes):
        return value.hex() if field.name in _IDS else b64encode(value).decode()
    if field.type in _INT64:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return double_text(value)
    return value


def resource_head(message: OtlpMessage) -> pb.ResourceSpans:
    """Return the resource and schema URL of an accepted ResourceSpans, without its scopes."""
    head = pb.ResourceSpans(schema_url=message.schema_url)
    if message.HasField("resource"):
        head.resource.CopyFrom(_resource(message.resource))
    return head


def scope_head(message: OtlpMessage) -> pb.ScopeSpans:
    """Return the scope and schema URL of an accepted ScopeSpans, without its spans."""
    head = pb.ScopeSpans(schema_url=message.schema_url)
    if message.HasField("scope"):
        head.scope.CopyFrom(_scope(message.scope))
    return head


def span(message: OtlpMessage) -> pb.Span:
    """Return an accepted span as protobuf."""
    if isinstance(message, pb.Span):
        return message
    data = pb.Span(
        trace_id=bytes.fromhex(message.trace_id),
        span_id=bytes.fromhex(message.span_id),
        trace_state=message.trace_state,
        parent_span_id=bytes.fromhex(message.parent_span_id or ""),
        flags=message.flags,
        name=message.name,
        start_time_unix_nano=message.start_time_unix_nano,
        end_time_unix_nano=message.end_time_unix_nano,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
        dropped_events_count=message.dropped_events_count,
        dropped_links_count=message.dropped_links_count,
        events=map(_event, message.events),
        links=map(_link, message.links),
    )
    # The type stubs allow only named enum numbers, but the wire format allows all.
    setattr(data, "kind", KINDS.number(KINDS[message.kind]))  # noqa: B010
    if message.status is not None:
        data.status.message = message.status.message
        data.status.SetInParent()
        setattr(data.status, "code", STATUSES.number(STATUSES[message.status.code]))  # noqa: B010
    return data


def _event(message: OtlpMessage) -> pb.Span.Event:
    return pb.Span.Event(
        time_unix_nano=message.time_unix_nano,
        name=message.name,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
    )


def _link(message: OtlpMessage) -> pb.Span.Link:
    return pb.Span.Link(
        trace_id=bytes.fromhex(message.trace_id),
        span_id=bytes.fromhex(message.span_id),
        trace_state=message.trace_state,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
        flags=message.flags,
    )


def _resource(message: OtlpMessage) -> Resource:
    if isinstance(message, Resource):
        return message
    refs = [
        common.EntityRef(
            schema_url=ref.schema_url,
            type=ref.type,
            id_keys=ref.id_keys,
            description_keys=ref.description_keys,
        )
        for ref in message.entity_refs
    ]
    return Resource(
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
        entity_refs=refs,
    )


def _scope(message: OtlpMessage) -> common.InstrumentationScope:
    if isinstance(message, common.InstrumentationScope):
        return message
    return common.InstrumentationScope(
        name=message.name,
        version=message.version,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
    )


def _attributes(entries: Iterable[OtlpMessage]) -> list[common.KeyValue]:
    return [
        common.KeyValue(
            key=entry.key,
            key_strindex=entry.key_strindex,
            value=values.to_protobuf(entry.value) if entry.HasField("value") else None,
        )
        for entry in entries
    ]
