"""MLflow's REST API: traces, tags, assessments and experiments, with MLflow's paths, bodies and error codes.

It serves the MLflow client 3.18, including `search_traces` and `get_trace`. Spans arrive at `/v1/traces` instead.
Paths under `/api/2.0` and `/api/3.0` are equivalent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final, ParamSpec

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel, ConfigDict

from tracelake import limits
from tracelake._errors import (
    DamageError,
    LimitError,
    NotFoundError,
    QueryError,
    StorageError,
    TracelakeError,
    UsageError,
)
from tracelake.access.keys import check_need
from tracelake.archive.model import DELETION_KEPT, DELETION_REMOVED
from tracelake.hot.tier import summary_of
from tracelake.lake.annotations import check_experiment_tag, was_deleted
from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import cut
from tracelake.otlp.encode import encode
from tracelake.server.http_policy import RequestLake, status_of
from tracelake.server.key_ring import ACTOR
from tracelake.server.render import document, enclosed, in_pieces
from tracelake.server.routes import JsonBody, JsonRoute, json_response
from tracelake.tables.builtin import IN_ORDER
from tracelake.tracking.annotations import (
    LOCATION_TAG,
    Annotations,
    ClientTraceInfo,
    Experiment,
    StartedTrace,
)
from tracelake.tracking.schema import DEFAULT_EXPERIMENT, TRACKING_STORE

P = ParamSpec("P")
_CODES: Final[tuple[tuple[type[TracelakeError], str], ...]] = (
    (NotFoundError, "RESOURCE_DOES_NOT_EXIST"),
    (UsageError, "INVALID_PARAMETER_VALUE"),
    (QueryError, "INVALID_PARAMETER_VALUE"),
    (LimitError, "RESOURCE_EXHAUSTED"),
    (StorageError, "TEMPORARILY_UNAVAILABLE"),
)
VERSIONS: Final = ("/api/2.0/mlflow", "/api/3.0/mlflow")
"""Prefixes of `api`."""


class MlflowModel(BaseModel):
    """JSON object of MLflow's client. No type is converted, and unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class TraceTag(MlflowModel):
    """Tag to set on a trace."""

    key: str
    value: str


class TraceTagKey(MlflowModel):
    """Tag to delete from a trace."""

    key: str


class ExperimentTag(MlflowModel):
    """Tag to set on an experiment."""

    experiment_id: str
    key: str
    value: str


class ExperimentTagKey(MlflowModel):
    """Tag to delete from an experiment."""

    experiment_id: str
    key: str


class NewExperiment(MlflowModel):
    """Experiment to create."""

    name: str
    tags: list[TraceTag] = []


class ExperimentQuery(MlflowModel):
    """Search for experiments."""

    filter: str | None = None
    max_results: int = limits.EXPERIMENTS_SHOWN_MAX
    order_by: list[str] = []
    page_token: str | None = None
    view_type: str | None = None


class AssessmentBody(MlflowModel):
    """Assessment, or the changes to one."""

    assessment: dict[str, Any]


class MlflowRoute(JsonRoute):
    """Route that returns its result as JSON, and its errors in MLflow's format."""

    def __init__(self, path: str, endpoint: Callable[..., object], **options: Any) -> None:
        """Add a route, as APIRoute does."""

        @wraps(endpoint)
        def respond(*args: Any, **kwargs: Any) -> Response:
            try:
                answer = endpoint(*args, **kwargs)
                return answer if isinstance(answer, Response) else json_response(answer)
            except TracelakeError as error:
                code = next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL_ERROR")
                response = json_response({"error_code": code, "message": str(error)}, status_of(type(error)))
                if response.status_code == 503:
                    response.headers["Retry-After"] = str(limits.INGEST_RETRY_AFTER_S)
                return response

        super().__init__(path, respond, **options)


api = APIRouter(route_class=MlflowRoute, include_in_schema=False)
"""Routes for traces, tags, assessments and experiments."""
client_api = APIRouter(route_class=MlflowRoute, include_in_schema=False)
"""Routes by which MLflow's client identifies the server and starts traces."""


