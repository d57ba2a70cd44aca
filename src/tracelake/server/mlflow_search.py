"""Searching and reading traces over HTTP as MLflow's client 3.18 does: `search_traces` and `get_trace`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Depends, Query, Response
from google.protobuf.json_format import MessageToDict

from tracelake._errors import DamageError, LimitError, NotFoundError, UsageError
from tracelake.lake.annotations import was_deleted
from tracelake.lake.hot import summary_of
from tracelake.lake.lake import Lake
from tracelake.limits import (
    MLFLOW_BATCH_MAX_BYTES,
    MLFLOW_BATCH_SPANS_MAX,
    MLFLOW_BATCH_TRACES_MAX,
    MLFLOW_EXPERIMENTS_MAX,
    MLFLOW_PAGE_TRACES_MAX,
    NAME_QUOTED_MAX_CHARS,
    TRACKING_PREVIEW_MAX_CHARS,
)
from tracelake.otlp.encode import encode
from tracelake.server.json_body import json_body
from tracelake.server.json_pieces import document, enclosed, in_pieces, slices
from tracelake.server.mlflow_api import answered
from tracelake.tables.traces import IN_ORDER

_WHOLE_ID: Final = re.compile("[0-9a-f]{32}")
_TABLES_EXPERIMENT: Final = "0"
"""What traces are of that the tracking store never had."""
DAMAGE_TAG: Final = "tracelake.damage"
TOO_LARGE_TAG: Final = "tracelake.too_large"
"""Of a trace that a batch has without its spans: why they cannot be read, or take too much memory."""


class OfExperiment(msgspec.Struct, frozen=True):
    """Where traces are: an experiment."""

    experiment_id: str


class TraceLocation(msgspec.Struct, frozen=True):
    """Where traces are."""

    mlflow_experiment: OfExperiment | None = None


class TraceQuery(msgspec.Struct, frozen=True):
    """A search: `locations` in version 3 of the API, `experiment_ids` in version 2."""

    locations: list[TraceLocation] = []
    experiment_ids: list[str] = []
    filter: str | None = None
    max_results: int = 100
    order_by: list[str] = []
    page_token: str | None = None


def mlflow_search(lake: Lake) -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)
    for prefix in ("/api/2.0/mlflow", "/api/3.0/mlflow"):
        _add(router, prefix, lake)
    return router


def _add(router: APIRouter, prefix: str, lake: Lake) -> None:
    @router.post(f"{prefix}/traces/search")
    @answered
    def search(body: TraceQuery = Depends(json_body(TraceQuery))) -> object:  # noqa: B008
        page = lake.hot.find_traces(
            _experiments(body), body.filter, _page_size(body.max_results), body.order_by, body.page_token
        )
        told = {"traces": _infos(lake, {row.trace_id: row._mapping for row in page.rows})}
        return {**told, "next_page_token": page.next_page_token} if page.next_page_token else told

    @router.get(f"{prefix}/traces/batchGet")
    @answered
    def batch(trace_ids: list[str] = Query(default=[])) -> object:  # noqa: B008
        if len(trace_ids) > MLFLOW_BATCH_TRACES_MAX:
            raise LimitError(f"{len(trace_ids)} traces at once, of {MLFLOW_BATCH_TRACES_MAX} at most.")
        return {"traces": _traces(lake, whole(trace_ids))}

    @router.get(f"{prefix}/traces/get")
    @answered
    def get(trace_id: str) -> object:
        return _trace(lake, trace_id)

    @router.get(f"{prefix}/traces/{{trace_id}}")
    @answered
    def info(trace_id: str) -> object:
        return {"trace": {"trace_info": _info_alone(lake, bare(trace_id))}}


def _experiments(body: TraceQuery) -> list[str]:
    ids = [
        each.mlflow_experiment.experiment_id for each in body.locations if each.mlflow_experiment is not None
    ]
    ids += body.experiment_ids
    if not 0 < len(ids) <= MLFLOW_EXPERIMENTS_MAX or any("\0" in each for each in ids):
        raise UsageError(f"name 1 to {MLFLOW_EXPERIMENTS_MAX} experiments, by their ids.")
    return ids


def _page_size(max_results: int) -> int:
    if not 1 <= max_results <= MLFLOW_PAGE_TRACES_MAX:
        raise UsageError(f"max_results is 1 to {MLFLOW_PAGE_TRACES_MAX}, and not {max_results}.")
    return max_results


def bare(trace_id: str) -> str:
    """Return the id of a trace, or the beginning of one, as the lake writes it."""
    return trace_id.lower().removeprefix("tr-")


def whole(trace_ids: Sequence[str]) -> list[str]:
    """Return the ids of traces as the lake writes them, each once."""
    whole_ids = list(dict.fromkeys(map(bare, trace_ids)))
    for each in whole_ids:
        if not _WHOLE_ID.fullmatch(each):
            raise UsageError(
                f"{each[:NAME_QUOTED_MAX_CHARS]!r} is no whole trace id, of 32 hex digits; `traces/get` "
                "reads one trace by the beginning of its id."
            )
    return whole_ids


def _traces(lake: Lake, trace_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return those of some traces that are there. Raises LimitError once they are too much for one answer."""
    traces: list[dict[str, Any]] = []
    spans = size_bytes = 0
    deleted = lake.hot.deleted(trace_ids)
    for trace_id in trace_ids:
        if trace_id in deleted:
            continue
        try:
            try:
                rows = lake.hot.spans_of(trace_id)
            except (DamageError, LimitError) as error:
                traces.append(_without_spans(lake, trace_id, error))
                continue
            spans, size_bytes = spans + len(rows), size_bytes + rows.nbytes
            # A single one is answered whatever its size, as `traces/get` does.
            if traces and (spans > MLFLOW_BATCH_SPANS_MAX or size_bytes > MLFLOW_BATCH_MAX_BYTES):
                raise LimitError(
                    f"the first {len(traces) + 1} of {len(trace_ids)} traces have {spans:,} spans of {size_bytes:,} "
                    f"bytes, and the limits are {MLFLOW_BATCH_SPANS_MAX:,} and {MLFLOW_BATCH_MAX_BYTES:,}; ask for "
                    "fewer traces at once."
                )
            traces.append(_told(lake, rows))
        except NotFoundError:
            continue  # as MLflow does: deleted between the search and this
    return traces


