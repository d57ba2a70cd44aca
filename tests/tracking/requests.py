"""Requests for tests of the tracking store."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.otlp.partition import take_apart
from tracelake.tracking.store import TracedRequest


def trace_id(number: int) -> str:
    """Return the id of a trace."""
    return f"{number:032x}"


def payload(
    *spans: tuple[int, int], text: str = "", end_ns: int = 2_000, workspace: str | None = None
) -> bytes:
    """Return a request with spans of (trace, span); the first span of a trace is its root, number 1."""
    data = pb.TracesData()
    resource = data.resource_spans.add(schema_url="https://resource")
    resource.resource.attributes.add(key="service.name").value.string_value = "checkout"
    if workspace is not None:
        resource.resource.attributes.add(key="tracelake.workspace").value.string_value = workspace
    scope = resource.scope_spans.add(schema_url="https://scope")
    scope.scope.name = "tests"
    for trace, span in spans:
        added = scope.spans.add(
            trace_id=bytes.fromhex(trace_id(trace)),
            span_id=span.to_bytes(8),
            name=f"span {span}",
            start_time_unix_nano=1_000 + span,
            end_time_unix_nano=end_ns,
            flags=257,
            trace_state="a=b",
            dropped_attributes_count=3,
        )
        if span != 1:
            added.parent_span_id = (1).to_bytes(8)
        added.attributes.add(key="input.value").value.string_value = text
    return data.SerializeToString()


def request(
    *spans: tuple[int, int], text: str = "", end_ns: int = 2_000, workspace: str | None = None
) -> TracedRequest:
    """Return a request of such spans."""
    body = payload(*spans, text=text, end_ns=end_ns, workspace=workspace)
    return TracedRequest("protobuf", body, take_apart("protobuf", body))


def span_numbers(data: bytes) -> list[int]:
    """Return the numbers of spans in a message, in order."""
    spans: Sequence[pb.Span] = [
        span
        for resource in pb.TracesData.FromString(data).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    return sorted(int.from_bytes(span.span_id) for span in spans)
