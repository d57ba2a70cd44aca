"""Two traces side by side: aligned spans, differences of their figures, and diffs of their messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake import limits
from tracelake.results import Row, Trace
from tracelake.server.render import diff_text
from tracelake.server.trace_comparison import (
    SpanPair,
    align,
    diff_messages,
    figure_diff,
    first_difference,
)
from tracelake.server.trace_page import rows_of
from tracelake.server.traces import lay_out

A, B = f"{1:032x}", f"{2:032x}"
COMPARISON = f"/traces/{A}/compare/{B}"


def chat(*texts: str) -> str:
    """Return messages of users as JSON."""
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts]})


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake with two runs of an agent; the second one fails in its tool."""
    runs = [
        [
            span_row(trace, 1, name="agent", type="agent", input="one line", output="fine"),
            span_row(trace, 2, 1, name="chat", type="llm", input=chat("Hello", f"day {trace}"), cost=trace),
            span_row(trace, 3, 1, name="tool", type="tool", status=status, status_message=message),
        ]
        for trace, status, message in ((1, None, None), (2, "ERROR", "no <answer>"))
    ]
    return FakeLake([*runs[0], *runs[1], span_row(2, 4, 1, name="retry"), span_row(3, 1)])


def rows(*spans: tuple[int, int | None, str]) -> list[Any]:
    """Return the rows of a tree, given number, parent and name of each span."""
    return rows_of(
        lay_out(
            Trace("t", {}, tuple(span_row(1, number, parent, name=name) for number, parent, name in spans))
        )
    )


def names(pairs: list[SpanPair]) -> list[tuple[int, Any, Any]]:
    """Return the depth and both names of each pair."""
    base, other = (
        [row and row.bar.span["name"] for row in side]
        for side in zip(*((p.base, p.other) for p in pairs), strict=True)
    )
    return list(zip([pair.depth for pair in pairs], base, other, strict=True))


def test_spans_are_aligned_by_name_and_order() -> None:
    """The second span of a name matches the second one; a span of one side precedes the one that follows it."""
    base = rows((1, None, "run"), (2, 1, "chat"), (3, 1, "tool"), (4, 1, "chat"), (5, 4, "parse"))
    other = rows((1, None, "run"), (2, 1, "plan"), (3, 1, "chat"), (4, 1, "chat"), (5, 1, "end"))
    assert names(align(base, other)) == [
        (0, "run", "run"),
        (1, None, "plan"),
        (1, "chat", "chat"),
        (1, "tool", None),
        (1, "chat", "chat"),
        (2, "parse", None),
        (1, None, "end"),
    ]
    assert all(pair.base is pair.other for pair in align(base, base))


def test_the_only_span_without_a_match_is_renamed() -> None:
    """Roots with different names are aligned, and so is one renamed child; two could be confused."""
    pairs = align(rows((1, None, "task 1"), (2, 1, "a")), rows((1, None, "task 2"), (2, 1, "b")))
    assert names(pairs) == [(0, "task 1", "task 2"), (1, "a", "b")]
    assert all(pair.is_renamed for pair in pairs)
    pairs = align(rows((1, None, "a"), (2, None, "b")), rows((1, None, "c"), (2, None, "d")))
    assert names(pairs) == [(0, "a", None), (0, "b", None), (0, None, "c"), (0, None, "d")]


def test_swapped_spans_are_aligned() -> None:
    """Spans of one name match although their order differs, and each span is there once."""
    pairs = align(
        rows((1, None, "a"), (2, None, "b"), (3, None, "x")),
        rows((1, None, "b"), (2, None, "a"), (3, None, "y")),
    )
    assert names(pairs) == [(0, "a", "a"), (0, "b", "b"), (0, "x", "y")]


def test_deep_and_wide_traces() -> None:
    """A trace of many levels, or of many children, is aligned without recursion or quadratic time."""
    deep = rows(*((number, number - 1 or None, f"level {number}") for number in range(1, 5_000)))
    assert len(align(deep, deep[:1])) == len(deep)
    wide = rows((1, None, "root"), *((number, 1, "leaf") for number in range(2, 20_000)))
    assert len(align(wide, wide)) == len(wide)


def test_the_first_difference_is_selected() -> None:
    """The failed span is selected before its failed parent; without an error, the last model call is."""

    def pairs(status: str | None) -> list[SpanPair]:
        def side(status: str | None) -> list[Any]:
            spans = (
                span_row(1, 1, name="run", status=status),
                span_row(1, 2, 1, name="chat", type="llm"),
                span_row(1, 3, 1, name="tool", status=status),
            )
            return rows_of(lay_out(Trace("t", {}, spans)))

        return align(side(status), side(None))

    assert first_difference(pairs("ERROR")).row.bar.span["name"] == "tool"
    assert first_difference(pairs(None)).row.bar.span["name"] == "chat"


@pytest.mark.parametrize(
    ("base", "other", "expected"),
    [
        ("same", "same", [("same", "same")]),
        ("", "new", [("added", "new")]),
        (
            "The train leaves Lyon at 10:58.",
            "The train leaves Paris at 10:58.",
            [("same", "The train leaves "), ("removed", "Lyon"), ("added", "Paris"), ("same", " at 10:58.")],
        ),
        # Single equal words between changes do not cut a rewritten sentence up.
        (
            "cancel two of them",
            "keep one of these",
            [("removed", "cancel two of them"), ("added", "keep one of these")],
        ),
    ],
)
def test_texts(base: str, other: str, expected: list[tuple[str, str]]) -> None:
    """A diff has whole changes, and equal text between them."""
    assert diff_text(base, other) == expected