@api.get("/traces/{trace_id}/tags")
def trace_tags(lake: RequestLake, trace_id: str) -> object:
    """Return the tags of a trace."""
    return {"tags": lake.annotations.tags(trace_id)}


@api.patch("/traces/{trace_id}/tags")
def set_trace_tag(lake: RequestLake, trace_id: str, body: JsonBody[TraceTag]) -> object:
    """Set a tag of a trace."""
    lake.annotations.set_tag(trace_id, body.key, body.value)
    return {}


@api.delete("/traces/{trace_id}/tags")
def delete_trace_tag(lake: RequestLake, trace_id: str, body: JsonBody[TraceTagKey]) -> object:
    """Delete a tag of a trace."""
    lake.annotations.delete_tag(trace_id, body.key)
    return {}


_ASSESSMENTS: Final = "/traces/{trace_id}/assessments"


@api.get(_ASSESSMENTS)
def list_assessments(lake: RequestLake, trace_id: str) -> object:
    """List the assessments of a trace."""
    return {"assessments": lake.annotations.assessments(trace_id)}


@api.post(_ASSESSMENTS)
def log_assessment(lake: RequestLake, trace_id: str, body: JsonBody[AssessmentBody]) -> object:
    """Add an assessment to a trace."""
    return {"assessment": lake.annotations.log_assessment(trace_id, body.assessment)}


@api.get(f"{_ASSESSMENTS}/{{assessment_id}}")
def get_assessment(lake: RequestLake, trace_id: str, assessment_id: str) -> object:
    """Return an assessment."""
    for each in lake.annotations.assessments(trace_id):
        if each["assessment_id"] == assessment_id:
            return {"assessment": each}
    raise NotFoundError(f"trace {trace_id} has no assessment {assessment_id!r}.")


@api.patch(f"{_ASSESSMENTS}/{{assessment_id}}")
def update_assessment(
    lake: RequestLake, trace_id: str, assessment_id: str, body: JsonBody[AssessmentBody]
) -> object:
    """Change an assessment."""
    return {"assessment": lake.annotations.update_assessment(trace_id, assessment_id, body.assessment)}


@api.delete(f"{_ASSESSMENTS}/{{assessment_id}}")
def delete_assessment(lake: RequestLake, trace_id: str, assessment_id: str) -> object:
    """Delete an assessment."""
    lake.annotations.delete_assessment(trace_id, assessment_id)
    return {}


@api.post("/experiments/create")
def create_experiment(lake: RequestLake, request: Request, body: JsonBody[NewExperiment]) -> object:
    """Create an experiment with its tags."""
    # Check everything before creating anything.
    if len({tag.key for tag in body.tags}) > limits.ANNOTATIONS_MAX:
        raise LimitError(f"an experiment has at most {limits.ANNOTATIONS_MAX:,} tags; give fewer.")
    for tag in body.tags:
        if check_experiment_tag(tag.key, tag.value):
            actor = request.scope[ACTOR]
            check_need(actor.key_id, actor.role, "admin")  # the same check as for setting the tag alone
    experiment_id = lake.annotations.create_experiment(body.name)
    for tag in body.tags:
        lake.annotations.set_experiment_tag(experiment_id, tag.key, tag.value)
    return {"experiment_id": experiment_id}


@api.post("/experiments/search")
def search_experiments(lake: RequestLake, body: JsonBody[ExperimentQuery]) -> object:
    """Search for experiments."""
    if body.max_results < 1:
        raise UsageError(f"max_results must be 1 or more, not {body.max_results}.")
    if body.view_type == "DELETED_ONLY":
        return {"experiments": []}  # experiments are never deleted
    experiments, token = lake.annotations.search_experiments(
        body.filter, body.max_results, body.order_by, body.page_token
    )
    answer = {"experiments": [_listed(_experiment_json(each)) for each in experiments]}
    return {**answer, "next_page_token": token} if token else answer


