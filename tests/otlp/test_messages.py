"""Prompts and answers in numbered attributes and in events fill `input` and `output`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.otlp.test_columns import SPAN, row_of
from tracelake import limits
from tracelake.otlp import messages, partition
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.decode import decode_json, decode_protobuf
from tracelake.results import Row


def value_of(value: Any) -> Any:
    """Return a plain value as an AnyValue of OTLP/JSON."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case list():
            return {"arrayValue": {"values": [value_of(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": attributes_of(value)}}
    return {"stringValue": value}


def attributes_of(values: dict[str, Any]) -> list[Any]:
    """Return plain values as attributes of OTLP/JSON."""
    return [{"key": key, "value": value_of(value)} for key, value in values.items()]


def decoded(values: dict[str, Any], events: list[tuple[str, dict[str, Any]]] | None = None) -> Row:
    """Return the row of a span with these attributes and events."""
    shown = [{"name": name, "attributes": attributes_of(entries)} for name, entries in events or []]
    return row_of(attributes=attributes_of(values), events=shown)


OPENLLMETRY = {
    "llm.request.type": "chat",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.prompt.10.role": "user",  # attributes may come in any order
    "gen_ai.prompt.10.content": "And in Rome?",
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.content": "Weather in Paris?",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.id": "call_1",
    "gen_ai.prompt.2.tool_calls.0.name": "weather",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"city":"Paris"}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.content": "sunny",
    "gen_ai.prompt.3.tool_call_id": "call_1",
    "gen_ai.completion.0.finish_reason": "stop",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Sunny.",
}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.contents.0.message_content.type": "text",
    "llm.input_messages.0.message.contents.0.message_content.text": "What is this?",
    "llm.input_messages.0.message.contents.1.message_content.type": "image",
    "llm.input_messages.0.message.contents.1.message_content.image.image.url": "https://x/y.png",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "Look it up.",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "call_1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "lookup",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{}",
}


def check_numbered() -> None:
    """Check that all numbered messages are in the column, with all fields, in numeric order."""
    row = decoded(OPENLLMETRY)
    call = {"id": "call_1", "name": "weather", "arguments": '{"city":"Paris"}'}
    assert json.loads(row["input"]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        {"role": "user", "content": "And in Rome?"},
    ]
    assert row["output"] == '[{"role":"assistant","finish_reason":"stop","content":"Sunny."}]'
    assert len(row["attributes"]) == len(OPENLLMETRY)
    row = decoded(OPENINFERENCE)
    assert json.loads(row["input"]) == [
        {
            "role": "user",
            "contents": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "image": {"image": {"url": "https://x/y.png"}}},
            ],
        },
        {"role": "user", "content": "Look it up."},
    ]
    function = {"name": "lookup", "arguments": "{}"}
    assert json.loads(row["output"]) == [
        {"role": "assistant", "tool_calls": [{"id": "call_1", "function": function}]}
    ]


def test_numbered_attributes_become_messages() -> None:
    """OpenLLMetry and OpenInference number messages; all of them fill the columns, in numeric order."""
    check_numbered()
    row = decoded({"llm.prompts.0.content": "a", "llm.completions.0.content": "b"})
    assert (row["input"], row["output"]) == ('[{"content":"a"}]', '[{"content":"b"}]')


STRANDS = [
    ("gen_ai.system.message", {"content": '[{"text": "Be brief."}]'}),
    ("gen_ai.user.message", {"content": '[{"text": "Hi"}]'}),
    ("gen_ai.choice", {"finish_reason": "end_turn", "message": '[{"text": "Hello"}]'}),
]
AZURE = [
    (
        "gen_ai.user.message",
        {"gen_ai.system": "az.ai.inference", "gen_ai.event.content": '{"role": "user", "content": "Hi"}'},
    ),
    (
        "gen_ai.assistant.message",
        {"gen_ai.event.content": '{"tool_calls": [{"id": "call_1", "type": "function"}]}'},
    ),
    ("gen_ai.tool.message", {"gen_ai.event.content": '{"content": "sunny", "id": "call_1"}'}),
    (
        "gen_ai.choice",
        {
            "gen_ai.event.content": '{"message": {"content": "Sunny."}, "finish_reason": "stop", "index": 0}',
        },
    ),
]


def check_events() -> None:
    """Check that all events are in the columns, in their order, with the role that their name says."""
    row = decoded({}, STRANDS)
    assert json.loads(row["input"]) == [
        {"role": "system", "content": '[{"text": "Be brief."}]'},
        {"role": "user", "content": '[{"text": "Hi"}]'},
    ]
    assert json.loads(row["output"]) == [
        {"role": "assistant", "finish_reason": "end_turn", "content": '[{"text": "Hello"}]'}
    ]
    row = decoded({}, AZURE)
    assert json.loads(row["input"]) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
        {"role": "tool", "content": "sunny", "id": "call_1"},
    ]
    assert json.loads(row["output"]) == [
        {"role": "assistant", "finish_reason": "stop", "index": 0, "content": "Sunny."}
    ]