@pytest.mark.parametrize("unit", ["word ", "line of text\n", "."])
def test_hostile_texts_are_bounded(unit: str) -> None:
    """The pieces of long texts stay few, and both sides can be put together again unless equal text is folded."""
    base = unit * 3_000 + "tail"
    other = f"head {unit * 3_000}"
    pieces = diff_text(base, other)
    assert len(pieces) < 10
    assert sum(len(text) for _, text in pieces) <= len(base) + len(other) + 100


def test_messages() -> None:
    """Equal messages are the same; messages of one role in one place are versions; others are of one side only."""
    base = span_row(1, 1, input=chat("Hello", "day 1", "bye"))
    other = span_row(2, 1, input=chat("Hello", "day 2"), output='{"answer": 1}')
    input_diff, output_diff = diff_messages(base, other)
    assert [message.state for message in input_diff.messages] == ["same", "changed", "base"]
    assert input_diff.same == 1
    assert [(message.label, message.state) for message in output_diff.messages] == [("Output", "other")]
    assert diff_messages(None, None) == []


def test_long_conversations_are_bounded() -> None:
    """The page shows only so much text of a pair."""
    text = "a sentence of a conversation. " * 2_000
    spans = [
        span_row(each, 1, input=chat(*(f"{number} {each} {text}" for number in range(50)))) for each in (1, 2)
    ]
    shown = [piece for diff in diff_messages(*spans) for message in diff.messages for piece in message.pieces]
    assert sum(len(piece) for _, piece in shown) <= limits.SPAN_PAGE_TEXT_MAX_CHARS + 1_000


def test_figures() -> None:
    """A difference has a sign, a percentage where the base side is more than nothing, and is worse if it grew."""
    grown = figure_diff("Duration", "duration_ns", 10**9, 15 * 10**8)
    assert (grown.difference, grown.percent, grown.is_worse) == ("+500 ms", "+50%", True)
    assert figure_diff("Cost", "cost", 0.0, 2.0).difference == "+$2.00"
    assert figure_diff("Errors", "error_count", 3, 1).difference == "−2"  # noqa: RUF001
    assert figure_diff("Spans", "span_count", 4, 4).difference == "="
    assert figure_diff("Cost", "cost", None, 2.0).base == "–"  # noqa: RUF001


def test_json(client: Client) -> None:
    """The API has both summaries and the aligned spans, in pages."""
    document = client.get(f"/api/v1{COMPARISON}").json()
    assert (document["base"]["trace_id"], document["other"]["trace_id"]) == (A, B)
    assert [each["depth"] for each in document["spans"]] == [0, 1, 1, 1]
    chat_pair, tool_pair, retry = document["spans"][1:]
    assert chat_pair["differences"]["cost"] == 1
    assert tool_pair["other"]["status"] == "ERROR"
    assert (retry["base"], retry["differences"]) == (None, {})
    page = client.get(f"/api/v1{COMPARISON}?first=1&limit=2").json()
    assert (page["spans"], page["next_first"]) == (document["spans"][1:3], 3)
    assert document["messages"] == []
    both = client.get(f"/api/v1{COMPARISON}?base={2:016x}&other={2:016x}").json()["messages"]
    (changed,) = [each for each in both[0]["messages"] if each["state"] == "changed"]
    assert (both[0]["title"], changed["pieces"][-2:]) == ("Input", [["removed", "1"], ["added", "2"]])
    prompts = client.get(f"/api/v1/traces/{A}/compare/{A}?base={1:016x}&other={2:016x}").json()["messages"]
    assert [each["title"] for each in prompts] == ["Input", "Output"]
    assert client.get(f"/api/v1{COMPARISON}?base={9:016x}").status_code == 404
    for wrong in ("first=-1", "limit=0", "pair=1"):
        assert client.get(f"/api/v1{COMPARISON}?{wrong}").status_code == 400
    assert client.get(f"/api/v1/traces/{A}/compare/{9:032x}").status_code == 404


def test_page(client: Client) -> None:
    """The page opens with the failed span, selects a pair by its spans, and escapes texts of senders."""
    page = client.get(COMPARISON).text
    assert "no &lt;answer&gt;" in page
    assert "only in B" in page
    chosen = client.get(f"{COMPARISON}?base={2:016x}&other={2:016x}").text
    assert "<del>1</del><ins>2</ins>" in chosen
    assert "1 of 2 the same" in chosen
    absent = client.get(f"{COMPARISON}?other={4:016x}").text
    assert "<dd>absent</dd>" in absent
    assert client.get(f"/traces/{A}/compare/{A}").status_code == 200


def test_choosing_two_traces(client: Client) -> None:
    """Two check boxes of the list lead to the comparison; another number of boxes is refused with the remedy."""
    response = client.get(f"/compare?trace={A}&trace={B}", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, COMPARISON)
    assert (
        client.get("/compare?trace=/&trace=..", follow_redirects=False)
        .headers["location"]
        .startswith("/traces/%2F/")
    )
    for query in ("", f"?trace={A}", f"?trace={A}&trace={A}", f"?trace={A}&trace={B}&trace={3:032x}"):
        refused = client.get(f"/compare{query}")
        assert refused.status_code == 400
        assert "check the boxes of two traces" in refused.text


def test_row_of_figures_is_a_plain_row() -> None:
    """Rows of spans that still run have no duration."""
    running: Row = span_row(1, 1, end_ns=0)
    (pair,) = align(rows_of(lay_out(Trace("t", {}, (running,)))), rows((1, None, "step 1")))
    assert pair.figure("duration_ns") == (None, 1_000_000_000)
