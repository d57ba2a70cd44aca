"""The page of a session: its traces in order as one conversation. A trace without a session has such a page too.

A trace contributes the messages that its spans received and returned, by time. Model calls repeat the messages before
them, and parents repeat those of their children. So a message is shown once, and the history that a trace repeats of
earlier traces is folded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from tracelake import limits
from tracelake._errors import LimitError, UsageError
from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import TRACE_COLUMNS, TraceFilter, list_groups, list_traces
from tracelake.otlp.chat import ChatMessage, MessagePart, json_or_text
from tracelake.otlp.content import Conversation, conversation, span_type_of
from tracelake.results import Row
from tracelake.server import render
from tracelake.server.http_policy import RequestLake
from tracelake.server.message_view import MessageReader, MessageView, match_results
from tracelake.server.routes import JsonRoute, Text, json_response, refuse_unknown, render_page
from tracelake.server.trace_page import TYPE_LABELS
from tracelake.shards.rows import literal

_TRACES: Final = 10
"""Traces of one page."""
_SPANS: Final = 40
"""Spans of a trace whose messages are read: half of them from its beginning, half from its end."""
_TEXT_MAX_BYTES: Final = 512 * 1024
"""Input, output or attributes of a span that are read; longer ones are left to the page of the trace."""
_PAGE_MAX_CHARS: Final = 200_000
"""Texts of all messages of a page. Beyond: of each, the beginning is shown."""
_MESSAGE_MAX_CHARS: Final = 1_500
_TITLE_MAX_CHARS: Final = 120
_NAME_SHOWN_CHARS: Final = 60
_TOOLS_SHOWN: Final = 6
_OPEN_BLOCKS: Final = 14
"""Messages and runs of steps of a trace that are shown unfolded."""
_FIRST_BLOCKS: Final = 4
_START: Final = 1
"""Phase of the start of a span among moments of the same time."""

_MessageKey: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SpanMessage:
    """A message of a conversation, and the span that has it."""

    message: ChatMessage
    span: Row
    side: str
    """`input` or `output` of the span."""
    place: int
    """Number of the message on its side."""


@dataclass(slots=True)
class Turn:
    """The messages of one trace."""

    trace: Row
    messages: list[SpanMessage] = field(default_factory=list)
    earlier: list[SpanMessage] = field(default_factory=list)
    """Messages that an earlier trace had already."""
    spans: int = 0
    """Spans with messages."""
    unread: int = 0
    """Spans with messages that are not read."""
    problem: str | None = None


def message_key(message: ChatMessage) -> _MessageKey:
    """Return what tells messages apart: the role, the text, and the other parts without their ids.

    Libraries often send the result of a tool without its name.
    """
    others = [
        (
            part.type,
            part.type == "tool_call" and part.name,
            json_or_text(part.arguments),
            json_or_text(part.result),
            part.url,
        )
        for part in message.parts
        if part.type not in ("text", "reasoning")
    ]
    return message.role, message.text.strip(), json.dumps(others, sort_keys=True, default=str)


def turn_of(trace: Row, spans: Sequence[Row], before: set[_MessageKey]) -> Turn:
    """Return the messages of a trace in order of time, each once.

    Args:
        trace: the row of the trace.
        spans: rows of its spans with messages.
        before: the messages of earlier traces, to which those of this trace are added.
    """
    turn, shown, fresh = Turn(trace), set[_MessageKey](), set[_MessageKey]()
    texts: list[str] = []
    started: dict[int, int] = {}
    talks = _with_call_ids([conversation(span) for span in spans])
    for _, phase, _, number in sorted(_moments(spans)):
        span, talk = spans[number], talks[number]
        if phase == _START:
            history, last = _history(talk.input, before, shown), len(talk.input) - 1
            for place, message in enumerate(talk.input):
                key = message_key(message)
                # The last message is the question, even if it repeats an earlier word, such as "yes".
                if key in (fresh if place == last else shown):
                    continue
                entry = SpanMessage(message, span, "input", place)
                if place < history:
                    turn.earlier.append(entry)
                else:
                    turn.messages.append(entry)
                    fresh.add(key)
                shown.add(key)
            started[number] = len(texts)
            continue
        inner = texts[started[number] :]
        for place, message in enumerate(talk.output):
            key = message_key(message)
            # A parent returns what a child returned; equal answers of two children are two messages.
            if inner and (key in fresh or (key[1] and key[1] in inner)):
                continue
            turn.messages.append(SpanMessage(message, span, "output", place))
            shown.add(key)
            fresh.add(key)
            texts.append(key[1])
    before |= shown
    return turn


def _with_call_ids(talks: Sequence[Conversation]) -> list[Conversation]:
    """Give results of tool spans the ids of their calls, which only the model call has."""
    ids = {
        _call_key(part): part.id
        for talk in talks
        for message in (*talk.input, *talk.output)
        for part in message.parts
        if part.type == "tool_call" and part.id
    }
    completed = []
    for talk in talks:
        calls = [part for message in talk.input for part in message.parts if part.type == "tool_call"]
        call_id = ids.get(_call_key(calls[0])) if len(talk.input) == len(calls) == 1 else None
        output = tuple(
            msgspec.structs.replace(
                message,
                parts=tuple(
                    msgspec.structs.replace(part, id=part.id or call_id)
                    if part.type == "tool_result"
                    else part
                    for part in message.parts
                ),
            )
            for message in talk.output
        )
        completed.append(Conversation(talk.input, output) if call_id else talk)
    return completed


def _call_key(part: MessagePart) -> tuple[str | None, str]:
    return part.name, json.dumps(json_or_text(part.arguments), sort_keys=True, default=str)


def _moments(spans: Sequence[Row]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the start and the end of each span as time, phase, order within the phase, and number of the span.

    A span that starts when another ends comes after it. Of spans that start together the longest comes first, and of
    spans that end together the one that started last.
    """
    for number, span in enumerate(spans):
        start_ns, end_ns = span["start_ns"], max(span["end_ns"] or 0, span["start_ns"])
        yield start_ns, _START, -end_ns, number
        yield end_ns, _START - 1 if end_ns > start_ns else _START + 1, -start_ns, number


