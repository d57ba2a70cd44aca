"""Puts the spans of a request into one workspace: resources that name none get it, others are left out.

It goes from message to message, and never through rows, which repeat a resource for each span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.otlp import as_protobuf
from tracelake.otlp.columns import SpanChecks
from tracelake.otlp.containers import take_old_names
from tracelake.otlp.conventions import WORKSPACE
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.dialects import Dialect
from tracelake.otlp.framing import Format
from tracelake.otlp.messages import Message

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
    if others:
        data = pb.TracesData(resource_spans=stay)
    return Placed(
        data.SerializeToString(),
        _LEFT_OUT.format(others, workspace) if others else None,
    )


class _Groups(SpanChecks):
    """Takes spans as `SpanChecks` does, and puts them into one message, by resource and scope as they came."""

    def _begin(self) -> None:
        super()._begin()
        self.data = pb.TracesData()
        self._of_resource: list[pb.ResourceSpans] = []
        self._of_scope: list[pb.ScopeSpans] = []

    def add_resource(self, resource_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_resource(resource_spans)
        self.data.resource_spans.append(as_protobuf.resource_head(resource_spans))
        self._of_resource.append(self.data.resource_spans[-1])
        return number

    def add_scope(self, resource: int, scope_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_scope(resource, scope_spans)
        scopes = self._of_resource[resource].scope_spans
        scopes.append(as_protobuf.scope_head(scope_spans))
        self._of_scope.append(scopes[-1])
        return number

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """See `SpanChecks`."""
        super().add_spans(scope, spans, dialect)
        self._of_scope[scope].spans.extend(map(as_protobuf.span, spans))


def _message(format: Format, payload: bytes) -> pb.TracesData:
    if format == "protobuf":
        try:
            data = pb.TracesData.FromString(payload)
            take_old_names(data)
            return data
        except DecodeError:
            pass  # what can be taken of it is
    groups = _Groups()
    (decode_json if format == "json" else decode_protobuf)(payload, groups)
    return groups.data
