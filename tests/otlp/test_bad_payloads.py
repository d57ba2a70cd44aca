"""A bad span is refused alone and by name; only a payload that is not OTLP raises an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake._errors import DecodeError
from tracelake.limits import OTLP_NESTING_MAX, OTLP_TEXT_MAX_BYTES, PROBLEMS_MAX
from tracelake.otlp import columns as columns_module
from tracelake.otlp.columns import SpanChecks, SpanColumns
from tracelake.otlp.decode import Decoded, decode_json, decode_protobuf
from tracelake.otlp.encode import to_json
from tracelake.otlp.framing import Format
from tracelake.otlp.partition import rows_of, take_apart

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WHERE = f"resourceSpans[0].scopeSpans[0].spans[1] (trace {TRACE}, span {SPAN}): "


def json_span(**fields: Any) -> dict[str, Any]:
    """Return a good span with these fields replaced."""
    return {"traceId": TRACE, "spanId": SPAN, "name": "n", **fields}


def json_payload(*spans: Any) -> bytes:
    """Return a payload of these spans."""
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def decoded_beside(bad: Any) -> Decoded:
    """Decode a bad span between two good ones, which must be accepted."""
    columns, payload = SpanColumns(), json_payload(json_span(), bad, json_span())
    decoded = decode_json(payload, columns)
    assert decode_json(payload, SpanChecks()) == decoded, "who checks refuses what who collects refuses"
    assert (decoded.accepted, decoded.rejected, len(decoded.reasons)) == (2, 1, 1)
    assert columns.take().num_rows == 2
    return decoded


def nested(levels: int) -> dict[str, Any]:
    """Return an AnyValue of this many nested arrays."""
    value: dict[str, Any] = {"stringValue": "core"}
    for _ in range(levels):
        value = {"arrayValue": {"values": [value]}}
    return value


def attribute(value: Any) -> dict[str, Any]:
    """Return a span with this attribute value."""
    return json_span(attributes=[{"key": "k", "value": value}])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"traceId": ""}, "traceId: 0 hex digits, must be 32"),
        ({"traceId": TRACE[:-2]}, "traceId: 30 hex digits, must be 32"),
        ({"traceId": "0" * 32}, "traceId: all zero"),
        ({"traceId": "g" * 32}, "traceId: not hex"),
        ({"traceId": " " * 32}, "traceId: not hex"),
        ({"traceId": "é" * 32}, "traceId: not hex"),
        ({"spanId": "00" * 8}, "spanId: all zero"),
        ({"spanId": None}, "spanId: 0 hex digits, must be 16"),
        ({"spanId": 7}, "Expected `str`, got `int` - at `$.spanId`"),
        ({"parentSpanId": "abcd"}, "parentSpanId: 4 hex digits, must be 16"),
        ({"name": 5}, "Expected `str`, got `int` - at `$.name`"),
        ({"name": ["n"]}, "Expected `str`, got `array` - at `$.name`"),
        ({"name": "x\ud800"}, "Expected `str`, got `half of a surrogate pair` - at `$.name`"),
        (
            {"startTimeUnixNano": str(2**63)},
            "Expected `int` <= 9223372036854775807 - at `$.startTimeUnixNano`",
        ),
        ({"endTimeUnixNano": -1}, "Expected `int` >= 0 - at `$.endTimeUnixNano`"),
        ({"startTimeUnixNano": "soon"}, "Expected `int`, got `str` - at `$.startTimeUnixNano`"),
        ({"kind": "SPAN_KIND_MAGIC"}, "kind: no such name: 'SPAN_KIND_MAGIC'"),
        ({"kind": 2**31}, "Expected `int` <= 2147483647 - at `$.kind`"),
        ({"kind": "2147483648"}, "kind: 2147483648 is not a 32-bit number"),
        ({"status": []}, "Expected `object | null`, got `array` - at `$.status`"),
        ({"status": {"code": "BAD"}}, "status.code: no such name: 'BAD'"),
        ({"attributes": {"k": "v"}}, "Expected `array`, got `object` - at `$.attributes`"),
        ({"attributes": ["k"]}, "Expected `object`, got `str` - at `$.attributes[0]`"),
        ({"flags": -1}, "Expected `int` >= 0 - at `$.flags`"),
        ({"droppedEventsCount": 2**32}, "Expected `int` <= 4294967295 - at `$.droppedEventsCount`"),
        ({"events": [{"timeUnixNano": -5}]}, "Expected `int` >= 0 - at `$.events[0].timeUnixNano`"),
        ({"links": [{"traceId": "abc"}]}, "links.traceId: 3 hex digits, must be an even number"),
        ({"links": [{"spanId": "zz"}]}, "links.spanId: not hex"),
    ],
)
def test_json_span_with_a_bad_field(fields: dict[str, Any], reason: str) -> None:
    """A span with a bad field is refused with a reason that names the field; its neighbours are accepted."""
    (found,) = decoded_beside(json_span(**fields)).reasons
    assert found.startswith("resourceSpans[0].scopeSpans[0].spans[1]")
    assert found.endswith(f": {reason}")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            {"intValue": str(2**63)},
            "Expected `int` <= 9223372036854775807 - at `$.attributes[0].value.intValue`",
        ),
        (
            {"intValue": "9" * 5000},
            "Integer value out of range - at `$.attributes[0].value.intValue`",
        ),
        ({"intValue": 1.5}, "Expected `int | null`, got `float` - at `$.attributes[0].value.intValue`"),
        ({"stringValue": 1}, "Expected `str | null`, got `int` - at `$.attributes[0].value.stringValue`"),
        ({"bytesValue": "*"}, "Invalid base64 encoded string - at `$.attributes[0].value.bytesValue`"),
        ({"bytesValue": 3}, "Expected `bytes | null`, got `int` - at `$.attributes[0].value.bytesValue`"),
        ("bare", "Expected `object`, got `str` - at `$.attributes[0].value`"),
    ],
)
def test_json_attribute_with_a_bad_value(value: Any, reason: str) -> None:
    """An attribute value of the wrong type refuses the span, and the reason names the attribute."""
    assert decoded_beside(attribute(value)).reasons == (WHERE + reason,)


def test_reason_names_the_span_that_is_not_an_object() -> None:
    """A span that is not an object has no ids, so the reason names its position."""
    reason = "resourceSpans[0].scopeSpans[0].spans[1]: Expected `object`, got `str`"
    assert decoded_beside("span").reasons == (reason,)


def test_nesting_limit() -> None:
    """OTLP_NESTING_MAX levels are accepted, and one more refuses the span, in JSON and in protobuf."""
    assert decode_json(json_payload(attribute(nested(OTLP_NESTING_MAX))), SpanColumns()).rejected == 0
    reason = f"attribute 'k': nested deeper than {OTLP_NESTING_MAX} levels"
    assert decoded_beside(attribute(nested(OTLP_NESTING_MAX + 1))).reasons == (WHERE + reason,)


@pytest.mark.parametrize("levels", [300, 20_000])
def test_json_nested_beyond_the_parser(levels: int) -> None:
    """Nesting beyond every JSON parser refuses only its span."""
    deep = '{"arrayValue":{"values":[' * levels + '{"stringValue":"[{"}' + "]}}" * levels
    payload = json_payload(json_span(), attribute("DEEP"), json_span()).replace(b'"DEEP"', deep.encode())
    decoded = decode_json(payload, SpanColumns())
    assert (decoded.accepted, decoded.rejected) == (2, 1)
    assert decoded.reasons == (WHERE + f"attribute 'k': nested deeper than {OTLP_NESTING_MAX} levels",)


def test_long_text_refuses_its_span() -> None:
    """A text above the limit, in bytes of UTF-8, refuses its span."""
    fine = json_span(name="ü" * (OTLP_TEXT_MAX_BYTES // 2))
    columns = SpanColumns()
    payload = json.dumps(
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {"spans": [fine, attribute({"stringValue": "x" * (OTLP_TEXT_MAX_BYTES + 1)})]}
                    ]
                }
            ]
        },
        ensure_ascii=False,
    ).encode()
    decoded = decode_json(payload, columns)
    assert decode_json(payload, SpanChecks()) == decoded
    assert (decoded.accepted, decoded.rejected) == (1, 1)
    assert decoded.reasons == (
        WHERE + f"attributes: {OTLP_TEXT_MAX_BYTES + 1} bytes, must be at most {OTLP_TEXT_MAX_BYTES}",
    )


def test_scope_too_large_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope is repeated like a resource, and counts towards the same limit."""
    monkeypatch.setattr(columns_module, "SPANS_EXPANDED_MAX_BYTES", 10_000)
    scopes = [{"scope": {"name": "x" * 3800}, "spans": [json_span()] * 5}]
    payload = json.dumps({"resourceSpans": [{"scopeSpans": scopes}]}).encode()
    decoded = decode_json(payload, SpanColumns())
    assert (decoded.accepted, decoded.rejected) == (2, 3)