def _history(messages: Sequence[ChatMessage], before: set[_MessageKey], shown: set[_MessageKey]) -> int:
    """Return how many messages at the beginning of an input earlier traces had. The last one is always new."""
    count = 0
    for message in messages[:-1]:
        key = message_key(message)
        if key not in before and key not in shown:
            break
        count += 1
    return count


def read_turns(lake: Lake, traces: Sequence[Row], previous: Row | None = None) -> list[Turn]:
    """Return the turns of traces in order. The messages of the previous trace count as history."""
    if not traces:
        return []
    every = [*([previous] if previous else []), *traces]
    before: set[_MessageKey] = set()
    try:
        spans, counts = _read_spans(lake, every)
    except LimitError as error:
        return [Turn(trace, problem=str(error)) for trace in traces]
    turns = []
    for trace in every:
        trace_id = trace["trace_id"]
        own = spans.get(trace_id, [])
        turn = turn_of(trace, own, before)
        turn.spans = counts.get(trace_id, 0)
        turn.unread = turn.spans - len(own)
        turns.append(turn)
    return turns[-len(traces) :]


def _read_spans(lake: Lake, traces: Sequence[Row]) -> tuple[dict[str, list[Row]], dict[str, int]]:
    """Return the spans of traces with messages, a bounded number of each, and how many each trace has."""
    ids = ", ".join(literal(trace["trace_id"]) for trace in traces)
    first_ns, last_ns = (
        min(trace["start_ns"] for trace in traces),
        max(trace["end_ns"] for trace in traces),
    )
    here = f"trace_id IN ({ids}) AND start_ns BETWEEN {first_ns} AND {max(first_ns, last_ns)}"
    order = "start_ns, parent_span_id IS NOT NULL, span_id, workspace, kind"
    (keys,) = lake.select(
        f"SELECT trace_id, span_id, count(*) OVER (PARTITION BY trace_id) AS spans FROM spans WHERE {here} "
        "AND (input IS NOT NULL OR output IS NOT NULL OR model IS NOT NULL OR parent_span_id IS NULL) "
        f"QUALIFY row_number() OVER (PARTITION BY trace_id ORDER BY {order}) <= {_SPANS // 2} "
        f"OR count(*) OVER (PARTITION BY trace_id) - row_number() OVER (PARTITION BY trace_id ORDER BY {order}) "
        f"< {_SPANS // 2}",
        traces=[trace["trace_id"] for trace in traces],
    )
    chosen = keys.to_pylist()
    counts = {row["trace_id"]: int(row["spans"]) for row in chosen}
    if not chosen:
        return {}, counts
    pairs = ", ".join(f"({literal(row['trace_id'])}, {literal(row['span_id'])})" for row in chosen)
    texts = ", ".join(
        f"CASE WHEN strlen({name}) <= {_TEXT_MAX_BYTES} THEN {name} END AS {name}"
        for name in ("input", "output")
    )
    length = "coalesce(list_sum(list_transform(map_values(attributes), lambda text: strlen(text))), 0)"
    (table,) = lake.select(
        "SELECT trace_id, span_id, parent_span_id, workspace, kind, name, model, status, status_message, start_ns, "
        f"end_ns, type, {texts}, CASE WHEN {length} <= {_TEXT_MAX_BYTES} THEN attributes END AS attributes, "
        f"CASE WHEN len(events) <= {limits.MESSAGES_SHOWN_MAX} THEN events END AS events FROM spans WHERE {here} "
        f"AND (trace_id, span_id) IN ({pairs}) ORDER BY {order}",
        traces=[trace["trace_id"] for trace in traces],
    )
    spans: dict[str, list[Row]] = {}
    for row in table.to_pylist():
        spans.setdefault(row["trace_id"], []).append(row)
    return spans, counts


