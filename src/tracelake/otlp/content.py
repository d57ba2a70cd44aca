"""The conversation and the type of a span in one schema, whatever instrumentation recorded them.

Attributes stay as sent. Messages are built at each read, so that an improved reader also applies to old spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tracelake.otlp import chat
from tracelake.otlp import messages as recorded
from tracelake.otlp.conventions import TYPE_NAMES, SpanType, span_type


class Conversation(msgspec.Struct, frozen=True):
    """The messages that a span received and returned; empty if its input or output is no message."""

    input: tuple[chat.ChatMessage, ...] = ()
    output: tuple[chat.ChatMessage, ...] = ()


_INPUTS: Final = (
    *("langfuse.observation.input", "ai.prompt.messages", "ai.prompt"),
    *("pydantic_ai.all_messages", "all_messages_events", "request_data"),
)
"""Attributes that hold messages of the input, before column `input`."""

_OUTPUTS: Final = ("langfuse.observation.output", "response_data")

_SYSTEM: Final = "gen_ai.system_instructions"

_EVENTS: Final = "events"
"""Attribute in which Pydantic AI and Logfire put the events of a model call, as JSON."""


def span_type_of(span: Mapping[str, Any]) -> SpanType | None:
    """Return the type of a span, given its row of table `spans`, or None for a span of another kind."""
    if stated := span.get("type"):
        return span_type(stated)
    attributes: Mapping[str, str] = dict(span.get("attributes") or {})
    return next(
        (span_kind for name in TYPE_NAMES if (span_kind := span_type(attributes.get(name) or ""))), None
    )


def conversation(span: Mapping[str, Any]) -> Conversation:
    """Return the messages of a span, given its row of table `spans`.

    For a tool span, the input is the tool call and the output its result. If the input or output is not a message, for
    example the arguments of a function, its messages are empty.
    """
    attributes: Mapping[str, str] = dict(span.get("attributes") or {})
    if span_type_of(span) == "tool":
        return _tool_call(span, attributes)
    numbered = recorded.from_numbered(_entries(attributes))
    events = recorded.from_events(
        (event["name"], _entries(dict(event.get("attributes") or {}))) for event in span.get("events") or ()
    )
    received, returned = _of_events(chat.parse_json(attributes.get(_EVENTS)))

    def candidates(column: str, names: Iterable[str]) -> Iterator[str | None]:
        # Single messages are more exact than the request or the response, which a library may record as well.
        yield attributes.get(f"gen_ai.{column}.messages")
        yield from (numbered.get(column), events.get(column))
        yield from map(attributes.get, names)
        yield span.get(column)

    received = received or _first(candidates("input", _INPUTS), "user")
    returned = returned or _of_vercel(attributes) or _first(candidates("output", _OUTPUTS), "assistant")
    if not any(message.role == "system" for message in received):
        received = [*_first([attributes.get(_SYSTEM)], "system"), *received]
    received, returned = _without_repeats(received, returned, is_model=span_type_of(span) == "llm")
    return Conversation(tuple(received), tuple(_with_calls(returned, attributes)))


def _without_repeats(
    received: chat.Messages, returned: chat.Messages, *, is_model: bool
) -> tuple[chat.Messages, chat.Messages]:
    """Remove the input from an output that is a whole conversation, and the output from such an input.

    Agents and chains may record the state of a conversation. A model may repeat the last answer that it received.
    """
    history = [message for message in received if message.role != "system"]
    if history and len(returned) > len(history) and _are_same(returned[: len(history)], history):
        returned = returned[len(history) :]
    count = len(returned)
    if not is_model and 0 < count < len(received) and _are_same(received[-count:], returned):
        received = received[:-count]
    return received, returned


def _are_same(several: chat.Messages, others: chat.Messages) -> bool:
    pairs = zip(several, others, strict=True)
    return all(message.role == other.role and message.parts == other.parts for message, other in pairs)


def _with_calls(messages: chat.Messages, attributes: Mapping[str, str]) -> chat.Messages:
    """Add tool calls that the sender stored in another attribute than the text of the answer."""
    calls = chat.read_calls(chat.parse_json(attributes.get("gen_ai.tool.calls")))
    if len(messages) != 1 or not calls:
        return messages
    return [msgspec.structs.replace(messages[0], parts=(*messages[0].parts, *calls))]


def _entries(attributes: Mapping[str, str]) -> recorded.Entries:
    return [(key, text, "s") for key, text in attributes.items()]


def preview(text: str | None, *, output: bool = False) -> str | None:
    """Return the text of column `input` or `output` that lists show.

    It is the last text of the user in an input, and of the assistant in an output. If that role has no text, it is the
    last text of any role. If there is no text, it is `name(…)` of the last tool call. If that is missing, too, or
    `text` is no message, it is `text` unchanged.
    """
    role = "assistant" if output else "user"
    read = chat.read_text(text, role)
    if not read:
        return text
    texts = [message.text for message in read if message.text]
    of_role = [message.text for message in read if message.role == role and message.text]
    calls = [f"{part.name}(…)" for message in read for part in message.parts if part.type == "tool_call"]
    return next((several[-1] for several in (of_role, texts, calls) if several), text)


def _first(texts: Iterable[str | None], role: str) -> chat.Messages:
    """Return the messages of the first text that has any."""
    return next(filter(None, (chat.read_text(text, role) for text in texts)), [])


def _tool_call(span: Mapping[str, Any], attributes: Mapping[str, str]) -> Conversation:
    names = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name", "tool_name")
    name = next((attributes[key] for key in names if attributes.get(key)), span.get("name"))
    ids = ("gen_ai.tool.call.id", "tool_call.id", "ai.toolCall.id")
    call_id = next((attributes[key] for key in ids if attributes.get(key)), None)
    received, returned = span.get("input"), span.get("output")
    arguments, id_of_input = chat.read_arguments(received)
    message = chat.read_tool_message(returned)
    call_id = call_id or id_of_input or (message.id if message else None)
    call = chat.MessagePart(type="tool_call", id=call_id, name=name, arguments=arguments)
    content = message.result if message else chat.json_or_text(returned)
    result = chat.MessagePart(type="tool_result", id=call_id, name=name, result=content)
    return Conversation(
        (chat.ChatMessage(role="assistant", parts=(call,)),) if received else (),
        (chat.ChatMessage(role="tool", parts=(result,)),) if returned else (),
    )


def _of_vercel(attributes: Mapping[str, str]) -> chat.Messages | None:
    """Return the answer of a Vercel AI SDK span, which is spread over several attributes."""
    parts: list[chat.MessagePart] = []
    if reasoning := attributes.get("ai.response.reasoning"):
        parts.append(chat.MessagePart(type="reasoning", text=reasoning))
    if text := attributes.get("ai.response.text") or attributes.get("ai.response.object"):
        parts.append(chat.MessagePart(type="text", text=text))
    parts += chat.read_calls(chat.parse_json(attributes.get("ai.response.toolCalls")))
    reason = attributes.get("ai.response.finishReason")
    return [chat.ChatMessage(role="assistant", parts=tuple(parts), finish_reason=reason)] if parts else None


def _of_events(events: Any) -> tuple[chat.Messages, chat.Messages]:
    """Return input and output of a JSON list of OpenTelemetry events."""
    received: chat.Messages = []
    returned: chat.Messages = []
    for event in chat.read_objects(events):
        is_choice = event.get("event.name") == "gen_ai.choice"
        if message := chat.read_message(event, "assistant" if is_choice else "user"):
            (returned if is_choice else received).append(message)
    return received, returned
