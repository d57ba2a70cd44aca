"""Attributes with repeated keys: the maps stay valid for every reader, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa

from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.encode import encode, to_json

TWICE: list[dict[str, Any]] = [
    {"key": "retry", "value": {"stringValue": "a"}},
    {"key": "retry#2", "value": {"stringValue": "b"}},
    {"key": "retry", "value": {"intValue": "3"}},
    {"key": "retry", "value": {"stringValue": ""}},
    {"key": "retry"},
    {"key": "other", "value": {"stringValue": "c"}},
]


def rows_of(attributes: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return one span with these attributes at every place that OTLP allows."""
    span = {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "1",
        "attributes": attributes,
        "events": [{"name": "e", "attributes": attributes}],
        "links": [{"traceId": "0" * 31 + "2", "spanId": "0" * 15 + "2", "attributes": attributes}],
    }
    scopes = [{"scope": {"attributes": attributes}, "spans": [span]}]
    line = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": scopes}]}
    columns = SpanColumns()
    assert decode_json(json.dumps(line).encode(), columns).accepted == 1
    return columns.take()


def test_repeated_keys_are_numbered_and_come_back() -> None:
    """A repeated key gets the next free number, in spans, events, links, scope and resource, and is restored."""
    rows = rows_of(TWICE)
    (row,) = rows.to_pylist(maps_as_pydicts="strict")
    expected = {"retry": "a", "retry#2": "b", "retry#3": "3", "retry#4": "", "retry#5": "", "other": "c"}
    places = [row, row["events"][0], row["links"][0], row["scope"]]
    assert [place["attributes"] for place in places] == [expected] * 4
    assert row["resource"] == expected
    assert row["otlp"]["attribute_types"] == "ssIS+s"
    message = encode(rows)
    again = SpanColumns()
    decode_protobuf(message.SerializeToString(), again)
    assert again.take().equals(rows)
    (resource,) = json.loads(to_json(message))["resourceSpans"]
    assert [entry["key"] for entry in resource["resource"]["attributes"]] == [entry["key"] for entry in TWICE]


def test_all_strings_repeat_too() -> None:
    """The fast path for attributes that are all strings numbers repeated keys as well."""
    (row,) = rows_of([TWICE[0], TWICE[0]]).to_pylist(maps_as_pydicts="strict")
    assert row["attributes"] == {"retry": "a", "retry#2": "a"}
    assert row["otlp"]["attribute_types"] == "sS"


def test_duckdb_reads_them() -> None:
    """DuckDB, which refuses maps with repeated keys, reads the rows."""
    rows = pa.Table.from_batches([rows_of(TWICE)])
    with duckdb.connect() as db:
        db.register("spans", rows)
        assert db.sql("select attributes['retry#3'], len(map_keys(resource)) from spans").fetchall() == [
            ("3", 6)
        ]
