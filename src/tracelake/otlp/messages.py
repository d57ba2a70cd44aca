"""Prompts and answers of GenAI spans that no single attribute holds, as a JSON list of messages.

Libraries also send messages as numbered attributes or as span events:

- OpenLLMetry: `gen_ai.prompt.0.content`, `gen_ai.completion.0.tool_calls.0.name`; before: `llm.prompts.0.content`
- OpenInference: `llm.input_messages.0.message.content`, `llm.output_messages.0.message.tool_calls.0.tool_call.id`
- OpenTelemetry: events `gen_ai.client.inference.operation.details`, `gen_ai.user.message`, `gen_ai.choice`

`fill` uses them only for spans without a value in column `input` or `output`. Attributes and events stay as sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tracelake.limits import MESSAGE_PARSED_MAX_BYTES, MESSAGES_MAX, OTLP_TEXT_MAX_BYTES
from tracelake.otlp.parse import pruned
from tracelake.otlp.values import READABLE, Message

if TYPE_CHECKING:
    from tracelake.otlp.columns import Attributes, Children

MESSAGE_PATH_SPLITS_MAX: Final = 8
"""Dots in the key of a numbered message at which its path is split, behind the number."""

Entries: TypeAlias = list[tuple[str, str, str]]
"""The attributes of one span or event: key, text and type letter of each."""
_Message: TypeAlias = dict[str, Any]

_PREFIXES: Final = {
    "gen_ai.prompt.": "input",
    "gen_ai.completion.": "output",
    "llm.input_messages.": "input",
    "llm.output_messages.": "output",
    "llm.prompts.": "input",
    "llm.completions.": "output",
}
"""Prefixes of numbered attributes, and the column of each. If a span has two of a column, the first one here wins."""
_ANY_PREFIX: Final = tuple(_PREFIXES)
_NUMBERED: Final = re.compile(rf"({'|'.join(map(re.escape, _PREFIXES))})([0-9]{{1,9}})\.(.+)", re.DOTALL)
FIRST_KEYS: Final = frozenset(
    f"{prefix}0.{field}"
    for prefix in _PREFIXES
    for field in (
        "role",
        "content",
        "message.role",
        "message.content",
        "message.contents.0.message_content.type",
    )
)
"""Keys of message 0. Without them, the keys of a scope are not searched for prefixes, which slows decoding by 10 %."""
_WRAPPERS: Final = frozenset({"message", "message_content", "tool_call"})
"""Names that OpenInference repeats at each level of a path."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

_EVENTS: Final = {
    "gen_ai.system.message": ("input", "system"),
    "gen_ai.user.message": ("input", "user"),
    "gen_ai.assistant.message": ("input", "assistant"),
    "gen_ai.tool.message": ("input", "tool"),
    "gen_ai.content.prompt": ("input", "user"),
    "gen_ai.choice": ("output", "assistant"),
    "gen_ai.content.completion": ("output", "assistant"),
}
"""Events that carry one message: its column, and its role if the event names none."""
_DETAILS: Final = {"gen_ai.input.messages": "input", "gen_ai.output.messages": "output"}
"""Attributes that carry all messages of a column, in the event `gen_ai.client.inference.operation.details`."""
_EVENT_NAMES: Final = frozenset({"gen_ai.client.inference.operation.details", *_EVENTS})
_CONTENTS: Final = frozenset({"gen_ai.prompt", "gen_ai.completion"})
"""Attributes of the oldest events that are the content."""
_BODIES: Final = ("gen_ai.event.content", "message")
"""Attributes that hold a message as a JSON object, or else its content. The first may contain the second."""
_METADATA: Final = frozenset({"role", "id", "index", "finish_reason"})
"""Fields that say nothing if a message has no other, as when a library does not record content."""
_OBJECT_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def has_events(events: Iterable[Message]) -> bool:
    """Return whether any of these events may carry messages."""
    return not _EVENT_NAMES.isdisjoint([event.name for event in events])


def fill(derived: dict[str, list[Any]], attributes: Attributes, events: Children) -> None:
    """Set `input` and `output` of the spans that have none, from numbered attributes, else from events."""
    columns = {name: derived.get(name) or [None] * len(attributes.counts) for name in ("input", "output")}
    of_events = _entries(events.attributes)
    event_names = (event.name for event in events.flat)
    for span, (entries, count) in enumerate(zip(_entries(attributes), events.counts, strict=True)):
        of_span = zip(islice(event_names, count), islice(of_events, count), strict=True)
        missing = [name for name, values in columns.items() if values[span] is None]
        assembled = from_numbered(entries) if missing else {}
        if any(name not in assembled for name in missing):
            assembled = from_events(of_span) | assembled
        for _ in of_span:  # the next span begins behind the events of this one
            pass
        for name in missing:
            columns[name][span] = assembled.get(name)
    derived |= {name: values for name, values in columns.items() if any(values)}


