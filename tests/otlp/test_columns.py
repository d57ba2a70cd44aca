"""Content of each column of a span, and the attribute names that fill derived columns."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tracelake.otlp import conventions
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.otlp.encode import encode, to_json
from tracelake.otlp.schema import SPANS
from tracelake.results import Row

SPAN = {"traceId": "0AF7651916CD43DD8448EB211C80319C", "spanId": "B7AD6B7169203331"}


def row_of(resource: Any = None, **span: Any) -> Row:
    """Return the row of one span, decoded from JSON."""
    group = {"resource": resource, "scopeSpans": [{"spans": [SPAN | span]}]}
    columns = SpanColumns()
    decoded = decode_json(json.dumps({"resourceSpans": [group]}).encode(), columns)
    assert decoded.reasons == ()
    (row,) = columns.take().to_pylist()
    return dict(row)


def attributes(**values: Any) -> list[Any]:
    """Return attributes of AnyValues; a dot in a name is written as two underscores."""
    return [{"key": key.replace("__", "."), "value": value} for key, value in values.items()]


def test_ids_and_times() -> None:
    """Ids are lower case; duration is end minus start, 0 for a running span, and negative if clocks differ."""
    row = row_of(startTimeUnixNano="5", endTimeUnixNano=8, parentSpanId="ABCDEF0123456789")
    assert row["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert row["span_id"] == "b7ad6b7169203331"
    assert row["parent_span_id"] == "abcdef0123456789"
    assert (row["start_ns"], row["end_ns"], row["duration_ns"]) == (5, 8, 3)
    assert row_of(startTimeUnixNano="5")["duration_ns"] == 0
    assert row_of(startTimeUnixNano="5", endTimeUnixNano="3")["duration_ns"] == -2


@pytest.mark.parametrize("parent", ["", None, "0" * 16])
def test_roots_have_no_parent(parent: str | None) -> None:
    """No parent, null, and zeros, which some senders write, all mean a root."""
    assert row_of(parentSpanId=parent)["parent_span_id"] is None


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (0, "UNSPECIFIED"),
        (2, "SERVER"),
        ("3", "CLIENT"),
        ("SPAN_KIND_PRODUCER", "PRODUCER"),
        (99, "99"),
        (-1, "-1"),
    ],
)
def test_kind(kind: Any, word: str) -> None:
    """Kinds are words; the sender's names are accepted too, and unknown numbers stay digits."""
    assert row_of(kind=kind)["kind"] == word


def test_status() -> None:
    """An absent status is null, an empty one is UNSET, and a message is kept with its code."""
    assert (row_of()["status"], row_of(status=None)["status"]) == (None, None)
    assert (row_of(status={})["status"], row_of(status={})["status_message"]) == ("UNSET", None)
    row = row_of(status={"code": "STATUS_CODE_ERROR", "message": "boom"})
    assert (row["status"], row["status_message"]) == ("ERROR", "boom")


def test_nulls_and_unknown_fields() -> None:
    """In OTLP/JSON null means absent, and unknown fields are ignored."""
    row = row_of(
        name=None, attributes=None, events=[{"name": None, "new": 1}], links=None, future={"a": [None]}
    )
    assert (row["name"], row["attributes"], row["links"]) == ("", [], [])
    assert [event["name"] for event in row["events"]] == [""]


@pytest.mark.parametrize(
    ("value", "text", "letter"),
    [
        ({"stringValue": ""}, "", "s"),
        ({"stringValue": "a\0b"}, "a\0b", "s"),
        ({"intValue": "-9223372036854775808"}, "-9223372036854775808", "i"),
        ({"intValue": 7}, "7", "i"),
        ({"doubleValue": 1}, "1.0", "d"),
        ({"doubleValue": "NaN"}, "NaN", "d"),
        ({"doubleValue": "-Infinity"}, "-Infinity", "d"),
        ({"doubleValue": -0.0}, "-0.0", "d"),
        ({"boolValue": True}, "true", "b"),
        ({"boolValue": False}, "false", "b"),
        ({"bytesValue": "/w=="}, "/w==", "x"),
        ({"bytesValue": "_w"}, "/w==", "x"),
        ({"bytesValue": ""}, "", "x"),
        ({}, "", "n"),
        ({"stringValue": None}, "", "n"),
        (None, "", "-"),
        ({"arrayValue": {}}, "[]", "j"),
        ({"kvlistValue": {"values": []}}, "{}", "j"),
        (
            {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 1}, {"boolValue": True}, {}]}},
            "[1,1.0,true,null]",
            "j",
        ),
        (
            {
                "kvlistValue": {
                    "values": [{"key": "b", "value": {"stringValue": "ü"}}, {"key": "a", "value": {}}]
                }
            },
            '{"b":"ü","a":null}',
            "j",
        ),
    ],
)
def test_attribute_text_and_type(value: Any, text: str, letter: str) -> None:
    """Each attribute value has its text and the letter of its type; maps of only strings store no letters."""
    row = row_of(attributes=[{"key": "k", "value": value}])
    assert row["attributes"] == [("k", text)]
    assert row["otlp"]["attribute_types"] == (None if letter == "s" else letter)


