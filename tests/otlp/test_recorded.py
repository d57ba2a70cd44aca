"""Spans that real instrumentation libraries sent, recorded by `python -m tests.otlp.record`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.otlp.record.matrix import FACTS, PAGE, RECORDED, Recording, facts, page, read
from tests.otlp.record.models import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from tracelake.otlp.content import conversation

FILES = sorted(RECORDED.glob("*.json"))
NOT_SENT = {
    "anthropic_openinference": {"reasoning"},
    "anthropic_openllmetry": {"reasoning", "session", "user"},
    "anthropic_otel": {"reasoning", "session", "user", "messages"},  # it omits the text of a stream
    "langchain_openllmetry": {"reasoning"},
    "litellm_otel": {"tools", "cached", "reasoning", "session", "messages"},  # it loses the second call
    "llamaindex_openllmetry": {"session", "user"},
    "mlflow_anthropic": {"reasoning", "session", "user", "messages"},  # a stream is the name of its class
    "mlflow_openai": {"reasoning", "session", "user"},  # both are in the trace, which OTLP does not have
    "openai_openllmetry": {"session", "user"},
    "openai_otel": {"session", "user"},
    "pydanticai_logfire": {"user"},
    "pydanticai_openinference": {"user"},
    "pydanticai_otel": {"user"},
}
"""The facts that a library does not send, if any."""


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> Recording:
    """Return one recording."""
    return read(request.param)


def test_all_facts_that_a_library_sends_are_found(recording: Recording) -> None:
    """Messages, tool calls, type, tokens, cost, session and user of each library reach the columns."""
    assert recording.rejected == 0
    assert facts(recording) == set(FACTS) - NOT_SENT.get(recording.name, set())


def test_usage_of_recorded_calls(recording: Recording) -> None:
    """Each call of a model has the tokens that the model server reported, and a cost that follows from them."""
    prices = {"gpt": (0.15, 0.075, 0.15, 0.6), "claude": (3.0, 0.3, 3.75, 15.0)}
    calls = [span for span in recording.spans if span["type"] == "llm" and span["input_tokens"] is not None]
    for span in calls:
        # OpenLLMetry adds the first token of a stream of Anthropic twice.
        assert span["input_tokens"] == INPUT_TOKENS
        assert span["output_tokens"] in (OUTPUT_TOKENS, OUTPUT_TOKENS + 1)
        assert span["cached_input_tokens"] in (None, CACHED_TOKENS)
        model = "gpt" if "gpt" in span["model"] else "claude"
        price, cached, written, output = prices[model]
        cached_tokens, written_tokens = CACHED_TOKENS, span["cache_write_tokens"] or 0
        dollars = (
            (INPUT_TOKENS - cached_tokens - written_tokens) * price
            + cached_tokens * cached
            + written_tokens * written
            + span["output_tokens"] * output
        ) / 1e6
        assert span["cost"] == pytest.approx(dollars)


def test_conversations_of_recorded_agents(recording: Recording) -> None:
    """An agent's output has no message of its input, and its input not the answer."""
    for span in recording.spans:
        read_messages = conversation(span)
        received = [message for message in read_messages.input if message.role != "system"]
        if received and span["type"] in ("agent", "chain"):
            assert list(read_messages.output[: len(received)]) != received or len(received) == len(
                read_messages.output
            )
            assert len(received) == 1 or received[-1].text != "It is sunny in Paris, 21 degrees."


def test_recordings_name_no_machine() -> None:
    """Recordings are small, and have no address or path of the machine that made them."""
    for path in FILES:
        text = path.read_text()
        assert len(text) < 100_000, path.name
        assert not re.search(r"127\.0\.0\.1|localhost|/home/|/root/|/tmp/|/work/|site-packages", text), (
            path.name
        )


def test_page_lists_the_recorded_facts() -> None:
    """The page is what the recordings say; `python -m tests.otlp.record --page` writes it."""
    assert Path(PAGE).read_text() == page()
