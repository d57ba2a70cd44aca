"""Spans in containers with old or unknown names: accepted, or counted as rejected by name, never lost silently."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests.otlp.test_bad_payloads import json_span
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import Decoded, decode_json, decode_protobuf
from tracelake.otlp.encode import encode
from tracelake.otlp.framing import Format
from tracelake.otlp.partition import placed, rows_of, take_apart

SPAN = pb.Span(trace_id=b"t" * 16, span_id=b"s" * 8, name="n", start_time_unix_nano=1)
BROKEN = SPAN.SerializeToString() + b"\x0f"
"""A span with a field of a type that protobuf does not have."""


def field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field of fewer than 16,384 bytes."""
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + bytes([len(data) & 127 | 128, len(data) >> 7]) + data


def span(**fields: Any) -> dict[str, Any]:
    """Return a span with a start time."""
    return json_span(startTimeUnixNano="1", **fields)


def decoded(payload: bytes | dict[str, Any]) -> Decoded:
    """Decode a payload; a dictionary is encoded as JSON."""
    columns = SpanColumns()
    if isinstance(payload, dict):
        return decode_json(json.dumps(payload).encode(), columns)
    return decode_protobuf(payload, columns)


def check_old_names() -> None:
    """Check that spans under both old names are accepted, with their scope, in the fast and the careful pass."""
    one = SPAN.SerializeToString()
    scope = field(1, field(1, b"lib")) + field(2, one)
    old_json = {"instrumentationLibrary": {"name": "lib"}, "spans": [span(), span(links=None)]}
    for format, payload in (
        ("protobuf", field(1, field(1000, scope))),
        ("protobuf", field(1, field(1000, scope + field(2, BROKEN)))),
        ("json", json.dumps({"resourceSpans": [{"instrumentationLibrarySpans": [old_json]}]}).encode()),
        (
            "json",
            json.dumps({"resourceSpans": [{"instrumentationLibrarySpans": [old_json], "x": 1}]}).encode(),
        ),
    ):
        columns = SpanColumns()
        got = (decode_json if format == "json" else decode_protobuf)(payload, columns)
        assert got.accepted == (2 if format == "json" else 1), got
        rows = columns.take()
        assert encode(rows).resource_spans[0].scope_spans[0].scope.name == "lib"


def test_old_names() -> None:
    """Spans of OTLP before 1.0 are accepted."""
    check_old_names()


def check_unknown_in_json() -> None:
    """Check that unknown containers count at each level, and the good span next to them is accepted."""
    scope = {"spans": [span(childSpans=[{"scope": [span()]}], note=[{"a": 1}])], "Spans": [span()]}
    resource = {"scopeSpans": [scope], "scope_spans": [{"spans": [span(), span()]}]}
    got = decoded({"resourceSpans": [resource], "resource_spans": [{"what": "ever"}], "comment": ["a"]})
    assert (got.accepted, got.rejected) == (1, 5)
    names = [reason.partition(":")[0] for reason in got.reasons]
    assert names == [
        "resource_spans",
        "resourceSpans[0].scope_spans",
        "resourceSpans[0].scopeSpans[0].Spans",
        "resourceSpans[0].scopeSpans[0].spans[0].childSpans",
    ]


def test_unknown_in_json() -> None:
    """The fast pass finds unknown containers."""
    check_unknown_in_json()


@pytest.mark.parametrize("extra", [{}, {"links": None}, {"unknown": {"a": [1, {"b": None}]}}])
def test_careful_and_fast_pass_agree(extra: dict[str, Any]) -> None:
    """A null, which fails the fast pass, does not change the result."""
    resource = {"scopeSpans": [{"spans": [span(**extra)]}], "ScopeSpans": [{"spans": [span(), span()]}]}
    got = decoded({"resourceSpans": [resource]})
    assert (got.accepted, got.rejected) == (1, 2)
    assert got.reasons[0].startswith("resourceSpans[0].ScopeSpans: unknown field with 2 spans")


@pytest.mark.parametrize("value", ["text", 7, None, [], [1, 2], {"a": {"b": 1}}, {}])
def test_other_unknown_fields_are_passed_over(value: Any) -> None:
    """Other unknown fields are ignored, as OTLP requires; they cannot contain spans."""
    scope = {"spans": [span(new=value)], "new": value}
    assert decoded({"resourceSpans": [{"scopeSpans": [scope], "new": value}], "new": value}) == Decoded(
        1, 0, ()
    )


def check_unknown_in_protobuf() -> None:
    """Check that unknown containers count at each level, in the fast and the careful pass."""
    one = SPAN.SerializeToString()
    scope = (
        field(9, one) + field(8, b"hello world") + field(2, one + field(44, one) + field(45, field(1, b"a")))
    )
    for broken in (b"", field(2, BROKEN)):
        got = decoded(
            field(1, field(999, field(2, one) + field(2, one)) + field(2, scope + broken)) + field(7, scope)
        )
        assert (got.accepted, got.rejected - bool(broken)) == (1, 2 + 1 + 1 + 1), got
        assert [name for name in ("field 999", "field 9:", "field 44", "field 7") if name in str(got.reasons)]


def test_unknown_in_protobuf() -> None:
    """A length-delimited field that parses as a message is not taken for text."""
    check_unknown_in_protobuf()
    assert decoded(field(1, field(2, field(2, SPAN.SerializeToString())) + field(999, b"hello"))) == Decoded(
        1, 0, ()
    )


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_what_is_stored_decodes_without_rejected_spans(format: Format) -> None:
    """Stored parts by trace and workspace requests have the old containers' spans and nothing unknown."""
    one = SPAN.SerializeToString()
    if format == "json":
        resource = {
            "scopeSpans": [{"spans": [span()], "x": [{}]}],
            "instrumentationLibrarySpans": [{"spans": [span()]}],
        }
        payload = json.dumps({"resourceSpans": [resource]}).encode()
    else:
        payload = field(1, field(1000, field(2, one)) + field(2, field(2, one) + field(9, one)))
    for trace in take_apart(format, payload).values():
        assert rows_of(trace.data).rows == 2
    there = placed(format, payload, "team-a")
    assert there.left_out is None
    got = decoded(there.payload)
    assert (got.accepted, got.rejected) == (2, 0)