def check_not_plain(inner: Any, text: str, tail: str) -> None:
    """Check that a value that JSON cannot hold exactly is readable as text, fills columns, and round-trips exactly."""
    value = {"kvlistValue": {"values": [{"key": "text", "value": {"stringValue": "carrot"}}, *inner]}}
    columns = SpanColumns()
    span = SPAN | {"attributes": attributes(mlflow__spanInputs=value, output__value=value)}
    payload = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    assert decode_json(payload, columns).accepted == 1
    rows = columns.take()
    (row,) = rows.to_pylist()
    assert row["input"] == row["output"] == dict(row["attributes"])["output.value"] == text
    assert row["otlp"]["attribute_types"] == f"rr[{tail},{tail}]"
    again = json.loads(to_json(encode(rows)))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert again["attributes"] == span["attributes"]


NOT_PLAIN: Final = [
    ([{"key": "k", "value": {"doubleValue": "NaN"}}], '{"text":"carrot","k":"NaN"}', '{"d":[2]}'),
    ([{"key": "k", "value": {"bytesValue": "AA=="}}], '{"text":"carrot","k":"AA=="}', '{"x":[2]}'),
    ([{"key": "k"}], '{"text":"carrot","k":null}', '{"-":[2]}'),
    (
        [{"key": "text"}, {"key": "text#2"}],
        '{"text":"carrot","text#2":null,"text#2#2":null}',
        '{"k":[[2,"text",0],[3,"text#2",0]],"-":[2,3]}',
    ),
    (
        [{"key": "a", "value": {"arrayValue": {"values": [{}, {"arrayValue": {}}, {"bytesValue": "AA=="}]}}}],
        '{"text":"carrot","a":[null,[],"AA=="]}',
        '{"x":[5]}',
    ),
]


@pytest.mark.parametrize(("inner", "text", "tail"), NOT_PLAIN)
def test_values_that_plain_json_cannot_hold(inner: Any, text: str, tail: str) -> None:
    """A null or NaN leaves the rest of the value readable."""
    check_not_plain(inner, text, tail)


def test_values_of_lakes_of_earlier_code() -> None:
    """Letter `p`, base64 of the protobuf value, is no longer written but still readable."""
    value = AnyValue(bytes_value=b"x")
    rows = columns_with(text=base64.b64encode(value.SerializeToString()).decode(), types="p")
    (attribute,) = encode(rows).resource_spans[0].scope_spans[0].spans[0].attributes
    assert attribute.value == value


def columns_with(text: str, types: str) -> pa.RecordBatch:
    """Return a row with one attribute as stored."""
    columns = SpanColumns()
    payload = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN | {"attributes": [{"key": "k"}]}]}]}]}
    decode_json(json.dumps(payload).encode(), columns)
    (row,) = columns.take().to_pylist()
    row["attributes"], row["otlp"]["attribute_types"] = [("k", text)], types
    return pa.RecordBatch.from_pylist([row], SPANS)


def test_repeated_names_and_order_are_kept() -> None:
    """A repeated name is numbered (see test_repeats.py), and attributes keep the order of the span."""
    row = row_of(attributes=[{"key": key, "value": {"intValue": i}} for i, key in enumerate("bab")])
    assert row["attributes"] == [("b", "0"), ("a", "1"), ("b#2", "2")]
    assert row["otlp"]["attribute_types"] == "iiI"


def test_service_and_workspace() -> None:
    """Service and workspace come from the resource; without it the workspace is `default`."""
    resource = {
        "attributes": attributes(
            service__name={"stringValue": "s"}, tracelake__workspace={"stringValue": "w"}
        )
    }
    row = row_of(resource)
    assert (row["service"], row["workspace"]) == ("s", "w")
    assert row["resource"] == [("service.name", "s"), ("tracelake.workspace", "w")]
    assert (row_of()["service"], row_of()["workspace"], row_of()["resource"]) == (None, "default", None)
    assert (row_of({})["workspace"], row_of({})["resource"]) == ("default", [])


