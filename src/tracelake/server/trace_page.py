"""The page of a trace: the tree of spans, each with its time, tokens and cost, and the details of one span.

The server renders the selected span, so that the page reads without JavaScript. The script of the page loads the
details of other spans as the same HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from tracelake import limits
from tracelake._errors import LimitError, NotFoundError, StorageError, UsageError
from tracelake.lake.lake import Lake
from tracelake.otlp.content import conversation, span_type_of
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import Row
from tracelake.server.assessments import assessment_context
from tracelake.server.http_policy import RequestLake
from tracelake.server.message_view import embedded_image, view_conversation, view_text
from tracelake.server.render import cost, duration, span_query, tokens
from tracelake.server.routes import TEMPLATES, Text, json_response, render_page
from tracelake.server.traces import SCALE, Bar, Waterfall, experiment_of, find_span, lay_out
from tracelake.tables.builtin import has_usage

TYPE_LABELS: Final = {
    "llm": "LLM",
    "agent": "Agent",
    "tool": "Tool",
    "retriever": "Retriever",
    "embedding": "Embedding",
    "reranker": "Reranker",
    "guardrail": "Guardrail",
    "evaluator": "Evaluator",
    "chain": "Chain",
}
_STACK: Final = "exception.stacktrace"
_MINIMAP_WIDTH: Final = 500
_MINIMAP_LINES: Final = 40
TREE_COLUMNS: Final = ("input_tokens", "output_tokens", "cost")
"""Usage that the page shows along the tree."""


@dataclass(slots=True)
class SpanFacts:
    """Figures of a span within its trace, such as its own time."""

    type: str | None
    self_ns: int
    """Duration without the time in which a child runs."""
    own_tokens: str
    tree_tokens: str
    """Tokens of the span and those below it; usage that a parent repeats counts once."""
    tree_cost: str
    """Cost of the span and those below it, if it differs from its own."""
    is_critical: bool = False
    """Whether the span is on the critical path."""
    previous: str | None = None
    """Id of the model call before, whose messages this one may repeat."""

    @property
    def label(self) -> str | None:
        """The word for the type."""
        return TYPE_LABELS.get(self.type or "")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A row of the tree: the bar and the figures of a span."""

    bar: Bar
    facts: SpanFacts


def rows_of(waterfall: Waterfall) -> list[TraceRow]:
    """Return the rows of the tree, each with the figures of its span."""
    bars = waterfall.bars
    parents = parents_of(bars)
    children: list[list[int]] = [[] for _ in bars]
    for place, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(place)
    totals = tree_usage([bar.span for bar in bars], parents)
    facts = [
        SpanFacts(
            bar.span["type"],
            self_time(bar.span, [bars[child].span for child in below]),
            tokens(bar.span),
            tokens(total),
            "" if total["cost"] in (None, bar.span["cost"]) else cost(total["cost"]),
        )
        for bar, below, total in zip(bars, children, totals, strict=True)
    ]
    for place in critical_path(bars, parents, children):
        facts[place].is_critical = True
    _link_model_calls(bars, parents, facts)
    return [TraceRow(bar, fact) for bar, fact in zip(bars, facts, strict=True)]