def test_events_become_messages() -> None:
    """Strands and the Azure SDK send an event for each message."""
    check_events()
    row = decoded({}, [("gen_ai.choice", {"message": {"content": "b", "role": "model"}, "index": 1})])
    assert json.loads(row["output"]) == [{"role": "model", "index": 1, "content": "b"}]
    old = [
        ("gen_ai.content.prompt", {"gen_ai.prompt": "a"}),
        ("gen_ai.content.completion", {"gen_ai.completion": "b"}),
    ]
    row = decoded({}, old)
    assert (row["input"], row["output"]) == (
        '[{"role":"user","content":"a"}]',
        '[{"role":"assistant","content":"b"}]',
    )


@pytest.mark.parametrize("structured", [False, True])
def test_event_with_all_messages_is_taken_as_sent(structured: bool) -> None:
    """The operation's details hold the messages of both columns, as JSON text or as a structured value."""
    asked = [{"role": "user", "parts": [{"type": "text", "content": "why"}]}]
    name = "gen_ai.client.inference.operation.details"
    sent: Any = asked if structured else json.dumps(asked)
    row = decoded({}, [(name, {"gen_ai.input.messages": sent}), (name, {"gen_ai.output.messages": "[]"})])
    assert json.loads(row["input"]) == asked
    assert row["output"] == "[]"


def test_plain_attributes_come_first() -> None:
    """A plain attribute wins over numbered attributes, and those win over events, for each column by itself."""
    row = decoded(OPENLLMETRY | {"input.value": "plain"}, AZURE)
    assert row["input"] == "plain"
    assert "Sunny." in row["output"]
    assert "index" not in row["output"]
    row = decoded(OPENLLMETRY | {"input.value": " "}, AZURE)
    assert "And in Rome?" in row["input"]


def test_without_recorded_content_columns_are_null() -> None:
    """Roles and finish reasons alone are no input and no output."""
    events: Any = [
        ("gen_ai.user.message", {"gen_ai.system": "openai"}),
        ("gen_ai.choice", {"finish_reason": "stop"}),
    ]
    row = decoded({"gen_ai.prompt.0.role": "user"}, events)
    assert (row["input"], row["output"]) == (None, None)


def test_each_span_has_its_own_messages() -> None:
    """Spans of one scope, with and without messages, of JSON and protobuf and by trace, get the same columns."""
    spans = [
        SPAN | {"attributes": attributes_of({"a": 1}), "events": [{"name": "log"}]},
        SPAN
        | {"spanId": "1" * 16, "attributes": attributes_of(OPENINFERENCE), "events": [{"name": "exception"}]},
        SPAN | {"spanId": "2" * 16},
        SPAN
        | {
            "spanId": "3" * 16,
            "attributes": attributes_of({"input.value": "i", "output.value": "o"}),
            "events": [{"name": name, "attributes": attributes_of(sent)} for name, sent in AZURE],
        },
        SPAN
        | {
            "spanId": "4" * 16,
            "events": [{"name": name, "attributes": attributes_of(sent)} for name, sent in STRANDS],
        },
    ]
    payload = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    columns = SpanColumns()
    decode_json(payload, columns)
    batch = columns.take()
    of_json = [batch[name].to_pylist() for name in ("input", "output")]
    assert [value is None for value in of_json[0]] == [True, False, True, False, False]
    assert "Look it up." in str(of_json[0][1])
    assert (of_json[0][3], of_json[1][3]) == ("i", "o")
    assert "Hello" in str(of_json[1][4])
    (trace,) = partition.take_apart("json", payload).values()
    of_traces = [[row[partition.COLUMNS.index(name)] for row in trace.rows] for name in ("input", "output")]
    assert of_traces == of_json
    decode_protobuf(TracesData.FromString(trace.data).SerializeToString(), columns)
    batch = columns.take()
    assert [batch[name].to_pylist() for name in ("input", "output")] == of_json


HOSTILE: tuple[dict[str, Any], ...] = (
    {"gen_ai.prompt.0.content": "a", f"gen_ai.prompt.{'9' * 5000}.content": "b"},
    {"gen_ai.prompt.0.content": "a", "gen_ai.prompt.999999999.content": "b"},
    {"gen_ai.prompt.0.content": "a", "gen_ai.prompt.0." + "x." * 100_000: "b"},
    {"gen_ai.prompt.0.content": "a", "gen_ai.prompt.0.content.text": "b"},
    {
        "gen_ai.prompt.0.content": "a",
        "gen_ai.prompt.0.message": "b",
        "gen_ai.prompt.0.": "c",
        "gen_ai.prompt.x": "d",
    },
    {"gen_ai.prompt.0.content": "a", "gen_ai.prompt.٣.content": "b", "gen_ai.prompt.0.t.٣": "c"},
    {"gen_ai.prompt.0.content": "a", "gen_ai.prompt.0.t.999999999.x": "b", "gen_ai.prompt.0.t.5.x": "c"},
)


