"""Attribute names by column. The first name with a usable value fills the column.

Sources of the names:
- [otel]        OpenTelemetry semantic conventions, registry of attributes
- [genai]       OpenTelemetry GenAI semantic conventions (semantic-conventions-genai, registry `gen_ai.*`)
- [genai-old]   the same up to 1.36, names since deprecated
- [openinf]     OpenInference, spec/semantic_conventions.md
- [langfuse]    Langfuse, packages/shared/src/server/otel/attributes.ts
- [mlflow]      MLflow, mlflow/tracing/constant.py; its own values are JSON texts, with OTLP export all of a span
- [traceloop]   OpenLLMetry, opentelemetry-semantic-conventions-ai
- [vercel]      Vercel AI SDK, docs/ai-sdk-core/telemetry
- [pydantic]    Pydantic AI, pydantic_ai/models/instrumented.py
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake.otlp import messages
from tracelake.otlp.parse import pruned
from tracelake.otlp.values import READABLE

SERVICE: Final = "service.name"  # [otel], resource attribute
WORKSPACE: Final = "tracelake.workspace"  # Tracelake's own, resource attribute
WORKSPACE_DEFAULT: Final = "default"

TEXT_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "session_id": (
        "session.id",  # [otel] [openinf] [langfuse] [mlflow]
        "gen_ai.conversation.id",  # [genai]
        "langfuse.session.id",  # [langfuse]
        "mlflow.trace.session",  # [mlflow]
        "traceloop.association.properties.session_id",  # [traceloop] its prefix and a name that the caller chose
    ),
    "user_id": (
        "user.id",  # [otel] [openinf] [langfuse] [mlflow]
        "langfuse.user.id",  # [langfuse]
        "mlflow.trace.user",  # [mlflow]
        "enduser.id",  # [otel]
        "traceloop.association.properties.user_id",  # [traceloop]
    ),
    "model": (
        "gen_ai.request.model",  # [genai]
        "gen_ai.response.model",  # [genai]
        "llm.model_name",  # [openinf]
        "embedding.model_name",  # [openinf]
        "langfuse.observation.model.name",  # [langfuse]
        "mlflow.llm.model",  # [mlflow]
        "ai.model.id",  # [vercel]
        "ai.response.model",  # [vercel]
    ),
    "input": (
        "gen_ai.input.messages",  # [genai]
        "langfuse.observation.input",  # [langfuse]
        "input.value",  # [openinf]
        "mlflow.spanInputs",  # [mlflow]
        "traceloop.entity.input",  # [traceloop]
        "gen_ai.prompt",  # [genai-old]
        "gen_ai.tool.call.arguments",  # [genai]
        "ai.prompt.messages",  # [vercel]
        "ai.prompt",  # [vercel]
        "ai.toolCall.args",  # [vercel]
        "ai.value",  # [vercel] what is embedded
        "pydantic_ai.all_messages",  # [pydantic]
        "all_messages_events",  # [pydantic] version 1
        "tool_arguments",  # [pydantic]
        "langfuse.trace.input",  # [langfuse]
    ),
    "output": (
        "gen_ai.output.messages",  # [genai]
        "langfuse.observation.output",  # [langfuse]
        "output.value",  # [openinf]
        "mlflow.spanOutputs",  # [mlflow]
        "traceloop.entity.output",  # [traceloop]
        "gen_ai.completion",  # [genai-old]
        "gen_ai.tool.call.result",  # [genai]
        "ai.response.text",  # [vercel]
        "ai.response.object",  # [vercel]
        "ai.response.toolCalls",  # [vercel]
        "ai.toolCall.result",  # [vercel]
        "final_result",  # [pydantic]
        "tool_response",  # [pydantic]
        "langfuse.trace.output",  # [langfuse]
    ),
}

TOKEN_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "input_tokens": (
        "gen_ai.usage.input_tokens",  # [genai]
        "gen_ai.usage.prompt_tokens",  # [genai-old]
        "llm.token_count.prompt",  # [openinf]
        "llm.usage.prompt_tokens",  # [traceloop] before it adopted the names of [genai]
        "ai.usage.promptTokens",  # [vercel]
        "ai.usage.inputTokens",  # [vercel] since version 5
        "ai.usage.tokens",  # [vercel] of embeddings
        "langfuse.observation.usage_details",  # [langfuse] a JSON object
        "mlflow.chat.tokenUsage",  # [mlflow] a JSON object
    ),
    "output_tokens": (
        "gen_ai.usage.output_tokens",  # [genai]
        "gen_ai.usage.completion_tokens",  # [genai-old]
        "llm.token_count.completion",  # [openinf]
        "llm.usage.completion_tokens",  # [traceloop] before it adopted the names of [genai]
        "ai.usage.completionTokens",  # [vercel]
        "ai.usage.outputTokens",  # [vercel] since version 5
        "langfuse.observation.usage_details",  # [langfuse]
        "mlflow.chat.tokenUsage",  # [mlflow]
    ),
}

_TOKEN_MEMBERS: Final = {
    ("input_tokens", "langfuse.observation.usage_details"): "input",
    ("output_tokens", "langfuse.observation.usage_details"): "output",
    ("input_tokens", "mlflow.chat.tokenUsage"): "input_tokens",
    ("output_tokens", "mlflow.chat.tokenUsage"): "output_tokens",
}

COLUMNS: Final = (*TEXT_COLUMNS, *TOKEN_COLUMNS)
NAMES: Final = messages.FIRST_KEYS.union(*TEXT_COLUMNS.values(), *TOKEN_COLUMNS.values())
"""All names that fill a column, and those that begin numbered messages."""
_WHOLE: Final = re.compile(r"\s*([0-9]{1,19})(?:\.0*)?\s*")
"""An integer as text: digits, optionally followed by a fraction of zeros."""
_MLFLOW_JSON: Final = "mlflow."
_MLFLOW_TRACE: Final = "mlflow.traceRequestId"
"""Attribute of every span made by MLflow. If its value is quoted, all attributes of the span are JSON texts."""


def derive(
    keys: Sequence[str],
    texts: Sequence[str],
    letters: str | None,
    counts: Sequence[int],
    present: frozenset[str] | None = None,
) -> dict[str, list[Any]]:
    """Return the derived columns that have at least one value, with one entry for each span.

    Args:
        keys: attribute keys of all spans, span after span
        texts: the values of those keys
        letters: one type letter for each attribute, or None if all are strings
        counts: number of attributes of each span
        present: those of NAMES among the keys, if known
    """
    if present is None:
        present = NAMES.intersection(keys)
    if not present:
        return {}
    may_be_json = _MLFLOW_TRACE in keys
    columns: dict[str, list[Any]] = {
        column: [None] * len(counts)
        for column, names in (TEXT_COLUMNS | TOKEN_COLUMNS).items()
        if not present.isdisjoint(names)
    }
    cache: dict[tuple[str, ...], list[tuple[str, list[tuple[str, int]]]]] = {}
    start = 0
    for span, count in enumerate(counts):
        of_span = tuple(keys[start : start + count])
        sources = cache.get(of_span)
        if sources is None:
            sources = cache[of_span] = _sources(of_span, present)
        is_json = may_be_json and _is_json(of_span, texts[start : start + count])
        for column, candidates in sources:
            for name, place in candidates:
                text, letter = texts[start + place], letters[start + place] if letters else "s"
                if column in TEXT_COLUMNS:
                    value: Any = _text(name.startswith(_MLFLOW_JSON) or is_json, text, letter)
                else:
                    value = _tokens(column, name, text, letter)
                if value is not None:
                    columns[column][span] = value
                    break
        start += count
    return columns


def _sources(keys: Sequence[str], present: Collection[str]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return each column with the candidate attributes of a span (name, position), in order of preference."""
    where = {key: place for place, key in enumerate(keys) if key in present}
    if not where:
        return []
    candidates = (
        (column, [(name, where[name]) for name in names if name in where])
        for column, names in (TEXT_COLUMNS | TOKEN_COLUMNS).items()
    )
    return [(column, places) for column, places in candidates if places]


