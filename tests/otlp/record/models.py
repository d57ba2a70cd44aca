"""A model server on loopback that answers as the APIs of OpenAI and Anthropic do, with a fixed conversation.

A request with tools gets a call of the first tool, until it has the tool's result. Each answer reports cached and
reasoning tokens, so that recorded spans have them if the library reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

ANSWER: Final = "It is sunny in Paris, 21 degrees."
CALL_ID: Final = "call_paris"
ARGUMENTS: Final = {"city": "Paris"}
INPUT_TOKENS: Final = 120
CACHED_TOKENS: Final = 64
OUTPUT_TOKENS: Final = 20
REASONING_TOKENS: Final = 8


def read_body(handler: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request, which may come in chunks."""
    if "chunked" not in handler.headers.get("transfer-encoding", ""):
        return handler.rfile.read(int(handler.headers["content-length"]))
    body = b""
    while size := int(handler.rfile.readline(), 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


class ModelHandler(BaseHTTPRequestHandler):
    """Handler of the model server."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        """Answer a request to a model."""
        request = json.loads(read_body(self))
        path = self.path.partition("?")[0]
        answers = {"/chat/completions": _chat, "/responses": _response, "/messages": _anthropic}
        for suffix, answer in answers.items():
            if path.endswith(suffix):
                return self._send(answer(request), bool(request.get("stream")))
        return self._send(_embeddings(request), False)

    def _send(self, events: Iterator[tuple[str | None, Any]], streams: bool) -> None:
        """Send the last event as JSON, or all others as server-sent events."""
        several = list(events)
        if streams:
            lines = [
                (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
                for name, data in several[:-1]
            ]
            body, kind = "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream"
        else:
            body, kind = json.dumps(several[-1][1]).encode(), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _wants_tool(request: dict[str, Any], result: str) -> bool:
    return bool(request.get("tools")) and result not in json.dumps(
        request.get("messages") or request.get("input")
    )


def _chat(request: dict[str, Any]) -> Iterator[tuple[None, Any]]:
    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "completion_tokens_details": {"reasoning_tokens": REASONING_TOKENS},
    }
    head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": request["model"]}
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    reason = "stop"
    if _wants_tool(request, '"tool"'):
        function = {"name": request["tools"][0]["function"]["name"], "arguments": json.dumps(ARGUMENTS)}
        call = {"id": CALL_ID, "type": "function", "function": function}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    chunk = {**head, "object": "chat.completion.chunk"}
    deltas = [message]
    if message["content"]:
        deltas = [{"role": "assistant", "content": ANSWER[:10]}, {"content": ANSWER[10:]}]
    else:
        deltas = [message | {"tool_calls": [{"index": 0, **message["tool_calls"][0]}]}]
    for delta in deltas:
        yield None, chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield None, chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield None, chunk | {"choices": [], "usage": usage}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    yield None, {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _response(request: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    item: dict[str, Any] = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
    }
    if _wants_tool(request, "function_call_output"):
        item = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": CALL_ID,
            "name": request["tools"][0]["name"],
            "arguments": json.dumps(ARGUMENTS),
            "status": "completed",
        }
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "The user asks for the weather."}],
    }
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": request["model"],
        "output": [reasoning, item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": request.get("tools") or [],
        "instructions": request.get("instructions"),
        "usage": {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": REASONING_TOKENS},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        },
    }
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": response | {"status": "in_progress", "output": []}}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": response}),
    ]
    for number, (name, data) in enumerate(events):
        yield name, {"type": name, "sequence_number": number, **data}
    yield "response", response


def _anthropic(request: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": ANSWER}]
    reason = "end_turn"
    if _wants_tool(request, "tool_result"):
        name = request["tools"][0]["name"]
        blocks, reason = [{"type": "tool_use", "id": CALL_ID, "name": name, "input": ARGUMENTS}], "tool_use"
    usage: dict[str, int] = {
        "input_tokens": INPUT_TOKENS - CACHED_TOKENS - 16,
        "cache_read_input_tokens": CACHED_TOKENS,
        "cache_creation_input_tokens": 16,
        "output_tokens": OUTPUT_TOKENS,
    }
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }
    start = message | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(blocks):
        at = {"index": index}
        nothing: dict[str, Any] = {"text": ""} if block["type"] == "text" else {"input": {}}
        empty = block | nothing
        yield "content_block_start", {"type": "content_block_start", **at, "content_block": empty}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if block["type"] == "text"
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        yield "content_block_delta", {"type": "content_block_delta", **at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", **at}
    ended = {"stop_reason": reason, "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": usage}
    yield "message_stop", {"type": "message_stop"}
    yield "message", message


def _embeddings(request: dict[str, Any]) -> Iterator[tuple[None, Any]]:
    inputs = request["input"]
    several = inputs if isinstance(inputs, list) and not (inputs and isinstance(inputs[0], int)) else [inputs]
    data = [
        {"object": "embedding", "index": index, "embedding": [0.25, -0.5, 1.0]}
        for index in range(len(several))
    ]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    yield None, {"object": "list", "data": data, "model": request["model"], "usage": usage}
