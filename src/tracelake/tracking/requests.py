"""Requests on their way into the tracking store, put together by trace: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from tracelake import limits
from tracelake.otlp.by_trace import COLUMNS, TraceSpans
from tracelake.otlp.framing import Format
from tracelake.tracking.schema import DEFAULT_EXPERIMENT

_AT: Final = {name: place for place, name in enumerate(COLUMNS)}
_SPAN, _PARENT, _NAME, _STATUS = (_AT[name] for name in ("span_id", "parent_span_id", "name", "status"))
_START, _END, _SERVICE, _WORKSPACE = (_AT[name] for name in ("start_ns", "end_ns", "service", "workspace"))
_SESSION, _USER, _INPUT, _OUTPUT = (_AT[name] for name in ("session_id", "user_id", "input", "output"))
_STORED: Final = tuple(name for name in COLUMNS if name not in ("input", "output"))
"""Columns of a span that have one in the store too."""
_stored: Final = itemgetter(*(_AT[name] for name in _STORED))
_texts: Final = itemgetter(
    *(_AT[name] for name in ("name", "service", "session_id", "user_id", "model", "workspace"))
)
"""Those that can be anything: kinds and states are words or digits, ids are of hex digits."""
OF_SPANS: Final = ("lake", "trace_id", "sequence", *_STORED)
"""The columns of table `spans` that a write fills."""
OF_INFO: Final = (
    "workspace",
    "experiment_id",
    "start_ns",
    "end_ns",
    "state",
    "name",
    "service",
    "session_id",
    "user_id",
    "request_preview",
    "response_preview",
)
"""Those of table `trace_info` that spans tell."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request that the server took: its body as received, and apart by trace where somebody asks for that."""

    format: Format
    payload: bytes
    traces: Mapping[str, TraceSpans] = field(default_factory=dict)
    experiment_id: str = DEFAULT_EXPERIMENT
    refused: int = 0
    """Spans of the body that were not taken: the pipeline refuses them too, and says so in its report."""

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        apart = sum(len(trace.data) for trace in self.traces.values() if trace.data is not self.payload)
        return len(self.payload) + apart


@dataclass(frozen=True, slots=True)
class RefusedSpans:
    """Spans of one request that were not taken, and why."""

    spans: int
    reason: str


@dataclass(slots=True)
class TraceWrite:
    """What a group of requests brings of one trace."""

    experiment_id: str
    rows: list[tuple[Any, ...]]
    data: list[bytes]


def put_together(requests: Iterable[TracedRequest]) -> dict[str, TraceWrite]:
    """Return what requests bring, by trace, the ids in order: whoever locks several locks them in the same one."""
    writes: dict[str, TraceWrite] = {}
    for request in requests:
        for trace_id, trace in request.traces.items():
            write = writes.get(trace_id)
            if write is None:
                write = writes[trace_id] = TraceWrite(request.experiment_id, [], [])
            write.rows += trace.rows
            write.data.append(trace.data)
    return dict(sorted(writes.items()))


def is_in_parts(requests: Sequence[TracedRequest], writes: Mapping[str, TraceWrite]) -> bool:
    """Whether what the pipeline is to read of requests can be told by what is stored by trace.

    Not where spans were refused, or what was sent is JSON: it reads that as it came. Nor where a trace is of several
    requests, for what each of them may have counts for what is read at once; nor where resources that come with each
    trace make much more of it than was sent.
    """
    sent = sum(len(request.payload) for request in requests)
    apart = sum(len(data) for write in writes.values() for data in write.data)
    return (
        all(request.format == "protobuf" and not request.refused for request in requests)
        and sum(len(request.traces) for request in requests) == len(writes)
        and apart <= limits.OUTBOX_IN_PARTS_MAX_SHARE * sent
    )