@pytest.mark.parametrize("values", HOSTILE)
def test_odd_keys_cost_nothing(values: dict[str, Any]) -> None:
    """Keys with huge numbers, deep paths and conflicts neither fail nor hide the other messages."""
    row = decoded(values)
    assert json.loads(row["input"])[0]["content"] == "a"
    assert len(row["attributes"]) == len(values)


def test_depth_of_a_path_is_bounded() -> None:
    """Up to MESSAGE_PATH_SPLITS_MAX dots nest; what is behind them is one name."""
    for dots in (messages.MESSAGE_PATH_SPLITS_MAX, messages.MESSAGE_PATH_SPLITS_MAX + 1):
        row = decoded({"gen_ai.prompt.0.content": "a", "gen_ai.prompt.0." + "x." * dots + "y": "b"})
        inner, depth = json.loads(row["input"])[0], 0
        while isinstance(inner, dict):
            inner, depth = inner.get("x") or inner.get("y") or inner["x.y"], depth + 1
        assert (inner, depth) == ("b", messages.MESSAGE_PATH_SPLITS_MAX + 1)


def check_bounds() -> None:
    """Check that a column has MESSAGES_MAX messages at most, of numbered attributes and of events."""
    many = limits.MESSAGES_MAX + 1
    row = decoded({f"gen_ai.prompt.{i}.content": str(i) for i in range(many)})
    found = json.loads(row["input"])
    assert [message["content"] for message in found] == [str(i) for i in range(limits.MESSAGES_MAX)]
    row = decoded({}, [("gen_ai.user.message", {"content": str(i)}) for i in range(many)])
    found = json.loads(row["input"])
    assert [message["content"] for message in found] == [str(i) for i in range(limits.MESSAGES_MAX)]
    assert len(row["events"]) == many


def test_messages_are_bounded() -> None:
    """One message more than MESSAGES_MAX stays out of the column, and in the attributes or events."""
    check_bounds()


def test_bytes_of_messages_are_bounded() -> None:
    """Messages beyond the greatest text stay out of the column; those before them are in it."""
    half = "x" * (limits.OTLP_TEXT_MAX_BYTES // 2)
    row = decoded({f"gen_ai.prompt.{i}.content": half for i in range(3)})
    assert row["input"] == f'[{{"content":"{half}"}}]'


@pytest.mark.parametrize("extra", [0, 1])
def test_large_event_content_is_not_parsed(extra: int) -> None:
    """JSON text beyond MESSAGE_PARSED_MAX_BYTES is the content itself, so parsing stays cheap."""
    frame = len('{"content":""}')
    text = json.dumps(
        {"content": "x" * (limits.MESSAGE_PARSED_MAX_BYTES - frame + extra)}, separators=(",", ":")
    )
    (message,) = json.loads(decoded({}, [("gen_ai.choice", {"gen_ai.event.content": text})])["output"])
    assert message["content"] == (text if extra else text[len('{"content":"') : -2])


@pytest.mark.parametrize("content", ["no json", "[1]", "null", '{"content":', '{"content":' + "[" * 5000])
def test_event_content_that_is_no_object(content: str) -> None:
    """Content that is no JSON object is kept as text."""
    (message,) = json.loads(decoded({}, [("gen_ai.choice", {"gen_ai.event.content": content})])["output"])
    assert message == {"role": "assistant", "content": content}


VERCEL = {
    "ai.model.id": "gpt-4o",
    "ai.prompt.messages": '[{"role":"user","content":"why"}]',
    "ai.response.text": "",
    "ai.response.toolCalls": '[{"toolName":"weather"}]',
    "ai.usage.inputTokens": 3,
    "ai.usage.outputTokens": 4,
}
PYDANTIC = {"all_messages_events": '[{"role":"user"}]', "final_result": "so"}


def test_names_of_vercel_and_pydantic() -> None:
    """Both fill the columns; an empty response gives way to the tool calls."""
    row = decoded(VERCEL)
    assert (row["input"], row["output"]) == (VERCEL["ai.prompt.messages"], VERCEL["ai.response.toolCalls"])
    assert (row["model"], row["input_tokens"], row["output_tokens"]) == ("gpt-4o", 3, 4)
    row = decoded(PYDANTIC)
    assert (row["input"], row["output"]) == (PYDANTIC["all_messages_events"], "so")
