"""Token counts of traces: repeated usage counts once, and no number from a sender breaks a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.datasets.conversations import ingest
from tests.pipeline.spans import a_line, a_span
from tracelake.lake.trace_list import TraceFilter, list_traces
from tracelake.limits import TRACE_USAGE_MAX_STEPS
from tracelake.otlp.partition import take_apart
from tracelake.tables import builtin
from tracelake.tracking.store import TracedRequest, TrackingStore

MOST = 2**63 - 1


def used(trace: int, span: int, above: int | None, tokens: tuple[int, int] | None) -> dict[str, Any]:
    """Return a span with these input and output tokens."""
    fields: dict[str, Any] = {} if above is None else {"parentSpanId": f"{above + 1:016x}"}
    if tokens is not None:
        names = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
        fields["attributes"] = [
            {"key": name, "value": {"intValue": str(number)}}
            for name, number in zip(names, tokens, strict=True)
        ]
    return a_span(trace, span, **fields)


def hot(*spans: dict[str, Any]) -> TracedRequest:
    """Return a request with these spans."""
    body = a_line(*spans)
    return TracedRequest("json", body, take_apart("json", body))


def check_order_by_tokens(lake: tracelake.Lake) -> None:
    """Check that the trace with the most tokens comes first, for any sums."""
    listed = [row["trace_id"] for row in list_traces(lake, TraceFilter(order="tokens")).traces]
    assert listed == [f"{number:032x}" for number in (3, 2, 1)]


OVERFLOWING = (used(2, 0, None, (MOST, MOST)), used(1, 0, None, (MOST, 1)), used(0, 0, None, (MOST, 0)))


def test_tokens_beyond_int64_are_ordered_and_found(
    lake: tracelake.Lake, store: TrackingStore, tmp_path: Path
) -> None:
    """One span with absurd numbers breaks no list, before and after the commit; searches cap the sum."""
    store.write([hot(*OVERFLOWING)])
    check_order_by_tokens(lake)
    assert lake.search("tokens>1000").total == 3
    ingest(lake, tmp_path, *OVERFLOWING)
    check_order_by_tokens(lake)
    assert lake.search(f"tokens:{MOST}").total == 3


def test_sums_of_a_trace_saturate(lake: tracelake.Lake, tmp_path: Path) -> None:
    """Return two spans of one trace with the greatest number."""
    ingest(lake, tmp_path, used(0, 0, None, (MOST, MOST)), used(0, 1, None, (MOST, 1)))
    (row,) = list_traces(lake, TraceFilter(order="tokens")).traces
    assert (row["input_tokens"], row["output_tokens"]) == (MOST, MOST)
    assert lake.verify().ok


TREES: dict[str, tuple[tuple[dict[str, Any], ...], tuple[int | None, int | None]]] = {
    "an agent repeats its models": (
        (used(0, 0, None, (113, 11)), used(0, 1, 0, (56, 5)), used(0, 2, 0, (57, 6))),
        (113, 11),
    ),
    "steps without usage lie between": (
        (used(0, 0, None, (9, 9)), used(0, 1, 0, None), used(0, 2, 1, None), used(0, 3, 2, (9, 9))),
        (9, 9),
    ),
    "an agent reports more than its models": ((used(0, 0, None, (10, 5)), used(0, 1, 0, (4, 5))), (10, 5)),
    "an agent reports less": ((used(0, 0, None, (1, 1)), used(0, 1, 0, (4, 5))), (4, 5)),
    "agents in agents": (
        (used(0, 0, None, (9, 0)), used(0, 1, 0, (9, 0)), used(0, 2, 1, (4, 0)), used(0, 3, 1, (5, 0))),
        (9, 0),
    ),
    "models in a row": ((used(0, 0, None, None), used(0, 1, 0, (4, 5)), used(0, 2, 0, (4, 5))), (8, 10)),
    "no usage": ((used(0, 0, None, None),), (None, None)),
    "its own parent": ((used(0, 0, 0, (4, 5)),), (4, 5)),
    "a circle": ((used(0, 0, 1, (4, 5)), used(0, 1, 2, None), used(0, 2, 1, None)), (4, 5)),
    "farther apart than is looked for": (
        (
            used(0, 0, None, (1, 1)),
            *(used(0, n, n - 1, None) for n in range(1, TRACE_USAGE_MAX_STEPS + 1)),
            used(0, TRACE_USAGE_MAX_STEPS + 1, TRACE_USAGE_MAX_STEPS, (1, 1)),
        ),
        (2, 2),
    ),
    "as far apart as is looked for": (
        (
            used(0, 0, None, (1, 1)),
            *(used(0, n, n - 1, None) for n in range(1, TRACE_USAGE_MAX_STEPS)),
            used(0, TRACE_USAGE_MAX_STEPS, TRACE_USAGE_MAX_STEPS - 1, (1, 1)),
        ),
        (1, 1),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_usage_that_a_span_repeats_counts_once(
    lake: tracelake.Lake, store: TrackingStore, tmp_path: Path, name: str
) -> None:
    """Repeated usage counts once in lists and traces, before and after the commit, in one or several transactions."""
    spans, expected = TREES[name]

    def shown() -> set[tuple[int | None, int | None]]:
        rows = [*list_traces(lake, TraceFilter()).traces, lake.trace(f"{1:032x}").summary]
        return {(row["input_tokens"], row["output_tokens"]) for row in rows}

    store.write([hot(*spans)])
    assert shown() == {expected}
    for few in (spans[:1], spans[1:]):
        if few:
            ingest(lake, tmp_path, *few)
    assert shown() == {expected}
    assert lake.verify().ok


def test_rows_of_an_earlier_version_are_no_damage(
    lake: tracelake.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` accepts sums that count repeated usage twice; other numbers are still a mismatch."""
    spans = (used(0, 0, None, (9, 9)), used(0, 1, 0, (9, 9)))
    repeated = builtin._repeated

    def patch(number: int) -> None:
        tokens = dict.fromkeys(("input_tokens", "output_tokens"), number)
        monkeypatch.setattr(builtin, "_repeated", lambda spans: repeated(spans) | tokens)

    patch(0)
    ingest(lake, tmp_path, *spans)
    assert list_traces(lake, TraceFilter()).traces[0]["input_tokens"] == 18
    assert lake.verify().ok
    patch(5)
    ingest(lake, tmp_path, *({**span, "traceId": f"{7:032x}"} for span in spans))
    assert {finding.kind for finding in lake.verify().findings} == {"mismatch"}