@pytest.mark.parametrize("column", conventions.TEXT_COLUMNS)
def test_names_of_a_text_column(column: str) -> None:
    """Each attribute name of the mapping fills its column, and the first present one wins."""
    names = conventions.TEXT_COLUMNS[column]
    for i, name in enumerate(names):
        texts = {other: '{"user_id": "metadata"}' if other == "metadata" else other for other in names[i:]}
        later = [{"key": other, "value": {"stringValue": texts[other]}} for other in reversed(texts)]
        assert row_of(attributes=later)[column] == name


def test_user_of_metadata_that_is_no_object() -> None:
    """Metadata of OpenInference names a user only in an object with a text."""
    for text in ("user-3", '["user_id"]', '{"user_id": 3}', '{"user_id": " "}', '{"user_id"'):
        assert row_of(attributes=[{"key": "metadata", "value": {"stringValue": text}}])["user_id"] is None


MEMBERS = {
    "input_tokens": ("input", "input_tokens"),
    "output_tokens": ("output", "output_tokens"),
    "cached_input_tokens": ("input_cached_tokens", "cache_read_input_tokens"),
    "cache_write_tokens": ("cache_creation_input_tokens", "cache_creation_input_tokens"),
    "reasoning_tokens": ("output_reasoning_tokens", "-"),
    "total_tokens": ("total", "total_tokens"),
}
"""The member of Langfuse's and of MLflow's usage that fills each column."""


@pytest.mark.parametrize("column", conventions.TOKEN_COLUMNS)
def test_names_of_a_token_column(column: str) -> None:
    """Each attribute name of the mapping fills its column, from an integer, digits, or a member of a JSON object."""
    for name in conventions.TOKEN_COLUMNS[column]:
        usage = json.dumps({MEMBERS[column][name.startswith("mlflow")]: 12})
        value = {"stringValue": usage} if name.startswith(("langfuse", "mlflow")) else {"intValue": "12"}
        assert row_of(attributes=[{"key": name, "value": value}])[column] == 12


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"intValue": "637"}, 637),
        ({"intValue": "0"}, 0),
        ({"intValue": str(2**63 - 1)}, 2**63 - 1),
        ({"intValue": "-1"}, None),
        ({"intValue": str(-(2**63))}, None),
        ({"stringValue": "-1"}, None),
        ({"stringValue": "637"}, 637),
        ({"stringValue": "many"}, None),
        ({"stringValue": "9" * 30}, None),
        ({"stringValue": "²"}, None),
        ({"doubleValue": 1.5}, None),
        ({"doubleValue": 12.0}, 12),
        ({"doubleValue": -0.0}, 0),
        ({"doubleValue": -1.0}, None),
        ({"doubleValue": 2.0**63}, None),
        ({"doubleValue": "NaN"}, None),
        ({"doubleValue": "Infinity"}, None),
        ({"stringValue": " 12.0 "}, 12),
        ({"stringValue": "1_0"}, None),
        ({"stringValue": "1.5"}, None),
        ({"stringValue": str(2**63 - 1)}, 2**63 - 1),
        ({"stringValue": str(2**63)}, None),
        ({"boolValue": True}, None),
        ({"arrayValue": {}}, None),
        (None, None),
    ],
)
def test_tokens_that_are_no_count(value: Any, tokens: int | None) -> None:
    """A token count that is fractional, negative or too large leaves the column null, and stays in the map."""
    row = row_of(attributes=[{"key": "gen_ai.usage.input_tokens", "value": value}])
    assert row["input_tokens"] == tokens
    assert len(row["attributes"]) == 1


@pytest.mark.parametrize(
    "usage",
    [
        "no json",
        "[1]",
        '{"input_tokens":"five"}',
        '{"input_tokens":1.5}',
        '{"input_tokens":true}',
        '{"input_tokens":-5}',
        '{"input_tokens":9223372036854775808}',
        "{}",
    ],
)
def test_token_usage_that_is_no_object_of_counts(usage: str) -> None:
    """A usage text without an integer member leaves the column null."""
    row = row_of(attributes=attributes(mlflow__chat__tokenUsage={"stringValue": usage}))
    assert row["input_tokens"] is None


@pytest.mark.parametrize("number", ['"5"', "5.0", "5"])
def test_token_usage_as_double_or_text(number: str) -> None:
    """A whole number in a JSON usage object counts, whichever type it has."""
    usage = f'{{"input_tokens":{number}}}'
    assert row_of(attributes=attributes(mlflow__chat__tokenUsage={"stringValue": usage}))["input_tokens"] == 5


