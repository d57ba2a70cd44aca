"""OTLP to rows and back loses nothing, in both encodings."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests import strategies
from tests.strategies import span_facts
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.encode import encode, to_json
from tracelake.otlp.parse import ResourceGroup, json_groups, parse_json, split_protobuf
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.otlp.values import Message, RefusedError

EXAMPLES = settings(max_examples=120, deadline=None)


def rows_of(payload: bytes, encoding: str) -> pa.RecordBatch:
    """Decode one payload without rejected spans."""
    columns = SpanColumns()
    decoded = (decode_json if encoding == "json" else decode_protobuf)(payload, columns)
    assert decoded.reasons == ()
    assert decoded.accepted == columns.rows
    return columns.take()


@given(strategies.traces_data)
@EXAMPLES
def test_protobuf_round_trip(data: pb.TracesData) -> None:
    """Protobuf to rows to protobuf keeps every field of every span, its resource and its scope."""
    assert span_facts(encode(rows_of(data.SerializeToString(), "protobuf"))) == span_facts(data)


@given(strategies.traces_data)
@EXAMPLES
def test_json_round_trip(data: pb.TracesData) -> None:
    """JSON to rows to JSON to rows keeps every row, and the JSON has all of the message."""
    rows = rows_of(to_json(data), "json")
    again = encode(rows)
    assert span_facts(again) == span_facts(data)
    assert span_facts(encode(rows_of(to_json(again), "json"))) == span_facts(data)


@given(strategies.traces_data)
@EXAMPLES
def test_both_encodings_give_equal_rows(data: pb.TracesData) -> None:
    """Protobuf and JSON of one message decode to equal record batches."""
    assert rows_of(data.SerializeToString(), "protobuf").equals(rows_of(to_json(data), "json"))


@given(strategies.traces_data)
@settings(max_examples=50, deadline=None)
def test_careful_pass_reads_the_same(data: pb.TracesData) -> None:
    """The pass that decodes span by span reads the same messages as the fast one."""
    wanted = [
        span for resource in data.resource_spans for scope in resource.scope_spans for span in scope.spans
    ]
    spans = careful_spans(split_protobuf(data.SerializeToString(), []))
    assert [serialized(span) for span in spans] == [serialized(span) for span in wanted]
    assert [span.name for span in careful_spans(json_groups(parse_json(to_json(data))))] == [
        span.name for span in wanted
    ]


def careful_spans(groups: list[ResourceGroup]) -> list[Message]:
    """Return the spans of a careful pass, which must decode each one."""
    spans = [span for group in groups for scope in group.scopes for span in scope.spans]
    assert not [span for span in spans if isinstance(span, RefusedError)]
    return spans


def serialized(message: Message) -> bytes:
    """Return equal bytes for equal messages, also if they contain NaN."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def test_schema_of_an_empty_batch() -> None:
    """A builder without spans gives an empty batch of the schema, again and again."""
    columns = SpanColumns()
    assert columns.take().schema == SPANS
    assert columns.take().num_rows == 0


def test_encode_groups_equal_resources_and_scopes() -> None:
    """Spans with equal resource and scope are grouped, in the order of the rows."""
    data = pb.TracesData()
    for name in ("a", "b", "a"):
        resource = data.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = name
        resource.scope_spans.add().spans.add(
            trace_id=b"\1" * 16, span_id=len(data.resource_spans).to_bytes(8), name=name
        )
    encoded = encode(rows_of(data.SerializeToString(), "protobuf"))
    assert [
        [span.span_id[-1] for span in group.scope_spans[0].spans] for group in encoded.resource_spans
    ] == [
        [1, 3],
        [2],
    ]


def test_encode_ignores_the_transaction_column() -> None:
    """Rows from the table, with column `transaction`, encode to the same message."""
    data = pb.TracesData()
    data.resource_spans.add().scope_spans.add().spans.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    table = pa.Table.from_batches([rows_of(data.SerializeToString(), "protobuf")])
    with_transaction = table.append_column(TRANSACTION_FIELD, pa.array([7], pa.int64()))
    assert encode(with_transaction) == encode(table) == data


def test_json_is_otlp() -> None:
    """Ids are hex, enums numbers, 64-bit integers strings, names camelCase, doubles may be words."""
    data = pb.TracesData()
    span = (
        data.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            trace_id=b"\xab" * 16, span_id=b"\1" * 8, kind=pb.Span.SPAN_KIND_CLIENT, start_time_unix_nano=5
        )
    )
    span.status.SetInParent()
    span.attributes.add(key="i").value.int_value = -(2**63)
    span.attributes.add(key="d").value.double_value = float("-inf")
    span.attributes.add(key="x").value.bytes_value = b"\xff"
    assert msgspec.json.decode(to_json(data))["resourceSpans"][0]["scopeSpans"][0]["spans"][0] == {
        "traceId": "ab" * 16,
        "spanId": "01" * 8,
        "kind": 3,
        "startTimeUnixNano": "5",
        "attributes": [
            {"key": "i", "value": {"intValue": "-9223372036854775808"}},
            {"key": "d", "value": {"doubleValue": "-Infinity"}},
            {"key": "x", "value": {"bytesValue": "/w=="}},
        ],
        "status": {},
    }


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_empty_messages_hold_no_span(encoding: str) -> None:
    """An empty object and an empty payload are valid and have no spans."""
    assert rows_of(b"{}" if encoding == "json" else b"", encoding).num_rows == 0
