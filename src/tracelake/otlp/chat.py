"""Chat messages in one schema, read from the forms of model APIs and libraries.

- OpenTelemetry GenAI: `{"role", "parts": [{"type": "text" | "tool_call" | "tool_call_response" | …}]}`
- OpenAI chat and Responses, Anthropic, Gemini, Bedrock Converse: their requests and responses
- LangChain and LangGraph: serialized messages, `generations`, states with `messages`
- Vercel AI SDK and Pydantic AI: their messages and parts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tracelake.limits import MESSAGE_PARSED_MAX_BYTES, MESSAGE_WRAPPERS_MAX, MESSAGES_MAX
from tracelake.otlp.parse import pruned

PartType: TypeAlias = Literal["text", "reasoning", "image", "file", "tool_call", "tool_result"]


class MessagePart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of a message.

    Attributes:
        type: what the piece is; it determines which other fields have a value.
        text: of `text` and `reasoning`.
        url: of `image` and `file`: a link, or a `data:` URL with the content.
        media_type: of `image` and `file`, if the sender states it.
        id: of `tool_call` and `tool_result`: the same for a call and its result.
        name: of `tool_call` and `tool_result`: the tool.
        arguments: of `tool_call`: any JSON value, usually an object.
        result: of `tool_result`: any JSON value, usually text.
    """

    type: PartType
    text: str | None = None
    url: str | None = None
    media_type: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    result: Any = None


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant`, `tool`, or another word of the sender, in lower case.
        parts: the pieces in order.
        name: the author or agent, if the sender names one.
        finish_reason: why the model stopped, if the sender states it.
    """

    role: str
    parts: tuple[MessagePart, ...]
    name: str | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined by empty lines."""
        return "\n\n".join(part.text for part in self.parts if part.type == "text" and part.text)


Messages: TypeAlias = list[ChatMessage]

_Object: TypeAlias = dict[str, Any]

_ROLES: Final = {
    **{"human": "user", "humanmessage": "user", "humanmessagechunk": "user", "usermessage": "user"},
    **{"ai": "assistant", "model": "assistant", "aimessage": "assistant", "aimessagechunk": "assistant"},
    **{"assistantmessage": "assistant", "bot": "assistant"},
    **{"developer": "system", "systemmessage": "system", "systeminstruction": "system"},
    **{"function": "tool", "toolmessage": "tool", "functionmessage": "tool"},
}
"""Words of libraries for the roles that each model API has, in lower case."""

_MESSAGE_TYPES: Final = frozenset({*_ROLES, "user", "assistant", "system", "tool"})

_ROLE_OF_PART: Final = {"tool_call": "assistant", "reasoning": "assistant", "tool_result": "tool"}
"""The role of a part that no message holds, as in requests and responses of OpenAI's Responses API."""
_PART_TYPES: Final[dict[str, PartType]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "refusal"), "text"),
    **dict.fromkeys(("reasoning", "thinking", "redacted_thinking", "reasoning_text"), "reasoning"),
    **dict.fromkeys(("user-prompt", "system-prompt", "retry-prompt"), "text"),
    **dict.fromkeys(("image", "image_url", "image-url", "input_image"), "image"),
    **dict.fromkeys(("file", "input_file", "document", "blob", "uri", "audio", "input_audio"), "file"),
    **dict.fromkeys(("video", "binary", "audio-url", "document-url", "video-url"), "file"),
    **dict.fromkeys(("tool_call", "tool-call", "tool_use", "server_tool_use", "function_call"), "tool_call"),
    **dict.fromkeys(("function", "custom_tool_call"), "tool_call"),
    **dict.fromkeys(
        ("tool_call_response", "tool-result", "tool_result", "function_call_output"), "tool_result"
    ),
    **dict.fromkeys(("custom_tool_call_output", "tool-return", "tool_response"), "tool_result"),
}
"""The type of a part by the word that a library has for it."""

_TEXTS: Final = (
    "text",
    "content",
    "thinking",
    "reasoning",
    "refusal",
    "input_text",
    "output_text",
    "summary",
)

_CALL_IDS: Final = ("id", "call_id", "toolCallId", "tool_call_id", "toolUseId", "tool_use_id")

_CALL_MEMBERS: Final = frozenset({"type", "name", "status", *_CALL_IDS})

_MEDIA: Final = {"image": "image", "document": "application", "video": "video"}
"""Media of Bedrock, with the type before the format."""

_TOOL_NAMES: Final = ("name", "toolName", "tool_name")

_ARGUMENTS: Final = ("arguments", "args", "input", "tool_input", "tool_kwargs")

_RESULTS: Final = ("response", "result", "output", "content")

_RESULT_TYPES: Final = ("text", "json", "error-text", "error-json", "content")

_MESSAGE_LISTS: Final = ("messages", "contents", "chat_history")
"""Members of a request or a state that hold its messages."""

_INSTRUCTIONS: Final = ("system", "instructions", "system_instruction", "systemInstruction", "system_prompt")

_PLAIN_TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "user": (
        *("input", "question", "query", "prompt", "user_input", "user_message", "text"),
        *("query_str", "str_or_query_bundle"),
    ),
    "assistant": ("output", "answer", "response", "result", "completion", "text"),
}
"""Members that hold the text of a chain's input or output, if it has no other member with text."""

_WRAPPERS: Final = (
    "kwargs",
    "data",
    "message",
    "response",
    "state",
    "update",
    "return_value",
    "result",
    "output",
    "outputs",
    "inputs",
    "query_bundle",
    "str_or_query_bundle",
)
"""Members of an object that may hold the request, the response or the message itself."""


def parse_json(text: Any) -> Any:
    """Return parsed JSON, or None for a text that is no object or array, or is too long."""
    if (
        not isinstance(text, str)
        or len(text) > MESSAGE_PARSED_MAX_BYTES
        or text.lstrip()[:1] not in ("{", "[", '"')
    ):
        return None
    try:
        return msgspec.json.decode(pruned(text.encode()))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def json_or_text(text: Any) -> Any:
    """Return a JSON text as its value, and another value as it is."""
    value = parse_json(text)
    return text if value is None else value


def read_text(text: Any, role: str) -> Messages | None:
    """Return the messages of an attribute, a plain text as one message, and None for another value."""
    if not isinstance(text, str) or not text.strip():
        return None
    value = json_or_text(text)
    if isinstance(value, str):
        inner = parse_json(value) if value is not text else None  # MLflow writes a JSON text as a JSON string
        value = value if inner is None else inner
    read = _messages(value, role)
    return [message for message in islice(read, MESSAGES_MAX) if message.parts] if read else None


def _messages(value: Any, role: str, depth: int = 0) -> Messages | None:
    """Return the messages of a JSON value, or None if it is none of the known forms."""
    if depth > MESSAGE_WRAPPERS_MAX:
        return None
    if isinstance(value, str):
        return [ChatMessage(role=role, parts=(MessagePart(type="text", text=value),))] if value else None
    if isinstance(value, list):
        return _of_list(value[:MESSAGES_MAX], role, depth)
    return _of_object(value, role, depth) if isinstance(value, dict) else None


def _of_list(items: list[Any], role: str, depth: int) -> Messages | None:
    if items and all(isinstance(item, list) and not _is_pair(item) for item in items):  # batches of LangChain
        return _messages(items[0], role, depth + 1)
    if items and all(isinstance(item, str) for item in items):
        texts = (_unquoted(item) for item in items if item)
        return [ChatMessage(role=role, parts=tuple(MessagePart(type="text", text=text) for text in texts))]
    messages: Messages = []
    has_messages = any(map(_is_message, items))
    for item in items:
        if _is_message(item):
            messages += filter(None, (read_message(item, role),))
        elif isinstance(item, dict) and (part := _part(item)) is not None:
            _append(messages, part, role)
        elif isinstance(item, dict) and (inner := _of_object(item, role, depth + 1)):
            messages += inner
        elif isinstance(item, str):
            _append(messages, MessagePart(type="text", text=item), role)
        elif _is_pair(item):
            messages += filter(None, (read_message({"role": item[0], "content": item[1]}, role),))
        elif has_messages:  # an unknown item must not hide the messages
            _append(messages, MessagePart(type="text", text=_as_json(item)), role)
        else:
            return None
    return messages or None


def _is_pair(item: Any) -> bool:
    """Return whether an item is a role and a text, as LangChain's users write messages."""
    return (
        isinstance(item, list)
        and len(item) == 2
        and all(isinstance(each, str) for each in item)
        and item[0].lower() in _MESSAGE_TYPES
    )


def _unquoted(text: str) -> str:
    """Return the text that a JSON string has, and another text as it is. Vercel writes texts to embed as JSON."""
    value = parse_json(text) if text.startswith('"') else None
    return value if isinstance(value, str) and value else text


def _append(messages: Messages, part: MessagePart, role: str) -> None:
    """Append a part that belongs to no message yet: to the last message if its role is the same, otherwise to a new
    one."""
    role = _ROLE_OF_PART.get(part.type, role)
    if messages and messages[-1].role == role:
        messages[-1] = msgspec.structs.replace(messages[-1], parts=(*messages[-1].parts, part))
    else:
        messages.append(ChatMessage(role=role, parts=(part,)))


def _is_message(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    if item.get("role") or ("lc" in item and "kwargs" in item):
        return True
    return str(item.get("type", "")).lower() in _MESSAGE_TYPES and ("content" in item or "data" in item)


def _of_object(value: _Object, role: str, depth: int) -> Messages | None:
    if _is_message(value):
        message = read_message(value, role)
        return [message] if message else None
    # A response may repeat the instructions of its request.
    names = _INSTRUCTIONS if role == "user" else ()
    instructions = next((value[name] for name in names if value.get(name)), None)
    for name in _MESSAGE_LISTS:
        if messages := _messages(value.get(name), role, depth + 1):
            return _with_system(instructions, messages, depth)
    for read in (_choices, _candidates, _generations, _responses):
        if messages := read(value, role, depth):
            return _with_system(instructions, messages, depth)
    if _has_parts(value) and (message := read_message(value, role)):
        return [message]
    for name in _WRAPPERS:
        inner = value.get(name)
        if isinstance(inner, dict | list) and (messages := _messages(inner, role, depth + 1)):
            return messages
    plain = _plain(value, role)
    return _with_system(instructions, plain, depth) if plain else None


def _has_parts(value: _Object) -> bool:
    if isinstance(value.get("response"), dict):
        return False
    return any(isinstance(value.get(name), list) for name in ("parts", "blocks", "tool_calls")) or (
        isinstance(value.get("content"), str | list) and not {"text", "output"}.intersection(value)
    )


def _plain(value: _Object, role: str) -> Messages | None:
    """Return the text of a chain's input or output that has one text."""
    texts = {name: text for name, text in value.items() if isinstance(text, str) and text}
    for name in _PLAIN_TEXTS.get(role, ()):
        if name in texts and (len(texts) == 1 or name not in ("text", "result")):
            return [ChatMessage(role=role, parts=(MessagePart(type="text", text=texts[name]),))]
    return None


def _with_system(instructions: Any, messages: Messages, depth: int) -> Messages:
    system = _messages(instructions, "system", depth + 1) if instructions else None
    if not system or any(message.role == "system" for message in messages):
        return messages
    parts = tuple(part for message in system for part in message.parts)
    return [ChatMessage(role="system", parts=parts), *messages]


def _choices(value: _Object, role: str, _depth: int) -> Messages | None:
    """Read a response of OpenAI's chat or completion API."""
    messages: Messages = []
    for choice in read_objects(value.get("choices")):
        inner = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        if isinstance(inner, dict) and (message := read_message(inner, role)):
            reason = choice.get("finish_reason")
            messages.append(
                msgspec.structs.replace(message, finish_reason=_text_of(reason) or message.finish_reason)
            )
    return messages or None


def _candidates(value: _Object, role: str, _depth: int) -> Messages | None:
    """Read a response of Gemini."""
    contents = (candidate.get("content") for candidate in read_objects(value.get("candidates")))
    messages = [
        message
        for content in contents
        if isinstance(content, dict)
        if (message := read_message(content, role))
    ]
    return messages or None


def _generations(value: _Object, role: str, depth: int) -> Messages | None:
    """Read a result of LangChain."""
    generations = value.get("generations")
    flat = generations[0] if isinstance(generations, list) and generations else None
    flat = flat if isinstance(flat, list) else generations
    messages: Messages = []
    for generation in read_objects(flat):
        inner = generation.get("message")
        read = _messages(inner if inner else generation.get("text"), role, depth + 1)
        messages += read or []
    return messages or None


def _responses(value: _Object, role: str, depth: int) -> Messages | None:
    """Read a request or a response of OpenAI's Responses API, or an answer of Bedrock Converse."""
    for name in ("output", "input"):
        inner = value.get(name)
        if isinstance(inner, list) and (messages := _messages(inner, role, depth + 1)):
            return messages
    if isinstance(value.get("input"), str) and any(name in value for name in (*_INSTRUCTIONS, "model")):
        return _messages(value["input"], role, depth + 1)
    return None


def read_objects(value: Any) -> Iterable[_Object]:
    """Return the objects of a JSON list, at most MESSAGES_MAX items of it."""
    return (
        (item for item in value[:MESSAGES_MAX] if isinstance(item, dict)) if isinstance(value, list) else ()
    )


def read_message(value: _Object, default_role: str) -> ChatMessage | None:
    """Return the message that an object is, or None. An object without a role counts as a message of `default_role` if
    it has content."""
    kwargs, data = value.get("kwargs"), value.get("data")
    if isinstance(kwargs, dict) and "lc" in value:
        identity = value.get("id")
        name = identity[-1] if isinstance(identity, list) and identity else ""
        return read_message({"role": name, **kwargs}, default_role)
    if isinstance(data, dict) and "content" in data:
        return read_message({"type": value.get("type"), **data}, default_role)
    inner = value.get("message")
    if isinstance(inner, dict) and "content" not in value:
        return read_message(
            {"role": value.get("role"), "finish_reason": value.get("finish_reason"), **inner}, default_role
        )
    role = _role(value, default_role)
    parts = list(islice(_parts_of(value, role), MESSAGES_MAX))
    if parts and all(part.type == "tool_result" for part in parts):
        role = "tool"  # Anthropic and Bedrock send results as the user
    author, reason = value.get("name"), value.get("finish_reason") or value.get("stop_reason")
    return ChatMessage(
        role=role,
        parts=tuple(parts),
        name=author if isinstance(author, str) and author and role != "tool" else None,
        finish_reason=_text_of(reason),
    )


def _role(value: _Object, default: str) -> str:
    stated = value.get("role")
    if not isinstance(stated, str) or not stated:
        kind = str(value.get("type", ""))
        stated = kind if kind.lower() in _MESSAGE_TYPES else default
    return _ROLES.get(stated.lower(), stated.lower())


def _parts_of(value: _Object, role: str) -> Iterable[MessagePart]:
    """Yield the parts of a message: reasoning first, then its content, then its tool calls."""
    if reasoning := _text(value, ("reasoning_content", "reasoning", "thinking")):
        yield MessagePart(type="reasoning", text=reasoning)
    parts = value.get("parts") or value.get("blocks")
    content = parts or value.get("content", value.get("contents"))
    call_id = _text(value, ("tool_call_id", "call_id", "id"))
    if role == "tool" and not _holds_results(content):
        name = _text(value, _TOOL_NAMES)
        yield MessagePart(type="tool_result", id=call_id, name=name, result=_result(content))
    else:
        yield from _content_parts(content)
    if refusal := _text(value, ("refusal",)):
        yield MessagePart(type="text", text=refusal)
    spoken = value.get("audio")
    if isinstance(spoken, dict) and (transcript := _text(spoken, ("transcript",))):
        yield MessagePart(type="text", text=transcript)
    yield from _calls_of(value, {part.id for part in _content_parts(content) if part.type == "tool_call"})


def _calls_of(value: _Object, seen_ids: set[str | None]) -> Iterable[MessagePart]:
    """Yield the tool calls that a message has outside of its content, except those with these ids."""
    extra = value.get("additional_kwargs")
    calls = value.get("tool_calls") or (extra.get("tool_calls") if isinstance(extra, dict) else None)
    for several in (calls, value.get("invalid_tool_calls")):
        yield from (call for call in read_calls(several) if call.id is None or call.id not in seen_ids)
    if isinstance(inner := value.get("function_call"), dict):
        yield _call(inner)


def _holds_results(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(item, dict) and (part := _part(item)) is not None and part.type == "tool_result"
        for item in content
    )


def _content_parts(content: Any) -> Iterable[MessagePart]:
    if isinstance(content, str):
        # OpenLLMetry writes a list of parts as JSON text.
        parts = parse_json(content) if content.startswith("[{") else None
        if isinstance(parts, list) and all(isinstance(item, dict) and _part(item) for item in parts):
            yield from _content_parts(parts)
        elif content:
            yield MessagePart(type="text", text=content)
    elif isinstance(content, list):
        for item in content[:MESSAGES_MAX]:
            if isinstance(item, str):
                yield MessagePart(type="text", text=item)
            elif isinstance(item, dict):
                part = _part(item) or MessagePart(type="text", text=_as_json(item))
                if part.type != "text" or part.text:
                    yield part
    elif isinstance(content, dict):
        yield _part(content) or MessagePart(type="text", text=_as_json(content))
    elif content is not None:
        yield MessagePart(type="text", text=_as_json(content))


def _part(value: _Object) -> MessagePart | None:
    """Return the part that an object of any library is, or None."""
    stated = value.get("type", value.get("part_kind", value.get("block_type")))
    if isinstance(stated, str) and stated.lower() in _PART_TYPES:
        return _READERS[_PART_TYPES[stated.lower()]](value)
    if isinstance(stated, str) and stated.endswith("_call"):  # built-in tools of OpenAI, as `web_search_call`
        members = {name: inner for name, inner in value.items() if name not in _CALL_MEMBERS}
        arguments = members if members.keys() - {"action"} else members.get("action")
        return _call({"name": stated.removesuffix("_call"), **value, "arguments": arguments})
    for name, main in _MEDIA.items():  # Bedrock
        if isinstance(inner := value.get(name), dict) and isinstance(inner.get("source"), dict):
            return _media_part({"media_type": f"{main}/{inner.get('format')}", **inner})
    for name, read in _TAGGED.items():  # Gemini and Bedrock tag a part by its member
        if isinstance(inner := value.get(name), dict):
            return read(inner)
    if stated is None and isinstance(value.get("text"), str) and len(value) <= 3:
        return MessagePart(type="reasoning" if value.get("thought") else "text", text=value["text"])
    return None


def _reasoning_part(value: _Object) -> MessagePart:
    text = _joined(value)
    parts = (
        parse_json(text) if text.startswith("[{") else None
    )  # OpenLLMetry writes a list of parts as JSON text
    return MessagePart(type="reasoning", text=_joined({"content": parts}) or text or _text(value, ("data",)))


def _joined(value: _Object) -> str:
    for name in _TEXTS:
        inner = value.get(name)
        if isinstance(inner, str) and inner:
            return inner
        if isinstance(inner, list) and inner:
            return "\n\n".join(
                filter(
                    None,
                    (
                        item if isinstance(item, str) else _joined(item)
                        for item in inner
                        if isinstance(item, str | dict)
                    ),
                )
            )
    return ""


def _media_part(value: _Object) -> MessagePart:
    """Return an image or a file: by link, or with its content as a `data:` URL."""
    media_type = _text(value, ("media_type", "mediaType", "mime_type", "mimeType", "image_mimetype"))
    kind = str(value.get("type", value.get("block_type", ""))).lower()
    is_image = _PART_TYPES.get(kind) == "image"
    for name in ("source", "image_url", "image", "inlineData", "file", "file_data", "input_audio"):
        inner = value.get(name)
        if isinstance(inner, dict):
            if inner.get("type") == "text" and (text := _text(inner, ("data",))):  # a document of Anthropic
                return MessagePart(type="text", text=text)
            part = _media_part({"media_type": media_type, "name": value.get("name"), **inner, "type": kind})
            return (
                part if part.url else MessagePart(type=part.type, media_type=part.media_type, name=part.name)
            )
    url = _text(value, ("url", "uri", "fileUri", "file_uri", "image_url", "image"))
    data = _text(value, ("data", "content", "bytes", "file_data", "blob"))
    if url is None and data:
        url = (
            data
            if data.startswith("data:")
            else f"data:{media_type or 'application/octet-stream'};base64,{data}"
        )
    elif url and "image" in value and ":" not in url[:8]:  # Vercel writes base64 without a prefix
        url = f"data:{media_type or 'image/png'};base64,{url}"
    is_image = is_image or (media_type or "").startswith("image/") or value.get("modality") == "image"
    return MessagePart(
        type="image" if is_image else "file",
        url=url,
        media_type=media_type,
        name=_text(value, ("filename", "name", "file_id")),
    )


def read_calls(value: Any) -> list[MessagePart]:
    """Return the tool calls of a JSON list; empty for another value."""
    return [_call(call) for call in read_objects(value)]


def _call(value: _Object) -> MessagePart:
    """Return a tool call, whose name and arguments may be in an inner object."""
    inner = value.get("function") or value.get("tool_call")
    merged = {**value, **inner} if isinstance(inner, dict) else value
    arguments = next((merged[name] for name in _ARGUMENTS if merged.get(name) is not None), None)
    identity = _text(merged, ("call_id", *_CALL_IDS))
    return MessagePart(
        type="tool_call", id=identity, name=_text(merged, _TOOL_NAMES), arguments=json_or_text(arguments)
    )


def _result_part(value: _Object) -> MessagePart:
    result = next((value[name] for name in _RESULTS if value.get(name) is not None), None)
    identity = _text(value, ("tool_use_id", "call_id", "toolUseId", *_CALL_IDS))
    return MessagePart(
        type="tool_result", id=identity, name=_text(value, _TOOL_NAMES), result=_result(result)
    )


def read_tool_message(text: Any) -> MessagePart | None:
    """Return the result in a serialized tool message of LangChain; None for any other value, such as a plain result."""
    value = parse_json(text)
    candidates = (value, value.get("output")) if isinstance(value, dict) else ()
    for candidate in candidates:
        if isinstance(candidate, dict):
            inner = candidate.get("kwargs") or candidate.get("data")
            if isinstance(inner, dict) and "tool_call_id" in inner and "content" in inner:
                message = read_message(candidate, "tool")
                return message.parts[0] if message and len(message.parts) == 1 else None
    return None


def read_arguments(text: Any) -> tuple[Any, str | None]:
    """Return the arguments of a tool call, and its id if LangChain's callback stores both in one value."""
    value = json_or_text(text)
    if not isinstance(value, dict) or not {"inputs", "input_str"} <= value.keys():
        return value, None
    kwargs = value.get("kwargs")
    call_id = kwargs.get("tool_call_id") if isinstance(kwargs, dict) else None
    return value["inputs"], _text_of(call_id)


def _result(content: Any) -> Any:
    """Return the result of a tool: text parts as one text, JSON text as its value."""
    if isinstance(content, dict) and content.get("type") in _RESULT_TYPES and "value" in content:
        return content["value"]  # Vercel AI SDK since version 5
    if isinstance(content, list) and content and all(isinstance(item, dict) for item in content):
        parts = [_part(item) for item in content]
        if all(part is not None and part.type == "text" for part in parts):
            return json_or_text("\n\n".join(part.text or "" for part in parts if part))
    return json_or_text(content)


_READERS: Final[dict[PartType, Callable[[_Object], MessagePart]]] = {
    "text": lambda value: MessagePart(type="text", text=_joined(value)),
    "reasoning": _reasoning_part,
    "image": _media_part,
    "file": _media_part,
    "tool_call": _call,
    "tool_result": _result_part,
}

_TAGGED: Final[dict[str, Callable[[_Object], MessagePart]]] = {
    "functionCall": _call,
    "function_call": _call,
    "toolUse": _call,
    "functionResponse": _result_part,
    "function_response": _result_part,
    "toolResult": _result_part,
    "reasoningContent": lambda value: _reasoning_part(value.get("reasoningText") or value),
    "inlineData": _media_part,
    "inline_data": _media_part,
    "fileData": _media_part,
    "file_data": _media_part,
    "image_url": lambda value: _media_part({**value, "type": "image"}),
}
"""Readers of parts that are tagged by the name of their only member."""


def _text(value: _Object, names: Iterable[str]) -> str | None:
    return next((value[name] for name in names if isinstance(value.get(name), str) and value[name]), None)


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