def without(request: TracedRequest, refused: Collection[str]) -> tuple[Format, bytes] | None:
    """Return the payload of a request without the traces that are refused, None where nothing is left."""
    if not any(trace_id in refused for trace_id in request.traces):
        return request.format, request.payload
    left = b"".join(trace.data for trace_id, trace in request.traces.items() if trace_id not in refused)
    return ("protobuf", left) if left else None


def info_of(write: TraceWrite, workspace: str | None = None) -> dict[str, Any] | None:
    """Return the columns of `trace_info` that spans tell; those of the root are null where it has not come.

    The row is of one workspace, that of the first span unless it is named, and says nothing of spans of another; of one
    that brings none there is nothing to say.
    """
    brought = {row[_WORKSPACE] for row in write.rows}
    if workspace is None:
        workspace = stored_name(write.rows[0][_WORKSPACE])
    its = {name for name in brought if stored_name(name) == workspace}
    if not its:
        return None
    rows = write.rows if its == brought else [row for row in write.rows if row[_WORKSPACE] in its]
    root = min((row for row in rows if row[_PARENT] is None), key=_by_standing, default=None)
    return {
        "workspace": workspace,
        "experiment_id": write.experiment_id,
        "start_ns": min(row[_START] for row in rows),
        "end_ns": max(row[_END] for row in rows),
        "state": _state(root),
        "name": root and stored_name(root[_NAME]),
        "service": root and stored_name(root[_SERVICE]),
        "session_id": stored_name(_first(rows, _SESSION)),
        "user_id": stored_name(_first(rows, _USER)),
        "request_preview": root and _cut(root[_INPUT], limits.TRACKING_PREVIEW_MAX_CHARS),
        "response_preview": root and _cut(root[_OUTPUT], limits.TRACKING_PREVIEW_MAX_CHARS),
    }


def span_rows(lake: int, trace_id: str, sequence: int, write: TraceWrite) -> list[tuple[Any, ...]]:
    """Return the rows of table `spans`, of OF_SPANS."""
    key = (lake, trace_id, sequence)
    rows = []
    for row in write.rows:
        texts = "".join(filter(None, _texts(row)))
        if len(texts) <= limits.TRACKING_NAME_MAX_CHARS and "\0" not in texts:  # so is each of them
            rows.append(key + _stored(row))
        else:
            rows.append(
                key + tuple(stored_name(each) if isinstance(each, str) else each for each in _stored(row))
            )
    return rows


def refusals(
    requests: Sequence[TracedRequest], refused: Collection[str], reason: str
) -> list[RefusedSpans | None]:
    """Return what each request is told: the spans of traces that are refused, None where there are none."""
    spans = [
        sum(len(r.traces[trace_id].rows) for trace_id in refused if trace_id in r.traces) for r in requests
    ]
    return [RefusedSpans(count, reason) if count else None for count in spans]


def _state(root: tuple[Any, ...] | None) -> str:
    if root is None or not root[_END]:
        return "IN_PROGRESS"
    return "ERROR" if root[_STATUS] == "ERROR" else "OK"


def _by_start(row: tuple[Any, ...]) -> tuple[int, str]:
    return row[_START], row[_SPAN]


def _by_standing(row: tuple[Any, ...]) -> tuple[int, str, int]:
    """Of several claims about a span the one that ended last is first: it stands, but for what senders say of it."""
    return *_by_start(row), -row[_END]


def _first(rows: Sequence[tuple[Any, ...]], at: int) -> str | None:
    return min((row for row in rows if row[at] is not None), key=_by_start, default=[None] * len(COLUMNS))[at]


def stored_name(text: str | None) -> str | None:
    """Return a name, such as that of a workspace, as a column holds it."""
    return _cut(text, limits.TRACKING_NAME_MAX_CHARS)


def _cut(text: str | None, max_chars: int) -> str | None:
    """Return a text as a column holds it; PostgreSQL's have no NUL."""
    if text is None or (len(text) <= max_chars and "\0" not in text):
        return text
    return text[:max_chars].replace("\0", "\ufffd")
