"""The two real data sets decode without loss, and encode back to the same messages."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests.strategies import span_facts
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.encode import encode, to_json
from tracelake.otlp.framing import Payload, Reading

DATA = Path(__file__).parents[3] / "shared" / "data"


def first_rows(name: str, payloads: int | None = None) -> pa.RecordBatch:
    """Decode the first payloads of a data set without rejected spans."""
    columns = SpanColumns()
    for item in islice(Reading(str(DATA / f"{name}.otlp.jsonl.gz")), payloads):
        assert isinstance(item, Payload)
        assert decode_json(item.data, columns).reasons == ()
    return columns.take()


def test_agents() -> None:
    """All 4,931 spans of 202 traces and 12 services are decoded, with sessions, models, texts and tokens."""
    rows = first_rows("agents")
    assert rows.num_rows == 4_931
    assert len(rows["trace_id"].unique()) == 202
    assert len(rows["service"].unique()) == 12
    for column in ("session_id", "model", "input", "output", "output_tokens"):
        assert rows[column].null_count < rows.num_rows, column


def test_agents_round_trip() -> None:
    """The agents' rows encode back to protobuf and JSON, equal span by span."""
    rows = first_rows("agents", 3)
    message = encode(rows)
    columns = SpanColumns()
    assert decode_protobuf(message.SerializeToString(), columns).accepted == rows.num_rows
    assert span_facts(encode(columns.take())) == span_facts(message)
    assert decode_json(to_json(message), columns).accepted == rows.num_rows
    assert span_facts(encode(columns.take())) == span_facts(message)


def test_microservices() -> None:
    """The first payloads of the microservices have 400 spans each, of known services and kinds."""
    rows = first_rows("microservices", 20)
    assert rows.num_rows == 8_000
    assert set(rows["kind"].unique().to_pylist()) <= {"INTERNAL", "SERVER", "CLIENT"}
    assert rows["service"].null_count == 0
    assert pc.min(rows["duration_ns"]).as_py() >= 0
    assert pb.TracesData.FromString(encode(rows).SerializeToString()) == encode(rows)