@dataclass(frozen=True, slots=True)
class SpanMessageView:
    """A message on the page, with the address of its span."""

    view: MessageView
    trace_id: str
    address: str
    """Query string of the span."""
    span: Row
    type_label: str


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """One message, or several that are folded under a label."""

    messages: list[SpanMessageView]
    label: str | None = None


@dataclass(frozen=True, slots=True)
class TurnView:
    """A trace on the page."""

    turn: Turn
    title: str
    """The beginning of the first text of a user, or the name of the trace."""
    earlier: list[SpanMessageView]
    blocks: list[MessageGroup]


def view_turns(turns: Sequence[Turn]) -> list[TurnView]:
    """Return turns with bounded texts. Tool results move to their calls, and runs of tool calls are folded."""
    reader = MessageReader(_PAGE_MAX_CHARS, _MESSAGE_MAX_CHARS)
    views = []
    for turn in turns:
        shown = [_view(reader, entry) for entry in turn.messages]
        earlier = [_view(reader, entry) for entry in turn.earlier]
        match_results([entry.view for entry in (*earlier, *shown)])
        shown, earlier = ([entry for entry in some if entry.view.parts] for some in (shown, earlier))
        views.append(TurnView(turn, _title(turn), earlier, _folded(list(_blocks(shown)))))
    return views


def _title(turn: Turn) -> str:
    texts = (entry.message.text for entry in turn.messages if entry.message.role == "user")
    title = next(filter(None, texts), turn.trace["name"]) or "(no name)"
    return str(title)[:_TITLE_MAX_CHARS]


def _view(reader: MessageReader, entry: SpanMessage) -> SpanMessageView:
    span = entry.span
    address = render.span_query(span["span_id"], span["workspace"], span["kind"])
    own = render.span_query("", span["workspace"], span["kind"])
    url = f"/api/v1/traces/{span['trace_id']}/spans/{span['span_id']}?{own}"
    (view,) = reader.read([entry.message], entry.side, entry.place, f"{url}#")
    label = TYPE_LABELS.get(span_type_of(span) or "", "Span")
    return SpanMessageView(view, span["trace_id"], address, span, label)


def _blocks(messages: Sequence[SpanMessageView]) -> Iterator[MessageGroup]:
    """Yield messages with text as they are, and runs of others folded."""
    for kind, several in groupby(messages, _kind):
        if kind == "text":
            yield from (MessageGroup([entry]) for entry in several)
        else:
            run = list(several)
            yield MessageGroup(run, _label(run))


def _kind(entry: SpanMessageView) -> str:
    """Return `text` for a message that is shown unfolded, or else what it is folded with."""
    if entry.view.role == "system":
        return "system"
    return "text" if any(part.type in ("text", "image", "file") for part in entry.view.parts) else "steps"


def _label(run: Sequence[SpanMessageView]) -> str:
    """Return the label of a run: the tools that are called, or the kind of message."""
    parts = [part for entry in run for part in entry.view.parts]
    calls = [part for part in parts if part.type == "tool_call"]
    tools = [part.name or "tool" for part in calls or parts if part.type.startswith("tool")]
    if not tools:
        return "Instructions" if all(entry.view.role == "system" for entry in run) else "Reasoning"
    names = ", ".join(dict.fromkeys(name[:_NAME_SHOWN_CHARS] for name in tools[:_TOOLS_SHOWN]))
    count = f"{len(tools)} tool call{'s' if len(tools) > 1 else ''}"
    return f"{count}: {names}{', …' if len(tools) > _TOOLS_SHOWN else ''}"