def _is_json(keys: Sequence[str], texts: Sequence[str]) -> bool:
    """Return whether MLflow wrote the attributes of a span as JSON texts."""
    return _MLFLOW_TRACE in keys and texts[keys.index(_MLFLOW_TRACE)].startswith('"')


def _text(may_be_json: bool, text: str, letter: str) -> str | None:
    """Return a readable text, or None if it is missing or blank."""
    if letter not in READABLE or not text or text.isspace():
        return None
    if may_be_json and (text == "null" or text.startswith('"')):
        # MLflow writes a string as JSON, but users search for the text inside the quotes.
        plain = _json_or_none(text)
        if text == "null" or (isinstance(plain, str) and not plain.strip()):
            return None
        return plain if isinstance(plain, str) else text
    return text


def _tokens(column: str, name: str, text: str, letter: str) -> int | None:
    """Return a token count from 0 to 2**63 - 1, or None. The attribute also stays in the attribute map."""
    if member := _TOKEN_MEMBERS.get((column, name)):
        usage = _json_or_none(text) if letter in "sjr" else None
        return _count(usage.get(member)) if isinstance(usage, dict) else None
    match letter:
        case "i":
            return _count(int(text))
        case "d":
            return _count(float(text))
        case "s":
            return _count(text)
        case _:
            return None


def _count(number: Any) -> int | None:
    """Return an integer from 0 to 2**63 - 1, given as an integer, a double or text. Otherwise return None."""
    if isinstance(number, str):
        number = int(match[1]) if (match := _WHOLE.fullmatch(number)) else None
    elif isinstance(number, float) and number.is_integer():
        number = int(number)
    return number if type(number) is int and 0 <= number < 2**63 else None


def _json_or_none(text: str) -> Any:
    try:
        # Prune first, so that the row does not depend on the stack depth of the task that builds it.
        return msgspec.json.decode(pruned(text.encode()))
    except (msgspec.DecodeError, RecursionError):
        return None


EXPERIMENT: Final = "mlflow.experimentId"


def with_experiment(payload: bytes, experiment: str) -> bytes:
    """Return a protobuf TracesData in which every resource names an experiment. Existing names are kept.

    A payload that cannot be parsed is returned unchanged, because the later decoding reports the error.
    """
    try:
        traces = TracesData.FromString(payload)
    except DecodeError:
        return payload
    for group in traces.resource_spans:
        if all(attribute.key != EXPERIMENT for attribute in group.resource.attributes):
            group.resource.attributes.add(key=EXPERIMENT).value.string_value = experiment
    return traces.SerializeToString()
