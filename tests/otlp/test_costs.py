"""Type, tokens and cost of spans: as sent by each convention, or by the price table."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest import mock

import pytest

from tests.otlp.test_columns import MEMBERS, attributes, row_of
from tracelake.otlp import prices
from tracelake.pipeline.publish import TRANSFORM


@pytest.mark.parametrize(
    ("sent", "column", "value"),
    [
        ({"openinference.span.kind": "LLM"}, "type", "llm"),
        ({"openinference.span.kind": "UNKNOWN", "gen_ai.operation.name": "chat"}, "type", "llm"),
        ({"mlflow.spanType": '"CHAT_MODEL"'}, "type", "llm"),
        ({"traceloop.span.kind": "workflow"}, "type", "chain"),
        ({"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": "3"}, "type", "llm"),
        ({"gen_ai.request.model": "m"}, "type", None),
        ({"gen_ai.usage.input_tokens": "3"}, "type", None),
        ({"gen_ai.usage.input_tokens": "3", "gen_ai.usage.output_tokens": "4"}, "total_tokens", 7),
        ({"gen_ai.usage.output_tokens": "4"}, "total_tokens", 4),
        ({"gen_ai.usage.input_tokens": "3", "llm.token_count.total": "9"}, "total_tokens", 9),
        ({"gen_ai.usage.input_tokens": "9" * 18}, "total_tokens", int("9" * 18)),
        ({"llm.cost.total": "0.25"}, "cost", 0.25),
        ({"llm.cost.total": "nan", "gen_ai.usage.cost": "1e-3"}, "cost", 0.001),
        ({"llm.cost.total": "-1"}, "cost", None),
        ({"llm.cost.total": "1_0"}, "cost", None),
        ({"llm.cost.total": "1e300"}, "cost", None),
        ({"langfuse.observation.cost_details": '{"input":0.5,"output":0.25}'}, "cost", 0.75),
        ({"langfuse.observation.cost_details": '{"input":0.5,"total":2}'}, "cost", 2.0),
        ({"langfuse.observation.cost_details": '{"input":[]}'}, "cost", None),
        ({"mlflow.llm.cost": '{"input_cost":1,"total_cost":3.0}'}, "cost", 3.0),
    ],
)
def test_type_total_and_cost(sent: dict[str, str], column: str, value: Any) -> None:
    """A stated value wins; a type and a total follow from other columns."""
    listed = [{"key": key, "value": {"stringValue": text}} for key, text in sent.items()]
    assert row_of(attributes=listed)[column] == value


LANGFUSE = {
    "input": 2140,
    "input_cached_tokens": 1024,
    "cache_creation_input_tokens": 5,
    "output": 96,
    "output_reasoning_tokens": 310,
    "total": 3575,
    "input_details": {"text": 1},
}


def test_disjoint_members_of_langfuse() -> None:
    """Each token of Langfuse's usage is in one member, so input and output are sums, as in other conventions."""
    row = row_of(
        attributes=attributes(langfuse__observation__usage_details={"stringValue": json.dumps(LANGFUSE)})
    )
    assert [row[column] for column in MEMBERS] == [3169, 406, 1024, 5, 310, 3575]


def priced(model: str, start_ns: int = 1, **tokens: int) -> float | None:
    """Return the cost of a span."""
    sent = [{"key": f"gen_ai.usage.{name}", "value": {"intValue": str(n)}} for name, n in tokens.items()]
    sent.append({"key": "gen_ai.request.model", "value": {"stringValue": model}})
    cost: float | None = row_of(attributes=sent, startTimeUnixNano=str(start_ns))["cost"]
    return cost


def check_prices() -> None:
    """Check costs by the price table."""
    million = 1_000_000
    day = 86_400 * 10**9
    for model in ("gpt-4o", "GPT-4o-2024-08-06", "openai/gpt-4o"):
        assert priced(model, input_tokens=million, output_tokens=million) == 12.5, model
    cached = {"input_tokens": million, "cache_read_input_tokens": million // 2}
    assert priced("gpt-4o", **cached) == 1.25 + 0.625
    written = cached | {"cache_creation_input_tokens": million // 2}
    assert priced("us.anthropic.claude-sonnet-4-5-20250929-v1:0", **written) == 0.15 + 1.875
    assert priced("claude-sonnet-4-5", input_tokens=10, cache_read_input_tokens=million) == 0.30003
    assert priced("gpt-4o-audio-preview", input_tokens=1) is None
    assert priced("gpt-4o") is None
    assert priced("o3", 20_248 * day - 1, input_tokens=million) == 10.0
    assert priced("o3", 20_249 * day, input_tokens=million) == 2.0
    assert priced("o3", 0, input_tokens=million) == 10.0


def test_costs_by_the_price_table() -> None:
    """The price of the model on that day counts, without the name of its release; cached input has its own price."""
    check_prices()
    with (
        mock.patch.object(prices, "_RELEASE", re.compile("never")),
        mock.patch.object(prices, "prices_of", prices.prices_of.__wrapped__),
        pytest.raises(AssertionError),
    ):
        check_prices()
    with (
        mock.patch.object(prices, "price_at", lambda model, _: next(iter(prices.prices_of(model)), None)),
        pytest.raises(AssertionError),
    ):
        check_prices()


def test_a_stated_cost_wins() -> None:
    """A cost of zero from the sender is a cost, for example of a model of one's own."""
    sent = {"gen_ai.request.model": "gpt-4o", "gen_ai.usage.input_tokens": "5", "gen_ai.usage.cost": "0"}
    listed = [{"key": key, "value": {"stringValue": text}} for key, text in sent.items()]
    assert row_of(attributes=listed)["cost"] == 0.0


def test_the_price_table_is_part_of_the_transformation() -> None:
    """Another price table is another transformation, because costs are stored."""
    assert TRANSFORM.endswith(prices.table_fingerprint())


def check_long_name() -> None:
    """Check that a long model name has no price."""
    assert priced("gpt-4o" + "-100" * 248, input_tokens=1) is not None
    name = "gpt-4o" + "-100" * 249
    assert priced(name, input_tokens=1) is None
    assert prices.PriceTable((prices.Price(model="gpt-4o*", input=1),)).price_at(name, 0) is None


def test_a_long_model_name() -> None:
    """The time to find a price grows with the square of the name, to hours for a name of a megabyte."""
    check_long_name()
    with mock.patch.object(prices, "_MODEL_MAX_CHARS", 10_000), pytest.raises(AssertionError):
        check_long_name()
