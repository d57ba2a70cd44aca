"""Traces over HTTP as MLflow's client 3.18 begins and deletes them; their spans come by `/v1/traces`."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from tracelake._errors import StorageError, TracelakeError, UsageError
from tracelake.archive.model import DELETION_KEPT, DELETION_REMOVED
from tracelake.lake.lake import Lake
from tracelake.limits import (
    MLFLOW_DELETED_TRACES_MAX,
    TRACKING_IDS_AT_ONCE,
    TRACKING_PREVIEW_MAX_CHARS,
)
from tracelake.server.json_body import json_body
from tracelake.server.mlflow_api import answered
from tracelake.server.mlflow_search import TraceLocation, bare, whole
from tracelake.tracking.annotations import LOCATION_TAG, Annotations
from tracelake.tracking.schema import DEFAULT_EXPERIMENT, TRACKING_STORE
from tracelake.tracking.started import StartedTrace, StartedTraces

_VERSION = "3.18.0"
"""The MLflow whose wire this is; its client sends spans as OTLP to servers of 3.4 and later alone."""


class ToldTrace(msgspec.Struct, frozen=True):
    """What a client says of a trace; the rest of what it sends is told by the spans."""

    trace_id: str
    trace_location: TraceLocation | None = None
    client_request_id: str | None = None
    request_preview: str | None = None
    response_preview: str | None = None
    tags: dict[str, str] = {}
    trace_metadata: dict[str, str] = {}
    assessments: list[dict[str, Any]] = []


class OfTrace(msgspec.Struct, frozen=True):
    """A trace without its spans."""

    trace_info: ToldTrace


class NewTrace(msgspec.Struct, frozen=True):
    """A trace to begin."""

    trace: OfTrace


class Deletion(msgspec.Struct, frozen=True):
    """Traces to delete of an experiment: by their ids, or the oldest up to a time."""

    experiment_id: str
    request_ids: list[str] = []
    trace_ids: list[str] = []
    max_timestamp_millis: int | None = None
    max_traces: int | None = None


def mlflow_traces(lake: Lake) -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/version")
    def version() -> PlainTextResponse:
        return PlainTextResponse(_VERSION)

    @router.post("/api/3.0/mlflow/traces")
    @answered
    def start(body: NewTrace = Depends(json_body(NewTrace))) -> object:  # noqa: B008
        return {"trace": {"trace_info": _start(lake, body.trace.trace_info)}}

    for prefix in ("/api/2.0/mlflow", "/api/3.0/mlflow"):

        @router.post(f"{prefix}/traces/delete-traces")
        @answered
        def delete(body: Deletion = Depends(json_body(Deletion))) -> object:  # noqa: B008
            deleted = _delete(lake, body)
            return {"traces_deleted": deleted, "removed": DELETION_REMOVED, "kept": DELETION_KEPT}

    return router


def _start(lake: Lake, told: ToldTrace) -> dict[str, Any]:
    """Keep what a client says of a trace; return it as MLflow's client wants it back."""
    store = lake.hot.required_store()
    (trace_id,) = whole([told.trace_id])
    fields = {
        "client_request_id": told.client_request_id,
        "request_preview": told.request_preview and told.request_preview[:TRACKING_PREVIEW_MAX_CHARS],
        "response_preview": told.response_preview and told.response_preview[:TRACKING_PREVIEW_MAX_CHARS],
    }
    given = {key: value for key, value in fields.items() if value is not None}
    begun = StartedTrace(told.tags, told.trace_metadata, given, told.assessments)
    StartedTraces(store).start(trace_id, begun)
    said = Annotations(store)
    place = told.trace_location and told.trace_location.mlflow_experiment
    experiment_id = place.experiment_id if place else DEFAULT_EXPERIMENT
    # Without this tag the client uploads the spans as an artifact, and not as OTLP.
    tags = {LOCATION_TAG: TRACKING_STORE, **said.tags([trace_id])[trace_id]}
    return {
        "trace_id": f"tr-{trace_id}",
        "trace_location": {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": experiment_id},
        },
        "trace_metadata": told.trace_metadata,
        "tags": tags,
        "assessments": said.assessments(trace_id),
        **given,
    }


def _delete(lake: Lake, wanted: Deletion) -> int:
    """Delete traces of an experiment; return how many those were."""
    store = lake.hot.required_store()
    ids = [*wanted.request_ids, *wanted.trace_ids]
    if bool(ids) == (wanted.max_timestamp_millis is not None):
        raise UsageError("name the traces to delete, or a time up to which they began, and not both.")
    if wanted.max_traces is not None and (ids or wanted.max_traces < 1):
        raise UsageError("max_traces is 1 or more, and goes with max_timestamp_millis.")
    if len(ids) > MLFLOW_DELETED_TRACES_MAX:
        raise UsageError(
            f"{len(ids):,} traces at once, of {MLFLOW_DELETED_TRACES_MAX:,} at most; ask for fewer."
        )
    if ids:
        here = store.infos([bare(each) for each in ids])
        chosen = [id for id, row in here.items() if row["experiment_id"] == wanted.experiment_id]
    else:
        most = min(wanted.max_traces or MLFLOW_DELETED_TRACES_MAX, MLFLOW_DELETED_TRACES_MAX)
        chosen = store.began_until(wanted.experiment_id, wanted.max_timestamp_millis or 0, most)
    deleted = 0
    failed: dict[str, TracelakeError] = {}
    for at in range(0, len(chosen), TRACKING_IDS_AT_ONCE):
        some = chosen[at : at + TRACKING_IDS_AT_ONCE]
        deleted += len(lake.archive.delete(some, failed.__setitem__))
    if failed:  # the answer has room for a number, and no reasons
        trace_id, error = next(iter(failed.items()))
        told = (
            f"{deleted:,} traces were deleted, and {len(failed):,} were not, of which tr-{trace_id}: {error}"
        )
        raise StorageError(told) from error
    return deleted
