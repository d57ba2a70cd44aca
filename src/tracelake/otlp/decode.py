"""Decoder of OTLP payloads. It rejects a bad span alone and accepts the other spans of the payload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake._errors import DecodeError
from tracelake.limits import OTLP_PAYLOAD_MESSAGES_MAX, PROBLEM_MAX_CHARS, PROBLEMS_MAX, QUOTED_MAX_CHARS
from tracelake.otlp import json_messages, parse, wire
from tracelake.otlp.columns import SpanChecks
from tracelake.otlp.json_messages import Message
from tracelake.otlp.parse import (
    Dialect,
    PayloadSize,
    ResourceGroup,
    ScopeGroup,
    json_groups,
    parse_json,
    parsed_size,
    pruned,
    replace_bad_bytes,
    split_protobuf,
)
from tracelake.otlp.values import RefusedError
from tracelake.otlp.wire import UnknownContainer


@dataclass(frozen=True, slots=True)
class Decoded:
    """Counts of accepted and rejected spans of a payload, and the first PROBLEMS_MAX reasons for rejection."""

    accepted: int
    rejected: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """The first PROBLEMS_MAX notes about accepted spans that were altered."""


_STRICT_JSON_DECODER: Final = msgspec.json.Decoder(json_messages.StrictTracesData, strict=False)
_JSON_DECODER: Final = msgspec.json.Decoder(json_messages.TracesData, strict=False)
# Measured on both real data sets: ids become hex, derived columns repeat texts, and JSON loses its syntax.
_JSON_GROWTH: Final = 1
_PROTOBUF_GROWTH: Final = 2


OnParsed: TypeAlias = Callable[[PayloadSize], None]
"""Callback that gets the payload's size after parsing, before anything is built from it. An exception ends the
decoding."""


OnCareful: TypeAlias = Callable[[], None]
"""Called before the careful pass, which takes many times longer; an error that it raises ends the decoding."""


def _refuse_none(_size: PayloadSize) -> None: ...


def _allow_careful() -> None: ...


def decode_json(
    payload: bytes,
    columns: SpanChecks,
    on_parsed: OnParsed = _refuse_none,
    on_careful: OnCareful = _allow_careful,
) -> Decoded:
    """Add the spans of an OTLP/JSON TracesData or ExportTraceServiceRequest to the columns, or validate them.

    Raises DecodeError if the payload as a whole cannot be decoded; then nothing was added.
    """
    columns.start_payload(len(payload), _JSON_GROWTH)
    groups, unknown = _decode_at_once(payload)
    notes: list[str] = []
    if not groups:
        # The fast decoder's depth limit depends on the stack below it, but acceptance must not. So a payload
        # that it refused is pruned to a depth that every decoder handles. Only what fails again goes through
        # the careful pass.
        shallow, notes = replace_bad_bytes(payload)
        shallow = pruned(shallow)
        if shallow is not payload:
            groups, unknown = _decode_at_once(shallow)
        if not groups:
            on_careful()
            # The careful pass finds the error, even in a payload that seems to be empty.
            data = parse_json(shallow if not notes else pruned(payload))
            groups, unknown = json_groups(data), wire.in_json(data)
    return _add(groups, columns, parse.JSON, on_parsed, unknown, notes)


def _decode_at_once(payload: bytes) -> tuple[list[ResourceGroup], list[UnknownContainer]]:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return _json_as_groups(_STRICT_JSON_DECODER.decode(payload)), []
        except msgspec.ValidationError as error:
            if "unknown field" not in str(error):
                raise
            return _json_as_groups(_JSON_DECODER.decode(payload)), wire.in_json_text(payload)
    return [], []


def _json_as_groups(data: Message) -> list[ResourceGroup]:
    groups = _as_groups(data.resource_spans)
    for group, resource in zip(groups, data.resource_spans, strict=True):
        group.scopes.extend(
            ScopeGroup(old, list(old.spans)) for old in resource.instrumentation_library_spans
        )
    return groups


def decode_protobuf(
    payload: bytes,
    columns: SpanChecks,
    on_parsed: OnParsed = _refuse_none,
    on_careful: OnCareful = _allow_careful,
) -> Decoded:
    """Add the spans of a protobuf TracesData or ExportTraceServiceRequest to the columns, or validate them.

    Raises DecodeError if the payload as a whole cannot be decoded; then nothing was added.
    """
    columns.start_payload(len(payload), _PROTOBUF_GROWTH)
    try:
        data = TracesData.FromString(payload)
        unknown = wire.take_old_names(data)
    except ProtobufDecodeError:
        on_careful()
        notes: list[str] = []
        groups = split_protobuf(payload, notes)
        return _add(groups, columns, parse.PROTOBUF, on_parsed, _unknown_in(payload, groups), notes)
    return _add(_as_groups(data.resource_spans), columns, parse.PROTOBUF, on_parsed, unknown, [])


def _unknown_in(payload: bytes, groups: Sequence[ResourceGroup]) -> list[UnknownContainer]:
    scopes = [scope for group in groups for scope in group.scopes]
    return wire.in_parts(
        payload,
        _whole(group.header for group in groups),
        _whole(scope.header for scope in scopes),
        _whole(span for scope in scopes for span in scope.spans),
    )


def _whole(parts: Iterable[Message | RefusedError]) -> Iterator[Message]:
    return (part for part in parts if not isinstance(part, RefusedError))


def _as_groups(resources: Iterable[Message]) -> list[ResourceGroup]:
    return [
        ResourceGroup(resource, [ScopeGroup(scope, list(scope.spans)) for scope in resource.scope_spans])
        for resource in resources
    ]


def _add(
    groups: Sequence[ResourceGroup],
    columns: SpanChecks,
    dialect: Dialect,
    on_parsed: OnParsed,
    unknown: Iterable[UnknownContainer],
    notes: Sequence[str],
) -> Decoded:
    size = parsed_size(groups)
    if size.messages > OTLP_PAYLOAD_MESSAGES_MAX:
        raise DecodeError(
            f"{size.messages} spans, events, links and attributes; one payload may have {OTLP_PAYLOAD_MESSAGES_MAX}"
        )
    on_parsed(size)
    adder = _Adder(columns, dialect)
    for container in unknown:
        adder.reject(container.spans, container.reason())
    for r, group in enumerate(groups):
        adder.add_resource(group, f"resourceSpans[{r}]")
    return Decoded(adder.accepted, adder.rejected, tuple(adder.reasons), tuple(notes[:PROBLEMS_MAX]))


@dataclass(slots=True)
class _Adder:
    """Adds groups of spans to columns and counts accepted and rejected spans."""

    columns: SpanChecks
    dialect: Dialect
    accepted: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def add_resource(self, group: ResourceGroup, where: str) -> None:
        try:
            resource = self.columns.add_resource(_decoded(group.header))
        except RefusedError as error:
            self.reject(sum(len(scope.spans) for scope in group.scopes), f"{where}: {error}")
            return
        for s, scope in enumerate(group.scopes):
            self._add_scope(resource, scope, f"{where}.scopeSpans[{s}]")

    def _add_scope(self, resource: int, group: ScopeGroup, where: str) -> None:
        try:
            scope = self.columns.add_scope(resource, _decoded(group.header))
        except RefusedError as error:
            self.reject(len(group.spans), f"{where}: {error}")
            return
        self._add_spans(scope, group.spans, where, 0)

    def _add_spans(self, scope: int, spans: Sequence[Message | RefusedError], where: str, first: int) -> None:
        """Add all spans at once. If one is refused, bisect to reject only that one."""
        try:
            if RefusedError in map(type, spans):  # checks 20 million spans a second
                raise next(span for span in spans if isinstance(span, RefusedError))
            self.columns.add_spans(scope, spans, self.dialect)
            self.accepted += len(spans)
        except RefusedError as error:
            if len(spans) == 1:
                identity = error.identity or self._identity(spans[0])
                self.reject(1, f"{where}.spans[{first}]{identity}: {error}")
                return
            half = len(spans) // 2
            self._add_spans(scope, spans[:half], where, first)
            self._add_spans(scope, spans[half:], where, first + half)

    def reject(self, spans: int, reason: str) -> None:
        """Count rejected spans, and store the first reasons."""
        self.rejected += spans
        if spans and len(self.reasons) < PROBLEMS_MAX:
            self.reasons.append(reason[:PROBLEM_MAX_CHARS])  # one record stores many reasons

    def _identity(self, span: Message | RefusedError) -> str:
        if isinstance(span, RefusedError):
            return ""
        try:
            trace, own = self.dialect.loose_ids([span.trace_id, span.span_id], "id")
        except RefusedError:
            return ""
        return f" (trace {trace[:QUOTED_MAX_CHARS] or '?'}, span {own[:QUOTED_MAX_CHARS] or '?'})"


def _decoded(message: Message | RefusedError) -> Message:
    if isinstance(message, RefusedError):
        raise message
    return message
