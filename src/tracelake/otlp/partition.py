"""Partitioner of requests by trace: for each trace, the rows that filters need and its spans as lossless OTLP
`TracesData`.

Concatenated protobuf messages form one message with the fields of both. The bytes of a trace are therefore joined from
serialized resources, scopes and spans, and the parts of several requests can be joined again. Resource and scope appear
once for each trace, not once for each span. A callback receives the resulting size before the bytes are made, so that
it can enforce a limit.

The module also assigns a request to one workspace. Resources that name no workspace get this one; resources of another
workspace are dropped. This converts messages directly, because rows would repeat the resource for each span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from tracelake._errors import InputError
from tracelake.otlp import encode
from tracelake.otlp.columns import SpanChecks, SpanColumns, derive_columns
from tracelake.otlp.conventions import WORKSPACE
from tracelake.otlp.decode import Decoded, decode_json, decode_protobuf
from tracelake.otlp.framing import Format
from tracelake.otlp.parse import Dialect
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.otlp.values import Message
from tracelake.otlp.wire import has_old_names, take_old_names

_PLAIN: Final = ("span_id", "parent_span_id", "name", "kind", "status", "start_ns", "end_ns")
_DERIVED: Final = ("session_id", "user_id", "model", "input_tokens", "output_tokens", "input", "output")
COLUMNS: Final = (*_PLAIN, *_DERIVED, "service", "workspace")
"""The columns of a span's row, in order."""

_SPANS_OF_SCOPE: Final = b"\x12"
_SCOPES_OF_RESOURCE: Final = b"\x12"
_RESOURCES: Final = b"\x0a"
"""Tags of ScopeSpans.spans, ResourceSpans.scope_spans and TracesData.resource_spans."""


