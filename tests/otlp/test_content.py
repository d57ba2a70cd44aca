"""Messages of a span in one schema, from the forms of each library."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.otlp.chat import read_text
from tracelake.otlp.content import conversation, preview
from tracelake.otlp.conventions import TYPE_NAMES, span_type

CALL = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}]
CALLED = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Paris"}}


def text(role: str, value: str, **other: Any) -> dict[str, Any]:
    """Return a message with one text part."""
    return {"role": role, "parts": [{"type": "text", "text": value}], **other}


def span(attributes: dict[str, Any] | None = None, **columns: Any) -> dict[str, Any]:
    """Return a span of table `spans`; values that are no text become JSON."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in columns.items()}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (attributes or {}).items()
    }
    return {"name": "span", "events": [], "input": None, "output": None, **values, "attributes": texts}


def messages(row: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the input and output of a span as JSON values."""
    read = json.loads(msgspec.json.encode(conversation(row)))
    return read["input"], read["output"]


def test_opentelemetry_messages() -> None:
    """Messages with parts keep system instructions, tool calls, results, reasoning and the finish reason."""
    received, returned = messages(
        span(
            {
                "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
                "gen_ai.input.messages": [
                    {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
                    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "weather",
                                                     "arguments": {"city": "Paris"}}]},
                    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "result": "rain"}]},
                ],
                "gen_ai.output.messages": [
                    {"role": "assistant", "finish_reason": "stop", "parts": [
                        {"type": "reasoning", "content": "Look up."}, {"type": "text", "content": "Rain."}]}
                ],
            }
        )
    )  # fmt: skip
    assert received == [
        text("system", "Be brief."),
        text("user", "Hi"),
        {"role": "assistant", "parts": [CALLED]},
        {"role": "tool", "parts": [{"type": "tool_result", "id": "c1", "result": "rain"}]},
    ]
    reasoning = {"type": "reasoning", "text": "Look up."}
    answer = {"type": "text", "text": "Rain."}
    assert returned == [{"role": "assistant", "parts": [reasoning, answer], "finish_reason": "stop"}]


def test_openai_chat_requests_and_responses() -> None:
    """A request of the chat API gives its messages with images and tool calls, a response its choices."""
    content = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
    ]
    received, returned = messages(
        span(
            input={
                "model": "gpt-4o",
                "messages": [
                    {"role": "developer", "content": "Be brief."},
                    {"role": "user", "content": content},
                    {"role": "assistant", "content": None, "tool_calls": CALL},
                    {"role": "tool", "tool_call_id": "c1", "content": "22 C"},
                ],
            },
            output={
                "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "Warm."}}]
            },
        )
    )
    image = {"type": "image", "url": "https://a/b.png"}
    assert received == [
        text("system", "Be brief."),
        {"role": "user", "parts": [{"type": "text", "text": "Look"}, image]},
        {"role": "assistant", "parts": [CALLED]},
        {"role": "tool", "parts": [{"type": "tool_result", "id": "c1", "result": "22 C"}]},
    ]
    assert returned == [text("assistant", "Warm.", finish_reason="stop")]


def test_openai_responses() -> None:
    """Items of the Responses API become messages by role; instructions come first."""
    received, returned = messages(
        span(
            input={
                "model": "gpt-4o",
                "instructions": "Be brief.",
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                    {
                        "type": "function_call",
                        "call_id": "c1",
                        "name": "weather",
                        "arguments": '{"city":"Paris"}',
                    },
                    {"type": "function_call_output", "call_id": "c1", "output": "[1,2]"},
                ],
            },
            output={
                "output": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Simple."}]},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "Rain."}],
                    },
                ]
            },
        )
    )
    assert received == [
        text("system", "Be brief."),
        text("user", "Weather?"),
        {"role": "assistant", "parts": [CALLED]},
        {"role": "tool", "parts": [{"type": "tool_result", "id": "c1", "result": [1, 2]}]},
    ]
    reasoning = {"role": "assistant", "parts": [{"type": "reasoning", "text": "Simple."}]}
    assert returned == [reasoning, text("assistant", "Rain.")]


def test_anthropic() -> None:
    """A result that Anthropic's API sends as the user's is a message of the tool; images keep their content."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    received, returned = messages(
        span(
            input={
                "system": "Be brief.",
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Add"}, image]},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "Use it.", "signature": "x"},
                        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                                  "content": [{"type": "text", "text": "two"}]}]},
                ],
            },
            output={"role": "assistant", "content": [{"type": "text", "text": "Two."}], "stop_reason": "end_turn"},
        )
    )  # fmt: skip
    shown = {"type": "image", "url": "data:image/png;base64,AAAA", "media_type": "image/png"}
    call = {"type": "tool_call", "id": "t1", "name": "add", "arguments": {"a": 1}}
    assert received == [
        text("system", "Be brief."),
        {"role": "user", "parts": [{"type": "text", "text": "Add"}, shown]},
        {"role": "assistant", "parts": [{"type": "reasoning", "text": "Use it."}, call]},
        {"role": "tool", "parts": [{"type": "tool_result", "id": "t1", "result": "two"}]},
    ]
    assert returned == [text("assistant", "Two.", finish_reason="end_turn")]


