"""The facts that recordings of real libraries have in columns, and the page that lists them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.otlp.record.models import ANSWER, ARGUMENTS, CACHED_TOKENS, INPUT_TOKENS, REASONING_TOKENS
from tracelake.otlp.chat import ChatMessage
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.content import conversation
from tracelake.otlp.decode import decode_json

RECORDED: Final = Path(__file__).parent.parent / "recorded"
PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "instrumentation.md"
QUESTION: Final = "What is the weather in Paris?"
WEATHER: Final = "sunny, 21 degrees"
FACTS: Final = ("messages", "tools", "type", "tokens", "cached", "reasoning", "cost", "session", "user")
_INSTRUMENTATIONS: Final = {
    "openllmetry": "OpenLLMetry",
    "openinference": "OpenInference",
    "otel": "OpenTelemetry",
    "logfire": "Logfire",
    "mlflow": "MLflow autolog",
    "": "OpenTelemetry",
}
_HEAD: Final = """# Instrumentation

<!-- Made by tests/otlp/record/matrix.py; do not edit. -->

Facts in the [recorded](../../tests/otlp/recorded) spans of real libraries.

"""


@dataclass(frozen=True)
class Recording:
    """The spans that a library sent."""

    name: str
    versions: Mapping[str, str]
    spans: tuple[Mapping[str, Any], ...]
    rejected: int


def read(path: Path) -> Recording:
    """Decode a recording."""
    recorded = json.loads(path.read_text())
    columns = SpanColumns()
    decoded = decode_json(json.dumps(recorded["traces"]).encode(), columns)
    spans = pa.Table.from_batches([columns.take()]).to_pylist()
    return Recording(path.name.partition("-")[0], recorded["versions"], tuple(spans), decoded.rejected)


def recordings() -> Iterator[Recording]:
    """Yield all recordings, by name."""
    yield from map(read, sorted(RECORDED.glob("*.json")))


def facts(recording: Recording) -> set[str]:
    """Return those of FACTS that the columns and messages of a recording have."""
    models = [span for span in recording.spans if span["type"] == "llm"]
    found = {"type"} if models and all(span["model"] for span in models) else set()
    conversations = [conversation(span) for span in recording.spans]
    received = [message for each in conversations for message in each.input]
    returned = [message for each in conversations for message in each.output]
    if _texts(received, "user", QUESTION) and _texts(returned, "assistant", ANSWER):
        found.add("messages")
    called = any(
        part.type == "tool_call" and part.name == "get_weather" and part.arguments == ARGUMENTS
        for message in returned
        for part in message.parts
    )
    answered = any(
        part.type == "tool_result" and part.result == WEATHER
        for message in (*received, *returned)
        for part in message.parts
    )
    if called and answered:
        found.add("tools")
    numbers = {
        "tokens": ("input_tokens", INPUT_TOKENS),
        "cached": ("cached_input_tokens", CACHED_TOKENS),
        "reasoning": ("reasoning_tokens", REASONING_TOKENS),
    }
    for fact, (column, number) in numbers.items():
        if any(span[column] == number for span in models):
            found.add(fact)
    if any(span["cost"] for span in models):
        found.add("cost")
    for fact, column, value in (("session", "session_id", "session-7"), ("user", "user_id", "user-3")):
        if any(span[column] == value for span in recording.spans):
            found.add(fact)
    return found


def _texts(messages: list[ChatMessage], role: str, text: str) -> bool:
    return any(message.role == role and message.text == text for message in messages)


def page() -> str:
    """Return the page."""
    lines = [f"| library | instrumentation | {' | '.join(FACTS)} |", f"|---|---|{'---|' * len(FACTS)}"]
    for recording in recordings():
        library, _, instrumentation = recording.name.partition("_")
        instrumentation = library if library == "mlflow" else instrumentation
        (name, version), *others = recording.versions.items()
        sender = _INSTRUMENTATIONS[instrumentation] + (f" {others[-1][1]}" if others else "")
        found = facts(recording)
        marks = " | ".join("✓" if fact in found else "-" for fact in FACTS)
        lines.append(f"| {name} {version} | {sender} | {marks} |")
    return _HEAD + "\n".join(lines) + "\n"
