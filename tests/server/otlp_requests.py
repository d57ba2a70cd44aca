"""OTLP requests like those of clients."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def export_request(*span_ids: int, trace_id: int = 1, text: str = "hello") -> ExportTraceServiceRequest:
    """Return a request with these spans of one trace; span id 0 makes an invalid span."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add()
    for span_id in span_ids:
        span = scope.spans.add(
            trace_id=trace_id.to_bytes(16),
            span_id=span_id.to_bytes(8),
            name=f"step {span_id}",
            start_time_unix_nano=1_760_000_000_000_000_000,
            end_time_unix_nano=1_760_000_001_000_000_000,
        )
        span.attributes.add(key="text").value.string_value = text
    return request