def test_gemini_and_bedrock() -> None:
    """Parts that are tagged by the name of their member are read, and the model's role is the assistant's."""
    received, returned = messages(
        span(
            input={"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
            output={"candidates": [{"content": {"role": "model", "parts": [
                {"text": "Look up.", "thought": True}, {"functionCall": {"name": "find", "args": {"a": 1}}}]}}]},
        )
    )  # fmt: skip
    assert received == [text("user", "Hi")]
    call = {"type": "tool_call", "name": "find", "arguments": {"a": 1}}
    assert returned == [{"role": "assistant", "parts": [{"type": "reasoning", "text": "Look up."}, call]}]
    received, returned = messages(
        span(
            input={"messages": [
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "n", "input": {"a": 1}}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": "r"}]}}]}]},
            output={"output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}}},
        )
    )  # fmt: skip
    assert [message["role"] for message in received] == ["assistant", "tool"]
    assert received[1]["parts"] == [{"type": "tool_result", "id": "t", "result": "r"}]
    assert returned == [text("assistant", "Hi")]


def test_langchain() -> None:
    """Serialized messages, generations and the state of a graph are read."""
    human = {"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Hi", "type": "human"}}
    calls = [{"name": "weather", "args": {"city": "Paris"}, "id": "c1", "type": "tool_call"}]
    answer = {"lc": 1, "id": ["langchain", "AIMessage"], "kwargs": {"content": "", "tool_calls": calls}}
    received, returned = messages(
        span(input={"messages": [[human]]}, output={"generations": [[{"text": "", "message": answer}]]})
    )
    assert received == [text("user", "Hi")]
    assert returned == [{"role": "assistant", "parts": [CALLED]}]
    state = {
        "messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Hey", "tool_calls": []}]
    }
    assert messages(span(output=state))[1] == [text("user", "Hi"), text("assistant", "Hey")]


def test_vercel() -> None:
    """The answer is joined from several attributes; results with a declared type give their value."""
    received, returned = messages(
        span(
            {
                "ai.prompt": {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]},
                "ai.response.text": "Rain.",
                "ai.response.toolCalls": [
                    {"toolCallId": "c1", "toolName": "weather", "args": '{"city":"Paris"}'}
                ],
            }
        )
    )
    assert received == [text("system", "Be brief."), text("user", "Hi")]
    assert returned == [{"role": "assistant", "parts": [{"type": "text", "text": "Rain."}, CALLED]}]
    output = {"type": "json", "value": {"a": 2}}
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "n", "output": output}
    received, _ = messages(span({"ai.prompt.messages": [{"role": "tool", "content": [result]}]}))
    assert received[0]["parts"] == [{"type": "tool_result", "id": "c1", "name": "n", "result": {"a": 2}}]


def test_pydantic_ai_and_logfire() -> None:
    """Events in an attribute are split into input and output; so are Logfire's request and response."""
    received, returned = messages(
        span(
            {
                "events": [
                    {"event.name": "gen_ai.user.message", "role": "user", "content": "Hi"},
                    {"event.name": "gen_ai.choice", "message": {"role": "assistant", "content": "Hey"}},
                ]
            }
        )
    )
    assert (received, returned) == ([text("user", "Hi")], [text("assistant", "Hey")])
    request = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
    response = {"message": {"role": "assistant", "content": "Hey"}, "usage": {}}
    assert messages(span({"request_data": request, "response_data": response})) == (received, returned)


def test_numbered_attributes_win_over_the_request() -> None:
    """OpenInference records both; content that is a list of parts as text is read as parts."""
    received, _ = messages(
        span(
            {
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.contents.0.message_content.type": "image",
                "llm.input_messages.0.message.contents.0.message_content.image.image.url": "https://a/b.png",
            },
            input={"messages": [{"role": "user", "content": "[image]"}]},
        )
    )
    assert received == [{"role": "user", "parts": [{"type": "image", "url": "https://a/b.png"}]}]
    openllmetry = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": '[{"type":"text","text":"Hi"}]'}
    assert messages(span(openllmetry))[0] == [text("user", "Hi")]


def test_tools() -> None:
    """A tool span has the call as its input and the result as its output."""
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "c1",
    }
    received, returned = messages(span(attributes, input='{"a":1}', output="3"))
    call = {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}
    assert received == [{"role": "assistant", "parts": [call]}]
    result = {"type": "tool_result", "id": "c1", "name": "add", "result": "3"}
    assert returned == [{"role": "tool", "parts": [result]}]


SEARCH = {"type": "web_search_call", "id": "w1", "status": "completed", "action": {"query": "rain"}}
PNG = "data:image/png;base64,AAA"


