"""Takes a request as it is stored: decoded, put into the workspace of its key, and apart by trace, within the budget.

What is made of a request keeps its room until the request has its answer: a resource of 60 KB comes once a trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tracelake import limits
from tracelake._errors import InternalError, LimitError
from tracelake.otlp.by_trace import ByTrace, TraceSpans, complete
from tracelake.otlp.columns import SpanChecks
from tracelake.otlp.decode import Decoded, OnParsed, decode_json, decode_protobuf
from tracelake.otlp.depth import json_structure
from tracelake.otlp.framing import Format
from tracelake.otlp.placing import placed
from tracelake.otlp.size import (
    MESSAGE_BYTES,
    PayloadSize,
    has_messages_beyond,
    has_spans_beyond,
    message_tags,
    parse_max_bytes,
)
from tracelake.server.body import BudgetShare

_COMMAS_OF_OBJECT: Final = 8
_TAGS_OF_MESSAGE: Final = 4
_BYTES_OF_MESSAGE: Final = 40
"""Least sizes of what is worth counting: requests of SDKs have larger messages, with fewer such bytes in texts."""
_MESSAGES_OF_ATTRIBUTE: Final = 2
"""A KeyValue and its AnyValue."""


class Taken(NamedTuple):
    """A request as it is stored."""

    format: Format
    payload: bytes
    decoded: Decoded
    traces: dict[str, TraceSpans]


def take(
    format: Format, payload: bytes, share: BudgetShare, workspace: str | None, *, takes_apart: bool
) -> Taken:
    """Decode a request, and put it into the workspace of its key, where that is of one. Errors as `_decode`."""
    decoded, traces, workspaces = _decode(format, payload, share, workspace, takes_apart=takes_apart)
    if workspace is None or workspaces <= {workspace}:
        return Taken(format, payload, decoded, traces)
    with _room(format, payload, share):
        there = placed(format, payload, workspace)
        share.keep(len(there.payload))
    again, traces, workspaces = _decode("protobuf", there.payload, share, workspace, takes_apart=takes_apart)
    if not workspaces <= {workspace}:
        raise InternalError(f"a request is of {len(workspaces)} workspaces, and not of its key's alone")
    every = decoded.accepted + decoded.rejected
    reasons = (*decoded.reasons, there.left_out) if there.left_out else decoded.reasons
    told = Decoded(again.accepted, every - again.accepted, reasons, decoded.notes)
    return Taken("protobuf", there.payload, told, traces)


def _decode(
    format: Format, payload: bytes, share: BudgetShare, workspace: str | None, *, takes_apart: bool
) -> tuple[Decoded, dict[str, TraceSpans], set[str]]:
    """Decode a request to see which spans can be taken, and of which workspaces they are.

    It comes apart by trace where it is of `workspace` alone, or that is None. What is made of it keeps its room until
    the request has its answer. Raises InputError, LimitError, BackPressureError.
    """
    decode = decode_json if format == "json" else decode_protobuf

    def on_careful() -> None:
        _check_structure(format, payload, limits.OTLP_CAREFUL_VALUES_MAX, limits.OTLP_CAREFUL_VALUES_MAX)

    with _room(format, payload, share) as check:
        if not takes_apart:
            checks = SpanChecks()
            return decode(payload, checks, check, on_careful), {}, checks.workspaces()
        taken = ByTrace()
        decoded = decode(payload, taken, check, on_careful)
        workspaces = taken.workspaces()
        if workspace is not None and not workspaces <= {workspace}:
            return decoded, {}, workspaces
        share.keep(len(payload) + decoded.accepted * MESSAGE_BYTES)  # rows and their texts

        def keep(apart_bytes: int) -> None:
            if apart_bytes > limits.REQUEST_APART_MAX_BYTES:
                raise _too_many(
                    f"{limits.REQUEST_APART_MAX_BYTES} bytes by trace, each with its resources and scopes"
                )
            share.keep(apart_bytes)

        return decoded, complete(format, payload, taken, decoded, keep), workspaces


@contextmanager
def _room(format: Format, payload: bytes, share: BudgetShare) -> Iterator[OnParsed]:
    """Hold room for a request while it is decoded; what is to be told its size then makes the room fit."""
    with share.for_now() as room:
        if format == "protobuf" and has_spans_beyond(payload, limits.OTLP_REQUEST_SPANS_MAX):
            raise _too_many(f"{limits.OTLP_REQUEST_SPANS_MAX} spans")
        if _tokens(format, payload) > limits.OTLP_COUNTED_MIN:
            messages_max = _MESSAGES_OF_ATTRIBUTE * limits.OTLP_REQUEST_MESSAGES_MAX
            _check_structure(format, payload, limits.OTLP_REQUEST_VALUES_MAX, messages_max)
        guess_bytes = parse_max_bytes(payload, format)
        room.take(guess_bytes)

        def check(size: PayloadSize) -> None:
            if size.spans > limits.OTLP_REQUEST_SPANS_MAX:
                raise _too_many(f"{limits.OTLP_REQUEST_SPANS_MAX} spans")
            if size.messages > limits.OTLP_REQUEST_MESSAGES_MAX:
                raise _too_many(
                    f"{limits.OTLP_REQUEST_MESSAGES_MAX} spans, events, links and attributes together"
                )
            room.give_back(guess_bytes)
            room.take(len(payload) + size.messages * MESSAGE_BYTES)

        yield check


def _tokens(format: Format, payload: bytes) -> int:
    """Return a bound on objects, arrays and commas, or on messages and fields of protobuf, found in a moment."""
    if format == "json":
        return payload.count(b"{") + payload.count(b"[") + payload.count(b",") // _COMMAS_OF_OBJECT
    return max(message_tags(payload) // _TAGS_OF_MESSAGE, len(payload) // _BYTES_OF_MESSAGE)


def _check_structure(format: Format, payload: bytes, values_max: int, messages_max: int) -> None:
    """Count what a payload holds without parsing it. Raises LimitError."""
    if format == "protobuf":
        if has_messages_beyond(payload, messages_max, limits.OTLP_CAREFUL_VALUES_MAX):
            raise _too_many(f"{messages_max} messages, or {limits.OTLP_CAREFUL_VALUES_MAX} other fields")
        return
    structure = json_structure(payload, values_max)
    if max(structure.resources, structure.scopes, structure.spans) > limits.OTLP_REQUEST_SPANS_MAX:
        raise _too_many(f"{limits.OTLP_REQUEST_SPANS_MAX} resources, scopes or spans")
    if structure.values > values_max:
        raise _too_many(f"{values_max} objects, arrays and members")


def _too_many(what: str) -> LimitError:
    return LimitError(f"the request has more than {what}; send smaller batches")