@api.get("/experiments/get")
def get_experiment(lake: RequestLake, experiment_id: str) -> object:
    """Return an experiment."""
    return {"experiment": _experiment_json(lake.annotations.experiment(experiment_id))}


@api.get("/experiments/get-by-name")
def get_experiment_by_name(lake: RequestLake, experiment_name: str) -> object:
    """Return the experiment with a name."""
    return {"experiment": _experiment_json(lake.annotations.experiment_named(experiment_name))}


@api.post("/experiments/set-experiment-tag")
def set_experiment_tag(lake: RequestLake, body: JsonBody[ExperimentTag]) -> object:
    """Set a tag of an experiment."""
    lake.annotations.set_experiment_tag(body.experiment_id, body.key, body.value)
    return {}


@api.post("/experiments/delete-experiment-tag")
def delete_experiment_tag(lake: RequestLake, body: JsonBody[ExperimentTagKey]) -> object:
    """Delete a tag of an experiment."""
    lake.annotations.delete_experiment_tag(body.experiment_id, body.key)
    return {}


def _listed(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of a list: long names, tags and metadata are cut. Reading the entry alone returns all of them."""
    shortened: dict[str, Any] = {}
    for key, value in entry.items():
        if key in ("tags", "trace_metadata") and isinstance(value, dict):
            shortened[key] = {name: cut(text) for name, text in value.items()}
        elif key == "tags":
            shortened[key] = [{name: cut(text) for name, text in tag.items()} for tag in value]
        else:
            shortened[key] = cut(value) if key in ("name", "client_request_id") else value
    return shortened


def _experiment_json(experiment: Experiment) -> dict[str, object]:
    """Return an experiment in MLflow's JSON, whose times are milliseconds."""
    created_ms = experiment.created_ns // 1_000_000
    return {
        "experiment_id": experiment.experiment_id,
        "name": experiment.name,
        "lifecycle_stage": "active",
        "creation_time": created_ms,
        "last_update_time": created_ms,
        "tags": [{"key": key, "value": value} for key, value in experiment.tags.items()],
    }


_WHOLE_ID: Final = re.compile("[0-9a-f]{32}")
_TABLES_EXPERIMENT: Final = "0"
"""Experiment of traces that the tracking store never had."""
DAMAGE_TAG: Final = "tracelake.damage"
TOO_LARGE_TAG: Final = "tracelake.too_large"
"""Tags of a trace in a batch without its spans: they are unreadable, or too large for memory."""


class OfExperiment(MlflowModel):
    """Location of traces: an experiment."""

    experiment_id: str


class TraceLocation(MlflowModel):
    """Location of traces."""

    mlflow_experiment: OfExperiment | None = None


class TraceQuery(MlflowModel):
    """Search for traces. Version 3 of the API sends `locations`, version 2 `experiment_ids`."""

    locations: list[TraceLocation] = []
    experiment_ids: list[str] = []
    filter: str | None = None
    max_results: int = 100
    order_by: list[str] = []
    page_token: str | None = None


@api.post("/traces/search")
def search_traces(lake: RequestLake, body: JsonBody[TraceQuery]) -> object:
    """Search for traces."""
    page = lake.hot.find_traces(
        _experiments(body), body.filter, _page_size(body.max_results), body.order_by, body.page_token
    )
    infos = _infos(lake, {row.trace_id: row._mapping for row in page.rows})
    answer = {"traces": [_listed(info) for info in infos]}
    return {**answer, "next_page_token": page.next_page_token} if page.next_page_token else answer


@api.get("/traces/batchGet")
def get_traces(lake: RequestLake, trace_ids: list[str] = Query(default=[])) -> object:  # noqa: B008
    """Return traces with their spans."""
    if len(trace_ids) > limits.MLFLOW_BATCH_TRACES_MAX:
        raise LimitError(f"{len(trace_ids)} traces at once, of {limits.MLFLOW_BATCH_TRACES_MAX} at most.")
    return {"traces": _traces(lake, full_ids(trace_ids))}


@api.get("/traces/get")
def get_trace(lake: RequestLake, trace_id: str) -> object:
    """Return a trace with its spans."""
    return _trace(lake, trace_id)


@api.get("/traces/{trace_id}")
def get_trace_info(lake: RequestLake, trace_id: str) -> object:
    """Return a trace without its spans."""
    return {"trace": {"trace_info": _info_alone(lake, bare(trace_id))}}


def _experiments(body: TraceQuery) -> list[str]:
    ids = [
        each.mlflow_experiment.experiment_id for each in body.locations if each.mlflow_experiment is not None
    ]
    ids += body.experiment_ids
    if not 0 < len(ids) <= limits.MLFLOW_EXPERIMENTS_MAX or any("\0" in each for each in ids):
        raise UsageError(f"name 1 to {limits.MLFLOW_EXPERIMENTS_MAX} experiments, by their ids.")
    return ids


def _page_size(max_results: int) -> int:
    if not 1 <= max_results <= limits.MLFLOW_PAGE_TRACES_MAX:
        raise UsageError(f"max_results must be 1 to {limits.MLFLOW_PAGE_TRACES_MAX}, not {max_results}.")
    return max_results


def bare(trace_id: str) -> str:
    """Return a trace id, or its prefix, in the lake's form."""
    return trace_id.lower().removeprefix("tr-")


def full_ids(trace_ids: Sequence[str]) -> list[str]:
    """Return distinct full trace ids in the lake's form. Raises UsageError for an incomplete id."""
    whole_ids = list(dict.fromkeys(map(bare, trace_ids)))
    for each in whole_ids:
        if not _WHOLE_ID.fullmatch(each):
            raise UsageError(
                f"{each[: limits.NAME_QUOTED_MAX_CHARS]!r} is not a full trace id of 32 hex digits; `traces/get` "
                "accepts the beginning of an id."
            )
    return whole_ids


def _traces(lake: Lake, trace_ids: Sequence[str]) -> list[dict[str, Any] | msgspec.Raw]:
    """Return the traces that exist. Raises LimitError if they are too large for one response."""
    traces: list[dict[str, Any] | msgspec.Raw] = []
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
            # A single trace is returned at any size, as `traces/get` does.
            if traces and (
                spans > limits.MLFLOW_BATCH_SPANS_MAX or size_bytes > limits.MLFLOW_BATCH_MAX_BYTES
            ):
                raise LimitError(
                    f"the first {len(traces) + 1} of {len(trace_ids)} traces have {spans:,} spans of "
                    f"{size_bytes:,} bytes, and the limits are {limits.MLFLOW_BATCH_SPANS_MAX:,} and "
                    f"{limits.MLFLOW_BATCH_MAX_BYTES:,}; request fewer traces at once."
                )
            traces.append(_trace_json(lake, rows))
        except NotFoundError:
            continue  # as in MLflow: deleted between the search and this request
    return traces


def _without_spans(lake: Lake, trace_id: str, error: DamageError | LimitError) -> dict[str, Any]:
    """Return a trace whose spans cannot be read: its stored info without spans, with a tag that names the reason.

    One unreadable trace therefore neither fails the batch nor looks deleted. Raises `error` if the trace has no stored
    row.
    """
    stored = lake.hot.infos([trace_id])
    kind, tag = (LimitError, TOO_LARGE_TAG) if isinstance(error, LimitError) else (DamageError, DAMAGE_TAG)
    if not stored:
        raise kind(f"trace tr-{trace_id}: {error}; request the others without it") from error
    (info,) = _infos(lake, stored)
    return {"trace_info": {**info, "tags": {**info["tags"], tag: str(error)}}, "spans": []}


def _trace(lake: Lake, trace_id: str) -> Response:
    """Return a response with a trace and its spans, from both tiers."""
    rows = lake.hot.spans_of(bare(trace_id)).sort_by(IN_ORDER)
    trace = document({"trace_info": _info_of(lake, rows)}, "spans", rows, _spans)
    return in_pieces(enclosed(b'{"trace":', trace, b"}"))


def _info_alone(lake: Lake, trace_id: str) -> dict[str, Any]:
    """Return the info of a trace from its stored row. Without a row, or for an id prefix, compute it from the spans."""
    stored = lake.hot.infos([trace_id]) if _WHOLE_ID.fullmatch(trace_id) else {}
    return _infos(lake, stored)[0] if stored else _info_of(lake, lake.hot.spans_of(trace_id))


def _trace_json(lake: Lake, rows: pa.Table) -> msgspec.Raw:
    """Return a trace with these spans in MLflow's JSON.

    It is encoded in pieces, because the encoder holds the interpreter lock. The response then only copies the bytes.
    """
    pieces = document({"trace_info": _info_of(lake, rows)}, "spans", rows.sort_by(IN_ORDER), _spans)
    return msgspec.Raw(b"".join(pieces))


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
    """Return the state and the previews of a trace without a row, from its first root span."""
    columns = ["parent_span_id", "start_ns", "span_id", "end_ns", "status", "input", "output"]
    roots = rows.select(columns).filter(pc.field("parent_span_id").is_null())
    if not len(roots):
        return {"state": "IN_PROGRESS"}
    root = roots.sort_by([("start_ns", "ascending"), ("span_id", "ascending")]).slice(0, 1).to_pylist()[0]
    state = "ERROR" if root["status"] == "ERROR" else "OK"
    return {
        "state": state if root["end_ns"] else "IN_PROGRESS",
        "request_preview": root["input"] and root["input"][: limits.TRACKING_PREVIEW_MAX_CHARS],
        "response_preview": root["output"] and root["output"][: limits.TRACKING_PREVIEW_MAX_CHARS],
    }


def _infos(lake: Lake, rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return MLflow's trace info for rows of the tracking store."""
    tags, assessments = lake.annotations.of_traces(list(rows))
    client_infos = lake.hot.said_of(list(rows))
    infos = []
    for trace_id, row in rows.items():
        metadata, fields = client_infos.get(trace_id, ({}, {}))
        infos.append(
            _info(trace_id, {**row, **fields}, metadata, tags[trace_id], assessments.get(trace_id, []))
        )
    return infos


def _info(
    trace_id: str,
    row: Any,
    client_metadata: dict[str, str],
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
        "trace_metadata": {**metadata, **client_metadata},
        "tags": {**({"mlflow.traceName": row["name"]} if row.get("name") else {}), **tags},
        "assessments": assessments,
    }
    return {key: value for key, value in info.items() if value is not None}


def _time(ns: int) -> str:
    """Format a time as RFC 3339 in milliseconds; a time outside the calendar becomes 1970."""
    try:
        at = datetime.fromtimestamp(ns // 1_000_000 / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        at = datetime.fromtimestamp(0, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


_VERSION = "3.18.0"
"""Emulated MLflow version. The client sends spans as OTLP only to servers of version 3.4 or later."""


class NewTraceInfo(MlflowModel):
    """Trace info from a client. Its other fields are ignored, because the spans have them."""

    trace_id: str
    trace_location: TraceLocation | None = None
    client_request_id: str | None = None
    request_preview: str | None = None
    response_preview: str | None = None
    tags: dict[str, str] = {}
    trace_metadata: dict[str, str] = {}
    assessments: list[dict[str, Any]] = []


class TraceWithoutSpans(MlflowModel):
    """Trace without its spans."""

    trace_info: NewTraceInfo


class NewTrace(MlflowModel):
    """Trace to start."""

    trace: TraceWithoutSpans


class Deletion(MlflowModel):
    """Traces to delete from an experiment: by id, or the oldest up to a time."""

    experiment_id: str
    request_ids: list[str] = []
    trace_ids: list[str] = []
    max_timestamp_millis: int | None = None
    max_traces: int | None = None


@client_api.get("/version")
def version() -> PlainTextResponse:
    """Return the version of MLflow that this server emulates."""
    return PlainTextResponse(_VERSION)


@client_api.post("/api/3.0/mlflow/traces")
def start_trace(lake: RequestLake, body: JsonBody[NewTrace]) -> object:
    """Store what the client knows about a trace, without its spans."""
    return {"trace": {"trace_info": _start(lake, body.trace.trace_info)}}


@api.post("/traces/delete-traces")
def delete_traces(lake: RequestLake, body: JsonBody[Deletion]) -> object:
    """Delete traces of an experiment."""
    deleted = _delete(lake, body)
    return {"traces_deleted": deleted, "removed": DELETION_REMOVED, "kept": DELETION_KEPT}


def _start(lake: Lake, trace: NewTraceInfo) -> dict[str, Any]:
    """Store a client's trace info; return it in the form that MLflow's client expects."""
    store = lake.hot.required_store()
    (trace_id,) = full_ids([trace.trace_id])
    fields = {
        "client_request_id": trace.client_request_id,
        "request_preview": trace.request_preview
        and trace.request_preview[: limits.TRACKING_PREVIEW_MAX_CHARS],
        "response_preview": trace.response_preview
        and trace.response_preview[: limits.TRACKING_PREVIEW_MAX_CHARS],
    }
    present = {key: value for key, value in fields.items() if value is not None}
    started = StartedTrace(trace.tags, trace.trace_metadata, present, trace.assessments)
    client_info = ClientTraceInfo(store)
    client_info.start(trace_id, started)
    client_info.join([trace_id])
    annotations = Annotations(store)
    place = trace.trace_location and trace.trace_location.mlflow_experiment
    experiment_id = place.experiment_id if place else DEFAULT_EXPERIMENT
    # Without this tag the client uploads spans as an artifact instead of OTLP.
    tags = {LOCATION_TAG: TRACKING_STORE, **annotations.tags([trace_id])[trace_id]}
    return {
        "trace_id": f"tr-{trace_id}",
        "trace_location": {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": experiment_id},
        },
        "trace_metadata": trace.trace_metadata,
        "tags": tags,
        "assessments": annotations.assessments(trace_id),
        **present,
    }


def _delete(lake: Lake, wanted: Deletion) -> int:
    """Delete traces of an experiment; return their number."""
    store = lake.hot.required_store()
    ids = [*wanted.request_ids, *wanted.trace_ids]
    if bool(ids) == (wanted.max_timestamp_millis is not None):
        raise UsageError("name the traces to delete, or the latest start time, but not both.")
    if wanted.max_traces is not None and (ids or wanted.max_traces < 1):
        raise UsageError("max_traces must be 1 or more, and needs max_timestamp_millis.")
    if len(ids) > limits.MLFLOW_DELETED_TRACES_MAX:
        raise UsageError(
            f"{len(ids):,} traces at once, of {limits.MLFLOW_DELETED_TRACES_MAX:,} at most; ask for fewer."
        )
    if ids:
        here = store.infos([bare(each) for each in ids])
        chosen = [id for id, row in here.items() if row["experiment_id"] == wanted.experiment_id]
    else:
        most = min(wanted.max_traces or limits.MLFLOW_DELETED_TRACES_MAX, limits.MLFLOW_DELETED_TRACES_MAX)
        chosen = store.began_until(wanted.experiment_id, wanted.max_timestamp_millis or 0, most)
    deleted = 0
    failed: dict[str, TracelakeError] = {}
    for at in range(0, len(chosen), limits.TRACKING_IDS_AT_ONCE):
        some = chosen[at : at + limits.TRACKING_IDS_AT_ONCE]
        deleted += len(lake.archive.delete(some, failed.__setitem__))
    if failed:  # the response has room for a number but not for reasons
        trace_id, error = next(iter(failed.items()))
        message = (
            f"{deleted:,} traces were deleted, and {len(failed):,} were not, such as tr-{trace_id}: {error}"
        )
        raise StorageError(message) from error
    return deleted
