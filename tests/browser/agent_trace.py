"""A trace of an agent with model calls, tools, a retriever and an error, and one with hostile messages."""

from __future__ import annotations

import json
from typing import Any

from tests.browser.lake_to_look_at import HOSTILE
from tests.server.fake_lake import FakeLake, span_row
from tracelake.otlp.prices import price_at
from tracelake.results import Row

AGENT, ATTACK = (f"{number:032x}" for number in (6, 7))
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
SYSTEM = (
    "You are the travel desk of **Northwind**. Book only after you have checked the policy.\n\n"
    "- Trains before flights below 5 hours\n- Hotels up to 180 EUR a night\n- Answer with a table of options"
)
QUESTION = "I have to be in Lyon on Thursday at 14:00 and leave on Friday evening. Find me a train and a hotel, please."
PLAN = "The user needs a train on Thursday morning. Paris to Lyon takes two hours, so I need arrivals before 13:30."
ANSWER = """I found a train, and the hotel search failed. You can book the train now:

| Train | Leaves | Arrives | Price |
|-------|--------|---------|-------|
| TGV 6607 | 08:58 | 10:56 | 74 EUR |
| TGV 6611 | 10:58 | 12:56 | 61 EUR |

**TGV 6611** is the cheaper one and leaves you an hour in Lyon. For the hotel:

1. I retried `hotel_search` twice, both without an answer
2. The policy allows **180 EUR** a night

```python
book(train="TGV 6611", passenger="ada", refundable=True)
```
See the [travel policy](https://example.com/policy) for details."""
TRAINS = {
    "trains": [
        {"number": "TGV 6607", "departure": "08:58", "arrival": "10:56", "price_eur": 74},
        {"number": "TGV 6611", "departure": "10:58", "arrival": "12:56", "price_eur": 61},
    ]
}
STACK = """Traceback (most recent call last):
  File "/app/tools/hotels.py", line 42, in search
    response = client.get("/v2/hotels", params=query, timeout=5)
  File "/app/http.py", line 118, in get
    raise TimeoutError("no answer from hotels.internal within 5 s")
TimeoutError: no answer from hotels.internal within 5 s"""


def call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    """Return a tool call in the form of OpenAI."""
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def step(number: int, parent: int | None, start_ms: int, length_ms: int, **columns: Any) -> Row:
    """Return a span of the trace by its position in time."""
    zero = span_row(6, 0)["start_ns"]
    start_ns, duration_ns = zero + start_ms * 1_000_000, length_ms * 1_000_000
    times = {"start_ns": start_ns, "end_ns": start_ns + duration_ns, "duration_ns": duration_ns}
    for key in columns.keys() & {"input", "output"}:
        if not isinstance(columns[key], str):
            columns[key] = json.dumps(columns[key])
    span_type = columns.get("attributes", {}).get("openinference.span.kind", "").lower() or None
    return priced(
        span_row(6, number, parent, **{"service": "travel-desk", "type": span_type, **times, **columns})
    )


def priced(row: Row) -> Row:
    """Return a row with the cost by the shipped prices."""
    price = price_at(row["model"] or "", row["start_ns"])
    if price is None or row["input_tokens"] is None:
        return row
    return row | {"cost": price.cost(row["input_tokens"], row["output_tokens"] or 0, 0, 0)}


def kind(name: str) -> dict[str, str]:
    """Return the attribute with the type of a span."""
    return {"openinference.span.kind": name}


