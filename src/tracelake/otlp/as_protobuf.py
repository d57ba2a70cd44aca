"""Messages as protobuf, whichever of the two encodings they came in: each on its own, without what is around it."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.otlp import values
from tracelake.otlp.messages import Message
from tracelake.otlp.names import KINDS, STATUSES


def resource_head(message: Message) -> pb.ResourceSpans:
    """Return resource and schema URL of a ResourceSpans that was taken, without its scopes."""
    head = pb.ResourceSpans(schema_url=message.schema_url)
    if message.HasField("resource"):
        head.resource.CopyFrom(_resource(message.resource))
    return head


def scope_head(message: Message) -> pb.ScopeSpans:
    """Return scope and schema URL of a ScopeSpans that was taken, without its spans."""
    head = pb.ScopeSpans(schema_url=message.schema_url)
    if message.HasField("scope"):
        head.scope.CopyFrom(_scope(message.scope))
    return head


def span(message: Message) -> pb.Span:
    """Return a span that was taken."""
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
    # The stubs allow only numbers with a name; the wire allows all.
    setattr(data, "kind", KINDS.number(KINDS[message.kind]))  # noqa: B010
    if message.status is not None:
        data.status.message = message.status.message
        data.status.SetInParent()
        setattr(data.status, "code", STATUSES.number(STATUSES[message.status.code]))  # noqa: B010
    return data


def _event(message: Message) -> pb.Span.Event:
    return pb.Span.Event(
        time_unix_nano=message.time_unix_nano,
        name=message.name,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
    )


def _link(message: Message) -> pb.Span.Link:
    return pb.Span.Link(
        trace_id=bytes.fromhex(message.trace_id),
        span_id=bytes.fromhex(message.span_id),
        trace_state=message.trace_state,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
        flags=message.flags,
    )


def _resource(message: Message) -> Resource:
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


def _scope(message: Message) -> common.InstrumentationScope:
    if isinstance(message, common.InstrumentationScope):
        return message
    return common.InstrumentationScope(
        name=message.name,
        version=message.version,
        attributes=_attributes(message.attributes),
        dropped_attributes_count=message.dropped_attributes_count,
    )


def _attributes(entries: Iterable[Message]) -> list[common.KeyValue]:
    return [
        common.KeyValue(
            key=entry.key,
            key_strindex=entry.key_strindex,
            value=values.to_protobuf(entry.value) if entry.HasField("value") else None,
        )
        for entry in entries
    ]
