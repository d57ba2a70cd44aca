"""Details of the traces of a list, from their spans: beginnings of input and output, models, and types.

The spans of a few traces are looked up, and their details are found by Arrow. That takes a fifth of the time of
statements, which read the spans of many traces, or long texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import among, cut
from tracelake.limits import LIST_TEXT_MAX_CHARS
from tracelake.otlp.content import preview
from tracelake.results import Row

_PREVIEW_BYTES: Final = 8 * 1024 * 1024
"""Input and output texts that one page of the list reads; longer texts are cut before they are read."""
_VALUES_SHOWN: Final = 4
"""Models or types of the spans of a trace that a list shows."""
_HOUR_NS: Final = 3_600_000_000_000
_CALLS: Final = ("llm", "agent", "chain")
"""Types of spans that have the texts of a trace whose root has none."""
_VALUES: Final = ("model", "type")
_COLUMNS: Final = (
    *("trace_id", "span_id", "parent_span_id", "workspace", "kind", "start_ns", "end_ns"),
    *(*_VALUES, "input", "output"),
)


def read_spans(lake: Lake, traces: Sequence[Row]) -> pa.Table | None:
    """Return the spans of traces with the columns of details; None for many traces or long texts."""
    spans = lake.reads.spans_of([row["trace_id"] for row in traces], _COLUMNS) if traces else None
    if spans is None:
        return None
    first_ns, last_ns = _bounds(traces)
    starts = spans["start_ns"].to_numpy()
    return spans.filter(pa.array((starts >= first_ns) & (starts <= last_ns)))


def _bounds(traces: Sequence[Row]) -> tuple[int, int]:
    first_ns = min(row["start_ns"] for row in traces)
    return first_ns, max(first_ns, *(row["end_ns"] for row in traces))


def _select(lake: Lake, columns: str, traces: Sequence[Row]) -> list[pa.Table]:
    """Return SQL aggregates of the spans of each trace."""
    first_ns, last_ns = _bounds(traces)
    ids = [row["trace_id"] for row in traces]
    where = f"{among(ids)} AND start_ns BETWEEN {first_ns} AND {last_ns}"
    return lake.select(f"SELECT trace_id, {columns} FROM spans WHERE {where} GROUP BY trace_id", traces=ids)


def previews_of(
    lake: Lake, traces: Sequence[Row], spans: pa.Table | None
) -> dict[str, dict[str, str | None]]:
    """Return the beginnings of input and output of traces, by trace id.

    They are those of the root. If it lacks one, the input is that of the first span that has one, and the output that
    of the last; model calls, agents and chains come before other spans. `spans` is the result of `read_spans`.
    """
    if not traces:
        return {}
    room = _PREVIEW_BYTES // len(traces)
    if spans is None:
        texts = _texts_by_statement(lake, traces, room)
    else:
        texts = {str(trace_id): {} for trace_id in spans["trace_id"].unique().to_pylist()}
        for name in ("input", "output"):
            for trace_id, text in _first_texts(spans, name).items():
                texts[trace_id][name] = text if len(text.encode()) <= room else text[:LIST_TEXT_MAX_CHARS]
    return {
        trace_id: {
            "input": cut(preview(each.get("input"))),
            "output": cut(preview(each.get("output"), output=True)),
        }
        for trace_id, each in texts.items()
    }


def _first_texts(spans: pa.Table, name: str) -> dict[str, str]:
    """Return the text of a column that represents each trace, as `_texts_by_statement`."""
    spans = spans.filter(pc.not_equal(spans[name], pa.scalar("")))
    is_root = pc.is_null(spans["parent_span_id"])
    other = pc.if_else(pc.is_in(spans["type"], pa.array(_CALLS)), 1, 2)
    time = spans["start_ns"]
    if name == "output":
        time = pc.if_else(is_root, time, pc.bit_wise_not(spans["end_ns"]))
    spans = spans.append_column("below_root", pc.if_else(is_root, 0, other)).append_column("time", time)
    keys = ("below_root", "time", "span_id", "workspace", "kind")
    places = pc.sort_indices(spans, [(key, "ascending") for key in keys])
    first = dict(
        zip(*(each.to_pylist()[::-1] for each in (spans["trace_id"].take(places), places)), strict=True)
    )
    return {str(trace_id): str(spans[name][place]) for trace_id, place in first.items()}


def _texts_by_statement(lake: Lake, traces: Sequence[Row], room: int) -> dict[str, Row]:
    below_root = f"CASE WHEN parent_span_id IS NULL THEN 0 WHEN type IN {_CALLS} THEN 1 ELSE 2 END"
    # The complement of a time orders as its negative does, and cannot overflow.
    times = {"input": "start_ns", "output": f"CASE {below_root} WHEN 0 THEN start_ns ELSE ~end_ns END"}
    texts = ", ".join(
        f"arg_min(CASE WHEN strlen({name}) <= {room} THEN {name} ELSE left({name}, {LIST_TEXT_MAX_CHARS}) END, "
        f"ROW({below_root}, {time}, span_id, workspace, kind)) FILTER ({name} <> '') AS {name}"
        for name, time in times.items()
    )
    (table,) = _select(lake, texts, traces)
    return {row["trace_id"]: row for row in table.to_pylist()}


def span_values_of(
    lake: Lake, traces: Sequence[Row], spans: pa.Table | None
) -> dict[str, dict[str, list[str]]]:
    """Return the models and types of the spans of traces, by trace id: of each, the first few in alphabetical order.
    `spans` is the result of `read_spans`."""
    if not traces:
        return {}
    if spans is None:
        return _values_by_statement(lake, traces)
    values = {
        str(trace_id): {f"{name}s": list[str]() for name in _VALUES}
        for trace_id in spans["trace_id"].unique().to_pylist()
    }
    for name in _VALUES:
        pairs = spans.select(["trace_id", name]).filter(pc.is_valid(spans[name]))
        for trace_id, value in {*zip(*(each.to_pylist() for each in pairs.columns), strict=True)}:
            values[str(trace_id)][f"{name}s"].append(str(value)[:LIST_TEXT_MAX_CHARS])
    return {
        trace_id: {name: sorted({*several})[:_VALUES_SHOWN] for name, several in of_trace.items()}
        for trace_id, of_trace in values.items()
    }


def _values_by_statement(lake: Lake, traces: Sequence[Row]) -> dict[str, dict[str, list[str]]]:
    values = ", ".join(
        f"list_sort(list(DISTINCT left({column}, {LIST_TEXT_MAX_CHARS})) FILTER ({column} IS NOT NULL))"
        f"[1:{_VALUES_SHOWN}] AS {column}s"
        for column in _VALUES
    )
    (table,) = _select(lake, values, traces)
    return {
        row.pop("trace_id"): {name: row[name] or [] for name in ("models", "types")}
        for row in table.to_pylist()
    }


def first_inputs(lake: Lake, groups: Sequence[Row]) -> dict[str, str | None]:
    """Return the beginning of the input of the first trace of each session, by trace id."""
    # The end of these traces is not known here: an input comes within their first hour.
    firsts = [
        {"trace_id": row["first_trace_id"], "start_ns": row["first_ns"], "end_ns": row["first_ns"] + _HOUR_NS}
        for row in groups
    ]
    previews = previews_of(lake, firsts, read_spans(lake, firsts))
    return {trace_id: texts["input"] for trace_id, texts in previews.items()}