def agent_trace() -> list[Row]:
    """Return the spans of a trip that an agent plans, whose hotel search fails."""
    asked: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    trains = call(
        "train_search", 1, origin="Paris", destination="Lyon", day="2026-11-26", arrive_before="13:30"
    )
    planned = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": PLAN},
            {"type": "text", "text": "I look for trains first."},
        ],
        "tool_calls": [trains],
    }
    found = [*asked, planned, {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(TRAINS)}]
    hotels = call("hotel_search", 2, city="Lyon", nights=1, price_max_eur=180)
    next_call = {"role": "assistant", "content": "Two trains fit. Now the hotel.", "tool_calls": [hotels]}
    failed = {"role": "tool", "tool_call_id": "call_2", "content": "Error: no answer within 5 s"}
    exception = {
        "time_ns": step(7, 1, 4_900, 0)["start_ns"] + 5_010_000_000,
        "name": "exception",
        "dropped_attributes_count": 0,
        "attributes": {
            "exception.type": "TimeoutError",
            "exception.message": "no answer from hotels.internal within 5 s",
            "exception.stacktrace": STACK,
        },
    }
    llm: dict[str, Any] = {"model": "gpt-4o", "kind": "CLIENT", "attributes": kind("LLM")}

    def answer(message: dict[str, Any], reason: str) -> dict[str, Any]:
        return {"choices": [{"message": message, "finish_reason": reason}]}

    return [
        step(1, None, 0, 12_400, name="plan trip", attributes=kind("AGENT"), input=QUESTION, output=ANSWER,
             session_id="trip-2291", user_id="ada"),
        step(2, 1, 20, 310, name="travel policy", attributes=kind("RETRIEVER"), service="policy-search", kind="CLIENT",
             input="train hotel Lyon", output=[{"document": "policy.md", "score": 0.93}]),
        step(9, 2, 40, 90, name="embed query", attributes=kind("EMBEDDING"), service="policy-search",
             model="text-embedding-3", input_tokens=12),
        step(10, 1, 30, 180, name="moderate input", attributes=kind("GUARDRAIL"), input=QUESTION,
             output={"allowed": True}),
        step(3, 1, 350, 2_100, name="chat gpt-4o", input_tokens=412, output_tokens=86, **llm,
             input={"messages": asked}, output=answer(planned, "tool_calls")),
        step(4, 1, 2_480, 640, name="train_search", attributes=kind("TOOL") | {"tool_call.id": "call_1"},
             service="rail-api", input={"origin": "Paris", "destination": "Lyon"}, output=TRAINS),
        step(5, 1, 3_150, 1_700, name="chat gpt-4o", input_tokens=688, output_tokens=44, **llm,
             input={"messages": found}, output=answer(next_call, "tool_calls")),
        step(6, 1, 4_880, 5_040, name="hotel_search", attributes=kind("TOOL"), service="hotel-api", status="ERROR",
             status_message="no answer from hotels.internal within 5 s", input={"city": "Lyon", "nights": 1},
             events=[exception]),
        step(7, 6, 4_890, 5_010, name="GET /v2/hotels", kind="CLIENT", service="hotel-api", status="ERROR",
             events=[exception], status_message="TimeoutError: no answer from hotels.internal within 5 s"),
        step(8, 1, 9_960, 2_400, name="chat gpt-4o", input_tokens=791, output_tokens=203, **llm,
             input={"messages": [*found, next_call, failed]},
             output=answer({"role": "assistant", "content": ANSWER}, "stop")),
    ]  # fmt: skip


def hostile_messages() -> list[Row]:
    """Return a span whose messages try to run scripts, load images, and exhaust the page."""
    texts = [
        f"{HOSTILE}\n\n# {HOSTILE}",
        "[a](javascript:alert(1)) [b](data:text/html,<script>alert(1)</script>) <javascript:alert(1)> [c](//evil.test)",
        "![pixel](https://evil.test/pixel.png) <img src=https://evil.test/x> [ok](https://example.com/)",
        "| a | b |\n|:-:|--:|\n| <b>x</b> | `y` |",
        "> " * 5_000 + "deep",
        "[" * 20_000,
        "word " * 100_000,
    ]
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    urls = (PIXEL, "javascript:alert(3)", "https://evil.test/b.png", "data:image/svg+xml;base64,PHN2Zy8+")
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [
        {"role": HOSTILE, "content": HOSTILE},
        *({"role": "user", "content": f"message {n}"} for n in range(400)),
    ]
    output = [{"role": "assistant", "content": HOSTILE, "tool_calls": [call(HOSTILE, 1, key=HOSTILE)]}]
    return [
        span_row(7, 1, name="attack", model="m", attributes=kind(HOSTILE), output=json.dumps(output),
                 input=json.dumps({"messages": [*messages, {"role": "user", "content": parts}]}))
    ]  # fmt: skip


def agent_lake() -> FakeLake:
    """Return a lake with both traces."""
    return FakeLake([*agent_trace(), *hostile_messages()])