def minimap(bars: Sequence[Bar]) -> tuple[str, str]:
    """Return the paths of the minimap of a trace: one line for each span, and the lines of failed spans.

    Several spans share a line if there are more spans than lines. Lines are merged, so that the size of the paths is
    bounded however many spans the trace has.
    """
    height = min(len(bars), _MINIMAP_LINES)
    paths = []
    for only_failed in (False, True):
        lines: list[list[tuple[int, int]]] = [[] for _ in range(height)]
        for place, bar in enumerate(bars):
            if not only_failed or bar.span["status"] == "ERROR":
                start = min(int(bar.x * _MINIMAP_WIDTH / SCALE), _MINIMAP_WIDTH - 1)
                end = max(math.ceil((bar.x + bar.width) * _MINIMAP_WIDTH / SCALE), start + 1)
                lines[place * height // len(bars)].append((start, min(end, _MINIMAP_WIDTH)))
        step = _MINIMAP_LINES / height
        paths.append(
            "".join(
                f"M{start} {round((number + 0.5) * step, 1):g}H{end}"
                for number, line in enumerate(lines)
                for start, end in _merged(line)
            )
        )
    return paths[0], paths[1]


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges with those that overlap or touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def parents_of(bars: Sequence[Bar]) -> list[int | None]:
    """Return the place of the parent of each bar. Bars are in preorder."""
    path: list[int] = []
    parents: list[int | None] = []
    for place, bar in enumerate(bars):
        del path[bar.depth :]
        parents.append(path[-1] if path else None)
        path.append(place)
    return parents


def _end_ns(span: Row) -> int:
    return max(int(span["end_ns"]), int(span["start_ns"]))


def self_time(span: Row, children: Sequence[Row]) -> int:
    """Return the duration of a span without the time in which a child runs."""
    covered, until = 0, span["start_ns"]
    for child in sorted(children, key=lambda child: child["start_ns"]):
        start, end = max(child["start_ns"], until), min(_end_ns(child), _end_ns(span))
        if end > start:
            covered, until = covered + end - start, end
    return max(_end_ns(span) - int(span["start_ns"]) - covered, 0)


def tree_usage(spans: Sequence[Row], parents: Sequence[int | None]) -> list[Row]:
    """Return the tokens and cost of each span with those below it, by the rule of table `traces`.

    Args:
        spans: The spans in preorder.
        parents: The place of the parent of each.
    """
    totals: list[Row] = [dict.fromkeys(TREE_COLUMNS) for _ in spans]
    # Usage of the nearest spans below that report any.
    reported: list[Row] = [dict.fromkeys(TREE_COLUMNS, 0) for _ in spans]
    for place in reversed(range(len(spans))):
        span, total, below = spans[place], totals[place], reported[place]
        for name in TREE_COLUMNS:
            if span[name] is not None:
                total[name] = (total[name] or 0) + span[name] - max(0, min(span[name], below[name]))
        if (parent := parents[place]) is not None:
            for name in TREE_COLUMNS:
                if total[name] is not None:
                    totals[parent][name] = (totals[parent][name] or 0) + total[name]
                reported[parent][name] += (span[name] or 0) if has_usage(span) else below[name]
    return totals


def critical_path(
    bars: Sequence[Bar], parents: Sequence[int | None], children: Sequence[Sequence[int]]
) -> set[int]:
    """Return the spans that determine the end of the trace: shortening one of them can shorten the trace.

    The path begins at the root that ends last. Backward from the end of a span, the child that ends last is on the
    path, then the child that ends last before that one starts, and so on.
    """
    roots = [place for place, parent in enumerate(parents) if parent is None]
    if len(bars) < 2 or not roots:
        return set()
    path: set[int] = set()
    last = max(roots, key=lambda place: _end_ns(bars[place].span))
    stack = [(last, _end_ns(bars[last].span))]
    while stack:
        place, until = stack.pop()
        path.add(place)
        for child in sorted(children[place], key=lambda child: _end_ns(bars[child].span), reverse=True):
            span = bars[child].span
            if _end_ns(span) <= until and span["start_ns"] < until:
                stack.append((child, _end_ns(span)))
                until = span["start_ns"]
    return path


def _link_model_calls(bars: Sequence[Bar], parents: Sequence[int | None], facts: Sequence[SpanFacts]) -> None:
    """Set the previous model call of each model call: the one before it with the same parent, otherwise of the same
    service."""
    last: dict[object, str] = {}
    for place in sorted(range(len(bars)), key=lambda place: bars[place].span["start_ns"]):
        span = bars[place].span
        if facts[place].type == "llm" or (facts[place].type is None and span["model"]):
            keys = (("parent", parents[place]), ("service", span["service"]))
            facts[place].previous = next((last[key] for key in keys if key in last), None)
            last.update(dict.fromkeys(keys, str(span["span_id"])))


def first_failure(rows: Sequence[TraceRow]) -> TraceRow | None:
    """Return the failed span that starts first, of those that have no failed span below them."""
    failed_below: set[int] = set()
    path: list[tuple[int, int]] = []
    for place, row in enumerate(rows):
        while path and path[-1][0] >= row.bar.depth:
            path.pop()
        if row.bar.span["status"] == "ERROR":
            failed_below |= {above for _, above in path}
            path.append((row.bar.depth, place))
    leaves = [
        row
        for place, row in enumerate(rows)
        if row.bar.span["status"] == "ERROR" and place not in failed_below
    ]
    return min(leaves, key=lambda row: row.bar.span["start_ns"], default=None)


@dataclass(frozen=True, slots=True)
class SpanAddress:
    """The query strings that identify a span: for its page, and for its JSON, which begins with a question mark."""

    query: str
    json: str


def span_details(
    span: Row, previous: Row | None, row: TraceRow | None, workspace: str | None, kind: str | None
) -> dict[str, Any]:
    """Return the context of the template of a span's details.

    `workspace` and `kind` are in the URL's query if the trace has several spans with the id.
    """
    messages = view_conversation(span, previous)
    events = [
        {
            "name": event["name"],
            "after": duration(event["time_ns"] - span["start_ns"]),
            "attributes": {k: v for k, v in dict(event["attributes"] or {}).items() if k != _STACK},
            "stack": dict(event["attributes"] or {}).get(_STACK),
        }
        for event in span["events"] or ()
    ]
    of_type = span_type_of(span)
    selector = span_query("", workspace, kind)
    return {
        "span": span,
        "row": row,
        "type": of_type,
        "type_label": TYPE_LABELS.get(of_type or ""),
        "previous": previous if messages.earlier else None,
        "messages": messages,
        "plain_input": None if messages.earlier or messages.input else view_text(span["input"], "input"),
        "plain_output": None if messages.output else view_text(span["output"], "output"),
        "raw": [
            (title, view)
            for title, column in (("Input", "input"), ("Output", "output"))
            if (view := view_text(span[column], column)) is not None
        ],
        "tables": [
            ("Attributes", span["attributes"]),
            ("Resource", span["resource"]),
            ("Scope", _scope(span["scope"])),
        ],
        "exceptions": [event for event in events if event["name"] == "exception"],
        "events": [event for event in events if event["name"] != "exception"],
        "trace_id": span["trace_id"],
        "selector": {"workspace": workspace, "kind": kind},
        "address": SpanAddress(
            span_query(span["span_id"], workspace, kind), f"?{selector}" if selector else ""
        ),
    }


def _scope(scope: Row | None) -> Row:
    if scope is None:
        return {}
    texts = {name: scope[name] for name in ("name", "version") if scope[name] is not None}
    return texts | dict(scope["attributes"] or {})


def _previous_call(lake: Lake, trace_id: str, previous: str | None, workspace: str | None) -> Row | None:
    """Return the row of the previous model call, or None if there is none or it cannot be read. The page then shows all
    messages."""
    if previous is None:
        return None
    try:
        return find_span(lake, trace_id, previous, workspace)
    except (NotFoundError, UsageError, LimitError):
        return None


def _selected(
    rows: Sequence[TraceRow], span: str | None, workspace: str | None, kind: str | None
) -> TraceRow | None:
    """Return the row of the requested span. If several spans share the id, prefer the default workspace and the client
    side."""
    candidates = [row for row in rows if row.bar.span["span_id"] == span]
    if workspace:
        candidates = [row for row in candidates if row.bar.workspace in (workspace, None)]
    if kind:
        candidates = [row for row in candidates if row.bar.kind in (kind, None)]
    own = [row for row in candidates if row.bar.span["workspace"] == WORKSPACE_DEFAULT]
    return next(iter(own or candidates), None)


def _details(lake: Lake, trace_id: str, row: TraceRow) -> dict[str, Any]:
    """Return the context of the selected span's details."""
    bar = row.bar
    span = find_span(lake, trace_id, bar.span["span_id"], bar.span["workspace"], bar.kind)
    before = _previous_call(lake, trace_id, row.facts.previous, span["workspace"])
    return span_details(span, before, row, bar.workspace, bar.kind)


def _failure_message(
    lake: Lake,
    trace_id: str,
    failure: TraceRow | None,
    selected: TraceRow | None,
    details: dict[str, Any] | None,
) -> str | None:
    """Return the message of the first failed span: its status message, or that of its exception."""
    if failure is None:
        return None
    if details is None or failure is not selected:
        details = _details(lake, trace_id, failure)
    messages = (event["attributes"].get("exception.message") for event in details["exceptions"])
    return details["span"]["status_message"] or next(filter(None, messages), None)


def _url_of_part(span: Row, part: str) -> str | None:
    """Return the URL of an image by its place, such as `messages.input.0.parts.1`."""
    match part.split("."):
        case ["messages", "input" | "output" as side, message, "parts", place] if (
            message + place
        ).isdecimal():
            messages = getattr(conversation(span), side)
            parts = messages[int(message)].parts if int(message) < len(messages) else ()
            return parts[int(place)].url if int(place) < len(parts) else None
    return None


def shown_tags(lake: Lake, trace_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the tags of traces by trace id. If tags do not exist or cannot be read, return none, because the traces
    themselves are readable."""
    try:
        return lake.annotations.shown_tags(trace_ids) if lake.hot.is_there else {}
    except StorageError:
        return {}


pages = APIRouter(include_in_schema=False)
"""Page of a trace, the details of its spans, and their embedded images."""


@pages.get("/traces/{trace_id}")
def trace_page(
    lake: RequestLake,
    request: Request,
    trace_id: str,
    first: Annotated[int | None, Query(ge=0, le=limits.PAGE_OFFSET_MAX)] = None,
    span: Text = None,
    workspace: Text = None,
    kind: Text = None,
) -> Response:
    """Show a trace."""
    trace = lake.hot.outline(trace_id)
    waterfall = lay_out(trace)
    rows = rows_of(waterfall)
    size, failure = limits.TRACE_PAGE_SPANS_MAX, first_failure(rows)
    selected = _selected(rows, span, workspace, kind) if span or first is None else None
    if selected is None and not span:
        selected = failure if first is None else None
        selected = selected or rows[min(first or 0, len(rows) - 1)]
    if selected is not None:
        first = rows.index(selected) // size * size
    shown = rows[first or 0 : (first or 0) + size]
    details = None if selected is None else _details(lake, trace.trace_id, selected)
    return render_page(
        request,
        "trace.html",
        f"/api/v1/traces/{trace.trace_id}",
        trace=trace,
        tags=shown_tags(lake, [trace.trace_id]).get(trace.trace_id, {}),
        experiment=experiment_of(lake, trace.trace_id),
        **assessment_context(lake, request, trace.trace_id),
        waterfall=waterfall,
        rows=shown,
        selected=selected,
        missing=span if selected is None else None,
        missing_workspace=workspace,
        failure=failure,
        failure_message=_failure_message(lake, trace.trace_id, failure, selected, details),
        types={row.facts.type: row.facts.label for row in rows if row.facts.label},
        depth=max(row.bar.depth for row in rows),
        minimap=minimap(waterfall.bars) if len(rows) > 1 else None,
        length_ns=waterfall.length_ns,
        has_tokens=any(row.facts.tree_tokens for row in rows),
        first=first or 0,
        total=len(rows),
        previous_first=max((first or 0) - size, 0) if first else None,
        next_first=(first or 0) + size if (first or 0) + size < len(rows) else None,
        **(details or {}),
    )


@pages.get("/traces/{trace_id}/details")
def details(
    lake: RequestLake,
    request: Request,
    trace_id: str,
    span: str,
    workspace: Text = None,
    kind: Text = None,
    previous: Text = None,
) -> Response:
    """Show the details of a span, as a part of the page."""
    row = find_span(lake, trace_id, span, workspace, kind)
    before = _previous_call(lake, trace_id, previous, row["workspace"])
    context = span_details(row, before, None, workspace, kind)
    context |= assessment_context(lake, request, row["trace_id"])
    return TEMPLATES.TemplateResponse(request, "span.html", context)


@pages.get("/traces/{trace_id}/image")
def image(
    lake: RequestLake, trace_id: str, span: str, part: str, workspace: Text = None, kind: Text = None
) -> Response:
    """Return an image in a message of a span."""
    content = embedded_image(_url_of_part(find_span(lake, trace_id, span, workspace, kind), part))
    if content is None:
        return json_response({"error": "this part of the message is no image that a page shows"}, 404)
    return Response(content[0], media_type=content[1])
