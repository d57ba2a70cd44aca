"""Puts the spans of a request into one workspace: resources that name none get it, others are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.conventions import WORKSPACE
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.encode import encode
from tracelake.otlp.framing import Format

_LEFT_OUT: Final = "{} spans name another workspace than {!r}, into which this key writes"


@dataclass(frozen=True, slots=True)
class Placed:
    """A request as protobuf, of one workspace, and why spans were left out of it; None where none were."""

    payload: bytes
    left_out: str | None


def placed(format: Format, payload: bytes, workspace: str) -> Placed:
    """Return a request, which was decoded once, in one workspace."""
    data = _message(format, payload)
    stay, others = [], 0
    for resource_spans in data.resource_spans:
        attributes = resource_spans.resource.attributes
        names = [each.value for each in attributes if each.key == WORKSPACE]
        if not names:
            attributes.add(key=WORKSPACE).value.string_value = workspace
        if all(name.HasField("string_value") and name.string_value == workspace for name in names):
            stay.append(resource_spans)
        else:
            others += sum(len(scope.spans) for scope in resource_spans.scope_spans)
    return Placed(
        TracesData(resource_spans=stay).SerializeToString(),
        _LEFT_OUT.format(others, workspace) if others else None,
    )


def _message(format: Format, payload: bytes) -> TracesData:
    if format == "protobuf":
        try:
            return TracesData.FromString(payload)
        except DecodeError:
            pass  # what can be taken of it is
    columns = SpanColumns()
    (decode_json if format == "json" else decode_protobuf)(payload, columns)
    return encode(columns.take())