def _without_spans(lake: Lake, trace_id: str, error: DamageError | LimitError) -> dict[str, Any]:
    """Return a trace whose spans cannot be read: what is known of it, no spans, and a tag that says why.

    It takes none of the others along, and does not look deleted. Raises such an error for one that has no row.
    """
    stored = lake.hot.infos([trace_id])
    kind, tag = (LimitError, TOO_LARGE_TAG) if isinstance(error, LimitError) else (DamageError, DAMAGE_TAG)
    if not stored:
        raise kind(f"trace tr-{trace_id}: {error}; ask for the others without it") from error
    (info,) = _infos(lake, stored)
    return {"trace_info": {**info, "tags": {**info["tags"], tag: str(error)}}, "spans": []}


def _trace(lake: Lake, trace_id: str) -> Response:
    """Answer with a trace and its spans, of whichever tier, and of tables alone."""
    rows = lake.hot.spans_of(bare(trace_id)).sort_by(IN_ORDER)
    trace = document({"trace_info": _info_of(lake, rows)}, "spans", rows, _spans)
    return in_pieces(enclosed(b'{"trace":', trace, b"}"))


def _info_alone(lake: Lake, trace_id: str) -> dict[str, Any]:
    """Return the info of a trace by its row; of one without a row, or by the beginning of its id, by its spans."""
    stored = lake.hot.infos([trace_id]) if _WHOLE_ID.fullmatch(trace_id) else {}
    return _infos(lake, stored)[0] if stored else _info_of(lake, lake.hot.spans_of(trace_id))