def _folded(blocks: list[MessageGroup]) -> list[MessageGroup]:
    """Fold the middle of a long trace."""
    if len(blocks) <= _OPEN_BLOCKS:
        return blocks
    last = _OPEN_BLOCKS - _FIRST_BLOCKS
    middle = [entry for block in blocks[_FIRST_BLOCKS:-last] for entry in block.messages]
    return [
        *blocks[:_FIRST_BLOCKS],
        MessageGroup(middle, f"{len(middle):,} messages in between"),
        *blocks[-last:],
    ]


def _before(lake: Lake, wanted: TraceFilter, first: Row) -> Row | None:
    """Return the trace of the session before a trace."""
    before = list_traces(lake, replace(wanted, order="newest", end_ns=first["start_ns"], page=None, limit=2))
    earlier = [row for row in before.traces if row["trace_id"] != first["trace_id"]]
    return next(iter(earlier), None)


@dataclass(frozen=True, slots=True)
class SessionPage:
    """One page of a session."""

    total: Row
    turns: list[Turn]
    next_page: str | None
    previous_page: str | None
    not_listed: str | None


def read_session(lake: Lake, session: str, page: str | None = None) -> SessionPage | None:
    """Return a page of a session; None if no trace is in it. Raises QueryError for the token of another list."""
    wanted = TraceFilter(session=session, order="oldest", limit=_TRACES, page=page)
    listing = list_traces(lake, wanted)
    groups = list_groups(lake, "session", TraceFilter(session=session, limit=1)).groups
    if not groups:
        return None
    previous = _before(lake, wanted, listing.traces[0]) if page and listing.traces else None
    return SessionPage(
        groups[0],
        read_turns(lake, listing.traces, previous),
        listing.next_page,
        listing.previous_page,
        listing.not_listed,
    )


def read_one_trace(lake: Lake, trace_id: str) -> SessionPage | None:
    """Return a trace as a session of its own; None if it does not exist."""
    (table,) = lake.select(
        f"SELECT {TRACE_COLUMNS} FROM traces WHERE trace_id = {literal(trace_id)}", traces=[trace_id]
    )
    traces = table.to_pylist()
    if not traces:
        return None
    total = {
        **traces[0],
        "traces": 1,
        "users": 1,
        **dict.fromkeys(("first_ns", "last_ns"), traces[0]["start_ns"]),
    }
    return SessionPage(total, read_turns(lake, traces), None, None, None)


def _read(lake: Lake, session: str | None, trace: str | None, page: str | None) -> SessionPage | None:
    """Return a page of a session, or a trace. Raises UsageError unless exactly one of them is named."""
    if session and not trace:
        return read_session(lake, session, page)
    if trace and not session:
        return read_one_trace(lake, trace)
    raise UsageError("name the session, or the trace: /session?session=ID; /sessions lists them")


api = APIRouter(prefix="/api/v1", route_class=JsonRoute, dependencies=[Depends(refuse_unknown)])
"""JSON API for the conversation of a session."""
pages = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])
"""The page of a session."""


@api.get("/conversation")
def conversation_of(
    lake: RequestLake,
    session: Text = None,
    trace: Text = None,
    page: Text = None,
) -> Response:
    """Read a session or a trace as one conversation: traces in order, each message once."""
    shown = _read(lake, session, trace, page)
    if shown is None:
        what = f"no trace is in session {session!r}" if session else f"no trace has the id {trace!r}"
        return json_response({"error": what}, 404)
    traces = [
        {
            **turn.trace,
            "messages": [_to_json(entry) for entry in turn.messages],
            "repeated": len(turn.earlier),
            "unread_spans": turn.unread,
        }
        for turn in shown.turns
    ]
    next_and_previous = {"next_page": shown.next_page, "previous_page": shown.previous_page}
    return json_response(
        {"session": shown.total, "traces": traces, "not_listed": shown.not_listed, **next_and_previous}
    )


def _to_json(entry: SpanMessage) -> Mapping[str, Any]:
    span = entry.span
    return {"span_id": span["span_id"], "span_name": span["name"], "message": entry.message}


@pages.get("/session")
def session_page(
    lake: RequestLake, request: Request, session: Text = None, trace: Text = None, page: Text = None
) -> Response:
    """Show a session, or a trace that is in none."""
    shown = _read(lake, session, trace, page)
    return render_page(
        request,
        "session.html",
        "/api/v1/conversation",
        200 if shown else 404,
        session=session,
        trace_id=trace,
        shown=shown,
        turns=[] if shown is None else view_turns(shown.turns),
        previous_url=render.with_page(request, shown.previous_page)
        if shown and shown.previous_page
        else None,
        next_url=render.with_page(request, shown.next_page) if shown and shown.next_page else None,
    )