def _entries(attributes: Attributes) -> Iterator[Entries]:
    every = zip(attributes.keys, attributes.texts, attributes.letters or repeat("s"), strict=False)
    for count in attributes.counts:
        yield list(islice(every, count))


def from_numbered(entries: Entries) -> dict[str, str]:
    """Return the messages of numbered attributes, by column. Messages are in the order of their numbers."""
    by_prefix: dict[str, dict[int, list[tuple[str, Any]]]] = {}
    for key, text, letter in entries:
        if letter in READABLE and key.startswith(_ANY_PREFIX) and (match := _NUMBERED.fullmatch(key)):
            number = int(match[2])
            if number < MESSAGES_MAX:
                fields = by_prefix.setdefault(match[1], {}).setdefault(number, [])
                fields.append((match[3], _value(text, letter)))
    columns: dict[str, str] = {}
    for prefix, column in _PREFIXES.items():
        if column not in columns and prefix in by_prefix:
            by_number = sorted(by_prefix[prefix].items())
            if joined := _joined(_nested(fields) for _, fields in by_number):
                columns[column] = joined
    return columns


def from_events(events: Iterable[tuple[str, Entries]]) -> dict[str, str]:
    """Return the messages of a span's events, by column. Messages are in the order of the events."""
    columns: dict[str, str] = {}
    messages: dict[str, list[_Message]] = {"input": [], "output": []}
    for name, entries in events:
        if name in _EVENTS:
            column, role = _EVENTS[name]
            if len(messages[column]) < MESSAGES_MAX:
                messages[column].append(_of_event(entries, role))
        elif name in _EVENT_NAMES:
            for key, text, letter in entries:
                if key in _DETAILS and letter in READABLE and text.strip():
                    columns.setdefault(_DETAILS[key], text)
    for column, several in messages.items():
        if column not in columns and (joined := _joined(several)):
            columns[column] = joined
    return columns


def _value(text: str, letter: str) -> Any:
    """Return a value for JSON: text as a string, and anything else as it is. Doubles may be NaN, which JSON lacks."""
    return text if letter in "sd" else msgspec.Raw(text.encode())


def _nested(fields: Iterable[tuple[str, Any]]) -> _Message:
    """Return a message from its fields by path: `tool_calls.0.name` becomes a list of objects with a name."""
    message: _Message = {}
    for path, value in fields:
        names = [name for name in path.split(".", MESSAGE_PATH_SPLITS_MAX) if name not in _WRAPPERS]
        inner = message
        for name in names[:-1]:
            child = inner.setdefault(name, {})
            if not isinstance(child, dict):
                break  # a value and an object at the same path: the first one wins
            inner = child
        else:
            if names:
                inner.setdefault(names[-1], value)
    return {name: _with_lists(value) for name, value in message.items()}


def _with_lists(value: Any) -> Any:
    """Turn objects whose keys are all numbers into lists. At most MESSAGE_PATH_SPLITS_MAX levels deep."""
    if not isinstance(value, dict):
        return value
    if all(map(_NUMBER.fullmatch, value)):
        return [_with_lists(value[name]) for name in sorted(value, key=int)]
    return {name: _with_lists(inner) for name, inner in value.items()}


def _of_event(entries: Entries, role: str) -> _Message:
    """Return the message of an event. Its fields are attributes, members of a JSON object in one of them, or both."""
    message: _Message = {"role": role}
    for key, text, letter in entries:
        if letter in READABLE and text:
            if key in _CONTENTS:
                message["content"] = _value(text, letter)
            elif key in _BODIES or "." not in key:  # others describe the request, such as `gen_ai.system`
                message[key] = _value(text, letter)
    for body in _BODIES:
        value = message.pop(body, None)
        if value is not None:
            members = _members(value)
            message |= {"content": value} if members is None else members
    return message


def _members(value: str | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """Return the members of a JSON object that is a text or JSON itself, or None. Their values stay unparsed."""
    data = value.encode() if isinstance(value, str) else bytes(value)
    if len(data) > MESSAGE_PARSED_MAX_BYTES:
        return None
    try:
        return _OBJECT_DECODER.decode(pruned(data))
    except (msgspec.DecodeError, RecursionError):
        return None


def _joined(messages: Iterable[_Message]) -> str | None:
    """Return messages as a JSON list, role first, up to OTLP_TEXT_MAX_BYTES; None if they have no content."""
    items: list[bytes] = []
    size_bytes, has_content = 0, False
    for message in messages:
        role = {"role": message["role"]} if "role" in message else {}
        item = msgspec.json.encode(role | message)
        size_bytes += len(item) + 1
        if size_bytes >= OTLP_TEXT_MAX_BYTES:
            break
        items.append(item)
        has_content = has_content or not _METADATA.issuperset(message)
    return f"[{b','.join(items).decode()}]" if has_content else None
