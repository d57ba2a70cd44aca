"""Content of an example, proposed from the messages of a span. A person edits it before it is stored.

The expected output is the last message of the assistant. The span of an agent often has no output of its own; the last
model call below it then gives the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from tracelake._errors import NotFoundError
from tracelake.otlp.chat import ChatMessage
from tracelake.otlp.content import conversation
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import Row, Trace, is_server_side
from tracelake.tables.table import to_rows

COPIED: Final = ("service", "name", "model")
"""Columns that become metadata of an example."""
_CALLS_READ_MAX: Final = 3
"""Model calls that are read in search of an answer, the last ones first."""


class SpanReader(Protocol):
    """Reads spans of both tiers: committed ones, and those that still wait for their commit."""

    def outline(self, trace_id: str) -> Trace:
        """Return a trace without the texts of its spans."""

    def span_rows(self, trace_id: str, span_id: str) -> pa.Table:
        """Return the rows with a span id in a trace."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed content of an example, and the span behind it."""

    input: str | None
    expected_output: str | None
    metadata: dict[str, str]
    span: Row


def read_span(
    spans: SpanReader,
    trace_id: str,
    span_id: str | None,
    workspace: str | None = None,
    kind: str | None = None,
) -> Row:
    """Return a span, by default the root of its trace. If several spans have the id, the default workspace and the
    client side come first.

    Raises NotFoundError if the trace or span does not exist.
    """
    if span_id is None:
        _, root = next(spans.outline(trace_id).walk())
        trace_id, span_id = root["trace_id"], str(root["span_id"])
    rows = [
        row
        for row in to_rows(spans.span_rows(trace_id, span_id))
        if workspace in (None, row["workspace"]) and kind in (None, row["kind"])
    ]
    if not rows:
        raise NotFoundError(f"trace {trace_id} has no span {span_id}.")
    return min(rows, key=lambda row: (row["workspace"] != WORKSPACE_DEFAULT, is_server_side(row)))


def propose(spans: SpanReader, span: Row) -> Proposal:
    """Return the proposed content for a span."""
    metadata = {name: span[name] for name in COPIED if span[name]}
    if span["workspace"] != WORKSPACE_DEFAULT:
        metadata["workspace"] = span["workspace"]
    if is_server_side(span):
        metadata["kind"] = span["kind"]
    messages = conversation(span)
    answer = _answer(messages.output) or _plain(span["output"])
    if answer is None:
        answers = (_answer(conversation(call).output) for call in _model_calls(spans, span))
        answer = next(filter(None, answers), None)
    return Proposal(_question(messages.input) or _plain(span["input"]), answer, metadata, span)


def _model_calls(spans: SpanReader, span: Row) -> Iterable[Row]:
    """Yield the last model calls below a span, the last first."""
    below: list[Row] = []
    depth_of_span: int | None = None
    for depth, each in spans.outline(span["trace_id"]).walk():
        if depth_of_span is not None and depth <= depth_of_span:
            break
        if depth_of_span is not None and (each["type"] or ("llm" if each["model"] else None)) == "llm":
            below.append(each)
        if each["span_id"] == span["span_id"] and each["workspace"] == span["workspace"]:
            depth_of_span = depth
    for each in sorted(below, key=lambda each: each["end_ns"], reverse=True)[:_CALLS_READ_MAX]:
        yield read_span(spans, each["trace_id"], each["span_id"], each["workspace"], each["kind"])


def _answer(messages: Sequence[ChatMessage]) -> str | None:
    """Return the text of the last message of the assistant, or its tool calls as JSON."""
    own = [message for message in messages if message.role == "assistant"] or list(messages)
    texts = [message.text for message in own if message.text.strip()]
    return texts[-1] if texts else _as_json(own[-1:]) if own else None


def _question(messages: Sequence[ChatMessage]) -> str | None:
    """Return the text of the only message, or all messages as JSON, because a conversation needs its history."""
    if len(messages) == 1 and all(part.type == "text" for part in messages[0].parts):
        return messages[0].text
    return _as_json(messages) if messages else None


def _as_json(messages: Sequence[ChatMessage]) -> str:
    return json.dumps([_plain_message(message) for message in messages], ensure_ascii=False, indent=2)


def _plain_message(message: ChatMessage) -> dict[str, Any]:
    if all(part.type == "text" for part in message.parts):
        return {"role": message.role, "content": message.text}
    plain: dict[str, Any] = msgspec.to_builtins(message)
    return plain


def _plain(text: str | None) -> str | None:
    return text if text and text.strip() else None