def _told(lake: Lake, rows: pa.Table) -> dict[str, Any]:
    """Return a trace of these spans as MLflow says it."""
    info = _info_of(lake, rows)
    ordered = rows.sort_by(IN_ORDER)
    return {"trace_info": info, "spans": [span for some in slices(ordered) for span in _spans(some)]}


def _info_of(lake: Lake, rows: pa.Table) -> dict[str, Any]:
    """Return the info of a trace of these spans."""
    full_id = str(rows["trace_id"][0])
    stored = lake.hot.infos([full_id])
    if not stored and lake.hot.deleted([full_id]):  # after the read: of other workspaces a key learns nothing
        raise was_deleted(full_id)
    info = stored.get(full_id) or {
        **summary_of(rows),
        **_of_root(rows),
        "experiment_id": _TABLES_EXPERIMENT,
    }
    return _infos(lake, {full_id: info})[0]


def _spans(rows: pa.Table) -> list[dict[str, Any]]:
    """Return spans as OTLP has them, with the names of protobuf."""
    messages = encode(rows)
    return [
        MessageToDict(span, preserving_proto_field_name=True)
        for resource in messages.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _of_root(rows: pa.Table) -> dict[str, Any]:
    """Return the state and the previews of a trace that only the tables have, from its first root span."""
    columns = ["parent_span_id", "start_ns", "span_id", "end_ns", "status", "input", "output"]
    roots = rows.select(columns).filter(pc.field("parent_span_id").is_null())
    if not len(roots):
        return {"state": "IN_PROGRESS"}
    root = roots.sort_by([("start_ns", "ascending"), ("span_id", "ascending")]).slice(0, 1).to_pylist()[0]
    state = "ERROR" if root["status"] == "ERROR" else "OK"
    return {
        "state": state if root["end_ns"] else "IN_PROGRESS",
        "request_preview": root["input"] and root["input"][:TRACKING_PREVIEW_MAX_CHARS],
        "response_preview": root["output"] and root["output"][:TRACKING_PREVIEW_MAX_CHARS],
    }


def _infos(lake: Lake, rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what MLflow calls the info of traces."""
    tags, assessments = lake.annotations.of_traces(list(rows))
    said = lake.hot.said_of(list(rows))
    infos = []
    for trace_id, row in rows.items():
        metadata, fields = said.get(trace_id, ({}, {}))
        infos.append(
            _info(trace_id, {**row, **fields}, metadata, tags[trace_id], assessments.get(trace_id, []))
        )
    return infos


def _info(
    trace_id: str,
    row: Any,
    said: dict[str, str],
    tags: dict[str, str],
    assessments: list[dict[str, Any]],
) -> dict[str, Any]:
    metadata = {"mlflow.trace_schema.version": "3"}
    for key, name in (("mlflow.trace.session", "session_id"), ("mlflow.trace.user", "user_id")):
        if row.get(name) is not None:
            metadata[key] = row[name]
    info = {
        "trace_id": f"tr-{trace_id}",
        "client_request_id": row.get("client_request_id"),
        "trace_location": {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": row["experiment_id"]},
        },
        "request_preview": row.get("request_preview"),
        "response_preview": row.get("response_preview"),
        "request_time": _time(row["start_ns"]),
        "execution_duration": f"{max(0, row['end_ns'] - row['start_ns']) / 1e9:.3f}s",
        "state": row["state"],
        "trace_metadata": {**metadata, **said},
        "tags": {**({"mlflow.traceName": row["name"]} if row.get("name") else {}), **tags},
        "assessments": assessments,
    }
    return {key: value for key, value in info.items() if value is not None}


def _time(ns: int) -> str:
    """Return a time as RFC 3339 has it, by milliseconds; one that no calendar has is 1970."""
    try:
        at = datetime.fromtimestamp(ns // 1_000_000 / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        at = datetime.fromtimestamp(0, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
