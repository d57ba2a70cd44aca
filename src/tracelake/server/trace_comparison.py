"""Comparison of two traces: spans aligned by name and order, differences of their figures, and diffs of their messages.

The children of two aligned spans are aligned with each other: the first span with a name matches the first one with
that name and type on the other side, the second one the second. The comparison is a page and JSON at
`/api/v1/traces/{trace_id}/compare/{other_id}`.

Senders control every text, so texts are cut before they are compared.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from tracelake import limits
from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import cut
from tracelake.otlp.chat import ChatMessage
from tracelake.otlp.content import conversation
from tracelake.results import Row, Trace
from tracelake.server.http_policy import RequestLake
from tracelake.server.message_view import pretty, pretty_text
from tracelake.server.render import DiffPiece, cost, count, diff_text, duration
from tracelake.server.routes import JsonRoute, Text, json_response, refuse_unknown, render_page
from tracelake.server.trace_page import TraceRow, parents_of, rows_of
from tracelake.server.traces import find_span, lay_out

_URL_SHOWN_CHARS: Final = 120
_FIGURES: Final = ("duration_ns", "input_tokens", "output_tokens", "cost")


@dataclass(frozen=True, slots=True)
class SpanPair:
    """Two aligned spans, or a span that only one of the traces has."""

    depth: int
    base: TraceRow | None
    other: TraceRow | None

    @property
    def row(self) -> TraceRow:
        """The span of the first trace that has one."""
        row = self.base or self.other
        if row is None:
            raise AssertionError("a pair has a span")
        return row

    @property
    def is_renamed(self) -> bool:
        """Whether the spans have different names."""
        return self.base is not None and self.other is not None and _name(self.base) != _name(self.other)

    @property
    def statuses(self) -> tuple[bool | None, bool | None]:
        """Whether the span of each side failed; None without a span."""
        return _has_failed(self.base), _has_failed(self.other)

    @property
    def query(self) -> str:
        """The query string that selects the pair."""
        spans = {"base": self.base, "other": self.other}
        return urlencode(
            {side: row.bar.span["span_id"] for side, row in spans.items() if row}, quote_via=quote
        )

    def figure(self, name: str) -> tuple[float | None, float | None]:
        """Return a figure of both sides; None where it is unknown."""
        return _figure(self.base, name), _figure(self.other, name)


def _name(row: TraceRow) -> str:
    return row.bar.span["name"] or ""


def _has_failed(row: TraceRow | None) -> bool | None:
    return None if row is None else row.bar.span["status"] == "ERROR"


def _figure(row: TraceRow | None, name: str) -> float | None:
    if row is None or (name == "duration_ns" and not row.bar.span["end_ns"]):
        return None
    value: float | None = row.bar.span[name]
    return value


def align(base: Sequence[TraceRow], other: Sequence[TraceRow]) -> list[SpanPair]:
    """Return the aligned spans of two traces in preorder, given the rows of their trees."""
    sides = base, other
    below = [_children(rows) for rows in sides]
    pairs: list[SpanPair] = []
    stack: list[tuple[int, int | None, int | None]] = [
        (0, *both) for both in reversed(_match(base, other, below[0][None], below[1][None]))
    ]
    while stack:
        depth, first, second = stack.pop()
        pairs.append(
            SpanPair(depth, None if first is None else base[first], None if second is None else other[second])
        )
        children = _match(
            base,
            other,
            [] if first is None else below[0].get(first, []),
            [] if second is None else below[1].get(second, []),
        )
        stack += [(depth + 1, *both) for both in reversed(children)]
    return pairs


def _children(rows: Sequence[TraceRow]) -> dict[int | None, list[int]]:
    """Return the places of the children of each row; those of None are the roots."""
    children: dict[int | None, list[int]] = defaultdict(list)
    for place, parent in enumerate(parents_of([row.bar for row in rows])):
        children[parent].append(place)
    return children


def _match(
    base: Sequence[TraceRow], other: Sequence[TraceRow], ours: Sequence[int], theirs: Sequence[int]
) -> list[tuple[int | None, int | None]]:
    """Align siblings by type and name. If one span on each side is base and they have the same type, align them too."""
    waiting: dict[tuple[str | None, str], deque[int]] = defaultdict(deque)
    for place in theirs:
        waiting[other[place].facts.type, _name(other[place])].append(place)
    matches: dict[int, int] = {}
    for place in ours:
        queue = waiting.get((base[place].facts.type, _name(base[place])))
        if queue:
            matches[place] = queue.popleft()
    alone = [place for place in ours if place not in matches]
    others = [place for queue in waiting.values() for place in queue]
    if len(alone) == len(others) == 1 and base[alone[0]].facts.type == other[others[0]].facts.type:
        matches[alone[0]] = others.pop()
    unmatched, order = deque(sorted(others)), {place: number for number, place in enumerate(theirs)}
    pairs: list[tuple[int | None, int | None]] = []
    for place in ours:
        match = matches.get(place)
        # Spans of the other side only precede the aligned span that follows them.
        while match is not None and unmatched and order[unmatched[0]] < order[match]:
            pairs.append((None, unmatched.popleft()))
        pairs.append((place, match))
    return [*pairs, *((None, place) for place in unmatched)]


@dataclass(frozen=True, slots=True)
class MessageDiff:
    """A message, or an input or output that is no message, as a diff of both sides."""

    label: str
    state: Literal["same", "changed", "base", "other"]
    pieces: list[DiffPiece]


@dataclass(slots=True)
class _DiffBudget:
    """Characters that the diffs of one page may still show."""

    chars: int = limits.SPAN_PAGE_TEXT_MAX_CHARS

    def take(self, text: str) -> str:
        """Return the beginning of a text that is still within the budget."""
        shown = text[: min(limits.TEXT_SHOWN_MAX_CHARS, max(self.chars, 0))]
        self.chars -= len(shown)
        return shown if len(shown) == len(text) else f"{shown}…"


@dataclass(frozen=True, slots=True)
class SideDiff:
    """Inputs or outputs of two spans as a diff."""

    title: str
    messages: list[MessageDiff] = field(default_factory=list)

    @property
    def same(self) -> int:
        """Number of messages that both sides have."""
        return sum(message.state == "same" for message in self.messages)


def diff_messages(base: Row | None, other: Row | None) -> list[SideDiff]:
    """Return the diffs of the inputs and of the outputs of two spans, whose rows have their texts."""
    budget, diffs = _DiffBudget(), []
    for title, side in (("Input", "input"), ("Output", "output")):
        both = [_texts(span, side) for span in (base, other)]
        diff = SideDiff(title, list(_aligned_messages(both[0], both[1], budget)))
        if diff.messages:
            diffs.append(diff)
    return diffs


def _texts(span: Row | None, side: str) -> list[tuple[str, str]]:
    """Return the role and the text of each message of a side; of other content, its text."""
    if span is None:
        return []
    messages: tuple[ChatMessage, ...] = getattr(conversation(span), side)
    if messages:
        return [_text(message) for message in messages[-limits.MESSAGES_SHOWN_MAX :]]
    return [(side.capitalize(), pretty_text(span[side]))] if span[side] else []


def _text(message: ChatMessage) -> tuple[str, str]:
    texts = []
    for part in message.parts[: limits.MESSAGES_SHOWN_MAX]:
        value = part.arguments if part.type == "tool_call" else part.result
        value_text = "" if value is None else value if isinstance(value, str) else pretty(value)
        match part.type:
            case "tool_call":
                texts.append(f"Tool call: {part.name or '(no name)'}\n{pretty_text(value_text)}")
            case "tool_result":
                texts.append(pretty_text(value_text))
            case "image" | "file":
                texts.append(f"{part.type.capitalize()}: {(part.url or '')[:_URL_SHOWN_CHARS]}")
            case _:
                texts.append(part.text or "")
    return cut(message.role.capitalize()), "\n\n".join(texts)


def _aligned_messages(
    base: Sequence[tuple[str, str]], other: Sequence[tuple[str, str]], budget: _DiffBudget
) -> Iterator[MessageDiff]:
    """Yield the messages of two spans, aligned. Messages of one role in the same place are versions of each other."""
    for change, low, high, other_low, other_high in SequenceMatcher(None, base, other).get_opcodes():
        ours, theirs = base[low:high], other[other_low:other_high]
        if change == "equal":
            yield from (MessageDiff(label, "same", [("same", budget.take(text))]) for label, text in ours)
            continue
        for number in range(max(len(ours), len(theirs))):
            before = ours[number] if number < len(ours) else None
            after = theirs[number] if number < len(theirs) else None
            if before and after and before[0] == after[0]:
                pieces = diff_text(budget.take(before[1]), budget.take(after[1]))
                yield MessageDiff(before[0], "changed", pieces)
                continue
            if before:
                yield MessageDiff(before[0], "base", [("removed", budget.take(before[1]))])
            if after:
                yield MessageDiff(after[0], "other", [("added", budget.take(after[1]))])


@dataclass(frozen=True, slots=True)
class FigureDiff:
    """A figure of both sides as texts, and the difference."""

    label: str
    base: str
    other: str
    difference: str = ""
    percent: str = ""
    is_worse: bool = False


def figure_diff(label: str, name: str, base: float | None, other: float | None) -> FigureDiff:
    """Return a figure of both sides. More time, tokens, cost or errors are worse."""

    def text(value: float) -> str:
        return (
            duration(int(value))
            if name == "duration_ns"
            else cost(value)
            if name == "cost"
            else count(int(value))
        )

    before, after = ("–" if value is None else text(value) for value in (base, other))  # noqa: RUF001
    if base is None or other is None:
        return FigureDiff(label, before, after)
    change = other - base
    if not change:
        return FigureDiff(label, before, after, "=")
    sign = "+" if change > 0 else "−"  # noqa: RUF001
    percent = f"{sign}{abs(change) / base:,.0%}" if base > 0 else ""
    return FigureDiff(label, before, after, f"{sign}{text(abs(change))}", percent, change > 0)


_SUMMARY: Final = (
    ("Duration", "duration_ns"),
    ("Spans", "span_count"),
    ("Errors", "error_count"),
    ("Input tokens", "input_tokens"),
    ("Output tokens", "output_tokens"),
    ("Cost", "cost"),
)


def summary_diffs(base: Row, other: Row) -> list[FigureDiff]:
    """Return the figures of two traces that at least one of them has."""
    diffs = []
    for label, name in _SUMMARY:
        values = [
            None if name == "duration_ns" and not summary["end_ns"] else summary[name]
            for summary in (base, other)
        ]
        if any(value is not None for value in values):
            diffs.append(figure_diff(label, name, *values))
    return diffs


def pair_diffs(pair: SpanPair) -> list[FigureDiff]:
    """Return the figures of two spans that at least one of them has."""
    labels = {name: label for label, name in _SUMMARY}
    both = [(name, pair.figure(name)) for name in _FIGURES]
    return [figure_diff(labels[name], name, *values) for name, values in both if values != (None, None)]


def first_difference(pairs: Sequence[SpanPair]) -> SpanPair:
    """Return the pair that a reader wants to see first: the deepest of the first spans of which only one failed,
    otherwise the last two model calls, otherwise the roots."""
    failed = [place for place, pair in enumerate(pairs) if len({bool(each) for each in pair.statuses}) == 2]
    if failed:
        place = failed[0]
        for later in failed[1:]:
            if pairs[later].depth <= pairs[place].depth:
                break
            place = later
        return pairs[place]
    calls = [pair for pair in pairs if pair.row.facts.type == "llm" and pair.base and pair.other]
    return calls[-1] if calls else pairs[0]


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """Two traces without the texts of their spans, and the alignment of their spans."""

    base: Trace
    other: Trace
    pairs: list[SpanPair]


def compare(lake: Lake, trace_id: str, other_id: str) -> TraceComparison:
    """Return the comparison of two traces. Raises NotFoundError for an unknown id."""
    base, other = lake.hot.outline(trace_id), lake.hot.outline(other_id)
    return TraceComparison(base, other, align(rows_of(lay_out(base)), rows_of(lay_out(other))))


def _side_json(row: TraceRow | None) -> Row | None:
    if row is None:
        return None
    span = row.bar.span
    names = ("span_id", "workspace", "kind", "name", "status", "start_ns", "end_ns", *_FIGURES)
    return {name: cut(span[name]) for name in names} | {"self_ns": row.facts.self_ns}


def pair_json(pair: SpanPair) -> dict[str, Any]:
    """Return the JSON of a pair. Differences are of the other side to the base one."""
    both = {name: pair.figure(name) for name in _FIGURES}
    return {
        "depth": pair.depth,
        "type": pair.row.facts.type,
        "base": _side_json(pair.base),
        "other": _side_json(pair.other),
        "differences": {
            name: other - base
            for name, (base, other) in both.items()
            if base is not None and other is not None
        },
    }


api = APIRouter(prefix="/api/v1", route_class=JsonRoute, dependencies=[Depends(refuse_unknown)])

First = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET_MAX)]


@api.get("/traces/{trace_id}/compare/{other_id}")
def compared(
    lake: RequestLake,
    trace_id: str,
    other_id: str,
    first: First = 0,
    limit: Annotated[int, Query(ge=1, le=limits.TRACE_API_SPANS_MAX)] = limits.TRACE_API_SPANS_MAX,
    base: Annotated[Text, Query(description="span of the first trace whose messages are compared")] = None,
    other: Annotated[Text, Query(description="span of the second trace whose messages are compared")] = None,
) -> Response:
    """Compare two traces: their aligned spans, with the differences of duration, tokens and cost; and the messages of
    two spans."""
    comparison = compare(lake, trace_id, other_id)
    last = first + limit
    return json_response(
        {
            "base": comparison.base.summary,
            "other": comparison.other.summary,
            "spans": [pair_json(pair) for pair in comparison.pairs[first:last]],
            "next_first": last if last < len(comparison.pairs) else None,
            "messages": diff_messages(
                *(
                    find_span(lake, trace.trace_id, span_id) if span_id else None
                    for trace, span_id in ((comparison.base, base), (comparison.other, other))
                )
            ),
        }
    )


pages = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])


def _read_span(lake: Lake, trace: Trace, row: TraceRow | None) -> Row | None:
    if row is None:
        return None
    span = row.bar.span
    return find_span(lake, trace.trace_id, span["span_id"], span["workspace"], row.bar.kind)


def _pair_context(lake: Lake, comparison: TraceComparison, pair: SpanPair) -> dict[str, Any]:
    """Return the context of the template for the details of a pair."""
    sides = ((comparison.base, pair.base), (comparison.other, pair.other))
    base, other = (_read_span(lake, trace, row) for trace, row in sides)
    return {
        "selected": pair,
        "figures": pair_diffs(pair),
        "sides": diff_messages(base, other),
        "status_messages": [None if span is None else cut(span["status_message"]) for span in (base, other)],
        "urls": [
            None if row is None else f"{_path(trace.trace_id)}?{row.bar.address}#{row.bar.address}"
            for trace, row in sides
        ],
    }


def comparison_path(trace_id: str, other_id: str) -> str:
    """Return the path of the page that compares two traces."""
    return f"{_path(trace_id)}/compare/{quote(other_id, safe='')}"


def _path(trace_id: str) -> str:
    return f"/traces/{quote(trace_id, safe='')}"


@pages.get("/traces/{trace_id}/compare/{other_id}")
def comparison_page(
    lake: RequestLake,
    request: Request,
    trace_id: str,
    other_id: str,
    first: First = 0,
    base: Text = None,
    other: Text = None,
) -> Response:
    """Show two traces side by side."""
    comparison = compare(lake, trace_id, other_id)
    selected = first_difference(comparison.pairs)
    if base or other:
        wanted = [pair for pair in comparison.pairs if _ids(pair) == (base, other)]
        selected = wanted[0] if wanted else selected
    size = limits.TRACE_PAGE_SPANS_MAX
    if "first" not in request.query_params:
        first = comparison.pairs.index(selected) // size * size
    shown = comparison.pairs[first : first + size]
    traces = [trace.summary for trace in (comparison.base, comparison.other)]
    ids = comparison.base.trace_id, comparison.other.trace_id
    path = comparison_path(*ids)
    return render_page(
        request,
        "comparison.html",
        f"/api/v1{path}",
        traces=traces,
        path=path,
        swapped=comparison_path(*reversed(ids)),
        summary=summary_diffs(*traces),
        pairs=[(pair, _cells(pair)) for pair in shown],
        has_tokens=_has_tokens(comparison.pairs),
        only=_only(comparison.pairs),
        first=first,
        total=len(comparison.pairs),
        previous_first=max(first - size, 0) if first else None,
        next_first=first + size if first + size < len(comparison.pairs) else None,
        **_pair_context(lake, comparison, selected),
    )


def _ids(pair: SpanPair) -> tuple[str | None, str | None]:
    base, other = (None if row is None else str(row.bar.span["span_id"]) for row in (pair.base, pair.other))
    return base, other


def _has_tokens(pairs: Sequence[SpanPair]) -> bool:
    names = ("input_tokens", "output_tokens")
    return any(pair.figure(name) != (None, None) for pair in pairs for name in names)


def _cells(pair: SpanPair) -> Mapping[str, FigureDiff]:
    """Return the figures of a row of the tree. Tokens are those of input and output together."""
    tokens = []
    for row in (pair.base, pair.other):
        both = [_figure(row, name) for name in ("input_tokens", "output_tokens")]
        tokens.append(None if both == [None, None] else sum(each or 0 for each in both))
    return {
        "duration": figure_diff("Duration", "duration_ns", *pair.figure("duration_ns")),
        "tokens": figure_diff("Tokens", "input_tokens", *tokens),
    }


def _only(pairs: Sequence[SpanPair]) -> tuple[int, int]:
    """Return the numbers of spans that only the base or only the other trace has."""
    return sum(pair.other is None for pair in pairs), sum(pair.base is None for pair in pairs)