@pytest.mark.parametrize(
    ("sent", "parts"),
    [
        (
            [SEARCH, {"type": "code_interpreter_call", "id": "w2", "code": "1 + 1"}],
            [
                {"type": "tool_call", "id": "w1", "name": "web_search", "arguments": {"query": "rain"}},
                {"type": "tool_call", "id": "w2", "name": "code_interpreter", "arguments": {"code": "1 + 1"}},
            ],
        ),
        (
            [{"role": "assistant", "content": "Hi"}, {"type": "remove", "id": "9"}],
            [{"type": "text", "text": "Hi"}, {"type": "text", "text": '{"type":"remove","id":"9"}'}],
        ),
        ({"messages": [["ai", "Hi"]]}, [{"type": "text", "text": "Hi"}]),
        (
            {"content": [{"type": "input_audio", "input_audio": {"data": "AAA", "format": "wav"}}]},
            [{"type": "file", "url": "data:application/octet-stream;base64,AAA"}],
        ),
        ({"content": [{"type": "file", "file": {"file_id": "f1"}}]}, [{"type": "file", "name": "f1"}]),
        (
            {"role": "assistant", "content": None, "audio": {"data": "AAA", "transcript": "Hi"}},
            [{"type": "text", "text": "Hi"}],
        ),
        (
            {"content": [{"type": "document", "source": {"type": "text", "data": "Hi"}}]},
            [{"type": "text", "text": "Hi"}],
        ),
        (
            {"content": [{"image": {"format": "png", "source": {"bytes": "AAA"}}}]},
            [{"type": "image", "url": PNG, "media_type": "image/png"}],
        ),
        (
            {"parts": [{"file_data": {"file_uri": "gs://x", "mime_type": "a/b"}}]},
            [{"type": "file", "url": "gs://x", "media_type": "a/b"}],
        ),
        (
            {"parts": [{"type": "image-url", "url": "https://x"}]},
            [{"type": "image", "url": "https://x"}],
        ),
        (
            {"parts": [{"type": "binary", "media_type": "image/png", "content": "AAA"}]},
            [{"type": "image", "url": PNG, "media_type": "image/png"}],
        ),
        (
            {"blocks": [{"block_type": "image", "image": "AAA", "image_mimetype": "image/png"}]},
            [{"type": "image", "url": PNG, "media_type": "image/png"}],
        ),
        (
            {"blocks": [{"block_type": "tool_call", "tool_name": "f", "tool_kwargs": {"a": 1}}]},
            [{"type": "tool_call", "name": "f", "arguments": {"a": 1}}],
        ),
        (
            {"role": "ai", "content": "", "invalid_tool_calls": [{"name": "f", "args": "{", "id": "z"}]},
            [{"type": "tool_call", "id": "z", "name": "f", "arguments": "{"}],
        ),
        (
            [{"type": "tool-result", "toolCallId": "t", "output": {"type": "error-text", "value": "bad"}}],
            [{"type": "tool_result", "id": "t", "result": "bad"}],
        ),
    ],
)
def test_parts_that_few_libraries_send(sent: Any, parts: list[Any]) -> None:
    """Built-in tools, media and unknown items neither disappear nor hide the other messages."""
    _, returned = messages(span(output=sent))
    assert [part for message in returned for part in message["parts"]] == parts


def test_documents_of_a_retriever() -> None:
    """A document without the source of a file is no message."""
    assert messages(span(output=[{"document": {"page_content": "x"}, "score": 1}])) == ([], [])


def test_values_that_are_no_messages() -> None:
    """Arguments of a function give no message; a plain text, or the one text of a chain, gives one."""
    assert messages(span(input={"x": 1, "y": 2})) == ([], [])
    assert messages(span(input={"question": "Why?"}, output="Because.")) == (
        [text("user", "Why?")],
        [text("assistant", "Because.")],
    )


def test_previews() -> None:
    """A preview is the last text of the user or the assistant, a tool call, or the value as it is."""
    assert preview(json.dumps({"messages": [{"role": "user", "content": "Hi"}]})) == "Hi"
    assert preview(json.dumps([{"role": "assistant", "tool_calls": CALL}]), output=True) == "weather(…)"
    assert preview('{"x": 1}') == '{"x": 1}'
    assert preview(None) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [("LLM", "llm"), ('"CHAT_MODEL"', "llm"), ("execute_tool", "tool"), ("ai.toolCall", "tool"), ("x", None)],
)
def test_types(value: str, expected: str | None) -> None:
    """The words of all libraries for a type give one word."""
    assert span_type(value) == expected


_WORDS = st.sampled_from(
    [
        "role",
        "parts",
        "content",
        "type",
        "messages",
        "tool_calls",
        "function",
        "choices",
        "message",
        "kwargs",
        "lc",
        "output",
        "text",
        "image",
        "data",
        "id",
        "tool_result",
        "candidates",
        "generations",
        "system",
        "input",
        "web_search_call",
        "audio",
        "document",
        "source",
        "user",
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=5),
    max_leaves=30,
)


@given(
    _VALUES,
    st.sampled_from(["gen_ai.input.messages", "events", "ai.prompt", "ai.response.toolCalls", *TYPE_NAMES]),
)
def test_any_json_is_read_without_error(value: Any, name: str) -> None:
    """Crafted values of the known forms never raise, and each message can be written as JSON."""
    msgspec.json.encode(conversation(span({name: value}, input=value, output=value)))
    for message in read_text(json.dumps(value), "user") or []:
        assert message.parts
