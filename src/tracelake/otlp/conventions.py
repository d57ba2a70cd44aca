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
- [openlit]     OpenLIT, sdk/python/src/openlit/semcov
- [openrouter]  OpenRouter, broadcast of traces through OTLP
- [pydantic]    Pydantic AI, pydantic_ai/models/instrumented.py
- [anthropic]   Anthropic's client, anthropic/_tracing.py
- [litellm]     LiteLLM's callback `otel`
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
        "ai.telemetry.metadata.sessionId",  # [vercel] its prefix and a name that the caller chose
    ),
    "user_id": (
        "user.id",  # [otel] [openinf] [langfuse] [mlflow]
        "langfuse.user.id",  # [langfuse]
        "mlflow.trace.user",  # [mlflow]
        "enduser.id",  # [otel]
        "traceloop.association.properties.user_id",  # [traceloop]
        "ai.telemetry.metadata.userId",  # [vercel]
        "metadata",  # [openinf] a JSON object
        "llm.user",  # [litellm]
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
        "ai.values",  # [vercel]
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
    "cached_input_tokens": (
        "gen_ai.usage.cache_read.input_tokens",  # [genai]
        "gen_ai.usage.cache_read_input_tokens",  # [traceloop]
        "llm.token_count.prompt_details.cache_read",  # [openinf]
        "ai.usage.cachedInputTokens",  # [vercel] since version 5
        "langfuse.observation.usage_details",  # [langfuse]
        "mlflow.chat.tokenUsage",  # [mlflow]
    ),
    "cache_write_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",  # [genai]
        "gen_ai.usage.cache_creation_input_tokens",  # [traceloop]
        "gen_ai.usage.cache_write.input_tokens",  # [anthropic]
        "llm.token_count.prompt_details.cache_write",  # [openinf]
        "langfuse.observation.usage_details",  # [langfuse]
        "mlflow.chat.tokenUsage",  # [mlflow]
    ),
    "reasoning_tokens": (
        "gen_ai.usage.reasoning.output_tokens",  # [genai]
        "gen_ai.usage.reasoning_tokens",  # [traceloop]
        "gen_ai.usage.details.reasoning_tokens",  # [pydantic]
        "llm.token_count.completion_details.reasoning",  # [openinf]
        "ai.usage.reasoningTokens",  # [vercel] since version 5
        "langfuse.observation.usage_details",  # [langfuse]
    ),
    "total_tokens": (
        "gen_ai.usage.total_tokens",  # [traceloop]
        "llm.token_count.total",  # [openinf]
        "llm.usage.total_tokens",  # [traceloop] before it adopted the names of [genai]
        "ai.usage.totalTokens",  # [vercel] since version 5
        "langfuse.observation.usage_details",  # [langfuse]
        "mlflow.chat.tokenUsage",  # [mlflow]
    ),
}