UNUSABLE_TEXTS: tuple[Any, ...] = (
    {"stringValue": ""},
    {"stringValue": " \n"},
    {"bytesValue": "AAE="},
    {},
    None,
)
UNUSABLE_COUNTS: tuple[Any, ...] = (
    {"stringValue": "n/a"},
    {"stringValue": ""},
    {"intValue": -1},
    {"doubleValue": 0.5},
    {},
    None,
)


@pytest.mark.parametrize("column", conventions.COLUMNS)
def test_unusable_values_do_not_hide_the_next_name(column: str) -> None:
    """For every mapped column, an empty or unusable value is skipped, and the next usable name fills the column."""
    is_text = column in conventions.TEXT_COLUMNS
    names = conventions._SOURCES[column]
    members = (*MEMBERS.get(column, ()), "total_cost")
    usage: dict[str, Any] = {"stringValue": json.dumps(dict.fromkeys(members, 7))}
    if "langfuse" not in names[-1] and "mlflow" not in names[-1]:
        usage = {"intValue": "7"}
    good = {"stringValue": "good"} if is_text else usage
    value: Any = "good" if is_text else 7
    if column == "type":
        good, value = {"stringValue": "ai.embed.doEmbed"}, "embedding"
    last = {"key": names[-1], "value": good}
    for name in names[:-1]:
        for bad in UNUSABLE_TEXTS if is_text or column == "type" else UNUSABLE_COUNTS:
            if column == "cost" and bad == {"doubleValue": 0.5}:
                continue
            row = row_of(attributes=[{"key": name, "value": bad}, last])
            assert row[column] == value, (name, bad)
            assert len(row["attributes"]) == 2


def test_empty_json_texts_of_mlflow_are_absent() -> None:
    """MLflow writes an empty string as two quotes and an absent value as null; neither fills a column."""
    for empty in ('""', '" "', "null"):
        row = row_of(
            attributes=attributes(
                mlflow__spanInputs={"stringValue": empty}, gen_ai__prompt={"stringValue": "ask"}
            )
        )
        assert row["input"] == "ask"


@pytest.mark.parametrize("levels", [150, 400, 900, 20_000])
def test_token_usage_beside_something_deep(levels: int) -> None:
    """The token count is found next to any deep value, because a row must not depend on the stack of its task."""
    usage = '{"other":' + "[" * levels + "1" + "]" * levels + ',"input_tokens":5}'
    assert row_of(attributes=attributes(mlflow__chat__tokenUsage={"stringValue": usage}))["input_tokens"] == 5


def test_mlflow_strings_lose_their_quotes() -> None:
    """MLflow writes values as JSON: the column has the plain string, the map the original."""
    row = row_of(
        attributes=attributes(
            mlflow__spanInputs={"stringValue": '"ask"'}, mlflow__llm__model={"stringValue": '"m'}
        )
    )
    assert (row["input"], row["model"]) == ("ask", '"m')
    assert row["attributes"][0] == ("mlflow.spanInputs", '"ask"')


def test_values_without_readable_text_derive_nothing() -> None:
    """Bytes and absent values give no session."""
    for value in ({"bytesValue": "AA=="}, {}, None):
        assert row_of(attributes=[{"key": "session.id", "value": value}])["session_id"] is None
    assert row_of(attributes=[{"key": "session.id", "value": {"intValue": 5}}])["session_id"] == "5"


def test_derived_columns_of_neighbours() -> None:
    """In one scope, each span's derived columns come only from its own attributes."""
    spans = [
        SPAN | {"attributes": attributes(a={"intValue": 1}, session__id={"stringValue": "one"})},
        SPAN,
        SPAN | {"attributes": attributes(user__id={"stringValue": "two"}, session__id={"stringValue": ""})},
    ]
    columns = SpanColumns()
    payload = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    decode_json(payload, columns)
    batch = columns.take()
    assert batch["session_id"].to_pylist() == ["one", None, None]
    assert batch["user_id"].to_pylist() == [None, None, "two"]


def test_builder_counts_and_starts_again() -> None:
    """The builder's row and byte counts grow with each payload; taking the batch resets both to zero."""
    data = pb.TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for i in range(1, 101):
        scope.spans.add(trace_id=b"\1" * 16, span_id=i.to_bytes(8), name="n" * 100)
    columns = SpanColumns()
    for payloads in (1, 2):
        decode_protobuf(data.SerializeToString(), columns)
        assert columns.rows == 100 * payloads
    approx = columns.approx_bytes
    batch = columns.take()
    assert batch.schema == SPANS
    assert batch.nbytes / 2 < approx < batch.nbytes * 4
    assert (columns.rows, columns.approx_bytes) == (0, 0)
    assert encode(batch.slice(100)) == data