def test_resource_too_large_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the repeated resource exceeds the byte limit, further spans are refused."""
    monkeypatch.setattr(columns_module, "SPANS_EXPANDED_MAX_BYTES", 10_000)
    resource = {"attributes": [{"key": "k", "value": {"stringValue": "x" * 3799}}]}
    scopes = [{"spans": [json_span()] * 5}]
    payload = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}).encode()
    columns = SpanColumns()
    decoded = decode_json(payload, columns)
    assert decode_json(payload, SpanChecks()) == decoded
    assert (decoded.accepted, decoded.rejected) == (2, 3)
    assert (
        "resource of 3800 bytes, scope of 0: with copies of them the payload's spans take more than 10000 bytes"
        in (decoded.reasons[0])
    )
    assert decode_json(payload, columns).accepted == 2


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON at byte 0: ends too early"),
        (b"not json", "not JSON at byte 0: Expecting value"),
        (b'{"resourceSpans":[{"scopeSpans":[', "not JSON at byte 33: ends too early"),
        ('{"ü":1,}'.encode(), "not JSON at byte 8: Expecting property name enclosed in double quotes"),
        (b'{"resourceSpans":[{"schemaUrl":"\xff"}]', "neither JSON nor UTF-8: byte 32 is invalid"),
        (b'{"resource\xffSpans":[]}', "not OTLP traces: it has no resourceSpans, but resource\\ufffdSpans"),
        (b"[]", "not OTLP: an array, must be an object with resourceSpans"),
        (b"7", "not OTLP: a number, must be an object with resourceSpans"),
        (b'{"resourceSpans":{}}', "not OTLP: resourceSpans is an object, must be an array"),
        (b'{"resourceSpans":[7]}', "not OTLP: a number where an object with scopeSpans must be"),
        (
            b'{"resourceSpans":[{"scopeSpans":[{"spans":7}]}]}',
            "not OTLP: spans is a number, must be an array",
        ),
        (b'{"resourceMetrics":[]}', "not OTLP traces: it has no resourceSpans, but resourceMetrics"),
        (b'{"some":1,"thing":2}', "not OTLP traces: it has no resourceSpans, but some, thing"),
    ],
)
def test_json_that_is_not_otlp(payload: bytes, reason: str) -> None:
    """The whole payload is refused with the offset of the error, and adds nothing."""
    columns = SpanColumns()
    with pytest.raises(DecodeError) as caught:
        decode_json(payload, columns)
    assert str(caught.value) == reason
    assert (columns.rows, columns.approx_bytes) == (0, 0)


def test_bad_resource_and_scope_refuse_their_spans() -> None:
    """All spans of an unreadable resource or scope are refused and counted."""
    bad, good = {"attributes": 1}, {"spans": [json_span()]}
    groups = [
        {"resource": bad, "scopeSpans": [good, good]},
        {"scopeSpans": [good, {"scope": bad, "spans": [json_span()]}]},
    ]
    decoded = decode_json(json.dumps({"resourceSpans": groups}).encode(), SpanColumns())
    assert (decoded.accepted, decoded.rejected) == (1, 3)
    assert decoded.reasons == (
        "resourceSpans[0]: Expected `array`, got `int` - at `$.resource.attributes`",
        "resourceSpans[1].scopeSpans[1]: Expected `array`, got `int` - at `$.scope.attributes`",
    )


def test_only_the_first_reasons_are_kept() -> None:
    """All refused spans are counted, and PROBLEMS_MAX of them are described."""
    decoded = decode_json(json_payload(*[json_span(traceId="")] * 50, json_span()), SpanColumns())
    assert (decoded.accepted, decoded.rejected, len(decoded.reasons)) == (1, 50, PROBLEMS_MAX)


def protobuf_payload() -> pb.TracesData:
    """Return three good spans."""
    data = pb.TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for _ in range(3):
        scope.spans.add(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), name="name")
    return data


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("trace_id", b"", "traceId: 0 bytes, must be 16"),
        ("trace_id", b"\1" * 15, "traceId: 15 bytes, must be 16"),
        ("trace_id", bytes(16), "traceId: all zero"),
        ("span_id", bytes(8), "spanId: all zero"),
        ("span_id", b"\1" * 9, "spanId: 9 bytes, must be 8"),
        ("parent_span_id", b"\1", "parentSpanId: 1 bytes, must be 8"),
        ("start_time_unix_nano", 2**63, "startTimeUnixNano: 9223372036854775808 is not below 2**63"),
        ("end_time_unix_nano", 2**64 - 1, "endTimeUnixNano: 18446744073709551615 is not below 2**63"),
    ],
)
def test_protobuf_span_with_a_bad_field(field: str, value: Any, reason: str) -> None:
    """A span with a bad field is refused with a reason that names the field; its neighbours are accepted."""
    data = protobuf_payload()
    setattr(data.resource_spans[0].scope_spans[0].spans[1], field, value)
    decoded = decode_protobuf(data.SerializeToString(), SpanColumns())
    assert decode_protobuf(data.SerializeToString(), SpanChecks()) == decoded
    assert (decoded.accepted, decoded.rejected) == (2, 1)
    assert decoded.reasons[0].startswith("resourceSpans[0].scopeSpans[0].spans[1] (trace ")
    assert decoded.reasons[0].endswith(f"): {reason}")


def test_protobuf_event_time() -> None:
    """An event at 2**63 or later refuses its span."""
    data = protobuf_payload()
    data.resource_spans[0].scope_spans[0].spans[1].events.add(time_unix_nano=2**63)
    decoded = decode_protobuf(data.SerializeToString(), SpanColumns())
    assert decode_protobuf(data.SerializeToString(), SpanChecks()) == decoded
    assert decoded.reasons == (WHERE + "events.timeUnixNano: not below 2**63",)


def check_not_utf8(format: Format) -> None:
    """Check that invalid UTF-8 in resource, scope, span, attribute and event costs no span, and one note names it."""
    data = protobuf_payload()
    resource = data.resource_spans[0]
    resource.resource.attributes.add(key="service.name").value.string_value = "XXXX"
    resource.scope_spans[0].scope.name = "a"
    span = resource.scope_spans[0].spans[1]
    span.name = "ü XXXX"
    span.attributes.add(key="k").value.kvlist_value.values.add(key="XXXX").value.string_value = "ok"
    span.events.add(name="XXXX")
    payload = (to_json(data) if format == "json" else data.SerializeToString()).replace(b"XXXX", b"ab\xffc")
    columns = SpanColumns()
    decoded = (decode_json if format == "json" else decode_protobuf)(payload, columns)
    assert (decoded.accepted, decoded.rejected, decoded.reasons) == (3, 0, ())
    assert "UTF-8" in decoded.notes[0]
    assert "replaced by U+FFFD" in decoded.notes[0]
    rows = columns.take().to_pylist()
    assert [row["service"] for row in rows] == ["ab\ufffdc"] * 3
    assert [row["name"] for row in rows] == ["name", "ü ab\ufffdc", "name"]
    assert rows[1]["attributes"] == [("k", '{"ab\ufffdc":"ok"}')]
    assert rows[1]["events"][0]["name"] == "ab\ufffdc"
    for trace in take_apart(format, payload).values():
        assert rows_of(trace.data).rows == 3


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_text_that_is_not_utf8(format: Format) -> None:
    """Invalid UTF-8 costs no span, in either encoding."""
    check_not_utf8(format)


def test_ids_that_are_not_utf8() -> None:
    """An id with invalid bytes refuses only its span."""
    payload = json_payload(json_span(), json_span(traceId="X" * 32)).replace(b"X", b"\xff")
    decoded = decode_json(payload, SpanColumns())
    assert (decoded.accepted, decoded.rejected, len(decoded.notes)) == (1, 1, 1)


@pytest.mark.parametrize("levels", [33, 40, 200, 2000])
def test_protobuf_nested_too_deeply(levels: int) -> None:
    """A span nested deeper than the limit, or than the parser allows, is refused alone."""
    inner = AnyValue(string_value="core").SerializeToString()
    for _ in range(levels):
        for tag in (b"\x0a", b"\x2a"):
            inner = tag + varint(len(inner)) + inner
    data = protobuf_payload()
    data.resource_spans[0].scope_spans[0].spans[1].ClearField("name")
    spans = data.resource_spans[0].scope_spans[0].spans
    entry = b"\x0a\x01k\x12" + varint(len(inner)) + inner
    deep = spans[1].SerializeToString() + b"\x4a" + varint(len(entry)) + entry
    parts = [spans[0].SerializeToString(), deep, spans[2].SerializeToString()]
    scope = b"".join(b"\x12" + varint(len(part)) + part for part in parts)
    resource = b"\x12" + varint(len(scope)) + scope
    decoded = decode_protobuf(b"\x0a" + varint(len(resource)) + resource, SpanColumns())
    assert (decoded.accepted, decoded.rejected) == (2, 1)
    assert "nested" in decoded.reasons[0]


def varint(number: int) -> bytes:
    """Return a number in protobuf encoding."""
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def test_protobuf_cut_anywhere() -> None:
    """A truncated payload is either complete in itself or refused with the offset of the cut."""
    payload = protobuf_payload().SerializeToString()
    for size in range(1, len(payload)):
        columns = SpanColumns()
        with pytest.raises(DecodeError, match="truncated"):
            decode_protobuf(payload[:size], columns)
        assert columns.rows == 0


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x0a\xff\x01abc", "truncated: the field at byte 0 ends at byte 258, but there are only 6 bytes"),
        (b"\x0b", "truncated: the group at byte 0 does not end"),
        (b"\x0b\x0b\x0c", "truncated: the group at byte 0 does not end"),
        (b"\x0c", "byte 0: wire type 4 is not protobuf of OTLP"),
        (b"\x0f", "byte 0: wire type 7 is not protobuf of OTLP"),
        (b"\x0a" + b"\xff" * 11, "byte 1: a number of more than 10 bytes is not protobuf"),
        (b"hello, world", "byte 2: wire type 4 is not protobuf of OTLP"),
        (b"\x0a\x80", "truncated in the number at byte 1"),
    ],
)
def test_bytes_that_are_not_protobuf(payload: bytes, reason: str) -> None:
    """The whole payload is refused with the offset of the error."""
    with pytest.raises(DecodeError) as caught:
        decode_protobuf(payload, SpanColumns())
    assert str(caught.value) == f"not OTLP protobuf: {reason}"
