"""Takes a request apart by trace: of each what filters ask for, and its spans as OTLP `TracesData`, without loss.

Messages of protobuf that are put one behind the other are one message with the fields of both. So the bytes of a trace
are put together from those of resources, scopes and spans, and the parts of several requests are one message again.
Resource and scope come once a trace, never once a span; whoever bounds what that takes is told before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tracelake._errors import InputError
from tracelake.otlp import as_protobuf, conventions
from tracelake.otlp.columns import SpanChecks, SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.dialects import Dialect
from tracelake.otlp.framing import Format
from tracelake.otlp.messages import Message

_PLAIN: Final = ("span_id", "parent_span_id", "name", "kind", "status", "start_ns", "end_ns")
_DERIVED: Final = ("session_id", "user_id", "model", "input_tokens", "output_tokens", "input", "output")
COLUMNS: Final = (*_PLAIN, *_DERIVED, "service", "workspace")
"""What is known of each span, in this order."""

_SPANS_OF_SCOPE: Final = b"\x12"
_SCOPES_OF_RESOURCE: Final = b"\x12"
_RESOURCES: Final = b"\x0a"
"""Tags of ScopeSpans.spans, ResourceSpans.scope_spans and TracesData.resource_spans."""


@dataclass(slots=True)
class TraceSpans:
    """The spans of one trace: rows of COLUMNS, and a serialized `TracesData`."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    data: bytes = b""


class ByTrace(SpanChecks):
    """Takes spans as `SpanChecks` does, and keeps their rows and bytes by trace."""

    def _begin(self) -> None:
        super()._begin()
        self.traces: dict[str, TraceSpans] = {}
        self._heads: list[bytes] = []
        self._scope_heads: list[bytes] = []
        self._pieces: dict[str, dict[int, list[bytes]]] = {}

    def add_resource(self, resource_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_resource(resource_spans)
        self._heads.append(as_protobuf.resource_head(resource_spans).SerializeToString())
        return number

    def add_scope(self, resource: int, scope_spans: Message) -> int:
        """See `SpanChecks`."""
        number = super().add_scope(resource, scope_spans)
        self._scope_heads.append(as_protobuf.scope_head(scope_spans).SerializeToString())
        return number

    def add_spans(self, scope: int, spans: Sequence[Message], dialect: Dialect) -> None:
        """Add the spans of one scope, all of them or none. Raises RefusedError."""
        read = self._read(scope, spans, dialect)
        attributes = read.attributes
        derived = conventions.derive(attributes.keys, attributes.texts, attributes.letters, attributes.counts)
        nothing: list[Any] = [None] * len(spans)
        service, workspace = self._resources.names(self._scopes.resources[scope])
        columns = [read.plain[name] for name in _PLAIN] + [derived.get(name) or nothing for name in _DERIVED]
        rows = zip(*columns, [service] * len(spans), [workspace] * len(spans), strict=True)
        for trace_id, row in zip(read.plain["trace_id"], rows, strict=True):
            trace = self.traces.get(trace_id)
            if trace is None:
                trace = self.traces[trace_id] = TraceSpans()
            trace.rows.append(row)
        for trace_id, span in zip(read.plain["trace_id"], spans, strict=True):
            of_trace = self._pieces.setdefault(trace_id, {})
            piece = _framed(_SPANS_OF_SCOPE, as_protobuf.span(span).SerializeToString())
            of_trace.setdefault(scope, []).append(piece)

    def finish(self) -> None:
        """Put the bytes of each trace together."""
        for trace_id, by_scope in self._pieces.items():
            by_resource: dict[int, list[bytes]] = {}
            for scope, spans in by_scope.items():
                body = _framed(_SCOPES_OF_RESOURCE, b"".join((self._scope_heads[scope], *spans)))
                by_resource.setdefault(self._scopes.resources[scope], []).append(body)
            self.traces[trace_id].data = b"".join(
                _framed(_RESOURCES, b"".join((self._heads[resource], *bodies)))
                for resource, bodies in by_resource.items()
            )

    def apart_bytes(self) -> int:
        """Return what `finish` will make, about: spans, and for each trace the resources and scopes that it is of."""
        size_bytes = 0
        for by_scope in self._pieces.values():
            resources = {self._scopes.resources[scope] for scope in by_scope}
            size_bytes += sum(len(self._heads[resource]) for resource in resources)
            for scope, spans in by_scope.items():
                size_bytes += len(self._scope_heads[scope]) + sum(map(len, spans))
        return size_bytes


OnApart: TypeAlias = Callable[[int], None]
"""Told how many bytes the traces will take, before they are made; what it raises ends that."""


def _refuse_none(_size_bytes: int) -> None: ...


def complete(
    format: Format, payload: bytes, taken: ByTrace, rejected: int, on_apart: OnApart = _refuse_none
) -> dict[str, TraceSpans]:
    """Return the traces of a request that was decoded into `taken`, each with its bytes."""
    if len(taken.traces) == 1 and not rejected and format == "protobuf":
        next(iter(taken.traces.values())).data = payload  # which is just that
    else:
        on_apart(taken.apart_bytes())
        taken.finish()
    return taken.traces


def take_apart(format: Format, payload: bytes) -> dict[str, TraceSpans]:
    """Return the traces of a request. Raises DecodeError."""
    taken = ByTrace()
    decoded = (decode_json if format == "json" else decode_protobuf)(payload, taken)
    return complete(format, payload, taken, decoded.rejected)


def rows_of(data: bytes) -> SpanColumns:
    """Return the spans of a `TracesData` as columns. Raises InputError where it is none."""
    columns = SpanColumns()
    add_rows(data, columns)
    return columns


def add_rows(data: bytes, columns: SpanColumns) -> None:
    """Add the spans of a `TracesData` to columns. Raises InputError where it is none; some may have been added then.

    What it costs to take a batch from columns is for a trace several times that of adding to them.
    """
    decoded = decode_protobuf(data, columns)
    if decoded.rejected:
        raise InputError(f"spans that were taken once are refused: {'; '.join(decoded.reasons)}")


def _framed(tag: bytes, data: bytes) -> bytes:
    """Return a field of protobuf: tag, length, bytes."""
    length, digits = len(data), bytearray()
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return b"".join((tag, digits, data))
