"""Requests on their way into the tracking store, put together by trace: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
_STORED_AT: Final = tuple(_AT[name] for name in _STORED)
_TEXTS: Final = ("name", "service", "session_id", "user_id", "model", "kind", "status", "workspace")
_TEXTS_AT: Final = tuple(_AT[name] for name in _TEXTS)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request that the server took: its body as received, and apart by trace where somebody asks for that."""

    format: Format
    payload: bytes
    traces: Mapping[str, TraceSpans] = field(default_factory=dict)
    experiment_id: str = DEFAULT_EXPERIMENT

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


def without(request: TracedRequest, refused: Collection[str]) -> tuple[Format, bytes] | None:
    """Return the payload of a request without the traces that are refused, None where nothing is left."""
    if not any(trace_id in refused for trace_id in request.traces):
        return request.format, request.payload
    left = b"".join(trace.data for trace_id, trace in request.traces.items() if trace_id not in refused)
    return ("protobuf", left) if left else None


def info_of(write: TraceWrite) -> dict[str, Any]:
    """Return the columns of `trace_info` that spans tell; those of the root are null where it has not come.

    The row is of one workspace, and says nothing of spans of another.
    """
    workspace = write.rows[0][_WORKSPACE]
    rows = [row for row in write.rows if row[_WORKSPACE] == workspace]
    root = min((row for row in rows if row[_PARENT] is None), key=_by_start, default=None)
    return {
        "workspace": _cut(workspace, limits.TRACKING_NAME_MAX_CHARS),
        "experiment_id": write.experiment_id,
        "start_ns": min(row[_START] for row in rows),
        "end_ns": max(row[_END] for row in rows),
        "state": _state(root),
        "name": root and _name(root[_NAME]),
        "service": root and _name(root[_SERVICE]),
        "session_id": _name(_first(rows, _SESSION)),
        "user_id": _name(_first(rows, _USER)),
        "request_preview": root and _cut(root[_INPUT], limits.TRACKING_PREVIEW_MAX_CHARS),
        "response_preview": root and _cut(root[_OUTPUT], limits.TRACKING_PREVIEW_MAX_CHARS),
    }


def span_rows(lake: int, trace_id: str, sequence: int, write: TraceWrite) -> list[dict[str, Any]]:
    """Return the rows of table `spans`."""
    key = {"lake": lake, "trace_id": trace_id, "sequence": sequence}
    rows = []
    for row in write.rows:
        stored = dict(zip(_STORED, [row[at] for at in _STORED_AT], strict=True))
        stored.update(key)
        if any(
            text is not None and (len(text) > 30 or "\0" in text) for text in [row[at] for at in _TEXTS_AT]
        ):
            for name in _TEXTS:
                limit = 32 if name in ("kind", "status") else limits.TRACKING_NAME_MAX_CHARS
                stored[name] = _cut(stored[name], limit)
        rows.append(stored)
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


def _first(rows: Sequence[tuple[Any, ...]], at: int) -> str | None:
    return min((row for row in rows if row[at] is not None), key=_by_start, default=[None] * len(COLUMNS))[at]


def _name(text: str | None) -> str | None:
    return _cut(text, limits.TRACKING_NAME_MAX_CHARS)


def _cut(text: str | None, max_chars: int) -> str | None:
    """Return a text as a column holds it; PostgreSQL's have no NUL."""
    if text is None or (len(text) <= max_chars and "\0" not in text):
        return text
    return text[:max_chars].replace("\0", "\ufffd")
