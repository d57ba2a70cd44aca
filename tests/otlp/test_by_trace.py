"""Splitting a request by trace loses nothing, and extracts the facts that filters need."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests import strategies
from tests.strategies import span_facts
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.encode import encode, to_json
from tracelake.otlp.partition import COLUMNS, TraceSpans, rows_of, take_apart

EXAMPLES = settings(max_examples=60, deadline=None)


def all_facts(traces: dict[str, TraceSpans]) -> list[bytes]:
    """Return the spans of all traces in a comparable form."""
    return sorted(
        fact for trace in traces.values() for fact in span_facts(pb.TracesData.FromString(trace.data))
    )


def rows_as_text(batches: list[pa.RecordBatch]) -> list[str]:
    """Return rows as text, in a canonical order."""
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


@given(strategies.traces_data)
@EXAMPLES
def test_protobuf_is_kept_whole(data: pb.TracesData) -> None:
    """Each span is in the message of its trace, with resource, scope, flags, counts and schema URLs."""
    traces = take_apart("protobuf", data.SerializeToString())
    assert all_facts(traces) == sorted(span_facts(data))
    for trace_id, trace in traces.items():
        spans = [
            s
            for r in pb.TracesData.FromString(trace.data).resource_spans
            for c in r.scope_spans
            for s in c.spans
        ]
        assert {span.trace_id.hex() for span in spans} == {trace_id}
        assert len(trace.rows) == len(spans)


@given(strategies.traces_data)
@EXAMPLES
def test_rows_are_those_of_the_request(data: pb.TracesData) -> None:
    """The messages by trace decode to the same rows as the request, in both encodings."""
    columns = SpanColumns()
    decode_protobuf(data.SerializeToString(), columns)
    as_json = to_json(encode(batch := columns.take()))
    decode_json(as_json, columns)
    of_json = columns.take()
    for format, payload, expected in (
        ("protobuf", data.SerializeToString(), batch),
        ("json", as_json, of_json),
    ):
        traces = take_apart("json" if format == "json" else "protobuf", payload)
        parts = [rows_of(trace.data).take() for trace in traces.values()]
        assert rows_as_text(parts) == rows_as_text([expected])
        names = [name for name in COLUMNS if name in batch.schema.names]
        for trace_id, trace in traces.items():
            stored = [row for row in expected.to_pylist() if row["trace_id"] == trace_id]
            known = [dict(zip(COLUMNS, row, strict=True)) for row in trace.rows]
            assert sorted(str([row[n] for n in names]) for row in known) == sorted(
                str([row[n] for n in names]) for row in stored
            )


@given(strategies.traces_data, strategies.traces_data)
@EXAMPLES
def test_parts_are_one_message_together(first: pb.TracesData, second: pb.TracesData) -> None:
    """The concatenated messages of two requests are one message with the spans of both."""
    together = first.SerializeToString() + second.SerializeToString()
    assert sorted(span_facts(pb.TracesData.FromString(together))) == sorted(
        span_facts(first) + span_facts(second)
    )


def test_a_bad_span_is_left_out_alone() -> None:
    """A span without an id is left out; others stay, also those of its trace."""
    data = pb.TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for span_id in (b"\1" * 8, b"", b"\2" * 8):
        scope.spans.add(trace_id=b"\7" * 16, span_id=span_id, name="n", start_time_unix_nano=1)
    trace = take_apart("protobuf", data.SerializeToString())["07" * 16]
    spans = pb.TracesData.FromString(trace.data).resource_spans[0].scope_spans[0].spans
    assert [span.span_id for span in spans] == [b"\1" * 8, b"\2" * 8]
    assert [row[0] for row in trace.rows] == ["01" * 8, "02" * 8]


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_nothing_gives_nothing(format: str) -> None:
    """A request without spans has no traces."""
    assert take_apart("json" if format == "json" else "protobuf", b"{}" if format == "json" else b"") == {}