@dataclass(slots=True)
class TraceSpans:
    """The spans of one trace: rows of COLUMNS, and a serialized `TracesData`."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    data: bytes = b""


class TracePartitioner(SpanChecks):
    """A `SpanChecks` that stores the rows and bytes of the spans by trace."""

    def _begin(self) -> None:
        super()._begin()
        self.traces: dict[str, TraceSpans] = {}
        self._resource_messages: list[Message] = []
        self._scope_messages: list[Message] = []
        self._spans: dict[str, dict[int, list[Message]]] = {}

    def add_resource(self, resource_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_resource(resource_spans)
        self._resource_messages.append(resource_spans)
        return number

    def add_scope(self, resource: int, scope_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_scope(resource, scope_spans)
        self._scope_messages.append(scope_spans)
        return number

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """Add the spans of one scope. Raises RefusedError, without adding any span, if one is refused."""
        read = self._read(scope, spans, dialect)
        derived = derive_columns(read.attributes, read.events)
        nothing: list[Any] = [None] * len(spans)
        service, workspace = self._resources.names(self._scopes.resources[scope])
        columns = [read.plain[name] for name in _PLAIN] + [derived.get(name) or nothing for name in _DERIVED]
        rows = zip(*columns, [service] * len(spans), [workspace] * len(spans), strict=True)
        trace_ids = read.plain["trace_id"]
        if len(set(trace_ids)) == 1:
            self._add(trace_ids[0], scope, rows, spans)
        else:
            for trace_id, row, span in zip(trace_ids, rows, spans, strict=True):
                self._add(trace_id, scope, (row,), (span,))

    def _add(
        self, trace_id: str, scope: int, rows: Iterable[tuple[Any, ...]], spans: Sequence[Message]
    ) -> None:
        trace = self.traces.get(trace_id)
        if trace is None:
            trace = self.traces[trace_id] = TraceSpans()
            self._spans[trace_id] = {}
        trace.rows += rows
        self._spans[trace_id].setdefault(scope, []).extend(spans)

    def serialize(self) -> None:
        """Serialize the pieces that `finish` joins. Each span is serialized once, whatever the number of traces."""
        self._heads = [encode.resource_head(each).SerializeToString() for each in self._resource_messages]
        self._scope_heads = [encode.scope_head(each).SerializeToString() for each in self._scope_messages]
        self._pieces = {
            trace_id: {scope: self._pieces_of(scope, spans) for scope, spans in by_scope.items()}
            for trace_id, by_scope in self._spans.items()
        }

    def _pieces_of(self, scope: int, spans: Sequence[Message]) -> list[bytes]:
        """Return the pieces of a ScopeSpans with only these spans."""
        message = self._scope_messages[scope]
        if isinstance(message, ScopeSpans) and len(spans) == len(message.spans):
            return [message.SerializeToString()]  # serializing the whole scope is faster
        of_spans = [_framed(_SPANS_OF_SCOPE, [encode.span(span).SerializeToString()]) for span in spans]
        return [self._scope_heads[scope], *chain.from_iterable(of_spans)]

    def apart_bytes(self) -> int:
        """Return the approximate size of the output of `finish`: spans, and the resources and scopes of each trace."""
        size_bytes = 0
        for by_scope in self._pieces.values():
            resources = {self._scopes.resources[scope] for scope in by_scope}
            size_bytes += sum(len(self._heads[resource]) for resource in resources)
            size_bytes += sum(len(piece) for pieces in by_scope.values() for piece in pieces)
        return size_bytes

    def finish(self) -> None:
        """Join the bytes of each trace."""
        for trace_id, by_scope in self._pieces.items():
            by_resource: dict[int, list[bytes]] = {}
            for scope, pieces in by_scope.items():
                resource = self._scopes.resources[scope]
                of_resource = by_resource.setdefault(resource, [self._heads[resource]])
                of_resource += _framed(_SCOPES_OF_RESOURCE, pieces)
            self.traces[trace_id].data = b"".join(
                piece for pieces in by_resource.values() for piece in _framed(_RESOURCES, pieces)
            )


OnApart: TypeAlias = Callable[[int], None]
"""Callback that gets the total size of the traces before they are made. An exception ends the work."""


def _refuse_none(_size_bytes: int) -> None: ...


def complete(
    format: Format,
    payload: bytes,
    partitioner: TracePartitioner,
    decoded: Decoded,
    on_apart: OnApart = _refuse_none,
) -> dict[str, TraceSpans]:
    """Return the traces of a request that was decoded into `partitioner`, each with its bytes."""
    is_single = len(partitioner.traces) == 1 and not decoded.rejected and not decoded.notes
    if is_single and format == "protobuf" and not has_old_names(payload):
        next(iter(partitioner.traces.values())).data = payload  # the payload is exactly this trace
    else:
        partitioner.serialize()
        on_apart(partitioner.apart_bytes())
        partitioner.finish()
    return partitioner.traces


def take_apart(format: Format, payload: bytes) -> dict[str, TraceSpans]:
    """Return the traces of a request. Raises DecodeError if the request cannot be decoded."""
    partitioner = TracePartitioner()
    decoded = (decode_json if format == "json" else decode_protobuf)(payload, partitioner)
    return complete(format, payload, partitioner, decoded)


def with_attributes(data: bytes, values: Mapping[str, str]) -> bytes:
    """Return the root spans of a `TracesData` with these attributes added; empty if none lacks any. Of several versions
    of a span, the one that ended last counts."""
    traces = pb.TracesData.FromString(data)
    scopes = [scope for resource in traces.resource_spans for scope in resource.scope_spans]
    roots: dict[bytes, pb.Span] = {}
    for scope in scopes:
        for span in scope.spans:
            if not span.parent_span_id.strip(b"\0"):
                roots[span.span_id] = max(roots.get(span.span_id, span), span, key=_progress)
    is_complete = True
    for scope in scopes:
        newest = [span for span in scope.spans if roots.get(span.span_id) is span]
        for span in newest:
            lacking = values.keys() - {each.key for each in span.attributes}
            is_complete &= not lacking
            for key in sorted(lacking):
                span.attributes.add(key=key).value.string_value = values[key]
        copies = pb.ScopeSpans(spans=newest)
        scope.ClearField("spans")
        scope.MergeFrom(copies)
    return b"" if is_complete else traces.SerializeToString()


def _progress(span: pb.Span) -> tuple[int, int]:
    return span.end_time_unix_nano, len(span.attributes)


def rows_of(data: bytes, prices: PriceTable = SHIPPED) -> SpanColumns:
    """Return the spans of a `TracesData` as columns, with costs by a price table. Raises InputError if it cannot be
    decoded."""
    columns = SpanColumns(prices)
    add_rows(data, columns)
    return columns


def add_rows(data: bytes, columns: SpanColumns) -> None:
    """Add the spans of a `TracesData` to columns. Raises InputError if it cannot be decoded; some spans may then have
    been added.

    For a single trace, taking a batch from columns costs several times as much as adding its spans.
    """
    decoded = decode_protobuf(data, columns)
    if decoded.rejected:
        raise InputError(f"spans that were accepted before are rejected now: {'; '.join(decoded.reasons)}")


def _framed(tag: bytes, pieces: Sequence[bytes]) -> list[bytes]:
    """Return a length-delimited protobuf field in pieces: tag and length, then the given pieces."""
    length, digits = sum(map(len, pieces)), bytearray(tag)
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return [bytes(digits), *pieces]


_LEFT_OUT: Final = "{} spans name another workspace than {!r}, the workspace of this key"


@dataclass(frozen=True, slots=True)
class WorkspaceAssignment:
    """A protobuf request of one workspace, and why spans were dropped from it; None if none were."""

    payload: bytes
    left_out: str | None


def placed(format: Format, payload: bytes, workspace: str) -> WorkspaceAssignment:
    """Return an already decoded request, restricted to one workspace."""
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
    return WorkspaceAssignment(
        data.SerializeToString(), _LEFT_OUT.format(others, workspace) if others else None
    )


class _Groups(SpanChecks):
    """A `SpanChecks` that collects the spans in one message, grouped by resource and scope as received."""

    def _begin(self) -> None:
        super()._begin()
        self.data = pb.TracesData()
        self._of_resource: list[pb.ResourceSpans] = []
        self._of_scope: list[pb.ScopeSpans] = []

    def add_resource(self, resource_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_resource(resource_spans)
        self.data.resource_spans.append(encode.resource_head(resource_spans))
        self._of_resource.append(self.data.resource_spans[-1])
        return number

    def add_scope(self, resource: int, scope_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_scope(resource, scope_spans)
        scopes = self._of_resource[resource].scope_spans
        scopes.append(encode.scope_head(scope_spans))
        self._of_scope.append(scopes[-1])
        return number

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """See `SpanChecks`."""
        super().add_spans(scope, spans, dialect)
        self._of_scope[scope].spans.extend(map(encode.span, spans))


def _message(format: Format, payload: bytes) -> pb.TracesData:
    if format == "protobuf":
        try:
            data = pb.TracesData.FromString(payload)
            take_old_names(data)
            return data
        except DecodeError:
            pass  # decoded below, as far as possible
    groups = _Groups()
    (decode_json if format == "json" else decode_protobuf)(payload, groups)
    return groups.data