_LANGFUSE_USAGE: Final = "langfuse.observation.usage_details"
_LANGFUSE_MEMBERS: Final = {
    "input_tokens": re.compile("input"),
    "output_tokens": re.compile("output"),
    "cached_input_tokens": re.compile("^(?!.*(creation|write)).*cache"),
    "cache_write_tokens": re.compile("cache.*(creation|write)"),
    "reasoning_tokens": re.compile("reasoning"),
    "total_tokens": re.compile("^total$"),
}
"""The members of Langfuse's usage that add up to a column. Each token is in one member only."""
_MLFLOW_USAGE: Final = "mlflow.chat.tokenUsage"
_MLFLOW_MEMBERS: Final = {
    "cached_input_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}
"""The member of MLflow's usage for a column, if it has another name."""

SpanType: TypeAlias = Literal[
    "llm", "agent", "tool", "retriever", "embedding", "reranker", "guardrail", "evaluator", "chain"
]

TYPE_NAMES: Final = (
    "openinference.span.kind",
    "gen_ai.operation.name",
    "mlflow.spanType",
    "traceloop.span.kind",
    "llm.request.type",
    "langfuse.observation.type",
    "ai.operationId",
)
"""Attributes that state the type of a span. The first with a known value wins."""

_TYPES: Final[dict[str, SpanType]] = {
    **dict.fromkeys(("llm", "chat_model", "generation", "chat", "completion", "text_completion"), "llm"),
    **dict.fromkeys(("generate_content", "response", "responses"), "llm"),
    **dict.fromkeys(("ai.generatetext.dogenerate", "ai.streamtext.dostream"), "llm"),
    **dict.fromkeys(("ai.generateobject.dogenerate", "ai.streamobject.dostream"), "llm"),
    **dict.fromkeys(("agent", "invoke_agent", "create_agent"), "agent"),
    **dict.fromkeys(("tool", "execute_tool", "ai.toolcall"), "tool"),
    **dict.fromkeys(("retriever", "retrieval", "search"), "retriever"),
    **dict.fromkeys(("embedding", "embeddings", "ai.embed.doembed", "ai.embedmany.doembed"), "embedding"),
    **dict.fromkeys(("reranker", "rerank"), "reranker"),
    "guardrail": "guardrail",
    "evaluator": "evaluator",
    **dict.fromkeys(("chain", "workflow", "task", "invoke_workflow", "parser"), "chain"),
    **dict.fromkeys(("ai.generatetext", "ai.streamtext", "ai.generateobject", "ai.streamobject"), "chain"),
    **dict.fromkeys(("ai.embed", "ai.embedmany"), "chain"),
}
"""The type of a span by the value of such an attribute, in lower case."""

EVALUATION_EVENT: Final = "gen_ai.evaluation.result"  # [genai]
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_COMMENT: Final = "gen_ai.evaluation.explanation"


class EvaluationEvent(NamedTuple):
    """The result of an evaluation, which a span has as an event."""

    name: str
    label: str | None
    score: float | None


def evaluations(events: Iterable[Mapping[str, Any]]) -> Iterator[EvaluationEvent]:
    """Yield the evaluations among the events of a span, given its row of table `spans`."""
    for event in events:
        attributes = dict(event["attributes"] or {})
        if event["name"] == EVALUATION_EVENT and (name := attributes.get(EVALUATION_NAME)):
            score = attributes.get(EVALUATION_SCORE)
            number = float(score) if score is not None and _NUMBER.fullmatch(score) else None
            yield EvaluationEvent(name, attributes.get(EVALUATION_LABEL), number)


def types_by_value() -> Mapping[str, SpanType]:
    """Return the known values of TYPE_NAMES, in lower case, with their types."""
    return _TYPES


def span_type(text: str) -> SpanType | None:
    """Return the type that a value of one of TYPE_NAMES states, or None. MLflow quotes the value."""
    return _TYPES.get(text.strip('" ').lower())


COST_NAMES: Final = (
    "llm.cost.total",  # [openinf]
    "gen_ai.usage.cost",  # [openlit]
    "gen_ai.usage.total_cost",  # [openrouter]
    "gen_ai.cost.total_cost",  # [litellm]
    "operation.cost",  # [pydantic]
    "langfuse.observation.cost_details",  # [langfuse] a JSON object
    "mlflow.llm.cost",  # [mlflow] a JSON object
)
"""Attributes with the cost of a span in US dollars."""

_SOURCES: Final = TEXT_COLUMNS | TOKEN_COLUMNS | {"type": TYPE_NAMES, "cost": COST_NAMES}
COLUMNS: Final = tuple(_SOURCES)
COST_AND_USAGE: Final = frozenset(COST_NAMES).union(*TOKEN_COLUMNS.values())
"""Names with the cost of a span, or the tokens from which it is computed."""
NAMES: Final = messages.FIRST_KEYS.union(*_SOURCES.values())
"""All names that fill a column, and those that begin numbered messages."""
_INTEGER: Final = re.compile(r"\s*([0-9]{1,19})(?:\.0*)?\s*")
"""An integer as text: digits, optionally followed by a fraction of zeros."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{0,40})?(?:[eE][-+]?[0-9]{1,3})?|\.[0-9]{1,40}")
_OBJECTS_MAX: Final = 4
"""JSON objects that stay decoded, because several columns come from one."""
_INT64_MAX: Final = 2**63 - 1
COST_MAX: Final = 1e6
"""The largest cost of a span that is usable, in US dollars."""
_METADATA: Final = "metadata"
_METADATA_MEMBER: Final = "user_id"
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
        column: [None] * len(counts) for column, names in _SOURCES.items() if not present.isdisjoint(names)
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
                value: Any
                if name == _METADATA:
                    member = _members(text, letter).get(_METADATA_MEMBER)
                    value = _text(False, member, "s") if isinstance(member, str) else None
                elif column in TEXT_COLUMNS:
                    value = _text(name.startswith(_MLFLOW_JSON) or is_json, text, letter)
                elif column == "type":
                    value = span_type(text) if letter in READABLE else None
                elif column == "cost":
                    value = _cost(name, text, letter)
                else:
                    value = _tokens(column, name, text, letter)
                if value is not None:
                    columns[column][span] = value
                    break
        start += count
    return _completed(columns, len(counts))


def _completed(columns: dict[str, list[Any]], spans: int) -> dict[str, list[Any]]:
    """Add the type and the total of tokens that follow from other columns."""
    if "input_tokens" not in columns and "output_tokens" not in columns:
        return columns
    nothing: list[Any] = [None] * spans
    inputs, outputs, totals, types, models = (
        columns.get(name, nothing)
        for name in ("input_tokens", "output_tokens", "total_tokens", "type", "model")
    )
    columns["total_tokens"] = [
        min((a or 0) + (b or 0), _INT64_MAX) if total is None and (a is not None or b is not None) else total
        for a, b, total in zip(inputs, outputs, totals, strict=True)
    ]
    if "model" in columns:
        columns["type"] = [
            "llm" if kind is None and model is not None and (a is not None or b is not None) else kind
            for kind, model, a, b in zip(types, models, inputs, outputs, strict=True)
        ]
    return columns


def _sources(keys: Sequence[str], present: Collection[str]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return each column with the candidate attributes of a span (name, position), in order of preference."""
    where = {key: place for place, key in enumerate(keys) if key in present}
    if not where:
        return []
    candidates = (
        (column, [(name, where[name]) for name in names if name in where])
        for column, names in _SOURCES.items()
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
    if name == _LANGFUSE_USAGE:
        belongs = _LANGFUSE_MEMBERS[column].search
        counts = [_count(number) for member, number in _members(text, letter).items() if belongs(member)]
        numbers = [number for number in counts if number is not None]
        return _count(sum(numbers)) if numbers else None
    if name == _MLFLOW_USAGE:
        return _count(_members(text, letter).get(_MLFLOW_MEMBERS.get(column, column)))
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
        number = int(match[1]) if (match := _INTEGER.fullmatch(number)) else None
    elif isinstance(number, float) and number.is_integer():
        number = int(number)
    return number if type(number) is int and 0 <= number < 2**63 else None


def _members(text: str, letter: str) -> dict[str, Any]:
    """Return the members of a JSON object. Any other value has none."""
    return _object(text) if letter in "sjr" else {}


@lru_cache(_OBJECTS_MAX)
def _object(text: str) -> dict[str, Any]:
    value = _json_or_none(text)
    return value if isinstance(value, dict) else {}


def _cost(name: str, text: str, letter: str) -> float | None:
    """Return US dollars from 0 to COST_MAX, or None."""
    if name not in ("langfuse.observation.cost_details", "mlflow.llm.cost"):
        return _dollars(text) if letter in "ids" else None
    members = _members(text, letter)
    dollars = {
        member: number
        for member, value in members.items()
        if isinstance(value, int | float | str) and (number := _dollars(str(value))) is not None
    }
    stated = next((dollars[total] for total in ("total", "total_cost") if total in dollars), None)
    return stated if stated is not None or not dollars else _dollars(str(sum(dollars.values())))


def _dollars(text: str) -> float | None:
    number = float(text) if _NUMBER.fullmatch(text.strip()) else -1.0
    return number + 0.0 if 0 <= number <= COST_MAX else None


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
