"""Answers of the agent, and its trace."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tracelake.demo.agent import QUESTIONS, Agent, Passage, compose, count_tokens, passages, read_doc

PASSAGES = passages()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Return the exporter that collects the spans."""
    return InMemorySpanExporter()


@pytest.fixture
def agent(spans: InMemorySpanExporter) -> Iterator[Agent]:
    """Return an agent with collected spans."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield Agent(provider.get_tracer("agent"), provider.get_tracer("index"), PASSAGES)
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the finished spans of that name."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_every_question_has_an_answer_in_one_trace(agent: Agent, spans: InMemorySpanExporter) -> None:
    """All spans of a question are in one trace, as many as the answer says, with the conventions' attributes."""
    for question in QUESTIONS:
        spans.clear()
        answer = agent.ask(question, session="s", user="u")
        finished = spans.get_finished_spans()
        assert answer.sources
        assert len(finished) == answer.spans
        assert {f"{span.context.trace_id:032x}" for span in finished} == {answer.trace_id}
        (root,) = [span for span in finished if span.parent is None]
        assert root.attributes is not None
        assert root.attributes["gen_ai.operation.name"] == "invoke_agent"
        (message,) = json.loads(str(root.attributes["gen_ai.output.messages"]))
        assert message["parts"][0]["content"] == answer.text


def test_a_failed_tool_call_is_an_error_span_and_no_end(agent: Agent, spans: InMemorySpanExporter) -> None:
    """A tool call with an unknown name fails as an error span; the agent says so, and answers from its search."""
    (question,) = [question for question in QUESTIONS if "heapremove" in question]
    answer = agent.ask(question, session="s", user="u")
    assert answer.missing == ("heapq.heapremove",)
    assert answer.text.startswith("Python has no heapq.heapremove. ")
    (span,) = named(spans, "execute_tool read_doc")
    assert not span.status.is_ok
    assert span.attributes is not None
    assert span.attributes["error.type"] == "LookupError"
    assert [event.name for event in span.events] == ["exception"]
    assert all(other.status.is_ok for other in spans.get_finished_spans() if other is not span)


def test_tokens_are_those_of_the_texts(agent: Agent, spans: InMemorySpanExporter) -> None:
    """Usage counts the tokenizer's tokens of prompt and answer."""
    agent.ask(QUESTIONS[0], session="s", user="u")
    for span in named(spans, "chat extractive-composer"):
        assert span.attributes is not None
        for side in ("input", "output"):
            (message,) = json.loads(str(span.attributes[f"gen_ai.{side}.messages"]))
            text = message["parts"][0]["content"]
            assert span.attributes[f"gen_ai.usage.{side}_tokens"] == count_tokens(text)
    assert count_tokens("Hello, world!") == 4


def test_answers_are_extracts() -> None:
    """An answer has distinct sentences of its sources, and names them; otherwise it says that there is none."""
    found = [Passage("a.sort", "Sort a list. Lists are nice."), Passage("b.sort", "Sort a list.")]
    assert compose("How do I sort a list?", found) == (
        "Sort a list. Lists are nice. (from a.sort)",
        ("a.sort",),
    )
    assert compose("How do I sort a list?", []) == ("The documentation says nothing about that.", ())


def test_read_doc_of_what_there_is_and_is_not() -> None:
    """`read_doc` reads documentation by dotted name, and reports unknown names."""
    assert "median" in read_doc("statistics.median").text
    with pytest.raises(LookupError, match="no documentation of no"):
        read_doc("no.such")
